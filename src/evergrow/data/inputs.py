"""Whatever users hand over, as samples of one kind: paths, images, arrays, texts, features, data frames, streams.

Data frames of pandas and polars, PIL images and loaders of torch are told by their
classes; none of these libraries is imported here.
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

from evergrow.core.errors import DatasetNotFoundError, InputError, LabelError
from evergrow.core.validation import as_weights, is_instance_of
from evergrow.data.arrays import FeatureSet, read_npy
from evergrow.data.items import Dataset, Images, Items, Samples, Texts, is_image
from evergrow.data.load import name_of, read, warn_of
from evergrow.data.readers import DEFAULTS, DataOptions, reader_of_file
from evergrow.data.shards import ListedSource, as_features

Part = Literal["train", "test", "all"]
"""Which part of a source is wanted; a source without parts is always whole."""

CHUNK = 256
"""Samples of a stream that are held at a time, before they are feature vectors."""

_TORCH = "torch.utils.data"


# -- labels ----------------------------------------------------------------------------


def as_names(labels: Any, n: int) -> NDArray[np.str_]:
    """Return labels as class names, one for each of n samples.

    Examples
    --------
    >>> from evergrow.data.inputs import as_names
    >>> as_names([3, 10], 2).tolist()
    ['3', '10']
    """
    values = _label_values(labels)
    if len(values) != n:
        raise LabelError(f"labels must be one per sample ({n}), got {len(values)}")
    for value in values:
        if (
            not isinstance(value, (str, int, float))
            or value != value
            or not str(value).strip()
        ):
            raise LabelError(
                f"labels must be names that can be seen, or numbers, got {value!r}"
            )
    return np.array([str(value) for value in values], dtype=np.str_)


def _label_values(labels: Any) -> list[Any]:
    """Return labels as a list of plain values."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__"):
        raise LabelError(
            f"labels must be a sequence of class names, got {type(labels).__name__}"
        )
    if is_frame(labels):
        names = list(labels.columns)
        if len(names) != 1:
            raise LabelError(
                f"a frame of labels must have one column, got {len(names)}"
            )
        labels = labels[names[0]]
    if hasattr(labels, "tolist"):
        values = labels.tolist()
    else:
        values = labels
    return [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]


def kind_of(values: Sequence[Any]) -> str:
    """Return the kind of labels, or raise :class:`LabelError` where they are of several.

    Parameters
    ----------
    values : sequence
        Plain labels; numbers with a fraction count as names.

    Examples
    --------
    >>> from evergrow.data.inputs import kind_of
    >>> kind_of(["a", "b"]), kind_of([3, 10]), kind_of([True]), kind_of([0.5])
    ('name', 'integer', 'boolean', 'name')
    """
    types = {
        type(value.item() if isinstance(value, np.generic) else value).__name__
        for value in values
    }
    if len(types) > 1:
        raise LabelError(
            f"labels must all be of one kind, got a mix of {', '.join(sorted(types))}"
        )
    return {"int": "integer", "bool": "boolean"}.get(next(iter(types), "str"), "name")


# -- with labels -----------------------------------------------------------------------


