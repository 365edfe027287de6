"""Low-rank directions learned task by task, with a magnitude each."""

from evergrow.tuners.sdlora.config import SDLoRAConfig
from evergrow.tuners.sdlora.layer import SDLoRATuner

__all__ = ["SDLoRAConfig", "SDLoRATuner"]
