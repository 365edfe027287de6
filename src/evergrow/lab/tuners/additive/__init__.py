"""Vectors added to the class token's key and value."""

from evergrow.lab.tuners.additive.config import AdditiveConfig
from evergrow.lab.tuners.additive.layer import AdditiveTuner

__all__ = ["AdditiveConfig", "AdditiveTuner"]
