"""The paper's recursion: the inverse of P and the weights W, carried along by rank-n (Woodbury) steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import NumericalError
from evergrow.core.record import Between, Spec, record, require
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.statistics import (
    LARGEST_WEIGHT,
    Batch,
    Readout,
    RidgeStatistics,
    check_gram,
    sum_columns,
)

BLOCK_ROWS = 512
"""Rows per Woodbury step: larger ones cost a larger inner Cholesky for no gain."""


@record("ridge-recursion", version=2)
@dataclass(frozen=True, kw_only=True, eq=False)
class RecursiveState(RidgeStatistics):
    """Dense statistics with the inverse ``R = (G + alpha I)^-1`` and the weights carried along.

    For a batch H, Y with ``K = I + H R H^T`` one step is

        R <- R - (R H^T) K^-1 (R H^T)^T            W <- W + R H^T (Y - H W)

    Costs about ``6 n L^2`` operations per update; the weights for its own ``alpha`` are
    always ready, which pays for small batches of high rank. Other values of alpha,
    merges and everything else are served by the statistics.

    Parameters
    ----------
    inverse : Tensor of shape (L, L)
        ``R``.
    weights : Tensor of shape (L, C)
        ``W``.
    alpha : float
        The ridge of the recursion.
    gram, cross, count, sq_targets
        As of :class:`~evergrow.head.linalg.statistics.RidgeStatistics`.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.recursive import RecursiveState
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> state = RecursiveState.of(RidgeStatistics.create(2, 1), alpha=1.0)
    >>> state = state.update(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    """

    inverse: Annotated[Tensor, Spec(("k", "k"), symmetric=True)]
    weights: Annotated[Tensor, Spec(("k", "C"), largest=LARGEST_WEIGHT)]
    alpha: Annotated[float, Between(above=0.0)]

    @classmethod
    def of(cls, stats: RidgeStatistics, alpha: float) -> Self:
        """Return the recursion that goes on from dense statistics."""
        known = {
            field.name: getattr(stats, field.name)
            for field in dataclasses.fields(RidgeStatistics)
        }
        factor = safe_cholesky(stats.gram, shift=alpha)
        inverse = torch.cholesky_inverse(factor.lower)
        return cls(
            **known,
            inverse=inverse,
            weights=factor.solve(stats.cross),
            alpha=float(alpha),
        )

    def empty_like(self) -> RecursiveState:
        """Return a recursion of the same shape and ridge that has seen nothing."""
        return self.of(super().empty_like(), self.alpha)

    def _accumulate(self, batches: Iterable[Batch], sign: int, rows: int) -> Self:
        inverse = self.inverse.clone()
        weights = self.weights

        def followed() -> Iterator[Batch]:
            nonlocal weights
            for H, Y, columns in batches:
                if columns is None:
                    Y = Y
                else:
                    Y = Y.new_zeros(len(Y), self.n_targets).index_copy_(1, columns, Y)
                for part, targets in zip(
                    torch.split(H, BLOCK_ROWS), torch.split(Y, BLOCK_ROWS), strict=True
                ):
                    weights = _woodbury_step(inverse, weights, part, targets, sign)
                yield H, Y, None

        summed = self._accumulate_dense(followed(), sign)
        if not bool(torch.isfinite(weights).all()):
            raise NumericalError(
                "The recursion left the range of numbers. Raise alpha, or use solver='dense'."
            )
        inverse = (
            inverse.tril() + inverse.tril(-1).T
        )  # symmetric to the last digit, as a file holds it
        return dataclasses.replace(summed, inverse=inverse, weights=weights)

    def merge(self, other: RidgeStatistics, sign: int = 1) -> Self:
        """Start the recursion anew from both statistics."""
        return self.of(super().merge(other, sign), self.alpha)

    def faded(self, factor: float) -> Self:
        """Start the recursion anew from the statistics with all weights times a factor."""
        return self.of(super().faded(factor), self.alpha)

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the recursion whose target columns are sums of old ones."""
        return dataclasses.replace(
            super().group_targets(groups), weights=sum_columns(self.weights, groups)
        )

    def solve(self, alpha: float) -> Readout:
        """Return the recursion's own weights, or those of another ridge from the statistics."""
        if alpha != self.alpha:
            return super().solve(alpha)
        # A file may hold both, and not one tensor twice.
        return Readout(
            self.weights.clone(), self.weights.new_zeros(self.n_targets), alpha, 0.0
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds an inverse that rows can have."""
        super().check()
        check_gram("inverse", self.inverse)
        require(
            bool((self.inverse.diagonal() > 0.0).all()), "its inverse is of no matrix"
        )


def _woodbury_step(
    inverse: Tensor, weights: Tensor, H: Tensor, Y: Tensor, sign: int
) -> Tensor:
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
    # After the step R' H^T = R H^T K^-1, so the gain needs no second product with the
    # new inverse.
    weights = weights + sign * (half.T @ factor.half_solve(residual))
    inverse.addmm_(half.T, half, alpha=-float(sign))
    return weights
