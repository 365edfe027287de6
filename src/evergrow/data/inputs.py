"""One front door for data: anything that users pass, converted to samples.

Accepted are paths, images, arrays, texts, features, data frames and streams.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, InputError
from evergrow.core.validation import as_weights
from evergrow.data.arrays import FeatureSet, read_npy
from evergrow.data.class_labels import as_names, kind_of, label_values
from evergrow.data.feature_blocks import as_features
from evergrow.data.image_suffixes import is_image
from evergrow.data.in_memory import (
    channels_last,
    frame_values,
    is_frame,
    is_pil_image,
    is_pixels,
    is_stream,
    stream_pairs,
)
from evergrow.data.items import Dataset, Images, Items, Samples, Texts
from evergrow.data.load import name_of, read, warn_about
from evergrow.data.readers import DEFAULTS, DataOptions, reader_of_file
from evergrow.data.shards import ListedSource

Part = Literal["train", "test", "all"]
"""Part of a source; a source without parts is always read completely."""

CHUNK = 256
"""Samples of a stream that are held in memory at a time."""


# -- with labels -----------------------------------------------------------------------


def read_labelled(
    data: Any, part: Part, kind: str | None = None, options: DataOptions | None = None
) -> Samples:
    """Return labelled samples of any accepted source.

    Parameters
    ----------
    data : path-like, Dataset, FeatureSet, Samples or (items, labels)
        The source. Paths and names are read by :func:`evergrow.data.read`. No test
        part is drawn: a source without one is read completely.
    part : {"train", "test", "all"}
        Part to read of a source with a training and a test part.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes, to tell texts from paths.
    options : DataOptions, optional
        How to read a path or name: columns, depth of class folders.

    Warns
    -----
    DataWarning
        Once, with all probable mistakes in the data.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_labelled
    >>> samples = read_labelled((np.eye(3), ["a", "b", "b"]), "train")
    >>> samples.kind, samples.labels.tolist()
    ('features', ['a', 'b', 'b'])
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, (str, os.PathLike)):
        data = read_parts(data, options)
    if isinstance(data, (Dataset, FeatureSet)):
        return data.part(part)
    if isinstance(data, tuple) and len(data) == 2:
        samples = read_items(data[0], kind)
        labels = label_values(data[1])
        names = as_names(labels, len(samples))
        return replace(samples, labels=names, label_kind=kind_of(labels))
    size = f" of {len(data)}" if isinstance(data, tuple) else ""
    raise InputError(
        "data must be a path, a Dataset, a FeatureSet or a pair (items, labels), "
        f"got {type(data).__name__}{size}"
    )


def read_parts(
    source: str | os.PathLike[str], options: DataOptions | None = None
) -> Dataset | FeatureSet:
    """Return the data at a path or under a name; no test part is drawn."""
    found = read(source, options).dataset()
    if isinstance(found, Dataset):
        warn_about(name_of(os.fspath(source)), found.cautions, level=4)
    return found


# -- without labels --------------------------------------------------------------------


def read_items(
    items: Any, kind: str | None = None, options: DataOptions | None = None
) -> Samples:
    """Return samples without labels.

    Parameters
    ----------
    items : object
        - one or several paths of images; a folder, an archive or a table of images;
        - one or several images (PIL images, uint8 arrays);
        - one or several texts, or the path of a file of texts;
        - feature vectors, or the path of an ``.npy`` file, or of an ``.npz`` file with
          an array ``X``;
        - a data frame: numbers are features, a single column can hold texts or paths.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes. It decides between texts and paths, and
        between uint8 features and pixels.
    options : DataOptions, optional
        How to read a path: columns of tables.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_items
    >>> read_items(["a text", "another"]).kind
    'text'
    >>> read_items(np.zeros((2, 8, 8, 3), np.uint8)).kind
    'image'
    """
    if isinstance(items, Samples):
        return items
    if isinstance(items, Items):
        lasting = isinstance(items, Images) and items.lasting
        return Samples(items.kind, items, lasting=lasting)
    if isinstance(items, (str, os.PathLike)):
        return _from_text_or_path(items, kind, options or DEFAULTS)
    if not isinstance(items, list) and is_pil_image(items):
        return Samples("image", Images((items,)))
    if hasattr(items, "detach"):
        items = items.detach().cpu().numpy()
        if items.ndim in (3, 4) and kind != "features":
            items = channels_last(items)
    if is_frame(items):
        values, columns = frame_values(items, kind)
        if isinstance(values, list):
            return _from_sequence(values, kind)
        return replace(_from_features(values), columns=columns)
    if hasattr(items, "__array__"):
        return _from_array(np.asarray(items), kind)
    if not isinstance(items, Sequence) or isinstance(items, (bytes, bytearray)):
        raise InputError(
            "items must be paths, images, texts or feature vectors, "
            f"got {type(items).__name__}"
        )
    return _from_sequence(items, kind)


