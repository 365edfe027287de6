"""Symmetric eigenproblems, guarded against the stalls of threaded LAPACK on busy machines."""

from __future__ import annotations

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError

_THREADED_FROM = 4096
"""Below this order the reduction to tridiagonal form gains little from threads, and its thousands of
barriers stall when another process holds a core (measured on two cores: 8.9 s instead of 0.05 s at order 600,
27 s instead of 0.6 s at order 1,500)."""


def symmetric_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (ascending) and eigenvectors of a symmetric matrix.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.eigen import symmetric_eigh
    >>> values, _ = symmetric_eigh(torch.diag(torch.tensor([2.0, 1.0])))
    >>> values.tolist()
    [1.0, 2.0]
    """
    try:
        return _eigh(matrix)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NumericalError(
            f"a matrix must have eigenvalues that can be computed, got one that is ill-conditioned: {error}"
        ) from error


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    threads = torch.get_num_threads()
    if matrix.device.type != "cpu" or matrix.shape[0] >= _THREADED_FROM or threads == 1:
        return torch.linalg.eigh(matrix)  # type: ignore[no-any-return]
    torch.set_num_threads(1)
    try:
        return torch.linalg.eigh(matrix)  # type: ignore[no-any-return]
    finally:
        torch.set_num_threads(threads)
