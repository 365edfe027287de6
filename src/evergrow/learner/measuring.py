"""Measure rows with models that have not learned them, and calibrate a head on them.

When a head has learned a batch, its rows are scored as if their fold had not been
learned. This is exact and takes no second model. Rows of new classes are measured
before they are learned.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evergrow.head.novelty.score import term_units, to_units
from evergrow.head.temperature import log_losses
from evergrow.learner.calibration import Calibration
from evergrow.learner.held_out_rows import (
    MAX_DRAWN_ROWS,
    Measurement,
    bounded_features,
)

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier
    from evergrow.head.solved_cache import HeldOutScores
    from evergrow.learner.learning import LabelledRows

MIN_FOLDS = 10
"""Number of folds of a batch, unless it has more rows than they may have."""

MAX_FOLD_ROWS = 500
"""Largest number of rows in a fold. Larger folds take more time and leave a model that
differs more from the full one."""

ENOUGH_ROWS = 1000
"""Number of scored rows of a batch after which no further fold is scored."""

MIN_CLASSES_TO_LEAVE_OUT = 4
"""Number of classes from which each is also measured as if it were new. At least two
must be left, and a model of two says little about a larger one."""


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
        Classes of the rows of a learned batch.
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
    >>> from evergrow.learner.measuring import assign_folds, row_keys
    >>> keys = row_keys(np.arange(21.0)[:, None], seed=0)
    >>> folds = assign_folds(np.array([0] * 20 + [1]), np.array([20, 1]), keys)
    >>> np.bincount(folds[:20]).tolist(), int(folds[20])
    ([2, 2, 2, 2, 2, 2, 2, 2, 2, 2], -1)
    """
    number = max(MIN_FOLDS, math.ceil(len(codes) / MAX_FOLD_ROWS))
    folds = np.full(len(codes), -1, dtype=np.int64)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        if counts[code] > 1:
            order = rows[np.argsort(keys[rows], kind="stable")]
            offset = int(keys[order[0]] % np.uint64(number))
            folds[order] = (np.arange(len(rows)) + offset) % number
    return folds


# -- measuring -------------------------------------------------------------------------


def before_new_classes(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
    seed: int = 0,
) -> Calibration:
    """Measure the rows of new classes with a head that has not learned them yet.

    Nothing is measured with a single class, because its novelty is a plain distance.

    Parameters
    ----------
    before : Calibration
        The calibration without these rows.
    head : IncrementalClassifier
        The head. It is not changed.
    block : LabelledRows
        Samples that will be learned.
    counts : mapping of str to int
        Number of learned samples of each class.
    seed : int, default=0
        Seed of the choice of rows.
    """
    new = np.flatnonzero(~np.isin(block.labels, list(counts)))
    known = replace(before, n_classes=len(counts))
    if len(counts) < 2 or not len(new) or not known.n:
        return before
    if not hasattr(head, "novelty_terms"):
        return before
    keys = row_keys(block.X[new], seed)
    rows = np.sort(new[np.argsort(keys, kind="stable")[:ENOUGH_ROWS]])
    import torch

    units = term_units(head.expected_terms())
    terms = to_units(head.novelty_terms(block.X[rows]), units)
    scores = torch.from_numpy(head.class_scores(block.X[rows]))
    losses = log_losses(scores, scores.argmax(dim=1))
    measurement = Measurement(sum(counts.values()), len(counts))
    return before.with_rows(
        block.X[rows], block.labels[rows], measurement, terms, losses, known=False
    )


def calibrated(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
    seed: int,
) -> Calibration:
    """Measure rows of a block that a head has just learned, and calibrate the head.

    Parameters
    ----------
    before : Calibration
        The calibration without the block.
    head : IncrementalClassifier
        The head. It is not calibrated if it has no novelty score.
    block : LabelledRows
        Samples that were learned.
    counts : mapping of str to int
        Number of learned samples of each class, with the block.
    seed : int
        Seed of the folds.
    """
    if not hasattr(head, "novelty_score"):
        return before
    names = sorted(counts)
    labels = block.labels
    codes = np.searchsorted(names, labels)
    totals = np.array([counts[name] for name in names])
    folds = assign_folds(codes, totals, row_keys(block.X, seed))
    sizes = np.bincount(folds[folds >= 0], minlength=1)
    # Folds are scored until there are enough rows.
    rows_before = np.cumsum(sizes) - sizes
    rows = np.flatnonzero((folds >= 0) & (rows_before[folds] < ENOUGH_ROWS))
    if not len(rows):
        return before.applied(head)
    if block.weights is None:
        weights = None
    else:
        weights = block.weights[rows]
    found: HeldOutScores = head.held_out_scores(
        block.X[rows], labels[rows], folds[rows], weights
    )
    size = sum(counts.values())
    # If most samples were never scored, rows drawn from the statistics stand in.
    unscored = 0
    if not replace(before, n_classes=len(counts)).n:
        unscored = min(max(size - len(labels) - len(rows), 0), MAX_DRAWN_ROWS)
    measurement = Measurement(
        size, len(counts), float(np.clip(found.guess, 1e-12, 1e12)), unscored
    )
    after = before.with_rows(
        block.X[rows],
        labels[rows],
        measurement,
        to_units(found.terms, term_units(head.expected_terms())),
        found.losses,
        known=True,
    )
    return left_out_classes(after, head, block, counts).applied(head)


def left_out_classes(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
) -> Calibration:
    """Measure the first classes of a model as if each were new to it.

    :func:`before_new_classes` measures classes that a model learns later. The first
    ones are left out in turn, one fold of classes after the other, by subtraction.

    Parameters
    ----------
    before : Calibration
        The calibration without these measurements.
    head : IncrementalClassifier
        The head. It has learned the block and is not changed.
    block : LabelledRows
        Samples that were learned.
    counts : mapping of str to int
        Number of learned samples of each class, with the block.
    """
    names, sizes = np.unique(block.labels, return_counts=True)
    totals = np.array([counts[name] for name in names.tolist()])
    new = names[sizes == totals]
    n_old = len(counts) - len(new)
    if n_old > 1 or len(counts) < MIN_CLASSES_TO_LEAVE_OUT:
        return before
    if not hasattr(head, "scores_as_new_class"):
        return before
    number = min(len(new), MIN_FOLDS)
    folds = np.full(len(block.labels), -1, dtype=np.int64)
    n_measured = 0
    for fold in range(number):
        # Names that sort together are often alike, so they are in different folds.
        rows = np.flatnonzero(np.isin(block.labels, new[fold::number]))
        if len(rows) <= MAX_FOLD_ROWS and n_measured < ENOUGH_ROWS:
            folds[rows] = fold
            n_measured += len(rows)
    rows = np.flatnonzero(folds >= 0)
    if not len(rows):
        return before
    weights = None if block.weights is None else block.weights[rows]
    found: HeldOutScores = head.scores_as_new_class(
        block.X[rows], block.labels[rows], folds[rows], weights
    )
    after = before
    size = sum(counts.values())
    for fold in np.unique(folds[rows]).tolist():
        own = folds[rows] == fold
        n_classes = len(counts) - len(new[fold::number])
        measurement = Measurement(size - int(own.sum()), n_classes)
        after = after.with_rows(
            block.X[rows][own],
            block.labels[rows][own],
            measurement,
            found.terms[own],
            None if found.losses is None else found.losses[own],
            known=False,
        )
    return after
