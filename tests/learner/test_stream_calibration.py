"""Temperature and weights of novelty that a learner takes from its stream: kept, joined, and honest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import Data, part

from evergrow import Learner
from evergrow.core.errors import FewSamplesWarning
from evergrow.head.fold_outs import TEMPERATURES


def blobs(per_class: int, classes: int = 12, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), per_class)
    centres = np.random.default_rng(99).normal(size=(classes, 16))
    return 1.5 * centres[y] + rng.normal(size=(len(y), 16)), y


def small(**options: Any) -> Learner:
    return Learner(None, options={"n_units": 60, **options}, device="cpu")


@pytest.fixture(scope="module")
def stream() -> Learner:
    data = blobs(40)
    learner = small().fit(part(data, 0, 1, 2, 3))
    return learner.partial_fit(part(data, 4, 5, 6)).partial_fit(part(data, 7, 8))


def test_a_stream_calibrates_probabilities_and_novelty(stream: Learner) -> None:
    calibration = stream._state().calibration
    assert [part.n for part in calibration.parts] == [160, 120, 80]
    assert [part.n for part in calibration.unknown] == [120, 80]
    assert [part.size for part in calibration.unknown] == [160, 280]
    assert stream.head_.temperature_ == calibration.temperature()
    test = blobs(60, seed=1)
    known = test[1] < 9
    P = stream.predict_proba(test[0][known])
    right = stream.classes_[P.argmax(axis=1)] == test[1][known]
    assert abs(P.max(axis=1).mean() - right.mean()) < 0.05
    assert 0.02 < stream.is_unknown(test[0][known]).mean() < 0.09
    assert stream.is_unknown(test[0][~known]).mean() > 0.2
    # Features are brought to one length, so that far things are those of another direction.
    assert small(normalize="none").fit(part(blobs(40), 0, 1, 2)).is_unknown(100.0 + test[0]).all()


def test_merging_joins_both_sides_in_any_order() -> None:
    data, X = blobs(30), blobs(5, seed=3)[0]
    base = small().fit(part(data, 0, 1, 2))

    def side(*labels: int) -> Learner:
        return base.spawn().partial_fit(part(data, *labels)).partial_fit(part(data, labels[0] + 3))

    one, other = side(3, 4), side(7, 8)
    forth, back = side(3, 4).merge(other), side(7, 8).merge(one)
    assert len(forth._state().calibration.parts) == 4
    assert len(forth._state().calibration.unknown) == 2
    assert forth.head_.temperature_ == pytest.approx(back.head_.temperature_)
    np.testing.assert_allclose(forth.novelty_score(X), back.novelty_score(X), rtol=1e-6, atol=1e-6)


def test_edits_leave_it_and_one_row_of_a_class_adds_only_to_the_unknown(stream: Learner) -> None:
    data = blobs(40)
    learner = small().fit(part(data, 0, 1, 2))
    warmth = learner.head_.temperature_
    with pytest.warns(FewSamplesWarning):
        learner.partial_fit((data[0][data[1] == 3][:1], np.array([3])))
    calibration = learner._state().calibration
    assert len(calibration.parts) == 1
    assert [part.n for part in calibration.unknown] == [1]
    assert learner.head_.temperature_ == warmth
    learner.forget_classes("3").unlearn((data[0][:5], data[1][:5]))
    assert learner.head_.temperature_ == warmth
    assert np.isfinite(learner.novelty_score(data[0])).all()


def test_rows_without_doubt_leave_the_temperature_at_the_guess() -> None:
    X, y = np.repeat(10.0 * np.eye(8)[:4], 20, axis=0), np.repeat(np.arange(4), 20)
    X = X + 0.01 * np.random.default_rng(0).normal(size=X.shape)
    learner = small().fit((X, y))
    assert learner.head_.temperature_ > 10 * TEMPERATURES[0]


def test_the_ridge_readout_learns_novelty_and_has_its_own_temperature() -> None:
    learner = small(readout="ridge", shape_directions=0).fit(part(blobs(20), 0, 1, 2))
    learner.partial_fit(part(blobs(20), 3))
    calibration = learner._state().calibration
    assert calibration.unknown
    assert all(part.losses is None and part.terms is not None for part in calibration.parts)
    assert calibration.temperature() is None


@pytest.mark.slow
def test_intents_are_told_from_others_and_probabilities_are_honest(shared: Path) -> None:
    found = np.load(shared / "features" / "clinc150_minilm.npz")
    X, y, T, t = (found[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    learner = Learner(None, options={"n_units": 300}, device="cpu")
    for first in range(0, 30, 10):
        rows = np.flatnonzero((y >= first) & (y < first + 10))
        learner.partial_fit((X[rows], y[rows]))
    known, other = t < 30, (t >= 30) & (t < 60)
    P = learner.predict_proba(T[known])
    right = learner.classes_[P.argmax(axis=1)] == t[known]
    assert abs(P.max(axis=1).mean() - right.mean()) < 0.04
    assert 0.02 < learner.is_unknown(T[known]).mean() < 0.1
    assert learner.is_unknown(T[other]).mean() > 0.5
