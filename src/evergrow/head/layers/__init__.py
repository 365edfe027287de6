"""Frozen random feature maps: guided (MGSM, SCSM), Gaussian, Fourier, and the direct link beside them."""

from evergrow.head.layers.base import PROJECTIONS, Projection, read_projection
from evergrow.head.layers.gaussian import FourierProjection, GaussianProjection
from evergrow.head.layers.guided import GuidedProjection
from evergrow.head.layers.identity import IdentityProjection
from evergrow.head.layers.linked import LinkedProjection
from evergrow.head.layers.search import BlockRecord, GuidedConfig

__all__ = [
    "PROJECTIONS",
    "BlockRecord",
    "FourierProjection",
    "GaussianProjection",
    "GuidedConfig",
    "GuidedProjection",
    "IdentityProjection",
    "LinkedProjection",
    "Projection",
    "read_projection",
]
