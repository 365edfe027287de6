"""The dense form: the L x L Gram matrix, solved by one Cholesky factorisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.fields import Fields
from evergrow.head.linalg.cholesky import safe_cholesky
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


@RIDGE_FORMS.register("dense", version=2, migrations={1: without_shape})
@dataclass(frozen=True)
class DenseState(RidgeState):
    """Exact statistics as an L x L matrix.

    Costs ``2 n L^2`` operations per update of n rows, ``L^3 / 3`` per solve and ``8 L^2`` bytes.

    Parameters
    ----------
    gram : Tensor of shape (L, L)
        ``G``.
    cross : Tensor of shape (L, C)
        ``Q``.
    seen : Totals
        What they stand for.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import DenseState
    >>> H = torch.eye(2, dtype=torch.float64)
    >>> state = DenseState.create(2, 1).update(H, torch.tensor([[1.0], [3.0]], dtype=torch.float64))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    """

    gram: Tensor
    cross: Tensor
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
        """Return a dense state that has seen nothing; it serves any ridge."""
        check_shape(n_features, n_targets)
        gram = torch.zeros(n_features, n_features, dtype=ACCUMULATION_DTYPE, device=device)
        return cls(gram, gram.new_zeros(n_features, n_targets))

    def empty_like(self) -> Self:
        """Return a dense state of the same shape that has seen nothing."""
        return self.create(self.n_features, self.n_targets, device=self.device)

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        return int(self.gram.shape[0])

    @property
    def n_targets(self) -> int:
        """C, the number of target columns."""
        return int(self.cross.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.gram.device

    @property
    def totals(self) -> Totals:
        """What the statistics stand for."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Bytes held by the statistics."""
        return self.gram.nbytes + self.cross.nbytes

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> Self:
        # The first batch makes the new matrices, in one pass over the old; those after it are added in place.
        gram, cross, count, sq_targets = self.gram, self.cross, 0, 0.0
        for H, Y in batches:
            if gram is self.gram:
                gram, cross = torch.addmm(gram, H.T, H, alpha=sign), torch.addmm(cross, H.T, Y, alpha=sign)
            else:
                gram.addmm_(H.T, H, alpha=sign)
                cross.addmm_(H.T, Y, alpha=sign)
            count += H.shape[0]
            sq_targets += float(Y.square().sum())
        return dataclasses.replace(self, gram=gram, cross=cross, seen=self.seen.plus(count, sq_targets, sign))

    def _merge(self, other: ReducedStatistics) -> Self:
        gram = other.gram if other.basis is None else other.basis @ other.gram @ other.basis.T
        return dataclasses.replace(
            self,
            gram=self.gram + gram.to(self.device),
            cross=self.cross + other.lift(other.cross).to(self.device),
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
        """Return ``(G + alpha I)^-1 Q`` by a Cholesky factorisation."""
        alpha = check_alpha(alpha)
        factor = safe_cholesky(self.gram, shift=alpha)
        return RidgeSolution(factor.solve(self.cross), alpha, factor.jitter)

    def reduced(self) -> ReducedStatistics:
        """Return the statistics as they are (no reduction)."""
        return ReducedStatistics(None, self.gram, self.cross, self.count, self.sq_targets)

    def to_archive(self) -> Archive:
        """Return the Gram and cross matrices, and what they stand for."""
        kind = RIDGE_FORMS.kind_of(type(self))
        return kind.archive(self._totals_meta(), {"gram": self.gram, "cross": self.cross})

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the dense state that :meth:`to_archive` gave."""
        gram = read_gram(fields, "gram", None, device)
        fields.require(len(gram) > 0, "its Gram matrix is empty")
        return cls(gram, fields.tensor("cross", (len(gram), None), largest=LARGEST).to(device), Totals.read(fields))
