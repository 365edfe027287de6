"""Which samples to label next, and what unknown samples fall into groups: both ask how like each other samples are.

Likeness is the cosine of feature vectors, plain or in units of the known classes' spread (whitened). Which of the two
tells new classes apart is chosen by how well it groups known samples: the second on most images, the first on texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.validation import check_number
from evergrow.learner.calibration import FALSE_ALARM

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

TYPICAL = 3.0
"""Places that a sample far from all others is put back by among the least sure, in units of the samples asked for.
Chosen on species and sentences that no figure is reported on; 1, 2 and 6 are a little worse."""

NEAR = 0.95
"""Cosine of whitened features from which on two samples are near-duplicates."""

_POOL = 5000
"""Rows at most of which a tree is made."""

_NEIGHBOURS = 10
_MOST_GROUPS = 200
_STEPS = 30


@dataclass(frozen=True, eq=False)
class Suggestions:
    """Samples to label, the most useful first.

    Parameters
    ----------
    rows : ndarray of int of shape (n,)
        Their places in the data.
    unknown : ndarray of bool of shape (n,)
        Which look like no class that was learned.
    margins : ndarray of shape (n,)
        By how much the likeliest class leads the second, as a difference of log-probabilities.
    """

    rows: NDArray[np.int64]
    unknown: NDArray[np.bool_]
    margins: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Groups:
    """Unknown samples in groups of like ones.

    Parameters
    ----------
    rows : list of ndarray of int
        Places in the data of the samples of each group, the most typical first; the largest group first.
    metric : {"plain", "whitened"}
        How samples were compared.
    known : ndarray of int
        Places of samples that look like a class that was learned, which are in no group.
    """

    rows: list[NDArray[np.int64]]
    metric: str
    known: NDArray[np.int64]


def suggest(
    learner: Learner, data: Any, n: int, unknown_share: float, learned: Any
) -> Suggestions:
    """Return what :meth:`evergrow.Learner.suggest` does."""
    check_number("n", n, low=1, integer=True)
    check_number("unknown_share", unknown_share, low=0, high=1)
    head: Any = learner._able("novelty_score")
    found = learner.features(data)
    if len(head.classes_) < 2:
        raise InputError(
            "the model knows one class, so that no answer is doubtful: teach it a second one first"
        )
    ordered = np.sort(head.class_scores(found.X), axis=1)
    margins = (ordered[:, -1] - ordered[:, -2]) / head.temperature_
    known, unknown, odd = (
        learner._taught().calibration,
        np.zeros(len(margins), dtype=bool),
        np.empty(0, dtype=np.int64),
    )
    if unknown_share and known.n:
        novelty = head.novelty_score(found.X)
        unknown = novelty > known.threshold(FALSE_ALARM)
        # Those in the middle come first: the least strange are often known, the strangest oddities.
        strange = (
            np.abs(novelty[unknown] - np.median(novelty[unknown]))
            if unknown.any()
            else novelty[unknown]
        )
        odd = np.flatnonzero(unknown)[strange.argsort(kind="stable")]
    nearness = _nearness(_points(head, found.X, "plain")[~unknown])
    doubt = _places(margins[~unknown]) + TYPICAL * n * _places(-nearness) / max(
        len(nearness), 1
    )
    doubtful = np.flatnonzero(~unknown)[doubt.argsort(kind="stable")]
    taken = min(max(round(n * unknown_share), n - len(doubtful)), len(odd))
    chosen: list[list[int]] = [[], []]
    held = (
        np.zeros((0, 0))
        if learned is None
        else head.whitened(learner.features(learned).X).astype(np.float32)
    )
    for order, picked, most in (
        (doubtful, chosen[0], n - taken),
        (odd, chosen[1], taken),
    ):
        for block in (
            order[start : start + 256] for start in range(0, len(order), 256)
        ):
            if len(picked) >= most:
                break
            white = head.whitened(found.X[block]).astype(np.float32)
            near = (
                (white @ held.T).max(axis=1) if len(held) else np.full(len(block), -1.0)
            )
            for place in range(len(block)):
                if near[place] < NEAR and len(picked) < most:
                    picked.append(int(block[place]))
                    near = np.maximum(near, white @ white[place])
                    held = np.concatenate(
                        [held.reshape(-1, white.shape[1]), white[place : place + 1]]
                    )
    chosen[0].sort(key=lambda row: float(margins[row]))
    # Those that look unknown are spread evenly among the others.
    places = np.concatenate(
        [(np.arange(len(part)) + 0.5) / max(len(part), 1) for part in chosen]
    ).argsort()
    rows = np.array([*chosen[0], *chosen[1]], dtype=np.int64)[places]
    return Suggestions(found.rows[rows], unknown[rows], margins[rows])


def _places(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each value (n,) in ascending order."""
    return np.asarray(values.argsort(kind="stable").argsort())


