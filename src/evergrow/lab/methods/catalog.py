"""Every method by name: heads on features, methods that train a network, and heads after first-session adaptation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import evergrow.head  # noqa: F401 (fills the registry)
from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.core.validation import check_keys
from evergrow.head.base import HEADS
from evergrow.lab.methods.fsa_classifier import create_fsa, fsa_methods, fsa_options
from evergrow.lab.methods.image_classifier import IMAGE_METHODS

_OF_THE_CALL = ("backbone", "cache", "progress")
"""Arguments of methods that learn from images that say nothing about the method."""


@dataclass(frozen=True)
class MethodFamily:
    """Methods that are listed and made in one way.

    Parameters
    ----------
    learns_from : {"features", "images"}
        What its methods take.
    names : callable
        Returns the names of all of them, those that were registered later among them.
    options : callable
        From a name to the arguments of the method and their defaults.
    create : callable
        From a name and options to an unfitted method.
    """

    learns_from: str
    names: Callable[[], list[str]]
    options: Callable[[str], dict[str, Any]]
    create: Callable[..., Any]


def _signature(kind: type) -> dict[str, Any]:
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {item.name: item.default for item in parameters if item.kind in kinds and item.name != "self"}


FAMILIES = (
    MethodFamily("features", HEADS.names, lambda name: _signature(HEADS[name]), lambda name, **o: HEADS[name](**o)),
    MethodFamily(
        "images",
        IMAGE_METHODS.names,
        lambda name: _signature(IMAGE_METHODS[name]),
        lambda name, **o: IMAGE_METHODS[name](**o),
    ),
    MethodFamily("images", fsa_methods, fsa_options, create_fsa),
)
"""All families; a method registered in one of their tables is known everywhere."""


def list_methods() -> list[str]:
    """Return the names of all methods, sorted.

    Examples
    --------
    >>> from evergrow.lab.methods import list_methods
    >>> {"scl-mgsm", "ranpac+fsa", "ease"} <= set(list_methods())
    True
    """
    return sorted(name for family in FAMILIES for name in family.names())


def _family(name: str) -> MethodFamily:
    """Return the family of a method, or raise :class:`UnknownNameError`."""
    for family in FAMILIES:
        if name in family.names():
            return family
    raise UnknownNameError(
        f"method must be one of the registered names, got {name!r}; nearest: {nearest(str(name), list_methods())}"
    )


def method_needs(name: str) -> str:
    """Return what a method learns from: ``"features"`` or ``"images"``.

    Examples
    --------
    >>> from evergrow.lab.methods import method_needs
    >>> method_needs("ranpac"), method_needs("ranpac+fsa")
    ('features', 'images')
    """
    return _family(name).learns_from


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
    >>> from evergrow.lab.methods import method_options
    >>> method_options("scl-mgsm")["contraction"]
    0.99
    >>> method_options("scl-mgsm+fsa")["adapt"]
    'auto'
    """
    family = _family(name)
    left_out = _OF_THE_CALL if family.learns_from == "images" else ()
    return {option: default for option, default in family.options(name).items() if option not in left_out}


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raise :class:`UnknownNameError` for an option that the method does not have."""
    allowed = {*method_options(name), *(_OF_THE_CALL if method_needs(name) == "images" else ())}
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
    >>> from evergrow.lab.methods import create_method
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
    return _family(name).create(name, **options)
