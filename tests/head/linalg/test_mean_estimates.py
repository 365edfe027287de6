"""Estimated class means against the formulas written out, and what they must do at the ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergrow.head.linalg import scatter as module
from evergrow.head.linalg.scatter import MeanEstimates


def written_out(M: Tensor, A: Tensor, v: Tensor, f: float, shared: float) -> tuple[Tensor, Tensor]:
    """Return weights and offsets by plain matrices, every inverse formed."""
    classes, inverse = M.shape[1], torch.linalg.inv(A)

    def spread(q: Tensor) -> float:
        t = max(float((q - v).clamp_min(0).mean()), 1e-6 * float(q.mean()))
        for _ in range(20):
            w = (t + v) ** -2
            t = max(float((w * (q - v)).sum() / w.sum()), 1e-6 * float(q.mean()))
        return t

    def gram(centre: Tensor) -> Tensor:
        D = M - (M @ centre)[:, None]
        return f * D.T @ inverse @ D

    even = torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    t = spread(gram(even).diagonal())
    centre = (1 / (t + v)) / (1 / (t + v)).sum()
    K = gram(centre)
    t = spread(K.diagonal())
    root = torch.diag(v.sqrt())
    values, vectors = torch.linalg.eigh(torch.linalg.inv(root) @ K @ torch.linalg.inv(root))
    structured = root @ vectors @ torch.diag((values - 1).clamp_min(0)) @ vectors.T @ root
    prior = shared * structured + (1 - shared) * t * torch.eye(classes, dtype=torch.float64)
    F = prior @ torch.linalg.inv(prior + torch.diag(v))
    D = M - (M @ centre)[:, None]
    weights = f * inverse @ D @ F.T
    energy = (F @ K @ F.T).diagonal() - (F**2) @ v
    energy = energy - 0.1 * (t / (t + v)) ** 2 * (K.diagonal() - v - t)
    return weights, -((M @ centre) @ weights) - 0.5 * energy


@pytest.fixture
def problem(make_classes):
    geometry = make_classes(7, 15, 4).geometry()
    A = geometry.scatter + 0.05 * torch.eye(15, dtype=torch.float64)
    return geometry.means, A, torch.linspace(0.5, 20.0, 7, dtype=torch.float64)


@pytest.mark.parametrize(("limit", "shared"), [(7, module.SHARED), (3, 0.0)])  # many are shrunk one by one
def test_against_the_formulas(problem, monkeypatch, limit, shared):
    M, A, v = problem
    monkeypatch.setattr(module, "MAX_SHARED_CLASSES", limit)
    estimates = MeanEstimates.of(M, torch.linalg.solve(A, M), v, 21.0)
    weights, offset = written_out(M, A, v, 21.0, shared)
    torch.testing.assert_close(estimates.weights, weights)
    torch.testing.assert_close(estimates.offset, offset)


def test_no_noise_is_the_plain_discriminant(problem):
    M, A, _ = problem
    solved = torch.linalg.solve(A, M)
    estimates = MeanEstimates.of(M, solved, torch.zeros(7, dtype=torch.float64), 3.0)
    h = torch.randn(5, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = 3.0 * (h @ solved - 0.5 * (M * solved).sum(dim=0))
    scores = h @ estimates.weights + estimates.offset
    torch.testing.assert_close(scores - scores[:, :1], plain - plain[:, :1])


@pytest.mark.parametrize("classes", [1, 2])
def test_equal_means_say_nothing(classes):
    M = torch.ones(4, classes, dtype=torch.float64)
    estimates = MeanEstimates.of(M, M, torch.ones(classes, dtype=torch.float64), 2.0)
    assert bool(torch.isfinite(estimates.offset).all())
    torch.testing.assert_close(estimates.weights, torch.zeros_like(M))
