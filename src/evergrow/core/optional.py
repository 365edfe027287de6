"""Optional dependencies: imported where they are used, and a missing one says how to get it."""

from __future__ import annotations

import importlib
from types import ModuleType

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
