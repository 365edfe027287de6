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

import inspect
import json
import math
import os
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import Archive, as_array, read_archive, write_archive
from evergrow.core.errors import EvergrowError, FileFormatError, NewerSchemaError
from evergrow.core.files import StrPath, atomic_path
from evergrow.core.registry import load_plugins, nearest
from evergrow.core.version import __version__

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

UNWRITTEN = types.MappingProxyType({"written": False})
"""Metadata of a dataclass field that is not written to files. It needs a default."""

UNKNOWN = types.MappingProxyType({"unknown": True})
"""Metadata of a dict field that keeps unknown plain values of a file."""

JSON_SCALARS: dict[Any, str] = {
    bool: "true or false",
    str: "a string",
    type(None): "null",
}
"""Plain types that need no bounds, and their names in messages."""


@dataclass(frozen=True)
class Between:
    """Inclusive bounds of a number. ``above`` is an exclusive lower bound.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> from evergrow.core.record import Between, from_values
    >>> @dataclass(frozen=True)
    ... class Split:
    ...     share: Annotated[float, Between(0, 1)]
    >>> from_values(Split, {"share": 2}, "split.json")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: split.json: 'share' should be a number ...
    """

    low: float = -math.inf
    high: float = math.inf
    above: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number is within the bounds."""
        if self.above is not None and value <= self.above:
            return False
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if self.above is not None:
            return f"above {self.above:g}"
        if self.high == math.inf:
            return f"from {self.low:g}"
        return f"from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Spec:
    """Constraints of a tensor. Its values are always finite.

    Parameters
    ----------
    shape : tuple of int, str or None, optional
        Shape. A string is a length that all tensors of the record share under this
        name. None is any length.
    dtype : str or None, default="float64"
        Name of the dtype; None for any.
    largest : float, optional
        Maximum absolute value. Larger values would overflow later.
    symmetric : bool, default=False
        Whether the tensor is a symmetric matrix. Files hold the lower triangle, row by
        row.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> from typing import Annotated
    >>> import torch
    >>> from evergrow.core.record import Spec, from_archive, record, to_archive
    >>> spec = Spec(("k", "k"), dtype=None, symmetric=True)
    >>> gram = ("gram", Annotated[torch.Tensor, spec])
    >>> Moments = record("docs/moments")(make_dataclass("Moments", [gram], frozen=True))
    >>> archive = to_archive(Moments(torch.tensor([[1, 2], [2, 3]])))
    >>> archive.tensors["gram"].tolist(), from_archive(Moments, archive).gram.tolist()
    ([1, 2, 3], [[1, 2], [2, 3]])
    """

    shape: tuple[int | str | None, ...] | None = None
    dtype: str | None = "float64"
    largest: float | None = None
    symmetric: bool = False


@dataclass(frozen=True)
class Extra:
    """Unknown content of a file, kept when the record is written again."""

    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Archive] = field(default_factory=dict)


NOTHING = Extra()
"""The default of an ``extra`` field."""


# -- record classes

_CLASSES: dict[str, type] = {}
_KINDS: dict[type, tuple[str, int]] = {}


def record(kind: str, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that makes objects of the class writable.

    Parameters
    ----------
    kind : str
        Name of the class in files. It must not change when the class is renamed.
    version : int, default=1
        Version of the layout. New optional fields need no new version. Files of newer
        versions are rejected.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from evergrow.core.record import from_archive, record, to_archive
    >>> @record("docs/box")
    ... @dataclass(frozen=True)
    ... class Box:
    ...     width: int
    ...     names: tuple[str, ...] = ()
    >>> to_archive(Box(3)).meta
    {'width': 3}
    >>> from_archive(Box, to_archive(Box(3, ("a",))))
    Box(width=3, names=('a',))
    """

    def decorate(cls: type[T]) -> type[T]:
        _CLASSES[kind] = cls
        _KINDS[cls] = (kind, version)
        return cls

    return decorate


def is_record(cls: type) -> bool:
    """Return whether a class, or a base class of it, is a record."""
    return any(base in _KINDS for base in cls.__mro__)


