"""The chosen ridge, against scikit-learn, leave-one-out and exhaustive search."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from evergrow.core.errors import NumericalError
from evergrow.head.linalg import ridge_choice as module
from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh
from evergrow.head.linalg.ridge_choice import (
    alpha_grid,
    choose_by_gcv,
    choose_ridge,
    gcv_scores,
)
from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
from evergrow.head.linalg.statistics import RidgeStatistics


@pytest.fixture
def data(rng):
    H = torch.randn(120, 15, generator=rng, dtype=torch.float64)
    Y = H @ torch.randn(15, 3, generator=rng, dtype=torch.float64)
    return H, Y + 2.0 * torch.randn(120, 3, generator=rng, dtype=torch.float64)


@pytest.fixture
def stats(data):
    return RidgeStatistics.create(15, 3).update(*data)


def test_cholesky_reports_the_jitter_it_needed():
    good = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert safe_cholesky(good).jitter == 0.0
    v = torch.randn(
        20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    singular = v @ v.T
    singular[0, 0] -= 1e-15
    factor = safe_cholesky(singular)
    assert 0.0 < factor.jitter < 1e-8
    with pytest.raises(NumericalError):
        safe_cholesky(singular, allow_jitter=False)


def test_cholesky_error_lists_the_usual_causes():
    with pytest.raises(NumericalError, match="Usual causes: alpha too small"):
        safe_cholesky(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))


@pytest.mark.parametrize("alpha", [1e-4, 0.5, 300.0])
def test_weights_and_scores_equal_scikit_learn(data, stats, alpha):
    H, Y = (t.numpy() for t in data)
    ridge = Ridge(alpha=alpha, fit_intercept=False).fit(H, Y)
    assert np.allclose(
        stats.solve(alpha).weights.numpy(), ridge.coef_.T, rtol=1e-8, atol=1e-10
    )
    hat = H @ np.linalg.inv(H.T @ H + alpha * np.eye(15)) @ H.T
    truth = ((Y - ridge.predict(H)) ** 2).sum() / 120 / (1 - np.trace(hat) / 120) ** 2
    assert gcv_scores(stats, [alpha])[0] == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("alpha", [1e-8, 1e-4, 1.0])
def test_gcv_with_fewer_rows_than_features(rng, alpha):
    """The fit is nearly perfect. The dual form needs no differences."""
    H = torch.randn(20, 60, generator=rng, dtype=torch.float64)
    Y = torch.eye(4, dtype=torch.float64)[torch.arange(20) % 4]
    state = RidgeStatistics.create(60, 4).update(H, Y)
    M = alpha * torch.linalg.inv(H @ H.T + alpha * torch.eye(20, dtype=torch.float64))
    truth = 20 * float((M @ Y).square().sum()) / float(M.trace()) ** 2
    assert gcv_scores(state, [alpha])[0] == pytest.approx(truth, rel=1e-6)


def test_gcv_choice_is_robust_to_duplicate_samples(rng):
    H = torch.randn(200, 400, generator=rng, dtype=torch.float64) * torch.logspace(
        0, -1.5, 400, dtype=torch.float64
    )
    codes = (
        H[:, 0] + 0.5 * torch.randn(200, generator=rng, dtype=torch.float64) > 0
    ).long()
    Y = torch.eye(2, dtype=torch.float64)[codes]
    choices = []
    for rows in (torch.arange(200), torch.cat([torch.arange(200), torch.tensor([0])])):
        state = RidgeStatistics.create(400, 2).update(H[rows], Y[rows])
        choices.append(choose_by_gcv(state, float(H.square().sum()) / 200))
    assert 0.3 < choices[1][1] / choices[0][1] < 3.0


def test_gcv_choice_is_near_leave_one_out(data, stats):
    grid = alpha_grid(1.0)
    alpha, minimiser = choose_by_gcv(stats, 1.0)
    loo = (
        RidgeCV(alphas=grid, fit_intercept=False).fit(*(t.numpy() for t in data)).alpha_
    )
    assert 0.1 <= minimiser / loo <= 10.0
    assert minimiser / 10**0.5 <= alpha * (1 + 1e-9)
    assert alpha <= minimiser


def test_eigenvalues_of_nan_are_a_numerical_error():
    with pytest.raises(NumericalError, match="eigenvalues"):
        symmetric_eigh(torch.full((4, 4), float("nan"), dtype=torch.float64))


# -- the ridge of the denoised readout -------------------------------------------------


def exhaustive(geometry, energy):
    """Return scores and leverages of all steps by dense inverses."""
    counts = geometry.counts
    S = geometry.scatter
    n = float(counts.sum())
    order = S.shape[0]
    free = n - len(counts)
    D = geometry.means - (geometry.means @ counts / n)[:, None]
    T = S + (D * counts) @ D.T
    Q = D * counts
    targets = n - float(counts.square().sum()) / n
    steps = range(-24, 9)
    scores = {}
    leverages = {}
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


@pytest.mark.parametrize(
    ("classes", "width", "rows"),
    [(10, 60, 40), (30, 200, 8), (5, 40, 30), (40, 50, 30)],
)
@pytest.mark.parametrize("start", [None, -9, 6])
def test_search_finds_the_best_step_with_few_factorisations(
    make_classes, classes, width, rows, start, monkeypatch
):
    made = make_classes(classes, width, rows)
    energy = float((made.rows - made.rows.mean(dim=0)).square().sum(dim=1).mean())
    geometry = made.geometry()
    factored = []

    def counted(matrix, *, shift):
        if matrix is geometry.scatter:
            factored.append(shift)
        return safe_cholesky(matrix, shift=shift)

    monkeypatch.setattr(module, "safe_cholesky", counted)
    alpha, step = choose_ridge(geometry, energy, start)
    scores, leverages = exhaustive(geometry, energy)
    allowed = min(step for step in leverages if leverages[step] <= module.MAX_LEVERAGE)
    best = min((step for step in scores if step >= allowed), key=scores.__getitem__)
    wanted = max(best - 2, allowed)
    assert abs(step - wanted) <= 1
    assert alpha == pytest.approx(energy * 10 ** (step / 4))
    assert 0 < len(factored) <= 12
    factored.clear()
    assert choose_ridge(geometry, energy, step) == (alpha, step)
    assert len(factored) <= 6
    monkeypatch.setattr(module, "SINGLE_PRECISION_ABOVE", 0)
    factored.clear()
    assert choose_ridge(geometry, energy, start)[1] == step
    assert not factored  # in single precision alone


def test_both_regressions_give_the_same_score(make_classes, monkeypatch):
    made = make_classes(10, 60, 40)
    search = module._RidgeSearch(made.geometry(), 2.0)
    one = search.gcv(-3)
    other = module._RidgeSearch(made.geometry(), 2.0)
    other.width = 1  # forces the regression on the total scatter
    assert one == pytest.approx(other.gcv(-3), rel=0.02)  # two estimates of a trace


def test_one_row_per_class_gives_the_ridge_of_the_energy(make_classes):
    made = make_classes(8, 5, 1)
    assert choose_ridge(made.geometry(), 3.0) == (3.0, 0)


def test_constant_rows_give_a_finite_ridge(make_classes):
    made = make_classes(3, 4, 5)
    made.rows = torch.ones_like(made.rows)
    assert math.isfinite(choose_ridge(made.geometry(), 0.0)[0])


@pytest.mark.parametrize("rows", [4, 20])  # with exact traces and with estimated ones
@pytest.mark.parametrize("classes", [8, 40])
def test_dense_and_compact_statistics_give_the_same_scores(make_classes, rows, classes):
    made = make_classes(classes, 1100, rows)
    Y = torch.nn.functional.one_hot(made.codes, classes).double()
    compact = RidgeStatistics.create(1100, classes, "compact").update(made.rows, Y)
    searches = [
        module._RidgeSearch(geometry, 9.0)
        for geometry in (made.geometry(), ClassGeometry.of(compact, Y.sum(dim=0)))
    ]
    assert searches[1].signs.shape[0] < searches[0].signs.shape[0] == 1100
    assert {search.is_exact for search in searches} == {rows == 4 or classes == 8}
    for step in (-8, -4, 0):
        mine, other = (search.evaluate(step) for search in searches)
        assert mine == pytest.approx(other, rel=1e-8)


def test_known_ridge_is_kept_within_a_quarter_of_a_decade(make_classes):
    made = make_classes(10, 60, 40)
    geometry = made.geometry()
    energy = float((made.rows - made.rows.mean(dim=0)).square().sum(dim=1).mean())
    alpha, step = choose_ridge(geometry, energy)
    known = SolvedScatter.of(geometry, 1.02 * alpha)  # chosen from slightly fewer rows
    found = choose_ridge(geometry, energy, step, known)
    assert found == (known.alpha, step)
    far = SolvedScatter.of(geometry, alpha * 10**2)
    assert abs(choose_ridge(geometry, energy, step + 8, far)[1] - step) <= 1
