"""Checkpoints: a training goes on from its own, and wrong ones change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.altered import altered
from torch import nn

from evergrow.adapt.loop import Progress, TrainState
from evergrow.adapt.settings import OPTIMIZERS, TrainConfig
from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import EvergrowError, FileFormatError, NewerSchemaError

IDENTITY = {**TrainConfig().to_dict(), "seed": 0, "images": "a"}


def trained(optimizer: str, steps: int = 2, seed: int = 0) -> TrainState:
    """Return the state of a layer after some steps."""
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 7 + seed)
    groups = [{"params": list(layer.parameters()), "lr": 0.1}]
    made = TrainConfig(optimizer=optimizer).make_optimizer(groups, fused=False)
    for _ in range(steps):
        made.zero_grad()
        layer(torch.ones(1, 3)).square().sum().backward()
        made.step()
    return TrainState(list(layer.parameters()), made, OPTIMIZERS[optimizer])


def numbers(state: TrainState) -> dict[str, list[Any]]:
    return {name: tensor.tolist() for name, tensor in state.tensors().items()}


@pytest.fixture(params=sorted(OPTIMIZERS))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, TrainState]:
    state = trained(request.param)
    state.write(tmp_path / "training", Progress([3.0, 1.0], 0.5, "bfloat16"), IDENTITY)
    return tmp_path / "training", state


def again(state: TrainState) -> TrainState:
    """Return an untrained state of the same kind."""
    return trained("adam" if "step" in state.memory else "sgd", steps=0, seed=5)


def test_a_training_goes_on_from_what_was_written(written: tuple[Path, TrainState]) -> None:
    path, state = written
    resumed = again(state)
    assert resumed.read(path, IDENTITY) == Progress([3.0, 1.0], 0.5, "bfloat16")
    assert numbers(resumed) == numbers(state)


def test_a_newer_one_says_that_it_is(written: tuple[Path, TrainState]) -> None:
    path, state = written
    write_archive(path, replace(read_archive(path), version=3))
    with pytest.raises(NewerSchemaError, match="newer evergrow"):
        again(state).read(path, IDENTITY)


def test_whatever_is_wrong_is_a_typed_error_and_changes_nothing(
    written: tuple[Path, TrainState], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = written
    refused, taken = 0, []
    before = numbers(again(state))
    for what, archive in altered(read_archive(path)):
        monkeypatch.setattr("evergrow.core.record.read_archive", _giving(archive))
        resumed = again(state)
        try:
            resumed.read(path, IDENTITY)
        except EvergrowError:
            refused += 1
            assert numbers(resumed) == before, what
        else:
            taken.append(what)
            assert all(bool(torch.isfinite(tensor).all()) for tensor in resumed.tensors().values()), what
    assert refused > 100
    # Nothing is remembered of a parameter that never had a gradient, so that memory may be missing, but not in parts.
    taken = [what for what in taken if what not in [f"without tensors.optimizer.{i}.momentum_buffer" for i in range(2)]]
    equal = (
        "'crop_scale', 1) = True",
        *(f"{name}') = 0" for name in ("path", "mixup", "ing")),
    )
    harmless = ("'seconds'", "'losses'", "'precision'", "step scalar", *equal)
    assert [what for what in taken if not any(word in what for word in harmless)] == []


def _giving(archive: Archive) -> Callable[[Any], Archive]:
    return lambda path: archive


def test_no_tensor_is_missing_or_strange(written: tuple[Path, TrainState]) -> None:
    path, state = written
    archive = read_archive(path)
    extra = torch.zeros(2, 3)
    for name in ("optimizer.00.exp_avg", "optimizer.9.momentum_buffer", "optimizer.x.y", "weights", "parameter.7"):
        write_archive(path, replace(archive, tensors={**archive.tensors, f"tensors.{name}": extra}))
        with pytest.raises(FileFormatError, match="tensors are not those of this network"):
            again(state).read(path, IDENTITY)
