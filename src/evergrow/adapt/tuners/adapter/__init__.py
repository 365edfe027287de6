"""Bottleneck branches beside the MLPs of a vision transformer."""

from evergrow.adapt.tuners.adapter.config import AdapterConfig
from evergrow.adapt.tuners.adapter.layer import AdapterTuner

__all__ = ["AdapterConfig", "AdapterTuner"]
