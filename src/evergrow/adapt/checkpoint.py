"""Checkpoints: one file from which an interrupted training goes on to the same weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from evergrow.adapt.settings import OptimizerKind, Precision
from evergrow.core.errors import EvergrowError
from evergrow.core.record import Spec, read_record, record, require, write_record


class CheckpointError(EvergrowError, ValueError):
    """A checkpoint belongs to another training than the one that wants to go on from it."""


@dataclass
class Progress:
    """How far a training has come.

    Parameters
    ----------
    epoch : int
        Epochs that are done.
    losses : list of float
        Mean loss of each.
    seconds : float
        Time they took.
    precision : str
        Arithmetic of the passes; float32 from the epoch on in which another one failed.
    scaler : dict
        State of the loss scaling of float16.
    """

    epoch: int
    losses: list[float]
    seconds: float
    precision: Precision
    scaler: dict[str, int | float] = field(default_factory=dict)

    def check(self) -> None:
        """Raise where a file contradicts itself."""
        require(len(self.losses) == self.epoch, f"{self.epoch} epochs have {len(self.losses)} losses")
        numbers = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
        require(set(self.scaler) in (set(), numbers), "the loss scaling is not known")
        require(all(value >= 0 for value in self.scaler.values()), "the loss scaling has a negative number")


@record("checkpoint")
@dataclass(frozen=True)
class Checkpoint:
    """What a file holds of a training: all that decides its result, how far it has come, and its numbers."""

    identity: dict[str, Any]
    progress: Progress
    tensors: dict[str, Annotated[Tensor, Spec(dtype=None)]]


class TrainState:
    """The numbers that training changes: parameters, and the optimizer's memory of them.

    Parameters
    ----------
    parameters : sequence of torch.nn.Parameter
        In an order that is the same in every run.
    optimizer : torch.optim.Optimizer
        Of these parameters.
    kind : OptimizerKind
        What it remembers.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, kind: OptimizerKind
    ) -> None:
        self.parameters = list(parameters)
        self.optimizer = optimizer
        self.kind = kind

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of everything by name."""
        found = {f"parameter.{i}": parameter.detach().clone() for i, parameter in enumerate(self.parameters)}
        for index, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):  # momentum is None before the first step
                    found[f"optimizer.{index}.{name}"] = value.detach().clone()
        return found

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise :class:`FileFormatError` unless :meth:`tensors` could have given these."""
        expected: dict[str, tuple[Any, torch.dtype]] = {}
        for i, parameter in enumerate(self.parameters):
            expected[f"parameter.{i}"] = (parameter.shape, parameter.dtype)
            if any(name.startswith(f"optimizer.{i}.") for name in tensors):  # nothing before the first step
                for key in self.kind.memory:
                    expected[f"optimizer.{i}.{key}"] = (parameter.shape, parameter.dtype)
                if self.kind.counts:
                    expected[f"optimizer.{i}.step"] = (torch.Size(()), torch.float32)
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        require(not wrong, f"{len(wrong)} tensors are not those of this network, the first is {wrong[:1]}")

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors that :meth:`tensors` or :meth:`checked` returned."""
        remembered: dict[int, dict[str, Tensor]] = {}
        with torch.no_grad():
            for name, value in tensors.items():
                kind, _, rest = name.partition(".")
                if kind == "parameter":
                    self.parameters[int(rest)].copy_(value)
                else:
                    index, _, what = rest.partition(".")
                    remembered.setdefault(int(index), {})[what] = value.clone()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": remembered, "param_groups": groups})


def write_checkpoint(
    path: str | os.PathLike[str], state: TrainState, progress: Progress, identity: Mapping[str, Any]
) -> None:
    """Write a checkpoint, atomically.

    Parameters
    ----------
    path : path-like
        One file, replaced in one step; its folder must exist.
    state : TrainState
        The numbers.
    progress : Progress
        How far it is.
    identity : mapping
        All that decides the result; a training with another identity cannot go on from the file.
    """
    write_record(path, Checkpoint(dict(identity), progress, state.tensors()))


def read_checkpoint(path: str | os.PathLike[str], state: TrainState, identity: Mapping[str, Any]) -> Progress | None:
    """Take over the numbers in a checkpoint and return how far it is; None if there is no file.

    Raises
    ------
    CheckpointError
        If it belongs to another training; the message says in what they differ. Nothing is changed then.
    FileFormatError
        If the file is no whole checkpoint. Nothing is changed then.
    """
    try:
        found = read_record(Checkpoint, path)
    except FileNotFoundError:
        return None
    _require_same(os.fspath(path), found.identity, json.loads(json.dumps(dict(identity))))
    state.check(found.tensors)
    state.restore(found.tensors)
    return found.progress


def _require_same(name: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    if differing:
        shown = "; ".join(f"{key} is {found.get(key)!r} there and {wanted.get(key)!r} here" for key in differing[:3])
        raise CheckpointError(
            f"checkpoint must be of the same training, but {name} differs in {len(differing)} of "
            f"{len({*found, *wanted})} points: {shown}; go on with the old settings, or remove the file"
        )
