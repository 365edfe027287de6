"""Schedules: the factor on all learning rates in an epoch, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from evergrow.core.registry import Registry

if TYPE_CHECKING:
    from evergrow.adapt.settings import TrainConfig

Schedule = Callable[["TrainConfig", int], float]

SCHEDULES: Registry[Schedule] = Registry("schedule")
"""Every schedule: from the settings and an epoch, counted from 0, to a factor."""


@SCHEDULES.register("cosine")
def _cosine(config: TrainConfig, epoch: int) -> float:
    """Half a cosine, which reaches 0 after the last epoch."""
    return 0.5 * (1.0 + math.cos(math.pi * epoch / config.epochs))


@SCHEDULES.register("constant")
def _constant(config: TrainConfig, epoch: int) -> float:
    return 1.0


@SCHEDULES.register("coda-cosine")
def _coda_cosine(config: TrainConfig, epoch: int) -> float:
    """CODA-Prompt's: a quarter of a cosine, which nearly reaches 0 in the last epoch."""
    return math.cos(99 * math.pi * epoch / (200 * max(config.epochs - 1, 1)))


@SCHEDULES.register("steps")
def _steps(config: TrainConfig, epoch: int) -> float:
    return float(config.gamma ** sum(epoch >= milestone for milestone in config.milestones))
