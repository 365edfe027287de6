"""The file contract: frozen dataclasses declare by their types what a file holds; one function writes, one reads.

A class becomes writable by a kind, the name that files have for it::

    @record("ridge-state/dense")
    @dataclass(frozen=True)
    class DenseState(RidgeState):
        gram: Annotated[Tensor, Spec(("L", "L"))]
        cross: Annotated[Tensor, Spec(("L", "C"), largest=1e150)]
        seen: Totals                                  # a plain dataclass: an object in JSON
        alpha: Annotated[float, Between(0.0, 1e9)] = 1.0
        extra: Extra = NOTHING                        # optional fields of a later evergrow, to be written again

        def check(self) -> None:
            require(len(self.gram) > 0, "its Gram matrix is empty")

    archive = to_archive(state)
    state = from_archive(RidgeState, archive, device=device, name="model.evg: head")

What a field may be
-------------------
``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, ``X | None`` and other unions, ``tuple[X, ...]``,
``tuple[X, Y]``, ``list[X]``, ``frozenset[str]``, ``dict[str, X]`` and ``Any`` (whatever JSON holds), and plain
dataclasses of these become JSON. A plain ``int`` is a count, from 0 to 2**53, unless :class:`Between` says
otherwise; every float is finite. Tensors and NumPy arrays (described by :class:`Spec`), other records, and tuples and
dicts of either keep their numbers. A field whose type is the base class of several records takes any of them; one of
type :class:`~evergrow.core.archive.Archive` is left unread. ``field(metadata=UNWRITTEN)`` is not written. Unknown
fields are kept in a field of type :class:`Extra`, or plain ones alone in a dict with ``metadata=UNKNOWN``.

A field with a default is optional in files. ``check`` says what must fit together beyond single fields; it may raise
anything of :class:`EvergrowError`. What a file gets wrong is always a :class:`FileFormatError`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, is_dataclass
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
from evergrow.core.files import atomic_path
from evergrow.core.registry import load_plugins, nearest
from evergrow.core.version import __version__

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

UNWRITTEN = types.MappingProxyType({"written": False})
"""Metadata of a dataclass field that is no part of files; it must have a default."""

UNKNOWN = types.MappingProxyType({"unknown": True})
"""Metadata of a dict field that holds the plain values of a file that no other field knows, to be written again."""

_LARGEST_INTEGER = 2**53
_UNUSABLE = (
    EvergrowError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
)
"""What a constructor or a check may raise for values that cannot be."""


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included; ``above`` excludes a lower bound.

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
    evergrow.core.errors.FileFormatError: split.json: 'share' should be a number from 0 to 1, but is 2
    """

    low: float = -math.inf
    high: float = math.inf
    above: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number lies within the bounds."""
        return self.low <= value <= self.high and (
            self.above is None or value > self.above
        )

    def __str__(self) -> str:
        if self.above is not None:
            return f"above {self.above:g}"
        return f"from {self.low:g}" + (
            "" if self.high == math.inf else f" to {self.high:g}"
        )


@dataclass(frozen=True)
class Spec:
    """What a tensor must be; its numbers are always finite.

    Parameters
    ----------
    shape : tuple of int, str or None, optional
        Its shape. A string is a length that all tensors of the record share under this name, None is any length.
    dtype : str or None
        Name of its type in torch; None for any.
    largest : float, optional
        The largest size of any number: what overflows later would be no number in an answer.
    symmetric : bool
        Whether it is a symmetric matrix, of which a file holds the lower triangle, row by row.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> from typing import Annotated
    >>> import torch
    >>> from evergrow.core.record import Spec, from_archive, record, to_archive
    >>> gram = ("gram", Annotated[torch.Tensor, Spec(("k", "k"), dtype=None, symmetric=True)])
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
    """What a file holds beyond the fields that this version knows, to be written again."""

    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Archive] = field(default_factory=dict)


NOTHING = Extra()
"""The default of an ``extra`` field."""


_CLASSES: dict[str, type] = {}
_KINDS: dict[type, tuple[str, int]] = {}
"""What files call the objects of a class, and the version of the layout that is written."""


