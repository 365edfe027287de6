"""Build records from archives and JSON values, and check everything that they hold."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, is_dataclass
from functools import cache
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

from evergrow.core.archive import Archive, as_array
from evergrow.core.errors import EvergrowError, FileFormatError, NewerSchemaError
from evergrow.core.record_types import (
    JSON_SCALARS,
    Between,
    Extra,
    Spec,
    binary_field,
    class_of,
    is_array,
    is_numpy,
    kind_of,
    typed_fields,
)

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_LARGEST_INTEGER = 2**53

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
    """Build a dataclass from an archive of any kind. Unknown fields are ignored."""
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
    return _Reader(Archive("", values), None, name).build(cls)


def reject(name: str, wanted: str, value: Any) -> NoReturn:
    """Raise :class:`FileFormatError` for an invalid value."""
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
        """Return the dataclass."""
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
        """Return the value of a field, or MISSING."""
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
        """Return the arrays or records of a tuple, list or dict."""
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
        """Return a tensor, an array or a record."""
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
        """Check a shape. The first tensor that uses a named length sets it."""
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
    return hint is Extra or bool(entry.metadata.get("unknown"))


def _symmetric(triangle: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the symmetric matrix of a lower triangle."""
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


# -- JSON values

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
    """Return a loader that rejects invalid values and converts the others."""

    def load(value: Any, name: str) -> Any:
        if not accepts(value):
            reject(name, wanted, value)
        if convert is None:
            return value
        return convert(value, name)

    return load


def _number_loader(kind: Any, bounds: Between | None) -> Loader:
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
    def accepts(value: Any) -> bool:
        # Compared with their types, because 1 == True.
        return any(type(each) is type(value) and each == value for each in choices)

    return _checked(f"one of {', '.join(map(repr, choices))}", accepts)


def _union_loader(hints: tuple[Any, ...]) -> Loader:
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
    load_item = _loader(hint)

    def convert(value: Any, name: str) -> Any:
        return {key: load_item(item, f"{name}: {key!r}") for key, item in value.items()}

    return _checked("an object", lambda value: isinstance(value, dict), convert)


def _list_loader(container: Any, arguments: tuple[Any, ...]) -> Loader:
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
