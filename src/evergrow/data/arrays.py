"""Labelled features, or images as pixels, in NPZ files; read by ranges of rows.

Nothing is unpickled. Sizes stated in headers are checked against the bytes of the file.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, InputError, LabelError, ParameterError
from evergrow.core.escaping import one_line, quote_names
from evergrow.core.files import StrPath, atomic_path
from evergrow.core.record import (
    NOTHING,
    Between,
    Extra,
    from_document,
    record,
    to_document,
)
from evergrow.data.archives import open_zip, wrap_format_errors
from evergrow.data.class_labels import check_test_classes, class_labels
from evergrow.data.feature_blocks import as_features, check_widths, join_blocks
from evergrow.data.items import Dataset, Images, Samples, concat_samples
from evergrow.data.readers import has_files, register_reader
from evergrow.data.shards import Shard, Source, check_same_form, where_of
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
"""Pairs of arrays with samples and labels; the first pair in a file is used.

If there is no test part, all rows are the test part, too.
"""

STAMP = "evergrow"
"""Name of the array with kind, version and writer in files written by evergrow."""

_DESCRIPTIONS = ("classes", "blocks", "backbone", STAMP)
# numpy.lib.format has no type annotations in some of the supported versions.
_FORMAT: Any = np.lib.format
_READ_BYTES = 8192
"""Bytes of a remote file that are fetched at a time while headers are read."""

_LOCAL_HEADER_BYTES = 30
"""Length of a local header of a zip, without name and extra fields."""

_MAX_ARRAYS = 1000


def _described(array: Any) -> str:
    """Return shape and type of an array for messages."""
    shape = getattr(array, "shape", ())
    dtype = getattr(array, "dtype", type(array).__name__)
    return f"shape {shape} of {dtype}"


@record("feature-set")
@dataclass(frozen=True)
class Stamp:
    """Metadata of a feature file: block widths, and fields of a later evergrow."""

    widths: tuple[Annotated[int, Between(1)], ...] = ()
    extra: Extra = NOTHING


# -- files -----------------------------------------------------------------------------


def save_features(path: StrPath, data: Dataset) -> None:
    """Write features and labels to a file for :func:`load_features`, atomically.

    Parameters
    ----------
    path : path-like
        A ``.npz`` file.
    data : Dataset
        The features. Their backbone is written as a separate JSON text.

    Raises
    ------
    InputError
        If the data are images or texts.
    LabelError
        If a class occurs in the test part only.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow.data import Dataset, load_features, save_features
    >>> data = Dataset.of(np.eye(8), ["cat", "dog"] * 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_features(f"{folder}/toy.npz", data)
    ...     load_features(f"{folder}/toy.npz").class_names
    ('cat', 'dog')
    """
    target = Path(path)
    if target.suffix != SUFFIX:
        raise ParameterError(f"feature file must end in {SUFFIX}, got {target.name!r}")
    if data.test is not None:
        check_test_classes(data.class_names, data.test.required_labels().tolist())
    # Joined features are read again as they are: as one block.
    widths = () if data.train.joined else data.train.widths
    stamp = to_document(Stamp(widths, Extra(data.unknown)))
    arrays: dict[str, Any] = {
        "classes": np.array(data.class_names, dtype=np.str_),
        "backbone": np.array(json.dumps(dict(data.train.backbone))),
        STAMP: np.array(json.dumps(stamp)),
        **{name: getattr(data, name) for name in REQUIRED},
    }
    with atomic_path(target) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


# -- reading ---------------------------------------------------------------------------


class StoredArray(NamedTuple):
    """Position of an array in a file.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : numpy.dtype
        Type of the values.
    offset : int
        First byte of the values, or -1 if rows are not contiguous in the file, so that
        the array must be read completely.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def is_pixels(self) -> bool:
        """Whether rows are images."""
        return self.dtype == np.uint8 and len(self.shape) in (3, 4)


class FileMetadata(NamedTuple):
    """Metadata of a feature file: backbone, widths of blocks, and unknown fields."""

    backbone: dict[str, Any]
    widths: tuple[int, ...]
    unknown: dict[str, Any]


class ArrayFile:
    """Arrays and texts of an NPZ file. Opening it reads only headers and texts.

    Its attributes are ``arrays`` and ``texts`` by name, ``class_names``, ``blocks``,
    the widths in its array of that name, and ``others``, the names of unused arrays.

    Parameters
    ----------
    tree : Tree
        Folder of the file.
    name : str
        Name of the file in the folder.

    Raises
    ------
    FileFormatError
        If the file is damaged, holds pickled objects, or states a wrong size.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._name = name
        self.title = tree.display_name(name)
        self._size = tree.size(name)
        self.arrays: dict[str, StoredArray] = {}
        self.texts: dict[str, str] = {}
        self.others: list[str] = []
        self.class_names: tuple[str, ...] = ()
        self.blocks: tuple[int, ...] = ()
        with wrap_format_errors(self.title, "NPZ file of plain arrays"):
            self._index()

    def rows(self, key: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return rows of an array, and read only these if they are contiguous."""
        array = self.arrays[key]
        stop = array.shape[0] if stop is None else stop
        if array.offset < 0 or not array.shape:
            return _unpacked(self._tree, self._name, key)[start:stop]
        first = array.offset + start * array.row_bytes
        n_bytes = (stop - start) * array.row_bytes
        if self._tree.on_disk:
            # Read without an intermediate copy: files can be as large as memory.
            path = self._tree.root / self._name
            body = np.fromfile(path, np.uint8, n_bytes, offset=first)
        else:
            fetched = self._tree.read(self._name, first, first + n_bytes)
            body = np.frombuffer(bytearray(fetched), np.uint8)
        if len(body) != n_bytes:
            raise FileFormatError(
                f"{self.title} must hold {array.shape[0]} rows of {key}, "
                "but it ends early"
            )
        return body.view(array.dtype).reshape((stop - start, *array.shape[1:]))

    def metadata(self, width: int) -> FileMetadata:
        """Return the metadata of a file of ``width`` feature columns.

        They are empty if another program wrote the file.

        Raises
        ------
        NewerSchemaError
            If a newer evergrow wrote the file.
        FileFormatError
            If the metadata are damaged or do not match the features.
        """
        stamp = Stamp()
        title = f"{self.title}: {STAMP}"
        if STAMP in self.texts:
            stamp = from_document(Stamp, parse_json(self.texts[STAMP], title), title)
        backbone_json = self.texts.get("backbone", "{}")
        backbone = parse_json(backbone_json, f"{self.title}: backbone")
        widths = stamp.widths or self.blocks
        try:
            check_widths("blocks", widths, width)
            if not isinstance(backbone, dict):
                raise InputError(
                    f"backbone must be an object, got {type(backbone).__name__}"
                )
        except InputError as error:
            raise FileFormatError(
                f"{self.title}: the metadata must match the features: {error}"
            ) from error
        return FileMetadata(backbone, widths, dict(stamp.extra.values))

    def _index(self) -> None:
        """Fill the attributes: find the arrays in the file, and read the texts."""
        pairs = [pair for pairs in _KEYS.values() for pair in pairs]
        known = {name for pair in pairs for name in pair} | set(_DESCRIPTIONS)
        with (
            self._tree.open(self._name, _READ_BYTES) as file,
            open_zip(file, self.title, _MAX_ARRAYS) as archive,
        ):
            entries = {}
            for info in archive.infolist():
                key = info.filename.removesuffix(".npy")
                if key in known:
                    entries[key] = info
                elif key not in self.others:
                    self.others.append(key)
            self._check_entries(entries.values())
            for key, info in entries.items():
                if key in _DESCRIPTIONS:
                    self._read_text(archive, key, info)
                else:
                    self.arrays[key] = self._locate(archive, key, info)

    def _check_entries(self, entries: Collection[zipfile.ZipInfo]) -> None:
        """Refuse unusual compression, and entries that would unpack to far too much."""
        usual = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if any(info.compress_type not in usual for info in entries):
            raise ValueError("its arrays must be stored or deflated, as numpy does it")
        limit = RATIO * self._size + ROOM
        if sum(info.file_size for info in entries) > limit:
            raise ValueError(
                f"its arrays must unpack to at most {limit} bytes, which is {RATIO} "
                "times the file"
            )

    def _read_text(
        self, archive: zipfile.ZipFile, key: str, info: zipfile.ZipInfo
    ) -> None:
        """Read a small array into ``class_names``, ``blocks`` or ``texts``."""
        with archive.open(info) as entry:
            read_npy_header(cast(BinaryIO, entry), info.filename, info.file_size)
        with archive.open(info) as entry:
            array = _FORMAT.read_array(cast(BinaryIO, entry), allow_pickle=False)
        value = np.asarray(array)
        if key == "classes":
            self.class_names = tuple(str(name) for name in value.reshape(-1))
        elif key == "blocks":
            if value.dtype.kind not in "iu":
                raise ValueError(f"blocks must be whole numbers, got {value.dtype}")
            self.blocks = tuple(value.reshape(-1).tolist())
        else:
            self.texts[key] = str(value)

    def _locate(
        self, archive: zipfile.ZipFile, key: str, info: zipfile.ZipInfo
    ) -> StoredArray:
        """Return type, shape and position of an array, from its headers only."""
        with archive.open(info) as entry:
            header = read_npy_header(
                cast(BinaryIO, entry), info.filename, info.file_size
            )
        by_columns = header.is_fortran and len(header.shape) > 1
        if info.compress_type != zipfile.ZIP_STORED or by_columns:
            return StoredArray(header.shape, header.dtype, -1)
        # The values follow the local header of the entry, its name and extra fields,
        # and the NPY header. Extra fields can differ from those of the directory.
        start = info.header_offset
        local = self._tree.read(self._name, start, start + _LOCAL_HEADER_BYTES)
        name_and_extra = sum(struct.unpack("<HH", local[26:30]))
        offset = start + _LOCAL_HEADER_BYTES + name_and_extra + header.length
        if offset + math.prod(header.shape) * header.dtype.itemsize > self._size:
            raise EOFError(f"{key} goes beyond the end of it")
        return StoredArray(header.shape, header.dtype, offset)


class NpyHeader(NamedTuple):
    """Header of an NPY file: shape, order and type of the array, and its own length."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    length: int


def read_npy_header(file: BinaryIO, name: str, size: int) -> NpyHeader:
    """Read the header of an NPY file of ``size`` bytes.

    Raises
    ------
    ValueError
        If the array does not hold plain values, or the header states another size.
    """
    version = _FORMAT.read_magic(file)
    readers = {
        (1, 0): _FORMAT.read_array_header_1_0,
        (2, 0): _FORMAT.read_array_header_2_0,
    }
    try:
        shape, is_fortran, dtype = readers[version](file)
    except Exception as error:  # numpy evaluates the header, which can raise anything
        raise ValueError(
            f"{name} must begin with the header of an array: {one_line(str(error))}"
        ) from error
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"{name} must hold plain values, got {dtype}")
    n_bytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or n_bytes != size - file.tell():
        raise ValueError(
            f"{name} must hold {shape} values of {dtype}, got another number of bytes"
        )
    return NpyHeader(shape, is_fortran, dtype, file.tell())


@lru_cache(maxsize=4)
def _unpacked(tree: Tree, name: str, key: str) -> NDArray[Any]:
    """Return an array that must be read completely; the last ones are cached."""
    with (
        wrap_format_errors(tree.display_name(name), "NPZ file of plain arrays"),
        tree.open(name, 1 << 20) as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return np.asarray(arrays[key])


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an NPY file.

    Raises
    ------
    FileFormatError
        If it is damaged, holds pickled objects, or states a wrong size.

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
        read_npy_header(file, path.name, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return np.asarray(_FORMAT.read_array(file, allow_pickle=False))


# -- the source ------------------------------------------------------------------------


class ArraySource(Source):
    """Rows of the arrays ``X_train`` and ``y_train`` (or ``X`` and ``y``) of NPZ files.

    Labels are integers or strings; the array ``classes`` holds names of integers.
    Arrays of bytes with three or four dimensions are images.
    """

    format = "arrays"
    suffixes = (SUFFIX,)

    def _open_file(self, name: str) -> ArrayFile:
        return ArrayFile(self.tree, name)

    @cached_property
    def kind(self) -> str:
        """Kind of the samples in the first file: ``"image"`` or ``"features"``."""
        name = next(iter(self.files))
        is_pixels = self._open(name).arrays[self._keys(name)[0][0]].is_pixels
        return "image" if is_pixels else "features"

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block in the first file; empty for a single block."""
        return self._widths(next(iter(self.files)))

    def _widths(self, name: str) -> tuple[int, ...]:
        """Return the widths of blocks that a file states, or nothing."""
        file: ArrayFile = self._open(name)
        array = file.arrays[self._keys(name)[0][0]]
        if array.is_pixels:
            return ()
        return file.metadata(array.shape[1]).widths

    def _keys(self, name: str) -> list[tuple[str, str]]:
        """Return the arrays of samples and labels that hold the selected part.

        The label array of a pair can be missing from the file.
        """
        file = self._open(name)
        part = self.options.part
        chosen: list[tuple[str, str]] = []
        for wanted in ("train", "test") if part == "all" else (part,):
            for pair in _KEYS[wanted]:
                if pair[0] in file.arrays and 0 not in file.arrays[pair[0]].shape[:1]:
                    if pair not in chosen:
                        chosen.append(pair)
                    break
        if not chosen:
            held = quote_names([*file.arrays, *file.others], most=8)
            raise FileFormatError(
                f"{file.title} must hold an array X_train, X or features, got {held}"
            )
        for x, y in chosen:
            _check_arrays(file, x, y)
        return chosen

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        """Return the form and the shards of a file: rows of one array each.

        The arrays of a file, such as ``X_train`` and ``X_test``, have one form.
        """
        arrays = self._open(name).arrays
        form: dict[str, Any] = {}
        first_form = None
        shards = []
        for key, labels_key in self._keys(name):
            array = arrays[key]
            form = {"width": array.shape[1:], "pixels": array.is_pixels}
            if self.options.labelled:
                form["labels"] = labels_key in arrays
            title = f"{name}: {key}"
            first_form = check_same_form(self.tree, first_form, title, form)
            rows_per_shard = max(min(rows, size // max(array.row_bytes, 1)), 1)
            for start in range(0, array.shape[0], rows_per_shard):
                stop = min(start + rows_per_shard, array.shape[0])
                n_rows = stop - start
                where = {
                    "file": name,
                    "array": key,
                    "labels": labels_key,
                    "start": start,
                    "stop": stop,
                }
                shards.append(Shard(0, n_rows, n_rows * array.row_bytes, where))
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
                f"{file.title} must hold {stop} rows of {key}, as when the shards were "
                "made"
            )
        values = file.rows(key, start, stop)
        names = tuple(f"{name}[{row}]" for row in range(start, stop))
        labels = None
        if self.options.labelled and labels_key in file.arrays:
            known = dict(enumerate(file.class_names))
            stored = file.rows(labels_key, start, stop).tolist()
            labels = class_labels(stored, known, file.title)
        if file.arrays[key].is_pixels:
            images = Images(np.ascontiguousarray(values))
            return Samples("image", images, labels=labels, row_names=names)
        features = as_features(values, file.title, start)
        metadata = file.metadata(features.shape[1])
        return Samples(
            "features",
            features=join_blocks(features, metadata.widths),
            labels=labels,
            row_names=names,
            widths=metadata.widths,
            backbone=metadata.backbone,
        )

    def samples(self) -> Samples:
        """Return all samples of the selected part."""
        return replace(concat_samples(list(self.chunks(2**62))), row_names=())

    def dataset(self) -> Dataset:
        """Return features in their stored types, or labelled images.

        Several files are read as :meth:`Source.dataset` does.
        """
        if len(self._every_file) > 1:
            return super().dataset()
        name = next(iter(self._every_file))
        file = self._open(name)
        present = (pair for pair in _KEYS["train"] if set(pair) <= file.arrays.keys())
        train = next(present, ("X_train", "y_train"))
        pairs = [train]
        if {"X_test", "y_test"} & file.arrays.keys():
            pairs.append(("X_test", "y_test"))
        missing = [key for pair in pairs for key in pair if key not in file.arrays]
        if missing:
            raise FileFormatError(
                f"{file.title} must hold X_train, y_train or X, y, "
                f"but it lacks {', '.join(missing)}"
            )
        try:
            return _dataset(Path(name).stem, file, pairs)
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
    """Raise unless an array holds features or images, and its labels match it."""
    samples = file.arrays[x]
    labels = file.arrays.get(y)
    is_matrix = (
        len(samples.shape) == 2 and samples.shape[1] > 0 and samples.dtype.kind in "fiu"
    )
    if not is_matrix and not samples.is_pixels:
        raise FileFormatError(
            f"{file.title}: {x} must be feature vectors or bytes of images, "
            f"got {_described(samples)}"
        )
    if labels is not None and (
        labels.shape != samples.shape[:1] or labels.dtype.kind not in "biuU"
    ):
        raise FileFormatError(
            f"{file.title}: {y} must hold {samples.shape[0]} integers or strings, "
            f"got {_described(labels)}"
        )


def _dataset(name: str, file: ArrayFile, pairs: list[tuple[str, str]]) -> Dataset:
    """Return the samples in the arrays of one or two pairs (samples, labels)."""
    known = dict(enumerate(file.class_names))
    parts: list[Any] = []
    for samples_key, labels_key in pairs:
        _check_arrays(file, samples_key, labels_key)
        labels = file.rows(labels_key)
        class_labels(labels.tolist(), known, file.title)  # checks them
        if parts and not len(labels):
            break  # an empty test part
        values: Any = file.rows(samples_key)
        if file.arrays[samples_key].is_pixels:
            values = Images(values)
        parts += [values, labels]
    metadata = FileMetadata({}, (), {})
    if not file.arrays[pairs[0][0]].is_pixels:
        metadata = file.metadata(parts[0].shape[1])
    return Dataset.of(
        *parts,
        names=file.class_names,
        backbone=metadata.backbone,
        widths=metadata.widths,
        unknown=metadata.unknown,
        name=name,
        layout="arrays",
    )
