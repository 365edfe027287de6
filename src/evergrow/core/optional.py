"""Import optional dependencies, with an error that says how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType

from evergrow.core.errors import MissingExtraError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional dependency.

    Parameters
    ----------
    module : str
        Name of the module, for example ``"matplotlib.figure"``.
    extra : str
        Extra of evergrow that installs it.
    purpose : str
        Purpose of the module, as the subject of a sentence.

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
    evergrow.core.errors.MissingExtraError: drawing figures must have no_such_module ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if error.name not in (name, module):
            # The module is installed, but one of its dependencies is not.
            raise
        raise MissingExtraError(
            f"{purpose} must have {name} installed, but it is not: "
            f"pip install 'evergrow[{extra}]'"
        ) from error
