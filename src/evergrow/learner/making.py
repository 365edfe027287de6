"""From the settings of a learner to the head that it learns with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from evergrow.core.errors import InputError, ParameterError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice
from evergrow.heads.base import HEADS, IncrementalClassifier
from evergrow.heads.scl import SCLClassifier


def new_head(
    method: str, settings: str, options: Mapping[str, Any] | None, *, device: Any, random_state: Any
) -> IncrementalClassifier:
    """Return a fresh head.

    Parameters
    ----------
    method : str
        Its name.
    settings : {"recommended", "paper"}
        Settings for users, where the method has such, or its own defaults.
    options : mapping, optional
        Options to set otherwise.
    device, random_state
        Handed on where the method takes them.

    Examples
    --------
    >>> from evergrow.learner.making import new_head
    >>> new_head("scl-mgsm", "recommended", {"n_units": 50}, device="cpu", random_state=0).alpha
    'gcv'
    """
    check_choice("settings", settings, ("recommended", "paper"))
    if options is not None and not isinstance(options, Mapping):
        raise ParameterError(f"options must be a dict or None, got {type(options).__name__}")
    head, chosen = _head_class(method), dict(options or {})
    accepted = [name for name in inspect.signature(head.__init__).parameters if name != "self"]
    for name, value in (("device", device), ("random_state", random_state)):
        if name in accepted:
            chosen.setdefault(name, value)
    for name in chosen:
        if name not in accepted:
            raise UnknownNameError(
                f"option of method {method!r} must be one it has, got {name!r}; nearest: {nearest(name, accepted)}"
            )
    if settings == "recommended" and issubclass(head, SCLClassifier):
        return head.recommended(**chosen)
    try:
        return head(**chosen)
    except TypeError as error:
        raise ParameterError(f"method {method!r} must be given all options that have no default: {error}") from error


def _head_class(method: str) -> type[IncrementalClassifier]:
    """Return the class of a head; the catalogue of all methods is looked at only to say what is wrong."""
    if method not in HEADS:
        from evergrow.methods import list_methods

        if method in list_methods():
            raise ParameterError(f"method must be a head on features ({', '.join(HEADS.names())}), got {method!r}")
    return HEADS[method]


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in a form that JSON holds, or raise :class:`InputError`."""
    return {name: _plain(name, value) for name, value in options.items()}


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    raise InputError(f"option {name} must be a plain value to be saved, got {type(value).__name__}")
