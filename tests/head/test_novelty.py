"""Novelty: against the formula written out, against a model that never saw the rows, and with little to go by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import oas
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from evergrow import SCLClassifier
from evergrow.head import novelty
from evergrow.head.linalg import ClassGeometry
from evergrow.head.novelty import NoveltyScorer, Whitening, shrinkage_ridge


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:600], y[:600]


def make(X, y, **options):
    readout = {"readout": "discriminant", "shape_directions": 0}
    return SCLClassifier.recommended(**{"n_units": 60, "random_state": 0, "device": "cpu", **readout, **options}).fit(
        X, y
    )


def activations(model, X):
    return torch.cat([H for _, H in model._model.activations(torch.from_numpy(X))])


def by_hand(H, y, new, ridge):
    """The score as the module states it, with explicit inverses and projections."""
    classes, counts = np.unique(y, return_counts=True)
    means = np.stack([H[y == c].mean(axis=0) for c in classes])
    centred = H - means[np.searchsorted(classes, y)]
    scatter = centred.T @ centred
    free = len(y) - len(classes)
    values, vectors = np.linalg.eigh(np.linalg.inv(scatter + ridge * np.eye(len(scatter))))
    root = vectors * np.sqrt(values)
    leverage = np.trace(scatter @ vectors @ np.diag(values) @ vectors.T) / free
    offsets = (means - H.mean(axis=0)) @ root
    span = np.linalg.svd(offsets.T, full_matrices=False)[0][:, : len(classes) - 1]
    rows = (new - H.mean(axis=0)) @ root
    inside = rows @ span
    rest = (rows**2).sum(axis=1) - (inside**2).sum(axis=1)
    distances = ((inside[:, None] - (offsets @ span)[None]) ** 2).sum(axis=2) / (1 + 1 / counts)
    ratio = distances.min(axis=1) / ((inside**2).sum(axis=1) + 0.1 * rest)
    excess = rest * (1 - leverage) / leverage
    return ratio + np.maximum(excess / 2 - 1, excess / 100)


@pytest.mark.parametrize("solver", ["dense", "compact"])
@pytest.mark.parametrize("n", [500, 70])  # more and fewer rows than activations are wide
def test_the_score_is_the_formula(digits, solver, n):
    X, y = digits
    model = make(X[:n], y[:n], solver=solver)
    H, new = (activations(model, part).numpy() for part in (X[:n], np.concatenate([X[n:], 16.0 - X[n:]])))
    ridge = model._novelty_scorer().whitening.ridge
    expected = by_hand(H, y[:n], new, ridge)
    scores = model.novelty_score(np.concatenate([X[n:], 16.0 - X[n:]]))
    assert np.abs(scores / expected - 1).max() < 1e-5
    centred = H - np.stack([H[y[:n] == c].mean(axis=0) for c in y[:n]])
    free = n - 10
    assert ridge == pytest.approx(
        3 * shrinkage_ridge(torch.from_numpy(centred.T @ centred), free, H.shape[1]), rel=1e-6
    )


@pytest.mark.parametrize("seed", range(5))
def test_one_class_has_no_directions_of_its_own(seed):
    X, y = np.random.default_rng(seed).normal(size=(90, 6)), np.arange(60) // 30
    model = make(X[:60], y, class_moments=True).forget_classes([1])
    H, new = (activations(model, part).numpy() for part in (X[:30], X[60:]))
    expected = by_hand(H, np.zeros(30), new, model._novelty_scorer().whitening.ridge)
    assert np.abs(model.novelty_score(X[60:]) / expected - 1).max() < 1e-5


def test_the_shrinkage_is_oas():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 300)) * np.linspace(0.1, 2, 300)
    shrunk, rho = oas(X, assume_centered=True)
    ridge = shrinkage_ridge(torch.from_numpy(X.T @ X), 80, 300)
    assert ridge / (80 * np.trace(X.T @ X / 80) / 300) == pytest.approx(rho / (1 - rho), rel=0.02)  # without its 2 / p
    assert shrinkage_ridge(torch.from_numpy(9 * X.T @ X), 80, 300) == pytest.approx(9 * ridge)
    assert shrunk.shape == (300, 300)


@pytest.mark.parametrize("solver", ["dense", "compact"])
def test_rows_taken_out_are_scored_as_by_a_model_that_never_saw_them(digits, solver):
    X, y = digits
    X, y = X[:200], y[:200]
    model = make(X, y, solver=solver)
    scorer = model._novelty_scorer()
    out = np.arange(200) % 7 == 0
    H = activations(model, X)
    scores = scorer.without(H[torch.from_numpy(out)], torch.from_numpy(np.searchsorted(model.classes_, y[out])))
    rest = model.spawn().partial_fit(X[~out], y[~out])
    geometry = ClassGeometry.of(rest._model.state.reduced(), rest._model.counts)
    factor = geometry.factor(scorer.whitening.ridge)
    used = len(factor.lower) - scorer.whitening.ridge * factor.trace_inverse()
    whitening = Whitening(geometry.stats, factor, scorer.whitening.ridge, float((~out).sum() - 10), used)
    theirs = NoveltyScorer._with(whitening, factor.half_solve(geometry.means), geometry.counts)
    torch.testing.assert_close(scores, theirs.score(H[torch.from_numpy(out)]), rtol=1e-6, atol=1e-9)
    # Left in, they look far more familiar than they are.
    assert float((scorer.score(H[torch.from_numpy(out)]) < scores).double().mean()) > 0.95


def test_the_ridge_of_the_classifier_plays_no_part(digits):
    X, y = digits
    model = make(X[:300], y[:300])
    before = model.novelty_score(X[300:])
    for alpha in (1e-6, 1e3):
        assert np.array_equal(model.regularize(alpha).novelty_score(X[300:]), before)


def test_learning_more_hardly_changes_the_scale():
    X, y = load_digits(return_X_y=True)
    first, medians = y < 5, []
    model = make(X[:100][first[:100]], y[:100][first[:100]])
    for start, stop in ((100, 400), (400, 800), (800, 1200)):
        model.partial_fit(X[start:stop], y[start:stop])
        medians.append(np.median(model.novelty_score(X[1200:])))
    assert max(medians) < 2 * min(medians)
    assert max(medians) < 1


def test_things_of_another_world_are_the_most_novel(digits):
    X, y = digits
    rng = np.random.default_rng(0)
    known = y < 8
    model = make(X[:400][known[:400]], y[:400][known[:400]])
    mine, near = model.novelty_score(X[400:][known[400:]]), model.novelty_score(X[400:][~known[400:]])
    assert roc_auc_score(np.repeat([0, 1], [len(mine), len(near)]), np.concatenate([mine, near])) > 0.9
    assert model.novelty_score(rng.uniform(0, 16, size=(100, 64))).min() > max(mine.max(), near.max())


@pytest.mark.parametrize("solver", ["dense", "compact"])
def test_little_to_go_by(digits, solver):
    X, y = digits
    whole = make(X[:100], y[:100], solver=solver)
    one_each = whole.spawn().partial_fit(X[:10], y[:10])
    assert len(one_each.classes_) == 10
    copies = whole.spawn().partial_fit(np.repeat(X[:3], 4, axis=0), np.repeat(y[:3], 4))
    one_class = whole.spawn().partial_fit(X[:100][y[:100] == 3], y[:100][y[:100] == 3])
    one_sample = whole.spawn().partial_fit(X[:1], y[:1])
    for model in (one_each, copies, one_class, one_sample):
        scores = model.novelty_score(np.concatenate([X[:10], X[300:400], 1e3 * np.eye(64)[:5]]))
        assert np.isfinite(scores).all()
        assert (scores >= 0).all()
    for model, rows in ((one_each, X[:10]), (copies, X[:3])):
        assert model.novelty_score(rows).max() < np.median(model.novelty_score(X[300:400]))
    assert np.median(one_class.novelty_score(X[y == 3])) < np.median(one_class.novelty_score(X[y != 3]))


def test_the_trace_of_large_matrices_is_estimated_well(digits, monkeypatch):
    X, y = digits
    model = make(X, y, n_units=200, solver="dense")
    exact = model._novelty_scorer().whitening
    monkeypatch.setattr(novelty, "EXACT_TRACE", 10)
    estimated = Whitening.of(ClassGeometry.of(model._model.state.reduced(), model._model.counts))
    assert estimated.used != exact.used
    assert estimated.expected == pytest.approx(exact.expected, rel=0.05)
    few = model.spawn().partial_fit(X[:100], y[:100])
    assert few._novelty_scorer().whitening.used < 90  # exact: no more than there are degrees of freedom
