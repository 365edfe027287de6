"""Layers that only rivals use."""

from evergrow.lab.layers.scsm import SCSMProjection
from evergrow.lab.layers.uniform import UniformProjection

__all__ = ["SCSMProjection", "UniformProjection"]