def read_labelled(
    data: Any, part: Part, kind: str | None = None, options: DataOptions | None = None
) -> Samples:
    """Return labelled samples of any accepted source.

    Parameters
    ----------
    data : path-like, Dataset, FeatureSet or (items, labels)
        The source. Paths and names are those of :func:`evergrow.data.read`; what comes
        there without a test set is taken whole, none is split off.
    part : {"train", "test", "all"}
        Which part of a source that has two.
    kind : {"image", "text", "features"}, optional
        What the model takes, to tell texts from paths.
    options : DataOptions, optional
        How to read a path or name: columns, depth of class folders.

    Warns
    -----
    DataWarning
        Once, with all that is probably not meant.

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
        labels = _label_values(data[1])
        return replace(
            samples, labels=as_names(labels, len(samples)), label_kind=kind_of(labels)
        )
    got = type(data).__name__ + (f" of {len(data)}" if isinstance(data, tuple) else "")
    raise InputError(
        f"data must be a path, a Dataset, a FeatureSet or a pair (items, labels), got {got}"
    )


def read_parts(
    source: str | os.PathLike[str], options: DataOptions | None = None
) -> Dataset | FeatureSet:
    """Return the training part of a source, or all of it, and the test part where it has one; none is drawn."""
    found = read(source, options).dataset()
    if isinstance(found, Dataset):
        warn_of(name_of(os.fspath(source)), found.cautions, level=4)
    return found


# -- items without labels --------------------------------------------------------------


def read_items(
    items: Any, kind: str | None = None, options: DataOptions | None = None
) -> Samples:
    """Return samples without labels.

    Parameters
    ----------
    items : object
        A path or paths of images, a folder, an archive or a table of images, an image
        or images (PIL images, uint8 arrays), a text or texts, the path of a file of
        texts, or feature vectors (also the path of an ``.npy`` or ``.npz`` file with an
        array ``X``). A data frame of numbers is feature vectors; one column of texts or
        paths is those.
    kind : {"image", "text", "features"}, optional
        What the model takes. It tells texts from paths, and bytes that are features
        from pixels.
    options : DataOptions, optional
        How to read a path: columns of tables.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_items
    >>> read_items(["a text", "another"]).kind, read_items(np.zeros((2, 8, 8, 3), np.uint8)).kind
    ('text', 'image')
    """
    if isinstance(items, Samples):
        return items
    if isinstance(items, Items):
        return Samples(
            items.kind, items, lasting=isinstance(items, Images) and items.lasting
        )
    if isinstance(items, (str, os.PathLike)):
        return _of_name(items, kind, options or DEFAULTS)
    if not isinstance(items, list) and _is_pil_image(items):
        return Samples("image", Images((items,)))
    if hasattr(items, "detach"):
        items = items.detach().cpu().numpy()
        if items.ndim in (3, 4) and kind != "features":
            items = channels_last(items)
        else:
            items = items
    if is_frame(items):
        values, columns = frame_values(items, kind)
        if isinstance(values, list):
            return _of_sequence(values, kind)
        return Samples("features", features=_features(values), columns=columns)
    if hasattr(items, "__array__"):
        return _of_array(np.asarray(items), kind)
    if not isinstance(items, Sequence) or isinstance(items, (bytes, bytearray)):
        raise InputError(
            f"items must be paths, images, texts or feature vectors, got {type(items).__name__}"
        )
    return _of_sequence(items, kind)


def read_unknown(
    unknown: Any,
    kind: str | None,
    part: Part = "all",
    options: DataOptions | None = None,
) -> Samples:
    """Return samples with labels (all parts by default), or without as :func:`read_items` does."""
    if isinstance(unknown, (str, os.PathLike)) and os.path.isdir(unknown):
        try:
            return read_labelled(unknown, part, kind, options)
        except InputError:
            return read_items(unknown, kind)  # a folder of images without classes
    labelled = isinstance(unknown, (str, os.PathLike, tuple, Dataset, FeatureSet))
    if labelled:
        return read_labelled(unknown, part, kind, options)
    return read_items(unknown, kind)


def _of_name(
    name: str | os.PathLike[str], kind: str | None, options: DataOptions
) -> Samples:
    path = Path(name)
    text = os.fspath(name)
    there = os.path.isfile(
        name
    )  # unlike Path.is_file, no error for a text that is too long for a name
    if not there and not os.path.isdir(name):
        if path.suffix.lower() in (".npy", ".npz") and kind != "text":
            raise DatasetNotFoundError(f"No file {text!r} here.")
        plain = isinstance(name, str) and (
            kind == "text" or (kind is None and not is_image(text))
        )
        if plain:
            return Samples("text", Texts((text,)))
        return _of_paths([name])
    if path.suffix.lower() == ".npy" and there:
        return Samples("features", features=_features(read_npy(path)))
    if there and (is_image(text) or reader_of_file(text) is None):
        return _of_paths([name])
    wanted = kind if kind in ("image", "text") else ""
    part = "test" if path.suffix.lower() == ".npz" else "all"
    source = read(path, options, labelled=False, kind=wanted, part=part)
    found = source.samples()
    if isinstance(source, ListedSource):
        warn_of(name_of(text), source.dataset().cautions)
    return replace(found, labels=None)


def _of_paths(paths: Sequence[str | os.PathLike[str]]) -> Samples:
    missing = [os.fspath(path) for path in paths if not os.path.isfile(path)]
    if missing:
        more = ""
        if len(missing) > 1:
            more = f" and {len(missing) - 1} more"
        texts = not any(is_image(name) or os.sep in name for name in missing)
        hint = ""
        if texts:
            hint = "; texts need a backbone of texts, such as 'all-MiniLM-L6-v2' or 'sentence:NAME'"
        raise DatasetNotFoundError(
            f"images must be existing files, got {missing[0]!r}{more}{hint}"
        )
    absolute = [os.path.abspath(path) for path in paths]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))
    names = tuple(Path(path).relative_to(root).as_posix() for path in absolute)
    return Samples("image", Images(names, root=root), lasting=True)


def _of_sequence(items: Sequence[Any], kind: str | None) -> Samples:
    if len(items) == 0:
        raise InputError("items must hold at least one item, got none")
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        texts = all(isinstance(item, str) for item in items) and kind != "image"
        images = all(map(is_image, map(os.fspath, items))) and (
            kind is None or all(map(os.path.isfile, items))
        )
        if texts and not images:
            return Samples("text", Texts(tuple(items)))
        return _of_paths(items)
    if (
        all(_is_pil_image(item) or _is_pixels(item) for item in items)
        and kind != "features"
    ):
        return Samples("image", Images(tuple(items)))
    try:
        array = np.asarray(items, dtype=np.float64)
    except (TypeError, ValueError):
        kinds = ", ".join(sorted({type(item).__name__ for item in items})[:5])
        raise InputError(
            f"items must all be paths, images, texts or feature vectors, got {kinds}"
        ) from None
    return Samples("features", features=_features(array))


def _of_array(array: NDArray[Any], kind: str | None) -> Samples:
    if array.size == 0:
        raise InputError(
            f"items must hold at least one item, got an array of shape {array.shape}"
        )
    if array.dtype.kind in "UO":
        return _of_sequence(array.tolist(), kind)
    if array.dtype != np.uint8 or kind == "features":
        return Samples("features", features=_features(array))
    one = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    odd = array.ndim == 4 and array.shape[3] != 3
    return Samples("image", Images((array,) if one else tuple(array) if odd else array))


def _features(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise InputError(
            f"features must be numbers of shape (n, d), got {array.dtype} of shape {array.shape}"
        )
    return as_features(array, "features")


# -- images in memory ------------------------------------------------------------------


def _is_pil_image(item: Any) -> bool:
    return is_instance_of(item, "PIL.Image", "Image")


def _is_pixels(item: Any) -> bool:
    return (
        isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (2, 3)
    )


def channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return images of a tensor, channels first and of bytes or floats from 0 to 1, as bytes with the channels last.

    Parameters
    ----------
    array : ndarray of shape (3, h, w) or (n, 3, h, w)
        One image or several; one channel does as well. What has its channels last
        already only becomes bytes.

    Raises
    ------
    InputError
        If floats lie outside of 0 to 1, as those of normalised images do.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import channels_last
    >>> channels_last(np.full((3, 4, 5), 0.2, np.float32))[0, 0].tolist()
    [51, 51, 51]
    """
    if array.dtype.kind == "f":
        low, high = (
            (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        )
        if not 0.0 <= low <= high <= 1.0:
            got = f"{low:.3g} to {high:.3g}: leave out the normalisation, which the backbone brings along"
            raise InputError(f"images of floats must lie between 0 and 1, got {got}")
        array = np.rint(array * 255.0).astype(np.uint8)
    if (
        array.dtype == np.uint8
        and array.shape[-3] in (1, 3)
        and array.shape[-1] not in (1, 3, 4)
    ):
        array = np.moveaxis(array, -3, -1)
        if array.shape[-1] == 1:
            array = array[..., 0]
        else:
            array = array
    return np.ascontiguousarray(array)


# -- data frames -----------------------------------------------------------------------


def is_frame(value: Any) -> bool:
    """Return whether something is a data frame: a table of named columns that can be numbers.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.inputs import is_frame
    >>> is_frame(pandas.DataFrame({"a": [1]})), is_frame(pandas.Series([1])), is_frame([[1]])
    (True, False, False)
    """
    return (
        hasattr(value, "columns")
        and hasattr(value, "to_numpy")
        and len(getattr(value, "shape", ())) == 2
    )


def is_pandas(value: Any) -> bool:
    """Return whether something is a frame or a column of pandas; answers keep its index."""
    return is_instance_of(value, "pandas", "DataFrame", "Series")


def frame_values(
    frame: Any, kind: str | None
) -> tuple[NDArray[Any] | list[Any], tuple[str, ...]]:
    """Return the contents of a frame: a matrix of its numbers with the names of its columns, or its one column.

    Parameters
    ----------
    frame : DataFrame
        Of pandas or polars.
    kind : {"image", "text", "features"} or None
        What the model takes, where that is settled.

    Returns
    -------
    values : ndarray of shape (n, d) or list
        Numbers; texts or paths where the frame has one column and they are none.
    names : tuple of str
        Names of the columns; none where they are no strings, or it is one of texts or
        paths.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.inputs import frame_values
    >>> frame_values(pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), None)[1]
    ('a', 'b')
    >>> frame_values(pandas.DataFrame({"text": ["hello", "hi"]}), None)[0]
    ['hello', 'hi']
    """
    if frame.shape[0] == 0:
        raise InputError("items must hold at least one item, got a frame without rows")
    array = np.asarray(frame.to_numpy())
    names = list(frame.columns)
    if len(names) == 1 and kind != "features" and array.dtype.kind in "OUT":
        return list(frame[names[0]]), ()
    strings = [
        isinstance(name, str) for name in names
    ]  # scikit-learn goes by the same rule
    if any(strings) and not all(strings):
        raise InputError(
            "columns of a frame must all have strings for names, or none of them, got some of each"
        )
    if array.dtype.kind not in "fiu":
        array = np.column_stack([_numbers(frame, name) for name in names])
    return array, tuple(names) if all(strings) else ()


def _numbers(frame: Any, name: Any) -> NDArray[np.float64]:
    """Return a column as numbers; gaps become NaN, which is refused where rows are named."""
    column = np.asarray(frame[name].to_numpy())
    try:
        if column.dtype.kind not in "biufO":
            raise TypeError
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"columns of a frame must be numbers to be features, got {name!r} of {frame[name].dtype}; texts and paths "
            "are one column, such as frame['text']"
        ) from None


