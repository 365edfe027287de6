"""The recursive form: the paper's recursion on P^-1 and W by rank-n (Woodbury) steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import NumericalError
from evergrow.linalg.cholesky import safe_cholesky
from evergrow.linalg.state import (
    ACCUMULATION_DTYPE,
    Batch,
    ReducedStatistics,
    RidgeSolution,
    RidgeState,
    check_alpha,
    take_columns,
)

BLOCK_ROWS = 512
"""Rows per Woodbury step: larger ones cost a larger inner Cholesky for no gain."""


class RecursiveState(RidgeState):
    """The inverse ``R = (G + alpha I)^-1`` and the weights, updated in place.

    For a batch H, Y with ``K = I + H R H^T`` one step is

        R <- R - (R H^T) K^-1 (R H^T)^T            W <- W + R H^T (Y - H W)

    which is the paper's recursion with the inverse of P carried along. Costs about ``4 n L^2`` operations
    per update; the weights for its own ``alpha`` are always ready. Other values of alpha are served through
    an inversion, at ``O(L^3)``.

    Parameters
    ----------
    n_features : int
        L, the width of the rows.
    n_targets : int
        C, the number of target columns.
    alpha : float
        The ridge of the recursion.
    device : torch.device or str
        Where the statistics live.

    Examples
    --------
    >>> import torch
    >>> from evergrow.linalg import RecursiveState
    >>> state = RecursiveState(2, 1, alpha=1.0)
    >>> state.update(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    """

    kind: ClassVar[str] = "recursive"

    def __init__(self, n_features: int, n_targets: int, alpha: float, device: torch.device | str = "cpu") -> None:
        super().__init__(n_features, n_targets, device)
        self.alpha = check_alpha(alpha)
        self.weights = torch.zeros_like(self.cross)
        self.inverse = torch.zeros(n_features, n_features, dtype=ACCUMULATION_DTYPE, device=self.device)
        self.inverse.diagonal().fill_(1.0 / self.alpha)

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> None:
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
        self.inverse, self.weights, self.cross = inverse, weights, cross
        self.count += sign * count
        self.sq_targets += sign * sq_targets

    def _merge(self, other: ReducedStatistics) -> None:
        own = self.reduced()
        gram = other.gram if other.basis is None else other.basis @ other.gram @ other.basis.T
        self._rebuild(own.gram + gram.to(self.device), own.cross + other.lift(other.cross).to(self.device))
        self.count += other.count
        self.sq_targets += other.sq_targets

    def _rebuild(self, gram: Tensor, cross: Tensor) -> None:
        """Start the recursion anew from full statistics."""
        factor = safe_cholesky(gram, shift=self.alpha)
        self.inverse = torch.cholesky_inverse(factor.lower)
        self.cross = cross
        self.weights = factor.solve(cross)

    def solve(self, alpha: float) -> RidgeSolution:
        """Return the recursion's own weights, or those of another ridge through an inversion."""
        alpha = check_alpha(alpha)
        if alpha == self.alpha:
            return RidgeSolution(self.weights, alpha)
        factor = safe_cholesky(self.reduced().gram, shift=alpha)
        return RidgeSolution(factor.solve(self.cross), alpha, factor.jitter)

    def reduced(self) -> ReducedStatistics:
        """Return G recovered as ``R^-1 - alpha I``, at the cost of one inversion."""
        gram = torch.cholesky_inverse(safe_cholesky(self.inverse).lower)
        gram.diagonal().sub_(self.alpha)
        return ReducedStatistics(None, gram, self.cross, self.count, self.sq_targets)

    def select_targets(self, index: Sequence[int]) -> None:
        """Rebuild the target columns of the cross statistics and of the weights."""
        super().select_targets(index)
        self.weights = take_columns(self.weights, index)

    @property
    def nbytes(self) -> int:
        """Bytes held by the statistics."""
        return self.inverse.nbytes + self.cross.nbytes + self.weights.nbytes

    def empty_like(self) -> Self:
        """Return a recursive state of the same shape and ridge that has seen nothing."""
        return type(self)(self.n_features, self.n_targets, self.alpha, self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return the inverse, the weights and the cross matrix."""
        return {"inverse": self.inverse, "weights": self.weights, "cross": self.cross}

    def settings(self) -> dict[str, Any]:
        """Return shape, counts and ridge."""
        return {**self._base_settings(), "alpha": self.alpha}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any], device: torch.device) -> Self:
        """Rebuild a recursive state."""
        state = cls.__new__(cls)
        RidgeState.__init__(state, settings["n_features"], settings["n_targets"], device)
        state.alpha = check_alpha(settings["alpha"])
        state.inverse = tensors["inverse"].to(state.device, ACCUMULATION_DTYPE)
        state.weights = tensors["weights"].to(state.device, ACCUMULATION_DTYPE)
        state._restore_base(settings, tensors["cross"])
        return state

    @classmethod
    def from_statistics(cls, stats: ReducedStatistics, n_features: int, alpha: float) -> Self:
        """Start the recursion from statistics of another form, exactly.

        With a basis V the inverse is ``(I - V V^T) / alpha + V (V^T G V + alpha I)^-1 V^T``.
        """
        state = cls(n_features, int(stats.cross.shape[1]), alpha, stats.cross.device)
        factor = safe_cholesky(stats.gram, shift=alpha)
        small = torch.cholesky_inverse(factor.lower)
        if stats.basis is None:
            state.inverse = small
        else:
            small.diagonal().sub_(1.0 / alpha)
            state.inverse.addmm_(stats.basis @ small, stats.basis.T)
        state.cross = stats.lift(stats.cross).clone()
        state.weights = stats.lift(factor.solve(stats.cross))
        state.count, state.sq_targets = stats.count, stats.sq_targets
        return state


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
