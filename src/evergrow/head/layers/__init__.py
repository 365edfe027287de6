"""Layers: user parameters, and the frozen feature maps built from the first task."""

from evergrow.head.layers.feature_map import (
    ACTIVATIONS,
    LAYERS,
    Activation,
    DenseMap,
    FeatureMap,
    Layer,
)
from evergrow.head.layers.fourier import FourierLayer
from evergrow.head.layers.guided import GuidedLayer

__all__ = [
    "ACTIVATIONS",
    "LAYERS",
    "Activation",
    "DenseMap",
    "FeatureMap",
    "FourierLayer",
    "GuidedLayer",
    "Layer",
]
