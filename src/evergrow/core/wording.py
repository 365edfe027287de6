"""Settings named in the words of the place where a message is read: Python, the command line, or HTTP.

Whoever writes a message asks for the word: ``setting("weights")`` is ``weights`` for a caller in Python, ``--weights``
on the command line, and the name of the field over HTTP. A place that has no such setting gets no advice about it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_UNSAID: Any = object()


class Words(ABC):
    """The language of a place: what it calls a setting and an action, if it has them."""

    @abstractmethod
    def setting(self, name: str) -> str | None:
        """Return what the place calls a setting; None where it has none like that."""

    @abstractmethod
    def given(self, name: str, value: Any) -> str | None:
        """Return how a value is given to a setting here; None where it cannot be."""

    @abstractmethod
    def action(self, name: str) -> str | None:
        """Return how something is done here that is a method in Python; None where it cannot be."""

    def unnamed(self, name: str) -> str:
        """Return words for a setting that the place does not have."""
        return name.replace("_", " ")


class PythonWords(Words):
    """Arguments and methods by their own names."""

    def setting(self, name: str) -> str:
        """Return the argument."""
        return name

    def given(self, name: str, value: Any) -> str:
        """Return the argument with its value."""
        return f"{name}={value!r}"

    def action(self, name: str) -> str:
        """Return the call."""
        return f"{name}()"


class FieldWords(Words):
    """Fields of a request.

    Parameters
    ----------
    fields : collection of str
        Those that the request may have.

    Examples
    --------
    >>> from evergrow.core.wording import FieldWords, hint, setting, speaking
    >>> with speaking(FieldWords(["on_error"])):
    ...     setting("on_error", "skip"), hint("weights", "; give {}")
    ('"on_error": "skip"', '')
    """

    def __init__(self, fields: Collection[str]) -> None:
        self._fields = frozenset(fields)

    def setting(self, name: str) -> str | None:
        """Return the field."""
        return name if name in self._fields else None

    def given(self, name: str, value: Any) -> str | None:
        """Return the field with its value, as it stands in JSON."""
        return f'"{name}": {json.dumps(value, default=str)}' if name in self._fields else None

    def action(self, name: str) -> None:
        """Return None: a request is one action and knows no other."""


PYTHON = PythonWords()
_PLACE: ContextVar[Words] = ContextVar("place", default=PYTHON)


@contextmanager
def speaking(words: Words) -> Iterator[None]:
    """Word all messages that are made inside for a place; threads have to be started with a copy of the context.

    Parameters
    ----------
    words : Words
        The language of that place.
    """
    token = _PLACE.set(words)
    try:
        yield
    finally:
        _PLACE.reset(token)


def setting(name: str, value: Any = _UNSAID) -> str:
    """Return the word for a setting, or for giving it a value, in the place that messages now go to.

    Parameters
    ----------
    name : str
        The argument in Python.
    value : object, optional
        The value to give.

    Examples
    --------
    >>> from evergrow.core.wording import setting
    >>> setting("on_error"), setting("on_error", "skip")
    ('on_error', "on_error='skip'")
    """
    words = _PLACE.get()
    said = words.setting(name) if value is _UNSAID else words.given(name, value)
    return words.unnamed(name) if said is None else said


def hint(names: str | Sequence[str], advice: str, value: Any = _UNSAID) -> str:
    """Return advice about settings; empty where the place has none of them.

    Parameters
    ----------
    names : str or sequence of str
        Arguments in Python. Those that the place lacks are left out.
    advice : str
        A fixed text in which ``{}`` stands for them.
    value : object, optional
        The value to give them.

    Examples
    --------
    >>> from evergrow.core.wording import hint
    >>> hint(["text_column", "image_column"], "; say which one by {}")
    '; say which one by text_column or image_column'
    """
    words = _PLACE.get()
    wanted = [names] if isinstance(names, str) else names
    said = [words.setting(name) if value is _UNSAID else words.given(name, value) for name in wanted]
    known = [word for word in said if word is not None]
    if not known:
        return ""
    listed = known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"
    return advice.replace("{}", listed)


def action(name: str) -> str:
    """Return how something is done, in the place that messages now go to.

    Parameters
    ----------
    name : str
        The method in Python.

    Examples
    --------
    >>> from evergrow.core.wording import action
    >>> action("spawn")
    'spawn()'
    """
    words = _PLACE.get()
    said = words.action(name)
    return words.unnamed(name) if said is None else said
