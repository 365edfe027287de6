"""Bottleneck branches beside the MLPs of a vision transformer."""

from evergrow.tuners.adapter.config import AdapterConfig
from evergrow.tuners.adapter.layer import AdapterTuner

__all__ = ["AdapterConfig", "AdapterTuner"]
