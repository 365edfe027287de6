"""Block weights: scores against dense inverses, slopes against differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from evergrow.head import block_weights as module
from evergrow.head.block_weights import choose_block_weights
from evergrow.head.linalg.statistics import RidgeStatistics

SIZES = (5, 9, 4)


def statistics(
    rows: int, seed: int = 0, noise: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return G, Q and counts. The first block separates classes."""
    source = torch.Generator().manual_seed(seed)
    codes = torch.arange(rows) % 4
    H = noise * torch.randn(rows, sum(SIZES), generator=source, dtype=torch.float64)
    H[torch.arange(rows), codes] += 2.0
    H[torch.arange(rows), 14 + codes] += 0.7
    Y = torch.nn.functional.one_hot(codes, 4).double()
    return H.T @ H, H.T @ Y, Y.sum(dim=0)


def search(
    gram: torch.Tensor, cross: torch.Tensor, counts: torch.Tensor
) -> module._EstimatedSearch:
    mean = cross.sum(dim=1) / counts.sum()
    total = gram - counts.sum() * torch.outer(mean, mean)
    return module._EstimatedSearch(
        total, cross - torch.outer(mean, counts), counts, SIZES, None
    )


def test_estimated_score_equals_a_dense_ridge_per_block(monkeypatch):
    gram, cross, counts = statistics(300)
    made = search(gram, cross, counts)
    ridges = torch.tensor([0.5, 3.0, 1.0], dtype=torch.float64)
    # Orthogonal probes give exact traces.
    made.signs = math.sqrt(len(gram)) * torch.eye(len(gram), dtype=torch.float64)
    monkeypatch.setattr(module, "PROBES", len(gram))
    score, _ = made.log_gcv(ridges)
    T = made.scatter.numpy()
    Q = made.cross.numpy()
    n = 300.0
    R = np.diag(np.repeat(np.exp(ridges.numpy()), SIZES))
    W = np.linalg.inv(T + R) @ Q
    rss = n - float((counts**2).sum()) / n - 2 * np.sum(W * Q) + np.sum(W * (T @ W))
    df = np.trace(np.linalg.inv(T + R) @ T)
    assert score == pytest.approx(math.log(n * rss / (n - 1 - df) ** 2), rel=1e-9)


def test_noise_gets_a_small_weight_and_the_energy_is_kept(monkeypatch):
    gram, cross, counts = statistics(2000)
    evaluations = []
    residual = module._EstimatedSearch.residual
    monkeypatch.setattr(
        module._EstimatedSearch,
        "residual",
        lambda self, ridges: evaluations.append(1) or residual(self, ridges),
    )
    weights = choose_block_weights(gram, cross, counts, SIZES)
    useful, noise, helpful = weights
    assert useful > 3 * noise
    assert helpful > noise
    assert len(evaluations) <= 20
    energies = search(gram, cross, counts).energies
    weighted = float(
        (torch.tensor(weights, dtype=torch.float64).square() * energies).sum()
    )
    assert weighted == pytest.approx(float(energies.sum()))


def test_few_rows_give_nearly_equal_weights():
    near = choose_block_weights(*statistics(12), SIZES)
    far = choose_block_weights(*statistics(2000), SIZES)
    assert max(near) / min(near) < 0.5 * max(far) / min(far)


def test_weights_multiply_the_given_ones():
    gram, cross, counts = statistics(400)
    once = torch.tensor(
        choose_block_weights(gram, cross, counts, SIZES), dtype=torch.float64
    )
    columns = torch.repeat_interleave(once, torch.tensor(SIZES))
    again = choose_block_weights(
        columns[:, None] * gram * columns,
        columns[:, None] * cross,
        counts,
        SIZES,
        once.tolist(),
    )
    assert again == pytest.approx((1.0, 1.0, 1.0), rel=0.15)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_weights_do_not_depend_on_the_scale_of_the_features(scale):
    gram, cross, counts = statistics(200)
    plain = choose_block_weights(gram, cross, counts, SIZES)
    assert choose_block_weights(
        scale**2 * gram, scale * cross, counts, SIZES
    ) == pytest.approx(plain, rel=1e-3)


def test_degenerate_statistics_give_equal_weights():
    gram, cross, counts = statistics(200)
    assert choose_block_weights(gram, cross, counts, (18,)) == (1.0,)
    one = choose_block_weights(gram, cross[:, :1], counts[:1], SIZES)  # one class
    assert one == (1.0, 1.0, 1.0)
    assert (
        choose_block_weights(
            torch.zeros_like(gram), torch.zeros_like(cross), counts, SIZES
        )
        == one
    )
    lonely = torch.eye(4, 18, dtype=torch.float64)  # one row of each class
    alone = choose_block_weights(lonely.T @ lonely, lonely.T, torch.ones(4), SIZES)
    assert alone == one


def test_a_constant_block_gets_a_finite_weight():
    gram, cross, counts = statistics(300)
    gram[5:14], gram[:, 5:14], cross[5:14] = 0.0, 0.0, 0.0
    weights = choose_block_weights(gram, cross, counts, SIZES)
    assert all(0.0 < weight < 100.0 for weight in weights)


