"""Frozen random feature maps: guided (MGSM, SCSM), Gaussian, Fourier, and the direct link beside them."""

from evergrow.head.layers.base import PROJECTIONS, Projection, read_projection
from evergrow.head.layers.gaussian import FourierProjection, GaussianProjection
from evergrow.head.layers.guided import GuidedProjection
from evergrow.head.layers.identity import IdentityProjection
from evergrow.head.layers.linked import LinkedProjection
from evergrow.head.layers.search import BlockRecord, GuidedConfig
from evergrow.head.layers.specs import LAYERS, FourierLayer, GuidedLayer, Layer, layer_from_plain

__all__ = [
    "LAYERS",
    "PROJECTIONS",
    "BlockRecord",
    "FourierLayer",
    "FourierProjection",
    "GaussianProjection",
    "GuidedConfig",
    "GuidedLayer",
    "GuidedProjection",
    "IdentityProjection",
    "Layer",
    "LinkedProjection",
    "Projection",
    "layer_from_plain",
    "read_projection",
]
