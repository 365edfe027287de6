"""One container for everything that is written to disk and read again: nested archives with a kind and a version.

An :class:`Archive` has a kind (a registered name, never that of a Python class), the
version of that kind's layout, plain values, tensors, and further archives inside it. It
is written as one safetensors file whose header holds the plain values, a checksum over
everything and the oldest evergrow that can read it. Loading parses JSON and raw
numbers; nothing in a file is ever executed, and nothing is allocated from a number in
it. What an archive of a kind holds is declared in :mod:`evergrow.core.record`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import atomic_path

SCHEMA_VERSION = 3
"""Layout of the file itself. Evergrow 0.1 and 0.2, which were never released, wrote 1 and 2."""

_NEEDS = "0.3"
"""The first evergrow that reads this layout; whoever cannot read a file says so."""

_KEY = "evergrow"
_SEPARATOR = "/"
_MAX_DEPTH = 12
_MAX_NESTING = 100
_MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
_MAX_CONTAINERS = 2_000_000  # lists and objects in a header; each costs 60 to 200 bytes
_MAX_TENSORS = 65_536
_MAX_PARTS = 4096
_STORED_DTYPES = frozenset(
    [
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    ]
)
"""What evergrow writes; other types cannot be turned into numbers everywhere and are refused."""


@dataclass(frozen=True)
class Archive:
    """What is written of one thing, and what it contains.

    Parameters
    ----------
    kind : str
        Registered name, for example ``"ridge-statistics"``.
    meta : dict
        JSON-serialisable values.
    tensors : dict of str to ndarray or torch.Tensor
        Tensors by name; names have no ``/``. Those of a file are NumPy's: what is read
        of it may not need torch.
    parts : dict of str to Archive
        What is inside, by name.
    version : int
        Version of the kind's layout.
    digest : str
        Checksum of the file that it was read from; empty for one that was made or is
        inside another.

    Examples
    --------
    >>> import torch
    >>> from evergrow.core.archive import Archive
    >>> inner = Archive("layer/example", {"seed": 3}, {"weights": torch.zeros(2)})
    >>> Archive("head/example", {}, parts={"layer": inner}).parts["layer"].meta
    {'seed': 3}
    """

    kind: str
    meta: dict[str, Any]
    tensors: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Archive] = field(default_factory=dict)
    version: int = 1
    digest: str = field(default="", compare=False)


# -- files -----------------------------------------------------------------------------


def write_archive(
    path: str | os.PathLike[str],
    archive: Archive,
    *,
    written: Callable[[], object] | None = None,
) -> str:
    """Write an archive so that a crash leaves the old file or the new one, never half, and return its checksum.

    The same archive gives the same bytes.

    Parameters
    ----------
    path : path-like
        Target; its folder must exist. It is replaced in one step once everything is on
        disk.
    archive : Archive
        What to write.
    written : callable, optional
        Called once everything is written, before it takes the place of what was there.

    Raises
    ------
    OSError
        If it cannot be written, for example because the disk is full; what was there
        before stays.
    """
    text, tensors, digest = _prepared(archive)
    head = {
        "schema": SCHEMA_VERSION,
        "needs": _NEEDS,
        "digest": digest,
        "archive": text,
    }
    # One key only: safetensors writes several in no fixed order, and the same model
    # must give the same file.
    metadata = {_KEY: json.dumps(head, sort_keys=True)}
    with atomic_path(path) as temporary:
        try:
            safetensors.numpy.save_file(tensors, temporary, metadata=metadata)
        except safetensors.SafetensorError as error:  # what it makes of a full disk
            raise OSError(f"{path} could not be written: {error}") from error
        if written is not None:
            written()
    return digest


def archive_digest(archive: Archive) -> str:
    """Return the checksum that the file of an archive would have."""
    return _prepared(archive)[2]


def _prepared(archive: Archive) -> tuple[str, dict[str, NDArray[Any]], str]:
    """Return the description, the tensors and the checksum of an archive.

    Raises
    ------
    FileFormatError
        If it is larger than :func:`read_archive` accepts.
    """
    n_parts = _n_archives(archive)
    if n_parts > _MAX_PARTS:
        raise FileFormatError(
            f"a file can have at most {_MAX_PARTS:,} parts, got {n_parts:,}"
        )
    tensors = {name: as_array(tensor) for name, tensor in _flat_tensors(archive)}
    if len(tensors) > _MAX_TENSORS:
        raise FileFormatError(
            f"a file can have at most {_MAX_TENSORS:,} tensors, got {len(tensors):,}"
        )
    text = json.dumps(_described(archive), sort_keys=True, allow_nan=False)
    if _n_containers(text) > _MAX_CONTAINERS:
        raise FileFormatError(
            f"a file can describe at most {_MAX_CONTAINERS:,} lists and objects"
        )
    return text, tensors, _digest(_NEEDS + text, tensors)


def _n_archives(archive: Archive) -> int:
    """Return the number of archives in an archive, itself included."""
    return 1 + sum(_n_archives(part) for part in archive.parts.values())


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor, of torch or of NumPy, as an array; it shares its memory where that can be."""
    if not isinstance(tensor, np.ndarray):
        tensor = tensor.detach().cpu().numpy()
    return np.asarray(tensor, order="C")  # which keeps the shape of a single number


