"""Factorise symmetric matrices: Cholesky with reported jitter, and eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.core.threads import threads_for

_JITTERS = (0.0, 1e1, 1e3, 1e5, 1e7)
"""Jitters to try, in units of machine epsilon times the mean of the diagonal."""

_PANEL_COLUMNS = 256
"""Columns per panel. A factor of at most this order is one panel."""

_THREADED_FROM = 4096
"""Order from which eigenvalues are computed with several threads.

Smaller problems gain little. Their many thread barriers stall if another process uses
a core: measured on two cores, order 600 took 8.9 s instead of 0.05 s.
"""


@dataclass(frozen=True)
class CholeskyFactor:
    """Cholesky factor ``L L^T = A + jitter I``.

    Parameters
    ----------
    panels : sequence of Tensor
        Groups of p columns of L, without the zero rows above them. They take half the
        memory of a square matrix. Panel i has shape (n - i p, p); the last one may have
        fewer columns.
    jitter : float
        Added to the diagonal so that the factorisation succeeds. 0 if not needed.
    """

    panels: Sequence[Tensor]
    jitter: float

    @property
    def lower(self) -> Tensor:
        """L as a square matrix (n, n). Each access builds a new one."""
        n = len(self.panels[0])
        return torch.cat(
            [
                torch.nn.functional.pad(panel, (0, 0, n - len(panel), 0))
                for panel in self.panels
            ],
            dim=1,
        )

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``(A + jitter I)^-1 rhs`` for `rhs` of shape (n, m)."""
        # torch.cholesky_solve would copy the factor, which is slower for few columns.
        solved = self.half_solve(rhs)
        # Backward substitution: the views change `solved` in place.
        for square, below, rows, rest in reversed(self._panel_views(solved)):
            rows.addmm_(below.T, rest, alpha=-1.0)
            torch.linalg.solve_triangular(square.T, rows, upper=True, out=rows)
        return solved

    def half_solve(self, rhs: Tensor) -> Tensor:
        """Return ``L^-1 rhs`` for `rhs` of shape (n, m).

        The squared length of a column is ``x^T (A + jitter I)^-1 x`` for the same
        column x of `rhs`.
        """
        solved = rhs.T.clone(memory_format=torch.contiguous_format).T
        for square, below, rows, rest in self._panel_views(solved):
            torch.linalg.solve_triangular(square, rows, upper=False, out=rows)
            rest.addmm_(below, rows, alpha=-1.0)
        return solved

    def _panel_views(self, rhs: Tensor) -> list[tuple[Tensor, ...]]:
        """Split every panel and the matching rows of `rhs` (n, m) at its triangle.

        Returns
        -------
        list of (square, below, rows, rest)
            Views of the triangle (p, p) of a panel, of the part below it, and of the
            rows of `rhs` that belong to each of the two.
        """
        views = []
        for panel in self.panels:
            n_columns = [panel.shape[1]]
            matching = rhs[-len(panel) :]
            views.append(
                (*panel.tensor_split(n_columns), *matching.tensor_split(n_columns))
            )
        return views

    @cached_property
    def trace_inverse(self) -> float:
        """``tr (A + jitter I)^-1``, the squared Frobenius norm of ``L^-1``."""
        total = 0.0
        for index, panel in enumerate(self.panels):
            # These columns of L^-1 are zero above the panel: solve the trailing part.
            identity = torch.eye(*panel.shape, dtype=panel.dtype, device=panel.device)
            trailing = CholeskyFactor(self.panels[index:], self.jitter)
            total += float(trailing.half_solve(identity).square_().sum())
        return total


def safe_cholesky(
    matrix: Tensor, *, shift: float = 0.0, allow_jitter: bool = True
) -> CholeskyFactor:
    """Factorise ``matrix + shift I``, with jitter if rounding made it indefinite.

    Parameters
    ----------
    matrix : Tensor of shape (n, n)
        Symmetric, positive semi-definite up to rounding. It is not modified.
    shift : float, default=0.0
        Added to the diagonal, for example the ridge.
    allow_jitter : bool, default=True
        False raises an error instead of adding jitter.

    Returns
    -------
    CholeskyFactor
        The factor, and the jitter added beyond `shift`.

    Raises
    ------
    NumericalError
        If the factorisation fails with the largest jitter.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.factor import safe_cholesky
    >>> factor = safe_cholesky(torch.ones(2, 2, dtype=torch.float64), shift=1e-3)
    >>> factor.jitter
    0.0
    """
    n = matrix.shape[0]
    mean_diagonal = float(matrix.diagonal().mean()) if n else 0.0
    unit = float(torch.finfo(matrix.dtype).eps) * max(mean_diagonal, abs(shift))
    for factor in _JITTERS if allow_jitter else _JITTERS[:1]:
        jitter = factor * unit
        # Column-major, as LAPACK needs it: `work` is factored in place.
        work = matrix.T.clone(memory_format=torch.contiguous_format).T
        work.diagonal().add_(shift + jitter)
        out = (work, work.new_empty((), dtype=torch.int32))
        info = torch.linalg.cholesky_ex(work, out=out).info
        if int(info) == 0 and bool(torch.isfinite(work.diagonal()).all()):
            return CholeskyFactor(_split_panels(work), jitter)
    diagonal = matrix.diagonal()
    raise NumericalError(
        f"A {n} x {n} matrix is not positive definite after adding {shift:g} to its "
        f"diagonal: the factorisation failed at order {int(info)} (diagonal from "
        f"{float(diagonal.min()):.3g} to {float(diagonal.max()):.3g}). Usual causes: "
        "alpha too small for the scale of the features, samples unlearned that were "
        "never learned, or non-finite features."
    )


def _split_panels(lower: Tensor) -> list[Tensor]:
    """Split a lower-triangular matrix (n, n) into panels without the zeros above."""
    n = len(lower)
    if n <= _PANEL_COLUMNS:
        return [lower]
    return [
        lower[start:, start : start + _PANEL_COLUMNS].clone(
            memory_format=torch.contiguous_format
        )
        for start in range(0, n, _PANEL_COLUMNS)
    ]


def symmetric_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (n,), ascending, and eigenvectors (n, n), in columns.

    Parameters
    ----------
    matrix : Tensor of shape (n, n)
        Symmetric matrix.

    Raises
    ------
    NumericalError
        If the algorithm does not converge.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.factor import symmetric_eigh
    >>> values, _ = symmetric_eigh(torch.diag(torch.tensor([2.0, 1.0])))
    >>> values.tolist()
    [1.0, 2.0]
    """
    n = matrix.shape[0]
    try:
        # 0 operations: one thread.
        with threads_for(0.0 if n < _THREADED_FROM else float(n) ** 3):
            return torch.linalg.eigh(matrix)  # type: ignore[no-any-return]
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NumericalError(
            f"The eigenvalues of a matrix could not be computed: {error}. Check the "
            "features for non-finite values."
        ) from error
