"""The chosen ridge against a search over the whole grid with exact traces."""

from __future__ import annotations

import math

import pytest
import torch

from evergrow.head.linalg import ridge_choice as module
from evergrow.head.linalg.ridge_choice import choose_ridge
from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.linalg.statistics import RidgeStatistics


def exact(geometry, energy):
    """Return the step of every quantity by eigenvalues and dense inverses."""
    counts, S = geometry.counts, geometry.scatter
    n, order = float(counts.sum()), S.shape[0]
    free = n - len(counts)
    D = geometry.means - (geometry.means @ counts / n)[:, None]
    T, Q = S + (D * counts) @ D.T, D * counts
    targets = n - float(counts.square().sum()) / n
    steps = range(-24, 9)
    scores, leverages = {}, {}
    for step in steps:
        alpha = energy * 10 ** (step / 4)
        inverse = torch.linalg.inv(T + alpha * torch.eye(order, dtype=T.dtype))
        W = inverse @ Q
        rss = targets - float((W * Q).sum()) - alpha * float(W.square().sum())
        slack = n - 1 - order + alpha * float(inverse.diagonal().sum())
        scores[step] = n * rss / slack**2
        values = torch.linalg.eigvalsh(S).clamp_min(0)
        leverages[step] = float((values / (values + alpha)).sum()) / free
    return scores, leverages


@pytest.mark.parametrize(("classes", "width", "rows"), [(10, 60, 40), (30, 200, 8), (5, 40, 30), (40, 50, 30)])
@pytest.mark.parametrize("start", [None, -9, 6])
def test_against_the_whole_grid(make_classes, classes, width, rows, start, monkeypatch):
    made = make_classes(classes, width, rows)
    energy = float((made.rows - made.rows.mean(dim=0)).square().sum(dim=1).mean())
    geometry = made.geometry()
    factored, factor = [], ClassGeometry.factor
    monkeypatch.setattr(ClassGeometry, "factor", lambda self, alpha: factored.append(alpha) or factor(self, alpha))
    alpha, step = choose_ridge(geometry, energy, start)
    scores, leverages = exact(geometry, energy)
    allowed = min(step for step in leverages if leverages[step] <= module.MAX_LEVERAGE)
    best = min((step for step in scores if step >= allowed), key=scores.__getitem__)
    wanted = max(best - 2, allowed)
    assert abs(step - wanted) <= 1
    assert alpha == pytest.approx(energy * 10 ** (step / 4))
    assert len(factored) <= 12
    factored.clear()
    assert choose_ridge(geometry, energy, step) == (alpha, step)  # from where it ended little is needed
    assert len(factored) <= 5
    monkeypatch.setattr(module, "SINGLE_ABOVE", 0)
    monkeypatch.setattr(ClassGeometry, "factor", None)
    assert choose_ridge(geometry, energy, start)[1] == step


def test_many_classes_take_the_other_way(make_classes, monkeypatch):
    made = make_classes(10, 60, 40)
    search = module._Search(made.geometry(), 2.0)
    one = search.gcv(-3)
    other = module._Search(made.geometry(), 2.0)
    other.width = 1  # as if there were more classes than columns
    assert one == pytest.approx(other.gcv(-3), rel=0.02)  # two estimates of a trace


def test_one_row_per_class_is_degenerate(make_classes):
    made = make_classes(8, 5, 1)
    assert choose_ridge(made.geometry(), 3.0) == (3.0, 0)


def test_constant_rows_are_degenerate(make_classes):
    made = make_classes(3, 4, 5)
    made.rows = torch.ones_like(made.rows)
    assert math.isfinite(choose_ridge(made.geometry(), 0.0)[0])


@pytest.mark.parametrize("rows", [4, 20])  # with exact traces and with estimated ones
@pytest.mark.parametrize("classes", [8, 40])
def test_the_form_of_the_same_rows_does_not_matter(make_classes, rows, classes):
    made = make_classes(classes, 1100, rows)
    Y = torch.nn.functional.one_hot(made.codes, classes).double()
    compact = RidgeStatistics.create(1100, classes, "compact").update(made.rows, Y)
    searches = [
        module._Search(geometry, 9.0) for geometry in (made.geometry(), ClassGeometry.of(compact, Y.sum(dim=0)))
    ]
    assert searches[1].signs.shape[0] < searches[0].signs.shape[0] == 1100
    assert {search.is_exact for search in searches} == {rows == 4 or classes == 8}
    for step in (-8, -4, 0):
        mine, other = (search.judge(step) for search in searches)
        assert mine == pytest.approx(other, rel=1e-8)
