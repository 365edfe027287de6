"""The compact form: statistics in the few directions that the rows really occupy.

With sigmoid units near their centre the rows are numerically of rank about d + 1 whatever the width L. Rows
are then kept as ``H = C V^T + R`` with an orthonormal basis V (L x k) and a small remainder R that is
dropped. Because rows of ``C V^T`` and of R are orthogonal, ``H H^T = C C^T + R R^T``: dropping R changes the
dual system ``(H H^T + alpha I) a = Y`` by ``|R R^T|`` at most, so that with

    dropped = sum over batches of |R_b|_2^2

the dual coefficients move by at most ``dropped / alpha`` relative to themselves. That is the reported bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.fields import Fields
from evergrow.core.validation import check_number
from evergrow.head.linalg.cholesky import safe_cholesky
from evergrow.head.linalg.eigen import symmetric_eigh
from evergrow.head.linalg.state import (
    ACCUMULATION_DTYPE,
    LARGEST,
    NOTHING,
    RIDGE_FORMS,
    Batch,
    ReducedStatistics,
    RidgeSolution,
    RidgeState,
    Totals,
    check_alpha,
    check_shape,
    read_gram,
    sum_columns,
    take_columns,
    without_shape,
)

BLOCK_ROWS = 1024
"""Rows per step: the remainder of a step is analysed through an n x n eigenproblem."""

BUDGET_SHARE = 1.0 / 16.0
"""Share of the remaining energy budget that one step may drop; the sum then never exceeds the budget."""


COMPACT_TOL = 1e-2
"""Bound on the relative change of the dual coefficients that the compact form may cause over its whole life.
The change of logits, measured, is about a hundredth of it."""


@RIDGE_FORMS.register("compact", version=2, migrations={1: without_shape})
@dataclass(frozen=True)
class CompactState(RidgeState):
    """Statistics in an adaptive basis, with a bound on what was dropped.

    Costs about ``4 n L k`` operations per update and ``k^3 / 3`` per solve, and holds ``8 L k`` bytes, where k
    is the numerical rank of the rows.

    Parameters
    ----------
    basis : Tensor of shape (L, k)
        V, orthonormal columns.
    gram : Tensor of shape (k, k)
        ``V^T G V``.
    cross : Tensor of shape (k, C)
        ``V^T Q``.
    budget : float
        Total energy (squared spectral norm) that may ever be dropped. With ``budget = tol * alpha`` the
        relative change of the dual coefficients stays below ``tol``.
    dropped : float
        Energy that was.
    seen : Totals
        What the statistics stand for.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import CompactState
    >>> rows = torch.ones(5, 1, dtype=torch.float64) @ torch.ones(1, 100, dtype=torch.float64)
    >>> CompactState.empty(100, 1, budget=1e-6).update(rows, torch.ones(5, 1, dtype=torch.float64)).rank
    1
    """

    basis: Tensor
    gram: Tensor
    cross: Tensor
    budget: float
    dropped: float = 0.0
    seen: Totals = NOTHING

    @classmethod
    def empty(cls, n_features: int, n_targets: int, budget: float, device: torch.device | str = "cpu") -> Self:
        """Return a compact state that has seen nothing.

        Parameters
        ----------
        n_features, n_targets : int
            Shape.
        budget : float
            Total energy that may ever be dropped.
        device : torch.device or str
            Where the statistics live.
        """
        check_shape(n_features, n_targets)
        check_number("budget", budget, low=0.0)
        basis = _common_mode(n_features, torch.device(device))
        return cls(basis, basis.new_zeros(1, 1), basis.new_zeros(1, n_targets), float(budget))

    @classmethod
    def create(
        cls,
        n_features: int,
        n_targets: int,
        *,
        alpha: float | None = None,
        floor: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Return a compact state that has seen nothing; the smallest ridge sets how much it may drop."""
        return cls.empty(n_features, n_targets, COMPACT_TOL * floor, device)

    def empty_like(self) -> Self:
        """Return a compact state of the same shape and budget that has seen nothing."""
        return self.empty(self.n_features, self.n_targets, self.budget, self.device)

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        return int(self.basis.shape[0])

    @property
    def n_targets(self) -> int:
        """C, the number of target columns."""
        return int(self.cross.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.basis.device

    @property
    def totals(self) -> Totals:
        """What the statistics stand for."""
        return self.seen

    @property
    def rank(self) -> int:
        """Number of directions kept."""
        return int(self.basis.shape[1])

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return self.rank

    @property
    def nbytes(self) -> int:
        """Bytes held by the statistics."""
        return self.basis.nbytes + self.gram.nbytes + self.cross.nbytes

    def error_bound(self, alpha: float) -> float:
        """Return the bound on the relative change of the dual coefficients that dropping has caused."""
        return self.dropped / check_alpha(alpha)

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> Self:
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
        seen = self.seen.plus(count, sq_targets, sign)
        return dataclasses.replace(self, basis=basis, gram=gram, cross=cross, dropped=dropped, seen=seen)

    def _merge(self, other: ReducedStatistics) -> Self:
        # G_2 = F^T F with F = sqrt(D) U^T V_2^T: the other side's second moments act as k pseudo-rows.
        values, vectors = symmetric_eigh(other.gram.to(self.device))
        kept = values > 0.0
        factor = (values[kept].sqrt() * vectors[:, kept]).T
        rows = factor if other.basis is None else factor @ other.basis.T.to(self.device)
        grown = self._accumulate([(rows, rows.new_zeros(rows.shape[0], self.n_targets))], sign=1)
        other_cross = other.lift(other.cross).to(self.device)
        return dataclasses.replace(
            grown,
            cross=grown.cross + grown.basis.T @ other_cross,
            seen=self.seen.plus(other.count, other.sq_targets),
        )

    def select_targets(self, index: Sequence[int]) -> Self:
        """Return the state with other target columns."""
        return dataclasses.replace(self, cross=take_columns(self.cross, index))

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the state whose target columns are sums of old ones."""
        return dataclasses.replace(self, cross=sum_columns(self.cross, groups))

    def with_totals(self, totals: Totals) -> Self:
        """Return the state with other totals."""
        return dataclasses.replace(self, seen=totals)

    def solve(self, alpha: float) -> RidgeSolution:
        """Return ``V (V^T G V + alpha I)^-1 V^T Q``."""
        alpha = check_alpha(alpha)
        factor = safe_cholesky(self.gram, shift=alpha)
        return RidgeSolution(self.basis @ factor.solve(self.cross), alpha, factor.jitter)

    def reduced(self) -> ReducedStatistics:
        """Return the statistics in the coordinates of the basis."""
        return ReducedStatistics(self.basis, self.gram, self.cross, self.count, self.sq_targets)

    def to_archive(self) -> Archive:
        """Return the basis, the statistics in it, budget and what was dropped."""
        meta = {**self._totals_meta(), "budget": self.budget, "dropped": self.dropped}
        tensors = {"basis": self.basis, "gram": self.gram, "cross": self.cross}
        return RIDGE_FORMS.kind_of(type(self)).archive(meta, tensors)

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the compact state that :meth:`to_archive` gave."""
        basis = fields.tensor("basis", (None, None))
        rank = basis.shape[1]
        fields.require(0 < rank <= basis.shape[0], "its basis has no columns, or more than rows")
        # Orthonormal columns have entries up to 1; the product of all pairs would cost as much as learning.
        fields.require(
            bool((basis.square().sum(dim=0) - 1.0).abs().amax() < 1e-6), "the columns of its basis are not of length 1"
        )
        gram = read_gram(fields, "gram", rank, device)
        cross = fields.tensor("cross", (rank, None), largest=LARGEST).to(device)
        budget, dropped = fields.number("budget", low=0.0), fields.number("dropped", low=0.0)
        return cls(basis.to(device), gram, cross, budget, dropped, Totals.read(fields))


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
