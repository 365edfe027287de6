"""Training of networks: tuners, the training loop and first-session adaptation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.adapt.fsa import Adaptation, AdaptedBackbone, adapt, adapted_from
    from evergrow.adapt.loop import TrainingError, TrainLog, train
    from evergrow.adapt.settings import FsaConfig, TrainConfig

_HOMES = {
    "fsa": ("Adaptation", "AdaptedBackbone", "adapt", "adapted_from"),
    "loop": ("TrainLog", "TrainingError", "train"),
    "settings": ("FsaConfig", "TrainConfig"),
}

__all__ = [
    "Adaptation",
    "AdaptedBackbone",
    "FsaConfig",
    "TrainConfig",
    "TrainLog",
    "TrainingError",
    "adapt",
    "adapted_from",
    "train",
]

_MODULES = {
    name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names
}
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
