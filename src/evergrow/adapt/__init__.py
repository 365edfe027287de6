"""Training of networks: loop, data, crops, checkpoints, cost, first-session adaptation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.adapt.adaptation import Adaptation
    from evergrow.adapt.adapted import AdaptedBackbone, adapted_from
    from evergrow.adapt.cost import Cost
    from evergrow.adapt.errors import CheckpointError, TrainingError
    from evergrow.adapt.features import featurize
    from evergrow.adapt.fsa import adapt
    from evergrow.adapt.loop import TrainLog, train
    from evergrow.adapt.settings import FsaConfig, TrainConfig

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
        "Adaptation": "evergrow.adapt.adaptation",
        "AdaptedBackbone": "evergrow.adapt.adapted",
        "CheckpointError": "evergrow.adapt.errors",
        "Cost": "evergrow.adapt.cost",
        "FsaConfig": "evergrow.adapt.settings",
        "TrainConfig": "evergrow.adapt.settings",
        "TrainLog": "evergrow.adapt.loop",
        "TrainingError": "evergrow.adapt.errors",
        "adapt": "evergrow.adapt.fsa",
        "adapted_from": "evergrow.adapt.adapted",
        "featurize": "evergrow.adapt.features",
        "train": "evergrow.adapt.loop",
    },
)
