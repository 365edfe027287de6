"""Whatever users hand over, as samples of one kind: paths, images, arrays, texts, features, data frames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, InputError, LabelError
from evergrow.core.optional import is_instance_of
from evergrow.data.arrays import FeatureSet, read_npy
from evergrow.data.frames import frame_values, is_frame, single_column
from evergrow.data.items import Images, Items, Texts, is_image
from evergrow.data.load import name_of, read, warn_of
from evergrow.data.readers import DataOptions, reader_of_file
from evergrow.data.samples import Dataset, Samples
from evergrow.data.sources import ListedSource, as_features

__all__ = ["Part", "Samples", "as_names", "kind_of", "read_items", "read_labelled", "read_parts", "read_unknown"]

Part = Literal["train", "test", "all"]
"""Which part of a source is wanted; a source without parts is always whole."""


def as_names(labels: Any, n: int) -> NDArray[np.str_]:
    """Return labels as class names, one for each of n samples.

    Examples
    --------
    >>> from evergrow.data.intake import as_names
    >>> as_names([3, 10], 2).tolist()
    ['3', '10']
    """
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__"):
        raise LabelError(f"labels must be a sequence of class names, got {type(labels).__name__}")
    labels = single_column(labels) if is_frame(labels) else labels
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if not isinstance(values, list) or len(values) != n:
        raise LabelError(f"labels must be one per sample ({n}), got {len(labels)}")
    return np.array([_name(value) for value in values], dtype=np.str_)


def _name(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (str, int, float)) or value != value:
        raise LabelError(f"labels must be names or numbers, got {value!r}")
    name = str(value)
    if not name.strip():
        raise LabelError(f"labels must be names that can be seen, got {name!r}")
    return name


def kind_of(values: Sequence[Any]) -> str:
    """Return the kind of labels, or raise :class:`LabelError` where they are of several.

    Parameters
    ----------
    values : sequence
        Plain labels; numbers with a fraction count as names.

    Examples
    --------
    >>> from evergrow.data.intake import kind_of
    >>> kind_of(["a", "b"]), kind_of([3, 10]), kind_of([True]), kind_of([0.5])
    ('name', 'integer', 'boolean', 'name')
    """
    types = {_plain_type(value) for value in values}
    if len(types) > 1:
        raise LabelError(f"labels must all be of one kind, got a mix of {', '.join(sorted(types))}")
    return {"int": "integer", "bool": "boolean"}.get(next(iter(types), "str"), "name")


def _plain_type(value: Any) -> str:
    return type(value.item() if isinstance(value, np.generic) else value).__name__


def read_labelled(data: Any, part: Part, kind: str | None = None, options: DataOptions | None = None) -> Samples:
    """Return labelled samples of any accepted source.

    Parameters
    ----------
    data : path-like, Dataset, FeatureSet or (items, labels)
        The source. Paths and names are those of :func:`evergrow.data.read`; what comes there without a test set is
        taken whole, none is split off.
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
    >>> from evergrow.data.intake import read_labelled
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
        names = as_names(data[1], len(samples))
        labels = single_column(data[1]) if is_frame(data[1]) else data[1]
        given = labels.tolist() if hasattr(labels, "tolist") else labels
        return replace(samples, labels=names, label_kind=kind_of(given))
    raise InputError(
        "data must be a path, a Dataset, a FeatureSet or a pair (items, labels), "
        f"got {type(data).__name__}" + (f" of {len(data)}" if isinstance(data, tuple) else "")
    )


def read_parts(source: str | os.PathLike[str], options: DataOptions | None = None) -> Dataset | FeatureSet:
    """Return the training part of a source, or all of it, and the test part where it has one; none is drawn."""
    found = read(source, options).dataset()
    if isinstance(found, Dataset):
        warn_of(name_of(os.fspath(source)), found.cautions, level=4)
    return found


# -- items without labels -----------------------------------------------------------------------------------


def read_items(items: Any, kind: str | None = None, options: DataOptions | None = None) -> Samples:
    """Return samples without labels.

    Parameters
    ----------
    items : object
        A path or paths of images, a folder, an archive or a table of images, an image or images (PIL images, uint8
        arrays), a text or texts, the path of a file of texts, or feature vectors (also the path of an ``.npy`` or
        ``.npz`` file with an array ``X``). A data frame of numbers is feature vectors; one column of texts or paths is
        those.
    kind : {"image", "text", "features"}, optional
        What the model takes. It tells texts from paths, and bytes that are features from pixels.
    options : DataOptions, optional
        How to read a path: columns of tables.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.intake import read_items
    >>> read_items(["a text", "another"]).kind, read_items(np.zeros((2, 8, 8, 3), np.uint8)).kind
    ('text', 'image')
    """
    if isinstance(items, Samples):
        return items
    if isinstance(items, Items):
        return Samples(items.kind, items, lasting=isinstance(items, Images) and items.lasting)
    if isinstance(items, (str, os.PathLike)):
        return _of_name(items, kind, options or DataOptions())
    if is_pil_image(items):
        return Samples("image", Images((items,)))
    if hasattr(items, "detach"):
        items = items.detach().cpu().numpy()
        items = channels_last(items) if items.ndim in (3, 4) and kind != "features" else items
    if is_frame(items):
        values, columns = frame_values(items, kind)
        if isinstance(values, list):
            return _of_sequence(values, kind)
        return Samples("features", features=_features(values), columns=columns)
    if hasattr(items, "__array__"):
        return _of_array(np.asarray(items), kind)
    if not isinstance(items, Sequence) or isinstance(items, (bytes, bytearray)):
        raise InputError(f"items must be paths, images, texts or feature vectors, got {type(items).__name__}")
    return _of_sequence(items, kind)


