"""Labelled samples that a learner can be asked to leave out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError
from evergrow.data.inputs import labelled_chunks

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

_MAX_NAMED = 5  # names in an error message


class LeftOutSamples(NamedTuple):
    """Labelled samples that could be read.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Feature vectors.
    labels : ndarray of str of shape (n,)
        Class names.
    rows : ndarray of int of shape (n,)
        Row numbers in the data.
    names : ndarray of object of shape (n,)
        Name of each sample: a file name, or its row.
    weights : ndarray of shape (n,)
        Sample weights.
    left_out : tuple of str
        Names of unreadable samples.
    """

    X: NDArray[Any]
    labels: NDArray[np.str_]
    rows: NDArray[np.int64]
    names: NDArray[np.object_]
    weights: NDArray[np.float64]
    left_out: tuple[str, ...]

    def can_leave_out(self, learner: Learner) -> NDArray[np.bool_]:
        """Return which samples (n,) are not the only learned one of their class."""
        counts = learner.state_.counts
        return np.array([counts[name] > 1 for name in self.labels.tolist()], dtype=bool)


def read_left_out(
    learner: Learner, data: Any, y: Any, sample_weight: Any
) -> LeftOutSamples:
    """Read labelled samples of classes that the learner knows.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data, y, sample_weight : object
        Labelled samples, in any form that `Learner.fit` takes.

    Raises
    ------
    LabelError
        If the learner knows fewer than two classes, or not all classes of the data.
    """
    state = learner.state_
    if len(state.counts) < 2:
        raise LabelError(
            "the model must know at least two classes, or no sample can change an "
            f"answer; it knows {len(state.counts)}"
        )
    parts = []
    first_row = 0
    left_out: list[str] = []
    for samples in labelled_chunks(data, y, sample_weight, "train", state.kind):
        _require_known(samples.required_labels(), state.counts)
        features = learner.encode(samples)
        weights = samples.weights
        if weights is None:
            weights = np.ones(len(samples))
        parts.append(
            (
                features.X,
                samples.required_labels()[features.rows],
                first_row + features.rows,
                np.array(samples.names(), dtype=object)[features.rows],
                weights[features.rows],
            )
        )
        first_row += len(samples)
        left_out += [name for name, _ in features.failures]
    X, labels, rows, names, all_weights = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return LeftOutSamples(X, labels, rows, names, all_weights, tuple(left_out))


def _require_known(labels: NDArray[np.str_], counts: dict[str, int]) -> None:
    """Raise :class:`LabelError` for labels of classes that the learner lacks."""
    unknown = Counter(name for name in labels.tolist() if name not in counts)
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)[:_MAX_NAMED]))
        more = ", ..." if len(unknown) > _MAX_NAMED else ""
        raise LabelError(
            f"data must have classes that the model knows, got {names}{more} "
            f"({sum(unknown.values()):,} samples): teach these classes first, or leave "
            "their samples out"
        )
