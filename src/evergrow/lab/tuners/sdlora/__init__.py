"""Low-rank directions learned task by task, with a magnitude each."""

from evergrow.lab.tuners.sdlora.config import SDLoRAConfig
from evergrow.lab.tuners.sdlora.layer import SDLoRATuner

__all__ = ["SDLoRAConfig", "SDLoRATuner"]
