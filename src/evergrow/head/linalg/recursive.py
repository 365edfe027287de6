"""The paper's recursion: update the inverse and the weights by Woodbury steps."""

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
"""Rows per Woodbury step. Larger steps only enlarge the inner factorisation."""


@record("ridge-recursion", version=2)
@dataclass(frozen=True, kw_only=True, eq=False)
class RecursiveState(RidgeStatistics):
    """Dense statistics that also carry ``R = (G + alpha I)^-1`` and ``W = R Q``.

    G is the Gram matrix and Q the cross product of the statistics. One step for rows H
    with targets Y and ``K = I + H R H^T`` is

        R <- R - (R H^T) K^-1 (R H^T)^T            W <- W + R H^T (Y - H W)

    with the new R in the second equation. An update takes about ``6 n L^2`` operations.
    The weights for the recursion's own `alpha` are always available, so the recursion
    suits small batches of high rank. Everything else, such as other ridges and merging,
    uses the statistics.

    Parameters
    ----------
    inverse : Tensor of shape (L, L)
        R.
    weights : Tensor of shape (L, C)
        W.
    alpha : float
        Ridge of the recursion.
    gram, cross, count, sq_targets
        See :class:`~evergrow.head.linalg.statistics.RidgeStatistics`.

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
        """Start a recursion from dense statistics, with ridge `alpha`.

        Raises
        ------
        NumericalError
            If ``G + alpha I`` is not positive definite.
        """
        fields = {
            field.name: getattr(stats, field.name)
            for field in dataclasses.fields(RidgeStatistics)
        }
        factor = safe_cholesky(stats.gram, shift=alpha)
        inverse = torch.cholesky_inverse(factor.lower)
        return cls(
            **fields,
            inverse=inverse,
            weights=factor.solve(stats.cross),
            alpha=float(alpha),
        )

    def empty_like(self) -> RecursiveState:
        """Return an empty recursion of the same shape and ridge."""
        return self.of(super().empty_like(), self.alpha)

    def _accumulate(self, batches: Iterable[Batch], sign: int, rows: int) -> Self:
        """Learn or unlearn batches. `rows` is not needed in the dense form."""
        inverse = self.inverse.clone()
        weights = self.weights

        def step_through(batches: Iterable[Batch]) -> Iterator[Batch]:
            """Update `inverse` and `weights` by each batch, and pass it on.

            The statistics then learn the same batches in one pass.
            """
            nonlocal weights
            for H, Y, columns in batches:
                if columns is not None:
                    all_targets = Y.new_zeros(len(Y), self.n_targets)
                    Y = all_targets.index_copy_(1, columns, Y)
                blocks = zip(
                    torch.split(H, BLOCK_ROWS), torch.split(Y, BLOCK_ROWS), strict=True
                )
                for part, targets in blocks:
                    weights = _woodbury_step(inverse, weights, part, targets, sign)
                yield H, Y, None

        summed = self._accumulate_dense(step_through(batches), sign)
        if not bool(torch.isfinite(weights).all()):
            raise NumericalError(
                "The recursion overflowed. Raise alpha, or use solver='dense'."
            )
        # Files require a symmetric inverse.
        inverse = inverse.tril() + inverse.tril(-1).T
        return dataclasses.replace(summed, inverse=inverse, weights=weights)

    def merge(self, other: RidgeStatistics, sign: int = 1) -> Self:
        """Return a recursion of the sum of both statistics, or of the difference."""
        return self.of(super().merge(other, sign), self.alpha)

    def faded(self, factor: float) -> Self:
        """Return a recursion with all sample weights multiplied by `factor`."""
        return self.of(super().faded(factor), self.alpha)

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the recursion with other target columns, see the base class."""
        return dataclasses.replace(
            super().group_targets(groups), weights=sum_columns(self.weights, groups)
        )

    def solve(self, alpha: float) -> Readout:
        """Return W for the recursion's ridge, or solve the statistics for another."""
        if alpha != self.alpha:
            return super().solve(alpha)
        # Cloned, because a file cannot contain one tensor twice.
        return Readout(
            self.weights.clone(), self.weights.new_zeros(self.n_targets), alpha, 0.0
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the inverse is plausible."""
        super().check()
        check_gram("inverse", self.inverse)
        require(
            bool((self.inverse.diagonal() > 0.0).all()),
            "its inverse has a diagonal that is not positive",
        )


def _woodbury_step(
    inverse: Tensor, weights: Tensor, H: Tensor, Y: Tensor, sign: int
) -> Tensor:
    """Update `inverse` in place by one step, and return the new weights.

    Parameters
    ----------
    inverse : Tensor of shape (L, L)
        R.
    weights : Tensor of shape (L, C)
        W.
    H : Tensor of shape (n, L)
        Rows.
    Y : Tensor of shape (n, C)
        Targets.
    sign : {1, -1}
        Whether the rows are learned or unlearned.

    Raises
    ------
    NumericalError
        If rows are unlearned that were not learned.
    """
    RH = inverse @ H.T
    inner = H @ RH
    inner = (inner + inner.T).mul_(0.5 * sign)
    try:
        factor = safe_cholesky(inner, shift=1.0, allow_jitter=sign > 0)
    except NumericalError as error:
        raise NumericalError("The rows to unlearn were not learned before.") from error
    half = factor.half_solve(RH.T)
    residual = Y - H @ weights
    # The new inverse R' satisfies R' H^T = R H^T K^-1.
    weights = weights + sign * (half.T @ factor.half_solve(residual))
    inverse.addmm_(half.T, half, alpha=-float(sign))
    return weights
