"""What to label next, groups of unknown samples, tests for drift, learning curves."""

from __future__ import annotations

import numpy as np
import pytest

from evergrow import Learner, tools
from evergrow.core.errors import InputError, ParameterError
from evergrow.tools.grouping import matched_fraction
from evergrow.tools.learning_curves import LearningCurve, curve_svg

KNOWN = range(8)
ALL = range(12)


@pytest.fixture(scope="module")
def drawn():
    means = 1.2 * np.random.default_rng(0).normal(size=(12, 16))

    def rows(n, classes, seed=0):
        rng = np.random.default_rng(seed)
        y = np.repeat(list(classes), n)
        return means[y] + 0.7 * rng.normal(size=(len(y), 16)), np.array(
            [f"c{code:02d}" for code in y]
        )

    return rows


@pytest.fixture(scope="module")
def learner(drawn):
    return Learner(None, options={"n_units": 60}).fit(drawn(20, KNOWN))


def test_the_least_sure_come_first_and_none_twice(drawn, learner):
    X, _ = drawn(30, KNOWN, seed=1)
    doubled = np.concatenate([X, X])
    found = tools.suggest(learner, doubled, 20, novel_fraction=0)
    assert len(found.rows) == len(set(found.rows % len(X))) == 20
    assert not found.is_novel.any()
    assert (np.diff(found.margins) >= 0).all()
    everything = tools.suggest(learner, X, len(X), novel_fraction=0)
    assert (found.margins <= np.quantile(everything.margins, 0.2)).all()
    # Oddities are put back: what is suggested has more that is like it than the least
    # sure have.
    units = (X - X.mean(axis=0)) / np.linalg.norm(
        X - X.mean(axis=0), axis=1, keepdims=True
    )
    nearness = np.sort(units @ units.T, axis=1)[:, -11:].mean(axis=1)
    assert nearness[found.rows % len(X)].mean() > nearness[everything.rows[:20]].mean()


def test_a_share_of_suggestions_looks_unknown(drawn, learner):
    X, y = drawn(20, ALL, seed=2)
    found = tools.suggest(learner, X, 20)
    assert found.is_novel.sum() == 4
    assert (
        np.isin(y[found.rows[found.is_novel]], ["c08", "c09", "c10", "c11"]).mean()
        >= 0.5
    )
    assert tools.suggest(learner, X, 20, novel_fraction=1).is_novel.all()
    only = tools.suggest(learner, X[learner.is_unknown(X)], 5)  # nothing looks known
    assert only.is_novel.tolist() == [True] * 5


def test_what_has_labels_is_not_suggested(drawn, learner):
    X, _ = drawn(30, KNOWN, seed=1)
    first = tools.suggest(learner, X, 20).rows
    later = tools.suggest(learner, X, 20, labelled=X[first] * 1.0001).rows
    assert set(first).isdisjoint(later)


def test_more_than_there_is_gives_what_there_is(drawn, learner):
    X, _ = drawn(1, KNOWN, seed=3)
    assert sorted(tools.suggest(learner, X, 100).rows) == list(range(8))
    with pytest.raises(ParameterError, match="n must be"):
        tools.suggest(learner, X, 0)
    one = Learner(None, options={"n_units": 20}).fit(X, ["ant"] * 8)
    with pytest.raises(InputError, match="has one class"):
        tools.suggest(one, X)


@pytest.mark.parametrize("metric", ["given", "found"])
def test_unknown_samples_fall_into_their_classes(drawn, learner, metric):
    X, y = drawn(25, range(8, 12), seed=4)
    known = drawn(25, KNOWN, seed=5)
    found = tools.group_unknown(
        learner, X, n_groups=4 if metric == "given" else None, known=known
    )
    codes = np.full(len(y), -1)
    for code, rows in enumerate(found.rows):
        codes[rows] = code
    assert matched_fraction(y[codes >= 0], codes[codes >= 0]) > 0.7
    assert 3 <= len(found.rows) <= 10
    assert len(found.known) + sum(map(len, found.rows)) == len(y)
    assert [len(rows) for rows in found.rows] == sorted(
        map(len, found.rows), reverse=True
    )


def test_without_unknown_samples_there_is_nothing_to_group(drawn, learner):
    X, _ = drawn(20, KNOWN)
    rows = X[~learner.is_unknown(X)]
    with pytest.raises(InputError, match="None of the"):
        tools.group_unknown(learner, rows)
    assert len(tools.group_unknown(learner, drawn(1, ALL, seed=6)[0]).rows) >= 1


def test_samples_marked_as_unknown_are_grouped_whatever_they_look_like(drawn, learner):
    X, _ = drawn(20, KNOWN)
    known_rows = np.flatnonzero(~learner.is_unknown(X))
    marked = known_rows[[3, 1, 4, 15]]
    found = tools.group_unknown(learner, X, unknown=marked)
    assert sorted(np.concatenate(found.rows)) == sorted(marked)
    assert sorted([*found.known, *marked]) == list(range(len(X)))
    for wrong in ([len(X)], [-1], [[1]], ["a"]):
        with pytest.raises(InputError, match="unknown"):
            tools.group_unknown(learner, X, unknown=wrong)


def test_copies_of_one_sample_are_one_group():
    rng = np.random.default_rng(0)
    X = np.repeat(np.eye(6)[:2] * 9, 12, axis=0) + rng.normal(size=(24, 6))
    small = Learner(None, options={"n_units": 20}).fit(X, np.repeat(["a", "b"], 12))
    copies = np.full((6, 6), 200.0)
    found = tools.group_unknown(small, copies, unknown=range(6))
    assert [sorted(rows) for rows in found.rows] == [[0, 1, 2, 3, 4, 5]]


def test_unchanged_samples_raise_few_alarms_and_others_do(drawn, learner):
    shares = [
        tools.drift(learner, drawn(15, KNOWN, seed)[0]).fraction
        for seed in range(10, 20)
    ]
    assert np.mean(shares) < 0.12
    X, y = drawn(15, KNOWN, seed=20)
    noise = np.random.default_rng(0).normal(size=X.shape)
    assert tools.drift(learner, X + 1.5 * noise).fraction > 0.8
    wrong = tools.drift(learner, X, np.roll(y, 15))
    assert wrong.fraction > 0.9
    assert wrong.classes[0].changed
    assert tools.drift(learner, X, y).fraction < 0.3
    with pytest.raises(InputError, match="nothing can be tested"):
        tools.drift(learner, X[::15])


def test_a_learning_curve_rises_and_foretells(drawn, learner):
    curve = tools.learning_curve(learner, *drawn(18, KNOWN, seed=7))
    assert curve.sizes.tolist() == [1, 2, 5, 12]
    assert curve.accuracy[-1] > curve.accuracy[0]
    assert curve.gain[1] <= curve.gain[0] <= curve.gain[2]
    assert set(curve.recall_gains) == {f"c{code:02d}" for code in KNOWN}
    picture = curve_svg(curve)
    assert picture.startswith("<svg")
    assert picture.endswith("</svg>")
    with pytest.raises(InputError, match="at least two classes"):
        tools.learning_curve(learner, *drawn(9, [0]))


def test_more_would_not_help_where_all_is_right(learner):
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(4), 20)
    curve = tools.learning_curve(
        learner, 8 * np.eye(16)[y] + 0.01 * rng.normal(size=(80, 16)), y
    )
    assert isinstance(curve, LearningCurve)
    assert curve.is_enough