def check_columns(given: Sequence[str], learned: Sequence[str]) -> None:
    """Raise :class:`InputError` unless named columns are those that were learned, in their order.

    What has no names, an array or a file, goes by position.

    Examples
    --------
    >>> from evergrow.data.inputs import check_columns
    >>> check_columns(["b", "a"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be those learned, in their order; 'b' where 'a' was
    >>> check_columns(["a", "c"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be those learned, in their order; missing: 'b'; not learned: 'c'
    """
    if not given or not learned or list(given) == list(learned):
        return
    missing = [f"missing: {name!r}" for name in learned if name not in set(given)]
    more = [f"not learned: {name!r}" for name in given if name not in set(learned)]
    moved = [
        f"{now!r} where {was!r} was"
        for now, was in zip(given, learned, strict=False)
        if now != was
    ][:1]
    said = "; ".join([*missing[:5], *more[:5]] or moved)
    raise InputError(f"columns must be those learned, in their order; {said}")


# -- streams ---------------------------------------------------------------------------


def is_stream(data: Any) -> bool:
    """Return whether data come one after the other: an iterator, or a dataset or loader of torch.

    Examples
    --------
    >>> from evergrow.data.inputs import is_stream
    >>> is_stream(row for row in range(3)), is_stream([1, 2])
    (True, False)
    """
    if isinstance(data, (list, str)):  # as most people ask
        return False
    return isinstance(data, Iterator) or is_instance_of(
        data, _TORCH, "Dataset", "DataLoader"
    )


