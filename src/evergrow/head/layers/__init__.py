"""Layers: parameters that users pass, and the frozen maps that are built from them on the first task."""

from evergrow.head.layers.base import LAYERS, Layer
from evergrow.head.layers.feature_map import ACTIVATIONS, Activation, FeatureMap
from evergrow.head.layers.fourier import FourierLayer
from evergrow.head.layers.guided import GuidedLayer

__all__ = ["ACTIVATIONS", "LAYERS", "Activation", "FeatureMap", "FourierLayer", "GuidedLayer", "Layer"]
