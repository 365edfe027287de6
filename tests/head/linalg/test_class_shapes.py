"""Class shapes: sums add and subtract exactly, and terms are bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evergrow.core.errors import FileFormatError, NumericalError
from evergrow.head.linalg import shape_scores as module
from evergrow.head.linalg.class_shapes import ClassShapes, tiles
from evergrow.head.linalg.shape_scores import ShapeScores


@pytest.fixture
def rows():
    source = torch.Generator().manual_seed(0)
    codes = torch.arange(90) % 3
    P = torch.randn(90, 4, generator=source, dtype=torch.float64)
    return P * torch.tensor(
        [[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 1, 1, 1]], dtype=torch.float64
    )[codes] + codes[:, None], codes


def learn(P, codes, classes=3):
    k = P.shape[1]
    empty = ClassShapes(
        centre=P.new_zeros(k),
        basis=torch.eye(k).to(P),
        sums=P.new_zeros(0, k),
        ranks=torch.zeros(0, dtype=torch.int64),
        factors=P.new_zeros(0, k),
        triangles=P.new_zeros(0, k * (k + 1) // 2),
    )
    return empty.group([[]] * classes).add(P, codes)


def test_terms_of_distant_rows_stop_at_the_floor(rows):
    P, codes = rows
    scores = ShapeScores(learn(P, codes), torch.bincount(codes), strength=10.0)
    far = scores.add(1000.0 * P[:1], torch.zeros(1, 3, dtype=torch.float64))
    torch.testing.assert_close(
        far.min(), torch.tensor(-20.0 * 29.0 / 39.0, dtype=torch.float64)
    )


def test_strength_is_larger_if_classes_have_equal_shapes():
    source = torch.Generator().manual_seed(3)
    codes = torch.arange(2000) % 20
    alike = torch.randn(2000, 6, generator=source, dtype=torch.float64)
    scale = torch.exp(torch.randn(20, 6, generator=source, dtype=torch.float64))
    different = alike * scale[codes]
    strengths = [
        ShapeScores(learn(P, codes, 20), torch.bincount(codes)).strength
        for P in (alike, different)
    ]
    assert strengths[0] > 10 * strengths[1]


def test_only_the_likeliest_classes_get_terms(rows, monkeypatch):
    P, codes = rows
    monkeypatch.setattr(module, "LIKELIEST", 2)
    scores = ShapeScores(learn(P, codes), torch.bincount(codes))
    linear = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)
    got = scores.add(P[:1], linear)
    assert float(got[0, 2]) < float(got[0, :2].max())
    terms = got - linear
    assert float(terms[0, 2]) == pytest.approx(min(float(terms[0, :2].min()), 0.0))


@pytest.mark.parametrize("P", [torch.ones(6, 3).double(), torch.zeros(6, 3).double()])
def test_copies_of_one_row_give_no_terms(P):
    codes = torch.arange(6) % 2
    scores = ShapeScores(learn(P, codes, 2), torch.bincount(codes))
    linear = torch.randn(
        6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(scores.add(P, linear), linear)


# -- classes of few rows ---------------------------------------------------------------

K = 24
COUNTS = [1, 5, 12, 40]


@pytest.fixture
def uneven():
    """Three classes with factors (at most 12 rows) and one with a triangle."""
    source = torch.Generator().manual_seed(1)
    codes = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))
    scale = torch.linspace(3.0, 0.1, K, dtype=torch.float64)
    P = (
        torch.randn(len(codes), K, generator=source, dtype=torch.float64) * scale
        + codes[:, None]
    )
    return P, codes, 0.5 + torch.rand(len(codes), generator=source, dtype=torch.float64)


def by_hand(P, codes, weights=None):
    if weights is None:
        heavy = P
    else:
        heavy = P * weights[:, None]
    return torch.stack([heavy[codes == code].T @ P[codes == code] for code in range(4)])


def assert_squares(shapes, expected):
    # Entry by entry, to rounding of the largest variance.
    torch.testing.assert_close(
        shapes.squares(torch.arange(4)),
        expected,
        rtol=0,
        atol=1e-12 * float(expected.abs().max()),
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_differences_are_exact_with_factors_and_triangles(uneven, weighted):
    P, codes, weights = uneven
    weights = weights if weighted else None

    def some(rows):
        return P[rows], codes[rows], 1.0, None if weights is None else weights[rows]

    none = learn(P[:0], codes[:0], 4)
    whole = none.add(P, codes, weights=weights)
    assert whole.ranks.tolist() == [1, 5, 12, K]
    assert whole.factors.shape == (1 + 5 + 12, K)
    assert whole.triangles.shape == (1, K * (K + 1) // 2)
    expected = by_hand(P, codes, weights)
    assert_squares(whole, expected)
    order = torch.randperm(len(P), generator=torch.Generator().manual_seed(2))
    parts = [none.add(*some(rows)) for rows in order.tensor_split(5)]
    merged = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3]).merge(parts[4])
    assert_squares(merged, expected)
    torch.testing.assert_close(merged.sums, whole.sums)
    assert_squares(merged.merge(parts[4], -1).merge(parts[4]), expected)
    gone = torch.tensor([1, 2, 7, 17, 18, 19, 50])
    left = torch.ones(len(P), dtype=torch.bool)
    left[gone] = False
    removed = whole.add(
        P[gone], codes[gone], -1.0, None if weights is None else weights[gone]
    )
    assert_squares(
        removed,
        by_hand(P[left], codes[left], None if weights is None else weights[left]),
    )
    assert removed.ranks.tolist() == [1, 3, 10, K]
    both = whole.group([[0, 1], [2], [], [1, 2, 3]])
    assert both.ranks.tolist() == [6, 12, 0, K]
    torch.testing.assert_close(
        both.squares(torch.tensor([0, 3])),
        torch.stack([expected[:2].sum(0), expected[1:].sum(0)]),
    )


def test_factors_depend_on_the_sum_and_contain_no_row(uneven):
    P, codes, _ = uneven
    mine = P[codes == 1]
    # A plain QR factorisation would keep rows whose first columns are zero.
    mine[:, 0] = 0.0
    turn = torch.linalg.qr(
        torch.randn(
            5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64
        )
    )[0]
    one, other = (
        learn(rows, torch.zeros(5, dtype=torch.int64), 1).factors
        for rows in (mine, turn @ mine)
    )
    torch.testing.assert_close(one, other)
    assert float(torch.cdist(one, torch.cat([mine, -mine])).min()) > 0.1


def test_terms_equal_log_likelihood_ratios_of_explicit_covariances(uneven):
    P, codes, _ = uneven
    counts = torch.tensor(COUNTS).double()
    nu = 7.0
    shapes = learn(P, codes, 4)
    queries = P[::5] + 0.3
    got = ShapeScores(shapes, counts, nu).add(
        queries, torch.zeros(len(queries), 4).double()
    )
    scatters = [
        torch.cov(P[codes == code].T) * (n - 1) if n > 1 else P.new_zeros(K, K)
        for code, n in enumerate(COUNTS)
    ]
    common = sum(scatters) / (counts.sum() - 4)
    common = common + 0.1 * common.diagonal().mean() * torch.eye(K)
    terms = torch.zeros_like(got)
    for code, n in enumerate(COUNTS):
        own = (scatters[code] + nu * common) / (n - 1 + nu)
        away = queries - P[codes == code].mean(dim=0)
        ratio = (away @ (torch.linalg.inv(common) - torch.linalg.inv(own)) * away).sum(
            dim=1
        )
        ratio = (ratio + torch.logdet(common) - torch.logdet(own)) / 2
        terms[:, code] = (
            (n - 1)
            / (n - 1 + nu)
            * min(max((n - 10) / 20, 0.0), 1.0)
            * ratio.clamp_min(-20.0)
        )
    torch.testing.assert_close(got, terms)
    scores = ShapeScores(shapes, counts, nu)
    away = queries - P[codes == 2].mean(dim=0)
    matrix, constant = scores.quadratics([2])[0]
    found = (away @ matrix * away).sum(dim=1) + constant
    torch.testing.assert_close(torch.maximum(found, scores.floors[2]), terms[:, 2])


def test_strength_does_not_depend_on_factors_or_triangles(uneven):
    P, codes, _ = uneven
    shapes = learn(P, codes, 4)
    found = ShapeScores(shapes, torch.tensor(COUNTS)).strength
    rows, columns = torch.triu_indices(K, K)
    whole = replace(
        shapes,
        ranks=torch.full((4,), K),
        factors=shapes.factors[:0],
        triangles=by_hand(P, codes)[:, rows, columns],
    )
    whole.check()
    assert ShapeScores(whole, torch.tensor(COUNTS)).strength == found


def test_removing_rows_never_learned_is_detected(uneven):
    P, codes, _ = uneven
    learned = learn(P, codes, 4)
    with pytest.raises(NumericalError, match="not those of any samples"):  # a factor
        learned.add(50.0 + P[7:9], codes[7:9], -1.0)
    removed = learned.add(50.0 + P[20:23], codes[20:23], -1.0)  # a triangle
    assert not removed.is_plausible(torch.tensor(COUNTS))


def test_impossible_moments_are_rejected(uneven):
    P, codes, _ = uneven
    shapes = learn(P, codes, 4)
    counts = torch.tensor(COUNTS)
    shapes.check()
    assert shapes.is_plausible(counts)
    for ranks in (
        [1, 5, 13, K],
        [-1, 5, 12, K],
        [2**62, 5, 12, K],
        [5, 1, 12, 12],
        [2, 5, 12, K],
    ):
        with pytest.raises(FileFormatError, match="moment"):
            replace(shapes, ranks=torch.tensor(ranks)).check()
    for factor in (0.1, 1e200):  # negative variances, overflow
        altered = replace(
            shapes, factors=factor * shapes.factors, triangles=factor * shapes.triangles
        )
        assert not altered.is_plausible(counts)
    with pytest.raises(FileFormatError, match="moment"):
        replace(shapes, triangles=shapes.triangles[:, 1:]).check()
    shapes.sums[2:] += 3.0  # the means then exceed the second moments
    for code in (2, 3):
        with pytest.raises(NumericalError, match="not those of any samples"):
            ShapeScores(shapes, counts, strength=1.0).quadratics([code])


@pytest.mark.parametrize("total", [1, 2**22])
def test_tiles_have_every_row_of_a_class_once_in_order(monkeypatch, total):
    monkeypatch.setattr("evergrow.head.linalg.class_shapes._TILE_NUMBERS", total)
    source = torch.Generator().manual_seed(0)
    classes = torch.randint(12, (300,), generator=source) ** 2 // 12
    found = {}
    for tile in tiles(classes, 20, width=3):
        for code, rows, inside in zip(tile.classes, tile.rows, tile.inside):
            assert int(code) not in found
            found[int(code)] = rows[inside].tolist()
        assert int(tile.inside.sum()) >= 0.8 * tile.inside.numel()
    expected = {
        int(code): (classes == code).nonzero().ravel().tolist()
        for code in classes.unique()
    }
    assert found == expected
    wanted = torch.arange(20) == 3
    assert [tile.classes.tolist() for tile in tiles(classes, 20, 3, 0, wanted)] == [[3]]
