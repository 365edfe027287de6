"""When is something unknown? Thresholds on novelty from samples that the scoring model had not learned.

Every time a model learns, it scores samples of the batch, each as if the fold of the batch that it is in had not been
learned; this is exact and takes no second model. The scores of all batches are pooled, those of younger models counting
less, and a threshold for a stated share of false alarms is a quantile of them. No sample is kept, only such scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import NotFittedError
from evergrow.core.fields import Fields
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.heads.base import IncrementalClassifier

KIND = register_kind("calibration")

FALSE_ALARM = 0.05
"""Share of known things that may be called unknown, unless another is asked for."""

FOLDS = 10
"""Folds of a batch, unless it is so large that they would exceed FOLD_ROWS."""

FOLD_ROWS = 500
"""Most rows of a fold: taking out more at once costs time and moves the model further."""

ENOUGH = 1000
"""Scores of a batch that suffice; further folds are not scored."""

SUFFICIENT = 200
"""Scores that a threshold should rest on before those of younger models are set aside."""

AGEING = (8, 6, 4, 3, 2, 1)
"""Powers to try, the strongest discount of young models first."""

MOST_POINTS = 200
"""Scores kept of a batch; larger batches are thinned to their quantiles."""


@dataclass(frozen=True)
class Scores:
    """Novelty of samples of one batch as if they had not been learned.

    Parameters
    ----------
    n : int
        How many samples were scored.
    size : int
        How many samples the scoring model had learned.
    points : tuple of float
        Their scores, ascending, or as many quantiles of them.
    """

    n: int
    size: int
    points: tuple[float, ...]

    @classmethod
    def of(cls, scores: NDArray[np.float64], size: int) -> Self:
        """Return all scores of a small batch, evenly spaced order statistics of a large one."""
        ordered = np.sort(scores)
        if len(ordered) > MOST_POINTS:
            ordered = ordered[((np.arange(MOST_POINTS) + 0.5) * len(ordered) / MOST_POINTS).astype(np.int64)]
        return cls(len(scores), int(size), tuple(float(score) for score in ordered))


@dataclass(frozen=True)
class Calibration:
    """Pooled scores of known things.

    Parameters
    ----------
    parts : tuple of Scores
        One entry per batch that was learned.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import Calibration, Scores
    >>> calibration = Calibration((Scores.of(np.arange(100.0), size=500),))
    >>> calibration.threshold(0.05)
    94.0
    """

    parts: tuple[Scores, ...] = ()

    @property
    def n(self) -> int:
        """Samples scored."""
        return sum(part.n for part in self.parts)

    def with_scores(self, scores: NDArray[np.float64], size: int) -> Calibration:
        """Return the calibration with one more batch, scored by a model that had learned so many samples."""
        return Calibration((*self.parts, Scores.of(scores, size))) if len(scores) else self

    def merged(self, other: Calibration, base: Calibration | None = None) -> Calibration:
        """Return both sides' parts; what both have from a common ancestor counts once."""
        common = set(base.parts) if base is not None else set()
        return Calibration((*self.parts, *(part for part in other.parts if part not in common)))

    def weights(self) -> NDArray[np.float64]:
        """Return what a score of each batch counts for: the less, the smaller the model was that gave it.

        Novelty changes while a model learns: it rises with the number of classes and falls with what is known of each.
        Scores of a model that had learned a share q of the samples count ``q**p``, with the largest p that leaves the
        weight of SUFFICIENT scores. With few scores all count, since then chance does more harm than age.
        """
        shares = np.array([part.size for part in self.parts], dtype=np.float64)
        shares /= shares.max()
        numbers = np.array([part.n for part in self.parts], dtype=np.float64)
        powers = (power for power in AGEING if float(numbers @ shares**power) >= SUFFICIENT)
        return np.asarray(shares ** next(powers, 0))

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """Return the smallest score that at most this share of known things exceeds.

        Parameters
        ----------
        false_alarm : float
            Between 0 and 1. Shares below one by the number of scores cannot be told apart: the largest score is
            returned.

        Raises
        ------
        NotFittedError
            If there are no scores: no class ever came with two samples at once.
        """
        check_number("false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True)
        if not self.parts:
            raise NotFittedError(
                "the novelty of known things must be calibrated first: learn at least two samples of a class at once"
            )
        points = np.concatenate([np.asarray(part.points) for part in self.parts])
        weights = np.concatenate(
            [
                np.full(len(part.points), weight * part.n / len(part.points))
                for part, weight in zip(self.parts, self.weights(), strict=True)
            ]
        )
        order = np.argsort(points, kind="stable")
        reached = np.cumsum(weights[order])
        place = int(np.searchsorted(reached, (1.0 - false_alarm) * reached[-1] * (1.0 - 1e-12)))
        return float(points[order][min(place, len(points) - 1)])

    def to_archive(self) -> Archive:
        """Return what a file holds of it."""
        return KIND.archive(
            {"batches": [{"n": part.n, "size": part.size, "points": list(part.points)} for part in self.parts]}
        )

    @classmethod
    def from_archive(cls, archive: Archive, name: str = "the calibration") -> Self:
        """Return the calibration that :meth:`to_archive` gave, or raise :class:`FileFormatError`."""
        return cls(tuple(_scores(batch) for batch in archive.open(KIND.name, name=name).records("batches")))


def _scores(batch: Fields) -> Scores:
    n, size, points = batch.integer("n", low=1), batch.integer("size", low=1), batch.numbers("points")
    batch.require(0 < len(points) <= n, f"it has {len(points)} scores of {n} samples")
    batch.require(points == sorted(points), "its scores are not in ascending order")
    return Scores(n, size, tuple(points))


def assign_folds(codes: NDArray[np.int64], counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Divide a batch into folds that leave something of every class.

    Parameters
    ----------
    codes : ndarray of shape (n,)
        Classes of the batch, which has been learned.
    counts : ndarray of shape (C,)
        Samples learned of each class, with the batch.
    seed : int
        Seed of the division.

    Returns
    -------
    ndarray of shape (n,)
        The fold of each row; -1 for the only sample of a class, which cannot be left out.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import assign_folds
    >>> folds = assign_folds(np.array([0] * 20 + [1]), np.array([20, 1]), seed=0)
    >>> np.bincount(folds[:20]).tolist(), int(folds[20])
    ([2, 2, 2, 2, 2, 2, 2, 2, 2, 2], -1)
    """
    number = max(FOLDS, math.ceil(len(codes) / FOLD_ROWS))
    folds = np.full(len(codes), -1, dtype=np.int64)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        if counts[code] > 1:
            rng = np.random.default_rng(derive_seed(seed, "calibration", len(rows), int(code)))
            folds[rng.permutation(rows)] = (np.arange(len(rows)) + rng.integers(number)) % number
    return folds


def fold_out_scores(
    head: IncrementalClassifier, X: NDArray[Any], labels: NDArray[Any], seed: int
) -> NDArray[np.float64]:
    """Score samples of a batch that a head has learned, each as if its fold had not been.

    Parameters
    ----------
    head : IncrementalClassifier
        A head that can tell novelty, and has learned the batch; not changed.
    X, labels : ndarray of shapes (n, d) and (n,)
        The batch.
    seed : int
        Seed of the folds.

    Returns
    -------
    ndarray of shape (m,)
        Of all samples in a small batch, of about a thousand in a large one; empty where each is the only one of its
        class.
    """
    folds = assign_folds(np.searchsorted(head.classes_, labels), np.asarray(head.class_counts_), seed)
    sizes = np.bincount(folds[folds >= 0], minlength=1)
    before = np.cumsum(sizes) - sizes  # rows in earlier folds; a fold is scored until there are enough
    rows = np.flatnonzero((folds >= 0) & (before[folds] < ENOUGH))
    return head.novelty_without(X[rows], labels[rows], folds[rows]) if len(rows) else np.empty(0)