def check_whole(data: Any) -> None:
    """Raise :class:`InputError` for a stream where images are needed more than once."""
    if is_stream(data):
        raise InputError(
            f"data must be seen many times to adapt a backbone to them, got {type(data).__name__}"
        )


def labelled_chunks(
    data: Any, y: Any, sample_weight: Any, part: Part, kind: str | None
) -> Iterable[Samples]:
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
        If there is no sample, weights are not one per sample, or labels or weights come
        beside a stream.
    """
    if not is_stream(data):
        samples = read_labelled(data if y is None else (data, y), part, kind)
        if not len(samples):
            raise InputError("data must hold at least one sample, got none")
        weights = as_weights(sample_weight, len(samples))
        return [samples if weights is None else replace(samples, weights=weights)]
    if y is not None or sample_weight is not None:
        raise InputError(
            "a stream must come as pairs (item, label), got labels or weights beside it"
        )
    return read_chunks(data, kind)


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
    if is_stream(items):
        return read_chunks(items, kind, labelled=False)
    return [read_items(items, kind)]


def read_chunks(
    data: Any, kind: str | None, *, labelled: bool = True
) -> Iterator[Samples]:
    """Yield samples of a stream, :data:`CHUNK` at a time, each of them read once.

    Parameters
    ----------
    data : iterator, Dataset or DataLoader
        Samples: pairs (item, label) or whole batches (items, labels); items alone where
        no labels are wanted.
    kind : {"image", "text", "features"}, optional
        What the model takes.
    labelled : bool
        Whether labels are wanted; those of pairs are else passed over.

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
    pairs = _pairs(data, labelled=labelled)
    empty = True
    while held := list(islice(pairs, CHUNK)):
        items = [item for item, _ in held]
        empty = False
        if labelled:
            yield read_labelled((items, [label for _, label in held]), "all", kind)
        else:
            yield read_items(items, kind)
    if empty:
        raise InputError(
            f"data must hold at least one {'sample' if labelled else 'item'}, got none"
        )


