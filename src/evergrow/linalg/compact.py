"""The compact form: statistics in the few directions that the rows really occupy.

With sigmoid units near their centre the rows are numerically of rank about d + 1 whatever the width L. Rows
are then kept as ``H = C V^T + R`` with an orthonormal basis V (L x k) and a small remainder R that is
dropped. Because rows of ``C V^T`` and of R are orthogonal, ``H H^T = C C^T + R R^T``: dropping R changes the
dual system ``(H H^T + alpha I) a = Y`` by ``|R R^T|`` at most, so that with

    dropped = sum over batches of |R_b|_2^2

the dual coefficients move by at most ``dropped / alpha`` relative to themselves. That is the reported bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import NumericalError
from evergrow.core.validation import check_number
from evergrow.linalg.cholesky import safe_cholesky
from evergrow.linalg.eigen import symmetric_eigh
from evergrow.linalg.state import (
    ACCUMULATION_DTYPE,
    Batch,
    ReducedStatistics,
    RidgeSolution,
    RidgeState,
    check_alpha,
)

BLOCK_ROWS = 1024
"""Rows per step: the remainder of a step is analysed through an n x n eigenproblem."""

BUDGET_SHARE = 1.0 / 16.0
"""Share of the remaining energy budget that one step may drop; the sum then never exceeds the budget."""


class CompactState(RidgeState):
    """Statistics in an adaptive basis, with a bound on what was dropped.

    Costs about ``4 n L k`` operations per update and ``k^3 / 3`` per solve, and holds ``8 L k`` bytes, where k
    is the numerical rank of the rows.

    Parameters
    ----------
    n_features : int
        L, the width of the rows.
    n_targets : int
        C, the number of target columns.
    budget : float
        Total energy (squared spectral norm) that may ever be dropped. With ``budget = tol * alpha`` the
        relative change of the dual coefficients stays below ``tol``.
    device : torch.device or str
        Where the statistics live.

    Examples
    --------
    >>> import torch
    >>> from evergrow.linalg import CompactState
    >>> rows = torch.ones(5, 1, dtype=torch.float64) @ torch.ones(1, 100, dtype=torch.float64)
    >>> state = CompactState(100, 1, budget=1e-6)
    >>> state.update(rows, torch.ones(5, 1, dtype=torch.float64))
    >>> state.rank
    1
    """

    kind: ClassVar[str] = "compact"

    def __init__(self, n_features: int, n_targets: int, budget: float, device: torch.device | str = "cpu") -> None:
        check_number("budget", budget, low=0.0)
        self.basis = _common_mode(n_features, torch.device(device))
        super().__init__(n_features, n_targets, device)
        self.budget = float(budget)
        self.dropped = 0.0
        self.gram = torch.zeros(self.rank, self.rank, dtype=ACCUMULATION_DTYPE, device=self.device)

    def _cross_rows(self) -> int:
        return self.rank

    @property
    def rank(self) -> int:
        """Number of directions kept."""
        return int(self.basis.shape[1])

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return self.rank

    def error_bound(self, alpha: float) -> float:
        """Bound on the relative change of the dual coefficients that dropping has caused."""
        return self.dropped / check_alpha(alpha)

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> None:
        basis, gram, cross, dropped = self.basis, self.gram.clone(), self.cross.clone(), self.dropped
        count, sq_targets = 0, 0.0
        for H_all, Y_all in batches:
            for H, Y in zip(torch.split(H_all, BLOCK_ROWS), torch.split(Y_all, BLOCK_ROWS)):
                allowance = BUDGET_SHARE * (self.budget - dropped) if sign > 0 else float("inf")
                rows = H @ basis
                extension, lost = _extension(basis, H, rows, allowance)
                if sign > 0:
                    dropped += lost
                if extension is not None:
                    basis = torch.cat([basis, extension], dim=1)
                    rows = torch.cat([rows, H @ extension], dim=1)
                    gram, cross = _pad(gram, basis.shape[1], both=True), _pad(cross, basis.shape[1])
                gram.addmm_(rows.T, rows, alpha=sign)
                cross.addmm_(rows.T, Y, alpha=sign)
                count += H.shape[0]
                sq_targets += float(Y.square().sum())
        self.basis, self.gram, self.cross, self.dropped = basis, gram, cross, dropped
        self.count += sign * count
        self.sq_targets += sign * sq_targets

    def _merge(self, other: ReducedStatistics) -> None:
        # G_2 = F^T F with F = sqrt(D) U^T V_2^T: the other side's second moments act as k pseudo-rows.
        values, vectors = symmetric_eigh(other.gram.to(self.device))
        kept = values > 0.0
        factor = (values[kept].sqrt() * vectors[:, kept]).T
        rows = factor if other.basis is None else factor @ other.basis.T.to(self.device)
        count, sq_targets = self.count, self.sq_targets
        self._accumulate([(rows, rows.new_zeros(rows.shape[0], self.n_targets))], sign=1)
        other_cross = other.lift(other.cross).to(self.device)
        self.cross = self.cross + self.basis.T @ other_cross
        self.count = count + other.count
        self.sq_targets = sq_targets + other.sq_targets

    def solve(self, alpha: float) -> RidgeSolution:
        """Return ``V (V^T G V + alpha I)^-1 V^T Q``."""
        alpha = check_alpha(alpha)
        factor = safe_cholesky(self.gram, shift=alpha)
        return RidgeSolution(self.basis @ factor.solve(self.cross), alpha, factor.jitter)

    def reduced(self) -> ReducedStatistics:
        """Return the statistics in the coordinates of the basis."""
        return ReducedStatistics(self.basis, self.gram, self.cross, self.count, self.sq_targets)

    @property
    def nbytes(self) -> int:
        """Bytes held by the statistics."""
        return self.basis.nbytes + self.gram.nbytes + self.cross.nbytes

    def empty_like(self) -> Self:
        """Return a compact state of the same shape and budget that has seen nothing."""
        return type(self)(self.n_features, self.n_targets, self.budget, self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return the basis and the statistics in it."""
        return {"basis": self.basis, "gram": self.gram, "cross": self.cross}

    def settings(self) -> dict[str, Any]:
        """Return shape, counts, budget and what was dropped."""
        return {**self._base_settings(), "budget": self.budget, "dropped": self.dropped}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any], device: torch.device) -> Self:
        """Rebuild a compact state."""
        state = cls(settings["n_features"], settings["n_targets"], settings["budget"], device)
        state.basis = tensors["basis"].to(state.device, ACCUMULATION_DTYPE)
        state.gram = tensors["gram"].to(state.device, ACCUMULATION_DTYPE)
        if state.gram.shape != (state.rank, state.rank):
            raise NumericalError("a compact state's basis and Gram matrix must have matching shapes")
        state.dropped = float(settings["dropped"])
        state._restore_base(settings, tensors["cross"])
        return state


