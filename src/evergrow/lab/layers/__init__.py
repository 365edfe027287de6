"""Layers used only by comparison methods."""

from evergrow.lab.layers.gaussian import GaussianLayer, UniformLayer
from evergrow.lab.layers.scsm import SCSMLayer

__all__ = ["GaussianLayer", "SCSMLayer", "UniformLayer"]
