"""Every method by name: heads on features, methods that train a network, and heads after first-session adaptation."""

from __future__ import annotations

import inspect
from typing import Any

import evergrow.heads
import evergrow.methods.apt
import evergrow.methods.coda_prompt
import evergrow.methods.ease
import evergrow.methods.joint
import evergrow.methods.sd_lora  # noqa: F401 (these fill the registry of image methods)
from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.core.settings import check_keys
from evergrow.heads.base import HEADS, IncrementalClassifier
from evergrow.methods.fsa_classifier import create_fsa, fsa_methods, fsa_options
from evergrow.methods.image_classifier import IMAGE_METHODS, ImageClassifier

_OF_THE_CALL = ("backbone", "cache", "checkpoint", "progress")
"""Arguments of methods that learn from images that say nothing about the method."""


def list_methods() -> list[str]:
    """Return the names of all methods, sorted.

    Examples
    --------
    >>> from evergrow.methods import list_methods
    >>> {"scl-mgsm", "ranpac+fsa", "ease"} <= set(list_methods())
    True
    """
    return sorted([*HEADS.names(), *IMAGE_METHODS.names(), *fsa_methods()])


def _check_name(name: str) -> None:
    known = list_methods()
    if name not in known:
        raise UnknownNameError(
            f"method must be one of the registered names, got {name!r}; nearest: {nearest(str(name), known)}"
        )


def method_needs(name: str) -> str:
    """Return what a method learns from: ``"features"`` or ``"images"``.

    Examples
    --------
    >>> from evergrow.methods import method_needs
    >>> method_needs("ranpac"), method_needs("ranpac+fsa")
    ('features', 'images')
    """
    _check_name(name)
    return "features" if name in HEADS else "images"


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
    >>> method_options("scl-mgsm+fsa")["adapt"]
    'auto'
    """
    _check_name(name)
    if name in HEADS:
        return _signature(HEADS[name])
    known = _signature(IMAGE_METHODS[name]) if name in IMAGE_METHODS else fsa_options(name)
    return {option: default for option, default in known.items() if option not in _OF_THE_CALL}


def _signature(kind: type[IncrementalClassifier] | type[ImageClassifier]) -> dict[str, Any]:
    parameters = inspect.signature(kind.__init__).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {item.name: item.default for item in parameters if item.kind in kinds and item.name != "self"}


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raise :class:`UnknownNameError` for an option that the method does not have."""
    known = method_options(name)
    allowed = {*known, *(_OF_THE_CALL if method_needs(name) == "images" else ())}
    check_keys(options, allowed, f"option of method {name!r}")


def create_method(name: str, **options: Any) -> Any:
    """Return a fresh, unfitted learner.

    Parameters
    ----------
    name : str
        One of :func:`list_methods`.
    **options
        Arguments of its class; see its docstring. A method that learns from images takes ``backbone`` too.

    Returns
    -------
    IncrementalClassifier or ImageClassifier

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
    if name in HEADS:
        return HEADS[name](**options)
    return IMAGE_METHODS[name](**options) if name in IMAGE_METHODS else create_fsa(name, **options)
