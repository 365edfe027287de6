"""The denoised readout against explicit matrices, and on degenerate data."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from tests.head.models import small, with_choice

from evergrow import Classifier


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(8), [40, 40, 30, 30, 20, 20, 10, 4]))
    centres = rng.normal(size=(8, 12))
    spread = np.exp(rng.normal(size=(8, 12)) / 2)
    return centres[y] + 0.8 * spread[y] * rng.normal(size=(len(y), 12)), y


def by_hand(
    model: Classifier, X: np.ndarray, y: np.ndarray, queries: np.ndarray, shared: float
) -> np.ndarray:
    """Compute scores with explicit matrices. Each block has its own ridge."""
    classes = np.unique(y)
    Zn, Zq = (model.model_.inputs(torch.from_numpy(rows)) for rows in (X, queries))
    H = model.layer_.transform(Zn).numpy()
    Q = model.layer_.transform(Zq).numpy()
    ridge = np.full(H.shape[1], model.alpha_)
    if model.blocks is not None:
        ridge[model.n_units_ :] /= np.repeat(
            np.square(model.state_.solved.choice.weights), model.blocks
        )
    M = np.stack([H[y == c].mean(axis=0) for c in classes])
    n = np.array([(y == c).sum() for c in classes], dtype=float)
    W = sum((H[y == c] - m).T @ (H[y == c] - m) for c, m in zip(classes, M))
    B = np.linalg.inv(W + np.diag(ridge))
    f = len(y) - len(classes)
    u = np.trace(B @ W)
    v = u / (n * (1 - u / f))

    def spread(q: np.ndarray) -> float:
        t = max(np.maximum(q - v, 0).mean(), 1e-6 * q.mean())
        for _ in range(20):
            w = (t + v) ** -2.0
            t = max((w * (q - v)).sum() / w.sum(), 1e-6 * q.mean())
        return float(t)

    D = M - M.mean(axis=0)
    t = spread(f * np.einsum("ci,ij,cj->c", D, B, D))
    w = (1 / (t + v)) / (1 / (t + v)).sum()
    D = M - w @ M
    K = f * D @ B @ D.T
    t = spread(np.diag(K))
    values, vectors = np.linalg.eigh(K / np.sqrt(np.outer(v, v)))
    prior = (
        shared
        * np.sqrt(np.outer(v, v))
        * (vectors @ np.diag(np.maximum(values - 1, 0)) @ vectors.T)
    )
    prior = prior + (1 - shared) * t * np.eye(len(n))
    F = prior @ np.linalg.inv(prior + np.diag(v))
    energy = (
        np.diag(F @ K @ F.T)
        - F**2 @ v
        - 0.1 * (t / (t + v)) ** 2 * (np.diag(K) - v - t)
    )
    scores = f * (Q - w @ M) @ B @ D.T @ F.T - 0.5 * energy
    return scores + shapes_by_hand(model, Zn.numpy(), y, Zq.numpy())


def shapes_by_hand(
    model: Classifier, Z: np.ndarray, y: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    shapes = model.model_.shapes
    nu = model.state_.solved.choice.strength
    P, Q = (
        (rows - shapes.centre.numpy()) @ shapes.basis.numpy() for rows in (Z, queries)
    )
    groups = [P[y == c] for c in np.unique(y)]
    scatters = [(g - g.mean(axis=0)).T @ (g - g.mean(axis=0)) for g in groups]
    common = sum(scatters) / (len(y) - len(groups))
    common = common + 0.1 * np.trace(common) / len(common) * np.eye(len(common))
    columns = []
    for g, S in zip(groups, scatters):
        m = len(g) - 1
        own = (S + nu * common) / (m + nu)
        d = Q - g.mean(axis=0)
        gap = np.linalg.inv(common) - np.linalg.inv(own)
        ratio = (
            np.einsum("ni,ij,nj->n", d, gap, d)
            + np.linalg.slogdet(common)[1]
            - np.linalg.slogdet(own)[1]
        )
        known = min(
            max((m + 1 - 10) / 20, 0.0), 1.0
        )  # of so few rows the shape is hardly known
        columns.append(known * m / (m + nu) * np.maximum(ratio / 2, -20.0))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("blocks", [None, (5, 4, 3)])
@pytest.mark.parametrize(
    ("limit", "shared"), [(8, 0.5), (7, 0.0)]
)  # means of many classes are shrunk one by one
def test_scores_equal_those_of_explicit_matrices(
    data, blocks, limit, shared, monkeypatch
):
    X, y = data
    monkeypatch.setattr("evergrow.head.linalg.scatter.MAX_SHARED_CLASSES", limit)
    model = small(blocks=blocks).fit(X, y)
    scores = model.class_scores(X[:50])
    np.testing.assert_allclose(
        scores, by_hand(model, X, y, X[:50], shared), rtol=1e-6, atol=1e-6
    )


def test_predictions_before_settle_use_the_last_choice(data):
    X, y = data
    model = small().fit(X[:180], y[:180])
    model.predict(X[:1])
    choice = model.state_.solved.choice
    model.partial_fit(X[180:], y[180:])
    followed = model.class_scores(X[:20])
    assert model.state_.solved.choice == choice
    fresh = small().fit(X[:180], y[:180]).partial_fit(X[180:], y[180:])
    with_choice(fresh, choice)
    np.testing.assert_allclose(
        followed, fresh.class_scores(X[:20]), rtol=1e-8, atol=1e-8
    )


def test_denoised_readout_recognises_a_class_with_five_samples():
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(21, 40)) / 3

    def rows(c: int, n: int) -> np.ndarray:
        return centres[c] + rng.normal(size=(n, 40)) * np.linspace(0.1, 1.0, 40)

    X = np.concatenate([rows(c, 120) for c in range(20)] + [rows(20, 5)])
    y = np.repeat(np.arange(21), [120] * 20 + [5])
    fresh = rows(20, 200)
    old = np.concatenate([rows(c, 20) for c in range(20)])
    recall = {}
    others = {}
    for readout in ("ridge", "denoised"):
        model = small(readout=readout, n_units=200, shape_directions=16).fit(X, y)
        recall[readout] = (model.predict(fresh) == 20).mean()
        others[readout] = (model.predict(old) == np.repeat(np.arange(20), 20)).mean()
    assert recall["denoised"] > recall["ridge"] + 0.1
    assert others["denoised"] > others["ridge"] - 0.02


CASES = {
    "one row per class": (np.random.default_rng(0).normal(size=(6, 4)), np.arange(6)),
    "two rows": (np.random.default_rng(0).normal(size=(2, 4)), np.arange(2)),
    "constant features": (np.ones((12, 4)), np.arange(12) % 3),
    "zero features": (np.zeros((12, 4)), np.arange(12) % 3),
    "copies of one row per class": (
        np.repeat(np.random.default_rng(0).normal(size=(4, 5)), 3, axis=0),
        np.repeat(np.arange(4), 3),
    ),
    "one class has a second row": (
        np.random.default_rng(0).normal(size=(6, 4)),
        np.array([0, 0, 1, 2, 3, 4]),
    ),
    "one feature": (np.random.default_rng(0).normal(size=(30, 1)), np.arange(30) % 3),
    "equal means": (np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2),
    "huge features": (
        1e12 * np.random.default_rng(0).normal(size=(40, 5)),
        np.arange(40) % 4,
    ),
    "tiny features": (
        1e-12 * np.random.default_rng(0).normal(size=(40, 5)),
        np.arange(40) % 4,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "settings",
    [{}, {"n_units": 0}, {"normalize": "none"}],
    ids=["", "link", "unnormalised"],
)
def test_degenerate_data_gives_finite_scores(case, settings):
    X, y = CASES[case]
    model = small(**settings).fit(X, y)
    for _ in range(2):
        scores = model.class_scores(X)
        assert np.isfinite(scores).all()
        assert np.isfinite(model.predict_proba(X)).all()
        assert np.isfinite(model.novelty_score(X)).all()
        model.partial_fit(X[:1], [99])  # one sample of a new class works at any time
    assert model.predict(X[:1]).shape == (1,)


def test_one_row_per_class_predicts_the_nearest_mean():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(10, 6))
    y = np.arange(10)
    model = small(n_units=0, normalize="none").fit(X, y)
    queries = X[rng.integers(0, 10, 50)] + 0.3 * rng.normal(size=(50, 6))
    nearest = ((queries[:, None] - X[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert np.array_equal(model.predict(queries), nearest)


@pytest.mark.slow
def test_five_thousand_classes_are_learned_without_warnings():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5000, 16))
    y = np.repeat(np.arange(5000), 2)
    X = centres[y] + 0.1 * rng.normal(size=(10_000, 16))
    model = small(n_units=50, shape_directions=4).fit(X[:100], y[:100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X[100:], y[100:])
        assert (model.predict(centres[::50]) == np.arange(5000)[::50]).mean() > 0.8
