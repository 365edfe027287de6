"""Declare the content of files: record classes and the types of their fields.

:mod:`evergrow.core.record` documents the supported types.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import numpy as np

from evergrow.core.archive import Archive
from evergrow.core.errors import FileFormatError
from evergrow.core.registry import load_plugins, nearest

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
def written_fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a dataclass that are written to files."""
    return tuple(
        entry
        for entry in dataclasses.fields(cls)
        if entry.init and entry.metadata.get("written", True)
    )


@cache
def typed_fields(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
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
