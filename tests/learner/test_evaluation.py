"""Evaluation equals scikit-learn's metrics; feature levels are compared held-out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
)
from tests.commands import evergrow
from tests.learner.toys import Letters, image, write_folder

from evergrow.core.errors import InputError
from evergrow.data.items import Images, Samples, Texts
from evergrow.features import create_backbone
from evergrow.features.images import median_side
from evergrow.learner.evaluation import evaluate_predictions, open_world
from evergrow.tools.feature_levels import try_levels

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture
def answers() -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(0)
    truth = rng.choice(NAMES, 200, p=[0.4, 0.3, 0.2, 0.1])
    guess = np.where(rng.random(200) < 0.7, truth, rng.choice(NAMES, 200))
    return truth.tolist(), guess.tolist()


def test_numbers_are_those_of_scikit_learn(
    answers: tuple[list[str], list[str]],
) -> None:
    truth, guess = answers
    result = evaluate_predictions(truth, guess, NAMES)
    assert result.accuracy == pytest.approx(accuracy_score(truth, guess))
    assert result.balanced_accuracy == pytest.approx(
        balanced_accuracy_score(truth, guess)
    )
    assert (result.confusion == confusion_matrix(truth, guess, labels=NAMES)).all()
    expected = precision_recall_fscore_support(truth, guess, labels=NAMES)
    for index, row in enumerate(result.per_class):
        assert (row.precision, row.recall, row.f1, row.n) == pytest.approx(
            [float(part[index]) for part in expected]
        )


def test_confused_pairs_are_the_largest_entries_beside_the_diagonal(
    answers: tuple[list[str], list[str]],
) -> None:
    result = evaluate_predictions(*answers, NAMES)
    wrong = result.confusion - np.diag(result.confusion.diagonal())
    assert [pair.n for pair in result.confused] == sorted(
        wrong[wrong > 0].tolist(), reverse=True
    )[:10]
    for pair in result.confused:
        row = NAMES.index(pair.true)
        column = NAMES.index(pair.predicted)
        assert pair.n == wrong[row, column]
        assert pair.fraction == pytest.approx(pair.n / answers[0].count(pair.true))


def test_classes_that_the_model_does_not_know_are_counted_apart() -> None:
    result = evaluate_predictions(
        ["ant", "bee", "fox", "fox"],
        ["ant", "ant", "ant", "bee"],
        ["ant", "bee", "cat"],
    )
    assert result.unknown_classes == {"fox": 2}
    assert (result.n_samples, result.n_known, result.n_unknown) == (4, 2, 2)
    assert result.accuracy == 0.5
    assert result.accuracy_all == 0.25
    assert result.confusion.sum() == 2


def test_plain_values_go_to_json_also_where_nothing_is_known() -> None:
    plain = evaluate_predictions(["fox"], ["ant"], ["ant", "bee"]).to_dict()
    assert plain["accuracy"] is None
    assert plain["accuracy_all"] == 0.0
    assert plain["per_class"][1] == {
        "name": "bee",
        "n": 0,
        "recall": None,
        "precision": None,
        "f1": None,
    }
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize("decimals", [1, 8])  # with and without ties
def test_open_world_rates(decimals: int) -> None:
    rng = np.random.default_rng(0)
    known = rng.normal(size=300).round(decimals)
    unknown = (rng.normal(size=100) + 1).round(decimals)
    result = open_world(known, unknown, threshold=1.5, false_alarm=0.05)
    expected = roc_auc_score([0] * 300 + [1] * 100, np.concatenate([known, unknown]))
    assert result.auroc == pytest.approx(expected)
    assert result.false_alarm_rate == np.mean(known > 1.5)
    assert result.detection_rate == np.mean(unknown > 1.5)
    assert (result.n_known, result.n_unknown) == (300, 100)


# -- feature levels: every sample is held out once, the cheapest level first


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
    assert (
        trials[2].blocks
        == network.with_recipe("best", median_side(images)).spec.blocks.blocks
    )
    few = try_levels(Samples("image", images, labels=labels), network, budget=0.0)
    assert {trial.samples for trial in few} == {6}  # two classes, three samples each


def test_texts_have_fewer_levels_and_what_cannot_be_tried_is_said() -> None:
    texts = Texts(tuple("abcabcabc"))
    labels = np.array(list("abcabcabc"))
    assert [
        trial.level
        for trial in try_levels(Samples("text", texts, labels=labels), Letters())
    ] == ["fast"]
    with pytest.raises(InputError, match="these are feature vectors already"):
        try_levels(
            Samples("features", features=np.eye(3), labels=np.array(list("abc")))
        )
    with pytest.raises(InputError, match="Two classes with 3 samples each are needed"):
        try_levels(
            Samples("text", Texts(("a", "b", "a")), labels=np.array(list("aba"))),
            Letters(),
        )


def test_the_command_prints_accuracy_uncertainty_seconds_and_how_to_take_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = create_backbone("test_resnet", weights="random", device="cpu")
    monkeypatch.setattr(
        "evergrow.tools.feature_levels.create_backbone",
        lambda *args, **settings: network,
    )
    monkeypatch.chdir(tmp_path)
    write_folder(Path("colours"), {"red": 1, "green": 2}, n=6)
    told = evergrow("data", "colours", "--try", "--backbone", "test_resnet").stdout
    for level, option in (
        ("fast", " --features fast"),
        ("rich", ""),
        ("best", " --features best"),
    ):
        (line,) = (line for line in told.splitlines() if line.startswith(f"{level} "))
        assert " % +- " in line
        assert line.endswith(f"evergrow fit colours -m model.evg{option}")
    values = json.loads(
        evergrow(
            "data", "colours", "--try", "--backbone", "test_resnet", "--json"
        ).stdout
    )
    assert [entry["level"] for entry in values["levels"]] == ["fast", "rich", "best"]
