"""Active learning: suggest which unlabelled samples to label next.

Uncertain samples come first: those with a small margin between the two most likely
classes. Outliers are moved down, because labelling them teaches little about other
samples. Near-duplicates of suggested or already labelled samples are skipped. A
fraction of the list is reserved for samples that look novel, so that new classes are
discovered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.validation import check_integer, check_number

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

OUTLIER_PENALTY = 3.0
"""How far the strongest outlier moves down, in multiples of the number of suggestions.

Chosen on species and sentences outside of the reported results.
"""

DUPLICATE_COSINE = 0.95
"""Two samples are near-duplicates if whitened features have at least this cosine."""

N_NEIGHBORS = 10
"""Number of nearest neighbours whose mean cosine tells outliers from other samples."""

MAX_REFERENCE_ROWS = 5000
"""Approximate largest number of rows among which neighbours are sought, to bound the
time."""

CHUNK_ROWS = 256
"""Rows that are processed at once. This bounds the memory."""


@dataclass(frozen=True, eq=False)
class Suggestions:
    """Samples to label, the most useful first.

    Parameters
    ----------
    rows : ndarray of int of shape (n,)
        Row numbers in the data.
    is_novel : ndarray of bool of shape (n,)
        Whether the sample looks like none of the learned classes.
    margins : ndarray of shape (n,)
        Difference of log-probability between the two most likely classes.
    """

    rows: NDArray[np.int64]
    is_novel: NDArray[np.bool_]
    margins: NDArray[np.float64]


def suggest(
    learner: Learner,
    data: Any,
    n: int = 20,
    *,
    novel_fraction: float = 0.2,
    labelled: Any = None,
) -> Suggestions:
    """Suggest samples to label next.

    Parameters
    ----------
    learner : Learner
        A fitted learner with at least two classes.
    data : object
        Unlabelled samples, in any form that `Learner.predict` takes.
    n : int, default=20
        Number of suggestions. Fewer are returned if the data has fewer distinct
        samples.
    novel_fraction : float, default=0.2
        Fraction of suggestions reserved for samples that look novel. 0 skips novelty
        detection.
    labelled : object, optional
        Samples that already have labels. Their near-duplicates are not suggested.

    Returns
    -------
    Suggestions
        Row numbers in `data`, the most useful first: uncertain samples, the smallest
        margin first, with the novel ones spread evenly among them.

    Raises
    ------
    InputError
        If the learner has one class.
    UnsupportedError
        If the method of the learner cannot score novelty.
    NotFittedError
        If nothing was learned yet.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner
    >>> from evergrow.tools import suggest
    >>> X, y = load_digits(return_X_y=True)
    >>> learner = Learner(None, options={"n_units": 100}).fit(X[:500], y[:500])
    >>> suggest(learner, X[500:], n=5).rows.shape
    (5,)
    """
    check_integer("n", n)
    check_number("novel_fraction", novel_fraction, low=0, high=1)
    head: Any = learner.head_
    if len(head.classes_) < 2:
        raise InputError(
            "The model has one class, so no prediction is uncertain. "
            "Add a second class first."
        )
    features = learner.encode(data)
    margins = _class_margins(head, features.X)
    novelty = head.novelty_score(features.X)
    is_novel = np.zeros(len(margins), dtype=bool)
    if novel_fraction > 0 and learner.state_.calibration.n:
        is_novel = novelty > learner.state_.threshold()

    uncertain_rows = _rank_by_uncertainty(
        head, features.X, margins, np.flatnonzero(~is_novel), n
    )
    novel_rows = _rank_by_median_novelty(novelty, np.flatnonzero(is_novel))

    # Novel samples also fill places for which there are no uncertain ones.
    n_novel = max(round(n * novel_fraction), n - len(uncertain_rows))
    n_novel = min(n_novel, len(novel_rows))

    labelled_features = None
    if labelled is not None:
        labelled_features = learner.encode(labelled).X
    duplicates = _DuplicateFilter(head, labelled_features)
    uncertain = duplicates.take(features.X, uncertain_rows, n - n_novel)
    novel = duplicates.take(features.X, novel_rows, n_novel)

    uncertain.sort(key=lambda row: float(margins[row]))
    rows = _spread_evenly(uncertain, novel)
    return Suggestions(features.rows[rows], is_novel[rows], margins[rows])


def unit_rows(X: NDArray[Any]) -> NDArray[Any]:
    """Scale every row to unit length."""
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    scaled: NDArray[Any] = X / np.maximum(lengths, 1e-12)
    return scaled


def _class_margins(head: Any, X: NDArray[Any]) -> NDArray[np.float64]:
    """Return the difference of log-probability between the two most likely classes."""
    sorted_scores = np.sort(head.class_scores(X), axis=1)
    margins = sorted_scores[:, -1] - sorted_scores[:, -2]
    return np.asarray(margins / head.temperature_)


def _rank_by_uncertainty(
    head: Any,
    X: NDArray[Any],
    margins: NDArray[np.float64],
    rows: NDArray[np.int64],
    n: int,
) -> NDArray[np.int64]:
    """Return rows sorted by margin, with outliers moved down.

    `n`, the number of suggestions, scales how far.
    """
    points = unit_rows(head.normalized_features(X)).astype(np.float32)
    similarity = _neighbor_similarity(points[rows])
    penalty = OUTLIER_PENALTY * n * _ranks(-similarity) / max(len(rows), 1)
    priority = _ranks(margins[rows]) + penalty
    return rows[np.argsort(priority, kind="stable")]


def _rank_by_median_novelty(
    novelty: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return novel rows sorted by distance to their median novelty.

    The least novel ones are often known classes, the most novel ones are often broken
    images.
    """
    if len(rows) == 0:
        return rows
    distance = np.abs(novelty[rows] - np.median(novelty[rows]))
    return rows[np.argsort(distance, kind="stable")]


