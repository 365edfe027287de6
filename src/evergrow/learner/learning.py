"""What a learner learns from blocks of feature vectors, as records: a change is whole before it is anybody's state.

Data of any size come as blocks. The first block of all makes the layer of a head; every further one only adds to sums,
so that data in one block and the same data in several teach the same, to rounding, once there is a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.head.base import IncrementalClassifier
from evergrow.learner.calibration import Calibration, calibrated, with_new_classes
from evergrow.learner.changes import Change, fingerprint, fingerprints
from evergrow.learner.snapshot import counted

BLOCK = 20_000
"""Feature vectors of a stream that are learned at once; so many are held at a time."""


@dataclass(frozen=True, eq=False)
class Block:
    """Labelled feature vectors.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The vectors.
    labels : ndarray of str of shape (n,)
        Their class names.
    weights : ndarray of shape (n,) or None
        What each counts for; None where each counts as one.
    label_kind : str or None
        What the labels were before they became names; None for names out of a file.
    """

    X: NDArray[np.floating]
    labels: NDArray[np.str_]
    weights: NDArray[np.float64] | None = None
    label_kind: str | None = None

    def weighed(self) -> Block:
        """Return the block without samples that count for nothing."""
        if self.weights is None or self.weights.all():
            return self
        rows = np.flatnonzero(self.weights)
        return Block(self.X[rows], self.labels[rows], self.weights[rows], self.label_kind)


def gathered(blocks: Iterable[Block], size: int = BLOCK) -> Iterator[Block]:
    """Yield small blocks as larger ones, of at least so many rows but for the last."""
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        if sum(len(part.X) for part in held) >= size:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    kinds = {block.label_kind for block in blocks}
    if len(kinds) > 1:
        raise InputError(f"labels must all be of one kind, got {' and '.join(sorted(map(str, kinds)))}")
    weights = None
    if any(block.weights is not None for block in blocks):
        weights = np.concatenate([np.ones(len(b.X)) if b.weights is None else b.weights for b in blocks])
    X = np.concatenate([block.X for block in blocks])
    return Block(X, np.concatenate([block.labels for block in blocks]), weights, blocks[0].label_kind)


@dataclass(frozen=True, eq=False)
class Learned:
    """What is known after some blocks.

    Parameters
    ----------
    head : IncrementalClassifier
        The classifier.
    counts : dict of str to int
        Samples of each class.
    calibration : Calibration
        Novelty of known things.
    samples : int
        Samples learned since this began.
    data : tuple of str
        Fingerprints of the blocks learned since.
    history : tuple of Change
        What the model went through before.
    """

    head: IncrementalClassifier
    counts: dict[str, int]
    calibration: Calibration = field(default_factory=Calibration)
    samples: int = 0
    data: tuple[str, ...] = ()
    history: tuple[Change, ...] = ()

    def change(self, what: str, known: NDArray[np.str_]) -> Change:
        """Return the record of it, for a model that knew these classes before."""
        new = np.setdiff1d(np.asarray(self.head.classes_, dtype=np.str_), known)
        return Change.now(what, self.samples, new.tolist(), data=self.data)


def first_block(head: IncrementalClassifier, block: Block, seed: int) -> Learned:
    """Teach a fresh head its first block."""
    if block.weights is None:
        head.fit(block.X, block.labels)
    else:
        head.partial_fit(block.X, block.labels, sample_weight=block.weights)
    head.settle()
    calibration = calibrated_on(Calibration(), head, block, seed)
    return Learned(
        head,
        counted({}, block.labels),
        calibration,
        len(block.labels),
        (fingerprint(block.X, block.labels, block.weights),),
    )


def next_block(before: Learned, block: Block, seed: int) -> Learned:
    """Teach a head one more block; the head itself changes, all else is a new record."""
    head = before.head
    calibration = with_new_classes(before.calibration, head, block.X, block.labels)
    if len(head.classes_) == 1 and not np.isin(block.labels, head.classes_).all():
        calibration = Calibration()  # with one class novelty is a distance, which says nothing of it with several
    head.partial_fit(block.X, block.labels, sample_weight=block.weights)  # the last step that can fail: it fails whole
    head.settle(cheap_only=True)
    return Learned(
        head,
        counted(before.counts, block.labels),
        calibrated_on(calibration, head, block, seed),
        before.samples + len(block.labels),
        (*before.data, *fingerprints(block.X, block.labels, before.history, block.weights)),
        before.history,
    )


def calibrated_on(before: Calibration, head: IncrementalClassifier, block: Block, seed: int) -> Calibration:
    """Return the calibration with a block that a head has just learned, and let the head answer by it."""
    if not hasattr(head, "novelty_score"):
        return before
    calibration = calibrated(before, head, block.X, block.labels, seed, block.weights)
    calibration.apply(head)
    return calibration
