"""Where arrays lie in NPZ and safetensors files, so that rows of them can be read without the rest."""

from __future__ import annotations

import json
import math
import struct
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evergrow.core.documents import parse_json
from evergrow.core.errors import EvergrowError, FileFormatError
from evergrow.core.escaping import one_line
from evergrow.data.array_files import DAMAGE, STAMP, array_entries, entry_header, read_entry
from evergrow.data.places import Place

TEXTS = ("classes", "backbone", STAMP)

_KEPT = 1 << 30
"""Bytes of unpacked arrays that a process keeps: a compressed one can only be had whole."""

_WINDOW = 8192
"""Bytes that are read at a time where headers are: those of one array lie close together."""

_LONGEST_HEADER = 100 * 2**20
_LOCAL_HEADER = 30
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


@dataclass(frozen=True)
class StoredArray:
    """Where an array lies in a file.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : numpy.dtype
        Type of its values; that of the bits where ``halved``.
    offset : int
        First byte of its values, or -1 where they are not rows one after another and must be read whole.
    halved : bool
        Whether values are bfloat16, which numpy does not have.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    halved: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.halved or self.dtype.kind == "f"


@dataclass(frozen=True)
class ArrayIndex:
    """The arrays of a file, and the texts beside them.

    Parameters
    ----------
    arrays : mapping of str to StoredArray
        Where each is.
    texts : mapping of str to str
        ``classes`` (a JSON list), ``backbone`` and the stamp, where they are there.
    """

    arrays: Mapping[str, StoredArray]
    texts: Mapping[str, str] = field(default_factory=dict)

    def class_names(self, title: str) -> dict[int, str]:
        """Return the names of labels 0, 1, ..."""
        names = parse_json(self.texts.get("classes", "[]"), f"{title}: classes")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FileFormatError(f"{title}: classes must be a list of names")
        return dict(enumerate(names))


def index_arrays(place: Place, name: str, size: int) -> ArrayIndex:
    """Return where the arrays of a file are; reads headers only.

    Raises
    ------
    FileFormatError
        If the file is damaged, holds pickled objects, or claims more than it holds.
    """
    read, form = (_index_npz, "NPZ") if name.lower().endswith(".npz") else (_index_safetensors, "safetensors")
    try:
        return read(place, name, size)
    except EvergrowError:
        raise
    except (*DAMAGE, RecursionError) as error:
        raise FileFormatError(
            f"{place.title(name)} must be a whole {form} file of plain arrays: {one_line(str(error))}"
        ) from error


def read_rows(place: Place, name: str, key: str, array: StoredArray, start: int, stop: int) -> NDArray[Any]:
    """Return rows of an array, and nothing else of the file where they can be had alone.

    Raises
    ------
    FileFormatError
        If the file ends before them.
    """
    if array.offset < 0:
        return _UNPACKED.rows(place, name, key, start, stop)
    n_bytes = array.row_bytes
    body = place.read(name, array.offset + start * n_bytes, array.offset + stop * n_bytes)
    if len(body) != (stop - start) * n_bytes:
        raise FileFormatError(f"{place.title(name)} must hold {array.shape[0]} rows of {key}, but it ends early")
    values = np.frombuffer(body, dtype=array.dtype).reshape((stop - start, *array.shape[1:]))
    if array.halved:  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


# -- NPZ ------------------------------------------------------------------------------------------------------


def _index_npz(place: Place, name: str, size: int) -> ArrayIndex:
    with zipfile.ZipFile(cast(Any, place.open(name, size, window=_WINDOW))) as archive:
        names = {info.filename.removesuffix(".npy") for info in archive.infolist()}
        entries = array_entries(archive, names, size)
        arrays, texts = {}, {}
        for key, info in entries.items():
            if key in TEXTS:
                value = read_entry(archive, info)
                listed = json.dumps([str(item) for item in value.reshape(-1)]) if key == "classes" else str(value)
                texts[key] = listed
                continue
            header = entry_header(archive, info)
            whole = info.compress_type != zipfile.ZIP_STORED or (header.columns_first and len(header.shape) > 1)
            offset = -1 if whole else _data_offset(place, name, info) + header.length
            if not whole and offset + math.prod(header.shape) * header.dtype.itemsize > size:
                raise EOFError(f"{key} goes beyond the end of it")
            arrays[key] = StoredArray(header.shape, header.dtype, offset)
    return ArrayIndex(arrays, texts)


def _data_offset(place: Place, name: str, info: zipfile.ZipInfo) -> int:
    """Return where the bytes of an entry begin: its local header may have other extra fields than the directory."""
    header = place.read(name, info.header_offset, info.header_offset + _LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return info.header_offset + _LOCAL_HEADER + int(name_length) + int(extra_length)


class _Unpacked:
    """Arrays that were read whole, the last used ones, up to a number of bytes."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[tuple[str, str, str], NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, place: Place, name: str, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return rows of an array that is unpacked at most once while it is kept."""
        place_key = (place.address, name, key)
        with self._lock:
            if place_key not in self._arrays:
                self._arrays[place_key] = self._read(place, name, key)
                while len(self._arrays) > 1 and sum(array.nbytes for array in self._arrays.values()) > _KEPT:
                    self._arrays.popitem(last=False)
            self._arrays.move_to_end(place_key)
            return np.array(self._arrays[place_key][start:stop])

    def _read(self, place: Place, name: str, key: str) -> NDArray[Any]:
        size = place.size(name)
        try:
            with zipfile.ZipFile(cast(Any, place.open(name, size, window=1 << 20))) as archive:
                return read_entry(archive, array_entries(archive, [key], size)[key])
        except EvergrowError:
            raise
        except DAMAGE as error:
            raise FileFormatError(
                f"{place.title(name)} must be a whole NPZ file of plain arrays: {one_line(str(error))}"
            ) from error


_UNPACKED = _Unpacked()


# -- safetensors ----------------------------------------------------------------------------------------------


def _index_safetensors(place: Place, name: str, size: int) -> ArrayIndex:
    """Parse the header by its published layout: its length in 8 bytes, then JSON."""
    head = place.read(name, 0, min(size, 1 << 16))
    (length,) = struct.unpack("<Q", head[:8])
    if length > min(size - 8, _LONGEST_HEADER):
        raise EOFError("the header is cut off")
    text = head[8 : 8 + length] if 8 + length <= len(head) else place.read(name, 8, 8 + length)
    header = parse_json(text, place.title(name))
    if not isinstance(header, dict):
        raise ValueError("the header must be an object")
    about = header.pop("__metadata__", {})
    arrays = {key: _stored_tensor(key, entry, 8 + length, size) for key, entry in header.items()}
    texts = {key: about[key] for key in TEXTS if isinstance(about.get(key), str)}
    return ArrayIndex(arrays, texts)


def _stored_tensor(key: str, entry: Any, base: int, size: int) -> StoredArray:
    shape, (start, stop), kind = entry["shape"], entry["data_offsets"], entry["dtype"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, stop)) or kind not in _TYPES:
        raise ValueError(f"{key} must be an array of plain numbers, got {kind!r} of shape {shape!r}")
    dtype = np.dtype(_TYPES[kind])
    if stop - start != math.prod(shape) * dtype.itemsize or base + stop > size:
        raise EOFError(f"{key} must hold the bytes that it states")
    return StoredArray(tuple(shape), dtype, base + start, kind == "BF16")
