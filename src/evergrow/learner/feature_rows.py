"""Encode samples as feature vectors and check that they fit the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, LabelError
from evergrow.data import inputs
from evergrow.data.items import Samples
from evergrow.learner.encoder import Encoder, check_kept
from evergrow.learner.learning import LabelledRows, gathered
from evergrow.learner.snapshot import Snapshot

if TYPE_CHECKING:
    from evergrow.features import Features
    from evergrow.features.encoding import OnError


def encode_samples(
    encoder: Encoder,
    state: Snapshot,
    samples: Samples,
    on_error: OnError | None = None,
) -> Features:
    """Return the features of samples.

    Raises
    ------
    InputError
        If the column names or the number of features differ from those of the model.
    """
    if samples.columns:
        inputs.check_columns(samples.columns, state.columns)
    encoded = encoder.encode(samples, on_error=on_error)
    if samples.features is not None:
        check_width(encoded.X, state.n_features)
    return encoded


def encode_items(
    encoder: Encoder, state: Snapshot, items: Any, on_error: OnError | None = None
) -> Iterable[Features]:
    """Return the features of items, one chunk of a stream at a time."""
    from evergrow.features.encoding import Features

    if isinstance(items, Features):
        return [items]
    return (
        encode_samples(encoder, state, samples, on_error)
        for samples in inputs.item_chunks(items, encoder.kind)
    )


def join_features(parts: Sequence[Features]) -> Features:
    """Join the features of consecutive chunks; row numbers count through all chunks."""
    from evergrow.features.encoding import Features

    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part) + len(part.failures) for part in parts)])
    rows = [part.rows + start for part, start in zip(parts, starts[:-1], strict=True)]
    failures = tuple(failure for part in parts for failure in part.failures)
    X = np.concatenate([part.X for part in parts])
    return Features(X, np.concatenate(rows), failures)


def encode_labelled(
    encoder: Encoder,
    state: Snapshot,
    chunks: Iterable[Samples],
    classes: Any = None,
) -> Iterator[LabelledRows]:
    """Yield labelled samples as blocks of feature vectors of bounded size.

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
        announced = inputs.as_names(classes, n_classes)
    given: set[str] = set()
    read: set[str] = set()

    def rows_of_chunks() -> Iterator[LabelledRows]:
        for samples in chunks:
            labels = samples.required_labels()
            if announced is not None:
                _check_announced(labels, announced)
            encoded = encode_samples(encoder, state, samples)
            given.update(labels.tolist())
            read.update(labels[encoded.rows].tolist())
            yield _labelled_rows(samples, encoded)

    yield from gathered(rows_of_chunks())
    check_kept(given, read)


def _check_announced(labels: NDArray[np.str_], announced: NDArray[np.str_]) -> None:
    others = np.setdiff1d(labels, announced).tolist()
    if others:
        raise LabelError(
            f"labels must be among the classes that were announced, got {others[0]!r}"
        )


def _labelled_rows(samples: Samples, encoded: Features) -> LabelledRows:
    """Return the rows that could be read, without those of weight 0."""
    labels = samples.required_labels()[encoded.rows]
    if samples.weights is None:
        return LabelledRows(encoded.X, labels, None, samples.label_kind)
    weights = samples.weights[encoded.rows]
    used = np.flatnonzero(weights)
    return LabelledRows(
        encoded.X[used], labels[used], weights[used], samples.label_kind
    )


def check_width(X: NDArray[Any], width: int | None) -> None:
    """Raise :class:`InputError` unless `X` has `width` columns; None accepts any."""
    if width is not None and X.shape[1] != width:
        raise InputError(f"features must have {width} columns, got {X.shape[1]}")