def read_archive(path: str | os.PathLike[str], *, data: bytes | None = None) -> Archive:
    """Read an archive, checking layout and checksum; :func:`~evergrow.core.record.from_archive` checks contents.

    Parameters
    ----------
    path : path-like
        The file.
    data : bytes, optional
        What the file holds, where that was read already; the path is then for messages.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    FileFormatError
        If the file is not an evergrow file, is truncated or was altered.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    if data is None:
        data = Path(path).read_bytes()
    else:
        data = data
    head = _read_head(path, data)
    try:
        tensors = safetensors.numpy.load(data)
    except (
        safetensors.SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise FileFormatError(f"{path} is damaged or cut off: {error}") from error
    strange = sorted(
        {str(tensor.dtype) for tensor in tensors.values()} - _STORED_DTYPES
    )
    if strange:
        raise FileFormatError(
            f"{path} must hold tensors of {sorted(_STORED_DTYPES)}, got {strange[:3]}"
        )
    if _digest(head["needs"] + head["archive"], tensors) != head["digest"]:
        raise FileFormatError(
            f"{path} does not match its checksum: its contents were altered or damaged"
        )
    return _described_by(path, head, tensors)


def read_header(path: str | os.PathLike[str]) -> Archive:
    """Read everything but the tensors of an archive; the checksum is what the file states, and is not checked.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    FileFormatError
        If the file is not an evergrow file, or its header is truncated.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    with open(path, "rb") as file:
        start = file.read(8)
        length = min(int.from_bytes(start, "little"), os.fstat(file.fileno()).st_size)
        head = _read_head(path, start + file.read(length))
    return _described_by(path, head, {})


def _described_by(
    path: str | os.PathLike[str], head: dict[str, Any], tensors: dict[str, NDArray[Any]]
) -> Archive:
    """Return the archive that a header and tensors make up."""
    described = parse_json(head["archive"], f"the description in {os.fspath(path)}")
    archive = _ArchiveBuilder(path).build(described, tensors, "", 0)
    return replace(archive, digest=head["digest"])


