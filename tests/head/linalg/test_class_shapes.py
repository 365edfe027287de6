"""Shapes of classes: sums that add and subtract exactly, and what their terms do at the ends."""

from __future__ import annotations

import pytest
import torch

from evergrow.core.errors import NumericalError, UnlearnError
from evergrow.head.linalg import class_shapes as module
from evergrow.head.linalg.class_shapes import ClassShapes, ShapeScores


@pytest.fixture
def rows():
    source = torch.Generator().manual_seed(0)
    codes = torch.arange(90) % 3
    P = torch.randn(90, 4, generator=source, dtype=torch.float64)
    return P * torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 1, 1, 1]], dtype=torch.float64)[codes] + codes[
        :, None
    ], codes


def learn(P, codes, classes=3):
    k = P.shape[1]
    none = ClassShapes(P.new_zeros(k), torch.eye(k).to(P), P.new_zeros(0, k), P.new_zeros(0, k * (k + 1) // 2))
    return none.group([[]] * classes).add(P, codes)


def test_sums_are_those_of_the_rows(rows):
    P, codes = rows
    shapes, counts = learn(P, codes), torch.bincount(codes)
    for code in range(3):
        mine = P[codes == code]
        torch.testing.assert_close(shapes.scatters([code], counts)[0], torch.cov(mine.T) * (len(mine) - 1))
    torch.testing.assert_close(shapes.pooled(counts), shapes.scatters([0, 1, 2], counts).sum(dim=0))


def test_learning_merging_and_unlearning_are_exact(rows):
    P, codes = rows
    whole, first, second = learn(P, codes), learn(P[:40], codes[:40]), learn(P[40:], codes[40:])
    torch.testing.assert_close(first.merge(second).squares, whole.squares)
    torch.testing.assert_close(first.add(P[40:], codes[40:]).squares, whole.squares)
    left = whole.remove(P[40:], codes[40:], torch.bincount(codes))
    torch.testing.assert_close(left.squares, first.squares)
    torch.testing.assert_close(left.sums, first.sums)


def test_rows_never_learned_cannot_go(rows):
    P, codes = rows
    with pytest.raises(UnlearnError):
        learn(P, codes).remove(50.0 + P[:3], codes[:3], torch.bincount(codes))


def test_nothing_is_refused_without_bound(rows):
    P, codes = rows
    scores = ShapeScores(learn(P, codes), torch.bincount(codes), strength=10.0)
    far = scores.add(1000.0 * P[:1], torch.zeros(1, 3, dtype=torch.float64))
    torch.testing.assert_close(far.min(), torch.tensor(-20.0 * 29.0 / 39.0, dtype=torch.float64))


def test_strength_follows_the_data():
    source = torch.Generator().manual_seed(3)
    codes = torch.arange(2000) % 20
    alike = torch.randn(2000, 6, generator=source, dtype=torch.float64)
    scale = torch.exp(torch.randn(20, 6, generator=source, dtype=torch.float64))
    different = alike * scale[codes]
    strengths = [ShapeScores(learn(P, codes, 20), torch.bincount(codes)).strength for P in (alike, different)]
    assert strengths[0] > 10 * strengths[1]


def test_only_the_likeliest_classes_are_looked_at(rows, monkeypatch):
    P, codes = rows
    monkeypatch.setattr(module, "LIKELIEST", 2)
    scores = ShapeScores(learn(P, codes), torch.bincount(codes))
    linear = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)
    got = scores.add(P[:1], linear)
    assert sorted(scores._own) == [0, 1]
    assert float(got[0, 2]) < float(got[0, :2].max())
    terms = got - linear
    assert float(terms[0, 2]) == pytest.approx(min(float(terms[0, :2].min()), 0.0))


def test_a_class_of_one_row_has_no_shape(rows):
    P, codes = rows
    shapes = learn(P, codes).group([[0], [1], [2], []]).add(P[:1] + 9, torch.tensor([3]))
    scores = ShapeScores(shapes, torch.tensor([30, 30, 30, 1]))
    got = scores.add(P, torch.zeros(90, 4, dtype=torch.float64))
    torch.testing.assert_close(got[:, 3], torch.zeros(90, dtype=torch.float64))


@pytest.mark.parametrize("P", [torch.ones(6, 3).double(), torch.zeros(6, 3).double()])
def test_copies_add_nothing(P):
    codes = torch.arange(6) % 2
    scores = ShapeScores(learn(P, codes, 2), torch.bincount(codes))
    linear = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(scores.add(P, linear), linear)


def test_sums_that_no_samples_have_are_refused(rows):
    P, codes = rows
    shapes, counts = learn(P, codes), torch.bincount(codes)
    shapes.sums[0, -1] += 100.0  # the mean then lies where the squares leave no room for it
    with pytest.raises(NumericalError, match="must be those of some samples"):
        ShapeScores(shapes, counts, strength=1.0).quadratics([0])
