"""Terms of novelty, their weights and the score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.novelty.score import DEFAULT_WEIGHTS, NoveltyPool, UnknownRows
from evergrow.head.novelty.terms import NoveltyTerms


def known(seed: int, n: int = 300) -> NDArray[np.float64]:
    """Return terms of known rows, each term of another scale."""
    scales = [3, 1, 1, 2, 0.3, 0.01]
    return np.random.default_rng(seed).normal(size=(n, 6)) * scales + 1.0


def pool(terms: NDArray[np.float64], *unknown: UnknownRows) -> NoveltyPool:
    return NoveltyPool(terms, np.full(len(terms), 1.0 / len(terms)), unknown)


def test_weights_favour_terms_that_separate_new_classes() -> None:
    np.testing.assert_allclose(pool(known(0)).weights(), DEFAULT_WEIGHTS / 4)
    rows = known(1, 200)
    rows[:, 1] += 3.0
    rows[:, 0] -= 6.0  # of less than no use
    weights = pool(known(0), UnknownRows(1000, rows)).weights()
    assert weights.argmax() == 1
    assert weights[1] > 0.5
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0)


def test_rows_with_high_default_scores_do_not_change_the_weights() -> None:
    far = known(1, 200)
    far[:, 4] += 0.3 * 60
    far[:, :4] += 30.0 * np.array([3, 1, 1, 2])
    weights = pool(known(0), UnknownRows(1000, far)).weights()
    np.testing.assert_allclose(weights, DEFAULT_WEIGHTS / 4, atol=0.01)
    hard = known(2, 200)
    hard[:, 1] += 3.0
    one = pool(known(0), UnknownRows(1000, hard)).weights()
    both = pool(known(0), UnknownRows(1000, hard), UnknownRows(1200, far)).weights()
    np.testing.assert_allclose(one, both, atol=0.01)


def test_scores_do_not_depend_on_the_order_of_batches() -> None:
    terms = np.concatenate([known(seed, 50 + seed) for seed in range(5)])
    new = np.random.default_rng(9).normal(size=(60, 6)) + 2.0
    unknown = [UnknownRows(size, new + size / 500) for size in (500, 700, 900)]
    one = pool(terms, *unknown).standard()
    other = pool(terms[::-1], *unknown[::-1]).standard()
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-9)
    np.testing.assert_allclose(one.score(new), other.score(new), rtol=1e-9)


def test_far_rows_and_nan_terms_get_large_scores() -> None:
    standard = pool(known(0)).standard()
    usual = np.ones((3, 6))
    usual[1, 4] = 1.0 + 0.3 * 60  # sixty spreads of energy outside the span
    usual[2] = np.finfo(np.float64).max
    scores = standard.score(usual)
    assert abs(scores[0]) < 1
    assert scores[1] > 40
    assert scores[2] > 1e300
    assert standard.score(np.full((1, 6), np.nan))[0] > 1e300


def test_scores_are_corrected_for_the_count_of_the_nearest_class() -> None:
    rng = np.random.default_rng(0)
    classes = np.arange(2000) // 20
    inverse = rng.choice([0.02, 0.2], size=100)[classes]
    noise = rng.normal(size=(2000, 5))
    terms = np.concatenate([noise + 10 * inverse[:, None], inverse[:, None]], axis=1)
    for groups in (None, classes):
        found = NoveltyPool(terms, np.full(2000, 1 / 2000), classes=groups)
        scores = found.standard().score(terms)
        assert scores.mean() == pytest.approx(0.0, abs=1e-9)
        few = scores[inverse == 0.2]
        many = scores[inverse == 0.02]
        assert few.mean() - many.mean() < 0.3


def test_an_unusual_class_hardly_changes_the_count_slope() -> None:
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(11), [6] * 10 + [18])
    inverse = np.repeat([0.2, 1 / 18], [60, 18])
    noise = rng.normal(size=(78, 5))
    noise[classes == 10] -= 4.0
    terms = np.concatenate([noise, inverse[:, None]], axis=1)
    shares = np.full(78, 1 / 78)
    plain = NoveltyPool(terms, shares).standard().slope
    assert NoveltyPool(terms, shares, classes=classes).standard().slope < 0.5 * plain


def test_a_constant_term_has_no_influence() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 6))
    rows[:, 2] = -1.0
    standard = pool(rows).standard()
    off = rows.copy()
    off[:, 2] += 1e-8
    assert np.abs(standard.score(off) - standard.score(rows)).max() < 1e-3


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_terms_of_any_scale_give_finite_weights(offset: float) -> None:
    scales = [1e-6, 1.0, 0.0, 1e6, 1.0, 0.01]
    rows = np.random.default_rng(0).normal(size=(5000, 6)) * scales + offset
    rows[:, 4] = rows[:, 1]  # two terms that are one
    found = pool(rows, UnknownRows(100, rows[:3]))
    assert np.isfinite(found.weights()).all()


@pytest.mark.parametrize("classes", [4, 9, 30])
def test_terms_follow_their_definition_for_any_number_of_classes(
    classes: int,
) -> None:
    k = 9
    alpha = 0.3
    source = torch.Generator().manual_seed(0)
    codes = torch.cat(
        [torch.arange(classes), torch.randint(classes, (200,), generator=source)]
    )
    H = 3.0 * torch.randn(classes, k, generator=source, dtype=torch.float64)[codes]
    H = H + torch.randn(len(codes), k, generator=source, dtype=torch.float64)
    Y = torch.nn.functional.one_hot(codes, classes).double()
    first = RidgeStatistics.create(k, classes).update(H[:-5], Y[:-5])
    scatter = SolvedScatter.of(
        ClassGeometry.of(first, Y[:-5].sum(dim=0)), alpha
    ).follow(H[-5:], codes[-5:])
    queries = H[:20] + 0.5
    outside = torch.linspace(0.0, 2.0, 20, dtype=torch.float64)
    terms = NoveltyTerms.of(scatter, lambda: H.T @ H)
    got = terms.of_rows(queries, outside).numpy()

    counts = np.bincount(codes.numpy()).astype(float)
    free = len(codes) - classes
    means = (Y.T @ H).numpy() / counts[:, None]
    centre = H.numpy().mean(axis=0)
    residuals = H.numpy() - means[codes.numpy()]
    inverse = free * np.linalg.inv(residuals.T @ residuals + alpha * np.eye(k))
    g = queries.numpy() - centre
    d = means - centre
    a = np.einsum("ni,ij,nj->n", g, inverse, g) + free * outside.numpy() / alpha
    z = g @ inverse @ d.T
    gram = d @ inverse @ d.T
    inside = np.einsum("nc,cd,nd->n", z, np.linalg.pinv(gram, rcond=1e-10), z)
    as_one = a - np.einsum(
        "nc,cd,nd->n", z, np.linalg.inv(gram + np.diag(free / counts)), z
    )
    size = gram.diagonal()
    unsure = 1.0 + 1.0 / counts
    away = (a[:, None] - 2 * z + size) / unsure
    np.testing.assert_allclose(got[:, 0], away.min(axis=1) - as_one, rtol=1e-6)
    np.testing.assert_allclose(
        got[:, 1], -(z / np.sqrt(a[:, None] * size)).max(axis=1), rtol=1e-6
    )
    np.testing.assert_allclose(
        got[:, 2], -(z / np.sqrt(inside[:, None] * size)).max(axis=1), rtol=1e-6
    )
    np.testing.assert_allclose(
        got[:, 3], ((inside[:, None] - 2 * z + size) / unsure).min(axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        got[:, 4] * terms.expected_energy, a - inside, atol=1e-5 * a.max()
    )
    np.testing.assert_allclose(got[:, 5], 1 / counts[away.argmin(axis=1)])


@pytest.mark.parametrize(
    "rows", [30, 6]
)  # the means of few rows are mostly noise where classes lie close together
def test_drawn_terms_match_new_rows_for_any_number_of_classes(
    rows: int,
) -> None:
    k = 20
    source = torch.Generator().manual_seed(0)
    for classes in (10, 19, 20, 21, 60):
        codes = torch.arange(classes).repeat(rows)
        centres = (2.0 if rows == 30 else 0.7) * torch.randn(
            classes, k, generator=source, dtype=torch.float64
        )
        H = centres[codes] + torch.randn(
            len(codes), k, generator=source, dtype=torch.float64
        )
        Y = torch.nn.functional.one_hot(codes, classes).double()
        stats = RidgeStatistics.create(k, classes).update(H, Y)
        scatter = SolvedScatter.of(ClassGeometry.of(stats, Y.sum(dim=0)), 0.1)
        terms = NoveltyTerms.of(scatter, lambda gram=stats.gram: gram)
        new = centres[codes] + torch.randn(
            len(codes), k, generator=source, dtype=torch.float64
        )
        expected = terms.draw_terms().mean(dim=0)
        actual = terms.of_rows(new).mean(dim=0)
        assert float(expected[3]) == pytest.approx(float(actual[3]), rel=0.25)
        assert float(expected[1]) == pytest.approx(float(actual[1]), abs=0.06)
