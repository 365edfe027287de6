"""The form that decides for itself: compact while the rows are of low rank, then dense or recursive."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.linalg.compact import BLOCK_ROWS, CompactState
from evergrow.linalg.dense import DenseState
from evergrow.linalg.recursive import RecursiveState
from evergrow.linalg.state import Batch, ReducedStatistics, RidgeSolution, RidgeState

DENSE_BELOW = 1024
"""Up to this width the dense form is fast and small enough that nothing else is worth its trouble."""

COMPACT_TOL = 1e-2
"""Bound on the relative change of the dual coefficients that the compact form may cause over its whole life.
The change of logits, measured, is about a hundredth of it."""

FORMS: dict[str, type[RidgeState]] = {form.kind: form for form in (DenseState, RecursiveState, CompactState)}


class AutoState(RidgeState):
    """A ridge state that starts compact and switches at most once, exactly, to what is cheaper.

    The compact form costs about ``6 n L k + k^3`` per update and solve, the dense one ``2 n L^2 + L^3 / 3`` and
    the recursive one ``4 n L^2``. As long as the rank k stays low, compact wins by far. Once its cost passes
    that of the others (high rank: truly nonlinear units) the statistics are expanded: into the recursive form
    if weights of one fixed ridge have been asked for after small batches, else into the dense one.

    Parameters
    ----------
    n_features : int
        L, the width of the rows.
    n_targets : int
        C, the number of target columns.
    alpha : float or None
        The ridge that will be asked for; None if it will be chosen anew from the statistics.
    floor : float
        The smallest ridge that will be asked for: it sets how much the compact form may drop.
    device : torch.device or str
        Where the statistics live.

    Examples
    --------
    >>> import torch
    >>> from evergrow.linalg import AutoState
    >>> state = AutoState(2000, 1, alpha=1.0, floor=1.0)
    >>> state.update(torch.ones(5, 2000), torch.ones(5, 1))
    >>> state.form
    'compact'
    """

    kind: ClassVar[str] = "auto"

    def __init__(
        self,
        n_features: int,
        n_targets: int,
        alpha: float | None,
        floor: float,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_features = n_features
        self.device = torch.device(device)
        self.alpha = alpha
        self.floor = floor
        self.inner: RidgeState
        if n_features <= DENSE_BELOW:
            self.inner = DenseState(n_features, n_targets, device)
        else:
            self.inner = CompactState(n_features, n_targets, COMPACT_TOL * floor, device)
        self.rows_learned = 0
        self.solves = 0

    @property
    def form(self) -> str:
        """The form in use now."""
        return self.inner.kind

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return self.inner.order

    @property
    def count(self) -> int:  # type: ignore[override]
        """Net number of rows learned."""
        return self.inner.count

    @property
    def sq_targets(self) -> float:  # type: ignore[override]
        """Net sum of squared targets."""
        return self.inner.sq_targets

    @property
    def cross(self) -> Tensor:  # type: ignore[override]
        """Cross statistics of the form in use."""
        return self.inner.cross

    @property
    def error_bound(self) -> float:
        """Bound on the relative change of the dual coefficients; 0 once and while nothing was dropped."""
        return self.inner.error_bound(self.floor) if isinstance(self.inner, CompactState) else self._bound

    _bound: float = 0.0

    def _accumulate(self, batches: Iterable[Batch], sign: int) -> None:
        trial = self.branch()  # a batch that fails on the way must leave no switch behind
        trial._learn((block for batch in batches for block in _blocks(batch)), sign)
        vars(self).update(vars(trial))

    def _learn(self, blocks: Iterator[Batch], sign: int) -> None:
        """Take in blocks of rows, compactly as long as that pays: it costs most while the rank is growing."""
        growth = 0.0  # new directions per row in the block before
        while isinstance(self.inner, CompactState):
            block = next(blocks, None)
            if block is None:
                return
            rank, n = self.inner.rank, len(block[0])
            if self._outgrown(rank + growth * n):
                self._expand()
                blocks = itertools.chain([block], blocks)
                break
            self.inner._accumulate([block], sign)
            self.rows_learned += n
            growth = (self.inner.rank - rank) / max(n, 1)  # a batch may be empty
            self._maybe_switch()
        before = self.inner.count
        self.inner._accumulate(blocks, sign)
        self.rows_learned += abs(self.inner.count - before)

    def _merge(self, other: ReducedStatistics) -> None:
        self.inner._merge(other)
        self._maybe_switch()

    def _maybe_switch(self) -> None:
        if isinstance(self.inner, CompactState) and self._outgrown(self.inner.rank):
            self._expand()

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

    def _expand(self) -> None:
        """Leave the compact form for what is cheaper, exactly."""
        _, dense, recursive = self._costs(0)
        self._bound = self.error_bound
        stats = self.inner.reduced()
        if recursive < 0.5 * dense and self.alpha is not None:
            self.inner = RecursiveState.from_statistics(stats, self.n_features, self.alpha)
        else:
            dense_state = DenseState(self.n_features, self.n_targets, self.device)
            dense_state._merge(stats)
            self.inner = dense_state

    def solve(self, alpha: float) -> RidgeSolution:
        """Return the ridge weights from the form in use."""
        self.solves += 1
        return self.inner.solve(alpha)

    def reduced(self) -> ReducedStatistics:
        """Return the statistics of the form in use."""
        return self.inner.reduced()

    def select_targets(self, index: Sequence[int]) -> None:
        """Rebuild the target columns."""
        self.inner.select_targets(index)

    def set_totals(self, count: int, sq_targets: float) -> None:
        """State how many rows, and which squared targets, remain after columns were dropped."""
        self.inner.set_totals(count, sq_targets)

    def branch(self) -> Self:
        """Return a copy that shares memory until either side learns."""
        twin = copy.copy(self)
        twin.inner = self.inner.branch()
        return twin

    @property
    def nbytes(self) -> int:
        """Bytes held by the form in use."""
        return self.inner.nbytes

    def empty_like(self) -> Self:
        """Return a fresh state of the same shape and settings."""
        return type(self)(self.n_features, self.n_targets, self.alpha, self.floor, self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the form in use."""
        return self.inner.tensors()

    def settings(self) -> dict[str, Any]:
        """Return the settings of the form in use and of the choice."""
        return {
            "form": self.form,
            "alpha": self.alpha,
            "floor": self.floor,
            "bound": self._bound,
            "rows_learned": self.rows_learned,
            "solves": self.solves,
            "inner": self.inner.settings(),
        }

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any], device: torch.device) -> Self:
        """Rebuild the state in the form it was saved in."""
        inner = FORMS[settings["form"]].restore(tensors, settings["inner"], device)
        state = cls.__new__(cls)
        state.n_features, state.device = inner.n_features, inner.device
        state.alpha, state.floor = settings["alpha"], settings["floor"]
        state._bound = settings["bound"]
        state.rows_learned, state.solves = settings["rows_learned"], settings["solves"]
        state.inner = inner
        return state


FORMS["auto"] = AutoState


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
    solver : {"auto", "dense", "recursive", "compact"}
        The form.
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
    >>> from evergrow.linalg import create_state
    >>> create_state("dense", 4, 2, alpha=0.1, floor=0.1).kind
    'dense'
    """
    if solver == "dense":
        return DenseState(n_features, n_targets, device)
    if solver == "recursive":
        return RecursiveState(n_features, n_targets, floor if alpha is None else alpha, device)
    if solver == "compact":
        return CompactState(n_features, n_targets, COMPACT_TOL * floor, device)
    return AutoState(n_features, n_targets, alpha, floor, device)
