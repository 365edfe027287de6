import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from evergrow.core.errors import NumericalError
from evergrow.head.linalg import ridge_choice as module
from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh
from evergrow.head.linalg.ridge_choice import Spectrum, alpha_grid, choose_by_gcv, choose_by_holdout
from evergrow.head.linalg.statistics import RidgeStatistics


@pytest.fixture
def data(rng):
    H = torch.randn(120, 15, generator=rng, dtype=torch.float64)
    Y = H @ torch.randn(15, 3, generator=rng, dtype=torch.float64)
    return H, Y + 2.0 * torch.randn(120, 3, generator=rng, dtype=torch.float64)


@pytest.fixture
def stats(data):
    return RidgeStatistics.create(15, 3).update(*data).reduced()


def test_cholesky_reports_the_jitter_it_needed():
    good = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert safe_cholesky(good).jitter == 0.0
    v = torch.randn(20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular = v @ v.T
    singular[0, 0] -= 1e-15
    factor = safe_cholesky(singular)
    assert 0.0 < factor.jitter < 1e-8
    with pytest.raises(NumericalError):
        safe_cholesky(singular, allow_jitter=False)


def test_cholesky_gives_up_with_the_usual_causes():
    with pytest.raises(NumericalError, match="Usual causes: alpha too small"):
        safe_cholesky(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))


@pytest.mark.parametrize("block", [1, 4, 100])
def test_trace_inverse(stats, block):
    factor = safe_cholesky(stats.gram, shift=0.7)
    truth = torch.linalg.inv(stats.gram + 0.7 * torch.eye(15, dtype=torch.float64)).trace()
    assert factor.trace_inverse(block) == pytest.approx(float(truth), rel=1e-10)


def test_eigh_restores_the_thread_count(stats):
    threads = torch.get_num_threads()
    symmetric_eigh(stats.gram)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("alpha", [1e-4, 0.5, 300.0])
def test_path_equals_scikit_learn(data, stats, alpha):
    H, Y = (t.numpy() for t in data)
    path = Spectrum.of(stats)
    ridge = Ridge(alpha=alpha, fit_intercept=False).fit(H, Y)
    assert np.allclose(stats.solve(alpha).weights.numpy(), ridge.coef_.T, rtol=1e-8, atol=1e-10)
    assert path.rss(alpha) == pytest.approx(((Y - ridge.predict(H)) ** 2).sum(), rel=1e-9)


def test_gcv_by_hand_and_by_cholesky(data, stats):
    H, Y = (t.numpy() for t in data)
    hat = H @ np.linalg.inv(H.T @ H + 3.0 * np.eye(15)) @ H.T
    truth = ((Y - hat @ Y) ** 2).sum() / 120 / (1 - np.trace(hat) / 120) ** 2
    assert Spectrum.of(stats).gcv(3.0) == pytest.approx(truth, rel=1e-9)
    assert module.gcv_by_cholesky(stats, 3.0) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("alpha", [1e-8, 1e-4, 1.0])
def test_gcv_with_fewer_rows_than_features(rng, alpha):
    """The fit is nearly perfect here: against the dual form, which subtracts nothing."""
    H = torch.randn(20, 60, generator=rng, dtype=torch.float64)
    Y = torch.eye(4, dtype=torch.float64)[torch.arange(20) % 4]
    state = RidgeStatistics.create(60, 4).update(H, Y)
    M = alpha * torch.linalg.inv(H @ H.T + alpha * torch.eye(20, dtype=torch.float64))
    truth = 20 * float((M @ Y).square().sum()) / float(M.trace()) ** 2
    assert Spectrum.of(state.reduced()).gcv(alpha) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("way", ["spectrum", "cholesky"])
def test_gcv_choice_is_not_fooled_by_samples_that_occur_twice(rng, way, monkeypatch):
    if way == "cholesky":
        monkeypatch.setattr(module, "EIGEN_LIMITS", {})
    H = torch.randn(200, 400, generator=rng, dtype=torch.float64) * torch.logspace(0, -1.5, 400, dtype=torch.float64)
    codes = (H[:, 0] + 0.5 * torch.randn(200, generator=rng, dtype=torch.float64) > 0).long()
    Y = torch.eye(2, dtype=torch.float64)[codes]
    choices = []
    for rows in (torch.arange(200), torch.cat([torch.arange(200), torch.tensor([0])])):
        state = RidgeStatistics.create(400, 2).update(H[rows], Y[rows])
        choices.append(choose_by_gcv(state, float(H.square().sum()) / 200))
    assert 0.3 < choices[1].minimiser / choices[0].minimiser < 3.0


def test_gcv_choice_is_near_leave_one_out(data, stats):
    """RidgeCV's exact leave-one-out is the independent judge of the minimiser."""
    grid = alpha_grid(1.0)
    choice = choose_by_gcv(stats, 1.0)
    loo = RidgeCV(alphas=grid, fit_intercept=False).fit(*(t.numpy() for t in data)).alpha_
    assert 0.1 <= choice.minimiser / loo <= 10.0
    assert choice.minimiser / 10**0.5 <= choice.alpha * (1 + 1e-9)
    assert choice.alpha <= choice.minimiser


def test_walking_finds_what_the_whole_grid_does(stats, monkeypatch):
    whole = choose_by_gcv(stats, 1.0)
    monkeypatch.setattr(module, "EIGEN_LIMITS", {})
    walk = choose_by_gcv(stats, 1.0)
    assert walk.minimiser == whole.minimiser
    assert walk.alpha == whole.alpha
    assert len(walk.tried) < len(alpha_grid(1.0))


def test_holdout_counts_errors(rng):
    H = torch.randn(60, 5, generator=rng, dtype=torch.float64)
    codes = (H[:, 0] > 0).long()
    Y = torch.eye(2, dtype=torch.float64)[codes]
    H[:, 1:] *= torch.tensor([30.0, 10.0, 3.0, 1.0])  # the informative column is the smallest
    state = RidgeStatistics.create(5, 2).update(H[:40], Y[:40])
    grid = [1e-3, 1.0, 1e3, 1e6]
    choice = choose_by_holdout(state, H[40:], Y[40:], grid)
    errors = {a: float(((H[40:] @ state.solve(a).weights).argmax(1) != codes[40:]).double().mean()) for a in grid}
    assert errors[choice.alpha] == min(errors.values()) < max(errors.values())


def test_eigenvalues_that_cannot_be_computed_are_a_typed_error():
    with pytest.raises(NumericalError, match="eigenvalues"):
        symmetric_eigh(torch.full((4, 4), float("nan"), dtype=torch.float64))
