"""Calibrate probabilities and novelty on held-out rows.

The temperature of probabilities, the weights of the novelty terms and the threshold for
a stated fraction of false alarms are computed from held-out rows. Terms are kept in
units of the terms that the statistics of the scoring model expect of known rows, so
that they stay comparable while the model grows.

When a head has learned a batch, its rows are scored as if their fold had not been
learned. This is exact and takes no second model. Rows of new classes are measured
before they are learned.

No sample is kept. A held-out row consists of six terms, log losses, its class and a
mark: four fixed random projections of its feature vector. When the sample is unlearned,
its row is found by the mark and removed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import NotFittedError
from evergrow.core.record import Between, Spec, record, require
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.head.novelty.score import (
    LARGEST_TERM,
    N_COLUMNS,
    NoveltyPool,
    UnknownRows,
    ageing_weights,
    from_units,
    term_units,
    to_units,
)
from evergrow.head.temperature import (
    TEMPERATURES,
    best_temperature,
    expected_losses,
    log_losses,
)

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier
    from evergrow.head.solved_cache import HeldOutScores
    from evergrow.learner.learning import LabelledRows

MAX_DRAWN_ROWS = 256
"""Largest number of drawn rows that stand in for samples that were never scored."""

MARK_LENGTH = 4
"""Number of random projections that identify a row."""

MARK_TOLERANCE = 1e-4
"""Largest difference between marks of the same sample, relative to its length. Features
of an image differ by about 1e-6 if it is encoded in another batch."""

LARGEST_LOSS = 1e30
"""Bound of stored losses; larger ones overflow when they are pooled."""

MIN_FOLDS = 10
"""Number of folds of a batch; more if they would exceed :data:`MAX_FOLD_ROWS`."""

MAX_FOLD_ROWS = 500
"""Largest number of rows in a fold. Larger folds take more time and leave a model that
differs more from the full one."""


@dataclass(frozen=True)
class Measurement:
    """How the rows of one batch were measured.

    Parameters
    ----------
    size : int
        Number of samples that the measuring model had learned.
    n_classes : int
        Number of its classes.
    expected : int, default=0
        Number of drawn rows that stand in for samples that were never scored.
    """

    size: Annotated[int, Between(1, 2**53)]
    n_classes: Annotated[int, Between(1, 2**53)]
    expected: Annotated[int, Between(0, MAX_DRAWN_ROWS)] = 0


@record("held-out-rows")
@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows measured by models that had not learned them.

    Parameters
    ----------
    measurement : ndarray of shape (n,)
        Index of the measurement of each row.
    codes : ndarray of shape (n,)
        Index of its class among the classes of the calibration.
    marks : ndarray of shape (n, 4)
        Random projections of its features; see :func:`sample_marks`.
    terms : ndarray of shape (n, 6)
        Terms of novelty in units of the measuring model, and 1 / count of the nearest
        class.
    losses : ndarray of shape (n, 29), optional
        Log loss at every temperature of the grid, if probabilities are calibrated: of
        the own class of a known row, and of the predicted class of an unknown one.
        Temperatures are in units of the one that the measuring model expects.
    """

    measurement: Annotated[NDArray[np.int64], Spec(("n",), dtype="int64")]
    codes: Annotated[NDArray[np.int64], Spec(("n",), dtype="int64")]
    marks: Annotated[NDArray[np.float32], Spec(("n", MARK_LENGTH), dtype="float32")]
    terms: Annotated[NDArray[np.float64], Spec(("n", N_COLUMNS), largest=LARGEST_TERM)]
    losses: (
        Annotated[
            NDArray[np.float32],
            Spec(("n", len(TEMPERATURES)), dtype="float32", largest=LARGEST_LOSS),
        ]
        | None
    ) = None

    @classmethod
    def none(cls) -> HeldOutRows:
        """Return a table without rows."""
        return cls(
            np.empty(0, dtype=np.int64),
            np.empty(0, dtype=np.int64),
            np.empty((0, MARK_LENGTH), dtype=np.float32),
            np.empty((0, N_COLUMNS)),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: NDArray[np.bool_]) -> HeldOutRows:
        """Return the rows of a mask."""
        columns = {
            name: column[rows]
            for name, column in vars(self).items()
            if column is not None
        }
        return HeldOutRows(**columns)

    def joined(self, other: HeldOutRows) -> HeldOutRows:
        """Return the rows of both tables."""
        if not len(self):
            return other
        if not len(other):
            return self
        losses = None
        if self.losses is not None or other.losses is not None:
            losses = np.concatenate([self._losses_or_zeros(), other._losses_or_zeros()])
        return HeldOutRows(
            np.concatenate([self.measurement, other.measurement]),
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.marks, other.marks]),
            np.concatenate([self.terms, other.terms]),
            losses,
        )

    def _losses_or_zeros(self) -> NDArray[np.float32]:
        """Return the losses. Zeros at all temperatures have no influence."""
        if self.losses is None:
            return np.zeros((len(self), len(TEMPERATURES)), dtype=np.float32)
        return self.losses

    def digest(self, measurement: int) -> str:
        """Return a checksum of the rows of one measurement, given its index."""
        rows = self.take(self.measurement == measurement)
        found = hashlib.blake2b(rows.marks.tobytes(), digest_size=12)
        found.update(rows.terms.tobytes())
        return found.hexdigest()


