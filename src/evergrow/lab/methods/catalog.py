"""Catalogue of methods: heads, methods that train a network, and adapted heads."""

from __future__ import annotations

import inspect
from typing import Any

import evergrow.head  # noqa: F401 (fills the registry)
from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.estimator import param_defaults
from evergrow.core.registry import nearest
from evergrow.core.validation import check_keys
from evergrow.head.base import HEADS
from evergrow.lab.methods.fsa_classifier import FSA_SUFFIX, FsaClassifier, head_options
from evergrow.lab.methods.image_classifier import IMAGE_METHODS

_RUN_ARGUMENTS = ("backbone", "cache", "progress")
"""Arguments of image methods that are not options of the method."""


def list_methods() -> list[str]:
    """Return the names of all methods, sorted.

    Examples
    --------
    >>> from evergrow.lab.methods import list_methods
    >>> {"scl-mgsm", "ranpac+fsa", "ease"} <= set(list_methods())
    True
    """
    return sorted(
        [
            *HEADS.names(),
            *IMAGE_METHODS.names(),
            *(f"{head}{FSA_SUFFIX}" for head in HEADS.names()),
        ]
    )


def method_needs(name: str) -> str:
    """Return the input of a method: ``"features"`` or ``"images"``.

    Examples
    --------
    >>> from evergrow.lab.methods import method_needs
    >>> method_needs("ranpac"), method_needs("ranpac+fsa")
    ('features', 'images')
    """
    if name not in list_methods():
        close = nearest(str(name), list_methods())
        raise UnknownNameError(f"There is no method {name!r}; nearest: {close}.")
    return "features" if name in HEADS else "images"


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method and their defaults.

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
    >>> from evergrow.lab.methods import method_options
    >>> method_options("scl-mgsm")["contraction"]
    0.99
    >>> method_options("scl-mgsm+fsa")["adapt"]
    'auto'
    """
    excluded = _RUN_ARGUMENTS if method_needs(name) == "images" else ()
    return {
        option: default
        for option, default in _every_option(name).items()
        if option not in excluded
    }


def _every_option(name: str) -> dict[str, Any]:
    method_needs(name)  # raises for an unknown name
    if name.endswith(FSA_SUFFIX):
        options = param_defaults(FsaClassifier)
        del options["head"]
        return {**options, **head_options(name.removesuffix(FSA_SUFFIX))}
    return param_defaults(HEADS[name] if name in HEADS else IMAGE_METHODS[name])


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raise :class:`UnknownNameError` for an option that the method lacks."""
    check_keys(options, _every_option(name), f"option of method {name!r}")


def create_method(name: str, **options: Any) -> Any:
    """Return a new, unfitted learner.

    Parameters
    ----------
    name : str
        One of :func:`list_methods`.
    **options
        Arguments of the class of the method. Methods on images also accept
        ``backbone``.

    Returns
    -------
    IncrementalClassifier or ImageClassifier

    Raises
    ------
    UnknownNameError
        If the method or an option does not exist; the message names the nearest ones.

    Examples
    --------
    >>> from evergrow.lab.methods import create_method
    >>> create_method("no-such-method")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: There is no method 'no-such-...'; ...
    """
    check_options(name, options)
    missing = [
        option
        for option, default in method_options(name).items()
        if default is inspect.Parameter.empty and option not in options
    ]
    if missing:
        names = ", ".join(missing)
        raise ParameterError(f"method {name!r} must be given {names}")
    if name.endswith(FSA_SUFFIX):
        return FsaClassifier(name.removesuffix(FSA_SUFFIX), **options)
    return (HEADS if name in HEADS else IMAGE_METHODS)[name](**options)
