"""Settings as frozen dataclasses: from plain values, which may hold no unknown key, and back to plain values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import nearest

T = TypeVar("T")


def check_keys(given: Iterable[Any], known: Iterable[str], what: str) -> None:
    """Raise :class:`UnknownNameError` for the first key that is not known; the message names the nearest that are.

    Parameters
    ----------
    given : iterable
        Keys that were given.
    known : iterable of str
        Keys that there are.
    what : str
        What to call such a key in the message: "data setting", "option of method 'scl'".

    Examples
    --------
    >>> from evergrow.core.settings import check_keys
    >>> check_keys(["epoch"], ["epochs", "lr"], "training setting")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: training setting must be known, got 'epoch'; nearest: 'epochs'
    """
    names = list(known)
    for key in given:
        if key not in names:
            close = nearest(str(key), names) if names else "none, there are none"
            raise UnknownNameError(f"{what} must be known, got {key!r}; nearest: {close}")


def field_names(settings: Any) -> list[str]:
    """Return the names of the fields of settings, or of a class of settings, in order.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> from evergrow.core.settings import field_names
    >>> field_names(make_dataclass("Box", ["width", "height"]))
    ['width', 'height']
    """
    return [item.name for item in fields(settings)]


def from_mapping(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Return the settings with these values, the rest being defaults.

    Parameters
    ----------
    cls : type
        A dataclass.
    values : mapping of str to object
        Values of its fields, for example out of JSON or TOML.
    what : str
        What to call one of its settings in messages.

    Raises
    ------
    UnknownNameError
        For a key that is no field; the message names the nearest.
    ParameterError
        If ``values`` is no mapping, or a field without a default is missing; or what the class itself refuses.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from evergrow.core.settings import from_mapping
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     width: int = 1
    >>> from_mapping(Box, {"width": 3}, "setting of a box")
    Box(width=3)
    >>> from_mapping(Box, {"widht": 3}, "setting of a box")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: setting of a box must be known, got 'widht'; nearest: 'width'
    """
    if not isinstance(values, Mapping):
        raise ParameterError(f"settings must be values by name, each a {what}, got {type(values).__name__}")
    check_keys(values, field_names(cls), what)
    try:
        return cls(**values)
    except TypeError as error:
        raise ParameterError(f"settings must have every {what} that has no default: {error}") from error


def with_changes(settings: T, changes: Mapping[str, Any], what: str) -> T:
    """Return settings with some of them changed; an unknown name is an error that names the nearest.

    Parameters
    ----------
    settings : dataclass
        Stays as it is.
    changes : mapping of str to object
        New values by field.
    what : str
        What to call one of the settings in messages.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from evergrow.core.settings import with_changes
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     width: int = 1
    >>> with_changes(Box(), {"width": 3}, "setting of a box")
    Box(width=3)
    """
    check_keys(changes, field_names(settings), what)
    return replace(settings, **changes)  # type: ignore[type-var]


def to_plain(settings: Any) -> Any:
    """Return settings as plain values that JSON holds: objects, lists, strings for paths.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from pathlib import Path
    >>> from evergrow.core.settings import to_plain
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     sides: tuple[int, ...] = (1, 2)
    ...     place: Path = Path("attic")
    >>> to_plain(Box())
    {'sides': [1, 2], 'place': 'attic'}
    """
    if is_dataclass(settings) and not isinstance(settings, type):
        return {name: to_plain(getattr(settings, name)) for name in field_names(settings)}
    if isinstance(settings, Mapping):
        return {key: to_plain(value) for key, value in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [to_plain(value) for value in settings]
    return os.fspath(settings) if isinstance(settings, os.PathLike) else settings


def lists_to_tuples(settings: Any) -> None:
    """Turn the lists among the fields of a frozen dataclass into tuples, for its ``__post_init__``.

    Settings read from JSON are then equal to the ones that were written.
    """
    for name in field_names(settings):
        if isinstance(getattr(settings, name), list):
            object.__setattr__(settings, name, tuple(getattr(settings, name)))