def record(kind: str, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that makes objects writable under a kind.

    Parameters
    ----------
    kind : str
        What files call it; never the name of a class, which may change.
    version : int
        The layout that is written. A new optional field is no new version; a file of a newer version is refused.

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
        _CLASSES[kind], _KINDS[cls] = cls, (kind, version)
        return cls

    return decorate


def require(condition: bool, problem: str) -> None:
    """Raise :class:`FileFormatError` unless a condition holds; for ``check`` methods.

    Examples
    --------
    >>> from evergrow.core.record import require
    >>> require(1 + 1 == 2, "its numbers do not add up")
    """
    if not condition:
        raise FileFormatError(problem)


# -- writing --------------------------------------------------------------------------------------------------


def to_archive(item: Any) -> Archive:
    """Return what a file holds of a record.

    Parameters
    ----------
    item : object
        Of a class that was registered by :func:`record`.
    """
    return make_archive(type(item), written_values(item))


def make_archive(cls: type, values: Mapping[str, Any]) -> Archive:
    """Return an archive of the kind of a class from values by name: plain ones, tensors, records, or several of these.

    Parameters
    ----------
    cls : type
        A registered class.
    values : mapping of str to object
        What it holds; an :class:`Extra` among them is written again.
    """
    kind, version = _kind(cls)
    archive = Archive(kind, {}, version=version)
    for extra in (value for value in values.values() if isinstance(value, Extra)):
        archive.meta.update(extra.values)
        archive.tensors.update(extra.tensors)
        archive.parts.update(extra.parts)
    for name, value in values.items():
        if not isinstance(value, Extra) and not _put(archive, name, value):
            archive.meta[name] = to_values(value)
    return archive


def to_values(item: Any) -> Any:
    """Return a plain dataclass, or what consists of them, in values that JSON holds.

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
        values = written_values(item)
        extra = next(
            (value for value in values.values() if isinstance(value, Extra)), NOTHING
        )
        return {
            **extra.values,
            **{
                key: to_values(v)
                for key, v in values.items()
                if not isinstance(v, Extra)
            },
        }
    if isinstance(item, Mapping):
        return {str(key): to_values(value) for key, value in item.items()}
    if isinstance(item, (set, frozenset)):
        return sorted(to_values(value) for value in item)
    if isinstance(item, (list, tuple)):
        return [to_values(value) for value in item]
    if isinstance(item, np.generic):
        return item.item()
    return os.fspath(item) if isinstance(item, os.PathLike) else item


def _kind(cls: type) -> tuple[str, int]:
    for base in cls.__mro__:
        if base in _KINDS:
            return _KINDS[base]
    raise TypeError(
        f"{cls.__name__} is no record: it must be registered, or decorated by @record(kind), to be written"
    )


def written_values(item: Any) -> dict[str, Any]:
    """Return what is written of a dataclass by field, without what is empty by default; see :func:`make_archive`."""
    values = {}
    for entry in _written_fields(type(item)):  # type: ignore[arg-type]
        value = getattr(item, entry.name)
        default = (
            entry.default
            if entry.default_factory is MISSING
            else entry.default_factory()
        )
        # Other defaults may change from version to version, and old files must keep their meaning.
        if (value is None and default is None) or (
            _is_empty(value) and _is_empty(default)
        ):
            continue
        if _is_tensor(value) and _is_symmetric(type(item), entry.name):  # type: ignore[arg-type]
            value = _lower_triangle(value)
        values[entry.name] = Extra(value) if entry.metadata.get("unknown") else value
    return values


@cache
def _is_symmetric(cls: Any, name: str) -> bool:
    stored = _stored_apart({entry.name: hint for entry, hint in _plan(cls)}[name])
    return stored is not None and stored[3].symmetric


def _lower_triangle(matrix: torch.Tensor) -> torch.Tensor:
    """Return the entries of a matrix (k, k) up to its diagonal, row by row, (k (k + 1) / 2,)."""
    import torch

    rows = [row[: index + 1] for index, row in enumerate(matrix)]
    return torch.cat(rows) if rows else matrix.flatten()


def _is_empty(value: Any) -> bool:
    return isinstance(value, (str, tuple, list, dict, frozenset)) and not value


def _put(archive: Archive, name: str, value: Any) -> bool:
    """Put a tensor, a record or several of them where they belong; return False for anything else."""
    if _is_tensor(value):
        archive.tensors[name] = value
    elif _is_part(value):
        archive.parts[name] = value if isinstance(value, Archive) else to_archive(value)
    elif isinstance(value, (tuple, list, Mapping)) and value:
        entries = value if isinstance(value, Mapping) else dict(enumerate(value))
        first = next(iter(entries.values()))
        if not (_is_tensor(first) or _is_part(first)):
            return False
        for key, entry in entries.items():
            _put(archive, f"{name}.{key}", entry)
    else:
        return False
    return True


def _is_part(value: Any) -> bool:
    return isinstance(value, Archive) or any(
        base in _KINDS for base in type(value).__mro__
    )


def _is_tensor(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(
        value, "nbytes"
    )


# -- reading --------------------------------------------------------------------------------------------------


def from_archive(
    cls: type[T],
    archive: Archive,
    *,
    device: str | torch.device | None = None,
    name: str = "the archive",
) -> T:
    """Return the record that an archive holds.

    Parameters
    ----------
    cls : type
        The class that is wanted, or a base class of several.
    archive : Archive
        What a file holds.
    device : str or torch.device, optional
        Where its tensors will lie; by default the CPU.
    name : str
        What messages call it: a path, or a path and what is inside it.

    Raises
    ------
    FileFormatError
        If it holds something else, or what it says cannot be.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    found = _class_of(cls, archive.kind, name)
    _check_version(found, archive.version, name)
    return read_fields(found, archive, device=device, name=name)  # type: ignore[no-any-return]


def check_kind(cls: type, archive: Archive, name: str = "the archive") -> None:
    """Raise :class:`FileFormatError` unless an archive is of the kind of a class, in the version that is read."""
    kind = _kind(cls)[0]
    if archive.kind != kind:
        raise FileFormatError(f"{name} holds {archive.kind!r:.60}, not {kind!r}")
    _check_version(cls, archive.version, name, archive.meta.get("evergrow"))


def read_fields(
    cls: type[T],
    archive: Archive,
    *,
    device: str | torch.device | None = None,
    name: str = "the archive",
) -> T:
    """Return a plain dataclass of what an archive of any kind holds; what it has no field for is passed over."""
    return _Reader(archive, device, name).build(cls)


def from_values(cls: type[T], values: Any, name: str) -> T:
    """Return the plain dataclass that JSON values describe, or raise :class:`FileFormatError`.

    Parameters
    ----------
    cls : type
        The class.
    values : object
        What :func:`to_values` gave, as it came from a file.
    name : str
        What messages call the place.
    """
    if not isinstance(values, dict):
        _refuse(name, "an object", values)
    return _Reader(Archive("", values), None, name).build(cls)


class _Reader:
    """One archive while a record is built from it; lengths that have a name are remembered."""

    def __init__(self, archive: Archive, device: Any, name: str) -> None:
        self.archive, self.device, self.name = archive, device, name
        self.lengths: dict[str, int] = {}
        self.used: set[str] = set()

    def build(self, cls: type[T]) -> T:
        arguments: dict[str, Any] = {}
        keepers: dict[
            str, bool
        ] = {}  # fields for what no other asks for: all of it, or plain values alone
        for entry, hint in _plan(cls):  # type: ignore[arg-type]
            if hint is Extra or entry.metadata.get("unknown"):
                keepers[entry.name] = hint is Extra
                continue
            value = self.read(entry.name, hint)
            if value is not MISSING:
                arguments[entry.name] = value
            elif entry.default is MISSING and entry.default_factory is MISSING:
                raise FileFormatError(
                    f"{self.name} lacks {entry.name!r}; it is damaged, or something else"
                )
        contents: Any = (self.archive.meta, self.archive.tensors, self.archive.parts)
        for name, whole in keepers.items():
            rest = Extra(
                *(
                    {key: kept[key] for key in kept if key not in self.used}
                    for kept in contents
                )
            )
            arguments[name] = rest if whole else rest.values
        try:
            made = cls(**arguments)
            if hasattr(made, "check"):
                made.check()
        except NewerSchemaError:
            raise
        except _UNUSABLE as error:
            raise FileFormatError(
                f"{self.name} is damaged or contradicts itself: {error}"
            ) from error
        return made

    def read(self, key: str, hint: Any) -> Any:
        """Return the value of a field, or MISSING where the file has none."""
        self.used.add(key)
        meta, stored = self.archive.meta, _stored_apart(hint)
        if stored is None:
            return (
                _loader(hint)(meta[key], f"{self.name}: {key!r}")
                if key in meta
                else MISSING
            )
        optional, form, bare, spec = stored
        found = (
            self.apart(key, bare, spec)
            if form is None
            else self.several(key, form, bare, spec)
        )
        return None if found is MISSING and optional and key in meta else found

    def several(self, key: str, form: type, bare: Any, spec: Spec) -> Any:
        """Return all tensors or records of a tuple or a dict."""
        source = self.archive.tensors if _is_array(bare) else self.archive.parts
        names = [
            name.removeprefix(f"{key}.")
            for name in source
            if name.startswith(f"{key}.")
        ]
        if not names and key not in self.archive.meta:
            return MISSING
        if form is not dict:
            expected = [str(index) for index in range(len(names))]
            if set(names) != set(expected):
                raise FileFormatError(
                    f"{self.name}: {key!r} should be numbered from 0 on, but is not"
                )
            names = expected
        self.used.update(f"{key}.{name}" for name in names)
        found = {
            name: self.apart(f"{key}.{name}", bare, spec) for name in sorted(names)
        }
        return found if form is dict else form(found[name] for name in names)

    def apart(self, key: str, hint: Any, spec: Spec) -> Any:
        """Return a tensor, an array or a record."""
        if _is_array(hint):
            if key not in self.archive.tensors:
                return MISSING
            found = self.array(key, spec)
            if _is_numpy(hint):
                return found
            import torch

            return torch.from_numpy(found).to(self.device)
        if key not in self.archive.parts:
            return MISSING
        part = self.archive.parts[key]
        return (
            part
            if hint is Archive
            else from_archive(
                hint, part, device=self.device, name=f"{self.name}: {key}"
            )
        )

    def array(self, key: str, spec: Spec) -> NDArray[Any]:
        """Return a tensor after comparing it with what is known of it."""
        tensor, name = as_array(self.archive.tensors[key]), f"{self.name}: {key!r}"
        if spec.dtype is not None and tensor.dtype != spec.dtype:
            _refuse(name, f"a tensor of {spec.dtype}", str(tensor.dtype))
        if spec.symmetric:
            tensor = _symmetric(tensor, name)
        if spec.shape is not None:
            lengths: dict[Any, Any] = self.lengths
            wanted: Any = tuple(
                "any" if n is None else lengths.get(n, n) for n in spec.shape
            )
            if len(tensor.shape) != len(wanted) or any(
                n != "any"
                and m != (self.lengths.setdefault(n, m) if isinstance(n, str) else n)
                for n, m in zip(wanted, tensor.shape, strict=True)
            ):
                _refuse(name, f"a tensor of shape {wanted}", f"one of {tensor.shape}")
        if tensor.dtype.kind == "f" and tensor.size:
            smallest, largest = (
                float(tensor.min()),
                float(tensor.max()),
            )  # one of them is NaN where there is one
            if not math.isfinite(smallest) or not math.isfinite(largest):
                raise FileFormatError(f"{name} should have finite numbers only")
            if spec.largest is not None and max(-smallest, largest) > spec.largest:
                raise FileFormatError(
                    f"{name} should have numbers of at most {spec.largest:g}, but has larger ones"
                )
        return tensor


def _symmetric(triangle: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the matrix of a lower triangle: twice the size of what a file holds."""
    order = (math.isqrt(8 * triangle.size + 1) - 1) // 2
    if triangle.ndim != 1 or order * (order + 1) // 2 != triangle.size:
        _refuse(
            name,
            "the lower triangle of a matrix, row by row",
            f"a tensor of shape {triangle.shape}",
        )
    matrix = np.empty((order, order), dtype=triangle.dtype)
    for index in range(order):
        start = index * (index + 1) // 2
        matrix[index, : index + 1] = matrix[: index + 1, index] = triangle[
            start : start + index + 1
        ]
    return matrix


Loader = Callable[[Any, str], Any]
_PLAIN: dict[Any, str] = {bool: "true or false", str: "a string", type(None): "null"}


@cache
def _loader(hint: Any) -> Loader:
    """Return the function that turns what JSON holds into a value of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = next(
            (note for note in arguments[1:] if isinstance(note, Between)), None
        )
        return (
            _bounded(arguments[0], bounds)
            if arguments[0] in (int, float)
            else _loader(arguments[0])
        )
    if hint in (int, float):
        return _bounded(hint, None)
    if hint is Any:
        return lambda value, name: value
    if hint in _PLAIN:
        return _checked(_PLAIN[hint], lambda value: isinstance(value, hint))
    if origin is Literal:
        choices = f"one of {', '.join(map(repr, arguments))}"
        return _checked(
            choices,
            lambda value: any(
                type(each) is type(value) and each == value for each in arguments
            ),
        )
    if origin in (Union, types.UnionType):
        return _any_of(arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, name: from_values(hint, value, name)
    if origin is dict:
        item = _loader(arguments[1])
        return _checked(
            "an object",
            lambda value: isinstance(value, dict),
            lambda value, name: {
                key: item(entry, f"{name}: {key!r}") for key, entry in value.items()
            },
        )
    if origin not in (tuple, list, frozenset):
        raise TypeError(
            f"a field of type {hint!r} cannot be read from a file; see evergrow.core.record"
        )
    length = (
        len(arguments) if origin is tuple and arguments[-1] is not Ellipsis else None
    )
    items = [_loader(each) for each in arguments if each is not Ellipsis]
    return _checked(
        "a list" if length is None else f"a list of {length}",
        lambda value: isinstance(value, list) and length in (None, len(value)),
        lambda value, name: origin(
            items[i % len(items)](entry, f"{name} {i}") for i, entry in enumerate(value)
        ),
    )


def _checked(
    wanted: str, accepts: Callable[[Any], bool], convert: Loader | None = None
) -> Loader:
    """Return a function that refuses what it does not accept, and converts the rest."""

    def load(value: Any, name: str) -> Any:
        if not accepts(value):
            _refuse(name, wanted, value)
        return value if convert is None else convert(value, name)

    return load


def _bounded(kind: Any, bounds: Between | None) -> Loader:
    within = bounds or (Between(0, _LARGEST_INTEGER) if kind is int else Between())
    wanted = (
        f"an integer {within}"
        if kind is int
        else "a finite number"
        if bounds is None
        else f"a number {within}"
    )
    accepted: Any = int if kind is int else (int, float)

    def holds(value: Any) -> bool:
        # An integer beyond the range of floats must not end in an OverflowError.
        usable = (
            isinstance(value, accepted)
            and not isinstance(value, bool)
            and abs(value) < 2**1000
        )
        return usable and math.isfinite(value) and within.holds(value)

    return _checked(wanted, holds, lambda value, name: kind(value))


def _any_of(hints: tuple[Any, ...]) -> Loader:
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


def _refuse(name: str, wanted: str, value: Any) -> NoReturn:
    shown = repr(value)
    raise FileFormatError(
        f"{name} should be {wanted}, but is {shown if len(shown) <= 60 else shown[:57] + '...'}"
    )


# -- what types say -------------------------------------------------------------------------------------------


@cache
def _written_fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(
        entry
        for entry in dataclasses.fields(cls)
        if entry.init and entry.metadata.get("written", True)
    )


@cache
def _plan(cls: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((entry, hints[entry.name]) for entry in _written_fields(cls))


@cache
def _stored_apart(hint: Any) -> tuple[bool, Any, Any, Spec] | None:
    """Return how values of a type are stored beside the JSON; None where they are in it.

    That is whether the value may be None, the container (dict, list or tuple) of several values or None, the type of
    each, and what is known of a tensor. Arrays are stored apart, and records or base classes of records.
    """
    optional, form = False, None
    if get_origin(hint) in (Union, types.UnionType):
        others = [item for item in get_args(hint) if item is not type(None)]
        optional, hint = len(others) == 1, others[0] if len(others) == 1 else hint
    spec, hint = _specified(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if (
        origin is dict
        or origin is list
        or (origin is tuple and arguments[-1] is Ellipsis)
    ):
        form = origin
        spec, hint = _specified(arguments[1 if origin is dict else 0])
    if not _is_array(hint) and hint is not Archive:
        plain = (Any, int, float, *_PLAIN, Extra, dict, list, tuple, frozenset)
        if not isinstance(hint, type) or hint in plain or get_origin(hint):
            return None
        if hint not in _KINDS and not inspect.isabstract(hint) and is_dataclass(hint):
            return None
    return optional, form, hint, spec


def _specified(hint: Any) -> tuple[Spec, Any]:
    """Return what a hint says of a tensor, and the hint without it."""
    if get_origin(hint) is Annotated:
        bare, *notes = get_args(hint)
        return next((note for note in notes if isinstance(note, Spec)), Spec()), bare
    return Spec(), hint


def _is_array(hint: Any) -> bool:
    return _is_numpy(hint) or (
        isinstance(hint, type)
        and hint.__module__ == "torch"
        and hint.__name__ == "Tensor"
    )


def _is_numpy(hint: Any) -> bool:
    origin = get_origin(hint) or hint
    value = getattr(
        origin, "__value__", origin
    )  # from NumPy 2.5 on NDArray is an alias of this kind
    return value is np.ndarray or get_origin(value) is np.ndarray


def _class_of(cls: type, kind: str, name: str) -> Any:
    if kind not in _CLASSES:
        load_plugins()
    found = _CLASSES.get(kind)
    if found is None:
        raise FileFormatError(
            f"{name} holds {kind!r}, which is unknown here; nearest: {nearest(kind, _CLASSES)}"
        )
    if not issubclass(found, cls):
        wanted = [known for known, other in _CLASSES.items() if issubclass(other, cls)]
        raise FileFormatError(
            f"{name} holds {kind!r}, not {' or '.join(map(repr, sorted(wanted)))}"
        )
    return found


def _check_version(cls: type, version: Any, name: str, writer: Any = None) -> None:
    kind, known = _kind(cls)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FileFormatError(
            f"{name} should state the version of its layout, but states {version!r:.60}"
        )
    if version > known:
        needed = f" ({writer})" if isinstance(writer, str) and len(writer) < 20 else ""
        raise NewerSchemaError(
            f"{name} was written by a newer evergrow{needed}: it has version {version} of {kind!r}, and this one "
            f"reads up to {known}; upgrade with 'pip install -U evergrow'"
        )
    if version < known:
        raise FileFormatError(
            f"{name} was written by an older evergrow, whose files are not read any more"
        )


# -- files ----------------------------------------------------------------------------------------------------


def write_record(path: str | os.PathLike[str], item: Any) -> str:
    """Write a record to one file, atomically, and return its checksum; the same record gives the same bytes."""
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
    """Return a record without tensors as a JSON object that states its kind, its version and who wrote it.

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
    evergrow.core.errors.NewerSchemaError: note.json was written by a newer evergrow (0.9): ...
    """
    kind, version = _kind(type(item))
    return {
        "schema": kind,
        "version": version,
        "evergrow": __version__,
        **to_values(item),
    }


def from_document(cls: type[T], values: Any, name: str) -> T:
    """Return the record that :func:`to_document` described, or raise :class:`FileFormatError`."""
    if not isinstance(values, dict):
        _refuse(name, "an object", values)
    check_kind(
        cls,
        Archive(values.get("schema", ""), values, version=values.get("version", 0)),
        name,
    )
    stated = ("schema", "version", "evergrow")
    return from_values(
        cls, {key: value for key, value in values.items() if key not in stated}, name
    )


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
