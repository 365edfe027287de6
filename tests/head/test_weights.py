"""Sample weights: integers equal copies, and weighted samples can be unlearned."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.head.models import small
from tests.samples import separated_rows

from evergrow.core.errors import InputError, LabelError, UnlearnError, UnsupportedError
from evergrow.head import Classifier, SCLClassifier
from evergrow.head.base import HEADS

Data = tuple[np.ndarray, np.ndarray]
head = partial(small, n_units=40)


@pytest.fixture(scope="module")
def data() -> Data:
    y = np.arange(300) % 5
    return separated_rows(y, 10, distance=3.0), y


@pytest.mark.parametrize("solver", ["dense", "compact"])
@pytest.mark.parametrize("readout", ["denoised", "ridge"])
def test_integer_weights_equal_copies(data: Data, solver: str, readout: str) -> None:
    X, y = data
    first = head(solver=solver, readout=readout).fit(X[:100], y[:100])
    n_copies = np.random.default_rng(1).integers(0, 4, size=150)
    rows = X[100:250]
    labels = y[100:250]
    weighted = first.branch().partial_fit(rows, labels, sample_weight=n_copies).settle()
    copied = (
        first.branch()
        .partial_fit(np.repeat(rows, n_copies, axis=0), np.repeat(labels, n_copies))
        .settle()
    )
    assert weighted.alpha_ == pytest.approx(copied.alpha_, rel=1e-9)
    for name in (
        "decision_function",
        "predict_proba",
        "novelty_score",
        "novelty_terms",
    ):
        np.testing.assert_allclose(
            getattr(weighted, name)(X), getattr(copied, name)(X), rtol=1e-6, atol=1e-7
        )
    assert weighted.class_counts_.sum() == 100 + (n_copies > 0).sum()


@pytest.mark.parametrize("rows", [30, 250])  # solution followed, solved from scratch
def test_weighted_samples_can_be_unlearned(
    data: Data, rows: int, tmp_path: Path
) -> None:
    X, y = data
    weights = np.random.default_rng(2).uniform(0.1, 4.0, size=300)
    first = head(alpha=0.5).fit(X[:50], y[:50])
    first.decision_function(X[:1])
    more = slice(50, 50 + rows)
    learned = first.branch().partial_fit(X[more], y[more], sample_weight=weights[more])
    gone = slice(50, 50 + rows // 2)
    learned.decision_function(X[:1])
    learned.unlearn(X[gone], y[gone], sample_weight=weights[gone])
    rest = slice(50 + rows // 2, 50 + rows)
    without = (
        head(alpha=0.5)
        .fit(X[:50], y[:50])
        .partial_fit(X[rest], y[rest], sample_weight=weights[rest])
    )
    np.testing.assert_allclose(
        learned.settle().decision_function(X),
        without.settle().decision_function(X),
        rtol=1e-6,
        atol=1e-6,
    )
    learned.save(tmp_path / "head.evg")
    again = Classifier.load(tmp_path / "head.evg")
    assert (again.settle().decision_function(X) == learned.decision_function(X)).all()
    assert torch.equal(again.model_.masses, learned.model_.masses)


def test_held_out_scores_leave_out_weighted_rows(data: Data) -> None:
    X, y = data
    weights = np.random.default_rng(3).uniform(0.2, 3.0, size=300)
    learned = head(alpha=0.5).partial_fit(X, y, sample_weight=weights)
    rows = slice(0, 20)
    found = learned.held_out_scores(X[rows], y[rows], sample_weight=weights[rows])
    rest = (
        head(alpha=0.5)
        .fit(X, y)
        .spawn()
        .partial_fit(X[20:], y[20:], sample_weight=weights[20:])
    )
    np.testing.assert_allclose(
        found.terms, rest.novelty_terms(X[rows]), rtol=1e-6, atol=1e-7
    )


def test_masses_add_up_in_a_merge(data: Data) -> None:
    X, y = data
    first = head().fit(X[:100], y[:100])
    other = first.spawn().partial_fit(X[100:], y[100:], sample_weight=np.full(200, 0.5))
    first.merge(other)
    np.testing.assert_allclose(first.model_.masses.numpy(), 20 + 40 * 0.5)
    assert first.class_counts_.tolist() == [60] * 5
    assert first.forget_classes([0]).model_.masses.shape == (4,)


def test_unlearn_rejects_other_weights(data: Data) -> None:
    X, y = data
    learned = head().partial_fit(X, y, sample_weight=np.full(300, 2.0))
    with pytest.raises(UnlearnError, match="weights that they were learned with"):
        learned.unlearn(X, y)


def test_partial_fit_rejects_bad_weights(data: Data) -> None:
    X, y = data
    learned = head().fit(X, y)
    with pytest.raises(
        InputError, match=r"sample_weight must be one number per row \(300\)"
    ):
        learned.partial_fit(X, y, sample_weight=np.ones(299))
    with pytest.raises(InputError, match="numbers"):
        learned.partial_fit(X, y, sample_weight=["a"] * 300)


def test_heads_without_weights_reject_them(data: Data) -> None:
    X, y = data
    assert [name for name in HEADS.names() if HEADS[name].takes_weights] == [
        "evergrow",
        "scl-mgsm",
    ]
    others = [name for name in HEADS.names() if not HEADS[name].takes_weights]
    for name in others:
        with pytest.raises(
            UnsupportedError, match=f"'{name}' does not support sample weights"
        ):
            HEADS[name]().partial_fit(X, y, sample_weight=np.full(300, 2.0))


# -- settings that every head takes ----------------------------------------------------


def test_the_first_batch_may_have_one_class(data: Data) -> None:
    X, y = data
    one = head(normalize="none").fit(X[y == 0], y[y == 0])
    assert set(one.predict(X).tolist()) == {0}
    assert (one.predict_proba(X) == 1.0).all()
    known = one.novelty_score(X[y == 0])
    other = one.novelty_score(X[y != 0])
    assert np.median(other) > known.max()
    one.partial_fit(X, y)
    assert one.score(X, y) > 0.9
    with pytest.raises(LabelError, match="at least 2 classes"):
        SCLClassifier(n_units=20).fit(X[y == 0], y[y == 0])


def test_targets_of_many_classes_give_the_same_statistics(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    y = np.arange(120) % 30
    weights = rng.uniform(0.5, 2.0, size=120)
    plain, many = (Classifier(n_units=40, random_state=0) for _ in range(2))
    plain.partial_fit(X, y, sample_weight=weights)
    monkeypatch.setattr("evergrow.head.ridge_model.MANY_CLASSES", 1)
    many.partial_fit(X, y, sample_weight=weights).unlearn(X[:7], y[:7], weights[:7])
    many.partial_fit(X[:7], y[:7], sample_weight=weights[:7])
    assert torch.allclose(
        many.model_.state.cross, plain.model_.state.cross, rtol=1e-10, atol=1e-12
    )
