"""Added keys and values in the attention of a vision transformer."""

from evergrow.tuners.prefix.config import PrefixConfig
from evergrow.tuners.prefix.layer import PrefixTuner, PromptProvider

__all__ = ["PrefixConfig", "PrefixTuner", "PromptProvider"]
