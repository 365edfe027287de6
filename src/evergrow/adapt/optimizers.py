"""Optimizers by name, and the tensors that each remembers of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evergrow.core.registry import Registry

if TYPE_CHECKING:
    from evergrow.adapt.settings import TrainConfig

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class OptimizerKind:
    """One kind of optimizer.

    Parameters
    ----------
    make : callable
        From parameter groups, the settings and whether to fuse its steps on a GPU to the optimizer.
    memory : tuple of str
        Tensors that it remembers of every parameter, each of the parameter's shape, for checkpoints.
    counts : bool
        Whether it counts its steps, too, in a tensor ``step`` of one number.
    """

    make: Callable[[Groups, TrainConfig, bool], torch.optim.Optimizer]
    memory: tuple[str, ...]
    counts: bool = False

    def names(self) -> tuple[str, ...]:
        """Return the names of everything that is remembered of a parameter."""
        return (*self.memory, *(("step",) if self.counts else ()))


OPTIMIZERS: Registry[OptimizerKind] = Registry("optimizer")
"""Every optimizer that a network can be trained with."""


def _sgd(groups: Groups, config: TrainConfig, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused
    )


def _adam(groups: Groups, config: TrainConfig, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused)


OPTIMIZERS.register("sgd")(OptimizerKind(_sgd, ("momentum_buffer",)))
OPTIMIZERS.register("adam")(OptimizerKind(_adam, ("exp_avg", "exp_avg_sq"), counts=True))