def kind_of(cls: type) -> tuple[str, int]:
    """Return the kind and version of a record class."""
    for base in cls.__mro__:
        if base in _KINDS:
            return _KINDS[base]
    raise TypeError(
        f"{cls.__name__} is not a record: decorate it with @record(kind) to write it"
    )


def class_of(cls: type, kind: str, name: str) -> Any:
    """Return the subclass of `cls` that is registered as `kind`, also by a plugin.

    Another kind, or an unknown one, raises :class:`FileFormatError` for file `name`.
    """
    if kind not in _CLASSES:
        load_plugins()
    found = _CLASSES.get(kind)
    if found is None:
        raise FileFormatError(
            f"{name} holds {kind!r}, which is unknown here; "
            f"nearest: {nearest(kind, _CLASSES)}"
        )
    if not issubclass(found, cls):
        wanted = [known for known, other in _CLASSES.items() if issubclass(other, cls)]
        listed = " or ".join(map(repr, sorted(wanted)))
        raise FileFormatError(f"{name} holds {kind!r}, not {listed}")
    return found


# -- fields


@cache
def written_fields(cls: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass that are written to files."""
    return tuple(
        entry
        for entry in fields(cls)
        if entry.init and entry.metadata.get("written", True)
    )


@cache
def typed_fields(cls: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """Return the written fields with their types."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((entry, hints[entry.name]) for entry in written_fields(cls))


@dataclass(frozen=True)
class BinaryField:
    """A field that is stored outside of the JSON: arrays, records, or several of them.

    Parameters
    ----------
    item : type
        Type of the value, or of every item of a container.
    spec : Spec
        Constraints of arrays.
    container : type or None
        ``dict``, ``list`` or ``tuple``; None for a single value.
    optional : bool
        Whether the value may be None.
    """

    item: Any
    spec: Spec
    container: Any
    optional: bool


@cache
def binary_field(hint: Any) -> BinaryField | None:
    """Return how values of a type are stored, or None if they are JSON values."""
    optional = False
    container = None
    if get_origin(hint) in (Union, types.UnionType):
        others = [item for item in get_args(hint) if item is not type(None)]
        if len(others) == 1:
            optional = True
            hint = others[0]
    spec, hint = _split_spec(hint)
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (dict, list) or (origin is tuple and arguments[-1] is Ellipsis):
        container = origin
        spec, hint = _split_spec(arguments[1 if origin is dict else 0])
    if not is_array(hint) and not _may_be_record(hint):
        return None
    return BinaryField(hint, spec, container, optional)


@cache
def is_symmetric_field(cls: Any, name: str) -> bool:
    """Return whether a field is a symmetric matrix."""
    for entry, hint in typed_fields(cls):
        if entry.name == name:
            stored = binary_field(hint)
            return stored is not None and stored.spec.symmetric
    return False


def is_array(hint: Any) -> bool:
    """Return whether a type is a tensor or a NumPy array."""
    if is_numpy(hint):
        return True
    # Compared by name, so that torch is not imported.
    return (
        isinstance(hint, type)
        and hint.__module__ == "torch"
        and hint.__name__ == "Tensor"
    )


def is_numpy(hint: Any) -> bool:
    """Return whether a type is a NumPy array."""
    origin = get_origin(hint) or hint
    # NDArray is a type alias since NumPy 2.5.
    value = getattr(origin, "__value__", origin)
    return value is np.ndarray or get_origin(value) is np.ndarray


def _may_be_record(hint: Any) -> bool:
    """Return whether a type is an archive, a record or a base class of records.

    A class that is neither abstract nor a plain dataclass counts as a base class.
    """
    if hint is Archive:
        return True
    plain = (Any, int, float, *JSON_SCALARS, Extra, dict, list, tuple, frozenset)
    if not isinstance(hint, type) or hint in plain or get_origin(hint):
        return False
    return hint in _KINDS or inspect.isabstract(hint) or not is_dataclass(hint)


def _split_spec(hint: Any) -> tuple[Spec, Any]:
    """Return the Spec of a type, and the type without annotations."""
    if get_origin(hint) is not Annotated:
        return Spec(), hint
    bare, *notes = get_args(hint)
    for note in notes:
        if isinstance(note, Spec):
            return note, bare
    return Spec(), bare


_LARGEST_INTEGER = 2**53
"""Larger integers are not exact in JSON parsers that use floats."""

_SHOWN_NAME = 100
"""Characters of a name in messages about objects that are nested too deeply."""

_INVALID_VALUES = (
    EvergrowError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
)
"""Errors that a constructor or ``check`` may raise for invalid values."""


def require(condition: bool, problem: str) -> None:
    """Raise :class:`FileFormatError` unless a condition holds; for ``check`` methods.

    Examples
    --------
    >>> from evergrow.core.record import require
    >>> require(1 + 1 == 2, "its numbers do not add up")
    """
    if not condition:
        raise FileFormatError(problem)


# -- records to archives


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
    """Return plain dataclasses, containers and NumPy numbers as JSON values.

    Empty fields whose default is empty are left out. Other values are returned
    unchanged.

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


def to_json_values(value: Any) -> Any:
    """Convert any value for JSON: arrays to lists, NaN and infinity to None.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.record import to_json_values
    >>> to_json_values({"a": np.array([1.0, np.nan]), "b": (np.int16(3),)})
    {'a': [1.0, None], 'b': [3]}
    """
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json_values(value.tolist())
    if isinstance(value, (list, tuple)):
        return [to_json_values(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


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
    """Add a value to an archive if it is a tensor, a record or a container of them.

    Return whether it was added; other values belong to the JSON.
    """
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


# -- archives to records


def from_archive(
    cls: type[T],
    archive: Archive,
    *,
    device: str | torch.device | None = None,
    name: str = "the archive",
) -> T:
    """Return the record in an archive.

    Parameters
    ----------
    cls : type
        Record class, or a base class of several.
    archive : Archive
        Content of a file.
    device : str or torch.device, optional
        Device of the tensors. By default the CPU.
    name : str
        Name in messages: a path, or a path and a part of the file.

    Raises
    ------
    FileFormatError
        If the archive has another kind or invalid content.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    found = class_of(cls, archive.kind, name)
    _check_version(found, archive.version, name)
    return read_fields(found, archive, device=device, name=name)  # type: ignore[no-any-return]


def check_kind(cls: type, archive: Archive, name: str = "the archive") -> None:
    """Raise :class:`FileFormatError` unless kind and version match a record class."""
    kind = kind_of(cls)[0]
    if archive.kind != kind:
        raise FileFormatError(f"{name} holds {archive.kind!r:.60}, not {kind!r}")
    _check_version(cls, archive.version, name, archive.meta.get("evergrow"))


def _check_version(cls: type, version: Any, name: str, writer: Any = None) -> None:
    """Raise :class:`FileFormatError` unless a version is that of a record class.

    ``writer`` is the evergrow that wrote the file, if known.
    """
    kind, known = kind_of(cls)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FileFormatError(
            f"{name} should state the version of its layout, but states {version!r:.60}"
        )
    if version > known:
        needed = ""
        if isinstance(writer, str) and len(writer) < 20:
            needed = f" ({writer})"
        raise NewerSchemaError(
            f"{name} was written by a newer evergrow{needed}: it has version {version} "
            f"of {kind!r}, and this one reads up to {known}; "
            "upgrade with 'pip install -U evergrow'"
        )
    if version < known:
        raise FileFormatError(
            f"{name} was written by an older evergrow, "
            "whose files are not read any more"
        )


def read_fields(
    cls: type[T],
    archive: Archive,
    *,
    device: str | torch.device | None = None,
    name: str = "the archive",
) -> T:
    """Build a dataclass from an archive of any kind and version.

    Content that no field names is kept in an :class:`Extra` field, or else ignored.
    Invalid content raises :class:`FileFormatError`.
    """
    return _Reader(archive, device, name).build(cls)


def from_values(cls: type[T], values: Any, name: str) -> T:
    """Build a dataclass from JSON values.

    Parameters
    ----------
    cls : type
        The dataclass.
    values : object
        Values from a file, as :func:`to_values` returns them.
    name : str
        Name of the object in messages.

    Raises
    ------
    FileFormatError
        If the values are invalid.
    """
    if not isinstance(values, dict):
        reject(name, "an object", values)
    try:
        return _Reader(Archive("", values), None, name).build(cls)
    except RecursionError:
        raise FileFormatError(
            f"{name[:_SHOWN_NAME]} is damaged: its objects are nested too deeply"
        ) from None


def reject(name: str, wanted: str, value: Any) -> NoReturn:
    """Raise :class:`FileFormatError`: a named value should be `wanted`, but is not."""
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    raise FileFormatError(f"{name} should be {wanted}, but is {shown}")


class _Reader:
    """Builds one record from one archive.

    Parameters
    ----------
    archive : Archive
        Content of a file.
    device : str, torch.device or None
        Device of the tensors.
    name : str
        Name of the archive in messages.
    """

    def __init__(self, archive: Archive, device: Any, name: str) -> None:
        self.archive = archive
        self.device = device
        self.name = name
        self.lengths: dict[str, int] = {}
        """Lengths that tensors of the record share, by name."""
        self.used: set[str] = set()
        """Names of the values that known fields use."""

    def build(self, cls: type[T]) -> T:
        """Read every field, and return the dataclass after its ``check``."""
        arguments: dict[str, Any] = {}
        for entry, hint in typed_fields(cls):  # type: ignore[arg-type]
            if _keeps_unknown(entry, hint):
                continue
            value = self.read(entry.name, hint)
            if value is not MISSING:
                arguments[entry.name] = value
            elif entry.default is MISSING and entry.default_factory is MISSING:
                raise FileFormatError(
                    f"{self.name} lacks {entry.name!r}; "
                    "it is damaged, or something else"
                )
        for entry, hint in typed_fields(cls):  # type: ignore[arg-type]
            if _keeps_unknown(entry, hint):
                unknown = self.unknown()
                arguments[entry.name] = unknown if hint is Extra else unknown.values
        try:
            made = cls(**arguments)
            if hasattr(made, "check"):
                made.check()
        except NewerSchemaError:
            raise
        except _INVALID_VALUES as error:
            raise FileFormatError(
                f"{self.name} is damaged or contradicts itself: {error}"
            ) from error
        return made

    def unknown(self) -> Extra:
        """Return the content that no field uses."""

        def unused(values: Mapping[str, Any]) -> dict[str, Any]:
            return {key: values[key] for key in values if key not in self.used}

        archive = self.archive
        return Extra(
            unused(archive.meta), unused(archive.tensors), unused(archive.parts)
        )

    def read(self, key: str, hint: Any) -> Any:
        """Return the value of a field, or MISSING if the archive does not hold it."""
        self.used.add(key)
        meta = self.archive.meta
        stored = binary_field(hint)
        if stored is None:
            if key in meta:
                return _loader(hint)(meta[key], f"{self.name}: {key!r}")
            return MISSING
        if stored.container is None:
            found = self.read_item(key, stored.item, stored.spec)
        else:
            found = self.read_container(key, stored.container, stored.item, stored.spec)
        if found is MISSING and stored.optional and key in meta:
            return None
        return found

    def read_container(self, key: str, container: Any, item: Any, spec: Spec) -> Any:
        """Return a tuple, list or dict of arrays or records, or MISSING.

        Its items are stored as ``key.0``, ``key.1``, ... or ``key.name``.
        """
        prefix = f"{key}."
        source = self.archive.tensors if is_array(item) else self.archive.parts
        names = [
            name.removeprefix(prefix) for name in source if name.startswith(prefix)
        ]
        if not names and key not in self.archive.meta:
            return MISSING
        if container is not dict:
            expected = [str(index) for index in range(len(names))]
            if set(names) != set(expected):
                raise FileFormatError(
                    f"{self.name}: {key!r} should be numbered from 0 on, but is not"
                )
            names = expected
        self.used.update(prefix + name for name in names)
        found = {
            name: self.read_item(prefix + name, item, spec) for name in sorted(names)
        }
        if container is dict:
            return found
        return container(found[name] for name in names)

    def read_item(self, key: str, item: Any, spec: Spec) -> Any:
        """Return the tensor, array or record of a name, or MISSING."""
        if is_array(item):
            if key not in self.archive.tensors:
                return MISSING
            found = self.read_array(key, spec)
            if is_numpy(item):
                return found
            import torch

            return torch.from_numpy(found).to(self.device)
        if key not in self.archive.parts:
            return MISSING
        part = self.archive.parts[key]
        if item is Archive:
            return part
        return from_archive(item, part, device=self.device, name=f"{self.name}: {key}")

    def read_array(self, key: str, spec: Spec) -> NDArray[Any]:
        """Return a tensor after checking dtype, shape and values."""
        tensor = as_array(self.archive.tensors[key])
        name = f"{self.name}: {key!r}"
        if spec.dtype is not None and tensor.dtype != spec.dtype:
            reject(name, f"a tensor of {spec.dtype}", str(tensor.dtype))
        if spec.symmetric:
            tensor = _symmetric(tensor, name)
        if spec.shape is not None:
            self.check_shape(name, tensor.shape, spec.shape)
        _check_finite(name, tensor, spec.largest)
        return tensor

    def check_shape(
        self, name: str, shape: tuple[int, ...], expected: tuple[int | str | None, ...]
    ) -> None:
        """Reject a shape other than the expected one.

        The first tensor that uses a named length sets it for the others.
        """
        lengths: dict[Any, Any] = self.lengths
        wanted = tuple("any" if n is None else lengths.get(n, n) for n in expected)
        is_right = len(shape) == len(expected)
        for length, required in zip(shape, expected, strict=False):
            if isinstance(required, str):
                required = self.lengths.setdefault(required, length)
            if required is not None and length != required:
                is_right = False
        if not is_right:
            reject(name, f"a tensor of shape {wanted}", f"one of {shape}")


def _keeps_unknown(entry: Any, hint: Any) -> bool:
    """Return whether a field keeps the content that no other field names."""
    return hint is Extra or bool(entry.metadata.get("unknown"))


def _symmetric(triangle: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the symmetric matrix (k, k) of a lower triangle (k (k + 1) / 2,)."""
    order = (math.isqrt(8 * triangle.size + 1) - 1) // 2
    if triangle.ndim != 1 or order * (order + 1) // 2 != triangle.size:
        shown = f"a tensor of shape {triangle.shape}"
        reject(name, "the lower triangle of a matrix, row by row", shown)
    matrix = np.empty((order, order), dtype=triangle.dtype)
    for index in range(order):
        start = index * (index + 1) // 2
        row = triangle[start : start + index + 1]
        matrix[index, : index + 1] = row
        matrix[: index + 1, index] = row
    return matrix


def _check_finite(name: str, tensor: NDArray[Any], largest: float | None) -> None:
    """Reject floats that are not finite, or of an absolute value above `largest`."""
    if tensor.dtype.kind != "f" or not tensor.size:
        return
    # Both are NaN if any value is.
    low = float(tensor.min())
    high = float(tensor.max())
    if not math.isfinite(low) or not math.isfinite(high):
        raise FileFormatError(f"{name} should have finite numbers only")
    if largest is not None and max(-low, high) > largest:
        raise FileFormatError(
            f"{name} should have numbers of at most {largest:g}, but has larger ones"
        )


# -- JSON values to fields

Loader = Callable[[Any, str], Any]
"""Converts a JSON value with a given name to a value of a field."""


@cache
def _loader(hint: Any) -> Loader:
    """Return the loader of a type."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        if arguments[0] in (int, float):
            return _number_loader(arguments[0], _bounds(arguments))
        return _loader(arguments[0])
    if hint in (int, float):
        return _number_loader(hint, None)
    if hint is Any:
        return lambda value, name: value
    if hint in JSON_SCALARS:
        return _checked(JSON_SCALARS[hint], lambda value: isinstance(value, hint))
    if origin is Literal:
        return _literal_loader(arguments)
    if origin in (Union, types.UnionType):
        return _union_loader(arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, name: from_values(hint, value, name)
    if origin is dict:
        return _dict_loader(arguments[1])
    if origin in (tuple, list, frozenset):
        return _list_loader(origin, arguments)
    raise TypeError(
        f"a field of type {hint!r} cannot be read from a file; see evergrow.core.record"
    )


def _bounds(arguments: tuple[Any, ...]) -> Between | None:
    for note in arguments[1:]:
        if isinstance(note, Between):
            return note
    return None


def _checked(
    wanted: str, accepts: Callable[[Any], bool], convert: Loader | None = None
) -> Loader:
    """Return a loader that rejects values, or returns them, converted if required.

    Parameters
    ----------
    wanted : str
        The accepted values, for messages.
    accepts : callable
        Returns whether a value is accepted.
    convert : callable, optional
        Converts an accepted value.
    """

    def load(value: Any, name: str) -> Any:
        if not accepts(value):
            reject(name, wanted, value)
        if convert is None:
            return value
        return convert(value, name)

    return load


def _number_loader(kind: Any, bounds: Between | None) -> Loader:
    """Return the loader of an ``int`` or ``float``.

    Without bounds, integers are from 0 to 2**53 and floats finite.
    """
    accepted: Any = (int, float)
    wanted = f"a number {bounds}"
    if kind is int:
        accepted = int
        bounds = bounds or Between(0, _LARGEST_INTEGER)
        wanted = f"an integer {bounds}"
    elif bounds is None:
        bounds = Between()
        wanted = "a finite number"

    def accepts(value: Any) -> bool:
        if not isinstance(value, accepted) or isinstance(value, bool):
            return False
        # math.isfinite raises OverflowError for integers beyond the range of floats.
        return abs(value) < 2**1000 and math.isfinite(value) and bounds.holds(value)

    return _checked(wanted, accepts, lambda value, name: kind(value))


def _literal_loader(choices: tuple[Any, ...]) -> Loader:
    """Return a loader that accepts only the choices of a ``Literal``."""

    def accepts(value: Any) -> bool:
        # Compared with their types, because 1 == True.
        return any(type(each) is type(value) and each == value for each in choices)

    return _checked(f"one of {', '.join(map(repr, choices))}", accepts)


def _union_loader(hints: tuple[Any, ...]) -> Loader:
    """Return a loader that uses the first type which accepts the value."""
    optional = type(None) in hints
    *others, last = (_loader(hint) for hint in hints if hint is not type(None))

    def load(value: Any, name: str) -> Any:
        if value is None and optional:
            return None
        for loader in others:
            with suppress(FileFormatError):
                return loader(value, name)
        return last(value, name)

    return load


def _dict_loader(hint: Any) -> Loader:
    """Return the loader of an object whose values have the type `hint`."""
    load_item = _loader(hint)

    def convert(value: Any, name: str) -> Any:
        return {key: load_item(item, f"{name}: {key!r}") for key, item in value.items()}

    return _checked("an object", lambda value: isinstance(value, dict), convert)


def _list_loader(container: Any, arguments: tuple[Any, ...]) -> Loader:
    """Return the loader of a tuple, list or frozenset with these type arguments.

    A tuple of several types has a fixed length, unless it ends in ``...``.
    """
    loaders = [_loader(each) for each in arguments if each is not Ellipsis]
    wanted = "a list"
    length = None
    if container is tuple and arguments[-1] is not Ellipsis:
        length = len(arguments)
        wanted = f"a list of {length}"

    def accepts(value: Any) -> bool:
        return isinstance(value, list) and length in (None, len(value))

    def convert(value: Any, name: str) -> Any:
        return container(
            loaders[index % len(loaders)](item, f"{name} {index}")
            for index, item in enumerate(value)
        )

    return _checked(wanted, accepts, convert)


# -- files


def write_record(path: StrPath, item: Any) -> str:
    """Write a record to a file, atomically. Return the file's checksum.

    The same record gives the same bytes.
    """
    return write_archive(path, to_archive(item))


def read_record(cls: type[T], path: StrPath) -> T:
    """Return the record in a file, or raise :class:`FileFormatError`."""
    return from_archive(cls, read_archive(path), name=os.fspath(path))


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
    path: StrPath,
    item: Any,
    *,
    like: StrPath | None = None,
) -> None:
    """Write a record without tensors as a JSON file, atomically."""
    with atomic_path(path, like=like) as temporary:
        text = json.dumps(to_document(item), indent=1, allow_nan=False)
        Path(temporary).write_text(text + "\n", encoding="utf-8")
