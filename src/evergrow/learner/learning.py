"""The training loop: learn blocks of labelled feature vectors.

The first block of a model builds the layer of the head. Every further block only adds
to sums, so that the result does not depend on how data is split into blocks, up to
rounding. The state of the learner is replaced only after all blocks were learned.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    DataWarning,
    FewSamplesWarning,
    InputError,
    KnownSamplesError,
    LabelError,
)
from evergrow.core.registry import nearest
from evergrow.data.inputs import as_names, can_read
from evergrow.data.items import Samples
from evergrow.learner.encoder import Encoder, encode_samples, require_readable_classes
from evergrow.learner.snapshot import Change, Event, Snapshot, add_labels, fingerprint

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
    label_kind : {"name", "integer", "boolean"} or None
        Original label type; None for strings read from a file.
    """

    X: NDArray[np.floating]
    labels: NDArray[np.str_]
    weights: NDArray[np.float64] | None = None
    label_kind: str | None = None


# -- blocks of rows --------------------------------------------------------------------


def encode_labelled(
    encoder: Encoder,
    state: Snapshot,
    chunks: Iterable[Samples],
    classes: Any,
) -> Iterator[LabelledRows]:
    """Yield labelled samples as blocks of feature vectors of bounded size.

    Samples of weight 0 and unreadable samples are left out.

    Parameters
    ----------
    encoder : Encoder
        Computes the features.
    state : Snapshot
        The model that will learn the samples.
    chunks : iterable of Samples
        Labelled samples.
    classes : array-like, optional
        The only labels allowed.

    Raises
    ------
    LabelError
        If a label is not in `classes`.
    InputError
        If no sample of a class could be read.
    """
    announced = None
    if classes is not None:
        n_classes = len(classes) if hasattr(classes, "__len__") else 0
        announced = as_names(classes, n_classes)
    given: set[str] = set()
    readable: set[str] = set()

    def encoded_chunks() -> Iterator[LabelledRows]:
        for samples in chunks:
            labels = samples.required_labels()
            if announced is not None:
                _check_announced(labels, announced)
            features = encode_samples(encoder, state, samples)
            labels_read = labels[features.rows]
            given.update(labels.tolist())
            readable.update(labels_read.tolist())
            yield _used_rows(samples, features.X, features.rows)

    yield from join_rows(encoded_chunks())
    require_readable_classes(given, readable)


def _check_announced(labels: NDArray[np.str_], announced: NDArray[np.str_]) -> None:
    others = np.setdiff1d(labels, announced).tolist()
    if others:
        raise LabelError(
            f"labels must be among the classes that were announced, got {others[0]!r}"
        )


def _used_rows(
    samples: Samples, X: NDArray[np.floating], rows: NDArray[np.int64]
) -> LabelledRows:
    """Return the encoded rows whose weight is not 0.

    `rows` are the row numbers of `X` in the samples.
    """
    labels = samples.required_labels()[rows]
    if samples.weights is None:
        return LabelledRows(X, labels, None, samples.label_kind)
    weights = samples.weights[rows]
    used = np.flatnonzero(weights)
    return LabelledRows(X[used], labels[used], weights[used], samples.label_kind)


def join_rows(
    blocks: Iterable[LabelledRows], size: int = BLOCK
) -> Iterator[LabelledRows]:
    """Join blocks until each, except the last, has at least `size` rows."""
    held: list[LabelledRows] = []
    n_held = 0
    for block in blocks:
        held.append(block)
        n_held += len(block.X)
        if n_held >= size:
            yield _concatenated(held)
            held = []
            n_held = 0
    if n_held:
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
    labels = np.concatenate([block.labels for block in blocks])
    return LabelledRows(X, labels, weights, blocks[0].label_kind)


# -- learning --------------------------------------------------------------------------


def learn(
    before: Snapshot,
    head: IncrementalClassifier,
    blocks: Iterable[LabelledRows],
    seed: int,
    event: Event,
    refused: frozenset[str] = frozenset(),
) -> Snapshot:
    """Train a head on blocks of samples and return the new state.

    Parameters
    ----------
    before : Snapshot
        The current state.
    head : IncrementalClassifier
        An untrained head, or a branch of the current one; changed in place.
    blocks : iterable of LabelledRows
        Rows to learn.
    seed : int
        Seed of the calibration.
    event : {"fit", "update"}
        Kind of change in the history.
    refused : frozenset of str
        Fingerprints of blocks that must not be learned again.

    Raises
    ------
    KnownSamplesError
        If a block has one of the refused fingerprints.
    """
    counts = before.counts
    calibration = before.calibration
    label_kind: str | None = before.label_kind if counts else None
    n_samples = 0
    fingerprints: list[str] = []
    for block in blocks:
        classes = np.asarray(sorted(counts), dtype=np.str_)
        label_kind = common_kind(label_kind, block.label_kind, block.labels, classes)
        warn_alike(classes, block.labels)
        fingerprints.append(fingerprint(block.X, block.weights))
        if fingerprints[-1] in refused:
            raise KnownSamplesError(
                f"samples must be new, but these {len(block.labels)} were learned "
                "before and would count twice: again=True learns them once more"
            )
        is_first = before.is_empty and not n_samples
        if not is_first:
            calibration = calibration.with_new_classes(head, block, counts, seed)
        if is_first and block.weights is None:
            head.fit(block.X, block.labels)
        else:
            head.partial_fit(block.X, block.labels, sample_weight=block.weights)
        head.settle(cheap_only=not is_first)
        counts = add_labels(counts, block.labels)
        n_samples += len(block.labels)
        calibration = calibration.calibrate_after(head, block, counts, seed)
    return after_learning(
        before,
        event,
        n_samples,
        fingerprints,
        counts,
        head=head,
        calibration=calibration,
        label_kind=label_kind or "name",
    )


