"""Training of networks: tuners, the loop, first-session adaptation."""

from evergrow.adapt.fsa import Adaptation, AdaptedBackbone, adapt, adapted_from
from evergrow.adapt.loop import TrainingError, TrainLog, train
from evergrow.adapt.settings import FsaConfig, TrainConfig

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
