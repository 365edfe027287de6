"""Whatever users hand over, as samples of one kind: folders, tables, paths, images, arrays, texts, features."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, DataWarning, InputError, LabelError
from evergrow.core.feature_blocks import join_blocks
from evergrow.core.image_formats import is_image
from evergrow.core.items import ImageArrays, ImageFiles, Items, Texts, concat_items
from evergrow.core.wording import setting
from evergrow.data import DataOptions, FeatureSet, RawSet, load_data
from evergrow.data.array_files import STAMP, read_npy, read_npz, stated_widths
from evergrow.data.folders import Walk
from evergrow.data.frames import frame_values, is_frame, single_column
from evergrow.data.labelled import LabelledItems
from evergrow.data.load import is_on_disk, read_path
from evergrow.data.memory_images import MixedImages, channels_last, is_pil_image, is_pixels
from evergrow.data.stored import StoredImages
from evergrow.data.tables import TABLE_SUFFIXES, read_texts
from evergrow.data.trees import DiskTree

Part = Literal["train", "test", "all"]
"""Which part of a source is wanted; a source without parts is always whole."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of one kind, with labels where they have some.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What they are.
    items : Items or None
        Images or texts.
    features : ndarray of shape (n, d) or None
        Feature vectors, their blocks joined.
    labels : ndarray of str of shape (n,) or None
        Class names.
    lasting : bool
        Whether they lie on disk, so that it pays to keep what was computed from them.
    origin : mapping
        What computed the features, as far as that is known.
    widths : tuple of int
        Columns of each block of the features, as far as that is known.
    label_kind : {"name", "integer", "boolean"} or None
        What the labels were before they became names; None for names out of a file.
    weights : ndarray of shape (n,) or None
        What each counts for; None where each counts as one.
    columns : tuple of str
        Names of the columns of the features, where they came in a data frame that has names.
    """

    kind: str
    items: Items | None = None
    features: NDArray[Any] | None = None
    labels: NDArray[np.str_] | None = None
    lasting: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    label_kind: str | None = None
    weights: NDArray[np.float64] | None = None
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.features) if self.features is not None else len(self.raw_items())

    def raw_items(self) -> Items:
        """Return the images or texts."""
        if self.items is None:
            raise InputError("samples must be images or texts, got feature vectors")
        return self.items

    def required_labels(self) -> NDArray[np.str_]:
        """Return the labels, or raise :class:`LabelError` where there are none."""
        if self.labels is None:
            raise LabelError(f"{setting('data')} must have labels, got none")
        return self.labels

    def names(self) -> list[str]:
        """Return a name of every sample for people."""
        if self.items is None:
            return [f"row {row}" for row in range(len(self))]
        return [self.items.name(row) for row in range(len(self))]

    def take(self, rows: NDArray[np.int64]) -> Samples:
        """Return the samples of these rows."""
        return Samples(
            self.kind,
            None if self.items is None else self.items.take(rows),
            None if self.features is None else self.features[rows],
            None if self.labels is None else self.labels[rows],
            self.lasting,
            self.origin,
            self.widths,
            self.label_kind,
            None if self.weights is None else self.weights[rows],
            self.columns,
        )


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


# -- labelled data ------------------------------------------------------------------------------------------


def read_labelled(data: Any, part: Part, kind: str | None = None, options: DataOptions | None = None) -> Samples:
    """Return labelled samples of any accepted source.

    Parameters
    ----------
    data : path-like, RawSet, FeatureSet or (items, labels)
        The source. Paths and names are those of :func:`evergrow.data.load_data`; what comes there without a test
        set is taken whole, none is split off.
    part : {"train", "test", "all"}
        Which part of a source that has two.
    kind : {"image", "text", "features"}, optional
        What the model takes, to tell texts from paths.
    options : DataOptions, optional
        How to read a path or name: columns, depth of class folders.

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
        data = _open(data, options or DataOptions())
    if isinstance(data, LabelledItems):
        return _of_reading(data, part)
    if isinstance(data, RawSet):
        return _of_raw(data, part)
    if isinstance(data, FeatureSet):
        return _of_features(data, part)
    if isinstance(data, tuple) and len(data) == 2:
        samples = read_items(data[0], kind)
        names = as_names(data[1], len(samples))
        labels = single_column(data[1]) if is_frame(data[1]) else data[1]
        given = labels.tolist() if hasattr(labels, "tolist") else labels
        return replace(samples, labels=names, label_kind=kind_of(given))
    raise InputError(
        f"{setting('data')} must be a path, a RawSet, a FeatureSet or a pair (items, labels), "
        f"got {type(data).__name__}" + (f" of {len(data)}" if isinstance(data, tuple) else "")
    )


