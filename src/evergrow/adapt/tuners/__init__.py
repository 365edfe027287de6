"""Tuners: a few trainable parameters that change the output of a frozen backbone.

``create_tuner("adapter", model)`` attaches a tuner to a timm model by hooks. The model
keeps its modules, weights and ``state_dict``. A disabled or removed tuner leaves the
outputs of the model unchanged, bit for bit.
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
