"""The dense form: the L x L Gram matrix, solved by one Cholesky factorisation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.linalg.cholesky import safe_cholesky
from evergrow.linalg.state import (
    ACCUMULATION_DTYPE,
    Batch,
    ReducedStatistics,
    RidgeSolution,
    RidgeState,
    check_alpha,
)


class DenseState(RidgeState):
    """Exact statistics as an L x L matrix.

    Costs ``2 n L^2`` operations per update of n rows, ``L^3 / 3`` per solve and ``8 L^2`` bytes.

    Parameters
    ----------
    n_features : int
        L, the width of the rows.
    n_targets : int
        C, the number of target columns.
    device : torch.device or str
        Where the statistics live.

    Examples
    --------
    >>> import torch
    >>> from evergrow.linalg import DenseState
    >>> H = torch.eye(2, dtype=torch.float64)
    >>> state = DenseState(2, 1)
    >>> state.update(H, torch.tensor([[1.0], [3.0]], dtype=torch.float64))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    """

    kind: ClassVar[str] = "dense"

    def __init__(self, n_features: int, n_targets: int, device: torch.device | str = "cpu") -> None:
        super().__init__(n_features, n_targets, device)
        self.gram = torch.zeros(n_features, n_features, dtype=ACCUMULATION_DTYPE, device=self.device)

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> None:
        # The increment is built apart and becomes the new statistics in one step, so that a failure on the way
        # changes nothing and a branch keeps what it had. Its memory is no more than a solve needs anyway.
        gram = torch.zeros_like(self.gram)
        cross = torch.zeros_like(self.cross)
        count, sq_targets = 0, 0.0
        for H, Y in batches:
            gram.addmm_(H.T, H)
            cross.addmm_(H.T, Y)
            count += H.shape[0]
            sq_targets += float(Y.square().sum())
        self.gram = gram.mul_(sign).add_(self.gram)
        self.cross = cross.mul_(sign).add_(self.cross)
        self.count += sign * count
        self.sq_targets += sign * sq_targets

    def _merge(self, other: ReducedStatistics) -> None:
        gram = other.gram if other.basis is None else other.basis @ other.gram @ other.basis.T
        self.gram = self.gram + gram.to(self.device)
        self.cross = self.cross + other.lift(other.cross).to(self.device)
        self.count += other.count
        self.sq_targets += other.sq_targets

    def solve(self, alpha: float) -> RidgeSolution:
        """Return ``(G + alpha I)^-1 Q`` by a Cholesky factorisation."""
        alpha = check_alpha(alpha)
        factor = safe_cholesky(self.gram, shift=alpha)
        return RidgeSolution(factor.solve(self.cross), alpha, factor.jitter)

    def reduced(self) -> ReducedStatistics:
        """Return the statistics as they are (no reduction)."""
        return ReducedStatistics(None, self.gram, self.cross, self.count, self.sq_targets)

    @property
    def nbytes(self) -> int:
        """Bytes held by the statistics."""
        return self.gram.nbytes + self.cross.nbytes

    def empty_like(self) -> Self:
        """Return a dense state of the same shape that has seen nothing."""
        return type(self)(self.n_features, self.n_targets, self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return the Gram and cross matrices."""
        return {"gram": self.gram, "cross": self.cross}

    def settings(self) -> dict[str, Any]:
        """Return shape and counts."""
        return self._base_settings()

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any], device: torch.device) -> Self:
        """Rebuild a dense state."""
        state = cls.__new__(cls)
        RidgeState.__init__(state, settings["n_features"], settings["n_targets"], device)
        state.gram = tensors["gram"].to(state.device, ACCUMULATION_DTYPE)
        state._restore_base(settings, tensors["cross"])
        return state
