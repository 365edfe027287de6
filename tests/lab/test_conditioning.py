"""Conditioning from spectra agrees with numpy's norms of the matrices themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evergrow.lab.conditioning import (
    cosine_matrix,
    matrix_conditioning,
    mean_off_diagonal,
)


def known(shape: tuple[int, int], sigma: list[float]) -> torch.Tensor:
    """A matrix with these singular values."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(shape[0], len(sigma))))
    right, _ = np.linalg.qr(rng.normal(size=(shape[1], len(sigma))))
    return torch.from_numpy((left * sigma) @ right.T)


def test_rank_deficiency_shows_in_the_rank_not_only_in_the_ratio() -> None:
    found = matrix_conditioning(known((30, 20), [3.0, 2.0, 1.0]))
    assert found["rank"] == 3
    assert found["condition_number"] > 1e14
    assert matrix_conditioning(torch.zeros(3, 2))["condition_number"] == float("inf")


def test_cosine_of_orthogonal_equal_and_empty_columns() -> None:
    columns = torch.tensor([[1.0, 0.0, -2.0, 0.0], [0.0, 3.0, 0.0, 0.0]])
    expected = [
        [1.0, 0.0, -1.0, 0.0],
        [0.0, 1.0, 0.0, 0.0],
        [-1.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    ]
    assert cosine_matrix(columns).tolist() == expected
    assert mean_off_diagonal(cosine_matrix(columns)) == pytest.approx(2 / 12)
