"""Checkpoints: one file from which an interrupted training goes on to the same weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.errors import CheckpointError
from evergrow.adapt.optimizers import OptimizerKind
from evergrow.adapt.settings import PRECISIONS
from evergrow.core.archive import Archive, read_archive, register_kind, write_archive
from evergrow.core.fields import Fields
from evergrow.core.wording import setting


def _from_version_1(old: Archive) -> Archive:
    """Return a checkpoint of evergrow 0.1 in the present layout, with the settings that did not exist at first.

    A training goes on only with the settings it began with. One that came later was not written down, but had a value:
    whoever adds a setting raises the version and adds that value here.
    """
    given = {"images" if key == "pictures" else key: value for key, value in old.meta["identity"].items()}
    identity = {"interpolation": "bilinear", **given}
    meta = {**old.meta, "identity": identity}
    return Archive("checkpoint", meta, old.tensors, version=2)


KIND = register_kind("checkpoint", version=2, former=("Training",), migrations={1: _from_version_1})


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

    def checked(self, fields: Fields) -> dict[str, Tensor]:
        """Return the tensors of a file, each of which is one that :meth:`tensors` could have given.

        Raises
        ------
        FileFormatError
            If one is missing, is not known, or has another shape or type than here.
        """
        found = {
            f"parameter.{i}": fields.tensor(f"parameter.{i}", parameter.shape, dtype=parameter.dtype)
            for i, parameter in enumerate(self.parameters)
        }
        for name in fields.tensor_names():
            if name not in found:
                found[name] = self._checked_memory(fields, name)
        remembered = {name.split(".")[1] for name in found if name.startswith("optimizer.")}
        for index in remembered:
            for key in self.kind.names():
                fields.require(f"optimizer.{index}.{key}" in found, f"the optimizer remembers no {key} of {index}")
        return found

    def _checked_memory(self, fields: Fields, name: str) -> Tensor:
        """Return a tensor that the optimizer remembers of a parameter."""
        kind, _, rest = name.partition(".")
        index, _, key = rest.partition(".")
        # Written as the number is: two names for one parameter would hide each other.
        known = index.isdecimal() and index == str(int(index)) and int(index) < len(self.parameters)
        fields.require(kind == "optimizer" and known and key in self.kind.names(), f"{name!r} is not known")
        if key not in self.kind.memory:
            return fields.tensor(name, (), dtype=torch.float32)
        parameter = self.parameters[int(index)]
        return fields.tensor(name, parameter.shape, dtype=parameter.dtype)

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
    meta = {"identity": dict(identity), "progress": vars(progress).copy()}
    write_archive(path, KIND.archive(meta, state.tensors()))


def read_checkpoint(path: str | os.PathLike[str], state: TrainState, identity: Mapping[str, Any]) -> Progress | None:
    """Take over the numbers in a checkpoint and return how far it is; None if there is no file.

    Raises
    ------
    CheckpointError
        If it belongs to another training; the message says in what they differ. Nothing is changed then.
    FileFormatError
        If the file is no whole checkpoint. Nothing is changed then.
    """
    name = os.fspath(path)
    try:
        fields = read_archive(path).open(KIND.name, name=name)
    except FileNotFoundError:
        return None
    wanted = json.loads(json.dumps(dict(identity)))
    _require_same(name, _as_stated(fields.mapping("identity"), wanted), wanted)
    progress, tensors = _progress(fields.fields("progress")), state.checked(fields)
    state.restore(tensors)
    return progress


def _progress(fields: Fields) -> Progress:
    progress = Progress(
        fields.integer("epoch"),
        fields.numbers("losses"),
        fields.number("seconds", low=0),
        fields.text("precision", choices=PRECISIONS),
        _loss_scaling(fields),
    )
    fields.require(
        len(progress.losses) == progress.epoch, f"{progress.epoch} epochs have {len(progress.losses)} losses"
    )
    return progress


def _loss_scaling(fields: Fields) -> dict[str, Any]:
    """Return the state of the loss scaling; empty where there is none."""
    if not fields.mapping("scaler"):
        return {}
    inside = fields.fields("scaler")
    factors = {name: inside.number(name, low=0) for name in ("scale", "growth_factor", "backoff_factor")}
    return {**factors, **{name: inside.integer(name) for name in ("growth_interval", "_growth_tracker")}}


def _as_stated(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return an identity whose groups have only what was stated: 0.1 also kept what the optimizer of its torch adds."""
    groups, stated = found.get("groups"), wanted.get("groups")
    if not (isinstance(groups, list) and isinstance(stated, list) and len(groups) == len(stated)):
        return found
    if not all(isinstance(group, dict) for group in (*groups, *stated)):
        return found
    kept = [{key: group[key] for key in own if key in group} for group, own in zip(groups, stated, strict=True)]
    return {**found, "groups": kept}


def _require_same(name: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    if differing:
        shown = "; ".join(f"{key} is {found.get(key)!r} there and {wanted.get(key)!r} here" for key in differing[:3])
        raise CheckpointError(
            f"{setting('checkpoint')} must be of the same training, but {name} differs in {len(differing)} of "
            f"{len({*found, *wanted})} points: {shown}; go on with the old settings, or remove the file"
        )
