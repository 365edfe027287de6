"""Array files: NPZ and safetensors with named arrays, read without unpickling and within the size of the file."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from evergrow.core.archive import Archive, register_kind
from evergrow.core.documents import open_document, parse_json
from evergrow.core.errors import FileFormatError, InputError
from evergrow.core.escaping import one_line
from evergrow.core.feature_blocks import check_widths
from evergrow.core.files import atomic_path
from evergrow.core.version import __version__

_FORMAT: Any = np.lib.format  # which has no types for some of the Pythons that this runs on

SUFFIXES = (".npz", ".safetensors")
REQUIRED = ("X_train", "y_train", "X_test", "y_test")
UNDIVIDED = (("X", "y"), ("features", "labels"))
"""Names of the arrays of a file without a test set, beside the first two of those."""
NAMES = (*REQUIRED, *(name for pair in UNDIVIDED for name in pair))

STAMP = "evergrow"
"""Name of the array or metadata entry that states kind, version and writer; files of 0.1 and of others have none."""

_RATIO, _ROOM = 100, 64 * 2**20
"""Compressed arrays may unpack to so many times the file, and so many bytes; real ones do not come near."""


DAMAGE = (
    *(ValueError, TypeError, OSError, EOFError, KeyError, IndexError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""What the readers of archives and array headers raise where bytes are not what they should be."""


def _stamped(old: Archive) -> Archive:
    """Return the description of a file without a stamp, which version 1 is, as version 2 has it."""
    return Archive(old.kind, old.meta, version=2)


KIND = register_kind("feature-set", 2, since="0.1", migrations={1: _stamped})
"""Version 1 has no stamp, so that any NPZ file with the four arrays is one; evergrow 0.1 reads version 2 too."""


