"""Layers: parameters that users pass, and the frozen maps that are built from them on the first task."""

from evergrow.head.layers.activations import ACTIVATIONS, Activation
from evergrow.head.layers.base import LAYERS, Layer, layer_from_plain
from evergrow.head.layers.feature_map import (
    NORMALIZATIONS,
    BlockRecord,
    Construction,
    FeatureMap,
    Units,
    check_contrast,
    chunk_rows,
    link_only,
    normalize,
    resolve_normalization,
)
from evergrow.head.layers.fourier import FourierLayer
from evergrow.head.layers.guided import GuidedLayer
from evergrow.head.layers.units import Scales, UnitSampler, centred_rms, check_scales

__all__ = [
    "ACTIVATIONS",
    "LAYERS",
    "NORMALIZATIONS",
    "Activation",
    "BlockRecord",
    "Construction",
    "FeatureMap",
    "FourierLayer",
    "GuidedLayer",
    "Layer",
    "Scales",
    "UnitSampler",
    "Units",
    "centred_rms",
    "check_contrast",
    "check_scales",
    "chunk_rows",
    "layer_from_plain",
    "link_only",
    "normalize",
    "resolve_normalization",
]
