"""Vectors added to the class token's key and value."""

from evergrow.tuners.additive.config import AdditiveConfig
from evergrow.tuners.additive.layer import AdditiveTuner

__all__ = ["AdditiveConfig", "AdditiveTuner"]
