"""Learned tokens beside those of the image."""

from evergrow.tuners.vpt.config import VPTConfig
from evergrow.tuners.vpt.layer import VPTDeepTuner, VPTShallowTuner

__all__ = ["VPTConfig", "VPTDeepTuner", "VPTShallowTuner"]
