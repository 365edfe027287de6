"""Tuners: a few parameters that change what a frozen backbone computes.

``create_tuner("adapter", model)`` puts one on an unmodified timm model by hooks; the
model keeps its modules, its weights and its ``state_dict``. A disabled or removed tuner
leaves the outputs of the base model unchanged, bit for bit.
"""

from evergrow.adapt.tuners.adapter import AdapterConfig
from evergrow.adapt.tuners.ssf import SSFConfig
from evergrow.adapt.tuners.tuner import (
    TUNERS,
    Tuner,
    TunerConfig,
    TunerError,
    UnsupportedModelError,
    adapting_tuners,
    create_tuner,
    restore_tuner,
    tuners_of,
)

__all__ = [
    "TUNERS",
    "AdapterConfig",
    "SSFConfig",
    "Tuner",
    "TunerConfig",
    "TunerError",
    "UnsupportedModelError",
    "adapting_tuners",
    "create_tuner",
    "restore_tuner",
    "tuners_of",
]
