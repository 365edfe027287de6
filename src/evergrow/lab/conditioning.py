"""Conditioning of matrices and similarity of their columns."""

from __future__ import annotations

import torch
from torch import Tensor


def matrix_conditioning(H: Tensor) -> dict[str, float]:
    """Return extreme singular values, condition number and numerical rank of a matrix.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.conditioning import matrix_conditioning
    >>> H = torch.diag(torch.tensor([8.0, 4.0, 2.0], dtype=torch.float64))
    >>> found = matrix_conditioning(H)
    >>> found["condition_number"], found["rank"]
    (4.0, 3)
    """
    sigma = torch.linalg.svdvals(H)
    largest = float(sigma[0])
    smallest = float(sigma[-1])
    tolerance = max(H.shape) * torch.finfo(H.dtype).eps * largest
    condition_number = float("inf")
    if smallest > 0.0:
        condition_number = largest / smallest
    return {
        "sigma_max": largest,
        "sigma_2": float(sigma[min(1, len(sigma) - 1)]),
        "sigma_min": smallest,
        "condition_number": condition_number,
        "rank": int((sigma > tolerance).sum()),
    }


def ridge_conditioning(values: Tensor, alpha: float) -> dict[str, float]:
    """Return the conditioning of ``P = G + alpha I`` from the eigenvalues of G.

    Parameters
    ----------
    values : Tensor
        Eigenvalues of G, ascending.
    alpha : float
        Ridge.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.conditioning import ridge_conditioning
    >>> found = ridge_conditioning(torch.tensor([0.0, 2.0, 3.0]), alpha=1.0)
    >>> found["condition_number"], found["eig_min"], found["norm"] == 26**0.5
    (4.0, 1.0, True)
    """
    shifted = values.to(torch.float64) + alpha
    return {
        "condition_number": float(shifted[-1] / shifted[0]),
        "eig_max": float(shifted[-1]),
        "eig_min": float(shifted[0]),
        "norm": float(shifted.square().sum().sqrt()),
        "inverse_norm": float(shifted.reciprocal().square().sum().sqrt()),
        "effective_rank": float((values / shifted).sum()),
    }


def cosine_matrix(columns: Tensor) -> Tensor:
    """Return the cosine similarity (m, m) of columns (n, m); 0 for columns of zeros.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.conditioning import cosine_matrix
    >>> cosine_matrix(torch.tensor([[1.0, 3.0], [0.0, 4.0]])).round(decimals=4).tolist()
    [[1.0, 0.6000000238418579], [0.6000000238418579, 1.0]]
    """
    norms = torch.linalg.vector_norm(columns, dim=0)
    unit = columns / norms.clamp_min(torch.finfo(columns.dtype).tiny)
    similarity: Tensor = unit.T @ unit
    return similarity.fill_diagonal_(1.0)


def mean_off_diagonal(matrix: Tensor) -> float:
    """Return the mean absolute entry off the diagonal."""
    m = matrix.shape[0]
    total = matrix.abs().sum() - matrix.diagonal().abs().sum()
    return float(total / max(m * (m - 1), 1))
