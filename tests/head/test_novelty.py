"""Weights of novelty from sums: what they favour, in any order, and what far things get."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evergrow.core.errors import FileFormatError
from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.novelty import DEFAULT_WEIGHTS
from evergrow.head.readout import NoveltyTerms
from evergrow.learner.novelty_pool import KnownTerms, NoveltyPool, UnknownTerms


def known(seed: int, n: int = 300, size: int = 1000) -> KnownTerms:
    return KnownTerms.of(
        np.random.default_rng(seed).normal(size=(n, 6)) * [3, 1, 1, 2, 0.3, 0.01] + 1.0,
        size,
    )


def test_terms_that_tell_new_classes_get_the_weight() -> None:
    pool = NoveltyPool((known(0),))
    np.testing.assert_allclose(pool.weights(), DEFAULT_WEIGHTS / 4)
    rows = (
        np.random.default_rng(1).normal(size=(200, 6)) * [3, 1, 1, 2, 0.3, 0.01] + 1.0
    )
    rows[:, 1] += 3.0
    rows[:, 0] -= 6.0  # of less than no use
    found = pool.measured(rows, 1000)
    assert found is not None
    weights = NoveltyPool(pool.known, (found,)).weights()
    assert weights.argmax() == 1
    assert weights[1] > 0.5
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert NoveltyPool().measured(rows, 10) is None


def test_the_order_of_batches_plays_no_part() -> None:
    parts = tuple(known(seed, n=50 + seed, size=500 + 100 * seed) for seed in range(5))
    pool = NoveltyPool(parts)
    new = np.random.default_rng(9).normal(size=(60, 6)) + 2.0
    unknown = tuple(
        found
        for size in (500, 700, 900)
        if (found := pool.measured(new + size / 500, size)) is not None
    )
    one = NoveltyPool(parts, unknown).standard()
    other = NoveltyPool(parts[::-1], (unknown[1], unknown[2], unknown[0])).standard()
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-9)
    np.testing.assert_allclose(one.score(new), other.score(new), rtol=1e-9)


def test_far_things_and_what_is_no_number_are_unknown() -> None:
    standard = NoveltyPool((known(0),)).standard()
    usual = np.ones((3, 6))
    usual[1, 4] = 1.0 + 0.3 * 60  # sixty spreads of energy outside the span
    usual[2] = np.finfo(np.float64).max
    scores = standard.score(usual)
    assert abs(scores[0]) < 1
    assert scores[1] > 40
    assert scores[2] > 1e300
    assert standard.score(np.full((1, 6), np.nan))[0] > 1e300


def test_few_rows_of_the_nearest_class_are_allowed_for() -> None:
    rng = np.random.default_rng(0)
    inverse = rng.choice([0.02, 0.2], size=2000)
    terms = np.concatenate(
        [rng.normal(size=(2000, 5)) + 10 * inverse[:, None], inverse[:, None]], axis=1
    )
    scores = NoveltyPool((KnownTerms.of(terms, 2000),)).standard().score(terms)
    assert scores.mean() == pytest.approx(0.0, abs=1e-9)
    few, many = scores[inverse == 0.2], scores[inverse == 0.02]
    assert few.mean() - many.mean() < 0.3


def test_a_term_that_never_varies_decides_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 6))
    rows[:, 2] = -1.0
    standard = NoveltyPool((KnownTerms.of(rows, 100),)).standard()
    off = rows.copy()
    off[:, 2] += 1e-8
    assert np.abs(standard.score(off) - standard.score(rows)).max() < 1e-3


def test_moments_that_no_rows_have_are_refused_when_they_are_read() -> None:
    apart = np.full((6, 6), -0.9) + 1.9 * np.eye(
        6
    )  # six terms cannot all fall where any other rises
    with pytest.raises(FileFormatError, match="not those of any rows"):
        KnownTerms(50, 100, (0.0,) * 6, tuple(apart.ravel())).check()
    with pytest.raises(FileFormatError, match="not that of any rows"):
        UnknownTerms(50, 100, (0.0,) * 5, tuple(apart[:5, :5].ravel())).check()


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_rounding_is_not_refused(offset: float) -> None:
    rows = (
        np.random.default_rng(0).normal(size=(5000, 6))
        * [1e-6, 1.0, 0.0, 1e6, 1.0, 0.01]
        + offset
    )
    rows[:, 4] = rows[:, 1]  # two terms that are one
    found = KnownTerms.of(rows, 100)
    found.check()
    unknown = NoveltyPool((found,)).measured(rows[:3], 100)
    assert unknown is not None
    unknown.check()
    assert np.isfinite(NoveltyPool((found,), (unknown,)).weights()).all()


@pytest.mark.parametrize("classes", [4, 9, 30])
def test_terms_are_those_of_their_definition_with_more_classes_than_coordinates_too(
    classes: int,
) -> None:
    k, alpha = 9, 0.3
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
    queries, outside = H[:20] + 0.5, torch.linspace(0.0, 2.0, 20, dtype=torch.float64)
    terms = NoveltyTerms.of(scatter, lambda: H.T @ H)
    got = terms.of_rows(queries, outside).numpy()

    counts, free = np.bincount(codes.numpy()).astype(float), len(codes) - classes
    means = (Y.T @ H).numpy() / counts[:, None]
    centre = H.numpy().mean(axis=0)
    residuals = H.numpy() - means[codes.numpy()]
    inverse = free * np.linalg.inv(residuals.T @ residuals + alpha * np.eye(k))
    g, d = queries.numpy() - centre, means - centre
    a = np.einsum("ni,ij,nj->n", g, inverse, g) + free * outside.numpy() / alpha
    z, gram = g @ inverse @ d.T, d @ inverse @ d.T
    inside = np.einsum("nc,cd,nd->n", z, np.linalg.pinv(gram, rcond=1e-10), z)
    as_one = a - np.einsum(
        "nc,cd,nd->n", z, np.linalg.inv(gram + np.diag(free / counts)), z
    )
    size, unsure = gram.diagonal(), 1.0 + 1.0 / counts
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
        got[:, 4] * terms.expected, a - inside, atol=1e-5 * a.max()
    )
    np.testing.assert_allclose(got[:, 5], 1 / counts[away.argmin(axis=1)])


@pytest.mark.parametrize(
    "rows", [30, 6]
)  # the means of few rows are mostly noise where classes lie close together
def test_what_is_expected_of_known_rows_holds_with_any_number_of_classes(
    rows: int,
) -> None:
    """Rows drawn from the statistics are about as far from the means as rows that were not learned."""
    k, source = 20, torch.Generator().manual_seed(0)
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
        expected, actual = (
            terms.expected_rows().mean(dim=0),
            terms.of_rows(new).mean(dim=0),
        )
        assert float(expected[3]) == pytest.approx(float(actual[3]), rel=0.25)
        assert float(expected[1]) == pytest.approx(float(actual[1]), abs=0.06)
