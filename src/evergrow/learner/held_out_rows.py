"""Held-out rows: folds, tables, and marks that find the row of a sample again.

No sample is kept. A held-out row consists of six terms, log losses, its class and a
mark: four fixed random projections of its feature vector. When the sample is unlearned,
its row is found by the mark and removed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.record import Between, Spec, record
from evergrow.core.seeding import derive_seed
from evergrow.head.novelty.score import LARGEST_TERM, N_COLUMNS
from evergrow.head.temperature import TEMPERATURES

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
    guess : float, default=1.0
        Temperature estimated from its statistics.
    expected : int, default=0
        Number of drawn rows that stand in for samples that were never scored.
    """

    size: Annotated[int, Between(1, 2**53)]
    n_classes: Annotated[int, Between(1, 2**53)]
    guess: Annotated[float, Between(1e-12, 1e12)] = 1.0
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
    >>> from evergrow.learner.held_out_rows import sample_marks
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
    >>> from evergrow.learner.held_out_rows import assign_folds, row_keys
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
    >>> from evergrow.learner.held_out_rows import assign_class_folds
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