def read_unknown(
    unknown: Any,
    kind: str | None,
    part: Part = "all",
    options: DataOptions | None = None,
) -> Samples:
    """Return samples with labels if the source has some, and without otherwise."""
    if isinstance(unknown, (str, os.PathLike)) and os.path.isdir(unknown):
        try:
            return read_labelled(unknown, part, kind, options)
        except InputError:  # a folder of images without classes
            return read_items(unknown, kind)
    if isinstance(unknown, (str, os.PathLike, tuple, Dataset, FeatureSet)):
        return read_labelled(unknown, part, kind, options)
    return read_items(unknown, kind)


def _from_text_or_path(
    value: str | os.PathLike[str], kind: str | None, options: DataOptions
) -> Samples:
    """Return the samples of one path, or a text if there is no such file."""
    path = Path(value)
    text = os.fspath(value)
    suffix = path.suffix.lower()
    # Unlike Path.is_file, os.path.isfile accepts texts too long for a file name.
    is_file = os.path.isfile(value)
    if not is_file and not os.path.isdir(value):
        if suffix in (".npy", ".npz") and kind != "text":
            raise DatasetNotFoundError(f"No file {text!r} here.")
        if isinstance(value, str) and _is_text(value, kind):
            return Samples("text", Texts((value,)))
        return _from_paths([value])
    if suffix == ".npy" and is_file:
        return _from_features(read_npy(path))
    if is_file and (is_image(text) or reader_of_file(text) is None):
        return _from_paths([value])
    wanted = kind if kind in ("image", "text") else ""
    part = "test" if suffix == ".npz" else "all"
    source = read(path, options, labelled=False, kind=wanted, part=part)
    found = source.samples()
    if isinstance(source, ListedSource):
        warn_about(name_of(text), source.dataset().cautions)
    return replace(found, labels=None)


def _is_text(value: str, kind: str | None) -> bool:
    """Return whether a string that is not the path of a file is taken as a text."""
    return kind == "text" or (kind is None and not is_image(value))


def _from_paths(paths: Sequence[str | os.PathLike[str]]) -> Samples:
    """Return existing image files as samples."""
    missing = [os.fspath(path) for path in paths if not os.path.isfile(path)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = ""
        if not any(is_image(name) or os.sep in name for name in missing):
            hint = (
                "; texts need a text backbone, such as 'all-MiniLM-L6-v2' or "
                "'sentence:NAME'"
            )
        raise DatasetNotFoundError(
            f"images must be existing files, got {missing[0]!r}{more}{hint}"
        )
    absolute = [os.path.abspath(path) for path in paths]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))
    names = tuple(Path(path).relative_to(root).as_posix() for path in absolute)
    return Samples("image", Images(names, root=root), lasting=True)


def _from_sequence(items: Sequence[Any], kind: str | None) -> Samples:
    """Return the texts, paths, images or feature vectors of a sequence as samples."""
    if len(items) == 0:
        raise InputError("items must hold at least one item, got none")
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        if _are_texts(items, kind):
            return Samples("text", Texts(tuple(items)))
        return _from_paths(items)
    if kind != "features" and all(
        is_pil_image(item) or is_pixels(item) for item in items
    ):
        return Samples("image", Images(tuple(items)))
    try:
        array = np.asarray(items, dtype=np.float64)
    except (TypeError, ValueError):
        types = ", ".join(sorted({type(item).__name__ for item in items})[:5])
        raise InputError(
            f"items must all be paths, images, texts or feature vectors, got {types}"
        ) from None
    return _from_features(array)


