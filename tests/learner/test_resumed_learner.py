"""An adaptation that was interrupted goes on from its checkpoint to the same learner."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from tests.learner.toys import all_tensors, timeless

from evergrow.adapt import CheckpointError, FsaConfig
from evergrow.adapt.loop import _Run
from evergrow.core.archive import read_archive
from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.learner.learner import Learner

CONFIG = FsaConfig.recipe(tuner="ssf", epochs=4, lr=0.1)  # each epoch of the images below is one step


def learner_of(**settings: Any) -> Learner:
    chosen = {"adapt": CONFIG, "options": {"n_units": 20}, "cache": False, **settings}
    return Learner(chosen.pop("backbone", None) or tiny_vit(), **chosen)


@pytest.fixture(scope="module")
def data() -> tuple[Any, np.ndarray]:
    items, y = stripes(3, 6)
    return items, np.array(["ant", "bee", "cat"])[y]


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes training stop in a step, as Ctrl-C would; None lets it go on."""
    original = _Run._step

    def set_up(at: int | None) -> None:
        number = itertools.count(1)

        def step(self: _Run, *batch: Any) -> Any:
            if next(number) == at:
                raise KeyboardInterrupt
            return original(self, *batch)

        monkeypatch.setattr(_Run, "_step", step)

    return set_up


def content(learner: Learner) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return what a file would hold, without the times that things took and were done at."""
    archive = learner.to_archive()
    return timeless(archive), all_tensors(archive)


def assert_same(one: Learner, other: Learner, items: Any) -> None:
    (meta, tensors), (others_meta, others) = content(one), content(other)
    assert meta == others_meta
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    assert np.array_equal(one.decision_function(items), other.decision_function(items))


def test_going_on_gives_the_learner_of_one_go(data: Any, interrupt: Any, tmp_path: Path) -> None:
    whole, path = learner_of().fit(data), tmp_path / "training"
    stopped = learner_of()
    for at in (3, 2):  # stopped in the third epoch, and once more in the next but one
        interrupt(at)
        with pytest.raises(KeyboardInterrupt):
            stopped.fit(data, checkpoint=path)
        assert "nothing learned yet" in repr(stopped)
    interrupt(None)
    again = learner_of().fit(data, checkpoint=str(path))
    assert again.backbone_().log.resumed_epochs == 3
    assert_same(again, whole, data[0])


def test_a_finished_checkpoint_stays_and_is_taken_as_it_is(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "training"
    whole = learner_of().fit(data, checkpoint=path)
    kept = path.read_bytes()
    monkeypatch.setattr(_Run, "_step", None)  # any step would be one too many
    assert_same(learner_of().fit(data, checkpoint=path), whole, data[0])
    assert path.read_bytes() == kept
    assert read_archive(path, "checkpoint").meta["progress"]["epoch"] == 4


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"adapt": CONFIG.changed(epochs=5)}, "epochs is 4 there and 5 here"),
        ({"adapt": CONFIG.changed(tuner="lora")}, "adaptation"),
        ({"random_state": 1}, "seed is 0 there and 1 here"),
        ({"backbone": "other"}, "backbone"),
        ({"data": "other images"}, "images"),
        ({"data": "other labels"}, "labels"),
    ],
)
def test_another_training_is_refused(data: Any, settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "training"
    before = learner_of(adapt=CONFIG.changed(epochs=1)).fit(data)
    learner_of().fit(data, checkpoint=path)
    kept, state = path.read_bytes(), content(before)
    chosen, given = {"adapt": CONFIG, **settings}, data
    if chosen.pop("data", None) is not None:
        given = (stripes(3, 6, seed=1)[0], data[1]) if told == "images" else (data[0], np.roll(data[1], 1))
    if chosen.pop("backbone", None) is not None:
        before.backbone = tiny_vit(seed=1)
    for name, value in chosen.items():
        setattr(before, name, value)
    with pytest.raises(CheckpointError, match=f"must be of the same training.*{told}"):
        before.fit(given, checkpoint=path)
    assert path.read_bytes() == kept
    after = content(before)
    assert state[0] == after[0]
    assert all(torch.equal(tensor, after[1][name]) for name, tensor in state[1].items())


def test_a_file_that_is_no_checkpoint_stays(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.evg"
    learner_of(adapt=None).fit(data).save(path)
    kept = path.read_bytes()
    with pytest.raises(FileFormatError, match="holds 'learner'"):
        learner_of().fit(data, checkpoint=path)
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    ("settings", "checkpoint", "message"),
    [
        ({"adapt": None}, "training", "checkpoint must go with adapt, got training and nothing to train"),
        ({}, 3, "checkpoint must be a path or None, got int"),
        (
            {},
            "nowhere/training",
            "checkpoint must be a file in a folder that exists and can be written to, got nowhere",
        ),
        ({}, ".", r"checkpoint must be a file in a folder that exists and can be written to, got \."),
    ],
)
def test_wrong_uses_are_told_before_anything_is_read(
    settings: dict[str, Any], checkpoint: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=message):
        learner_of(**settings).fit("absent", checkpoint=checkpoint)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_told_before_training(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Run, "_step", None)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ParameterError, match="can be written to"):
        learner_of().fit(data, checkpoint=tmp_path / "training")
