"""Calibration of thresholds, temperature and novelty on folds and on streams."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tests.learner.toys import part
from tests.learners import small_learner
from tests.samples import overlapping_classes

from evergrow import Learner
from evergrow.core.errors import FewSamplesWarning
from evergrow.head.novelty.score import term_units, to_units
from evergrow.learner import empty_copy
from evergrow.learner.calibration import ENOUGH_ROWS, assign_folds, row_keys


def test_folds_leave_something_of_every_class() -> None:
    codes = np.array([0] * 25 + [1] * 2 + [2, 3])
    counts = np.array([25, 2, 1, 4])  # of class 3 more was learned before
    rows = np.random.default_rng(0).normal(size=(len(codes), 3))
    keys = row_keys(rows, seed=0)
    folds = assign_folds(codes, counts, keys)
    assert (np.bincount(folds[:25], minlength=10) <= 3).all()
    assert folds[25] != folds[26]
    assert folds[27] == -1
    assert folds[28] >= 0
    assert not np.array_equal(folds, assign_folds(codes, counts, row_keys(rows, 1)))
    order = np.random.default_rng(1).permutation(len(codes))
    shuffled = assign_folds(codes[order], counts, keys[order])
    assert np.array_equal(folds[order], shuffled)


def test_large_batches_are_scored_in_part() -> None:
    y = np.arange(4000) % 4
    shares = []
    for seed in range(
        4
    ):  # one threshold from a thousand scores is off by a percent as often as not
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(4000, 6)) + 4 * np.eye(6)[y]
        learner = Learner(None, options={"n_units": 20}, device="cpu").fit((X, y))
        assert (
            ENOUGH_ROWS
            <= learner.state_.describe()["novelty"]["calibrated_on"]
            < 2 * ENOUGH_ROWS
        )
        shares.append(
            learner.is_unknown(rng.normal(size=(4000, 6)) + 4 * np.eye(6)[y]).mean()
        )
    assert abs(np.mean(shares) - 0.05) < 0.01


def test_every_sample_of_a_small_batch_is_scored_as_if_it_had_not_been_learned() -> (
    None
):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(
        len(y)
    )  # as they lie, later ones are by other writers
    X = X[order]
    y = y[order]
    learner = Learner(None, options={"n_units": 100}, device="cpu").fit(
        (X[:300], y[:300])
    )
    head = learner.head_
    calibration = learner.state_.calibration
    folds = assign_folds(
        np.searchsorted(head.classes_, y[:300].astype(str)),
        head.class_counts_,
        row_keys(X[:300], 0),
    )
    found = head.held_out_scores(X[:300], y[:300].astype(str), folds)
    units = term_units(head.expected_terms())
    scores = calibration.pool.standard().score(to_units(found.terms, units))
    np.testing.assert_allclose(calibration.scores, np.sort(scores))
    ratios = []
    for seed in range(6):  # of one draw of units and rows the ratio varies by 0.3
        rows = np.random.default_rng(seed).permutation(
            len(y)
        )  # as they lie, later ones are by other writers
        learner = Learner(
            None, options={"n_units": 100}, device="cpu", random_state=seed
        )
        learner.fit((X[rows[:300]], y[rows[:300]]))
        assert learner.state_.describe()["novelty"]["calibrated_on"] == 300
        points = learner.state_.calibration.scores
        assert len(points) == 300
        assert np.median(learner.novelty_score(X[rows[:300]])) < 0.8 * np.median(points)
        ratios.append(
            np.median(learner.novelty_score(X[rows[300:]])) / np.median(points)
        )
    assert abs(np.mean(ratios) - 1) < 0.2


@pytest.mark.parametrize("per_class", [8, 20, 60])
def test_false_alarms_with_few_samples_and_later_classes(per_class: int) -> None:
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    rates = []
    found = []
    for seed in range(6):
        order = rng.permutation(len(y))
        A = X[order]
        b = y[order]
        rows = np.concatenate(
            [np.flatnonzero(b == digit)[:per_class] for digit in range(10)]
        )
        rest = np.setdiff1d(np.arange(len(b)), rows)
        learner = Learner(
            None, options={"n_units": 200}, device="cpu", random_state=seed
        )
        for group in ((0, 1, 2, 3, 4), (5, 6), (7, 8, 9)):
            part = rows[np.isin(b[rows], group)]
            learner.partial_fit((A[part], b[part]))
        rates.append(learner.is_unknown(A[rest]).mean())
        found.append(learner.is_unknown(rng.uniform(0, 16, size=(200, 64))).mean())
    assert 0.01 < np.mean(rates) < 0.08
    assert np.mean(found) > 0.95


# -- what a learner takes from its stream ----------------------------------------------


clouds = partial(overlapping_classes, n_classes=12)


@pytest.fixture(scope="module")
def stream() -> Learner:
    data = clouds(40)
    learner = small_learner(60).fit(part(data, 0, 1, 2, 3))
    return learner.partial_fit(part(data, 4, 5, 6)).partial_fit(part(data, 7, 8))


def test_a_stream_calibrates_probabilities_and_novelty(stream: Learner) -> None:
    calibration = stream.state_.calibration
    known = np.bincount(calibration.known.measurement)
    assert known[known > 0].tolist() == [160, 120, 80]
    unknown = np.bincount(calibration.unknown.measurement)
    assert unknown[unknown > 0].tolist() == [40, 40, 40, 40, 120, 80]
    measured = np.unique(calibration.unknown.measurement)
    # Each of the first four classes was left out; the others came later.
    sizes = [calibration.measurements[index].size for index in measured]
    assert sizes == [120, 120, 120, 120, 160, 280]
    relative = stream.head_.temperature_ / stream.head_.expected_temperature()
    assert relative == pytest.approx(calibration.temperature())
    test = clouds(60, seed=1)
    known = test[1] < 9
    P = stream.predict_proba(test[0][known])
    right = stream.classes_[P.argmax(axis=1)] == test[1][known]
    assert abs(P.max(axis=1).mean() - right.mean()) < 0.05
    assert 0.02 < stream.is_unknown(test[0][known]).mean() < 0.09
    assert stream.is_unknown(test[0][~known]).mean() > 0.2
    # Features are brought to one length, so that far things are those of another
    # direction.
    assert (
        small_learner(60, normalize="none")
        .fit(part(clouds(40), 0, 1, 2))
        .is_unknown(100.0 + test[0])
        .all()
    )


def test_merging_joins_both_sides_in_any_order() -> None:
    data = clouds(30)
    X = clouds(5, seed=3)[0]
    base = small_learner(60).fit(part(data, 0, 1, 2))

    def side(*labels: int) -> Learner:
        return (
            empty_copy(base)
            .partial_fit(part(data, *labels))
            .partial_fit(part(data, labels[0] + 3))
        )

    one = side(3, 4)
    other = side(7, 8)
    forth = side(3, 4).merge(other)
    back = side(7, 8).merge(one)
    calibration = forth.state_.calibration
    assert len(np.unique(calibration.known.measurement)) == 4
    assert len(np.unique(calibration.unknown.measurement)) == 2
    assert forth.head_.temperature_ == pytest.approx(back.head_.temperature_)
    np.testing.assert_allclose(
        forth.novelty_score(X), back.novelty_score(X), rtol=1e-6, atol=1e-6
    )


def test_one_row_of_a_class_adds_only_to_the_unknown(stream: Learner) -> None:
    data = clouds(40)
    learner = small_learner(60).fit(part(data, 0, 1, 2))
    relative = learner.state_.calibration.temperature()
    with pytest.warns(FewSamplesWarning):
        learner.partial_fit((data[0][data[1] == 3][:1], np.array([3])))
    calibration = learner.state_.calibration
    assert len(calibration.known) == 120
    assert len(calibration.unknown) == 1
    assert calibration.temperature() == relative


def test_rows_without_doubt_leave_the_temperature_near_the_expected_one() -> None:
    X = np.repeat(10.0 * np.eye(8)[:4], 20, axis=0)
    y = np.repeat(np.arange(4), 20)
    X = X + 0.01 * np.random.default_rng(0).normal(size=X.shape)
    learner = small_learner(60).fit((X, y))
    relative = learner.head_.temperature_ / learner.head_.expected_temperature()
    assert 0.1 < relative <= 1.0


def test_temperature_follows_the_scores_of_a_growing_model() -> None:
    # Scores grow with the number of samples, and the rows measured first count as much.
    rng = np.random.default_rng(0)
    y = np.arange(800) % 8
    X = rng.normal(size=(8, 60))[y] + 1.5 * rng.normal(size=(800, 60))
    learner = small_learner(60).fit((X[:40], y[:40]))
    first = learner.head_.temperature_
    learner.partial_fit((X[40:400], y[40:400]))
    assert learner.head_.temperature_ > 2.0 * first
    P = learner.predict_proba(X[400:])
    right = learner.classes_[P.argmax(axis=1)] == y[400:]
    assert abs(P.max(axis=1).mean() - right.mean()) < 0.05


@pytest.mark.parametrize("n_classes", [5, 10])
def test_probabilities_of_few_samples_are_calibrated(n_classes: int) -> None:
    confidence = []
    right = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y = np.arange(500) % n_classes
        X = rng.normal(size=(n_classes, 100))[y] + 3.0 * rng.normal(size=(500, 100))
        n_learned = 5 * n_classes
        learner = small_learner(100).fit((X[:n_learned], y[:n_learned]))
        P = learner.predict_proba(X[n_learned:])
        confidence.append(P.max(axis=1))
        right.append(learner.classes_[P.argmax(axis=1)] == y[n_learned:])
    assert (
        abs(np.mean(np.concatenate(confidence)) - np.mean(np.concatenate(right))) < 0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [10, 1])
def test_false_alarms_of_ten_draws_of_ten_species_with_twenty_images(
    shared: Path, at_once: int
) -> None:
    found = np.load(shared / "features" / "cub200_efficientnet_lite0.npz")
    X, y, T, t = (found[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    rates = []
    for seed in range(10):
        species = np.random.default_rng(seed).permutation(200)
        learner = Learner(None, device="cpu")
        for first in range(0, 10, at_once):
            rows = np.concatenate(
                [
                    np.flatnonzero(y == one)[:20]
                    for one in species[first : first + at_once]
                ]
            )
            learner.partial_fit((X[rows], y[rows]))
        asked = species[:10], species[10:30]
        rates.append([learner.is_unknown(T[np.isin(t, some)]).mean() for some in asked])
    known, new = np.mean(rates, axis=0)
    assert 0.03 < known < 0.08
    assert new > 0.4


@pytest.mark.slow
def test_intents_are_told_from_others_and_probabilities_are_honest(
    shared: Path,
) -> None:
    found = np.load(shared / "features" / "clinc150_minilm.npz")
    X, y, T, t = (found[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    learner = Learner(None, options={"n_units": 300}, device="cpu")
    for first in range(0, 30, 10):
        rows = np.flatnonzero((y >= first) & (y < first + 10))
        learner.partial_fit((X[rows], y[rows]))
    known = t < 30
    other = (t >= 30) & (t < 60)
    P = learner.predict_proba(T[known])
    right = learner.classes_[P.argmax(axis=1)] == t[known]
    assert abs(P.max(axis=1).mean() - right.mean()) < 0.04
    assert 0.02 < learner.is_unknown(T[known]).mean() < 0.1
    assert learner.is_unknown(T[other]).mean() > 0.5


@pytest.mark.slow
def test_a_class_of_another_kind_leaves_unknown_species_to_be_found(
    shared: Path,
) -> None:
    found = np.load(shared / "features" / "cub200_efficientnet_lite0.npz")
    X, y, T, t = (found[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    rates = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        species = rng.permutation(200)
        columns = rng.permutation(X.shape[1])  # vectors of no bird
        rows = [np.flatnonzero(y == one)[:20] for one in species[:40]]
        rows = np.concatenate(rows)
        learner = Learner(None, options={"n_units": 300}, device="cpu")
        learner.fit(X[rows], y[rows].astype(str))
        known = T[np.isin(t, species[:40])]
        unknown = T[np.isin(t, species[40:60])]
        before = [learner.is_unknown(asked).mean() for asked in (known, unknown)]
        other = X[y == species[60]][:18, columns]
        learner.partial_fit(other, ["not a bird"] * len(other))
        asked = (known, unknown, T[t == species[60]][:, columns])
        rates.append([*before, *(learner.is_unknown(rows).mean() for rows in asked)])
    known_before, found_before, known_after, found_after, other = np.mean(rates, axis=0)
    assert abs(known_after - 0.05) < 0.02
    assert abs(known_before - known_after) < 0.02
    assert found_after > found_before - 0.04  # it fell from 38 to 23 %
    assert other < 0.15