def _are_texts(items: Sequence[Any], kind: str | None) -> bool:
    """Return whether strings and paths are texts rather than paths of images."""
    if kind == "image" or not all(isinstance(item, str) for item in items):
        return False
    if not all(is_image(item) for item in items):
        return True
    return kind is not None and not all(os.path.isfile(item) for item in items)


def _from_array(array: NDArray[Any], kind: str | None) -> Samples:
    """Return the images, texts or feature vectors of an array as samples."""
    if array.size == 0:
        raise InputError(
            f"items must hold at least one item, got an array of shape {array.shape}"
        )
    if array.dtype.kind in "UO":
        return _from_sequence(array.tolist(), kind)
    if array.dtype != np.uint8 or kind == "features":
        return _from_features(array)
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        return Samples("image", Images((array,)))
    if array.ndim == 4 and array.shape[3] != 3:
        return Samples("image", Images(tuple(array)))
    return Samples("image", Images(array))


def _from_features(array: NDArray[Any]) -> Samples:
    """Return one feature vector, or a matrix of them, as samples."""
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise InputError(
            "features must be numbers of shape (n, d), "
            f"got {array.dtype} of shape {array.shape}"
        )
    return Samples("features", features=as_features(array, "features"))


# -- in chunks -------------------------------------------------------------------------


def labelled_chunks(
    data: Any, y: Any, sample_weight: Any, part: Part, kind: str | None
) -> Iterable[Samples]:
    """Return labelled samples at once, or the samples of a stream in chunks.

    Parameters
    ----------
    data, y : object
        As for :meth:`evergrow.Learner.fit`.
    sample_weight : array-like or None
        Weight of each sample.
    part : {"train", "test", "all"}
        Part to read of a source with a training and a test part.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.

    Raises
    ------
    InputError
        If there is no sample, weights are not one per sample, or labels or weights are
        passed with a stream.
    """
    if is_stream(data):
        if y is not None or sample_weight is not None:
            raise InputError(
                "a stream must come as pairs (item, label), got labels or weights "
                "beside it"
            )
        return read_chunks(data, kind)
    samples = read_labelled(data if y is None else (data, y), part, kind)
    if not len(samples):
        raise InputError("data must hold at least one sample, got none")
    weights = as_weights(sample_weight, len(samples))
    if weights is not None:
        samples = replace(samples, weights=weights)
    return [samples]


def item_chunks(items: Any, kind: str | None) -> Iterable[Samples]:
    """Return samples without labels at once, or the samples of a stream in chunks.

    Parameters
    ----------
    items : object
        As for :meth:`evergrow.Learner.predict`.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.

    Raises
    ------
    InputError
        If a stream has no item.
    """
    if is_stream(items):
        return read_chunks(items, kind, labelled=False)
    return [read_items(items, kind)]


def read_chunks(
    data: Any, kind: str | None, *, labelled: bool = True
) -> Iterator[Samples]:
    """Yield the samples of a stream in chunks of :data:`CHUNK`; each is read once.

    Parameters
    ----------
    data : iterator, Dataset or DataLoader
        Pairs (item, label) or batches (items, labels); items alone if labels are not
        required.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.
    labelled : bool
        Whether labels are required. Otherwise labels of pairs are ignored.

    Raises
    ------
    InputError
        If there is no sample.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_chunks
    >>> pairs = ((row, f"class {number % 2}") for number, row in enumerate(np.eye(300)))
    >>> [len(samples) for samples in read_chunks(pairs, "features")]
    [256, 44]
    """
    pairs = stream_pairs(data, labelled=labelled)
    empty = True
    while chunk := list(islice(pairs, CHUNK)):
        empty = False
        items = [item for item, _ in chunk]
        if labelled:
            yield read_labelled((items, [label for _, label in chunk]), "all", kind)
        else:
            yield read_items(items, kind)
    if empty:
        noun = "sample" if labelled else "item"
        raise InputError(f"data must hold at least one {noun}, got none")
