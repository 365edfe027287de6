"""Training of networks: tuners, the training loop and first-session adaptation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.adapt.adapted import Adaptation, AdaptedBackbone, adapted_from
    from evergrow.adapt.fsa import adapt
    from evergrow.adapt.loop import TrainingError, TrainLog, train
    from evergrow.adapt.settings import FineTuneConfig, FsaConfig, TrainConfig

_HOMES = {
    "adapted": ("AdaptedBackbone", "Adaptation", "adapted_from"),
    "fsa": ("adapt",),
    "loop": ("TrainLog", "TrainingError", "train"),
    "settings": ("FineTuneConfig", "FsaConfig", "TrainConfig"),
}

__all__ = [
    "Adaptation",
    "AdaptedBackbone",
    "FineTuneConfig",
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
