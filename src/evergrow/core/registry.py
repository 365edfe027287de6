"""Registries that are filled by decorators, also of plugins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from evergrow.core.errors import UnknownNameError

T = TypeVar("T")

GROUP = "evergrow.plugins"
"""Group of entry points. A plugin registers its classes when it is imported."""


@cache
def load_plugins(group: str = GROUP) -> tuple[str, ...]:
    """Import every plugin of a group once per process. Return their names, sorted.

    Registries call this for unknown names and for lists of all names only, so that
    plugins cost no import time otherwise.

    Parameters
    ----------
    group : str
        Group of entry points.

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
    """Return at most `n` similar names in quotes, or all names if none is similar.

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
    """Mapping of names to objects, filled by a decorator.

    Parameters
    ----------
    kind : str
        Kind of the objects in messages, for example ``"method"``.
    plugins : bool, default=False
        Whether plugins may add objects. They are loaded when a name is unknown or all
        names are listed.

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
    evergrow.core.errors.UnknownNameError: There is no shape 'circel'; nearest: ...
    """

    def __init__(self, kind: str, *, plugins: bool = False) -> None:
        self.kind = kind
        self.plugins = plugins
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its target under `name`."""

        def decorate(item: T) -> T:
            if name in self._items and self._items[name] is not item:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._items[name] = item
            return item

        return decorate

    def remove(self, name: str) -> None:
        """Remove a name, if it is registered."""
        self._items.pop(name, None)

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._complete())

    def _complete(self) -> dict[str, T]:
        """Return all objects by name, after loading plugins."""
        if self.plugins:
            load_plugins()
        return self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())

    def __getitem__(self, name: str) -> T:
        # Plugins are loaded only if the name is unknown without them.
        try:
            if name in self._items:
                return self._items[name]
            return self._complete()[name]
        except (KeyError, TypeError):
            raise UnknownNameError(
                f"There is no {self.kind} {name!r}; "
                f"nearest: {nearest(str(name), self._items)}."
            ) from None
