"""Adding up two sets of statistics that went on from a common base.

Statistics are sums over samples, so for two states a and b that began as copies of the same one

    G = G_a + G_b - G_base        Q = Q_a + Q_b - Q_base        n = n_a + n_b - n_base

are those of one state that learned the base's samples once, and then a's and b's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from evergrow.head.linalg.auto import AutoState
from evergrow.head.linalg.compact import CompactState
from evergrow.head.linalg.dense import DenseState
from evergrow.head.linalg.state import ReducedStatistics, RidgeState, Totals


def join_states(a: RidgeState, b: RidgeState, base: RidgeState) -> RidgeState:
    """Return a state of a's kind with what a and b have learned, with what both have from the base counted once.

    Parameters
    ----------
    a, b, base : RidgeState
        Of equal shape; not changed.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import DenseState
    >>> from evergrow.head.linalg.joining import join_states
    >>> base = DenseState.create(2, 1).update(torch.eye(2), torch.ones(2, 1))
    >>> a, b = (base.update(torch.eye(2), torch.ones(2, 1)) for _ in range(2))
    >>> join_states(a, b, base).count
    6
    """
    parts = [state.reduced() for state in (a, b, base)]
    basis = _common_basis(parts)
    signs = (1.0, 1.0, -1.0)
    gram = sum(sign * _gram_in(part, basis) for part, sign in zip(parts, signs, strict=True))
    cross = sum(sign * _cross_in(part, basis) for part, sign in zip(parts, signs, strict=True))
    count = parts[0].count + parts[1].count - parts[2].count
    squares = parts[0].sq_targets + parts[1].sq_targets - parts[2].sq_targets
    return _state([a, b], ReducedStatistics(basis, torch.as_tensor(gram), torch.as_tensor(cross), count, squares))


def _common_basis(parts: Sequence[ReducedStatistics]) -> Tensor | None:
    """Return the first part's basis with what the others have beyond it; None where features are as good."""
    bases = [part.basis for part in parts if part.basis is not None]
    width = sum(basis.shape[1] for basis in bases)
    if len(bases) < len(parts) or 2 * width > bases[0].shape[0]:
        return None
    joint = bases[0]
    for basis in bases[1:]:
        rest = basis.to(joint.device)
        for _ in range(2):  # once is not enough where little remains
            rest = rest - joint @ (joint.T @ rest)
        left, values, _ = torch.linalg.svd(rest, full_matrices=False)
        joint = torch.cat([joint, left[:, values > 1e-9]], dim=1)
    return joint


def _gram_in(part: ReducedStatistics, basis: Tensor | None) -> Tensor:
    if basis is None:
        return part.gram if part.basis is None else part.basis @ part.gram @ part.basis.T
    turn = basis.T @ part.lift(torch.eye(part.gram.shape[0], dtype=part.gram.dtype, device=part.gram.device))
    return turn @ part.gram @ turn.T


def _cross_in(part: ReducedStatistics, basis: Tensor | None) -> Tensor:
    lifted = part.lift(part.cross)
    return lifted if basis is None else basis.T @ lifted


def _state(states: Sequence[RidgeState], stats: ReducedStatistics) -> RidgeState:
    """Return a state of the first one's kind with these statistics; a recursion starts anew."""
    first, seen = states[0], Totals(stats.count, stats.sq_targets)
    inner: RidgeState
    if stats.basis is None:
        inner = DenseState(stats.gram, stats.cross, seen)
    else:
        compact = [state.inner if isinstance(state, AutoState) else state for state in states]
        dropped = sum(state.dropped for state in compact if isinstance(state, CompactState))
        budget = max(state.budget for state in compact if isinstance(state, CompactState))
        inner = CompactState(stats.basis, stats.gram, stats.cross, budget, dropped, seen)
    return dataclasses.replace(first, inner=inner) if isinstance(first, AutoState) else inner
