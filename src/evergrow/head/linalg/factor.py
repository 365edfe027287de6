"""Factorisations of symmetric matrices: a Cholesky that says what it had to do to succeed, and a guarded eigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.core.threads import threads_for

# Rungs of the jitter ladder, in units of machine epsilon times the mean of the
# diagonal.
_LADDER = (0.0, 1e1, 1e3, 1e5, 1e7)

_PANEL = 256  # columns of a factor that are held together

_THREADED_FROM = 4096
"""Below this order the reduction to tridiagonal form gains little from threads, and its thousands of
barriers stall when another process holds a core (measured on two cores: 8.9 s instead
of 0.05 s at order 600, 27 s instead of 0.6 s at order 1,500)."""


@dataclass(frozen=True)
class CholeskyFactor:
    """The factor of ``A + jitter * I``.

    Parameters
    ----------
    panels : sequence of Tensor
        The lower-triangular factor, so many columns at a time without the zeros above:
        half a square matrix.
    jitter : float
        What was added to the diagonal to make the factorisation succeed; 0 when nothing
        was needed.
    """

    panels: Sequence[Tensor]
    jitter: float

    @property
    def lower(self) -> Tensor:
        """The factor as a square matrix (n, n)."""
        n = len(self.panels[0])
        return torch.cat(
            [
                torch.nn.functional.pad(panel, (0, 0, n - len(panel), 0))
                for panel in self.panels
            ],
            dim=1,
        )

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``(A + jitter I)^-1 rhs`` for ``rhs`` of shape (n, m)."""
        # cholesky_solve copies the factor first, which takes longer than a few columns.
        solved = self.half_solve(rhs)
        for square, below, here, rest in reversed(self._parts(solved)):
            here.addmm_(below.T, rest, alpha=-1.0)
            torch.linalg.solve_triangular(square.T, here, upper=True, out=here)
        return solved

    def half_solve(self, rhs: Tensor) -> Tensor:
        """Return ``lower^-1 rhs``; the squared norm of a column is its quadratic form in ``A^-1``."""
        solved = rhs.T.clone(memory_format=torch.contiguous_format).T
        for square, below, here, rest in self._parts(solved):
            torch.linalg.solve_triangular(square, here, upper=False, out=here)
            rest.addmm_(below, here, alpha=-1.0)
        return solved

    def _parts(self, rhs: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the triangle of every panel and the rows below it, and the rows of ``rhs`` that go with each."""
        return [
            (*p.tensor_split([p.shape[1]]), *rhs[-len(p) :].tensor_split([p.shape[1]]))
            for p in self.panels
        ]

    @cached_property
    def trace_inverse(self) -> float:
        """``trace((A + jitter I)^-1)``, the squared Frobenius norm of ``lower^-1``."""
        total = 0.0
        for place, panel in enumerate(self.panels):
            # These columns of lower^-1 vanish above the panel as well: solve only the
            # trailing triangle.
            start = torch.eye(*panel.shape, dtype=panel.dtype, device=panel.device)
            trailing = CholeskyFactor(self.panels[place:], self.jitter)
            total += float(trailing.half_solve(start).square_().sum())
        return total


def safe_cholesky(
    matrix: Tensor, *, shift: float = 0.0, allow_jitter: bool = True
) -> CholeskyFactor:
    """Factor ``matrix + shift * I``, climbing a ladder of jitters where rounding made it indefinite.

    Parameters
    ----------
    matrix : Tensor of shape (n, n)
        Symmetric positive semi-definite up to rounding; not modified.
    shift : float
        Added to the diagonal, for example the ridge.
    allow_jitter : bool
        False raises at once instead of climbing, for callers to whom indefiniteness is
        information.

    Returns
    -------
    CholeskyFactor
        The factor and the jitter it needed beyond ``shift``.

    Raises
    ------
    NumericalError
        If even the last rung fails; the message lists the usual causes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.factor import safe_cholesky
    >>> factor = safe_cholesky(torch.ones(2, 2, dtype=torch.float64), shift=1e-3)
    >>> factor.jitter
    0.0
    """
    n = matrix.shape[0]
    unit = float(torch.finfo(matrix.dtype).eps) * max(
        float(matrix.diagonal().mean()) if n else 0.0, abs(shift)
    )
    for rung in _LADDER if allow_jitter else _LADDER[:1]:
        jitter = rung * unit
        work = matrix.T.clone(memory_format=torch.contiguous_format).T
        work.diagonal().add_(shift + jitter)
        info = torch.linalg.cholesky_ex(
            work, out=(work, work.new_empty((), dtype=torch.int32))
        ).info  # in place
        if int(info) == 0 and bool(torch.isfinite(work.diagonal()).all()):
            if n > _PANEL:
                starts = range(0, n, _PANEL)
            else:
                starts = ()
            panels = [
                work[at:, at : at + _PANEL].clone(memory_format=torch.contiguous_format)
                for at in starts
            ]
            return CholeskyFactor(panels or [work], jitter)
    diagonal = matrix.diagonal()
    raise NumericalError(
        f"a {n} x {n} matrix must be positive definite after adding {shift:g} to its diagonal, but its "
        f"factorisation failed at order {int(info)} (diagonal from {float(diagonal.min()):.3g} to "
        f"{float(diagonal.max()):.3g}). Usual causes: alpha too small for the scale of the features, samples "
        "unlearned that were never learned, or non-finite features."
    )


def symmetric_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (ascending) and eigenvectors of a symmetric matrix.

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
        with threads_for(0.0 if n < _THREADED_FROM else float(n) ** 3):
            return torch.linalg.eigh(matrix)  # type: ignore[no-any-return]
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NumericalError(
            "a matrix must have eigenvalues that can be computed, got one that is "
            f"ill-conditioned: {error}"
        ) from error
