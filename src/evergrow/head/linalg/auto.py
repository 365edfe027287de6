"""The form that decides for itself: compact while the rows are of low rank, then dense or recursive."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.fields import Fields
from evergrow.head.linalg.compact import BLOCK_ROWS, CompactState
from evergrow.head.linalg.dense import DenseState
from evergrow.head.linalg.recursive import RecursiveState
from evergrow.head.linalg.state import (
    RIDGE_FORMS,
    Batch,
    ReducedStatistics,
    RidgeSolution,
    RidgeState,
    Totals,
    check_alpha,
    read_state,
)

DENSE_BELOW = 1024
"""Up to this width the dense form is fast and small enough that nothing else is worth its trouble."""


_PART_SHARE = 4
"""A part is compact where that takes at most one byte of so many: to add it to others costs more than dense rows."""


def _with_inner(old: Archive) -> Archive:
    """Migrate from version 1, in which the tensors of the form in use lay beside the settings of the choice."""
    meta = dict(old.meta)
    form, values = meta.pop("form"), meta.pop("inner")
    meta["dropped"] = meta.pop("bound") * meta["floor"]  # it was stated for the smallest ridge
    inner = Archive(f"{RIDGE_FORMS.prefix}/{form}", values, old.tensors)
    return Archive(old.kind, meta, {}, {"inner": inner}, version=2)


@RIDGE_FORMS.register("auto", version=2, migrations={1: _with_inner})
@dataclass(frozen=True)
class AutoState(RidgeState):
    """A ridge state that starts compact and switches at most once, exactly, to what is cheaper.

    The compact form costs about ``6 n L k + k^3`` per update and solve, the dense one ``2 n L^2 + L^3 / 3`` and
    the recursive one ``4 n L^2``. As long as the rank k stays low, compact wins by far. Once its cost passes
    that of the others (high rank: truly nonlinear units) the statistics are expanded: into the recursive form
    if weights of one fixed ridge have been asked for after small batches, else into the dense one.

    Parameters
    ----------
    inner : RidgeState
        The form in use.
    alpha : float or None
        The ridge that will be asked for; None if it will be chosen anew from the statistics.
    floor : float
        The smallest ridge that will be asked for: it sets how much the compact form may drop.
    dropped : float
        Energy that the compact form had dropped when it was left.
    rows_learned, solves : int
        How many rows were learned, and how often weights were asked for in between.
    growth : float
        New directions per row of the state that this one came of by :meth:`empty_like`; 0 where there was none.
    expected : int
        Rows of the whole that this is a part of (:meth:`expecting`), 0 where nobody said. A part is there to be sent
        and added up, not to be solved: where the whole will be dense, it is compact only if that is few bytes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import AutoState
    >>> AutoState.create(2000, 1, alpha=1.0, floor=1.0).update(torch.ones(5, 2000), torch.ones(5, 1)).form
    'compact'
    """

    inner: RidgeState
    alpha: float | None
    floor: float
    dropped: float = 0.0
    rows_learned: int = 0
    solves: int = 0
    growth: float = 0.0
    expected: int = 0

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
        """Return a state that has seen nothing: dense where rows are short, else compact."""
        form: type[RidgeState] = DenseState if n_features <= DENSE_BELOW else CompactState
        return cls(form.create(n_features, n_targets, alpha=alpha, floor=floor, device=device), alpha, floor)

    def empty_like(self) -> Self:
        """Return a fresh state of the same shape and settings, which knows how fast the rank of this one grew."""
        fresh = self.create(self.n_features, self.n_targets, alpha=self.alpha, floor=self.floor, device=self.device)
        return dataclasses.replace(fresh, growth=self._rate(), expected=self.expected)

    def expecting(self, rows: int) -> Self:
        """Return the state that knows how many rows will be added up in all."""
        return dataclasses.replace(self, expected=rows)

    def _rate(self) -> float:
        """Return new directions per row: those seen, one for each where the compact form was outgrown."""
        if not self.rows_learned:
            return self.growth
        return self.inner.rank / self.rows_learned if isinstance(self.inner, CompactState) else 1.0

    @property
    def form(self) -> str:
        """Name of the form in use now."""
        return self.inner.kind

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        return self.inner.n_features

    @property
    def n_targets(self) -> int:
        """C, the number of target columns."""
        return self.inner.n_targets

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.inner.device

    @property
    def totals(self) -> Totals:
        """What the statistics stand for."""
        return self.inner.totals

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return self.inner.order

    @property
    def nbytes(self) -> int:
        """Bytes held by the form in use."""
        return self.inner.nbytes

    def error_bound(self, alpha: float) -> float:
        """Return the bound on the relative change of the dual coefficients; 0 while nothing was dropped."""
        return self.dropped / check_alpha(alpha) + self.inner.error_bound(alpha)

    # -- learning -------------------------------------------------------------------------------------------

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> Self:
        """Take in blocks of rows, compactly as long as that pays: it costs most while the rank is growing."""
        blocks = (block for batch in batches for block in _blocks(batch))
        state, growth = self, self.growth if self._ends_dense() else 0.0  # new directions per row in the block before
        while isinstance(state.inner, CompactState):
            block = next(blocks, None)
            if block is None:
                return state
            rank, n = state.inner.rank, len(block[0])
            if state._outgrown(rank + growth * n) or state._bulky(rank + growth * n):
                return state._expanded()._finish(itertools.chain([block], blocks), sign)
            inner = state.inner._accumulate([block], sign)
            growth = (inner.rank - rank) / max(n, 1)  # a batch may be empty
            state = dataclasses.replace(state, inner=inner, rows_learned=state.rows_learned + n)._relieved()
        return state._finish(blocks, sign)

    def _finish(self, blocks: Iterator[Batch], sign: int) -> Self:
        """Take in the rest in a form that is there to stay."""
        inner = self.inner._accumulate(blocks, sign)
        rows = self.rows_learned + abs(inner.count - self.inner.count)
        return dataclasses.replace(self, inner=inner, rows_learned=rows)

    def _merge(self, other: ReducedStatistics) -> Self:
        return dataclasses.replace(self, inner=self.inner._merge(other))._relieved()

    def select_targets(self, index: Sequence[int]) -> Self:
        """Return the state with other target columns."""
        return dataclasses.replace(self, inner=self.inner.select_targets(index))

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the state whose target columns are sums of old ones."""
        return dataclasses.replace(self, inner=self.inner.group_targets(groups))

    def with_totals(self, totals: Totals) -> Self:
        """Return the state with other totals."""
        return dataclasses.replace(self, inner=self.inner.with_totals(totals))

    def after_solve(self) -> Self:
        """Return the state that counts one more solve, which bears on the choice of the form."""
        return dataclasses.replace(self, solves=self.solves + 1)

    # -- the choice -----------------------------------------------------------------------------------------

    def _relieved(self) -> Self:
        """Return the state in another form, if the compact one has been outgrown."""
        outgrown = isinstance(self.inner, CompactState) and self._outgrown(self.inner.rank)
        return self._expanded() if outgrown else self

    def _costs(self, k: float) -> tuple[float, float, float]:
        """Return operations of an update and a solve: compact at rank k, dense and recursive."""
        L, C = self.n_features, self.n_targets
        rows = self.rows_learned / max(self.solves, 1)
        compact = 6.0 * rows * L * k + k**3 + 2.0 * L * k * C
        dense = 2.0 * rows * L * L + L**3 / 3.0 + 2.0 * L * L * C
        recursive = 4.0 * rows * L * L if self.alpha is not None and self.solves else float("inf")
        return compact, dense, recursive

    def _outgrown(self, k: float) -> bool:
        """Whether rank k is too high for the compact form to pay."""
        compact, dense, recursive = self._costs(k)
        return compact > 0.8 * min(dense, recursive) or k >= 0.7 * self.n_features

    def _bulky(self, k: float) -> bool:
        """Whether a part of rank k is so large that it is not worth its two ways, from rows and to a sum."""
        L, C = self.n_features, self.n_targets
        return self._ends_dense() and _PART_SHARE * (L * k + k * k + k * C) > L * L + L * C

    def _ends_dense(self) -> bool:
        """Whether the whole that this is a part of will have outgrown the compact form."""
        whole = dataclasses.replace(self, rows_learned=self.expected)
        return bool(self.expected) and whole._outgrown(self.growth * self.expected)

    def _expanded(self) -> Self:
        """Return the state without the compact form, in what is cheaper, exactly."""
        _, dense, recursive = self._costs(0)
        stats, inner = self.inner.reduced(), self.inner
        dropped = inner.dropped if isinstance(inner, CompactState) else 0.0
        if recursive < 0.5 * dense and self.alpha is not None:
            inner = RecursiveState.from_statistics(stats, self.n_features, self.alpha)
        else:
            inner = DenseState.create(self.n_features, self.n_targets, device=self.device)
            inner = inner._merge(stats) if stats.count else inner
        return dataclasses.replace(self, inner=inner, dropped=self.dropped + dropped)

    # -- answers and files ----------------------------------------------------------------------------------

    def solve(self, alpha: float) -> RidgeSolution:
        """Return the ridge weights from the form in use."""
        return self.inner.solve(alpha)

    def reduced(self) -> ReducedStatistics:
        """Return the statistics of the form in use."""
        return self.inner.reduced()

    def to_archive(self) -> Archive:
        """Return the form in use, and what it was chosen by."""
        meta = {
            "alpha": self.alpha,
            "floor": self.floor,
            "dropped": self.dropped,
            "rows_learned": self.rows_learned,
            "solves": self.solves,
        }
        if self.growth:
            meta |= {"growth": self.growth, "expected": self.expected}
        return RIDGE_FORMS.kind_of(type(self)).archive(meta, parts={"inner": self.inner.to_archive()})

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the state that :meth:`to_archive` gave, in the form it was saved in."""
        alpha = fields.optional_number("alpha", low=0.0)
        floor = fields.number("floor", low=0.0)
        dropped = fields.number("dropped", low=0.0)
        rows, solves = fields.integer("rows_learned"), fields.integer("solves")
        fields.require(alpha != 0.0, "its ridge is zero")
        growth, expected = fields.number("growth", low=0.0, default=0.0), fields.integer("expected", default=0)
        part = fields.part("inner")
        fields.require(RIDGE_FORMS.class_of(part, fields.inside("inner")) is not cls, "it holds itself")
        return cls(
            read_state(part, device, fields.inside("inner")), alpha, floor, dropped, rows, solves, growth, expected
        )


def _blocks(batch: Batch) -> Iterator[Batch]:
    """Yield a batch in pieces, after each of which the form can be chosen anew."""
    return zip(torch.split(batch[0], BLOCK_ROWS), torch.split(batch[1], BLOCK_ROWS))


def create_state(
    solver: str,
    n_features: int,
    n_targets: int,
    *,
    alpha: float | None,
    floor: float,
    device: torch.device | str = "cpu",
) -> RidgeState:
    """Return an empty ridge state of the named form.

    Parameters
    ----------
    solver : str
        Name of the form, one of ``RIDGE_FORMS.names()``.
    n_features, n_targets : int
        Shape.
    alpha : float or None
        The ridge that will be asked for, None if it will be chosen from the statistics.
    floor : float
        The smallest ridge that will be asked for.
    device : torch.device or str
        Where the statistics live.

    Examples
    --------
    >>> from evergrow.head.linalg import create_state
    >>> create_state("dense", 4, 2, alpha=0.1, floor=0.1).kind
    'dense'
    """
    return RIDGE_FORMS[solver].create(n_features, n_targets, alpha=alpha, floor=floor, device=device)
