"""Optional dependencies: imported where they are used, and a missing one says how to get it."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from evergrow.core.errors import MissingExtraError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module that comes with an extra of evergrow, or say which pip line brings it.

    Parameters
    ----------
    module : str
        Name to import, for example ``"matplotlib.figure"``.
    extra : str
        The extra that holds it.
    purpose : str
        What it is needed for, as the subject of a sentence.

    Raises
    ------
    MissingExtraError
        If it is not installed.

    Examples
    --------
    >>> from evergrow.core.optional import require
    >>> require("json", extra="none", purpose="reading text").__name__
    'json'
    >>> require("no_such_module", extra="lab", purpose="drawing figures")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.MissingExtraError: drawing figures must have no_such_module installed, ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise  # the module is there; something that it needs is not, and saying otherwise would mislead
        name = module.partition(".")[0]
        raise MissingExtraError(
            f"{purpose} must have {name} installed, but it is not: pip install 'evergrow[{extra}]'"
        ) from error


def is_instance_of(value: Any, module: str, *names: str) -> bool:
    """Return whether something is an instance of a class of a module that may not be imported, without importing it.

    Whoever has such an object has imported it. Another thread may be about to: then the module is there and its classes
    are not yet.

    Examples
    --------
    >>> from decimal import Decimal
    >>> from evergrow.core.optional import is_instance_of
    >>> is_instance_of(Decimal(1), "decimal", "Decimal"), is_instance_of(1, "never.imported", "Thing")
    (True, False)
    """
    found = sys.modules.get(module)
    return isinstance(value, tuple(kind for name in names if isinstance(kind := getattr(found, name, None), type)))