def _extension(basis: Tensor, H: Tensor, rows: Tensor, allowance: float) -> tuple[Tensor | None, float]:
    """Return new basis columns for H (None where none is needed) and the energy left out.

    Parameters
    ----------
    basis : Tensor of shape (L, k)
        The basis so far.
    H : Tensor of shape (n, L)
        Rows to be represented.
    rows : Tensor of shape (n, k)
        ``H @ basis``.
    allowance : float
        Energy that may be left out.
    """
    n_features = basis.shape[0]
    if basis.shape[1] >= n_features:
        return None, 0.0
    eps = float(torch.finfo(H.dtype).eps)
    energy = H.square().sum(dim=1)
    outside = float((energy - rows.square().sum(dim=1)).clamp_min_(0.0).sum())
    rounding = 64 * eps * float(energy.sum())
    if outside + rounding <= allowance:
        return None, outside + rounding  # the trace of R R^T bounds its spectral norm
    # R R^T = H H^T - C C^T tells which directions matter without forming R, where rounding leaves it any digits.
    if rounding <= 0.1 * allowance:
        gap = torch.addmm(H @ H.T, rows, rows.T, alpha=-1.0)
        values, vectors = symmetric_eigh(gap)
    else:
        remainder = H - rows @ basis.T
        # A second pass: once is not enough where the remainder is tiny beside the row (Kahan, Parlett).
        remainder -= (remainder @ basis) @ basis.T
        values, vectors = symmetric_eigh(remainder @ remainder.T)
        rounding = 0.0
    keep = values > max(allowance, eps * float(values[-1]), eps * float(energy.max()))
    lost = float(values[~keep].max().clamp_min(0.0)) + rounding if bool((~keep).any()) else 0.0
    if not bool(keep.any()):
        return None, lost
    kept = vectors[:, keep]
    directions = H.T @ kept - basis @ (rows.T @ kept)
    for _ in range(2):
        directions /= torch.linalg.vector_norm(directions, dim=0)
        directions -= basis @ (basis.T @ directions)
        directions = _orthonormal(directions)
    return directions[:, : n_features - basis.shape[1]], lost


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns, by Cholesky where it is safe and by Householder QR where not."""
    factor, info = torch.linalg.cholesky_ex(columns.T @ columns)
    diagonal = factor.diagonal()
    if int(info) == 0 and float(diagonal.min()) > 1e-3 * float(diagonal.max()):
        solved: Tensor = torch.linalg.solve_triangular(factor, columns.T, upper=False).T
        return solved
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


def _common_mode(n_features: int, device: torch.device) -> Tensor:
    """Return ``1 / sqrt(L)`` as the first direction: it carries the huge common mode of sigmoid units."""
    return torch.full((n_features, 1), n_features**-0.5, dtype=ACCUMULATION_DTYPE, device=device)


def _pad(matrix: Tensor, size: int, *, both: bool = False) -> Tensor:
    """Return ``matrix`` with zero rows (and with ``both`` zero columns) appended up to ``size``."""
    extra = size - matrix.shape[0]
    return torch.nn.functional.pad(matrix, (0, extra if both else 0, 0, extra))
