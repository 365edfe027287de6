"""Tuners: a few parameters that change what a frozen backbone computes.

``create_tuner("adapter", model)`` puts one on an unmodified timm model by hooks; the model keeps its modules, its
weights and its ``state_dict``. ``tuner.disable()`` gives the base model to the bit, ``tuner.remove()`` for good.
"""

from evergrow.tuners.adapter import AdapterConfig, AdapterTuner
from evergrow.tuners.additive import AdditiveConfig, AdditiveTuner
from evergrow.tuners.attention import AttentionEdit, AttentionSite
from evergrow.tuners.base import TUNERS, Tuner
from evergrow.tuners.config import TunerConfig
from evergrow.tuners.errors import ArchitectureError, TunerError, UnmergeableError, UnsupportedModelError
from evergrow.tuners.factory import adapting_tuners, create_tuner, list_tuners, load_tuner, restore_tuner
from evergrow.tuners.host import tuners_of
from evergrow.tuners.lora import LoRAConfig, LoRATuner
from evergrow.tuners.prefix import PrefixConfig, PrefixTuner
from evergrow.tuners.sdlora import SDLoRAConfig, SDLoRATuner
from evergrow.tuners.ssf import SSFConfig, SSFTuner
from evergrow.tuners.vpt import VPTConfig, VPTDeepTuner, VPTShallowTuner

__all__ = [
    "TUNERS",
    "AdapterConfig",
    "AdapterTuner",
    "AdditiveConfig",
    "AdditiveTuner",
    "ArchitectureError",
    "AttentionEdit",
    "AttentionSite",
    "LoRAConfig",
    "LoRATuner",
    "PrefixConfig",
    "PrefixTuner",
    "SDLoRAConfig",
    "SDLoRATuner",
    "SSFConfig",
    "SSFTuner",
    "Tuner",
    "TunerConfig",
    "TunerError",
    "UnmergeableError",
    "UnsupportedModelError",
    "VPTConfig",
    "VPTDeepTuner",
    "VPTShallowTuner",
    "adapting_tuners",
    "create_tuner",
    "list_tuners",
    "load_tuner",
    "restore_tuner",
    "tuners_of",
]