def _open(source: str | os.PathLike[str], options: DataOptions) -> RawSet | FeatureSet | LabelledItems:
    """Read a source; no test set is drawn, and that of a folder may have classes of its own, to be told apart."""
    return read_path(source, options) if is_on_disk(source) else load_data(source, options, split="none")


def read_parts(source: str | os.PathLike[str], options: DataOptions | None = None) -> tuple[Samples, Samples | None]:
    """Return the training part of a source, or all of it, and the test part where it has one.

    Parameters
    ----------
    source : str or path-like
        A path or name as :func:`read_labelled` takes it.
    options : DataOptions, optional
        How to read it.
    """
    data = _open(source, options or DataOptions())
    whole = data.test is None if isinstance(data, LabelledItems) else data.whole
    return read_labelled(data, "train"), None if whole else read_labelled(data, "test")


def _of_reading(reading: LabelledItems, part: Part) -> Samples:
    parts = [(reading.train, reading.train_labels)]
    if reading.test is not None:
        parts = {"train": parts, "test": [(reading.test, reading.test_labels)]}.get(
            part, [*parts, (reading.test, reading.test_labels)]
        )
    labels = [
        reading.names.get(label, str(label)) if isinstance(label, int) else label
        for _, names in parts
        for label in names
    ]
    items = concat_items([items for items, _ in parts])
    return Samples(items.kind, items, labels=as_names(labels, len(items)), lasting=True)


def _of_raw(data: RawSet, part: Part) -> Samples:
    wanted = ["train"] if data.whole else [name for name in ("train", "test") if part in (name, "all")]
    items = concat_items([getattr(data, name) for name in wanted])
    codes = np.concatenate([getattr(data, f"y_{name}") for name in wanted])
    labels = [data.class_names[int(code)] for code in codes]
    return Samples(items.kind, items, labels=as_names(labels, len(items)), lasting=bool(data.source))


def _of_features(data: FeatureSet, part: Part) -> Samples:
    wanted = ["train"] if data.whole else [name for name in ("train", "test") if part in (name, "all")]
    X = np.concatenate([getattr(data, f"X_{name}") for name in wanted])
    values = np.concatenate([getattr(data, f"y_{name}") for name in wanted]).tolist()
    known = data.class_names
    labels = [
        known[value] if known and isinstance(value, int) and 0 <= value < len(known) else value for value in values
    ]
    joined, names = join_blocks(_widened(X), data.widths), as_names(labels, len(X))
    return Samples("features", features=joined, labels=names, origin=data.backbone, widths=data.widths)


# -- items without labels -----------------------------------------------------------------------------------


