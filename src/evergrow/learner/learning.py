"""The one loop that learns: blocks of labelled feature vectors, from chunks of data or from merged shards.

The first block of all makes the layer of a head; every further one only adds to sums, so that data in one block and the
same data in several teach the same, to rounding, once there is a layer. What is learned is whole before it is anybody's
state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.head.base import IncrementalClassifier
from evergrow.learner.calibration import Calibration, calibrated, with_new_classes
from evergrow.learner.changes import Change, Event, fingerprints
from evergrow.learner.labels import check_announced, common_kind, warn_alike, warn_few
from evergrow.learner.snapshot import Snapshot, counted

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
            yield _concatenated(held)
            held = []
    if held:
        yield _concatenated(held)


def _concatenated(blocks: list[Block]) -> Block:
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
    label_kind : str or None
        What the labels are; None before the first.
    """

    head: IncrementalClassifier
    counts: dict[str, int] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    samples: int = 0
    data: tuple[str, ...] = ()
    label_kind: str | None = None

    def snapshot(self, base: Snapshot, what: Event) -> Snapshot:
        """Return what a model knows that has learned this; its record of the change names the new classes."""
        new = np.setdiff1d(np.asarray(self.head.classes_, dtype=np.str_), base.classes)
        change = Change.now(what, self.samples, new.tolist(), data=self.data)
        kind = self.label_kind or "name"
        known = {"head": self.head, "counts": self.counts, "calibration": self.calibration}
        return base.after(change, label_kind=kind, **known)


def learn(base: Snapshot, head: IncrementalClassifier, blocks: Iterable[Block], seed: int) -> Learned:
    """Teach a head blocks of samples.

    Parameters
    ----------
    base : Snapshot
        What the model knew before; classes it announced are the only ones that may come.
    head : IncrementalClassifier
        A fresh head, or a branch of the model's; it is changed.
    blocks : iterable of Block
        What to learn.
    seed : int
        Of the calibration.
    """
    learned = Learned(head, base.counts, base.calibration, label_kind=base.label_kind if base.counts else None)
    for block in blocks:
        known = np.asarray(sorted(learned.counts), dtype=np.str_)
        check_announced(base.announced, block.labels)
        kind = common_kind(learned.label_kind, block.label_kind, block.labels, known)
        warn_alike(known, block.labels)
        learned = dataclasses.replace(_learn_block(learned, block, base.history, seed), label_kind=kind)
    warn_few(base.counts, learned.counts)
    return learned


def _learn_block(before: Learned, block: Block, history: Iterable[Change], seed: int) -> Learned:
    """Teach a head one more block; the head itself changes, all else is a new record."""
    head, calibration = before.head, before.calibration
    first = "classes_" not in vars(head)
    if not first:
        calibration = before_new_classes(calibration, head, block)
    if first and block.weights is None:
        head.fit(block.X, block.labels)
    else:  # it fails whole, and nothing after it can fail
        head.partial_fit(block.X, block.labels, sample_weight=block.weights)
    head.settle(cheap_only=not first)
    return Learned(
        head,
        counted(before.counts, block.labels),
        calibrated_on(calibration, head, block, seed),
        before.samples + len(block.labels),
        (*before.data, *fingerprints(block.X, block.labels, tuple(history), block.weights)),
    )


def before_new_classes(before: Calibration, head: IncrementalClassifier, block: Block) -> Calibration:
    """Return the calibration with what a block's new classes look like to a head that has not learned it yet."""
    if len(head.classes_) == 1 and not np.isin(block.labels, head.classes_).all():
        return Calibration()  # with one class novelty is a distance, which says nothing of it with several
    if not hasattr(head, "novelty_terms"):
        return before
    return with_new_classes(before, head, block.X, block.labels)


def calibrated_on(before: Calibration, head: IncrementalClassifier, block: Block, seed: int) -> Calibration:
    """Return the calibration with a block that a head has just learned, and let the head answer by it."""
    if not hasattr(head, "novelty_score"):
        return before
    calibration = calibrated(before, head, block.X, block.labels, seed, block.weights)
    calibration.apply(head)
    return calibration
