"""Frozen random feature maps: guided (MGSM, SCSM), Gaussian, Fourier, and the direct link beside them."""

from evergrow.projections.base import PROJECTIONS, Projection, read_projection
from evergrow.projections.gaussian import FourierProjection, GaussianProjection
from evergrow.projections.guided import GuidedProjection
from evergrow.projections.identity import IdentityProjection
from evergrow.projections.linked import LinkedProjection
from evergrow.projections.scsm import SCSMProjection
from evergrow.projections.search import BlockRecord, GuidedConfig
from evergrow.projections.uniform import UniformProjection

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
    "SCSMProjection",
    "UniformProjection",
    "read_projection",
]