@dataclass(frozen=True)
class ArrayFile:
    """The contents of an array file.

    Parameters
    ----------
    arrays : dict of str to ndarray
        The four arrays.
    class_names : tuple of str
        Names of labels 0, 1, ...; may be empty.
    backbone : dict
        What computed the features; may be empty.
    unknown : dict
        Optional fields of the stamp that a later evergrow wrote, kept to be written again.
    widths : tuple of int
        Columns of each block of features; empty where rows are one block.
    """

    arrays: dict[str, NDArray[Any]]
    class_names: tuple[str, ...]
    backbone: dict[str, Any]
    unknown: dict[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArrayHeader:
    """What the header of an array in an NPZ file says.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : numpy.dtype
        Type of its values.
    columns_first : bool
        Whether columns lie one after another instead of rows.
    length : int
        Bytes of the header itself.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns_first: bool
    length: int


def read_arrays(path: Path) -> ArrayFile:
    """Read an array file, features or images.

    Raises
    ------
    FileFormatError
        If it is damaged, lacks an array, holds pickled objects, or claims more than it holds.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    arrays, texts = _read_npz(path) if path.suffix.lower() == ".npz" else _read_safetensors(path)
    arrays = _with_empty_test(arrays)
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise FileFormatError(f"{path} must hold {', '.join(REQUIRED)} or X, y, but it lacks {', '.join(missing)}")
    stamp = parse_json(texts[STAMP], f"{path}: {STAMP}") if STAMP in texts else {"version": 1}
    if not isinstance(stamp, dict) or stamp.get("kind", KIND.name) != KIND.name:
        raise FileFormatError(f"{path} must be a {KIND.name!r}, got a file that says to be another")
    contents = {key: value for key, value in stamp.items() if key not in ("kind", "version", "writer")}
    contents["classes"] = parse_json(texts.get("classes", "[]"), f"{path}: classes")
    contents["backbone"] = parse_json(texts.get("backbone", "{}"), f"{path}: backbone")
    given = open_document(contents, KIND, str(path), version=stamp.get("version"), writer=stamp.get("writer"))
    widths = tuple(given.integers("widths", low=1, default=[]))
    return ArrayFile(arrays, tuple(given.texts("classes")), given.mapping("backbone"), given.unknown(), widths)


def stated_widths(stamp: str, X: NDArray[Any]) -> tuple[int, ...]:
    """Return the widths of blocks that a file's stamp states for its features; none where it states none.

    Raises
    ------
    FileFormatError
        If they are no such widths.
    """
    values = parse_json(stamp, STAMP)
    widths = values.get("widths", []) if isinstance(values, dict) else []
    try:
        return check_widths("widths", widths, X.shape[-1] if X.ndim else 0)
    except InputError as error:
        raise FileFormatError(f"the stamp of a feature file must fit its features: {error}") from error


def _with_empty_test(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, with empty ones where it has no test set, under the names of a file that has one."""
    for X, y in UNDIVIDED:
        if {X, y} <= arrays.keys() and not set(REQUIRED) & arrays.keys():
            arrays = {"X_train": arrays[X], "y_train": arrays[y]}
    if not {"X_train", "y_train"} <= arrays.keys() or {"X_test", "y_test"} & arrays.keys():
        return arrays
    return {**arrays, "X_test": arrays["X_train"][:0], "y_test": arrays["y_train"][:0]}


def write_arrays(path: Path, file: ArrayFile) -> None:
    """Write an array file in one step; a safetensors file takes numbers only."""
    blocks = {"widths": list(file.widths)} if file.widths else {}
    stamp = json.dumps({**file.unknown, **blocks, "kind": KIND.name, "version": KIND.version, "writer": __version__})
    about = json.dumps(file.backbone)
    if path.suffix == ".npz":
        names = np.array(file.class_names, dtype=np.str_)
        with atomic_path(path) as temporary, open(temporary, "wb") as target:
            entries = {"classes": names, "backbone": np.array(about), STAMP: np.array(stamp), **file.arrays}
            np.savez(target, **cast("Mapping[str, Any]", entries))
        return
    metadata = {"classes": json.dumps(list(file.class_names)), "backbone": about, STAMP: stamp}
    with atomic_path(path) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in file.arrays.items()}, temporary, metadata)


# -- NPZ ------------------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return those arrays that are there, and the texts beside them."""
    arrays = read_npz(path, (*NAMES, "classes", "backbone", STAMP))
    texts = {name: str(arrays.pop(name)) for name in ("backbone", STAMP) if name in arrays}
    if "classes" in arrays:
        texts["classes"] = json.dumps([str(item) for item in arrays.pop("classes").reshape(-1)])
    return arrays, texts


def array_entries(archive: zipfile.ZipFile, names: Iterable[str], size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive of so many bytes by the name of their array.

    Raises
    ------
    ValueError
        If they unpack to far more than the archive holds, or are packed in a way that numpy does not use.
    """
    listed = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    entries = {name: listed[name] for name in names if name in listed}
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in entries.values()):
        raise ValueError("its arrays must be stored or deflated, as numpy does it")
    limit = _RATIO * size + _ROOM
    if sum(info.file_size for info in entries.values()) > limit:
        raise ValueError(f"its arrays must unpack to at most {limit} bytes, which is {_RATIO} times the file")
    return entries


def entry_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    """Return the header of an array, which claims what the archive has for it, so that no claim is ever allocated.

    Raises
    ------
    ValueError
        If it is no array of plain values, or claims another number of bytes.
    """
    with archive.open(info) as file:
        return _header(cast(BinaryIO, file), info.filename, info.file_size)


def _header(file: BinaryIO, name: str, size: int) -> ArrayHeader:
    """Return the header at the beginning of so many bytes; see :func:`entry_header`."""
    version = _FORMAT.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} must be an array of format 1.0 or 2.0, got {version}")
    read = _FORMAT.read_array_header_1_0 if version == (1, 0) else _FORMAT.read_array_header_2_0
    try:
        shape, columns_first, dtype = read(file)
    except Exception as error:  # numpy lets Python parse it, whose errors are of many kinds
        raise ValueError(f"{name} must begin with the header of an array: {one_line(str(error))}") from error
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"{name} must hold plain values, got {dtype}")
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"{name} must hold {shape} values of {dtype}, got another number of bytes")
    return ArrayHeader(shape, dtype, columns_first, file.tell())


def read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Return an array of an archive, whose header is checked before anything is allocated."""
    entry_header(archive, info)
    with archive.open(info) as file:
        return np.asarray(_FORMAT.read_array(cast(BinaryIO, file), allow_pickle=False))


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an NPY file.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    FileFormatError
        If it is damaged, holds pickled objects, or claims more than it holds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.data.array_files import read_npy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder, "rows.npy"), np.eye(2))
    ...     read_npy(Path(folder, "rows.npy"))
    array([[1., 0.],
           [0., 1.]])
    """
    try:
        with open(path, "rb") as file:
            _header(file, path.name, os.fstat(file.fileno()).st_size)
            file.seek(0)
            return np.asarray(_FORMAT.read_array(file, allow_pickle=False))
    except DAMAGE as error:
        raise FileFormatError(f"{path} must be a whole NPY file of plain values: {error}") from error


def read_npz(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return those of the named arrays that an NPZ file has, and an empty dictionary if it has none of them.

    Parameters
    ----------
    path : Path
        The file.
    names : iterable of str
        Arrays that are wanted; all others are not looked at.

    Raises
    ------
    FileFormatError
        If it is damaged, holds pickled objects, or claims more than it holds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.data.array_files import read_npz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "rows.npz"), X=np.zeros(2), other=np.ones(3))
    ...     read_npz(Path(folder, "rows.npz"), ["X", "y"])
    {'X': array([0., 0.])}
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = array_entries(archive, names, path.stat().st_size)
            return {name: read_entry(archive, entry) for name, entry in entries.items()}
    except DAMAGE as error:
        raise FileFormatError(f"{path} must be a whole NPZ file of plain arrays: {error}") from error


# -- safetensors ----------------------------------------------------------------------------------------------


def _read_safetensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            texts = dict(file.metadata() or {})
            for key in set(file.keys()) & set(NAMES):
                tensor = file.get_tensor(key)
                # numpy has no bfloat16; float32 holds every one of its values.
                wide = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
                arrays[key] = wide.numpy()
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise FileFormatError(f"{path} must be a whole safetensors file of plain numbers: {error}") from error
    return arrays, texts
