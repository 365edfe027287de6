"""Tuners that only rivals use."""

from evergrow.lab.tuners.additive import AdditiveConfig, AdditiveTuner
from evergrow.lab.tuners.prefix import PrefixConfig, PrefixTuner
from evergrow.lab.tuners.sdlora import SDLoRAConfig, SDLoRATuner

__all__ = ["AdditiveConfig", "AdditiveTuner", "PrefixConfig", "PrefixTuner", "SDLoRAConfig", "SDLoRATuner"]
