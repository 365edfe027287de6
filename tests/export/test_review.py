"""Exports to Label Studio and FiftyOne, and learning from reviewed labels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.commands import evergrow
from tests.learner.toys import write_folder

from evergrow import Learner
from evergrow.core.errors import InputError
from evergrow.data import load_data
from evergrow.export.review import (
    fiftyone_labels,
    label_studio_config,
    label_studio_tasks,
)
from evergrow.learner.predictions import Predictions
from evergrow.serve.label_studio import config_names


@pytest.fixture
def answers() -> Predictions:
    values = np.array([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]])
    return Predictions(
        np.array(["ant", "<bee> & 'co'"]),
        values,
        "probability",
        np.array([0, 2, 3]),
        novelty=np.array([0.1, 0.2, 9.0]),
        unknown=np.array([False, False, True]),
        threshold=np.full(3, 1.0),
    )


def test_label_config_matches_the_tasks(answers: Predictions) -> None:
    config = label_studio_config(answers.classes.tolist(), "text")
    names = config_names(config, "texts")
    assert [
        entry.get("value") for entry in ElementTree.fromstring(config).iter("Choice")
    ] == answers.classes.tolist()
    first, second, third = label_studio_tasks(
        answers, ["a\nb", "left out", "c", "d"], "text", version="m 3"
    )
    assert first["data"] == {"text": "a\nb", "novelty": 0.1}
    (prediction,) = first["predictions"]
    (result,) = prediction["result"]
    assert (result["from_name"], result["to_name"], names.key) == (
        names.control,
        names.object,
        "text",
    )
    assert prediction["result"][0]["value"]["choices"] == ["<bee> & 'co'"]
    assert (prediction["score"], prediction["model_version"]) == (0.8, "m 3")
    assert second["predictions"][0]["result"][0]["value"]["choices"] == ["ant"]
    assert "predictions" not in third  # unknown: nothing to agree to
    with pytest.raises(InputError, match="of images or texts, got feature vectors"):
        label_studio_tasks(answers, ["a"] * 4, "features", version="m")


def test_unsure_samples_have_no_prediction_for_label_studio(
    answers: Predictions, tmp_path: Path
) -> None:
    unsure = np.array([False, True, True])
    tasks = label_studio_tasks(
        answers, ["a", "b", "c", "d"], "text", version="m", unsure=unsure
    )
    assert [task["data"]["unsure"] for task in tasks] == unsure.tolist()
    assert ["predictions" in task for task in tasks] == [True, False, False]
    names = [str(tmp_path / f"{number}.png") for number in range(4)]
    for name in names:
        Path(name).touch()
    labels = fiftyone_labels(answers, names, unsure=unsure)["labels"]
    assert labels[names[0]]["attributes"]["unsure"] is False
    assert labels[names[2]]["label"] == "ant"
    assert labels[names[2]]["attributes"]["unsure"] is True


def test_label_studio_images_must_be_below_the_root(
    answers: Predictions, tmp_path: Path
) -> None:
    names = []
    for number in range(4):
        names.append(str(tmp_path / f"a b#{number}.png"))
        Path(names[-1]).touch()
    tasks = label_studio_tasks(answers, names, "image", version="m", root=tmp_path)
    assert tasks[0]["data"]["image"] == "/data/local-files/?d=a%20b%230.png"
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="must lie below root"):
        label_studio_tasks(
            answers, names, "image", version="m", root=tmp_path / "other"
        )
    os.unlink(names[2])
    for write in (
        lambda: label_studio_tasks(answers, names, "image", version="m", root=tmp_path),
        lambda: fiftyone_labels(answers, names),
    ):
        with pytest.raises(
            InputError, match="must be files, so that the tool can show them"
        ):
            write()


def test_fiftyone_labels(answers: Predictions, tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.png") for number in range(4)]
    for name in names:
        Path(name).touch()
    found = json.loads(json.dumps(fiftyone_labels(answers, names)))
    assert found["classes"] == answers.classes.tolist()
    assert found["labels"] == {
        names[0]: {
            "label": "<bee> & 'co'",
            "confidence": 0.8,
            "attributes": {"novelty": 0.1},
        },
        names[2]: {"label": "ant", "confidence": 0.9, "attributes": {"novelty": 0.2}},
        names[3]: None,
    }


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an image model on a network with random weights, and the images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "images", {"red": 1, "green": 2, "blue": 3}, n=6)
    learner = Learner(
        "test_vit.r160_in1k", weights="random", options={"n_units": 20}, cache=False
    ).fit(folder)
    learner.save(tmp_path / "m.evg")
    return tmp_path / "m.evg"


def command(*arguments: Any) -> Any:
    return evergrow("predict", *arguments, "--set", "cache=false")


def test_label_studio_exports_are_learned(model: Path) -> None:
    result = command(model, "images", "--format", "label-studio", "--out", "tasks.json")
    assert result.exit_code == 0, result.output
    tasks = json.loads(Path("tasks.json").read_text(encoding="utf-8"))
    assert len(tasks) == 18
    predicted = {
        task["data"]["image"]: task["predictions"][0]["result"] for task in tasks
    }
    assert {task["predictions"][0]["model_version"] for task in tasks} == {"m.evg 1"}
    for task in tasks:  # a reviewer agrees with everything
        task["annotations"] = [{"id": 1, "result": predicted[task["data"]["image"]]}]
    Path("export.json").write_text(json.dumps(tasks), encoding="utf-8")
    data = load_data("export.json", test_size=0)
    answers = Learner.load(model).predictions(Path("images"))
    labels = [str(answers.classes[column]) for column in answers.ranked(1)[:, 0]]
    assert [data.class_names[code] for code in data.y_train] == labels
    assert len(data.train) == 18


def test_predict_command_writes_both_formats(model: Path) -> None:
    result = command(model, "images", "--format", "fiftyone", "--out", "labels.json")
    assert result.exit_code == 0, result.output
    found = json.loads(Path("labels.json").read_text(encoding="utf-8"))
    assert sorted(found["labels"]) == sorted(
        str(path) for path in Path("images").resolve().glob("*/*.png")
    )
    assert found["classes"] == ["blue", "green", "red"]
    result = command(
        model,
        "images",
        "--format",
        "label-studio",
        "--set",
        "root=elsewhere",
        "--out",
        "no.json",
    )
    assert result.exit_code == 2
    assert "below root" in result.stderr
    assert not Path("no.json").exists()


def test_review_rejects_feature_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(40, 4))
    Learner(None, options={"n_units": 10}).fit(X, ["a", "b"] * 20).save("f.evg")
    np.save("X.npy", X)
    result = command("f.evg", "X.npy", "--format", "fiftyone")
    assert result.exit_code == 2
    assert (
        "--format fiftyone does not work for a model of features; "
        "use table, csv or jsonl." in result.stderr
    )