@pytest.mark.parametrize("form", ["dense", "compact"])
def test_scaled_statistics_equal_statistics_of_scaled_rows(form):
    source = torch.Generator().manual_seed(1)
    H = torch.randn(6, 10, generator=source, dtype=torch.float64)
    Y = torch.eye(6, 3).double()
    scale = torch.rand(10, generator=source, dtype=torch.float64) + 0.5
    stats = RidgeStatistics.create(10, 3, form, floor=1e-6).update(H, Y).scaled(scale)
    rows = stats.project(H * scale)
    assert torch.allclose(rows.T @ rows, stats.gram, atol=1e-9)
    assert torch.allclose(rows.T @ Y, stats.cross, atol=1e-9)
    whole, sums, basis = stats.part(slice(2, 7))
    assert (basis is None) == (form == "dense")
    if basis is not None:
        whole = basis @ whole @ basis.T
        sums = basis @ sums
    assert torch.allclose(whole, (H * scale)[:, 2:7].T @ (H * scale)[:, 2:7], atol=1e-9)
    assert torch.allclose(sums, (H * scale)[:, 2:7].T @ Y, atol=1e-9)


def few_rows(rows: int, distance: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows with 60 columns, the first of which separate classes, and targets."""
    codes = torch.arange(rows) % 3
    H = (
        torch.randn(
            rows, 60, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
        + 1.0
    )
    H[torch.arange(rows), codes] += distance
    return H, torch.nn.functional.one_hot(codes, 3).double()


WIDE = (20, 30, 10)


def searches(rows: int) -> list[module._WeightSearch]:
    """Return exact searches from rows and from the scatter of their columns."""
    H, Y = few_rows(rows)
    one = torch.eye(rows).double() - 1.0 / rows
    counts = Y.sum(dim=0)
    centred = H - H.mean(dim=0)
    sums = module._ExactSearch(
        centred.T @ centred, centred.T @ Y, None, counts, WIDE, None
    )
    return [module._ExactSearch(one, Y - Y.mean(dim=0), H.T, counts, WIDE, None), sums]


@pytest.mark.parametrize("rows", [15, 60])
def test_exact_score_equals_a_dense_ridge_per_block(rows):
    ridges = torch.tensor([0.5, 3.0, 1.0], dtype=torch.float64)
    X, Y = (part.numpy() - part.numpy().mean(axis=0) for part in few_rows(rows))
    R = np.diag(np.repeat(np.exp(ridges.numpy()), WIDE))
    hat = X @ np.linalg.inv(X.T @ X + R) @ X.T
    rss = np.sum((Y - hat @ Y) ** 2)
    df = np.trace(hat)
    for made in searches(rows):
        assert made.log_gcv(ridges)[0] == pytest.approx(
            math.log(rows * rss / (rows - 1 - df) ** 2), rel=1e-8
        )


@pytest.mark.parametrize("made", [search(*statistics(200)), *searches(30)])
def test_gradient_equals_differences_of_the_objective(made):
    at = torch.tensor([0.3, 2.0, -0.5], dtype=torch.float64)
    _, slopes = made.objective(at)
    for block in range(3):
        move = torch.zeros(3, dtype=torch.float64)
        move[block] = 1e-5
        difference = (
            made.objective(at + move)[0] - made.objective(at - move)[0]
        ) / 2e-5
        assert float(slopes[block]) == pytest.approx(difference, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("rows", [12, 30, 60, 90])  # for 60 columns
def test_weights_do_not_depend_on_the_coordinates_of_the_statistics(rows):
    H, Y = few_rows(rows, distance=2.0)
    counts = Y.sum(dim=0)
    given = (1.0, 0.7, 1.3)
    expected = choose_block_weights(H.T @ H, H.T @ Y, counts, WIDE, given)
    stats = RidgeStatistics.create(60, 3, "compact", floor=1e-9).update(H, Y)
    for gram, cross, basis in [
        (torch.eye(rows).double(), Y, H.T),
        (stats.gram, stats.cross, stats.basis),
    ]:
        found = choose_block_weights(gram, cross, counts, WIDE, given, basis)
        assert found == pytest.approx(expected, rel=1e-8)


def test_copies_of_one_row_give_equal_weights():
    H = torch.ones(8, 40, dtype=torch.float64)
    Y = torch.nn.functional.one_hot(torch.arange(8) % 2, 2).double()
    assert choose_block_weights(
        torch.eye(8).double(), Y, Y.sum(dim=0), (20, 20), basis=H.T
    ) == (1.0, 1.0)


def test_current_weights_are_kept_unless_others_are_better():
    gram, cross, counts = statistics(2000)
    best = choose_block_weights(
        gram,
        cross,
        counts,
        SIZES,
        start=choose_block_weights(gram, cross, counts, SIZES),
    )
    assert choose_block_weights(gram, cross, counts, SIZES, start=best) == best
    useful, noise, _ = choose_block_weights(
        gram, cross, counts, SIZES, start=best[::-1]
    )
    assert useful > 2 * noise
