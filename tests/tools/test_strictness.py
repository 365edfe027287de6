"""Expected rates of accepted predictions, and the estimate of unknown samples among predictions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.samples import overlapping_classes

from evergrow import Learner
from evergrow.core.errors import ParameterError
from evergrow.tools.strictness import (
    STRICTNESS,
    AcceptanceLimits,
    estimate_unknown,
    expected_rates,
    limits_of,
    unsure_predictions,
)

N_CLASSES = 40


clouds = partial(overlapping_classes, n_classes=N_CLASSES)


def fitted(known: np.ndarray) -> Learner:
    X, y = clouds(20, seed=0)
    rows = np.isin(y, known)
    return Learner(None, options={"n_units": 60}, device="cpu").fit(X[rows], y[rows])


def test_a_single_class_is_answered_with_familiarity() -> None:
    X, y = clouds(40, seed=0)
    learner = Learner(None, options={"n_units": 60}, device="cpu")
    learner.fit(X[y == 3], y[y == 3])
    fresh, z = clouds(100, seed=1)
    known = learner.predictions(fresh[z == 3], false_alarm=0.05)
    assert known.measure == learner.state_.measure == "familiarity"
    calibration = learner.state_.calibration
    expected = calibration.familiarity(learner.novelty_score(fresh[z == 3]))
    np.testing.assert_array_equal(known.values[:, 0], expected)
    # Familiarity of known samples is about uniform; that of others is near 0.
    assert 0.35 < known.values.mean() < 0.65
    others = learner.predictions(fresh[z == 5], false_alarm=0.05)
    assert others.values.mean() < 0.1
    # Only the limit of novelty holds, not that of probability.
    threshold = learner.state_.threshold(STRICTNESS["some"].false_alarm)
    unsure = unsure_predictions(calibration, known, "some")
    assert unsure is not None
    np.testing.assert_array_equal(unsure, ~(known.novelty <= threshold))
    assert unsure.mean() < 0.3
    learner.partial_fit(X[y == 5], y[y == 5])
    assert learner.predictions(fresh[:9], false_alarm=0.05).measure == "probability"


def test_a_single_sample_has_neither_probability_nor_familiarity() -> None:
    X, y = clouds(2, seed=0)
    learner = Learner(None, options={"n_units": 60}, device="cpu").fit(X[:1], y[:1])
    found = learner.predictions(X)
    assert found.measure == "score"
    assert unsure_predictions(learner.state_.calibration, found) is None


def accepted(learner: Learner, X: np.ndarray, limits: AcceptanceLimits) -> np.ndarray:
    threshold = learner.state_.threshold(limits.false_alarm)
    is_certain = learner.predict_proba(X).max(axis=1) >= limits.probability
    return is_certain & (learner.novelty_score(X) <= threshold)


@pytest.mark.parametrize("strictness", STRICTNESS)
def test_expected_rates_agree_with_new_samples(strictness: str) -> None:
    limits = limits_of(strictness)
    X, y = clouds(20, seed=1)
    expected = []
    measured = []
    for seed in range(4):
        known = np.random.default_rng(seed).permutation(N_CLASSES)[:12]
        learner = fitted(known)
        rates = expected_rates(learner.state_.calibration, limits)
        expected.append((rates.known_not_accepted, rates.unknown_accepted))
        is_known = np.isin(y, known)
        is_accepted = accepted(learner, X, limits)
        is_right = is_accepted & (learner.predict(X) == y)
        measured.append((1 - is_right[is_known].mean(), is_accepted[~is_known].mean()))
    assert np.mean(expected, axis=0) == pytest.approx(
        np.mean(measured, axis=0), abs=0.1
    )


@pytest.mark.parametrize("n_unknown", [0, 20, 120])
def test_intervals_contain_the_number_of_unknown_samples(n_unknown: int) -> None:
    limits = STRICTNESS["some"]
    X, y = clouds(20, seed=2)
    n_right = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        known = rng.permutation(N_CLASSES)[:12]
        learner = fitted(known)
        is_known = np.isin(y, known)
        heap = np.concatenate(
            [
                rng.choice(np.flatnonzero(is_known), 60),
                rng.choice(np.flatnonzero(~is_known), n_unknown),
            ]
        )
        found = estimate_unknown(
            learner.state_.calibration,
            learner.novelty_score(X[heap]),
            learner.predict_proba(X[heap]).max(axis=1),
            limits,
        )
        assert found is not None
        is_accepted = accepted(learner, X[heap], limits)
        n_accepted = int((is_accepted & ~is_known[heap]).sum())
        low, high = found.accepted_interval
        n_right += low <= n_accepted <= high
    assert n_right >= 5


def test_few_classes_give_no_estimate_of_unknown_samples() -> None:
    learner = fitted(np.arange(3))
    calibration = learner.state_.calibration
    rates = expected_rates(calibration, STRICTNESS["some"])
    assert rates.unknown_accepted is None
    novelty = learner.novelty_score(clouds(1, seed=1)[0])
    found = estimate_unknown(
        calibration, novelty, np.ones(len(novelty)), STRICTNESS["some"]
    )
    assert found is None


def test_later_classes_give_an_estimate() -> None:
    X, y = clouds(20, seed=0)
    learner = fitted(np.arange(3))
    rows = np.isin(y, range(3, 8))
    learner.partial_fit(X[rows], y[rows])
    rates = expected_rates(learner.state_.calibration, STRICTNESS["some"])
    assert rates.unknown_accepted is not None


def test_no_samples_give_no_estimate() -> None:
    calibration = fitted(np.arange(12)).state_.calibration
    none = np.empty(0)
    assert estimate_unknown(calibration, none, none, STRICTNESS["some"]) is None


def test_an_estimate_is_the_same_every_time() -> None:
    learner = fitted(np.arange(12))
    X = clouds(3, seed=1)[0]
    novelty = learner.novelty_score(X)
    probability = learner.predict_proba(X).max(axis=1)
    calibration = learner.state_.calibration
    limits = STRICTNESS["many"]
    first = estimate_unknown(calibration, novelty, probability, limits)
    assert estimate_unknown(calibration, novelty, probability, limits) == first


def test_an_unknown_strictness_is_refused() -> None:
    with pytest.raises(ParameterError, match="one of 'few', 'some', 'many'"):
        limits_of("none")
