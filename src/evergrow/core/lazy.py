"""Public names that are imported on first use, so that importing a package costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package whose names live in modules that are imported on demand.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    homes : mapping of str to str
        Module of each public name.

    Examples
    --------
    >>> from evergrow.core.lazy import lazy_names
    >>> find, names = lazy_names("example", {"sqrt": "math"})
    >>> find("sqrt")(9.0), names()
    (3.0, ['sqrt'])
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted(homes)

    return find, names
