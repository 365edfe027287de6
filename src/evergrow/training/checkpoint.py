"""Where a training stands, in one file: it goes on from there to the same weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import FileFormatError
from evergrow.training.errors import CheckpointError

_KIND = "Training"


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

    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    precision: str = "float32"
    scaler: dict[str, Any] = field(default_factory=dict)


class TrainState:
    """The numbers that training changes: parameters and what the optimizer remembers of them.

    Parameters
    ----------
    parameters : sequence of torch.nn.Parameter
        In an order that is the same in every run.
    optimizer : torch.optim.Optimizer
        Of these parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self.parameters = list(parameters)
        self.optimizer = optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of everything by name."""
        found = {f"parameter.{i}": parameter.detach().clone() for i, parameter in enumerate(self.parameters)}
        for index, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):  # momentum is None before the first step
                    found[f"optimizer.{index}.{name}"] = value.detach().clone()
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
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
    """Write where a training stands, atomically.

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
    meta = {"identity": dict(identity), "progress": vars(progress).copy()}
    write_archive(path, Archive(_KIND, meta, state.tensors()))


def read_checkpoint(path: str | os.PathLike[str], state: TrainState, identity: Mapping[str, Any]) -> Progress | None:
    """Take over what a checkpoint holds and return how far it is; None if there is no file.

    Raises
    ------
    CheckpointError
        If it belongs to another training; the message says in what they differ. Nothing is changed then.
    FileFormatError
        If the file is no checkpoint, is truncated or was altered.
    """
    try:
        archive = read_archive(path, _KIND)
    except FileNotFoundError:
        return None
    try:
        found, progress = archive.meta["identity"], Progress(**archive.meta["progress"])
        _require_same(path, found, json.loads(json.dumps(dict(identity))))
        state.restore(archive.tensors)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise FileFormatError(
            f"{os.fspath(path)} must be a whole checkpoint, but it lacks or garbles {error}"
        ) from error
    return progress


def _require_same(path: str | os.PathLike[str], found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    if differing:
        shown = "; ".join(f"{key} is {found.get(key)!r} there and {wanted.get(key)!r} here" for key in differing[:3])
        raise CheckpointError(
            f"checkpoint must be of the same training, but {os.fspath(path)} differs in {len(differing)} of "
            f"{len({*found, *wanted})} points: {shown}; go on with the old settings, or remove the file"
        )