# -- marks of samples -----------------------------------------------------------------


def sample_marks(X: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return random projections (n, 4) of rows, which identify them.

    Projections are the same in every model, and nearly the same for features that
    differ by rounding.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Features.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import sample_marks
    >>> X = np.random.default_rng(0).normal(size=(3, 50))
    >>> bool(np.allclose(sample_marks(X)[1], sample_marks(X[1:2])[0], atol=1e-6))
    True
    """
    rows = bounded_features(X)
    source = np.random.default_rng(derive_seed(0, "marks", rows.shape[1]))
    directions = source.normal(size=(rows.shape[1], MARK_LENGTH))
    marks = rows @ directions / math.sqrt(rows.shape[1])
    largest = float(np.finfo(np.float32).max)
    return np.asarray(np.clip(marks, -largest, largest), dtype=np.float32)


def bounded_features(X: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return features as float64, rounded and clipped to float32."""
    largest = float(np.finfo(np.float32).max)
    bounded = np.clip(X, -largest, largest).astype(np.float32)
    return np.asarray(bounded, dtype=np.float64)


def matching_rows(
    rows: HeldOutRows,
    marks: NDArray[np.float32],
    codes: NDArray[np.int64],
    tolerances: NDArray[np.float64],
    n_left: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Find the rows of samples that are unlearned. No row is found twice.

    If a sample has several rows, the one measured last is found. If more rows of a
    class than `n_left` would remain, the nearest rows are returned for samples without
    a matching mark.

    Parameters
    ----------
    rows : HeldOutRows
        Rows to search.
    marks : ndarray of shape (n, 4)
        Marks of the samples.
    codes : ndarray of shape (n,)
        Their classes. -1 stands for a class without rows.
    tolerances : ndarray of shape (n,)
        Largest difference between marks of the same sample.
    n_left : ndarray of shape (C,)
        Number of samples of each class that remain.

    Returns
    -------
    ndarray of int of shape (n,)
        The row of each sample; -1 without a row.
    """
    found = np.full(len(marks), -1, dtype=np.int64)
    for code in np.unique(codes[codes >= 0]).tolist():
        candidates = np.flatnonzero(rows.codes == code)
        if len(candidates):
            # The latest rows come first.
            latest = np.argsort(-rows.measurement[candidates], kind="stable")
            samples = np.flatnonzero(codes == code)
            found[samples] = _match_class(
                rows,
                candidates[latest],
                marks[samples],
                tolerances[samples],
                n_left[code],
            )
    return found


def _match_class(
    rows: HeldOutRows,
    candidates: NDArray[np.int64],
    marks: NDArray[np.float32],
    tolerances: NDArray[np.float64],
    n_left: int,
) -> NDArray[np.int64]:
    """Find the rows of samples of one class, among its rows `candidates`.

    Candidates are row numbers, the preferred ones first. Returns -1 for a sample
    without a row.
    """
    from scipy.spatial import cKDTree

    found = np.full(len(marks), -1, dtype=np.int64)
    stored = rows.marks[candidates].astype(np.float64)
    tree = cKDTree(stored)
    is_free = np.ones(len(candidates), dtype=bool)
    distinct, copies = np.unique(marks, axis=0, return_inverse=True)
    copies = copies.reshape(-1)
    for copy, mark in enumerate(distinct.astype(np.float64)):
        samples = np.flatnonzero(copies == copy)
        # Features of length 0 have tolerance 0.
        radius = float(tolerances[samples].max()) + 1e-30
        near = np.array(tree.query_ball_point(mark, radius, p=np.inf), dtype=int)
        near = np.sort(near[is_free[near]])  # preferred ones first among equal gaps
        gaps = np.abs(stored[near] - mark).max(axis=1)
        near = near[np.argsort(gaps, kind="stable")][: len(samples)]
        is_free[near] = False
        found[samples[: len(near)]] = candidates[near]
    # The other samples have features that differ by more than rounding.
    for sample in np.flatnonzero(found < 0).tolist():
        if int(is_free.sum()) <= n_left:
            break
        free = np.flatnonzero(is_free)
        gaps = np.abs(stored[free] - marks[sample]).max(axis=1)
        nearest = int(free[int(gaps.argmin())])
        is_free[nearest] = False
        found[sample] = candidates[nearest]
    return found


# -- folds -----------------------------------------------------------------------------


def row_keys(X: NDArray[np.floating], seed: int) -> NDArray[np.uint64]:
    """Return a pseudo-random number for each row that depends on its features only.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Features.
    seed : int
        Seed of the numbers.
    """
    start = hashlib.blake2b(str(seed).encode(), digest_size=8)
    keys = np.empty(len(X), dtype=np.uint64)
    for index, row in enumerate(bounded_features(X).astype(np.float32)):
        digest = start.copy()
        digest.update(row.data)
        keys[index] = int.from_bytes(digest.digest(), "little")
    return keys


def assign_folds(
    codes: NDArray[np.int64], counts: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Divide a batch into folds, none of which has all samples of a class.

    The folds do not depend on the order of the rows.

    Parameters
    ----------
    codes : ndarray of shape (n,)
        Class numbers of the rows of a learned batch.
    counts : ndarray of shape (C,)
        Number of learned samples of each class, with the batch.
    keys : ndarray of shape (n,)
        From :func:`row_keys`.

    Returns
    -------
    ndarray of shape (n,)
        The fold of each row. -1 for the only sample of a class, which cannot be held
        out.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import assign_folds, row_keys
    >>> keys = row_keys(np.arange(21.0)[:, None], seed=0)
    >>> folds = assign_folds(np.array([0] * 20 + [1]), np.array([20, 1]), keys)
    >>> np.bincount(folds[:20]).tolist(), int(folds[20])
    ([2, 2, 2, 2, 2, 2, 2, 2, 2, 2], -1)
    """
    n_folds = max(MIN_FOLDS, math.ceil(len(codes) / MAX_FOLD_ROWS))
    folds = np.full(len(codes), -1, dtype=np.int64)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        if counts[code] > 1:
            order = rows[np.argsort(keys[rows], kind="stable")]
            # Small classes do not all begin in fold 0.
            offset = int(keys[order[0]] % np.uint64(n_folds))
            folds[order] = (np.arange(len(rows)) + offset) % n_folds
    return folds


def assign_class_folds(
    labels: NDArray[np.str_], classes: NDArray[np.str_], enough: int
) -> NDArray[np.int64]:
    """Divide classes into folds, each of which can be left out of a model.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Classes of the rows of a learned batch.
    classes : ndarray of shape (C,)
        The classes to divide, sorted. All of their learned rows are in the batch.
    enough : int
        Number of rows after which no further fold is filled.

    Returns
    -------
    ndarray of shape (n,)
        The fold of each row. -1 for rows of other classes, of folds with more than
        :data:`MAX_FOLD_ROWS` rows, and after `enough` rows.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import assign_class_folds
    >>> labels = np.array(["a", "a", "b", "c"])
    >>> assign_class_folds(labels, np.array(["a", "b"]), 100).tolist()
    [0, 0, 1, -1]
    """
    # Names that sort together are often alike, so they are in different folds.
    n_folds = min(len(classes), MIN_FOLDS)
    class_folds = np.arange(len(classes)) % n_folds
    folds = np.full(len(labels), -1, dtype=np.int64)
    n_rows = 0
    for fold in range(n_folds):
        rows = np.flatnonzero(np.isin(labels, classes[class_folds == fold]))
        if len(rows) <= MAX_FOLD_ROWS and n_rows < enough:
            folds[rows] = fold
            n_rows += len(rows)
    return folds


# -- calibration -----------------------------------------------------------------------


MIN_CLASSES_TO_LEAVE_OUT = 4
"""Number of classes from which each is also measured as if it were new. At least two
must be left, and a model of two says little about a larger one."""

FALSE_ALARM = 0.05
"""Default fraction of known samples that may be called unknown."""

ENOUGH_ROWS = 1000
"""Number of scored rows of a batch after which no further fold is scored."""

EASY_CLASS = 2.0
"""Decrease of the log-weight of a class in the threshold, per unit by which the mean
novelty of its held-out rows is below the median of all classes."""

CLASS_GROWTH = 1.5
"""Power of the number of rival classes by which the odds of a mistake grow. Chosen on
training rows of streams; 1 would be right if rivals were all alike."""

SIZE_POWER = 3
"""Power of the number of learned samples by which a held-out row of a smaller model
counts less in the limits of prediction sets."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Held-out rows, as the present model scores them.

    Parameters
    ----------
    novelty : ndarray of shape (n,)
        Novelty scores.
    probability : ndarray of shape (n,)
        Probability of the own class of a known row, of the predicted class of an
        unknown one.
    weights : ndarray of shape (n,)
        Weights of the rows.
    codes : ndarray of int of shape (n,)
        Classes of the rows.
    """

    novelty: NDArray[np.float64]
    probability: NDArray[np.float64]
    weights: NDArray[np.float64]
    codes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.novelty)


@dataclass(frozen=True, eq=False)
class RankedRows:
    """Held-out rows of known classes: how far each is from being recognised.

    Parameters
    ----------
    novelty : ndarray of shape (n,)
        Novelty scores.
    losses : ndarray of shape (n,)
        Log loss of the own class at the present temperature. 0 if the own class is the
        most likely one.
    weights : ndarray of shape (n,)
        Weights of the rows. Rows of smaller models count less.
    classes : ndarray of str of shape (n,)
        Their classes.
    """

    novelty: NDArray[np.float64]
    losses: NDArray[np.float64]
    weights: NDArray[np.float64]
    classes: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.novelty)

    def take(self, rows: NDArray[np.bool_]) -> RankedRows:
        """Return the rows of a mask."""
        return RankedRows(*(column[rows] for column in vars(self).values()))