def _nearness(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how like its nearest others each row is: small for oddities, which say little of anything else."""
    centred = points - points.mean(axis=0) if len(points) else points
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    others, found = (
        np.arange(0, len(points), len(points) // _POOL + 1),
        np.empty(len(points), dtype=np.float32),
    )
    for rows in (
        np.arange(start, min(start + 256, len(points)))
        for start in range(0, len(points), 256)
    ):
        products = centred[rows] @ centred[others].T
        products[rows[:, None] == others] = -1.0
        found[rows] = np.sort(products, axis=1)[:, -_NEIGHBOURS:].mean(axis=1)
    return found


# -- groups -------------------------------------------------------------------------------------------------------


def group_unknown(
    learner: Learner, data: Any, n_groups: int | None, known: Any, false_alarm: float
) -> Groups:
    """Return what :meth:`evergrow.Learner.group_unknown` does."""
    head: Any = learner._able("novelty_score")
    found = learner.features(data)
    if n_groups is not None:
        check_number("n_groups", n_groups, low=1, integer=True)
    strange = head.novelty_score(found.X) > learner.threshold(false_alarm)
    rows = np.flatnonzero(strange)
    if not len(rows):
        raise InputError(
            f"none of the {len(strange):,} samples looks unknown, so that there is nothing to group"
        )
    metric, limit = _best_metric(learner, found.X[~strange], known)
    points = _points(head, found.X[rows], metric)
    number = n_groups or _number_of_groups(points, limit)
    codes, likeness = _clustered(points, min(number, len(points)))
    groups = [
        rows[codes == code][likeness[codes == code].argsort()[::-1]]
        for code in np.unique(codes)
    ]
    groups.sort(key=len, reverse=True)
    return Groups(
        [found.rows[group] for group in groups],
        metric,
        found.rows[np.flatnonzero(~strange)],
    )


def _points(head: Any, X: NDArray[Any], metric: str) -> NDArray[np.float32]:
    """Return rows of length one in a metric."""
    if metric == "whitened":
        return np.asarray(head.whitened(X), dtype=np.float32)
    rows = head.model_.inputs(head._features(X, head.device_)).cpu().numpy()
    return np.asarray(
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12),
        dtype=np.float32,
    )


def _best_metric(
    learner: Learner, X: NDArray[Any], known: Any
) -> tuple[str, float | None]:
    """Return the metric in which known rows fall into their classes best, and how unlike rows of one group may be."""
    head, labels = learner.head_, np.empty(0, dtype=np.str_)
    if known is not None:
        from evergrow.data import intake

        samples = next(
            iter(intake.labelled_chunks(known, None, None, "train", learner.kind_))
        )
        encoded = learner._encoded(samples)
        X, labels = encoded.X, samples.required_labels()[encoded.rows]
    elif len(X):
        labels = np.asarray(head.predict(X), dtype=np.str_)
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    large = np.flatnonzero(counts >= 3)
    large = large[
        np.cumsum(counts[large]) <= _POOL
    ]  # whole classes: how far rows lie apart depends on their number
    if len(large) < 2:
        return ("whitened" if learner.kind_ == "image" else "plain"), None
    rows = np.flatnonzero(np.isin(codes, large))
    spaces = {
        metric: _points(head, X[rows], metric) for metric in ("plain", "whitened")
    }
    shares = {
        name: matched_share(codes[rows], _clustered(points, len(large))[0])
        for name, points in spaces.items()
    }
    best = max(shares, key=lambda name: shares[name])
    return best, _limit(spaces[best], len(large))


def _tree(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the tree of rows in which the branches that lie nearest, by Ward's rule, are joined first."""
    from scipy.cluster.hierarchy import linkage

    return np.asarray(linkage(points[:_POOL], "ward"))


def _limit(points: NDArray[np.float32], classes: int) -> float:
    """Return the height at which a tree of known rows has as many branches as they have classes."""
    heights = _tree(points)[:, 2]
    return (
        float(heights[-classes : len(heights) - classes + 2].mean())
        if classes < len(heights)
        else float(heights[0])
    )


def _number_of_groups(points: NDArray[np.float32], limit: float | None) -> int:
    """Return how many groups rows fall into: by what known classes are like, or else by the clearest division."""
    if len(points) < 3:
        return 1
    if limit is not None:
        return int((_tree(points)[:, 2] > limit).sum()) + 1
    from sklearn.metrics import silhouette_score

    some = points[:_POOL]
    numbers = np.unique(
        np.geomspace(2, min(len(some) - 1, _MOST_GROUPS), 12).round().astype(int)
    )
    scores = [silhouette_score(some, _clustered(some, int(k))[0]) for k in numbers]
    return int(numbers[int(np.argmax(scores))])


def _clustered(
    points: NDArray[np.float32], number: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the group of each row, and how like the centre of its group it is."""
    from scipy.cluster.hierarchy import fcluster

    if len(points) < 2:
        return np.zeros(len(points), dtype=np.int64), np.ones(
            len(points), dtype=np.float32
        )
    codes = np.asarray(fcluster(_tree(points), number, "maxclust"), dtype=np.int64) - 1
    for _ in range(
        _STEPS
    ):  # a branch keeps what joined it early: rows go where they are nearest until none moves
        centres = np.stack(
            [points[: len(codes)][codes == code].sum(axis=0) for code in range(number)]
        )
        products = (
            points
            @ (
                centres
                / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
            ).T
        )
        before, codes = codes, products.argmax(axis=1)
        if np.array_equal(before, codes):
            break
    return codes, products[np.arange(len(points)), codes]


def matched_share(codes: NDArray[Any], groups: NDArray[Any]) -> float:
    """Return the share of rows in the group that stands for their class, after the best matching of both.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.suggestions import matched_share
    >>> matched_share(np.array([0, 0, 1, 1]), np.array([5, 5, 3, 5]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = (
        np.unique(part, return_inverse=True)[1] for part in (codes, groups)
    )
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1.0)
    return float(table[linear_sum_assignment(-table)].sum() / len(rows))
