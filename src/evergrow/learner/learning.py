"""The training loop: learn blocks of labelled feature vectors.

The first block of a model builds the layer of the head. Every further block only adds
to sums, so that the result does not depend on how data is split into blocks, up to
rounding. The state of the learner is replaced only after all blocks were learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, KnownSamplesError
from evergrow.learner.label_types import common_kind, warn_alike, warn_few
from evergrow.learner.measuring import before_new_classes, calibrated
from evergrow.learner.snapshot import Change, Event, Snapshot, counted, fingerprint

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier

BLOCK = 20_000
"""Number of feature vectors of a stream that are learned at a time."""


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Labelled feature vectors.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Feature vectors.
    labels : ndarray of str of shape (n,)
        Class names.
    weights : ndarray of shape (n,) or None
        Weight per row; None if all are 1.
    label_kind : str or None
        Original label type; None for strings read from a file.
    """

    X: NDArray[np.floating]
    labels: NDArray[np.str_]
    weights: NDArray[np.float64] | None = None
    label_kind: str | None = None


def gathered(
    blocks: Iterable[LabelledRows], size: int = BLOCK
) -> Iterator[LabelledRows]:
    """Join blocks until each, except the last, has at least `size` rows."""
    held: list[LabelledRows] = []
    for block in blocks:
        held.append(block)
        if sum(len(part.X) for part in held) >= size:
            yield _concatenated(held)
            held = []
    if sum(len(part.X) for part in held):
        yield _concatenated(held)


def _concatenated(blocks: list[LabelledRows]) -> LabelledRows:
    if len(blocks) == 1:
        return blocks[0]
    kinds = {block.label_kind for block in blocks}
    if len(kinds) > 1:
        raise InputError(
            "labels must all be of one kind, got "
            f"{' and '.join(sorted(map(str, kinds)))}"
        )
    weights = None
    if any(block.weights is not None for block in blocks):
        weights = np.concatenate(
            [np.ones(len(b.X)) if b.weights is None else b.weights for b in blocks]
        )
    X = np.concatenate([block.X for block in blocks])
    return LabelledRows(
        X,
        np.concatenate([block.labels for block in blocks]),
        weights,
        blocks[0].label_kind,
    )


def learn(
    base: Snapshot,
    head: IncrementalClassifier,
    blocks: Iterable[LabelledRows],
    seed: int,
    what: Event,
    known: frozenset[str] = frozenset(),
) -> Snapshot:
    """Train a head on blocks of samples and return the new state.

    Parameters
    ----------
    base : Snapshot
        The current state.
    head : IncrementalClassifier
        An untrained head, or a branch of the current one; changed in place.
    blocks : iterable of LabelledRows
        Rows to learn.
    seed : int
        Seed of the calibration.
    what : {"fit", "update"}
        Kind of change in the history.
    known : frozenset of str
        Fingerprints of batches that must not be learned again.

    Raises
    ------
    KnownSamplesError
        If a block has one of these fingerprints.
    """
    counts = base.counts
    calibration = base.calibration
    samples = 0
    kind: str | None = base.label_kind if counts else None
    data: list[str] = []
    for block in blocks:
        names = np.asarray(sorted(counts), dtype=np.str_)
        kind = common_kind(kind, block.label_kind, block.labels, names)
        warn_alike(names, block.labels)
        data.append(fingerprint(block.X, block.weights))
        if data[-1] in known:
            raise KnownSamplesError(
                f"samples must be new, but these {len(block.labels)} were learned "
                "before and would count twice: again=True learns them once more"
            )
        first = base.is_empty and not samples
        if not first:
            calibration = before_new_classes(calibration, head, block, counts, seed)
        if first and block.weights is None:
            head.fit(block.X, block.labels)
        else:
            head.partial_fit(block.X, block.labels, sample_weight=block.weights)
        head.settle(cheap_only=not first)
        counts = counted(counts, block.labels)
        samples = samples + len(block.labels)
        calibration = calibrated(calibration, head, block, counts, seed)
    return learned(
        base,
        what,
        samples,
        data,
        counts,
        head=head,
        calibration=calibration,
        label_kind=kind or "name",
    )


def learned(
    base: Snapshot,
    what: Event,
    samples: int,
    data: Iterable[str],
    counts: dict[str, int],
    **values: Any,
) -> Snapshot:
    """Return the state after samples were learned, with a record of the change."""
    warn_few(base.counts, counts)
    change = Change.now(
        what, samples, sorted(set(counts) - set(base.counts)), data=tuple(data)
    )
    return base.after(change, counts=counts, **values)
