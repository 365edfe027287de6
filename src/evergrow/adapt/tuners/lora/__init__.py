"""Low-rank additions to the linear maps of a vision transformer."""

from evergrow.adapt.tuners.lora.config import LoRAConfig
from evergrow.adapt.tuners.lora.layer import LoRATuner

__all__ = ["LoRAConfig", "LoRATuner"]
