"""Samples that come one after the other: generators, and datasets and loaders of torch, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from evergrow.core.errors import InputError, LabelError
from evergrow.core.optional import is_instance_of
from evergrow.core.validation import as_weights
from evergrow.data.intake import Part, channels_last, read_items, read_labelled
from evergrow.data.samples import Samples
from evergrow.data.video import VideoSource

_TORCH = "torch.utils.data"

CHUNK = 256
"""Samples that are held at a time, before they are feature vectors."""


def is_stream(data: Any) -> bool:
    """Return whether data come one after the other: an iterator, a video, or a dataset or loader of torch.

    Examples
    --------
    >>> from evergrow.data.streams import is_stream
    >>> is_stream(row for row in range(3)), is_stream([1, 2])
    (True, False)
    """
    return isinstance(data, (Iterator, VideoSource)) or is_instance_of(data, _TORCH, "Dataset", "DataLoader")


def check_whole(data: Any) -> None:
    """Raise :class:`InputError` for a stream where images are needed more than once."""
    if is_stream(data):
        raise InputError(
            f"data must be a folder, a table or (items, labels) for a backbone to be adapted to, since "
            f"they are seen many times, got {type(data).__name__}"
        )


def labelled_chunks(data: Any, y: Any, sample_weight: Any, part: Part, kind: str | None) -> Iterable[Samples]:
    """Return labelled samples of anything that a learner takes: all at once, or of a stream one chunk after another.

    Parameters
    ----------
    data, y : object
        As for :meth:`evergrow.Learner.fit`.
    sample_weight : array-like or None
        What each sample counts for.
    part : {"train", "test", "all"}
        Which part of a source that has two.
    kind : {"image", "text", "features"}, optional
        What the model takes.

    Raises
    ------
    InputError
        If there is no sample, or weights are not one per sample.
    """
    if not is_stream(data):
        samples = read_labelled(data if y is None else (data, y), part, kind)
        if not len(samples):
            raise InputError("data must hold at least one sample, got none")
        weights = as_weights(sample_weight, len(samples))
        return [samples if weights is None else replace(samples, weights=weights)]
    return _weighted_chunks(data, y, sample_weight, kind)


def _weighted_chunks(data: Any, y: Any, sample_weight: Any, kind: str | None) -> Iterator[Samples]:
    weights = None if sample_weight is None else as_weights(sample_weight, np.size(sample_weight))
    seen = 0
    for samples in read_chunks(data, kind, y):
        start, seen = seen, seen + len(samples)
        yield samples if weights is None else replace(samples, weights=as_weights(weights[start:seen], len(samples)))
    if not seen:
        raise InputError("data must hold at least one sample, got none")
    if sample_weight is not None and np.size(sample_weight) != seen:
        raise InputError(f"sample_weight must be one number per sample ({seen}), got {np.size(sample_weight)}")


def item_chunks(items: Any, kind: str | None) -> Iterable[Samples]:
    """Return items without labels as samples: all at once, or of a stream one chunk after another.

    Parameters
    ----------
    items : object
        As for :meth:`evergrow.Learner.predict`.
    kind : {"image", "text", "features"}, optional
        What the model takes.

    Raises
    ------
    InputError
        If a stream has no item.
    """
    if not is_stream(items):
        return [read_items(items, kind)]
    chunks = read_chunks(items, kind, labelled=False)
    first = next(chunks, None)
    if first is None:
        raise InputError("items must hold at least one item, got none")
    return chain([first], chunks)


def read_chunks(data: Any, kind: str | None, labels: Any = None, *, labelled: bool = True) -> Iterator[Samples]:
    """Yield samples of a stream, :data:`CHUNK` at a time, each of them read once.

    Parameters
    ----------
    data : iterator, Dataset or DataLoader
        Samples: pairs (item, label) or whole batches (items, labels); items alone where ``labels`` has the labels or
        none are wanted.
    kind : {"image", "text", "features"}, optional
        What the model takes.
    labels : iterable, optional
        Labels of the items, where these come without.
    labelled : bool
        Whether labels are wanted; those of pairs are else passed over.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.streams import read_chunks
    >>> pairs = ((row, f"class {number % 2}") for number, row in enumerate(np.eye(300)))
    >>> [len(samples) for samples in read_chunks(pairs, "features")]
    [256, 44]
    """
    pairs = _pairs(data, labelled=labelled and labels is None)
    if labels is not None:
        pairs = _together((item for item, _ in pairs), labels)
    held: list[tuple[Any, Any]] = []
    for pair in pairs:
        held.append(pair)
        if len(held) == CHUNK:
            yield _samples(held, kind, labelled)
            held = []
    if held:
        yield _samples(held, kind, labelled)


def _samples(pairs: Sequence[tuple[Any, Any]], kind: str | None, labelled: bool) -> Samples:
    items = [item for item, _ in pairs]
    return read_labelled((items, [label for _, label in pairs]), "all", kind) if labelled else read_items(items, kind)


def _together(items: Iterator[Any], labels: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__iter__"):
        raise LabelError(f"labels must be a sequence of class names, got {type(labels).__name__}")
    rest = iter(labels.tolist() if hasattr(labels, "tolist") else labels)
    number = 0
    for item in items:
        label = next(rest, _NONE)
        if label is _NONE:
            raise LabelError(f"labels must be one per sample, got {number} and more samples")
        number += 1
        yield item, label
    if next(rest, _NONE) is not _NONE:
        raise LabelError(f"labels must be one per sample ({number}), got more")


_NONE = object()


def _elements(data: Any) -> Iterator[Any]:
    if is_instance_of(data, _TORCH, "Dataset") and hasattr(data, "__len__") and not hasattr(data, "__iter__"):
        return (data[row] for row in range(len(data)))  # iter() would ask beyond the end, which few refuse
    return iter(data)


def _pairs(data: Any, *, labelled: bool) -> Iterator[tuple[Any, Any]]:
    """Yield single items with their label, or None where there is none."""
    batches = is_instance_of(data, _TORCH, "DataLoader") and data.batch_size is not None
    for element in _elements(data):
        pair = tuple(element) if isinstance(element, (tuple, list)) and len(element) <= 2 else (element,)
        if len(pair) != 2 and labelled:
            what = (
                f"{type(element).__name__} of {len(element)}" if hasattr(element, "__len__") else type(element).__name__
            )
            raise InputError(f"data must come as pairs (item, label) or (items, labels), got a {what}")
        if len(pair) == 2 and (batches or _is_batch(pair[1])):
            yield from _unbatched(*pair)
        elif batches:
            yield from ((item, None) for item in _split(pair[0]))
        else:
            yield _item(pair[0]), _label(pair[1]) if len(pair) == 2 else None


def _is_batch(labels: Any) -> bool:
    return not isinstance(labels, (str, bytes)) and (
        isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) > 0
    )


def _unbatched(items: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    names, parts = [_label(label) for label in labels], list(_split(items))
    if len(names) != len(parts):
        raise LabelError(f"labels must be one per sample ({len(parts)}), got {len(names)}")
    yield from zip(parts, names, strict=True)


def _split(items: Any) -> Iterator[Any]:
    return (_item(item) for item in items)


def _label(label: Any) -> Any:
    if hasattr(label, "item") and getattr(label, "ndim", 1) == 0:
        return label.item()
    return label


def _item(item: Any) -> Any:
    """Return one item as an array, an image or a text; images of tensors have their channels last from here on."""
    if hasattr(item, "detach"):
        array = item.detach().cpu().numpy()
        return channels_last(array) if array.ndim == 3 else array
    if isinstance(item, np.ndarray) and item.ndim == 3 and item.dtype.kind == "f":
        return channels_last(item)
    return item