def read_unknown(unknown: Any, kind: str | None, part: Part = "all", options: DataOptions | None = None) -> Samples:
    """Return samples of data with labels, whole unless a part is wanted, or of what :func:`read_items` takes."""
    if isinstance(unknown, (str, os.PathLike)) and os.path.isdir(unknown):
        try:
            return read_labelled(unknown, part, kind, options)
        except InputError:
            return read_items(unknown, kind)  # a folder of images without classes
    labelled = isinstance(unknown, (str, os.PathLike, tuple, Dataset, FeatureSet))
    return read_labelled(unknown, part, kind, options) if labelled else read_items(unknown, kind)


def _of_name(name: str | os.PathLike[str], kind: str | None, options: DataOptions) -> Samples:
    path, text = Path(name), os.fspath(name)
    there = os.path.isfile(name)  # unlike Path.is_file, no error for a text that is too long for a name
    if not there and not os.path.isdir(name):
        if path.suffix.lower() in (".npy", ".npz") and kind != "text":
            raise DatasetNotFoundError(f"No file {text!r} here.")
        plain = isinstance(name, str) and (kind == "text" or (kind is None and not is_image(text)))
        return Samples("text", Texts((text,))) if plain else _of_paths([name])
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
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        texts = not any(is_image(name) or os.sep in name for name in missing)
        hint = "; texts need a backbone of texts, such as 'all-MiniLM-L6-v2' or 'sentence:NAME'" if texts else ""
        raise DatasetNotFoundError(f"images must be existing files, got {missing[0]!r}{more}{hint}")
    absolute = [os.path.abspath(path) for path in paths]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))
    names = tuple(Path(path).relative_to(root).as_posix() for path in absolute)
    return Samples("image", Images(names, root=root), lasting=True)


def _of_texts(texts: Sequence[str], *, lasting: bool = False) -> Samples:
    if not texts:
        raise InputError("items must hold at least one item, got none")
    return Samples("text", Texts(tuple(texts)), lasting=lasting)


def _of_sequence(items: Sequence[Any], kind: str | None) -> Samples:
    if len(items) == 0:
        raise InputError("items must hold at least one item, got none")
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        return _of_strings(items, kind)
    if all(is_pil_image(item) or is_pixels(item) for item in items) and kind != "features":
        return Samples("image", Images(tuple(items)))
    try:
        array = np.asarray(items, dtype=np.float64)
    except (TypeError, ValueError):
        kinds = ", ".join(sorted({type(item).__name__ for item in items})[:5])
        raise InputError(f"items must all be paths, images, texts or feature vectors, got {kinds}") from None
    return Samples("features", features=_features(array))


def _of_strings(items: Sequence[Any], kind: str | None) -> Samples:
    plain = all(isinstance(item, str) for item in items)
    if not plain or kind == "image" or all(is_image(item) and os.path.isfile(item) for item in items):
        return _of_paths(items)
    if kind is None and all(is_image(item) for item in items):
        return _of_paths(items)  # raises, and names the files that are missing
    return _of_texts(items)


def _of_array(array: NDArray[Any], kind: str | None) -> Samples:
    if array.size == 0:
        raise InputError(f"items must hold at least one item, got an array of shape {array.shape}")
    if array.dtype.kind in "UO":
        return _of_sequence(array.tolist(), kind)
    if array.dtype != np.uint8 or kind == "features":
        return Samples("features", features=_features(array))
    if array.ndim == 4:
        whole = array.shape[3] == 3
        return Samples("image", Images(array) if whole else Images(tuple(array)))
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        return Samples("image", Images((array,)))
    return Samples("image", Images(array))


def _features(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise InputError(
            f"features must be numbers of shape (n, d), got {array.dtype} of shape {array.shape}; "
            "pixels must be bytes (uint8)"
        )
    return as_features(array, "features")


# -- images in memory -----------------------------------------------------------------------------------------


def is_pil_image(item: Any) -> bool:
    """Return whether an object is a PIL image; where PIL was never imported, nothing is."""
    return is_instance_of(item, "PIL.Image", "Image")


def is_pixels(item: Any) -> bool:
    """Return whether an object is an image as an array of bytes."""
    return isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (2, 3)


def channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return images of a tensor, channels first and of bytes or floats from 0 to 1, as bytes with the channels last.

    Parameters
    ----------
    array : ndarray of shape (3, h, w) or (n, 3, h, w)
        One image or several; one channel does as well. What has its channels last already only becomes bytes.

    Raises
    ------
    InputError
        If floats lie outside of 0 to 1, as those of normalised images do.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.intake import channels_last
    >>> channels_last(np.full((3, 4, 5), 0.2, np.float32))[0, 0].tolist()
    [51, 51, 51]
    """
    if array.dtype.kind == "f":
        low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        if not 0.0 <= low <= high <= 1.0:
            raise InputError(
                f"images of floats must lie between 0 and 1, got {low:.3g} to {high:.3g}: leave out the "
                "normalisation, which the backbone brings along"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    if array.dtype == np.uint8 and array.shape[-3] in (1, 3) and array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, -3, -1)
        array = array[..., 0] if array.shape[-1] == 1 else array
    return np.ascontiguousarray(array)
