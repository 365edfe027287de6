"""Added keys and values in the attention of a vision transformer."""

from evergrow.lab.tuners.prefix.config import PrefixConfig
from evergrow.lab.tuners.prefix.layer import PrefixTuner, PromptProvider

__all__ = ["PrefixConfig", "PrefixTuner", "PromptProvider"]
