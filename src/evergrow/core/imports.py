"""Imports on first use: public names of a package, and optional dependencies."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from evergrow.core.errors import MissingExtraError


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a ``__getattr__`` and a ``__dir__`` that import public names on first use.

    Parameters
    ----------
    package : str
        ``__name__`` of the package, for messages.
    homes : mapping of str to str
        The module that defines each public name.

    Examples
    --------
    >>> from evergrow.core.imports import lazy_names
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


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import and return a module of an optional dependency.

    Parameters
    ----------
    module : str
        Name of the module, for example ``"matplotlib.figure"``.
    extra : str
        Extra of evergrow that installs it.
    purpose : str
        What the module is for, as the subject of the error message.

    Raises
    ------
    MissingExtraError
        If the dependency is not installed. The message has the pip command.
    ModuleNotFoundError
        If the dependency is installed, but a package that it needs is not.

    Examples
    --------
    >>> from evergrow.core.imports import import_extra
    >>> import_extra("json", extra="none", purpose="reading text").__name__
    'json'
    >>> import_extra("no_such_module", extra="lab", purpose="drawing figures")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.MissingExtraError: drawing figures must have no_such_module ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if error.name not in (name, module):
            raise
        raise MissingExtraError(
            f"{purpose} must have {name} installed, but it is not: "
            f"pip install 'evergrow[{extra}]'"
        ) from error
