"""Registries by decorator, filled by plugins too, with helpful errors for names that are not there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from evergrow.core.errors import UnknownNameError

T = TypeVar("T")

GROUP = "evergrow.plugins"
"""Entry points that register what a package adds. Importing the module is all that happens."""


@cache
def load_plugins(group: str = GROUP) -> tuple[str, ...]:
    """Import every plugin of a group once and return their names.

    Registries call it when a name is not there, so that what no plugin is needed for costs no import.

    Parameters
    ----------
    group : str
        The group of entry points.

    Examples
    --------
    >>> from evergrow.core.registry import load_plugins
    >>> "lab" in load_plugins()
    True
    """
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    for entry in found:
        entry.load()
    return tuple(entry.name for entry in found)


def nearest(name: str, known: Iterable[str], n: int = 3) -> str:
    """Return a readable list of the names nearest to ``name``.

    Examples
    --------
    >>> from evergrow.core.registry import nearest
    >>> nearest("gausian", ["gaussian", "fourier"])
    "'gaussian'"
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=n, cutoff=0.5) or names
    return ", ".join(repr(item) for item in close)


class Registry(Mapping[str, T]):
    """A name-to-object table filled by a decorator.

    Parameters
    ----------
    kind : str
        What is registered, for messages ("projection", "method", ...).
    plugins : bool
        Whether other packages may add to it: they are loaded when a name is missing or all names are asked for.

    Examples
    --------
    >>> from evergrow.core.registry import Registry
    >>> shapes = Registry("shape")
    >>> @shapes.register("circle")
    ... class Circle: ...
    >>> shapes.names()
    ['circle']
    >>> shapes["circel"]
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: There is no shape 'circel'; nearest: 'circle'.
    """

    def __init__(self, kind: str, *, plugins: bool = False) -> None:
        self.kind, self.plugins = kind, plugins
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files its target under ``name``."""

        def decorate(item: T) -> T:
            if name in self._items and self._items[name] is not item:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._items[name] = item
            return item

        return decorate

    def remove(self, name: str) -> None:
        """Take a name out, so that a test or a notebook can register it again; one that is not there is no error."""
        self._items.pop(name, None)

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._complete())

    def _complete(self) -> dict[str, T]:
        if self.plugins:
            load_plugins()
        return self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name] if name in self._items else self._complete()[name]
        except (KeyError, TypeError):
            raise UnknownNameError(
                f"There is no {self.kind} {name!r}; nearest: {nearest(str(name), self._items)}."
            ) from None
