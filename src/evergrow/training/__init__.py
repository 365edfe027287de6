"""Training of networks: loop, data, crops, checkpoints, cost, first-session adaptation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.training.adaptation import Adaptation
    from evergrow.training.adapted import AdaptedBackbone, adapted_from
    from evergrow.training.cost import Cost
    from evergrow.training.errors import CheckpointError, TrainingError
    from evergrow.training.features import featurize
    from evergrow.training.fsa import adapt
    from evergrow.training.loop import TrainLog, train
    from evergrow.training.settings import FsaConfig, TrainConfig

__all__ = [
    "Adaptation",
    "AdaptedBackbone",
    "CheckpointError",
    "Cost",
    "FsaConfig",
    "TrainConfig",
    "TrainLog",
    "TrainingError",
    "adapt",
    "adapted_from",
    "featurize",
    "train",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Adaptation": "evergrow.training.adaptation",
        "AdaptedBackbone": "evergrow.training.adapted",
        "CheckpointError": "evergrow.training.errors",
        "Cost": "evergrow.training.cost",
        "FsaConfig": "evergrow.training.settings",
        "TrainConfig": "evergrow.training.settings",
        "TrainLog": "evergrow.training.loop",
        "TrainingError": "evergrow.training.errors",
        "adapt": "evergrow.training.fsa",
        "adapted_from": "evergrow.training.adapted",
        "featurize": "evergrow.training.features",
        "train": "evergrow.training.loop",
    },
)