def after_learning(
    before: Snapshot,
    event: Event,
    n_samples: int,
    fingerprints: Iterable[str],
    counts: dict[str, int],
    **values: Any,
) -> Snapshot:
    """Return the state after samples were learned, and warn of rare classes.

    Parameters
    ----------
    before : Snapshot
        The state before.
    event : {"fit", "update"}
        Kind of change in the history.
    n_samples, fingerprints : int, iterable of str
        Number of learned samples, and fingerprints of their blocks.
    counts : dict of str to int
        Number of samples per class, with these.
    **values
        New values of further fields of the state.
    """
    warn_few(before.counts, counts)
    new_classes = sorted(counts.keys() - before.counts.keys())
    change = Change.now(event, n_samples, new_classes, data=tuple(fingerprints))
    return before.after(change, counts=counts, **values)


# -- labels ----------------------------------------------------------------------------


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`LabelError` unless all names are learned classes.

    Examples
    --------
    >>> from evergrow.learner.learning import require_known
    >>> require_known(["crwo"], ["crow", "owl"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.LabelError: There is no class 'crwo'; nearest: 'crow'.
    """
    for name in names:
        if name not in known:
            raise LabelError(
                f"There is no class {name!r}; nearest: {nearest(name, known)}."
            )


def common_kind(
    model_kind: str | None,
    batch_kind: str | None,
    names: NDArray[np.str_],
    known: NDArray[np.str_],
) -> str:
    """Return the label type of a model after it learns a batch.

    Parameters
    ----------
    model_kind : {"name", "integer", "boolean"} or None
        Current label type; None if nothing was learned.
    batch_kind : {"name", "integer", "boolean"} or None
        Label type of the batch; None for strings read from a file.
    names, known : ndarray of str
        Class names of the rows of the batch, and the learned classes.

    Raises
    ------
    LabelError
        If the types differ and the labels cannot be converted.

    Warns
    -----
    DataWarning
        If integers become new classes of a model of strings.
    """
    if model_kind is None:
        return batch_kind or "name"
    if model_kind == "name" and batch_kind == "integer":
        new = np.setdiff1d(names, known).tolist()
        if new:
            warnings.warn(
                "labels are integers but the model has names: they are learned as "
                f"names, the first as {new[0]!r}",
                DataWarning,
                stacklevel=3,
            )
        return model_kind
    if batch_kind == model_kind:
        return model_kind
    refused = names.tolist()
    if batch_kind is None:
        refused = [name for name in refused if not can_read(model_kind, name)]
    if refused:
        raise LabelError(
            f"labels must be {model_kind}s as before, got {batch_kind or 'name'}s "
            f"({refused[0]!r})"
        )
    return model_kind


def warn_alike(known: NDArray[np.str_], labels: NDArray[np.str_]) -> None:
    """Warn of new classes that differ from others only in case or blanks."""
    spelled = {name.casefold().strip(): name for name in known.tolist()}
    for name in np.setdiff1d(labels, known).tolist():
        other = spelled.setdefault(name.casefold().strip(), name)
        if other != name:
            warnings.warn(
                f"class {name!r} is new but differs from {other!r} only in upper and "
                "lower case or blanks",
                DataWarning,
                stacklevel=3,
            )


ENOUGH_SAMPLES = 10
"""With this many samples, a class is recognised about as well as with many."""


def few_samples(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the classes with few samples and their counts, the rarest first.

    These classes have fewer than ten samples, and fewer than a fifth of the median of
    the other classes.

    Parameters
    ----------
    counts : mapping of str to int
        Number of samples per class.

    Examples
    --------
    >>> from evergrow.learner.learning import few_samples
    >>> few_samples({"ant": 100, "bee": 140, "cat": 9, "dog": 2})
    {'dog': 2, 'cat': 9}
    >>> few_samples({"ant": 30, "bee": 30, "cat": 9, "dog": 2})
    {'dog': 2}
    >>> few_samples({"ant": 9, "bee": 1})
    {}
    """
    usual = _usual(counts)
    few = {
        name: count
        for name, count in counts.items()
        if count < ENOUGH_SAMPLES and 5 * count < usual
    }
    return dict(sorted(few.items(), key=lambda entry: (entry[1], entry[0])))


def warn_few(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Warn if a class has few samples after a change and had not before.

    Parameters
    ----------
    before, after : mapping of str to int
        Number of samples per class, before and after the change.
    """
    few = few_samples(after)
    if few.keys() <= few_samples(before).keys():
        return
    usual = _usual(after)
    named = [f"{name}: {count}" for name, count in list(few.items())[:5]]
    if len(few) > 5:
        named.append("...")
    have, they = ("has", "it is") if len(few) == 1 else ("have", "they are")
    bar = min(ENOUGH_SAMPLES, math.ceil(usual / 5))
    warnings.warn(
        f"{len(few)} of {len(after)} classes {have} fewer than {bar} samples beside a "
        f"median of {usual:g} ({', '.join(named)}): {they} recognised less surely; "
        f"teach at least {ENOUGH_SAMPLES} of each",
        FewSamplesWarning,
        stacklevel=3,
    )


def _usual(counts: Mapping[str, int]) -> float:
    """Return the median count of classes with enough samples; 0 without any."""
    enough = [count for count in counts.values() if count >= ENOUGH_SAMPLES]
    if enough:
        return float(np.median(enough))
    return 0.0