@record("calibration")
@dataclass(frozen=True, eq=False)
class Calibration:
    """Held-out rows of known classes, and rows of new classes before they were learned.

    Parameters
    ----------
    measurements : tuple of Measurement
        How the rows were measured, in the order of learning.
    classes : tuple of str
        Names of the classes of rows.
    known : HeldOutRows
        Rows scored as if their fold had not been learned.
    unknown : HeldOutRows
        Rows of new classes, measured before they were learned.
    expected : ndarray of shape (m, 6)
        Terms drawn from the statistics of the present model. They stand in for samples
        that were never scored.
    n_classes : int
        Number of classes of the model. Novelty of a single class is a plain distance,
        so rows measured with one class and with several are never used together.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(400) % 4
    >>> X = rng.normal(size=(400, 6)) + 4 * np.eye(6)[y]
    >>> learner = Learner(None, options={"n_units": 20}).fit(X[:300], y[:300])
    >>> learner.state_.describe()["novelty"]["calibrated_on"]
    300
    >>> bool(learner.is_unknown(X[300:]).mean() < 0.2)
    True
    """

    measurements: tuple[Measurement, ...] = ()
    classes: tuple[str, ...] = ()
    known: HeldOutRows = field(default_factory=HeldOutRows.none)
    unknown: HeldOutRows = field(default_factory=HeldOutRows.none)
    expected: Annotated[
        NDArray[np.float64], Spec((None, N_COLUMNS), largest=LARGEST_TERM)
    ] = field(default_factory=lambda: np.empty((0, N_COLUMNS)))
    n_classes: int = 0

    def check(self) -> None:
        """Raise :class:`FileFormatError` if the tables do not fit each other."""
        require(
            len(set(self.classes)) == len(self.classes),
            "its classes have a name twice",
        )
        for name, rows in (("known", self.known), ("unknown", self.unknown)):
            for indices, length in (
                (rows.measurement, len(self.measurements)),
                (rows.codes, len(self.classes)),
            ):
                fits = bool(((indices >= 0) & (indices < length)).all())
                require(fits, f"its {name} rows are of no measurement or class")
        require(
            len(self.expected) <= MAX_DRAWN_ROWS,
            f"it has {len(self.expected)} rows that were drawn from statistics",
        )

    # -- results ----------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of held-out rows in use."""
        return int(self._in_use.sum())

    @property
    def n_rows(self) -> int:
        """Number of all rows, in use or not."""
        return len(self.known) + len(self.unknown)

    @cached_property
    def _in_use(self) -> NDArray[np.bool_]:
        """Mask of the known rows that were measured with one class, or with several."""
        is_single = np.array([m.n_classes == 1 for m in self.measurements], dtype=bool)
        return np.asarray(is_single[self.known.measurement] == (self.n_classes == 1))

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Weight of each known row in use; rows of smaller models count less."""
        of_row = self.known.measurement[self._in_use]
        used, counts = np.unique(of_row, return_counts=True)
        if not len(used):
            return np.empty(0)
        entries = [self.measurements[index] for index in used.tolist()]
        # Drawn rows stand in for samples, so they count as rows.
        n_rows = [
            count + entry.expected
            for count, entry in zip(counts.tolist(), entries, strict=True)
        ]
        ageing = ageing_weights(n_rows, [entry.size for entry in entries])
        return np.asarray(ageing[np.searchsorted(used, of_row)])

    @cached_property
    def _n_expected(self) -> int:
        """Number of rows to draw from the statistics."""
        used = np.unique(self.known.measurement[self._in_use]).tolist()
        wanted: int = sum(self.measurements[index].expected for index in used)
        return min(wanted, MAX_DRAWN_ROWS)

    @cached_property
    def _terms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Terms of known rows and of drawn rows, and their weights."""
        weights = self._weights
        drawn = self.expected[: self._n_expected]
        # Drawn rows have the weight of the oldest rows.
        smallest = float(weights.min()) if len(weights) else 1.0
        terms = np.concatenate([self.known.terms[self._in_use], drawn])
        return terms, np.concatenate([weights, np.full(len(drawn), smallest)])

    @cached_property
    def pool(self) -> NoveltyPool:
        """Terms from which the novelty score is computed."""
        terms, weights = self._terms
        unknown = []
        if self.n_classes != 1:
            for index in np.unique(self.unknown.measurement).tolist():
                rows = self.unknown.terms[self.unknown.measurement == index]
                unknown.append(UnknownRows(self.measurements[index].size, rows))
        # Each drawn row counts as a class.
        drawn = len(self.classes) + np.arange(len(terms) - self.n)
        classes = np.concatenate([self.known.codes[self._in_use], drawn])
        return NoveltyPool(terms, weights / weights.sum(), tuple(unknown), classes)

    @cached_property
    def _scores(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Novelty of known and drawn rows, ascending, and their weights."""
        terms, weights = self._terms
        scores = self.pool.standard().score(terms)
        measured = slice(0, self.n)  # drawn rows follow
        weights = weights.copy()
        weights[measured] *= class_weight_factors(
            scores[measured], self.known.codes[self._in_use], weights[measured]
        )
        order = np.argsort(scores, kind="stable")
        return scores[order], weights[order]

    @property
    def scores(self) -> NDArray[np.float64]:
        """Novelty of known and drawn rows by the present score, ascending."""
        if self.n:
            return self._scores[0]
        return np.empty(0)

    def temperature(self) -> float | None:
        """Return the temperature with the smallest log loss. None without losses.

        It is in units of the temperature that the statistics of the model expect.
        """
        if self.known.losses is None or not self.n:
            return None
        total = self._weights @ self.known.losses[self._in_use].astype(np.float64)
        return best_temperature((total + expected_losses()) / self._weights.sum())

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """Return the score that at most a fraction of known samples exceeds.

        Parameters
        ----------
        false_alarm : float, default=0.05
            The fraction, between 0 and 1. Below 1 / n for n scores, the largest score
            is returned.

        Raises
        ------
        NotFittedError
            If there are no scores: no class ever came with two samples at once.
        """
        check_number(
            "false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True
        )
        if not self.n:
            raise NotFittedError(
                "the novelty of known things must be calibrated first: learn at least "
                "two samples of a class at once"
            )
        scores, weights = self._scores
        reached = np.cumsum(weights)
        # A new sample has any rank among the scores with the same probability, so it
        # counts as one of them, with the weight of the latest model.
        total = reached[-1] + weights.max()
        wanted = (1.0 - false_alarm) * total * (1.0 - 1e-12)
        index = int(np.searchsorted(reached, wanted))
        return float(scores[min(index, len(scores) - 1)])

    def familiarity(self, novelty: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the fraction of known samples that are at least as novel.

        A sample exceeds ``threshold(false_alarm)`` if its familiarity is at most
        `false_alarm`. Unlike scores, familiarities of different models can be compared.

        Parameters
        ----------
        novelty : ndarray of shape (n,)
            Novelty scores. The familiarity of NaN is 0.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Learner
        >>> y = np.arange(60) % 3
        >>> X = np.random.default_rng(0).normal(size=(60, 4)) + 3 * np.eye(4)[y]
        >>> learner = Learner(None, options={"n_units": 20}).fit(X, y)
        >>> calibration = learner.state_.calibration
        >>> novelty = np.array([calibration.threshold(0.1), np.inf])
        >>> calibration.familiarity(novelty) > 0.1
        array([ True, False])
        """
        if not self.n:
            return np.ones(len(novelty))
        scores, weights = self._scores
        reached = np.concatenate([[0.0], np.cumsum(weights)])
        total = (reached[-1] + weights.max()) * (1.0 - 1e-12)
        # NaN is sorted behind all scores.
        index = np.searchsorted(scores, novelty)
        found = 1.0 - reached[index] / total
        found[index == len(scores)] = 0.0
        return np.asarray(found)

    def known_rows(self) -> ScoredRows:
        """Return novelty and probability of the held-out rows of known classes.

        The probability is that of the own class of a row.
        """
        scores = self.pool.standard().score(self.known.terms[self._in_use])
        weights = self._weights * class_weight_factors(
            scores, self.known.codes[self._in_use], self._weights
        )
        probabilities = self._probabilities(self.known)[self._in_use]
        return ScoredRows(
            scores, probabilities, weights, self.known.codes[self._in_use]
        )

    def unknown_rows(self) -> ScoredRows:
        """Return novelty and probability of the rows of classes that were unknown.

        These are rows of new classes before they were learned, and rows of the first
        classes as if they were new. The probability is that of the predicted class.
        Every class has the same weight.
        """
        rows = self.unknown
        if self.n_classes == 1:  # novelty is a plain distance, on another scale
            rows = HeldOutRows.none()
        scores = self.pool.standard().score(rows.terms)
        _, codes, sizes = np.unique(rows.codes, return_inverse=True, return_counts=True)
        weights = 1.0 / sizes[codes] if len(rows) else np.empty(0)
        return ScoredRows(scores, self._probabilities(rows), weights, codes)

    @cached_property
    def ranked_rows(self) -> RankedRows:
        """Novelty and loss of the held-out rows, as the present model has them.

        A row was measured when there were fewer classes. Each class that came later can
        be mistaken for the own class of the row, so its odds of a mistake grow with the
        number of classes. Rows without losses are left out.
        """
        known = self.known.take(self._in_use)
        losses = self._own_losses(known)
        measured = np.ones(len(known), dtype=bool)
        is_top = np.ones(len(known), dtype=bool)
        if self.n_classes > 1 and known.losses is not None:
            # The loss at the highest temperature is never 0 with several classes.
            measured = known.losses[:, -1] > 0.0
            # At the lowest temperature the most likely class has all the probability.
            is_top = known.losses[:, 0] < math.log(2.0)
            n_before = np.array([entry.n_classes for entry in self.measurements])
            rivals = (self.n_classes - 1) / (n_before[known.measurement] - 1)
            growth = CLASS_GROWTH * np.log(np.maximum(rivals, 1.0))
            # log(1 + odds * growth), where the loss is log(1 + odds).
            odds = np.log(np.expm1(np.clip(losses, 1e-12, 500.0))) + growth
            losses = np.logaddexp(0.0, odds)
            is_top &= losses < math.log(2.0)
        elif known.losses is None:
            measured[:] = False
        sizes = np.array([entry.size for entry in self.measurements], dtype=float)
        weights = (sizes / sizes.max(initial=1.0))[known.measurement] ** SIZE_POWER
        rows = RankedRows(
            self.pool.standard().score(known.terms) if len(known) else np.empty(0),
            np.where(is_top, 0.0, losses),
            weights,
            np.array(self.classes, dtype=np.str_)[known.codes],
        )
        return rows.take(measured)

    def _probabilities(self, rows: HeldOutRows) -> NDArray[np.float64]:
        """Return the probability of the class of each row; 1 without losses."""
        return np.asarray(np.exp(-self._own_losses(rows)))

    def _own_losses(self, rows: HeldOutRows) -> NDArray[np.float64]:
        """Return the log loss of each row at the temperature; 0 without losses."""
        temperature = self.temperature()
        if rows.losses is None or temperature is None:
            return np.zeros(len(rows))
        grid = np.log(TEMPERATURES)
        place = np.interp(np.log(temperature), grid, np.arange(len(grid)))
        below = min(int(place), len(grid) - 2)
        share = place - below
        losses = rows.losses[:, below : below + 2].astype(np.float64)
        return np.asarray(losses @ np.array([1.0 - share, share]))

    # -- calibrating a head ------------------------------------------------------------

    def calibrate_head(self, head: IncrementalClassifier) -> Calibration:
        """Calibrate a head in place; return the calibration for its present statistics.

        Parameters
        ----------
        head : IncrementalClassifier
            Gets a temperature and a novelty score; none of both if no rows are in use.
            A head without the method ``calibrate`` is not changed.

        Returns
        -------
        Calibration
            The same rows, with new drawn rows and the number of classes of the head.
        """
        if not hasattr(head, "calibrate"):
            return self
        after = replace(self, n_classes=len(head.classes_))
        if not after.n:
            head.calibrate(temperature=None, novelty=None)
            return after
        terms = head.expected_terms()
        units = term_units(terms)
        drawn = np.linspace(0, len(terms) - 1, after._n_expected).astype(np.int64)
        after = replace(after, expected=to_units(terms[drawn], units))
        temperature = after.temperature()
        if temperature is not None:
            temperature *= head.expected_temperature()
        head.calibrate(
            temperature=temperature,
            novelty=from_units(after.pool.standard(), units),
        )
        return after

    def with_new_classes(
        self,
        head: IncrementalClassifier,
        block: LabelledRows,
        counts: Mapping[str, int],
        seed: int,
    ) -> Calibration:
        """Return the calibration with the rows of new classes, before they are learned.

        Nothing is measured with a single class, because its novelty is a plain
        distance.

        Parameters
        ----------
        head : IncrementalClassifier
            The head, which has not learned the block. It is not changed.
        block : LabelledRows
            Samples that will be learned.
        counts : mapping of str to int
            Number of learned samples per class, without the block.
        seed : int
            Seed of the choice of at most :data:`ENOUGH_ROWS` rows.
        """
        new = np.flatnonzero(~np.isin(block.labels, list(counts)))
        known = replace(self, n_classes=len(counts))
        if len(counts) < 2 or not len(new) or not known.n:
            return self
        if not hasattr(head, "novelty_terms"):
            return self
        import torch

        keys = row_keys(block.X[new], seed)
        rows = np.sort(new[np.argsort(keys, kind="stable")[:ENOUGH_ROWS]])
        units = term_units(head.expected_terms())
        scores = torch.from_numpy(head.class_scores(block.X[rows]))
        return self._with_rows(
            block.X[rows],
            block.labels[rows],
            Measurement(sum(counts.values()), len(counts)),
            to_units(head.novelty_terms(block.X[rows]), units),
            log_losses(scores, scores.argmax(dim=1), head.expected_temperature()),
            known=False,
        )

    def calibrate_after(
        self,
        head: IncrementalClassifier,
        block: LabelledRows,
        counts: Mapping[str, int],
        seed: int,
    ) -> Calibration:
        """Measure rows of a block that a head has just learned, and calibrate the head.

        Parameters
        ----------
        head : IncrementalClassifier
            The head, calibrated in place. A head without ``novelty_score`` is not
            changed, and nothing is measured.
        block : LabelledRows
            Samples that were learned.
        counts : mapping of str to int
            Number of learned samples per class, with the block.
        seed : int
            Seed of the folds.

        Returns
        -------
        Calibration
            The calibration with the measured rows.
        """
        if not hasattr(head, "novelty_score"):
            return self
        names = sorted(counts)
        codes = np.searchsorted(names, block.labels)
        class_counts = np.array([counts[name] for name in names])
        folds = assign_folds(codes, class_counts, row_keys(block.X, seed))
        # Folds are scored until there are enough rows.
        fold_sizes = np.bincount(folds[folds >= 0], minlength=1)
        rows_before = np.cumsum(fold_sizes) - fold_sizes
        rows = np.flatnonzero((folds >= 0) & (rows_before[folds] < ENOUGH_ROWS))
        if not len(rows):
            return self.calibrate_head(head)
        weights = None
        if block.weights is not None:
            weights = block.weights[rows]
        scores: HeldOutScores = head.held_out_scores(
            block.X[rows], block.labels[rows], folds[rows], weights
        )
        n_samples = sum(counts.values())
        # If most samples were never scored, rows drawn from the statistics stand in.
        n_drawn = 0
        if not replace(self, n_classes=len(counts)).n:
            n_unscored = n_samples - len(block.labels) - len(rows)
            n_drawn = min(max(n_unscored, 0), MAX_DRAWN_ROWS)
        after = self._with_rows(
            block.X[rows],
            block.labels[rows],
            Measurement(n_samples, len(counts), n_drawn),
            to_units(scores.terms, term_units(head.expected_terms())),
            scores.losses,
            known=True,
        )
        after = after._with_left_out_classes(head, block, counts)
        return after.calibrate_head(head)

    def _with_left_out_classes(
        self,
        head: IncrementalClassifier,
        block: LabelledRows,
        counts: Mapping[str, int],
    ) -> Calibration:
        """Return the calibration with rows of the first classes, as if each were new.

        :meth:`with_new_classes` measures classes that a model learns later. The first
        ones are left out of the model by subtraction, one fold of classes at a time.

        Parameters
        ----------
        head : IncrementalClassifier
            The head. It has learned the block and is not changed.
        block : LabelledRows
            Samples that were learned.
        counts : mapping of str to int
            Number of learned samples per class, with the block.
        """
        names, sizes = np.unique(block.labels, return_counts=True)
        totals = np.array([counts[name] for name in names.tolist()])
        first = names[sizes == totals]
        has_old_classes = len(counts) - len(first) > 1
        if has_old_classes or len(counts) < MIN_CLASSES_TO_LEAVE_OUT:
            return self
        if not hasattr(head, "scores_as_new_class"):
            return self
        folds = assign_class_folds(block.labels, first, ENOUGH_ROWS)
        rows = np.flatnonzero(folds >= 0)
        if not len(rows):
            return self
        weights = None if block.weights is None else block.weights[rows]
        found: HeldOutScores = head.scores_as_new_class(
            block.X[rows], block.labels[rows], folds[rows], weights
        )
        after = self
        for fold in np.unique(folds[rows]).tolist():
            own = folds[rows] == fold
            n_samples = sum(counts.values()) - int(own.sum())
            n_classes = len(counts) - len(np.unique(block.labels[rows][own]))
            after = after._with_rows(
                block.X[rows][own],
                block.labels[rows][own],
                Measurement(n_samples, n_classes),
                found.terms[own],
                None if found.losses is None else found.losses[own],
                known=False,
            )
        return after

    # -- changes ----------------------------------------------------------------------

    def _with_rows(
        self,
        X: NDArray[np.floating],
        labels: NDArray[np.str_],
        measurement: Measurement,
        terms: NDArray[np.float64],
        losses: NDArray[np.float64] | None = None,
        *,
        known: bool,
    ) -> Calibration:
        """Return the calibration with one more measurement.

        Parameters
        ----------
        X, labels : ndarray of shape (n, d), ndarray of shape (n,)
            Features and classes of the rows.
        measurement : Measurement
            How they were measured.
        terms : ndarray of shape (n, 6)
            Their terms, in units of the measuring model.
        losses : ndarray of shape (n, 29), optional
            Their log losses.
        known : bool
            Whether the class of the rows was known to the measuring model.
        """
        classes = tuple(dict.fromkeys([*self.classes, *np.unique(labels).tolist()]))
        codes = {name: code for code, name in enumerate(classes)}
        stored = None
        if losses is not None:
            bounded = np.nan_to_num(losses, nan=LARGEST_LOSS, posinf=LARGEST_LOSS)
            # In float32 a loss just below the bound could be rounded above it.
            stored = np.minimum(bounded, 0.99 * LARGEST_LOSS).astype(np.float32)
        rows = HeldOutRows(
            np.full(len(labels), len(self.measurements), dtype=np.int64),
            np.array([codes[name] for name in labels.tolist()], dtype=np.int64),
            sample_marks(X),
            terms,
            stored,
        )
        after = replace(
            self, measurements=(*self.measurements, measurement), classes=classes
        )
        if known:
            return replace(after, known=self.known.joined(rows))
        return replace(after, unknown=self.unknown.joined(rows))

    def without_samples(
        self,
        X: NDArray[np.floating],
        labels: NDArray[np.str_],
        counts: Mapping[str, int],
    ) -> tuple[Calibration, int]:
        """Return the calibration without the rows of some samples.

        No class keeps more rows than samples: if a mark is not found although all
        samples of the class have rows, the nearest row is removed.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Features of the samples.
        labels : ndarray of shape (n,)
            Their classes.
        counts : mapping of str to int
            Samples of each class that remain.

        Returns
        -------
        calibration : Calibration
            Without any row of the samples.
        influenced : int
            Largest number of remaining rows that were measured while one of the samples
            was learned. They cannot be measured again without their own samples.
        """
        if not self.measurements or not len(labels):
            return self, 0
        marks = sample_marks(X)
        lengths = np.linalg.norm(bounded_features(X), axis=1)
        tolerances = MARK_TOLERANCE * lengths / math.sqrt(X.shape[1])
        columns = {name: column for column, name in enumerate(self.classes)}
        codes = np.array([columns.get(name, -1) for name in labels.tolist()])
        n_left = np.array(
            [counts.get(name, 0) for name in self.classes], dtype=np.int64
        )
        known = matching_rows(self.known, marks, codes, tolerances, n_left)
        unknown = matching_rows(self.unknown, marks, codes, tolerances, n_left)
        has_known = known >= 0
        has_unknown = unknown >= 0
        # A sample influenced all measurements since the one in which its class was
        # learned. If it has no row, this may be the first measurement.
        first = np.zeros(len(labels), dtype=np.int64)
        first[has_unknown] = self.unknown.measurement[unknown[has_unknown]] + 1
        first[has_known] = self.known.measurement[known[has_known]]
        keep_known = np.ones(len(self.known), dtype=bool)
        keep_known[known[has_known]] = False
        keep_unknown = np.ones(len(self.unknown), dtype=bool)
        keep_unknown[unknown[has_unknown]] = False
        influenced = int((self.known.measurement[keep_known] >= first.min()).sum())
        influenced += int((self.unknown.measurement[keep_unknown] >= first.min()).sum())
        return self._keep_rows(keep_known, keep_unknown), influenced

    def without_classes(self, names: Collection[str]) -> Calibration:
        """Return the calibration without the rows of whole classes."""
        gone = np.array([name in names for name in self.classes], dtype=bool)
        if not gone.any():
            return self
        return self._keep_rows(~gone[self.known.codes], ~gone[self.unknown.codes])

    def renamed(self, names: Mapping[str, str]) -> Calibration:
        """Return the calibration with renamed classes. Equal names are merged."""
        given = [names.get(name, name) for name in self.classes]
        classes = tuple(dict.fromkeys(given))
        if classes == self.classes:
            return self
        codes = np.array([classes.index(name) for name in given], dtype=np.int64)
        return replace(
            self,
            classes=classes,
            known=replace(self.known, codes=codes[self.known.codes]),
            unknown=replace(self.unknown, codes=codes[self.unknown.codes]),
        )

    def merged(self, other: Calibration, base: Calibration) -> Calibration:
        """Return the rows of both. Measurements of a common base count once."""
        common = set(base._digests())
        classes = tuple(dict.fromkeys([*self.classes, *other.classes]))
        codes = np.array([classes.index(name) for name in other.classes], dtype=int)
        is_new = np.array([name not in common for name in other._digests()], dtype=bool)
        indices = len(self.measurements) + np.cumsum(is_new) - 1
        entries = zip(other.measurements, is_new.tolist(), strict=True)
        added = tuple(entry for entry, new in entries if new)
        tables = []
        for mine, theirs in ((self.known, other.known), (self.unknown, other.unknown)):
            rows = theirs.take(is_new[theirs.measurement])
            rows = replace(
                rows,
                measurement=indices[rows.measurement].astype(np.int64),
                codes=codes[rows.codes].astype(np.int64),
            )
            tables.append(mine.joined(rows))
        return replace(
            self,
            measurements=(*self.measurements, *added),
            classes=classes,
            known=tables[0],
            unknown=tables[1],
        )

    def _digests(self) -> list[str]:
        """Return a checksum of every measurement."""
        return [
            f"{entry.size} {self.known.digest(index)} {self.unknown.digest(index)}"
            for index, entry in enumerate(self.measurements)
        ]

    def _keep_rows(
        self, known: NDArray[np.bool_], unknown: NDArray[np.bool_]
    ) -> Calibration:
        """Return the calibration with the rows of two masks.

        Measurements and classes without rows are removed, and the others renumbered.
        """
        tables = [self.known.take(known), self.unknown.take(unknown)]
        used = np.unique(np.concatenate([rows.measurement for rows in tables]))
        codes = np.unique(np.concatenate([rows.codes for rows in tables]))
        tables = [
            replace(
                rows,
                measurement=np.searchsorted(used, rows.measurement),
                codes=np.searchsorted(codes, rows.codes),
            )
            for rows in tables
        ]
        return replace(
            self,
            measurements=tuple(self.measurements[index] for index in used.tolist()),
            classes=tuple(self.classes[code] for code in codes.tolist()),
            known=tables[0] if len(tables[0]) else HeldOutRows.none(),
            unknown=tables[1] if len(tables[1]) else HeldOutRows.none(),
        )


def class_weight_factors(
    scores: NDArray[np.float64],
    codes: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return factors of the weights of held-out rows in the threshold, by class.

    A class with much lower novelty than the others would lower the threshold, and raise
    false alarms in the other classes. Its rows have smaller weights. Class means are
    shrunk by their noise. If classes differ, the threshold fits the harder ones.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Novelty of the rows.
    codes : ndarray of shape (n,)
        Their classes.
    weights : ndarray of shape (n,)
        Their weights from other causes.

    Returns
    -------
    ndarray of shape (n,)
        1 for classes of at least median novelty, less for easier ones.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import class_weight_factors
    >>> scores = np.random.default_rng(0).normal(size=90)
    >>> scores[80:] -= 6.0
    >>> codes = np.arange(90) // 10
    >>> factors = class_weight_factors(scores, codes, np.ones(90))
    >>> bool(factors[:80].mean() > 0.7), bool(factors[80] < 0.01)
    (True, True)
    """
    _, codes = np.unique(codes, return_inverse=True)
    totals = np.bincount(codes, weights)
    means = np.bincount(codes, weights * scores) / totals

    # Variance of a class mean by the scatter within classes.
    residuals = scores - means[codes]
    n_free = max(len(codes) - len(totals), 1)
    variance_within = float((residuals**2).sum()) / n_free
    # Effective number of rows of each class; equal weights give the number itself.
    n_effective = totals**2 / np.bincount(codes, weights**2)
    noise = max(variance_within, 1e-12) / n_effective

    variance_between = max(float(np.var(means) - noise.mean()), 0.0)
    differences = means - np.median(means)
    shrunk = differences * variance_between / (variance_between + noise)
    class_factors = np.exp(EASY_CLASS * np.minimum(shrunk, 0.0))
    return np.asarray(class_factors[codes])
