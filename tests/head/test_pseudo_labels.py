"""Pseudo-labels equal weighted rows, can be removed exactly and follow every edit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.head.models import rows_in_blocks, small

from evergrow import Classifier, SCLClassifier
from evergrow.core.errors import (
    LabelError,
    MergeError,
    ParameterError,
    UnsupportedError,
)
from evergrow.head.pseudo_labels import row_marks

Rows = tuple[NDArray[Any], NDArray[Any]]


@pytest.fixture(scope="module")
def data() -> tuple[Rows, Rows, Rows]:
    """Return labelled, unlabelled and test rows of six classes."""
    rng = np.random.default_rng(3)
    means = 0.9 * rng.normal(size=(6, 12))

    def drawn(n: int) -> Rows:
        y = np.tile(np.arange(6), n)
        return means[y] + rng.normal(size=(len(y), 12)), y

    return drawn(3), drawn(30), drawn(40)


def with_pseudo_labels(
    data: tuple[Rows, Rows, Rows], rows: slice = slice(None), **settings: Any
) -> Classifier:
    (X, y), (U, _), _ = data
    model = small(**settings).fit(X, y)
    assert model.learn_unlabelled(U[rows]).used
    return model


def weighted(model: Classifier, U: NDArray[Any]) -> Classifier:
    """Return a model that learned the pseudo-labels of another one as weighted rows."""
    pseudo_labels = model.state_.pseudo_labels
    assert pseudo_labels is not None
    places = {
        mark: row for row, mark in enumerate(row_marks(torch.from_numpy(U)).tolist())
    }
    rows = [places[mark] for mark in pseudo_labels.marks.tolist()]
    plain = model.branch().forget_unlabelled()
    return plain.partial_fit(
        U[rows],
        plain.classes_[pseudo_labels.codes],
        sample_weight=pseudo_labels.weights.numpy(),
    )


def assert_same_scores(
    one: Classifier, other: Classifier, X: NDArray[Any], atol: float = 1e-9
) -> None:
    mine = one.settle().class_scores(X)
    theirs = other.settle().class_scores(X)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol * np.abs(theirs).max())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pseudo_labels_improve_accuracy_with_few_labels(data, k):
    (X, y), (U, _), (T, t) = data
    model = small().fit(X[: 6 * k], y[: 6 * k])
    before = model.score(T, t)
    report = model.learn_unlabelled(U)
    assert model.score(T, t) > before + 0.02
    assert report.used + report.unknown == len(U)
    assert sum(report.classes.values()) == report.used == model.n_pseudo_labels_


@pytest.mark.parametrize("solver", ["auto", "dense", "compact"])
def test_pseudo_labels_equal_weighted_rows(data, solver):
    model = with_pseudo_labels(data, solver=solver, shape_directions=0)
    assert_same_scores(model, weighted(model, data[1][0]), data[2][0], 1e-8)


def test_block_weights_use_pseudo_labels():
    X, y = rows_in_blocks()
    model = small(blocks=(8, 12, 5), shape_directions=0).fit(X[::4], y[::4])
    model.learn_unlabelled(X[1::2])
    assert_same_scores(model, weighted(model, X), X, 1e-6)


def test_counts_shapes_and_novelty_use_labelled_rows_only(data):
    (X, y), _, (T, _) = data
    plain = small().fit(X, y)
    model = with_pseudo_labels(data)
    assert model.class_counts_.tolist() == plain.class_counts_.tolist()
    assert np.array_equal(model.novelty_score(T), plain.novelty_score(T))
    assert np.array_equal(
        model.held_out_scores(X[:6], y[:6]).terms,
        plain.held_out_scores(X[:6], y[:6]).terms,
    )
    assert model.model_.shapes is not None
    assert torch.equal(model.model_.shapes.factors, plain.model_.shapes.factors)
    assert torch.equal(model.model_.shapes.triangles, plain.model_.shapes.triangles)


def test_forget_unlabelled_restores_the_scores_bit_for_bit(data):
    (X, y), _, (T, _) = data
    plain = small().fit(X, y)
    model = with_pseudo_labels(data)
    assert not np.array_equal(model.class_scores(T), plain.class_scores(T))
    assert np.array_equal(
        model.forget_unlabelled().class_scores(T), plain.class_scores(T)
    )
    assert model.n_pseudo_labels_ == 0


def test_labels_replace_pseudo_labels(data):
    _, (U, u), (T, _) = data
    model = with_pseudo_labels(data, slice(0, 60))
    whole = model.n_pseudo_labels_
    model.partial_fit(U[:10], u[:10])
    assert model.n_pseudo_labels_ < whole
    assert set(model.state_.pseudo_labels.marks.tolist()).isdisjoint(
        row_marks(torch.from_numpy(U[:10])).tolist()
    )
    assert_same_scores(model, weighted(model, U), T)
    new = model.partial_fit(
        np.concatenate([U[10:60], U[10:20]]), [*u[10:60], *[9] * 10]
    )  # the last are a new class
    assert new.n_pseudo_labels_ == 0
    assert new.state_.pseudo_labels is None


def test_rows_learned_twice_without_labels_count_once(data):
    model = with_pseudo_labels(data, slice(0, 60))
    first = model.n_pseudo_labels_
    report = model.learn_unlabelled(np.concatenate([data[1][0][:60]] * 2))
    assert report.repeated == 60
    assert abs(model.n_pseudo_labels_ - first) <= 6  # what looks unknown may change
    assert_same_scores(model, weighted(model, data[1][0]), data[2][0])


def test_class_edits_apply_to_pseudo_labels(data):
    (X, y), (U, _), (T, _) = data
    swapped = with_pseudo_labels(data).rename_classes({0: 9, 5: 0})
    plain = with_pseudo_labels(data).class_scores(T)
    np.testing.assert_allclose(
        swapped.class_scores(T), plain[:, [5, 1, 2, 3, 4, 0]], rtol=1e-9
    )
    merged = with_pseudo_labels(data, shape_directions=0).merge_classes([1, 4], 1)
    assert_same_scores(merged, weighted(merged, U), T, 1e-8)
    left = with_pseudo_labels(data).forget_classes([2])
    assert left.state_.pseudo_labels.state.n_targets == 5
    assert 2 not in left.predict(T)
    gone = with_pseudo_labels(data).unlearn(X[y == 3], y[y == 3])
    assert gone.classes_.tolist() == [0, 1, 2, 4, 5]
    assert len(gone.state_.pseudo_labels.codes) == gone.n_pseudo_labels_ > 0
    grown = with_pseudo_labels(data).partial_fit(T[:6] + 30.0, [7] * 6)
    assert grown.state_.pseudo_labels.state.n_targets == 7


def test_merge_adds_pseudo_labels_of_both(data):
    (X, y), (U, u), (T, _) = data
    start = small(shape_directions=0).fit(X, y)
    one = start.branch()
    two = start.spawn().partial_fit(U[:60], u[:60])
    one.learn_unlabelled(U[60:100])
    two.learn_unlabelled(U[100:])
    both = one.branch().merge(two)
    assert both.n_pseudo_labels_ == one.n_pseudo_labels_ + two.n_pseudo_labels_
    assert_same_scores(both, weighted(both, U), T, 1e-8)
    assert start.spawn().merge(two).n_pseudo_labels_ == two.n_pseudo_labels_


def test_merge_counts_pseudo_labels_of_the_base_once(data):
    (_, (U, u), (T, _)) = data
    base = with_pseudo_labels(data, slice(0, 60), shape_directions=0)
    one = base.branch()
    two = base.branch().partial_fit(U[60:90], u[60:90])
    one.learn_unlabelled(U[90:])
    both = one.branch().merge(two, base)
    assert both.n_pseudo_labels_ == one.n_pseudo_labels_
    assert_same_scores(both, weighted(both, U), T, 1e-8)
    labelled = base.branch().partial_fit(
        U[:30], u[:30]
    )  # which replaces pseudo_labels of the base
    with pytest.raises(MergeError, match="forget the unlabelled samples of both"):
        one.branch().merge(labelled, base)


def test_files_keep_pseudo_labels(data, tmp_path):
    T = data[2][0]
    model = with_pseudo_labels(data)
    expected = model.predict_proba(T)
    model.save(tmp_path / "head.evg")
    loaded = Classifier.load(tmp_path / "head.evg")
    assert np.array_equal(loaded.predict_proba(T), expected)
    assert loaded.n_pseudo_labels_ == model.n_pseudo_labels_
    assert np.array_equal(
        loaded.forget_unlabelled().class_scores(T),
        model.forget_unlabelled().class_scores(T),
    )


def test_rows_that_look_unknown_change_nothing(data):
    (X, y), (U, _), _ = data
    model = small().fit(X, y)
    before = model.class_scores(U)
    report = model.learn_unlabelled(U[:5] + 100.0)
    assert (report.used, report.unknown, model.n_pseudo_labels_) == (0, 5, 0)
    assert np.array_equal(model.class_scores(U), before)


def test_learn_unlabelled_needs_two_classes_and_the_denoised_readout(data):
    (X, y), (U, _), _ = data
    with pytest.raises(LabelError, match="at least two learned classes"):
        small().fit(X[y == 0], y[y == 0]).learn_unlabelled(U)
    with pytest.raises(UnsupportedError, match="denoised readout"):
        SCLClassifier(max_units=20, random_state=0).fit(X, y).learn_unlabelled(U)


# -- fading ----------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", "dense", "compact", "recursive"])
def test_fade_equals_learning_with_weights(data, solver):
    (X, y), (U, u), (T, _) = data
    model = small(solver).fit(X, y).fade(0.5).partial_fit(U, u).fade(0.3)
    start = small(solver).fit(X, y)
    first = start.spawn().partial_fit(X, y, sample_weight=np.full(len(y), 0.15))
    joint = first.partial_fit(U, u, sample_weight=np.full(len(u), 0.3))
    assert model.class_counts_.tolist() == joint.class_counts_.tolist()
    assert_same_scores(model, joint, T, 1e-10)


def test_pseudo_labels_fade_and_unlearn_takes_the_faded_weight(data):
    (X, y), (U, u), (T, _) = data
    model = with_pseudo_labels(data).fade(0.5)
    assert_same_scores(model, weighted(model, U), T, 1e-7)
    plain = (
        small()
        .fit(X, y)
        .partial_fit(U[:6], u[:6])
        .fade(0.5)
        .unlearn(U[:6], u[:6], sample_weight=np.full(6, 0.5))
    )
    assert_same_scores(plain, small().fit(X, y).fade(0.5), T)


@pytest.mark.parametrize("factor", [0, 1.5, -1, float("nan"), 1e-9])
def test_fade_rejects_factors_out_of_range(data, factor):
    (X, y), _, _ = data
    with pytest.raises(ParameterError, match="factor"):
        small().fit(X, y).fade(factor)
