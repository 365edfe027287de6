"""Scores after one row was left out equal those computed from the other rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergrow.head.linalg import scatter as scatter_module
from evergrow.head.linalg.class_shapes import ClassShapes
from evergrow.head.linalg.leave_one_out import LeaveOneOut
from evergrow.head.linalg.scatter import (
    ETA,
    ClassGeometry,
    MeanEstimates,
    SolvedScatter,
)
from evergrow.head.linalg.shape_scores import LeftOutRows, ShapeScores
from evergrow.head.linalg.statistics import RidgeStatistics

ALPHA = 0.3


def rows(n_classes: int = 4, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    codes = torch.arange(60) % n_classes
    codes[:20] = 0
    noise = torch.randn(60, width, generator=rng, dtype=torch.float64)
    H = 2.0 * torch.eye(n_classes, width, dtype=torch.float64)[codes] + noise
    weights = torch.rand(60, generator=rng, dtype=torch.float64) + 0.5
    return H, codes, weights


def solve(H: Tensor, codes: Tensor, weights: Tensor) -> SolvedScatter:
    n_classes = int(codes.max()) + 1
    Y = torch.nn.functional.one_hot(codes, n_classes).double()
    roots = weights.sqrt()[:, None]
    stats = RidgeStatistics.create(H.shape[1], n_classes).update(roots * H, roots * Y)
    masses = torch.bincount(codes, weights, minlength=n_classes)
    return SolvedScatter.of(ClassGeometry.of(stats, masses), ALPHA)


def scores_by_hand(full: SolvedScatter, rest: SolvedScatter, h: Tensor) -> Tensor:
    """Return the scores of a row by other statistics, with the settings of `full`."""
    energy = full.noise_energy()
    noise = energy / full.counts
    known = MeanEstimates.of(full.means, full.solve_means(), noise, full.freedom)
    noise = energy / rest.counts
    spread = known.spread
    D = rest.means - (rest.means @ known.centre)[:, None]
    inverse = torch.linalg.inv(rest.matrix())
    K = rest.freedom * D.T @ inverse @ D
    z = rest.freedom * D.T @ inverse @ (h - rest.means @ known.centre)
    prior = known.prior
    if prior is None:
        prior = spread * torch.eye(len(noise), dtype=h.dtype)
    F = prior @ torch.linalg.inv(prior + noise.diag())
    energies = (F @ K @ F.T).diagonal() - F.square() @ noise
    kept = (spread / (spread + noise)).square()
    energies = energies - (1.0 - ETA) * kept * (K.diagonal() - noise - spread)
    return F @ z - 0.5 * energies


@pytest.mark.parametrize("most_shared", [1024, 2])
def test_rows_are_scored_without_themselves_with_the_settings_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, most_shared: int
) -> None:
    monkeypatch.setattr(scatter_module, "MAX_SHARED_CLASSES", most_shared)
    H, codes, weights = rows()
    full = solve(H, codes, weights)
    own = LeaveOneOut(full).own_scores(H, codes, weights)
    for row in range(0, len(H), 5):
        left = torch.arange(len(H)) != row
        rest = solve(H[left], codes[left], weights[left])
        expected = scores_by_hand(full, rest, H[row])
        torch.testing.assert_close(own[row], expected, rtol=1e-9, atol=1e-9)


def test_another_row_is_scored_as_by_a_model_of_the_other_rows() -> None:
    H, codes, weights = rows()
    found = LeaveOneOut(solve(H, codes, weights))
    scores = found.scores_without(H[7], H, codes, weights)
    for row in range(0, len(H), 5):
        left = torch.arange(len(H)) != row
        rest = solve(H[left], codes[left], weights[left]).estimate_means()
        expected = H[7] @ rest.weights + rest.offset
        torch.testing.assert_close(scores[row], expected, rtol=1e-9, atol=1e-9)


def test_another_row_is_scored_with_the_settings_of_all_rows_by_many_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scatter_module, "MAX_SHARED_CLASSES", 2)
    H, codes, weights = rows()
    full = solve(H, codes, weights)
    scores = LeaveOneOut(full).scores_without(H[7], H, codes, weights)
    for row in range(0, len(H), 5):
        left = torch.arange(len(H)) != row
        rest = solve(H[left], codes[left], weights[left])
        expected = scores_by_hand(full, rest, H[7])
        torch.testing.assert_close(scores[row], expected, rtol=1e-9, atol=1e-9)


def test_scores_without_a_row_use_plain_means_if_the_noise_is_unknown() -> None:
    H = torch.eye(3, 5, dtype=torch.float64).repeat(2, 1)
    codes = torch.arange(3).repeat(2)
    weights = torch.ones(6, dtype=torch.float64)
    found = LeaveOneOut(solve(H, codes, weights)).own_scores(H, codes, weights)
    rest = solve(H[1:], codes[1:], weights[1:])
    centre = rest.means.mean(dim=1)
    D = rest.means - centre[:, None]
    solved = rest.freedom * torch.linalg.solve(rest.matrix(), D)
    expected = (H[0] - centre) @ solved - 0.5 * (D * solved).sum(dim=0)
    # With one row less than two per class, the degrees of freedom have reached one.
    torch.testing.assert_close(found[0] / 2.0 * rest.freedom, expected)


def test_shape_terms_without_a_row_equal_those_of_the_other_rows() -> None:
    H, codes, weights = rows()
    H = torch.cat([H, H.flip(0) + 0.1 * H])
    codes = torch.cat([codes, codes.flip(0)])
    weights = torch.cat([weights, weights])
    masses = torch.bincount(codes, weights)
    empty = ClassShapes.first(H, directions=4).group([[]] * 4)
    P = empty.rows(H)
    shapes = empty.add(P, codes, weights=weights)
    full = ShapeScores(shapes, masses, strength=7.0)
    linear = torch.zeros(len(H), 4, dtype=torch.float64)
    exact = full.add_without(P[3], linear, LeftOutRows(P, codes, weights))
    own = full.add(P, linear, LeftOutRows(P, codes, weights))
    other = full.add(P.flip(0), linear, LeftOutRows(P, codes, weights))
    assert not torch.allclose(own, full.add(P, linear))
    for row in range(0, len(H), 7):
        code = int(codes[row])
        less = shapes.add(P[row : row + 1], codes[row : row + 1], -1.0, weights[[row]])
        rest_masses = masses.clone()
        rest_masses[code] -= weights[row]
        rest = ShapeScores(less, rest_masses, strength=7.0)
        torch.testing.assert_close(exact[row], rest.add(P[3:4], linear[:1])[0])
        rest = ShapeScores(less, rest_masses, strength=7.0)
        rest._lower = full._lower  # C_0 stays
        rest._whitened_means = rest._whiten(rest.means)
        for found, asked in ((own, P), (other, P.flip(0))):
            expected = rest.add(asked[row : row + 1], linear[:1])[0, code]
            torch.testing.assert_close(found[row, code], expected)
            unchanged = full.add(asked[row : row + 1], linear[:1])[0]
            rest_of = torch.arange(4) != code
            torch.testing.assert_close(found[row, rest_of], unchanged[rest_of])
