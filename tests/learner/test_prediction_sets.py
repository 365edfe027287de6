"""Prediction sets: coverage, limits, empty sets and what they say of themselves."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evergrow import Learner
from evergrow.core.errors import (
    FewSamplesWarning,
    NotFittedError,
    ParameterError,
    UnsupportedError,
)
from evergrow.learner.prediction_sets import required_rows, set_limits


def clouds(
    n: int, seed: int, n_classes: int = 4, apart: float = 2.0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return overlapping normal clouds around the corners of a simplex."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = rng.normal(size=(n, n_classes + 2)) + apart * np.eye(n_classes + 2)[y]
    return X, y


def fitted(n: int = 400, **options: Any) -> Learner:
    X, y = clouds(n, 0, **options)
    return Learner(None, options={"n_units": 20}, device="cpu").fit(X, y)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95, 0.99])
def test_new_samples_are_covered_as_often_as_stated(coverage: float) -> None:
    reached = []
    for seed in range(5):
        X, y = clouds(600, seed)
        learner = Learner(None, options={"n_units": 20}, device="cpu").fit(X, y)
        asked, labels = clouds(2000, seed + 100)
        found = learner.predict_set(asked, coverage)
        reached.append(found.covered(labels).mean())
    # 3,000 held-out rows give a standard error of at most 0.73 points.
    assert abs(np.mean(reached) - coverage) < 3 * 0.0073


def test_a_limit_is_the_quantile_of_split_conformal_prediction() -> None:
    learner = fitted()
    rows = learner.state_.calibration.ranked_rows
    limits = set_limits(learner.state_.calibration, learner.state_.classes, 0.95)
    assert (rows.weights == 1.0).all()
    n = len(rows)
    assert n == limits.n_rows == 400
    # Rows that are too novel are not covered, whatever their loss.
    scores = np.where(rows.novelty <= limits.novelty[0], rows.losses, np.inf)
    assert limits.losses[0] == np.sort(scores)[math.ceil((n + 1) * 0.95) - 1]
    assert np.isinf(scores).sum() <= 0.005 * (n + 1)


def test_sets_list_the_most_likely_classes() -> None:
    learner = fitted()
    X, _ = clouds(200, 1)
    found = learner.predict_set(X, 0.95)
    probabilities = learner.predict_proba(X)
    for row, labels in enumerate(found.labels):
        order = np.argsort(-probabilities[row], kind="stable")
        assert labels.tolist() == learner.classes_[order[: found.sizes[row]]].tolist()
    assert found.sizes.max() > 1
    assert found.labels[0].dtype == learner.classes_.dtype
    smaller = learner.predict_set(X, 0.8)
    assert not (smaller.members & ~found.members).any()


def test_a_sample_that_looks_unknown_has_an_empty_set() -> None:
    learner = fitted(apart=9.0)
    strange = np.zeros((3, 6))
    strange[:, 5] = [30.0, -30.0, 60.0]
    found = learner.predict_set(strange, 0.95)
    assert found.unknown.all()
    assert [labels.tolist() for labels in found.labels] == [[], [], []]
    assert found.predictions.unknown is not None
    assert found.predictions.unknown.all()
    assert not found.covered([0, 1, 2]).any()


def test_with_a_false_alarm_rate_the_coverage_holds_for_the_other_samples() -> None:
    learner = fitted(1200)
    X, y = clouds(4000, 1)
    found = learner.predict_set(X, 0.9, false_alarm=0.2)
    assert np.array_equal(found.unknown, learner.is_unknown(X, 0.2))
    assert 0.1 < found.unknown.mean() < 0.3
    # 960 held-out rows give a standard error of a point.
    assert abs(found.covered(y)[~found.unknown].mean() - 0.9) < 0.03
    with pytest.raises(ParameterError, match="false_alarm"):
        learner.predict_set(X, 0.9, false_alarm=1.0)


def test_misses_that_are_not_needed_for_mistakes_are_spent_on_novelty() -> None:
    learner = fitted(apart=9.0)  # every held-out row is predicted correctly
    X, y = clouds(2000, 1, apart=9.0)
    found = learner.predict_set(X, 0.9)
    assert found.sizes.max() == 1
    assert abs(found.covered(y).mean() - 0.9) < 0.05
    assert np.array_equal(found.unknown, ~found.covered(y))


def test_too_few_held_out_samples_give_all_classes_and_a_warning() -> None:
    X, y = clouds(12, 0)
    learner = Learner(None, options={"n_units": 20}, device="cpu").fit(X, y)
    with pytest.warns(FewSamplesWarning, match="needs 19 held-out samples.*has 12"):
        found = learner.predict_set(X, 0.95)
    assert found.sizes.tolist() == [4] * 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rough = learner.predict_set(X, 0.9)
    assert "rests on 12 held-out samples" in rough.note
    assert fitted(2000).predict_set(X, 0.9).note == ""


@pytest.mark.parametrize("coverage", [0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_the_required_number_of_rows_is_the_smallest_with_a_quantile(
    coverage: float,
) -> None:
    n = required_rows(coverage)

    def has_quantile(rows: int) -> bool:
        return math.ceil(round((rows + 1) * coverage, 9)) <= rows

    assert has_quantile(n)
    assert not has_quantile(n - 1)


def test_the_interval_is_that_of_repeated_calibrations() -> None:
    rng = np.random.default_rng(0)
    limits = set_limits(
        fitted().state_.calibration, fitted().state_.classes, coverage=0.9
    )
    # The coverage of the quantile of uniform scores is the quantile itself.
    scores = np.sort(rng.random((20_000, 400)), axis=1)
    reached = scores[:, math.ceil(401 * 0.9) - 1]
    expected = np.quantile(reached, [0.05, 0.95])
    assert limits.interval == pytest.approx(expected, abs=0.002)


def test_coverage_holds_for_each_class_if_asked_for() -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        y = np.arange(n) % 4
        centres = 4.0 * np.eye(6)[:4]
        centres[3] = centres[2] + [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]  # nearly class 2
        return rng.normal(size=(n, 6)) + centres[y], y

    X, y = draw(1200)
    learner = Learner(None, options={"n_units": 20}, device="cpu").fit(X, y)
    asked, labels = draw(8000)
    whole = learner.predict_set(asked, 0.9).covered(labels)
    each = learner.predict_set(asked, 0.9, per_class=True).covered(labels)
    by_class = np.array([each[labels == code].mean() for code in range(4)])
    overall = np.array([whole[labels == code].mean() for code in range(4)])
    assert (np.abs(by_class - 0.9) < 0.05).all()
    assert overall.max() - overall.min() > by_class.max() - by_class.min()


def test_classes_with_few_samples_share_one_limit() -> None:
    X, y = clouds(400, 0)
    few = np.flatnonzero(y == 3)[10:]
    X, y = np.delete(X, few, axis=0), np.delete(y, few)
    learner = Learner(None, options={"n_units": 20}, device="cpu").fit(X, y)
    found = learner.predict_set(X, 0.95, per_class=True)
    whole = learner.predict_set(X, 0.95)
    assert found.limits.pooled == ("3",)
    assert found.limits.losses[3] == whole.limits.losses[3]
    assert "1 of 4 classes have fewer than 19 held-out samples" in found.note


def test_rows_of_models_with_fewer_classes_count_less_and_their_odds_grow() -> None:
    X, y = clouds(600, 0, n_classes=6)
    learner = Learner(None, options={"n_units": 20}, device="cpu")
    learner.fit(X[y < 3], y[y < 3])
    before = learner.state_.calibration.ranked_rows
    learner.partial_fit(X[y >= 3], y[y >= 3])
    calibration = learner.state_.calibration
    after = calibration.ranked_rows
    n_old = len(before)
    assert after.weights[:n_old] == pytest.approx(0.5**3)
    assert (after.weights[n_old:] == 1.0).all()
    # Five rivals in place of two.
    wrong = after.losses[:n_old] > 0.7
    raw = calibration._own_losses(calibration.known)[:n_old]
    odds = np.expm1(raw[wrong]) * (5 / 2) ** 1.5
    assert after.losses[:n_old][wrong] == pytest.approx(np.log1p(odds))
    assert wrong.sum() > 10


def test_a_model_of_one_class_has_this_class_or_nothing() -> None:
    X, y = clouds(60, 0)
    learner = Learner(None, options={"n_units": 20}, device="cpu")
    learner.fit(X[y == 0] * 0.1 + 5.0, y[y == 0])
    found = learner.predict_set(np.vstack([X[y == 0] * 0.1 + 5.0, -X[:3]]), 0.9)
    assert {tuple(labels) for labels in found.labels} == {(0,), ()}
    assert found.unknown[-3:].all()
    assert found.note == "The model has one class: a set has this class or is empty."


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 95, math.nan, "0.9", True])
def test_a_coverage_outside_of_its_range_is_refused(coverage: Any) -> None:
    with pytest.raises(ParameterError, match="coverage must be a number > 0 and < 1"):
        fitted(40).predict_set(clouds(4, 0)[0], coverage)


def test_models_without_held_out_scores_say_so() -> None:
    X, y = clouds(8, 0, n_classes=8)
    learner = Learner(None, options={"n_units": 20}, device="cpu")
    with pytest.raises(NotFittedError):
        learner.predict_set(X)
    learner.fit(X, y)  # one sample of each class
    with pytest.raises(NotFittedError, match="at least two samples of a class"):
        learner.predict_set(X)
    X, y = clouds(80, 0)
    paper = Learner(None, "scl-mgsm", options={"n_units": 20}, device="cpu")
    with pytest.raises(UnsupportedError, match="use the method 'evergrow'"):
        paper.fit(X, y).predict_set(X)
    with pytest.raises(UnsupportedError):
        Learner(None, "simplecil", device="cpu").fit(X, y).predict_set(X)


def test_sets_are_the_same_after_saving_and_with_other_names(tmp_path: Path) -> None:
    learner = fitted()
    X, _ = clouds(100, 1)
    before = learner.predict_set(X, 0.95)
    learner.save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg")
    assert np.array_equal(loaded.predict_set(X, 0.95).members, before.members)
    loaded.rename_classes({0: "zebra"})
    renamed = loaded.predict_set(X, 0.95, per_class=True)
    assert renamed.limits.pooled == ()
    assert renamed.predictions.classes.tolist() == ["1", "2", "3", "zebra"]
    assert np.array_equal(
        loaded.predict_set(X, 0.95).members[:, [3, 0, 1, 2]], before.members
    )


def test_unlearned_samples_no_longer_decide() -> None:
    X, y = clouds(400, 0)
    learner = Learner(None, options={"n_units": 20}, device="cpu").fit(X, y)
    learner.unlearn(X[:100], y[:100])
    limits = set_limits(learner.state_.calibration, learner.state_.classes, 0.9)
    assert limits.n_rows == 300