def read_items(items: Any, kind: str | None = None) -> Samples:
    """Return samples without labels.

    Parameters
    ----------
    items : object
        A path or paths of images, a folder of images, an image or images (PIL images, uint8 arrays), a text or
        texts, the path of a file of texts (see :func:`evergrow.data.tables.read_texts`), or feature vectors
        (also the path of an ``.npy`` or ``.npz`` file with an array ``X``). A data frame of numbers is feature vectors;
        one column of texts or paths is those.
    kind : {"image", "text", "features"}, optional
        What the model takes. It tells texts from paths, and bytes that are features from pixels.

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
        return Samples(items.kind, items, lasting=isinstance(items, (ImageFiles, StoredImages)))
    if isinstance(items, (str, os.PathLike)):
        return _of_name(items, kind)
    if is_pil_image(items):
        return Samples("image", MixedImages((items,)))
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
        raise InputError(
            f"{setting('items')} must be paths, images, texts or feature vectors, got {type(items).__name__}"
        )
    return _of_sequence(items, kind)


def read_unknown(unknown: Any, kind: str | None, part: Part = "all", options: DataOptions | None = None) -> Samples:
    """Return samples of data with labels, whole unless a part is wanted, or of what :func:`read_items` takes."""
    if isinstance(unknown, (str, os.PathLike)) and os.path.isdir(unknown):
        try:
            return read_labelled(unknown, part, kind, options)
        except InputError:
            return read_items(unknown, kind)  # a folder of images without classes
    labelled = isinstance(unknown, (str, os.PathLike, tuple, RawSet, FeatureSet))
    return read_labelled(unknown, part, kind, options) if labelled else read_items(unknown, kind)


def _of_name(name: str | os.PathLike[str], kind: str | None) -> Samples:
    path = Path(name)
    there = os.path.isfile(name)  # unlike Path.is_file, no error for a text that is too long for a name
    if kind == "text" and isinstance(name, str) and not there:
        return Samples("text", Texts((name,)))
    if os.path.isdir(name):
        files = _images_below(path)
        return Samples("image", ImageFiles(path, tuple(files)), lasting=True)
    if path.suffix.lower() in (".npz", ".npy"):
        array, widths = _array_file(path)
        return Samples("features", features=join_blocks(_features(array), widths), widths=widths)
    if there and path.suffix.lower() in (".txt", *TABLE_SUFFIXES):
        return _of_texts(read_texts(path), lasting=True)
    if kind is None and isinstance(name, str) and not is_image(name):
        return Samples("text", Texts((name,)))
    return _of_paths([name])


def _images_below(folder: Path) -> list[str]:
    walk = Walk(DiskTree(folder))
    names = [name.removeprefix("./") for name in walk.images(".")]
    unread = "; ".join(walk.cautions())
    if not names:
        raise InputError(f"folder must hold images, got none in {folder}" + (f"; {unread}" if unread else ""))
    if unread:
        warnings.warn(f"folder {str(folder)!r} can be used but: {unread}", DataWarning, stacklevel=2)
    return names


def _array_file(path: Path) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Return the features of a file, and the widths of their blocks where the file states them."""
    if not path.exists():
        raise DatasetNotFoundError(f"file must exist, got {path}")
    if path.suffix.lower() == ".npy":
        return read_npy(path), ()
    arrays = read_npz(path, ("X", "X_test", STAMP))
    array = arrays.get("X", arrays.get("X_test"))
    if array is None:
        raise InputError(f"{path} must hold an array X or X_test, got neither")
    return array, stated_widths(str(arrays[STAMP]) if STAMP in arrays else "{}", array)


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
    return Samples("image", ImageFiles(root, names), lasting=True)


def _of_texts(texts: Sequence[str], *, lasting: bool = False) -> Samples:
    if not texts:
        raise InputError(f"{setting('items')} must hold at least one item, got none")
    return Samples("text", Texts(tuple(texts)), lasting=lasting)


def _of_sequence(items: Sequence[Any], kind: str | None) -> Samples:
    if len(items) == 0:
        raise InputError(f"{setting('items')} must hold at least one item, got none")
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        return _of_strings(items, kind)
    if all(is_pil_image(item) or is_pixels(item) for item in items) and kind != "features":
        return Samples("image", MixedImages(tuple(items)))
    try:
        array = np.asarray(items, dtype=np.float64)
    except (TypeError, ValueError):
        kinds = ", ".join(sorted({type(item).__name__ for item in items})[:5])
        raise InputError(
            f"{setting('items')} must all be paths, images, texts or feature vectors, got {kinds}"
        ) from None
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
        raise InputError(f"{setting('items')} must hold at least one item, got an array of shape {array.shape}")
    if array.dtype.kind in "UO":
        return _of_sequence(array.tolist(), kind)
    if array.dtype != np.uint8 or kind == "features":
        return Samples("features", features=_features(array))
    if array.ndim == 4:
        whole = array.shape[3] == 3
        return Samples("image", ImageArrays(array) if whole else MixedImages(tuple(array)))
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        return Samples("image", MixedImages((array,)))
    return Samples("image", ImageArrays(array))


def _features(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise InputError(
            f"features must be numbers of shape (n, d), got {array.dtype} of shape {array.shape}; "
            "pixels must be bytes (uint8)"
        )
    array = _widened(array)
    if not np.isfinite(array).all():
        row = int(np.isfinite(array).all(axis=1).argmin())
        raise InputError(f"features must be finite, got NaN or infinity, first in row {row}")
    return array


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return floats as heads take them: half precision is widened, integers become floats."""
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)
