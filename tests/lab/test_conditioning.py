"""Conditioning from spectra agrees with numpy's norms of the matrices themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evergrow.lab.conditioning import cosine_matrix, matrix_conditioning, mean_off_diagonal, ridge_conditioning


def known(shape: tuple[int, int], sigma: list[float]) -> torch.Tensor:
    """A matrix with these singular values."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(shape[0], len(sigma))))
    right, _ = np.linalg.qr(rng.normal(size=(shape[1], len(sigma))))
    return torch.from_numpy((left * sigma) @ right.T)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (4, 4)])
def test_matrix_of_known_singular_values(shape: tuple[int, int]) -> None:
    found = matrix_conditioning(known(shape, [1e3, 5.0, 1.0, 1e-3]))
    assert found["condition_number"] == pytest.approx(1e6, rel=1e-6)
    assert (found["sigma_max"], found["sigma_2"]) == pytest.approx((1e3, 5.0))
    assert found["rank"] == 4


def test_rank_deficiency_shows_in_the_rank_not_only_in_the_ratio() -> None:
    found = matrix_conditioning(known((30, 20), [3.0, 2.0, 1.0]))
    assert found["rank"] == 3
    assert found["condition_number"] > 1e14
    assert matrix_conditioning(torch.zeros(3, 2))["condition_number"] == float("inf")


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 100.0])
def test_ridge_conditioning(alpha: float) -> None:
    H = known((30, 5), [1e3, 5.0, 1.0, 1e-1])
    G = H.T @ H
    P = (G + alpha * torch.eye(5)).numpy()
    found = ridge_conditioning(torch.linalg.eigvalsh(G).clamp_min(0.0), alpha)
    assert found["norm"] == pytest.approx(np.linalg.norm(P))
    assert found["inverse_norm"] == pytest.approx(np.linalg.norm(np.linalg.inv(P)), rel=1e-6)
    assert found["condition_number"] == pytest.approx(np.linalg.cond(P), rel=1e-6)
    assert found["effective_rank"] == pytest.approx(np.trace(G.numpy() @ np.linalg.inv(P)), rel=1e-6)


def test_cosine_of_orthogonal_equal_and_empty_columns() -> None:
    columns = torch.tensor([[1.0, 0.0, -2.0, 0.0], [0.0, 3.0, 0.0, 0.0]])
    expected = [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    assert cosine_matrix(columns).tolist() == expected
    assert mean_off_diagonal(cosine_matrix(columns)) == pytest.approx(2 / 12)
