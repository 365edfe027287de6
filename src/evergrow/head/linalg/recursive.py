"""The recursive form: the paper's recursion on P^-1 and W by rank-n (Woodbury) steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import NumericalError
from evergrow.core.fields import Fields
from evergrow.head.linalg.cholesky import safe_cholesky
from evergrow.head.linalg.state import (
    ACCUMULATION_DTYPE,
    LARGEST,
    LARGEST_WEIGHT,
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

BLOCK_ROWS = 512
"""Rows per Woodbury step: larger ones cost a larger inner Cholesky for no gain."""


@RIDGE_FORMS.register("recursive", version=2, migrations={1: without_shape})
@dataclass(frozen=True)
class RecursiveState(RidgeState):
    """The inverse ``R = (G + alpha I)^-1`` and the weights, carried along.

    For a batch H, Y with ``K = I + H R H^T`` one step is

        R <- R - (R H^T) K^-1 (R H^T)^T            W <- W + R H^T (Y - H W)

    which is the paper's recursion with the inverse of P carried along. Costs about ``4 n L^2`` operations
    per update; the weights for its own ``alpha`` are always ready. Other values of alpha are served through
    an inversion, at ``O(L^3)``.

    Parameters
    ----------
    inverse : Tensor of shape (L, L)
        ``R``.
    weights : Tensor of shape (L, C)
        ``W``.
    cross : Tensor of shape (L, C)
        ``Q``.
    alpha : float
        The ridge of the recursion.
    seen : Totals
        What they stand for.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import RecursiveState
    >>> state = RecursiveState.create(2, 1, alpha=1.0).update(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    """

    inverse: Tensor
    weights: Tensor
    cross: Tensor
    alpha: float
    seen: Totals = NOTHING

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
        """Return a recursion at its start; where no ridge is fixed it runs at the smallest."""
        check_shape(n_features, n_targets)
        ridge = check_alpha(floor if alpha is None else alpha)
        inverse = torch.zeros(n_features, n_features, dtype=ACCUMULATION_DTYPE, device=device)
        inverse.diagonal().fill_(1.0 / ridge)
        weights, cross = (inverse.new_zeros(n_features, n_targets) for _ in range(2))
        return cls(inverse, weights, cross, ridge)

    def empty_like(self) -> Self:
        """Return a recursive state of the same shape and ridge that has seen nothing."""
        return self.create(self.n_features, self.n_targets, alpha=self.alpha, device=self.device)

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        return int(self.inverse.shape[0])

    @property
    def n_targets(self) -> int:
        """C, the number of target columns."""
        return int(self.cross.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.inverse.device

    @property
    def totals(self) -> Totals:
        """What the statistics stand for."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Bytes held by the statistics."""
        return self.inverse.nbytes + self.cross.nbytes + self.weights.nbytes

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> Self:
        inverse, weights, cross = self.inverse.clone(), self.weights, self.cross
        count, sq_targets = 0, 0.0
        for H_all, Y_all in batches:
            for H, Y in zip(torch.split(H_all, BLOCK_ROWS), torch.split(Y_all, BLOCK_ROWS)):
                weights = woodbury_step(inverse, weights, H, Y, sign)
            cross = cross + sign * (H_all.T @ Y_all)
            count += H_all.shape[0]
            sq_targets += float(Y_all.square().sum())
        if not bool(torch.isfinite(weights).all()):
            raise NumericalError("the recursion must stay finite; raise alpha or use solver='dense'")
        seen = self.seen.plus(count, sq_targets, sign)
        return dataclasses.replace(self, inverse=inverse, weights=weights, cross=cross, seen=seen)

    def _merge(self, other: ReducedStatistics) -> Self:
        """Start the recursion anew from the sum of both statistics."""
        own = self.reduced()
        gram = other.gram if other.basis is None else other.basis @ other.gram @ other.basis.T
        cross = own.cross + other.lift(other.cross).to(self.device)
        factor = safe_cholesky(own.gram + gram.to(self.device), shift=self.alpha)
        return dataclasses.replace(
            self,
            inverse=torch.cholesky_inverse(factor.lower),
            weights=factor.solve(cross),
            cross=cross,
            seen=self.seen.plus(other.count, other.sq_targets),
        )

    def select_targets(self, index: Sequence[int]) -> Self:
        """Return the state with other target columns of the cross statistics and of the weights."""
        return dataclasses.replace(
            self, cross=take_columns(self.cross, index), weights=take_columns(self.weights, index)
        )

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the state whose target columns are sums of old ones."""
        return dataclasses.replace(
            self, cross=sum_columns(self.cross, groups), weights=sum_columns(self.weights, groups)
        )

    def with_totals(self, totals: Totals) -> Self:
        """Return the state with other totals."""
        return dataclasses.replace(self, seen=totals)

    def solve(self, alpha: float) -> RidgeSolution:
        """Return the recursion's own weights, or those of another ridge through an inversion."""
        alpha = check_alpha(alpha)
        if alpha == self.alpha:
            return RidgeSolution(self.weights.clone(), alpha)  # a file may hold both, and not one tensor twice
        factor = safe_cholesky(self.reduced().gram, shift=alpha)
        return RidgeSolution(factor.solve(self.cross), alpha, factor.jitter)

    def reduced(self) -> ReducedStatistics:
        """Return G recovered as ``R^-1 - alpha I``, at the cost of one inversion."""
        gram = torch.cholesky_inverse(safe_cholesky(self.inverse).lower)
        gram.diagonal().sub_(self.alpha)
        return ReducedStatistics(None, gram, self.cross, self.count, self.sq_targets)

    def to_archive(self) -> Archive:
        """Return the inverse, the weights, the cross matrix and the ridge."""
        tensors = {"inverse": self.inverse, "weights": self.weights, "cross": self.cross}
        return RIDGE_FORMS.kind_of(type(self)).archive({**self._totals_meta(), "alpha": self.alpha}, tensors)

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the recursive state that :meth:`to_archive` gave."""
        inverse = read_gram(fields, "inverse", None, device)
        fields.require(len(inverse) > 0 and bool((inverse.diagonal() > 0.0).all()), "its inverse is of no matrix")
        cross = fields.tensor("cross", (len(inverse), None), largest=LARGEST)
        weights = fields.tensor("weights", cross.shape, largest=LARGEST_WEIGHT)
        alpha = fields.number("alpha", low=0.0)
        fields.require(alpha > 0.0, "its ridge is zero")
        return cls(inverse, weights.to(device), cross.to(device), alpha, Totals.read(fields))

    @classmethod
    def from_statistics(cls, stats: ReducedStatistics, n_features: int, alpha: float) -> Self:
        """Start the recursion from statistics of another form, exactly.

        With a basis V the inverse is ``(I - V V^T) / alpha + V (V^T G V + alpha I)^-1 V^T``.
        """
        factor = safe_cholesky(stats.gram, shift=alpha)
        small = torch.cholesky_inverse(factor.lower)
        if stats.basis is None:
            inverse = small
        else:
            small.diagonal().sub_(1.0 / alpha)
            inverse = cls.create(n_features, 0, alpha=alpha, device=stats.cross.device).inverse
            inverse.addmm_(stats.basis @ small, stats.basis.T)
        cross, weights = stats.lift(stats.cross).clone(), stats.lift(factor.solve(stats.cross))
        return cls(inverse, weights, cross, alpha, Totals(stats.count, stats.sq_targets))


def woodbury_step(inverse: Tensor, weights: Tensor, H: Tensor, Y: Tensor, sign: int = 1) -> Tensor:
    """Update ``inverse`` in place by rows H and return the new weights.

    Parameters
    ----------
    inverse : Tensor of shape (L, L)
        ``(G + alpha I)^-1``; becomes ``(G + sign H^T H + alpha I)^-1``.
    weights : Tensor of shape (L, C)
        Weights before the step; not modified.
    H, Y : Tensor of shapes (n, L) and (n, C)
        The rows and their targets.
    sign : int
        1 learns, -1 unlearns.
    """
    RH = inverse @ H.T
    inner = H @ RH
    inner = (inner + inner.T).mul_(0.5 * sign)
    try:
        factor = safe_cholesky(inner, shift=1.0, allow_jitter=sign > 0)
    except NumericalError as error:
        raise NumericalError("the rows to unlearn must have been learned before, but they were not") from error
    half = factor.half_solve(RH.T)
    residual = Y - H @ weights
    # After the step R' H^T = R H^T K^-1, so the gain needs no second product with the new inverse.
    weights = weights + sign * (half.T @ factor.half_solve(residual))
    inverse.addmm_(half.T, half, alpha=-float(sign))
    return weights