def _flat_tensors(archive: Archive, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in (*archive.tensors, *archive.parts):
        if _SEPARATOR in name:
            raise ValueError(
                f"the name of a tensor or a part must have no {_SEPARATOR!r}, got {name!r}"
            )
    for name, tensor in archive.tensors.items():
        yield prefix + name, tensor
    for name, part in archive.parts.items():
        yield from _flat_tensors(part, f"{prefix}{name}{_SEPARATOR}")


def _described(archive: Archive) -> dict[str, Any]:
    parts = {name: _described(part) for name, part in archive.parts.items()}
    return {
        "kind": archive.kind,
        "version": archive.version,
        "meta": archive.meta,
        "parts": parts,
    }


def _digest(text: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    for name in sorted(tensors):
        digest.update(
            f"{name}:torch.{tensors[name].dtype}:{tensors[name].shape}".encode()
        )
        digest.update(tensors[name].data)
    return digest.hexdigest()


class _ArchiveBuilder:
    """Build nested archives from a parsed description and the tensors of a file.

    Every tensor is visited once per level of its name, so the time is linear in the
    number of parts and tensors.

    Parameters
    ----------
    path : path-like
        The file, for messages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._n_parts = 0

    def build(
        self,
        described: Any,
        tensors: dict[str, NDArray[Any]],
        prefix: str,
        depth: int,
    ) -> Archive:
        """Return the archive of one description.

        Parameters
        ----------
        described : object
            The description; a dict with kind, version, meta and parts if it is valid.
        tensors : dict of str to ndarray
            Tensors of this archive and its parts, by names relative to it.
        prefix : str
            Name of this archive in the file, ending in the separator; empty for the
            outermost archive.
        depth : int
            Number of archives around it.
        """
        self._check_description(described, prefix, depth)
        own: dict[str, NDArray[Any]] = {}
        inner: dict[str, dict[str, NDArray[Any]]] = {}
        for name, tensor in tensors.items():
            part_name, separator, rest = name.partition(_SEPARATOR)
            if separator:
                inner.setdefault(part_name, {})[rest] = tensor
            else:
                own[name] = tensor
        parts: dict[str, Archive] = {}
        for name, part in described["parts"].items():
            part_prefix = f"{prefix}{name}{_SEPARATOR}"
            part_tensors = inner.pop(name, {})
            parts[name] = self.build(part, part_tensors, part_prefix, depth + 1)
        if inner:
            part_name, stray = next(iter(inner.items()))
            stray_name = f"{prefix}{part_name}{_SEPARATOR}{next(iter(stray))}"
            raise FileFormatError(
                f"{self._path} must describe every tensor that it holds, "
                f"but not {stray_name!r}"
            )
        return Archive(
            described["kind"], described["meta"], own, parts, described["version"]
        )

    def _check_description(self, described: Any, prefix: str, depth: int) -> None:
        """Raise :class:`FileFormatError` if a description is malformed or too large."""
        if depth > _MAX_DEPTH:
            raise FileFormatError(
                f"{self._path} must be nested at most {_MAX_DEPTH} deep, got more"
            )
        self._n_parts += 1
        if self._n_parts > _MAX_PARTS:
            raise FileFormatError(
                f"{self._path} must have at most {_MAX_PARTS:,} parts, got more"
            )
        known = {"kind": str, "version": int, "meta": dict, "parts": dict}
        if not isinstance(described, dict) or any(
            not isinstance(described.get(key), kind) or isinstance(described[key], bool)
            for key, kind in known.items()
        ):
            raise FileFormatError(
                f"{self._path} must describe {prefix or 'its contents'!r} by kind, "
                "version, meta and parts"
            )
        for name in described["parts"]:
            if _SEPARATOR in name:
                raise FileFormatError(
                    f"{self._path} must have no {_SEPARATOR!r} in the name of a part, "
                    f"got {name!r}"
                )


def shallow(values: Any) -> Any:
    """Return plain values as they are, or raise :class:`ValueError` where they are nested deeper than any we write.

    Python parses what is nested nearly as deep as its stack, and whatever then walks
    through it overflows.

    Examples
    --------
    >>> from evergrow.core.archive import shallow
    >>> shallow({"a": [1, 2]})
    {'a': [1, 2]}
    """
    level = [values]
    for _ in range(_MAX_NESTING):
        objects = (
            value.values() if isinstance(value, dict) else value
            for value in level
            if isinstance(value, (dict, list))
        )
        level = list(chain.from_iterable(objects))
        if not level:
            return values
    raise ValueError(f"values are nested more than {_MAX_NESTING} deep")


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the values of a JSON text from a file.

    Parameters
    ----------
    text : str or bytes
        The text.
    name : str
        What messages call the file.

    Raises
    ------
    FileFormatError
        If it is no whole JSON, is nested too deeply, or has a key twice, a number that
        is not finite or an integer of thousands of digits.

    Examples
    --------
    >>> from evergrow.core.archive import parse_json
    >>> parse_json('{"n": NaN}', "run.json")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: run.json is no whole JSON: numbers must be finite, got NaN
    """
    try:
        return shallow(
            json.loads(
                text,
                parse_constant=_refuse_constant,
                parse_float=_finite_float,
                object_pairs_hook=_each_once,
            )
        )
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
        raise FileFormatError(f"{name} is no whole JSON: {error}") from error


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"numbers must be finite, got {word}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys differ: of two with one name, other programs would see the other one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("every key must be given once in an object")
    return found


def _finite_float(word: str) -> float:
    value = float(word)
    if math.isfinite(value):
        return value
    return _refuse_constant(word)


def _read_head(path: str | os.PathLike[str], data: bytes) -> dict[str, Any]:
    """Return our part of a safetensors header, whose published layout is a u64 length and JSON; check its schema."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        if length > len(data) - 8:
            raise ValueError("the header is cut off")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"its header has more than {_MAX_HEADER_BYTES:,} bytes")
        header = _load_bounded_json(data[8 : 8 + length].decode())
        if len(header) - 1 > _MAX_TENSORS:
            raise ValueError(f"it has more than {_MAX_TENSORS:,} tensors")
        head = _load_bounded_json(header["__metadata__"][_KEY])
        if not isinstance(head, dict):
            raise ValueError("the header has the wrong form")
    except (
        struct.error,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:
        raise FileFormatError(
            f"{path} is no evergrow file, or a part of one is missing ({error})"
        ) from error
    schema = head.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise FileFormatError(
            f"{path} must carry an integer schema version, got {schema!r}"
        )
    if schema > SCHEMA_VERSION:
        needs = head.get("needs")
        version = ""
        if isinstance(needs, str) and len(needs) < 20:
            version = f" {needs}"
        raise NewerSchemaError(
            f"{path} must have schema {SCHEMA_VERSION} or older, got {schema}: it was written by a newer evergrow"
            f"{' and needs' + version if version else ''}; upgrade with 'pip install -U evergrow'"
        )
    if schema < SCHEMA_VERSION:
        raise FileFormatError(
            f"{path} was written by evergrow 0.{schema}; fit it again with this version"
        )
    if any(
        not isinstance(head.get(key), str) for key in ("needs", "archive", "digest")
    ):
        raise FileFormatError(
            f"{path} is damaged: its header lacks a description or a checksum"
        )
    if _n_containers(head["archive"]) > _MAX_CONTAINERS:
        raise FileFormatError(
            f"{path} must have at most {_MAX_CONTAINERS:,} lists and objects in its "
            "description, got more"
        )
    return head


def _load_bounded_json(text: str) -> Any:
    """Parse JSON after counting its lists and objects, which cost most memory."""
    if _n_containers(text) > _MAX_CONTAINERS:
        raise ValueError(f"it has more than {_MAX_CONTAINERS:,} lists and objects")
    return json.loads(text)


def _n_containers(text: str) -> int:
    """Return an upper bound on the lists and objects in a JSON text."""
    return text.count("[") + text.count("{")
