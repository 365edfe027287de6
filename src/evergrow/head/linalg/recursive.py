"""The paper's recursion: the inverse of P and the weights W, carried along by rank-n (Woodbury) steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import NumericalError
from evergrow.core.record import Between, Spec, record, require
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.statistics import (
    ACCUMULATION_DTYPE,
    LARGEST_WEIGHT,
    Batch,
    RidgeSolution,
    RidgeState,
    RidgeStatistics,
    check_gram,
    sum_columns,
)

BLOCK_ROWS = 512
"""Rows per Woodbury step: larger ones cost a larger inner Cholesky for no gain."""


@record("ridge-recursion")
@dataclass(frozen=True, kw_only=True, eq=False)
class RecursiveState(RidgeState):
    """The inverse ``R = (G + alpha I)^-1`` and the weights, carried along.

    For a batch H, Y with ``K = I + H R H^T`` one step is

        R <- R - (R H^T) K^-1 (R H^T)^T            W <- W + R H^T (Y - H W)

    Costs about ``4 n L^2`` operations per update; the weights for its own ``alpha`` are always ready, which pays for
    small batches of high rank. Other values of alpha are served through an inversion, at ``O(L^3)``.

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
    count, sq_targets : int, float
        Net number of rows learned, and the sum of their squared targets.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.recursive import RecursiveState
    >>> state = RecursiveState.create(2, 1, alpha=1.0).update(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    """

    inverse: Annotated[Tensor, Spec(("k", "k"), symmetric=True)]
    weights: Annotated[Tensor, Spec(("k", "C"), largest=LARGEST_WEIGHT)]
    alpha: Annotated[float, Between(above=0.0)]

    @classmethod
    def create(cls, n_features: int, n_targets: int, *, alpha: float, device: torch.device | str = "cpu") -> Self:
        """Return a recursion at its start."""
        inverse = torch.zeros(n_features, n_features, dtype=ACCUMULATION_DTYPE, device=device)
        inverse.diagonal().fill_(1.0 / alpha)
        weights, cross = (inverse.new_zeros(n_features, n_targets) for _ in range(2))
        return cls(inverse=inverse, weights=weights, cross=cross, alpha=float(alpha))

    def empty_like(self) -> Self:
        """Return a recursion of the same shape and ridge that has seen nothing."""
        return self.create(self.n_features, self.n_targets, alpha=self.alpha, device=self.device)

    @property
    def form(self) -> str:
        """``"recursive"``."""
        return "recursive"

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        return int(self.inverse.shape[0])

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> Self:
        inverse, weights, cross = self.inverse.clone(), self.weights, self.cross
        count, sq_targets = 0, 0.0
        for H_all, Y_all in batches:
            for H, Y in zip(torch.split(H_all, BLOCK_ROWS), torch.split(Y_all, BLOCK_ROWS)):
                weights = _woodbury_step(inverse, weights, H, Y, sign)
            cross = cross + sign * (H_all.T @ Y_all)
            count += H_all.shape[0]
            sq_targets += float(Y_all.square().sum())
        if not bool(torch.isfinite(weights).all()):
            raise NumericalError("The recursion left the range of numbers. Raise alpha, or use solver='dense'.")
        inverse = inverse.tril() + inverse.tril(-1).T  # symmetric to the last digit, as a file holds it
        seen = self._plus(count, sq_targets, sign)
        return dataclasses.replace(self, inverse=inverse, weights=weights, cross=cross, **seen)

    def merge(self, other: RidgeState, sign: int = 1) -> Self:
        """Start the recursion anew from both statistics."""
        own, other = self.reduced(), other.reduced()
        cross = own.cross + sign * other.lift(other.cross).to(self.device)
        factor = safe_cholesky(own.gram + sign * other.full_gram().to(self.device), shift=self.alpha)
        inverse, weights = torch.cholesky_inverse(factor.lower), factor.solve(cross)
        seen = self._plus(other.count, other.sq_targets, sign)
        return dataclasses.replace(self, inverse=inverse, weights=weights, cross=cross, **seen)

    def faded(self, factor: float) -> Self:
        """Start the recursion anew from the statistics with all weights times a factor."""
        return self.empty_like().merge(self.reduced().faded(factor))

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the recursion whose target columns are sums of old ones."""
        cross, weights = (sum_columns(part, groups) for part in (self.cross, self.weights))
        return dataclasses.replace(self, cross=cross, weights=weights)

    def solve(self, alpha: float) -> RidgeSolution:
        """Return the recursion's own weights, or those of another ridge through an inversion."""
        if alpha == self.alpha:
            return RidgeSolution(self.weights.clone(), alpha)  # a file may hold both, and not one tensor twice
        return self.reduced().solve(alpha)

    def reduced(self) -> RidgeStatistics:
        """Return G recovered as ``R^-1 - alpha I``, at the cost of one inversion."""
        gram = torch.cholesky_inverse(safe_cholesky(self.inverse).lower)
        gram.diagonal().sub_(self.alpha)
        return RidgeStatistics(gram=gram, cross=self.cross, count=self.count, sq_targets=self.sq_targets)

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds an inverse that rows can have."""
        check_gram("inverse", self.inverse)
        require(bool((self.inverse.diagonal() > 0.0).all()), "its inverse is of no matrix")


def _woodbury_step(inverse: Tensor, weights: Tensor, H: Tensor, Y: Tensor, sign: int) -> Tensor:
    """Update ``inverse`` in place by rows H (n, L) with targets Y (n, C), and return the new weights."""
    RH = inverse @ H.T
    inner = H @ RH
    inner = (inner + inner.T).mul_(0.5 * sign)
    try:
        factor = safe_cholesky(inner, shift=1.0, allow_jitter=sign > 0)
    except NumericalError as error:
        raise NumericalError("The rows to unlearn were not learned before.") from error
    half = factor.half_solve(RH.T)
    residual = Y - H @ weights
    # After the step R' H^T = R H^T K^-1, so the gain needs no second product with the new inverse.
    weights = weights + sign * (half.T @ factor.half_solve(residual))
    inverse.addmm_(half.T, half, alpha=-float(sign))
    return weights
