"""Named recipes: every method that evergrow knows, by the name people use for it."""

from __future__ import annotations

import inspect
from typing import Any

import evergrow.heads  # noqa: F401 (fills the registry)
from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.heads.base import HEADS, IncrementalClassifier

__all__ = ["create_method", "list_methods", "method_options"]


def list_methods() -> list[str]:
    """Return the names of all methods, sorted.

    Examples
    --------
    >>> from evergrow.methods import list_methods
    >>> isinstance(list_methods(), list)
    True
    """
    return HEADS.names()


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method and their defaults, read from its signature.

    Parameters
    ----------
    name : str
        One of :func:`list_methods`.

    Raises
    ------
    UnknownNameError
        If there is no such method.

    Examples
    --------
    >>> from evergrow.methods import method_options
    >>> method_options("scl-mgsm")["contraction"]
    0.99
    """
    parameters = inspect.signature(HEADS[name].__init__).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {item.name: item.default for item in parameters if item.kind in kinds and item.name != "self"}


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raise :class:`UnknownNameError` for an option that the method does not have."""
    known = method_options(name)
    for option in options:
        if option not in known:
            listed = nearest(option, known) if known else "none, it has no options"
            raise UnknownNameError(f"option of method {name!r} must be one it has, got {option!r}; nearest: {listed}")


def create_method(name: str, **options: Any) -> IncrementalClassifier:
    """Return a fresh, unfitted learner.

    Parameters
    ----------
    name : str
        One of :func:`list_methods`.
    **options
        Arguments of its class; see its docstring.

    Returns
    -------
    IncrementalClassifier

    Raises
    ------
    UnknownNameError
        If the method or an option does not exist; the message names the nearest ones.

    Examples
    --------
    >>> from evergrow.methods import create_method
    >>> create_method("no-such-method")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: method must be one of the registered names, got 'no-such-...'; ...
    """
    check_options(name, options)
    missing = [
        option
        for option, default in method_options(name).items()
        if default is inspect.Parameter.empty and option not in options
    ]
    if missing:
        raise ParameterError(f"method {name!r} must be given {', '.join(missing)}")
    return HEADS[name](**options)