def _pairs(data: Any, *, labelled: bool) -> Iterator[tuple[Any, Any]]:
    """Yield single items with their labels; an item without a label has None."""
    batches = is_instance_of(data, _TORCH, "DataLoader") and data.batch_size is not None
    rows = (
        is_instance_of(data, _TORCH, "Dataset")
        and hasattr(data, "__len__")
        and not hasattr(data, "__iter__")
    )
    # iter() would ask a data set beyond its end, which few refuse.
    for element in (data[row] for row in range(len(data))) if rows else data:
        if isinstance(element, (tuple, list)) and len(element) <= 2:
            pair = tuple(element)
        else:
            pair = (element,)
        if len(pair) != 2 and labelled:
            what = type(element).__name__ + (
                f" of {len(element)}" if hasattr(element, "__len__") else ""
            )
            raise InputError(
                f"data must come as pairs (item, label) or (items, labels), got a {what}"
            )
        items, labels = (*pair, None)[:2]
        many = isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) > 0
        if len(pair) == 2 and (batches or many):
            if len(items) != len(labels):
                raise LabelError(
                    f"labels must be one per sample ({len(items)}), got {len(labels)}"
                )
            yield from zip(map(_item, items), map(_label, labels), strict=True)
        elif batches:
            yield from ((_item(item), None) for item in items)
        else:
            yield _item(items), _label(labels)


def _label(label: Any) -> Any:
    if hasattr(label, "item") and getattr(label, "ndim", 1) == 0:
        return label.item()
    return label


def _item(item: Any) -> Any:
    """Return one item as an array, an image or a text; images of tensors have their channels last from here on."""
    tensor = hasattr(item, "detach")
    if tensor:
        array = item.detach().cpu().numpy()
    else:
        array = item
    image = (
        isinstance(array, np.ndarray)
        and array.ndim == 3
        and (tensor or array.dtype.kind == "f")
    )
    if image:
        return channels_last(array)
    return array
