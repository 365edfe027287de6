"""Records: dataclasses whose types declare the content of files.

A class becomes writable under a kind, its name in files::

    @record("ridge-state/dense")
    @dataclass(frozen=True)
    class DenseState(RidgeState):
        gram: Annotated[Tensor, Spec(("L", "L"))]
        cross: Annotated[Tensor, Spec(("L", "C"), largest=1e150)]
        totals: Totals  # a plain dataclass
        alpha: Annotated[float, Between(0.0, 1e9)] = 1.0
        extra: Extra = NOTHING  # unknown fields of newer versions

        def check(self) -> None:
            require(len(self.gram) > 0, "its Gram matrix is empty")

    archive = to_archive(state)
    state = from_archive(RidgeState, archive, device=device, name="model.evg: head")

Types of fields
---------------
These types become JSON: ``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, ``X |
None`` and other unions, ``tuple[X, ...]``, ``tuple[X, Y]``, ``list[X]``,
``frozenset[str]``, ``dict[str, X]``, ``Any``, and plain dataclasses of them. Integers
are from 0 to 2**53 unless :class:`Between` says otherwise. Floats are finite.

Tensors and NumPy arrays (constrained by :class:`Spec`), other records, and tuples,
lists and dicts of them are stored in binary form. A field whose type is a base class of
several records accepts all of them. A field of type
:class:`~evergrow.core.archive.Archive` is not interpreted.

Fields with ``field(metadata=UNWRITTEN)`` are not written. Unknown content of a file is
kept in a field of type :class:`Extra`, or, for plain values, in a dict with
``metadata=UNKNOWN``. Fields with a default are optional in files.

``check`` tests conditions beyond types. It may raise any :class:`EvergrowError`.
Readers turn all errors of a file into :class:`FileFormatError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import FileFormatError
from evergrow.core.files import atomic_path
from evergrow.core.record_reading import (
    check_kind,
    from_archive,
    from_values,
    read_fields,
    reject,
)
from evergrow.core.record_types import (
    NOTHING,
    UNKNOWN,
    UNWRITTEN,
    Between,
    Extra,
    Spec,
    is_record,
    is_symmetric_field,
    kind_of,
    record,
    written_fields,
)
from evergrow.core.version import __version__

if TYPE_CHECKING:
    import torch

__all__ = [
    "NOTHING",
    "UNKNOWN",
    "UNWRITTEN",
    "Between",
    "Extra",
    "Spec",
    "check_kind",
    "from_archive",
    "from_document",
    "from_values",
    "make_archive",
    "read_fields",
    "read_record",
    "record",
    "require",
    "to_archive",
    "to_document",
    "to_values",
    "write_document",
    "write_record",
    "written_values",
]

T = TypeVar("T")


def require(condition: bool, problem: str) -> None:
    """Raise :class:`FileFormatError` unless a condition holds; for ``check`` methods.

    Examples
    --------
    >>> from evergrow.core.record import require
    >>> require(1 + 1 == 2, "its numbers do not add up")
    """
    if not condition:
        raise FileFormatError(problem)


# -- archives


def to_archive(item: Any) -> Archive:
    """Return the archive of a record.

    Parameters
    ----------
    item : object
        Object of a class with the decorator :func:`record`.
    """
    return make_archive(type(item), written_values(item))


def make_archive(cls: type, values: Mapping[str, Any]) -> Archive:
    """Return an archive of the kind of a record class.

    Parameters
    ----------
    cls : type
        A record class.
    values : mapping of str to object
        Content by name: plain values, tensors, records, or containers of them. The
        content of an :class:`Extra` is added under its own names.
    """
    kind, version = kind_of(cls)
    archive = Archive(kind, {}, version=version)
    for value in values.values():
        if isinstance(value, Extra):
            archive.meta.update(value.values)
            archive.tensors.update(value.tensors)
            archive.parts.update(value.parts)
    for name, value in values.items():
        if not isinstance(value, Extra) and not _put(archive, name, value):
            archive.meta[name] = to_values(value)
    return archive


def to_values(item: Any) -> Any:
    """Return JSON values of a plain dataclass, or of a container of them.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from pathlib import Path
    >>> from evergrow.core.record import to_values
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     sides: tuple[int, ...] = (1, 2)
    ...     folder: Path = Path("attic")
    ...     owner: str | None = None
    >>> to_values(Box())
    {'sides': [1, 2], 'folder': 'attic'}
    """
    if is_dataclass(item) and not isinstance(item, type):
        known = {}
        unknown: Mapping[str, Any] = {}
        for key, value in written_values(item).items():
            if isinstance(value, Extra):
                unknown = value.values
            else:
                known[key] = to_values(value)
        return {**unknown, **known}
    if isinstance(item, Mapping):
        return {str(key): to_values(value) for key, value in item.items()}
    if isinstance(item, (set, frozenset)):
        return sorted(to_values(value) for value in item)
    if isinstance(item, (list, tuple)):
        return [to_values(value) for value in item]
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, os.PathLike):
        return os.fspath(item)
    return item


def written_values(item: Any) -> dict[str, Any]:
    """Return the written fields of a dataclass, for :func:`make_archive`.

    Fields whose value and default are both empty are left out. Other defaults are
    written, because they may change between versions.
    """
    values = {}
    for entry in written_fields(type(item)):  # type: ignore[arg-type]
        value = getattr(item, entry.name)
        if entry.default_factory is MISSING:
            default = entry.default
        else:
            default = entry.default_factory()
        if value is None and default is None:
            continue
        if _is_empty(value) and _is_empty(default):
            continue
        if _is_tensor(value) and is_symmetric_field(type(item), entry.name):  # type: ignore[arg-type]
            value = _lower_triangle(value)
        if entry.metadata.get("unknown"):
            value = Extra(value)
        values[entry.name] = value
    return values


def _lower_triangle(matrix: torch.Tensor) -> torch.Tensor:
    """Return the lower triangle of a matrix (k, k), row by row, (k (k + 1) / 2,)."""
    import torch

    rows = [row[: index + 1] for index, row in enumerate(matrix)]
    if rows:
        return torch.cat(rows)
    return matrix.flatten()


def _is_empty(value: Any) -> bool:
    return isinstance(value, (str, tuple, list, dict, frozenset)) and not value


def _put(archive: Archive, name: str, value: Any) -> bool:
    """Add a tensor, a record or a container of them. Return False for other values."""
    if _is_tensor(value):
        archive.tensors[name] = value
        return True
    if isinstance(value, Archive):
        archive.parts[name] = value
        return True
    if is_record(type(value)):
        archive.parts[name] = to_archive(value)
        return True
    entries = value
    if isinstance(value, (tuple, list)):
        entries = dict(enumerate(value))
    if not isinstance(entries, Mapping) or not entries:
        return False
    first = next(iter(entries.values()))
    if not (_is_tensor(first) or isinstance(first, Archive) or is_record(type(first))):
        return False
    for key, entry in entries.items():
        _put(archive, f"{name}.{key}", entry)
    return True


def _is_tensor(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    package = type(value).__module__.partition(".")[0]
    return package == "torch" and hasattr(value, "nbytes")


# -- files


def write_record(path: str | os.PathLike[str], item: Any) -> str:
    """Write a record to a file, atomically. Return the file's checksum.

    The same record gives the same bytes.
    """
    return write_archive(path, to_archive(item))


def read_record(
    cls: type[T],
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
) -> T:
    """Return the record in a file, or raise :class:`FileFormatError`."""
    return from_archive(cls, read_archive(path), device=device, name=os.fspath(path))


def to_document(item: Any) -> dict[str, Any]:
    """Return a record without tensors as a JSON object with kind and version.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from evergrow.core.record import from_document, record, to_document
    >>> @record("docs/note")
    ... @dataclass(frozen=True)
    ... class Note:
    ...     text: str
    >>> document = to_document(Note("hello"))
    >>> document["schema"], document["version"], document["text"]
    ('docs/note', 1, 'hello')
    >>> from_document(Note, document, "note.json")
    Note(text='hello')
    >>> from_document(Note, {**document, "version": 2, "evergrow": "0.9"}, "note.json")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.NewerSchemaError: note.json was written by a newer evergrow ...
    """
    kind, version = kind_of(type(item))
    return {
        "schema": kind,
        "version": version,
        "evergrow": __version__,
        **to_values(item),
    }


def from_document(cls: type[T], values: Any, name: str) -> T:
    """Return the record of a JSON object from :func:`to_document`.

    Raises
    ------
    FileFormatError
        If kind, version or content is invalid.
    """
    if not isinstance(values, dict):
        reject(name, "an object", values)
    kind = values.get("schema", "")
    version = values.get("version", 0)
    check_kind(cls, Archive(kind, values, version=version), name)
    header = ("schema", "version", "evergrow")
    content = {key: value for key, value in values.items() if key not in header}
    return from_values(cls, content, name)


def write_document(
    path: str | os.PathLike[str],
    item: Any,
    *,
    like: str | os.PathLike[str] | None = None,
) -> None:
    """Write a record without tensors as a JSON file, atomically."""
    with atomic_path(path, like=like) as temporary:
        text = json.dumps(to_document(item), indent=1, allow_nan=False)
        Path(temporary).write_text(text + "\n", encoding="utf-8")
