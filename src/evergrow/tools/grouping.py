"""Group samples that look novel, so that each group can be learned as a class.

Samples are compared by the cosine of their feature vectors, either plain or whitened by
the within-class covariance. The metric that groups labelled samples best is used:
whitened features on most images, plain features on most texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.progress import meter
from evergrow.core.validation import check_integer
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.tools.labelled_data import labelled_features
from evergrow.tools.suggestions import unit_rows

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

MAX_TREE_ROWS = 5000
"""Rows in a tree of clusters, whose memory grows with their square. Further rows join
the nearest cluster."""

MAX_GROUPS = 200
"""Largest number of groups that is tried if no labelled samples give a scale."""

MAX_REASSIGNMENTS = 30
"""Largest number of passes in which rows move to the nearest centre."""

MIN_CLASS_ROWS = 3
"""Classes with fewer known samples are not used to choose the metric."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Novel samples in groups of similar ones.

    Parameters
    ----------
    rows : list of ndarray of int
        Row numbers in the data, one array per group, the largest group first. Within a
        group the most typical sample comes first.
    metric : {"plain", "whitened"}
        Features by which samples were compared.
    known : ndarray of int
        Row numbers of samples that look like a learned class. They are in no group.
    """

    rows: list[NDArray[np.int64]]
    metric: str
    known: NDArray[np.int64]


_STEPS = 3  # of a progress bar


def group_unknown(
    learner: Learner,
    data: Any,
    *,
    n_groups: int | None = None,
    known: Any = None,
    false_alarm: float = FALSE_ALARM,
    unknown: Sequence[int] | NDArray[Any] | None = None,
    progress: bool = False,
) -> Groups:
    """Group the samples that look novel.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : object
        Unlabelled samples, in any form that `Learner.predict` takes.
    n_groups : int, optional
        Number of groups. By default it is estimated from the data.
    known : object, optional
        Labelled samples, in any form that `Learner.fit` takes. They choose the metric
        and the size of groups. By default the samples of `data` that look known are
        used.
    false_alarm : float, default=0.05
        Fraction of known samples that may be called novel. Larger values put more
        samples into groups.
    unknown : array-like of int, optional
        Row numbers of the samples to group, for example those that a person marked as
        unknown. By default, samples with a novelty above the threshold.
    progress : bool, default=False
        Whether to show a progress bar on standard error.

    Returns
    -------
    Groups
        Row numbers in `data`, the largest group first.

    Raises
    ------
    InputError
        If no sample looks novel, or `unknown` has a number that is not a row of `data`.
    UnsupportedError
        If the method of the learner cannot score novelty.
    NotFittedError
        If nothing was learned yet, or the calibration has no held-out sample.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner
    >>> from evergrow.tools import group_unknown
    >>> X, y = load_digits(return_X_y=True)
    >>> known = y < 8
    >>> learner = Learner(None, options={"n_units": 100}).fit(X[known], y[known])
    >>> groups = group_unknown(learner, X[~known], n_groups=2)
    >>> len(groups.rows), groups.metric in ("plain", "whitened")
    (2, True)
    """
    if n_groups is not None:
        check_integer("n_groups", n_groups)
    head: Any = learner.head_
    features = learner.encode(data)
    if unknown is None:
        threshold = learner.state_.threshold(false_alarm)
        is_novel = head.novelty_score(features.X) > threshold
    else:
        n_samples = len(features.rows) + len(features.failures)
        is_novel = np.isin(features.rows, _check_rows(unknown, n_samples))
    rows = np.flatnonzero(is_novel)
    if len(rows) == 0:
        raise InputError(
            f"None of the {len(is_novel):,} samples looks novel: "
            "there is nothing to group."
        )
    with meter("grouping", _STEPS, enabled=progress) as tick:
        metric, max_distance = _choose_metric(learner, features.X[~is_novel], known)
        tick(1, "metric chosen")
        points = _unit_features(head, features.X[rows], metric)
        if n_groups is None:
            n_groups = _estimate_n_groups(points, max_distance)
        tick(2, "groups counted")
        codes, similarity = _cluster(points, min(n_groups, len(points)))
        tick(_STEPS)
    groups = []
    for code in np.unique(codes):
        members = codes == code
        most_typical_first = similarity[members].argsort()[::-1]
        groups.append(rows[members][most_typical_first])
    groups.sort(key=len, reverse=True)
    return Groups(
        rows=[features.rows[group] for group in groups],
        metric=metric,
        known=features.rows[np.flatnonzero(~is_novel)],
    )


def matched_fraction(labels: NDArray[Any], groups: NDArray[Any]) -> float:
    """Return the fraction of rows in the group that stands for their class.

    Classes and groups are matched one to one so that this fraction is largest.

    Parameters
    ----------
    labels, groups : ndarray of shape (n,)
        Class and group of each row.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.tools.grouping import matched_fraction
    >>> matched_fraction(np.array([0, 0, 1, 1]), np.array([5, 5, 3, 5]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    classes = np.unique(labels, return_inverse=True)[1]
    columns = np.unique(groups, return_inverse=True)[1]
    table = np.zeros((classes.max() + 1, columns.max() + 1))
    np.add.at(table, (classes, columns), 1.0)
    return float(table[linear_sum_assignment(-table)].sum() / len(classes))


def _check_rows(
    unknown: Sequence[int] | NDArray[Any], n_samples: int
) -> NDArray[np.int64]:
    """Return row numbers as an array, or raise if one is not the number of a sample."""
    rows = np.asarray(unknown)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InputError("unknown must be a list of row numbers")
    outside = rows[(rows < 0) | (rows >= n_samples)]
    if outside.size:
        raise InputError(
            f"unknown holds the row number {outside[0]}, but there are {n_samples:,} "
            "samples"
        )
    return rows.astype(np.int64)


def _unit_features(head: Any, X: NDArray[Any], metric: str) -> NDArray[np.float32]:
    """Return features of unit length, plain or whitened."""
    if metric == "whitened":
        return np.asarray(head.whitened(X), dtype=np.float32)
    return np.asarray(unit_rows(head.normalized_features(X)), dtype=np.float32)


def _choose_metric(
    learner: Learner, X: NDArray[Any], known: Any
) -> tuple[str, float | None]:
    """Return the metric that groups known rows best, and a group's largest distance.

    Parameters
    ----------
    learner : Learner
        The fitted learner.
    X : ndarray of shape (n, d)
        Features of samples that look known, used with their predicted classes if
        `known` is None.
    known : object or None
        Labelled samples.

    Returns
    -------
    metric : {"plain", "whitened"}
        Depends on the kind of samples if there are too few known rows.
    max_distance : float or None
        Merge distance above which clusters are different groups; None if there are too
        few known rows.
    """
    head: Any = learner.head_
    labels: NDArray[np.str_] = np.empty(0, dtype=np.str_)
    if known is not None:
        X, labels, _ = labelled_features(learner, known)
    elif len(X):
        labels = np.asarray(head.predict(X), dtype=np.str_)
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    large = np.flatnonzero(counts >= MIN_CLASS_ROWS)
    # Whole classes only: the distance between rows of a class depends on their number.
    large = large[np.cumsum(counts[large]) <= MAX_TREE_ROWS]
    if len(large) < 2:
        metric = "whitened" if learner.state_.kind == "image" else "plain"
        return metric, None
    rows = np.flatnonzero(np.isin(codes, large))
    best_metric = ""
    best_fraction = -1.0
    best_points: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)
    for metric in ("plain", "whitened"):
        points = _unit_features(head, X[rows], metric)
        groups, _ = _cluster(points, len(large))
        fraction = matched_fraction(codes[rows], groups)
        if fraction > best_fraction:
            best_metric = metric
            best_fraction = fraction
            best_points = points
    return best_metric, _distance_between_classes(best_points, len(large))


def _ward_tree(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return Ward's tree of the first rows; column 2 has ascending merge distances."""
    from scipy.cluster.hierarchy import linkage

    return np.asarray(linkage(points[:MAX_TREE_ROWS], "ward"))


def _distance_between_classes(points: NDArray[np.float32], n_classes: int) -> float:
    """Return the merge distance that leaves `n_classes` clusters.

    This is the mean of the last distance merged and the first one not merged.
    """
    distances = _ward_tree(points)[:, 2]
    if n_classes >= len(distances):
        return float(distances[0])
    return float(distances[-n_classes : len(distances) - n_classes + 2].mean())


def _estimate_n_groups(points: NDArray[np.float32], max_distance: float | None) -> int:
    """Estimate the number of groups.

    Known classes give the largest distance within a group. Without them the number with
    the best silhouette is used.
    """
    if len(points) < 3:
        return 1
    if max_distance is not None:
        return int((_ward_tree(points)[:, 2] > max_distance).sum()) + 1
    from sklearn.metrics import silhouette_score

    sample = points[:MAX_TREE_ROWS]
    largest = min(len(sample) - 1, MAX_GROUPS)
    candidates = np.unique(np.geomspace(2, largest, 12).round().astype(int))
    scores = {}
    for candidate in candidates.tolist():
        codes = _cluster(sample, candidate)[0]
        # Copies of one sample stay together, however many groups are requested.
        if 1 < len(np.unique(codes)) < len(sample):
            scores[candidate] = silhouette_score(sample, codes)
    if not scores:
        return 1
    return int(max(scores, key=lambda candidate: scores[candidate]))


def _cluster(
    points: NDArray[np.float32], n_groups: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the group of each row and its cosine to the centre of the group.

    Ward's tree gives the first groups. Rows then move to the nearest centre until no
    row moves, because a tree never separates rows that it merged early.
    """
    from scipy.cluster.hierarchy import fcluster

    if len(points) < 2:
        return np.zeros(len(points), dtype=np.int64), np.ones(
            len(points), dtype=np.float32
        )
    tree = _ward_tree(points)
    codes = np.asarray(fcluster(tree, n_groups, "maxclust"), dtype=np.int64) - 1
    for _ in range(MAX_REASSIGNMENTS):
        clustered = points[: len(codes)]
        sums = [clustered[codes == code].sum(axis=0) for code in range(n_groups)]
        cosines = points @ unit_rows(np.stack(sums)).T
        previous = codes
        codes = cosines.argmax(axis=1)
        if np.array_equal(previous, codes):
            break
    return codes, cosines[np.arange(len(points)), codes]
