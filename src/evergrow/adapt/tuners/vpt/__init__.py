"""Learned tokens beside those of the image."""

from evergrow.adapt.tuners.vpt.config import VPTConfig
from evergrow.adapt.tuners.vpt.layer import VPTDeepTuner, VPTShallowTuner

__all__ = ["VPTConfig", "VPTDeepTuner", "VPTShallowTuner"]
