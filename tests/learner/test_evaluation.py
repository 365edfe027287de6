from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
)

from evergrow.core.errors import InputError
from evergrow.learner.evaluation import evaluate_predictions, open_world

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture
def answers() -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(0)
    truth = rng.choice(NAMES, 200, p=[0.4, 0.3, 0.2, 0.1])
    guess = np.where(rng.random(200) < 0.7, truth, rng.choice(NAMES, 200))
    return truth.tolist(), guess.tolist()


def test_numbers_are_those_of_scikit_learn(answers: tuple[list[str], list[str]]) -> None:
    truth, guess = answers
    result = evaluate_predictions(truth, guess, NAMES)
    assert result.accuracy == pytest.approx(accuracy_score(truth, guess))
    assert result.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, guess))
    assert (result.confusion == confusion_matrix(truth, guess, labels=NAMES)).all()
    expected = precision_recall_fscore_support(truth, guess, labels=NAMES)
    for index, row in enumerate(result.per_class):
        assert (row.precision, row.recall, row.f1, row.n) == pytest.approx([float(part[index]) for part in expected])


def test_confused_pairs_are_the_largest_entries_beside_the_diagonal(answers: tuple[list[str], list[str]]) -> None:
    result = evaluate_predictions(*answers, NAMES)
    wrong = result.confusion - np.diag(result.confusion.diagonal())
    assert [pair.n for pair in result.confused] == sorted(wrong[wrong > 0].tolist(), reverse=True)[:10]
    for pair in result.confused:
        row, column = NAMES.index(pair.true), NAMES.index(pair.predicted)
        assert pair.n == wrong[row, column]
        assert pair.share == pytest.approx(pair.n / answers[0].count(pair.true))


def test_classes_that_the_model_does_not_know_are_counted_apart() -> None:
    result = evaluate_predictions(["ant", "bee", "fox", "fox"], ["ant", "ant", "ant", "bee"], ["ant", "bee", "cat"])
    assert result.unknown_classes == {"fox": 2}
    assert (result.n_samples, result.n_known, result.n_unknown) == (4, 2, 2)
    assert result.accuracy == 0.5
    assert result.accuracy_all == 0.25
    assert result.confusion.sum() == 2


def test_plain_values_go_to_json_also_where_nothing_is_known() -> None:
    plain = evaluate_predictions(["fox"], ["ant"], ["ant", "bee"]).to_dict()
    assert plain["accuracy"] is None
    assert plain["accuracy_all"] == 0.0
    assert plain["per_class"][1] == {"name": "bee", "n": 0, "recall": None, "precision": None, "f1": None}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        evaluate_predictions([], [], NAMES)
    with pytest.raises(InputError, match="as many"):
        evaluate_predictions(["ant"], [], NAMES)


@pytest.mark.parametrize("decimals", [1, 8])  # with and without ties
def test_open_world_rates(decimals: int) -> None:
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=300).round(decimals), (rng.normal(size=100) + 1).round(decimals)
    result = open_world(known, unknown, threshold=1.5, false_alarm=0.05)
    expected = roc_auc_score([0] * 300 + [1] * 100, np.concatenate([known, unknown]))
    assert result.auroc == pytest.approx(expected)
    assert result.false_alarm_rate == np.mean(known > 1.5)
    assert result.detection_rate == np.mean(unknown > 1.5)
    assert (result.n_known, result.n_unknown) == (300, 100)
