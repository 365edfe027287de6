"""Labelled features, or images as pixels, in NPZ files: whole or by ranges of rows.

Nothing is unpickled, and no claim of a header is believed that the bytes of the file do
not bear out.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, InputError, LabelError, ParameterError
from evergrow.core.escaping import one_line
from evergrow.core.files import atomic_path
from evergrow.core.record import (
    NOTHING,
    Between,
    Extra,
    from_document,
    record,
    to_document,
)
from evergrow.data.archives import open_zip, wrap_format_errors
from evergrow.data.items import (
    Dataset,
    Images,
    Samples,
    check_widths,
    concat_samples,
    join_blocks,
    listed,
)
from evergrow.data.readers import has_files, register_reader
from evergrow.data.shards import (
    Shard,
    Source,
    as_features,
    check_alike,
    check_finite,
    class_labels,
    where_of,
)
from evergrow.data.storage import RATIO, ROOM, Tree

SUFFIX = ".npz"
REQUIRED = ("X_train", "y_train", "X_test", "y_test")
_KEYS = {
    "train": (("X_train", "y_train"), ("X", "y"), ("features", "labels")),
    "test": (
        ("X_test", "y_test"),
        ("X", "y"),
        ("features", "labels"),
        ("X_train", "y_train"),
    ),
}
STAMP = "evergrow"
"""Name of the array that states kind, version and writer; files of others have none."""

_TEXTS = ("classes", "backbone", STAMP)
_FORMAT: Any = (
    np.lib.format
)  # which has no types for some of the Pythons that this runs on
_BLOCK = 8192
_LOCAL_HEADER = 30
_MOST_ARRAYS = 1000


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features and labels of a training and a test set, in the type they were stored in.

    Parameters
    ----------
    name : str
        Name for people and records; never a path.
    X_train, X_test : ndarray of shape (n, d), (m, d)
        Finite features.
    y_train, y_test : ndarray of shape (n,), (m,)
        Labels; test labels occur in training.
    class_names : tuple of str
        Names of integer labels 0, 1, ...; may be empty.
    backbone : mapping
        What computed the features, as plain values for records and files; may be empty.
    origin : str
        Fingerprint of the raw data that the features were computed from, where whoever
        computed them knows it.
    unknown : mapping
        Optional fields that a later evergrow wrote into the file, kept to be written
        again.
    whole : bool
        Whether there is no test set on purpose, because the data have none; only then
        ``X_test`` is empty.
    widths : tuple of int
        Columns of each block, where a row holds several side by side as a network gave
        them; :meth:`part` hands them on joined, at equal energy. Empty where rows are
        to be taken as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import FeatureSet
    >>> X, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> data = FeatureSet("toy", X, y, X, y)
    >>> data.part("train").labels[2:4].tolist()
    ['1', '1']
    """

    name: str
    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]
    class_names: tuple[str, ...] = ()
    backbone: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    widths: tuple[int, ...] = ()
    kind: ClassVar[str] = "features"
    layout: ClassVar[str] = "arrays"
    source: ClassVar[str] = ""
    notes: ClassVar[tuple[str, ...]] = ()
    cautions: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for part, empty in (("train", False), ("test", self.whole)):
            X = getattr(self, f"X_{part}")
            y = getattr(self, f"y_{part}")
            numbers = (
                isinstance(X, np.ndarray)
                and X.ndim == 2
                and X.dtype.kind == "f"
                and X.shape[1] > 0
            )
            if not numbers or (len(X) == 0) != empty:
                rows = "a non-empty"
                if empty:
                    rows = "empty where whole is true,"
                raise InputError(
                    f"X_{part} must be {rows} 2-D floating-point array, got {_described(X)}"
                )
            if (
                not isinstance(y, np.ndarray)
                or y.shape != X.shape[:1]
                or y.dtype.kind not in "biuU"
            ):
                raise LabelError(
                    f"y_{part} must hold {len(X)} integers or strings, got {_described(y)}"
                )
            check_finite(X, f"X_{part}")
        if self.X_train.shape[1] != self.X_test.shape[1]:
            raise InputError(
                f"X_test must have columns like X_train, got {_described(self.X_test)}"
            )
        check_widths("widths", self.widths, self.X_train.shape[1])
        unknown = np.setdiff1d(self.y_test, self.y_train)
        if len(unknown):
            raise LabelError(
                f"y_test must only hold labels of y_train, got {unknown[:5].tolist()} besides"
            )

    @property
    def n_classes(self) -> int:
        """Classes in the training set."""
        return len(np.unique(self.y_train))

    def part(self, part: str) -> Samples:
        """Return the samples of ``"train"``, ``"test"`` or ``"all"``; features without a test part are always whole."""
        if self.whole:
            wanted = ["train"]
        else:
            wanted = [name for name in ("train", "test") if part in (name, "all")]
        X = np.concatenate([getattr(self, f"X_{name}") for name in wanted])
        values = np.concatenate([getattr(self, f"y_{name}") for name in wanted])
        labels = np.array(
            [self.class_name(value) for value in values.tolist()], dtype=np.str_
        )
        features = join_blocks(as_features(X, self.name), self.widths)
        return Samples(
            "features",
            features=features,
            labels=labels,
            origin=self.backbone,
            widths=self.widths,
        )

    def class_name(self, label: Any) -> str:
        """Return the name of a label."""
        named = isinstance(label, int) and 0 <= label < len(self.class_names)
        if named:
            return self.class_names[label]
        return str(label)

    def describe(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        if self.backbone:
            backbone = {"backbone": dict(self.backbone)}
        else:
            backbone = {}
        return {
            "name": self.name,
            "n_train": len(self.y_train),
            "n_test": len(self.y_test),
            "n_features": int(self.X_train.shape[1]),
            "n_classes": self.n_classes,
            **backbone,
        }


def _described(array: Any) -> str:
    return f"shape {getattr(array, 'shape', ())} of {getattr(array, 'dtype', type(array).__name__)}"


@record("feature-set")
@dataclass(frozen=True)
class Stamp:
    """What a feature file states of itself: the widths of its blocks, and fields of a later evergrow."""

    widths: tuple[Annotated[int, Between(1)], ...] = ()
    extra: Extra = NOTHING


# -- files -----------------------------------------------------------------------------


def save_features(path: str | os.PathLike[str], data: FeatureSet) -> None:
    """Write a feature set to a file that :func:`load_features` reads, in one step.

    Parameters
    ----------
    path : path-like
        A ``.npz`` file.
    data : FeatureSet
        What to write; its backbone is written beside the arrays, for people.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow.data import FeatureSet, load_features, save_features
    >>> data = FeatureSet("toy", np.eye(2), np.array([0, 1]), np.eye(2), np.array([0, 1]), ("cat", "dog"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_features(f"{folder}/toy.npz", data)
    ...     load_features(f"{folder}/toy.npz").class_names
    ('cat', 'dog')
    """
    target = Path(path)
    if target.suffix != SUFFIX:
        raise ParameterError(f"feature file must end in {SUFFIX}, got {target.name!r}")
    arrays: dict[str, Any] = {
        "classes": np.array(data.class_names, dtype=np.str_),
        "backbone": np.array(json.dumps(dict(data.backbone))),
        STAMP: np.array(
            json.dumps(to_document(Stamp(data.widths, Extra(data.unknown))))
        ),
        **{name: getattr(data, name) for name in REQUIRED},
    }
    with atomic_path(target) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


# -- where arrays lie ------------------------------------------------------------------


class StoredArray(NamedTuple):
    """Where an array lies in a file.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : numpy.dtype
        Type of its values.
    offset : int
        First byte of its values, or -1 where they are not rows one after another and
        must be read whole.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def is_pixels(self) -> bool:
        """Whether rows are images."""
        return self.dtype == np.uint8 and len(self.shape) in (3, 4)


class ArrayFile:
    """The arrays of an NPZ file, and the texts beside them; only headers are read at first.

    Parameters
    ----------
    tree : Tree
        Where the file is.
    name : str
        Its name there.

    Raises
    ------
    FileFormatError
        If the file is damaged, holds pickled objects, or claims more than it holds.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._name = name
        self.title = tree.place(name)
        self._size = tree.size(name)
        self.arrays: dict[str, StoredArray] = {}
        self.texts: dict[str, str] = {}
        self.others: list[str] = []
        self.classes: tuple[str, ...] = ()  # names of labels 0, 1, ...
        with wrap_format_errors(self.title, "NPZ file of plain arrays"):
            self._index()

    def rows(self, key: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return rows of an array, and nothing else of the file where they can be had alone."""
        array = self.arrays[key]
        stop = array.shape[0] if stop is None else stop
        if array.offset < 0 or not array.shape:
            return _unpacked(self._tree, self._name, key)[start:stop]
        n_bytes = array.row_bytes
        first = array.offset + start * n_bytes
        count = (stop - start) * n_bytes
        if (
            self._tree.on_disk
        ):  # without a copy in between: files may be as large as memory
            body = np.fromfile(
                self._tree.root / self._name, np.uint8, count, offset=first
            )
        else:
            body = np.frombuffer(
                bytearray(self._tree.read(self._name, first, first + count)), np.uint8
            )
        if len(body) != count:
            raise FileFormatError(
                f"{self.title} must hold {array.shape[0]} rows of {key}, but it ends early"
            )
        return body.view(array.dtype).reshape((stop - start, *array.shape[1:]))

    def stated(
        self, width: int
    ) -> tuple[dict[str, Any], tuple[int, ...], dict[str, Any]]:
        """Return the backbone that the file states, the widths of its blocks, and fields of a later evergrow.

        Raises
        ------
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        stamp = Stamp()
        title = f"{self.title}: {STAMP}"
        if STAMP in self.texts:
            stamp = from_document(Stamp, parse_json(self.texts[STAMP], title), title)
        backbone = parse_json(
            self.texts.get("backbone", "{}"), f"{self.title}: backbone"
        )
        try:
            check_widths("widths", stamp.widths, width)
            if not isinstance(backbone, dict):
                raise InputError(
                    f"backbone must be an object, got {type(backbone).__name__}"
                )
        except InputError as error:
            raise FileFormatError(
                f"{self.title}: the stamp must fit the features: {error}"
            ) from error
        return backbone, stamp.widths, dict(stamp.extra.values)

    def _index(self) -> None:
        """Find out where the arrays lie, and read the texts."""
        known = {
            name for pairs in _KEYS.values() for pair in pairs for name in pair
        } | set(_TEXTS)
        with (
            self._tree.open(self._name, _BLOCK) as file,
            open_zip(file, self.title, _MOST_ARRAYS) as archive,
        ):
            found = {
                info.filename.removesuffix(".npy"): info for info in archive.infolist()
            }
            entries = {key: info for key, info in found.items() if key in known}
            self.others = [key for key in found if key not in known]
            if any(
                info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                for info in entries.values()
            ):
                raise ValueError(
                    "its arrays must be stored or deflated, as numpy does it"
                )
            limit = RATIO * self._size + ROOM
            if sum(info.file_size for info in entries.values()) > limit:
                raise ValueError(
                    f"its arrays must unpack to at most {limit} bytes, which is {RATIO} times the file"
                )
            for key, info in entries.items():
                with archive.open(info) as entry:
                    shape, columns_first, dtype, length = _header(
                        cast(BinaryIO, entry), info.filename, info.file_size
                    )
                if key in _TEXTS:
                    with archive.open(info) as entry:
                        value = np.asarray(
                            _FORMAT.read_array(
                                cast(BinaryIO, entry), allow_pickle=False
                            )
                        )
                    if key == "classes":
                        self.classes = tuple(str(item) for item in value.reshape(-1))
                    else:
                        self.texts[key] = str(value)
                    continue
                offset = -1
                if info.compress_type == zipfile.ZIP_STORED and not (
                    columns_first and len(shape) > 1
                ):
                    # The local header may have other extra fields than the directory.
                    local = self._tree.read(
                        self._name,
                        info.header_offset,
                        info.header_offset + _LOCAL_HEADER,
                    )
                    offset = (
                        info.header_offset
                        + _LOCAL_HEADER
                        + sum(struct.unpack("<HH", local[26:30]))
                        + length
                    )
                    if offset + math.prod(shape) * dtype.itemsize > self._size:
                        raise EOFError(f"{key} goes beyond the end of it")
                self.arrays[key] = StoredArray(shape, dtype, offset)


def _header(
    file: BinaryIO, name: str, size: int
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, order, type and length of the header of an array, which claims what the file has for it.

    Raises
    ------
    ValueError
        If it is no array of plain values, or claims another number of bytes.
    """
    version = _FORMAT.read_magic(file)
    readers = {
        (1, 0): _FORMAT.read_array_header_1_0,
        (2, 0): _FORMAT.read_array_header_2_0,
    }
    try:
        shape, columns_first, dtype = readers[version](file)
    except (
        Exception
    ) as error:  # numpy lets Python parse it, whose errors are of many kinds
        raise ValueError(
            f"{name} must begin with the header of an array: {one_line(str(error))}"
        ) from error
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"{name} must hold plain values, got {dtype}")
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(
            f"{name} must hold {shape} values of {dtype}, got another number of bytes"
        )
    return shape, columns_first, dtype, file.tell()


@lru_cache(maxsize=4)
def _unpacked(tree: Tree, name: str, key: str) -> NDArray[Any]:
    """Return an array that can only be had whole; the last ones are kept."""
    with (
        wrap_format_errors(tree.place(name), "NPZ file of plain arrays"),
        tree.open(name, 1 << 20) as file,
        np.load(
            file, allow_pickle=False
        ) as arrays,  # whose entries were counted when it was indexed
    ):
        return np.asarray(arrays[key])


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an NPY file.

    Raises
    ------
    FileFormatError
        If it is damaged, holds pickled objects, or claims more than it holds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.data.arrays import read_npy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder, "rows.npy"), np.eye(2))
    ...     read_npy(Path(folder, "rows.npy"))
    array([[1., 0.],
           [0., 1.]])
    """
    with (
        wrap_format_errors(str(path), "NPY file of plain values"),
        open(path, "rb") as file,
    ):
        _header(file, path.name, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return np.asarray(_FORMAT.read_array(file, allow_pickle=False))


# -- the source ------------------------------------------------------------------------


class ArraySource(Source):
    """Rows of the arrays ``X_train`` and ``y_train`` (or ``X`` and ``y``) of one file or many.

    Labels are integers or strings; ``classes`` names integers. Rows of bytes with two
    or three dimensions are images.
    """

    format = "arrays"
    suffixes = (SUFFIX,)

    def _open_file(self, name: str) -> ArrayFile:
        return ArrayFile(self.tree, name)

    @cached_property
    def kind(self) -> str:
        """Images where rows are bytes of two or three dimensions, and features elsewhere."""
        name = next(iter(self.files))
        if self._open(name).arrays[self._keys(name)[0][0]].is_pixels:
            return "image"
        return "features"

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block of features, as the first file states them; none where rows are one block."""
        return self._widths(next(iter(self.files)))

    def _widths(self, name: str) -> tuple[int, ...]:
        file = self._open(name)
        array = file.arrays[self._keys(name)[0][0]]
        if array.is_pixels or STAMP not in file.texts:
            return ()
        return file.stated(array.shape[1])[1]

    def _keys(self, name: str) -> list[tuple[str, str]]:
        """Return the arrays of samples and of labels that the part is in; a label array may be missing."""
        file = self._open(name)
        if self.options.part == "all":
            wanted = ("train", "test")
        else:
            wanted = (self.options.part,)
        chosen: list[tuple[str, str]] = []
        for part in wanted:
            there = [
                pair
                for pair in _KEYS[part]
                if pair[0] in file.arrays and 0 not in file.arrays[pair[0]].shape[:1]
            ]
            chosen += [pair for pair in there[:1] if pair not in chosen]
        if not chosen:
            held = listed([*file.arrays, *file.others], most=8)
            raise FileFormatError(
                f"{file.title} must hold an array X_train, X or features, got {held}"
            )
        for x, y in chosen:
            _check_arrays(file, x, y)
        return chosen

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        arrays = self._open(name).arrays
        first = None
        shards = []
        for x, y in self._keys(name):
            array = arrays[x]
            form = {"width": array.shape[1:], "pixels": array.is_pixels}
            form |= {"labels": y in arrays} if self.options.labelled else {}
            first = check_alike(self.tree, first, f"{name}: {x}", form)
            step = max(min(rows, size // max(array.row_bytes, 1)), 1)
            for start in range(0, array.shape[0], step):
                stop = min(start + step, array.shape[0])
                where = {
                    "file": name,
                    "array": x,
                    "labels": y,
                    "start": start,
                    "stop": stop,
                }
                shards.append(
                    Shard(0, stop - start, (stop - start) * array.row_bytes, where)
                )
        return form, shards

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the rows of a shard."""
        name, key, labels_key, start, stop = where_of(
            shard, file=str, array=str, labels=str, start=int, stop=int
        )
        file = self._open(name)
        if (
            key not in file.arrays
            or stop > file.arrays[key].shape[0]
            or stop - start != shard.rows
        ):
            raise FileFormatError(
                f"{file.title} must hold {stop} rows of {key}, as when the shards were made"
            )
        values = file.rows(key, start, stop)
        names = tuple(f"{name}[{row}]" for row in range(start, stop))
        labels = None
        if self.options.labelled and labels_key in file.arrays:
            known = dict(enumerate(file.classes))
            labels = class_labels(
                file.rows(labels_key, start, stop).tolist(), known, file.title
            )
        if file.arrays[key].is_pixels:
            return Samples(
                "image",
                Images(np.ascontiguousarray(values)),
                labels=labels,
                row_names=names,
            )
        widths = self._widths(name)
        features = join_blocks(as_features(values, file.title, start), widths)
        if STAMP in file.texts:
            origin = file.stated(features.shape[1])[0]
        else:
            origin = {}
        return Samples(
            "features",
            features=features,
            labels=labels,
            row_names=names,
            widths=widths,
            origin=origin,
        )

    def samples(self) -> Samples:
        """Return all samples of the part."""
        return replace(concat_samples(list(self.chunks(2**62))), row_names=())

    def dataset(self) -> Dataset | FeatureSet:
        """Return features as they are stored, or labelled images."""
        if len(self._every_file) > 1:
            return super().dataset()
        name = next(iter(self._every_file))
        file = self._open(name)
        train = next(
            (pair for pair in _KEYS["train"] if set(pair) <= file.arrays.keys()),
            REQUIRED[:2],
        )
        if {"X_test", "y_test"} & file.arrays.keys():
            pairs = [train, REQUIRED[2:]]
        else:
            pairs = [train]
        missing = [key for pair in pairs for key in pair if key not in file.arrays]
        if missing:
            raise FileFormatError(
                f"{file.title} must hold X_train, y_train or X, y, but it lacks {', '.join(missing)}"
            )
        parts = [(file.rows(x), file.rows(y)) for x, y in pairs]
        (X, y), (X_test, y_test) = (
            parts[0],
            parts[1] if len(parts) > 1 else (parts[0][0][:0], parts[0][1][:0]),
        )
        try:
            names = file.classes
            if file.arrays[train[0]].is_pixels:
                for (x_key, y_key), (_, labels) in zip(pairs, parts, strict=True):
                    _check_arrays(file, x_key, y_key)
                    class_labels(labels.tolist(), dict(enumerate(names)), file.title)
                if len(X_test):
                    test = (Images(X_test), y_test)
                else:
                    test = (None, ())
                return Dataset.of(Images(X), y, *test, names=names, layout="arrays")
            backbone, widths, unknown = file.stated(X.shape[1] if X.ndim == 2 else 0)
            whole = len(X_test) == 0 == len(y_test)
            return FeatureSet(
                Path(name).stem,
                X,
                y,
                X_test,
                y_test,
                names,
                backbone,
                "",
                unknown,
                whole,
                widths,
            )
        except (InputError, LabelError) as error:
            raise FileFormatError(
                f"{file.title} must hold labelled features or images: {error}"
            ) from error


register_reader(
    "arrays",
    suffixes=(SUFFIX,),
    fits=lambda tree: not tree.folders() and has_files(tree, SUFFIX),
    rank=40,
)(ArraySource)


def _check_arrays(file: ArrayFile, x: str, y: str) -> None:
    samples = file.arrays[x]
    labels = file.arrays.get(y)
    vectors = (
        len(samples.shape) == 2 and samples.shape[1] > 0 and samples.dtype.kind in "fiu"
    )
    if not vectors and not samples.is_pixels:
        raise FileFormatError(
            f"{file.title}: {x} must be feature vectors or bytes of images, got {_described(samples)}"
        )
    if labels is not None and (
        labels.shape != samples.shape[:1] or labels.dtype.kind not in "biuU"
    ):
        n = samples.shape[0]
        raise FileFormatError(
            f"{file.title}: {y} must hold {n} integers or strings, got {_described(labels)}"
        )
