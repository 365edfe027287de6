"""Levels of features tried on a sample: every sample held out once, the cheapest level first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.commands import evergrow
from tests.learner.toys import Letters, image, write_folder

from evergrow.core.errors import InputError
from evergrow.data.items import Images, Samples, Texts
from evergrow.features import create_backbone
from evergrow.learner.levels import try_levels


def test_levels_are_tried_on_the_same_held_out_samples() -> None:
    images = Images(tuple(image(number % 3, number) for number in range(30)))
    labels = np.array(["red", "green", "blue"] * 10)
    network = create_backbone("test_resnet", weights="random", device="cpu")
    trials = try_levels(Samples("image", images, labels=labels), network)
    assert [trial.level for trial in trials] == ["fast", "rich", "best"]
    assert {(trial.samples, trial.classes) for trial in trials} == {(30, 3)}
    assert trials[0].accuracy > 0.8
    for trial in trials:
        expected = np.sqrt(trial.accuracy * (1 - trial.accuracy) / 30)
        assert trial.error == pytest.approx(max(expected, 1 / 60))
        assert trial.seconds > 0
    assert trials[2].blocks == network.with_recipe("best").spec.blocks.blocks
    few = try_levels(Samples("image", images, labels=labels), network, budget=0.0)
    assert {trial.samples for trial in few} == {6}  # two classes, three samples each


def test_texts_have_fewer_levels_and_what_cannot_be_tried_is_said() -> None:
    texts, labels = Texts(tuple("abcabcabc")), np.array(list("abcabcabc"))
    assert [trial.level for trial in try_levels(Samples("text", texts, labels=labels), Letters())] == ["fast"]
    with pytest.raises(InputError, match="these are feature vectors already"):
        try_levels(Samples("features", features=np.eye(3), labels=np.array(list("abc"))))
    with pytest.raises(InputError, match="Two classes with 3 samples each are needed"):
        try_levels(Samples("text", Texts(("a", "b", "a")), labels=np.array(list("aba"))), Letters())


def test_the_command_prints_accuracy_uncertainty_seconds_and_how_to_take_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = create_backbone("test_resnet", weights="random", device="cpu")
    monkeypatch.setattr("evergrow.learner.levels.create_backbone", lambda *args, **settings: network)
    monkeypatch.chdir(tmp_path)
    write_folder(Path("colours"), {"red": 1, "green": 2}, n=6)
    told = evergrow("data", "colours", "--try", "--backbone", "test_resnet").stdout
    for level, option in (("fast", " --features fast"), ("rich", ""), ("best", " --features best")):
        (line,) = (line for line in told.splitlines() if line.startswith(f"{level} "))
        assert " % +- " in line
        assert line.endswith(f"evergrow fit colours -m model.evg{option}")
    values = json.loads(evergrow("data", "colours", "--try", "--backbone", "test_resnet", "--json").stdout)
    assert [entry["level"] for entry in values["levels"]] == ["fast", "rich", "best"]
