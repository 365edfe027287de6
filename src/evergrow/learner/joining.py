"""Adding up what two learners know, exactly, also where both began as copies of the same one.

Statistics are sums over samples, so for two models a and b that went on from a common base

    G = G_a + G_b - G_base        Q = Q_a + Q_b - Q_base        n = n_a + n_b - n_base

are those of one model that learned the base's samples once, and then a's and b's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.archive import Archive
from evergrow.core.errors import MergeError
from evergrow.heads import SCLClassifier
from evergrow.heads.labels import column_map
from evergrow.heads.ridge_model import RidgeModel, select_counts
from evergrow.learner.solutions import last_ridge, model_of
from evergrow.linalg import AutoState, CompactState, DenseState, ReducedStatistics, RidgeState


def join_from_base(a: SCLClassifier, b: SCLClassifier, base: SCLClassifier) -> SCLClassifier:
    """Return a head that knows what ``a`` and ``b`` know, with what both have from ``base`` counted once.

    Parameters
    ----------
    a, b : SCLClassifier
        Heads that learned more on top of the same base; not changed.
    base : SCLClassifier
        What both began as.

    Raises
    ------
    MergeError
        If the layers differ, if the base is not part of both, or if second moments are kept per class.
    """
    models = [model_of(head) for head in (a, b, base)]
    _check(models)
    classes = np.union1d(a.classes_, b.classes_)
    missing = np.setdiff1d(base.classes_, np.intersect1d(a.classes_, b.classes_))
    if len(missing):
        raise MergeError(f"base must be part of both learners, but they lack its classes {missing[:5].tolist()}")
    columns = [column_map(head.classes_, classes) for head in (a, b, base)]
    counts = [select_counts(model.counts.cpu(), index) for model, index in zip(models, columns, strict=True)]
    if bool((counts[2] > torch.minimum(counts[0], counts[1])).any()):
        raise MergeError("base must be part of both learners, but it has more samples of a class than one of them")
    state = _joined_state([model.state for model in models], columns)
    joined = dataclasses.replace(
        models[0],
        state=state,
        counts=(counts[0] + counts[1] - counts[2]).to(models[0].counts.device),
        lineage=models[0].lineage | models[1].lineage,
    )
    return _head(a, joined, classes)


def _check(models: Sequence[RidgeModel]) -> None:
    a, b, base = models
    for other in (b, base):
        if a.normalization != other.normalization or not a.projection.same_map(other.projection):
            raise MergeError("learners to merge must share one frozen layer with their base, got different ones")
    if any(model.moments is not None for model in models):
        raise MergeError("learners with class_moments cannot be merged by a base: let one start from spawn()")
    if not base.lineage or not base.lineage <= (a.lineage & b.lineage):
        raise MergeError("base must be what both learners began as, but one of them did not learn its first batch")
    twice = (a.lineage & b.lineage) - base.lineage
    if twice:
        raise MergeError(f"learners must have gone on separately, but both merged the same {len(twice)} learners since")


def _joined_state(states: Sequence[RidgeState], columns: Sequence[Sequence[int]]) -> RidgeState:
    reduced = []
    for state, index in zip(states, columns, strict=True):
        twin = state.branch()
        twin.select_targets(index)
        reduced.append(twin.reduced())
    basis = _common_basis(reduced)
    signs = (1.0, 1.0, -1.0)
    gram = sum(sign * _gram_in(part, basis) for part, sign in zip(reduced, signs, strict=True))
    cross = sum(sign * _cross_in(part, basis) for part, sign in zip(reduced, signs, strict=True))
    count = reduced[0].count + reduced[1].count - reduced[2].count
    squares = reduced[0].sq_targets + reduced[1].sq_targets - reduced[2].sq_targets
    return _state(states, ReducedStatistics(basis, torch.as_tensor(gram), torch.as_tensor(cross), count, squares))


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
    first = states[0]
    inner: RidgeState
    if stats.basis is None:
        inner = DenseState(first.n_features, stats.cross.shape[1], first.device)
        inner.gram = stats.gram
    else:
        compact = [state.inner if isinstance(state, AutoState) else state for state in states[:2]]
        dropped = sum(state.dropped for state in compact if isinstance(state, CompactState))
        budget = max(state.budget for state in compact if isinstance(state, CompactState))
        inner = CompactState(first.n_features, stats.cross.shape[1], budget, first.device)
        inner.basis, inner.gram, inner.dropped = stats.basis, stats.gram, dropped
    inner.cross = stats.cross
    inner.set_totals(stats.count, stats.sq_targets)
    if not isinstance(first, AutoState):
        return inner
    settings = {**first.settings(), "form": inner.kind, "inner": inner.settings()}
    return AutoState.restore(inner.tensors(), settings, first.device)


def _head(like: SCLClassifier, model: RidgeModel, classes: NDArray[Any]) -> SCLClassifier:
    """Return a head of the same settings that holds another model."""
    archive = like.to_archive()
    labels = {"kind": classes.dtype.kind, "values": classes.tolist()}
    state = {**archive.meta["state"], "model": model.settings()}
    meta = {**archive.meta, "labels": labels, "state": state}
    head = SCLClassifier.from_archive(Archive(archive.kind, meta, model.tensors()), like.device_)
    head._derived.last_alpha = last_ridge(like)
    return head