def _neighbor_similarity(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean cosine of each row to its nearest neighbours, of shape (n,).

    Cosines are taken after subtracting the mean row. Neighbours are sought among at
    most about :data:`MAX_REFERENCE_ROWS` evenly spaced rows. Outliers have small
    values.
    """
    similarity = np.empty(len(points), dtype=np.float32)
    if len(points) == 0:
        return similarity
    centered = unit_rows(points - points.mean(axis=0))
    step = len(points) // MAX_REFERENCE_ROWS + 1
    reference_rows = np.arange(0, len(points), step)
    for start in range(0, len(points), CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, len(points)))
        cosines = centered[rows] @ centered[reference_rows].T
        is_itself = rows[:, None] == reference_rows
        # The smallest cosine: a row is its own neighbour only if there are few rows.
        cosines[is_itself] = -1.0
        nearest = np.sort(cosines, axis=1)[:, -N_NEIGHBORS:]
        similarity[rows] = nearest.mean(axis=1)
    return similarity


def _ranks(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each value, from 0 for the smallest."""
    return np.argsort(np.argsort(values, kind="stable"))


class _DuplicateFilter:
    """Remembers accepted rows, to skip near-duplicates of them.

    Parameters
    ----------
    head : Classifier
        Supplies whitened features.
    X : ndarray or None
        Features of samples that count as accepted from the start.
    """

    def __init__(self, head: Any, X: NDArray[Any] | None) -> None:
        self.head = head
        self.accepted: NDArray[np.float32] | None = None
        if X is not None:
            self.accepted = head.whitened(X).astype(np.float32)

    def take(self, X: NDArray[Any], rows: NDArray[np.int64], n: int) -> list[int]:
        """Accept and return the first `n` rows that are not near-duplicates.

        Parameters
        ----------
        X : ndarray of shape (m, d)
            Features.
        rows : ndarray of int
            Row numbers in `X`, in the order in which they are tried.
        n : int
            Number of rows to accept at most.
        """
        taken: list[int] = []
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            if len(taken) == n:
                break
            whitened = self.head.whitened(X[chunk]).astype(np.float32)
            for row, point in zip(chunk.tolist(), whitened, strict=True):
                if len(taken) == n:
                    break
                if not self._has_duplicate(point):
                    taken.append(row)
                    self._accept(point)
        return taken

    def _has_duplicate(self, point: NDArray[np.float32]) -> bool:
        if self.accepted is None or len(self.accepted) == 0:
            return False
        return bool((self.accepted @ point).max() >= DUPLICATE_COSINE)

    def _accept(self, point: NDArray[np.float32]) -> None:
        if self.accepted is None:
            self.accepted = point[None]
        else:
            self.accepted = np.concatenate([self.accepted, point[None]])


def _spread_evenly(first: list[int], second: list[int]) -> NDArray[np.int64]:
    """Merge two ranked lists, each in its order and spread evenly over the result."""
    positions = [
        (index + 0.5) / len(part)
        for part in (first, second)
        for index in range(len(part))
    ]
    order = np.argsort(positions)
    return np.array(first + second, dtype=np.int64)[order]
