"""JSON documents with a kind and a version: the contract of archives, for files that people read and compare.

Records of runs, entries of the feature cache and the stamps of feature files are such documents. An older one is
migrated when it is opened, a newer one is refused with the evergrow that it needs, and what this version does not know
is handed to the owner, who writes it again.
"""

from __future__ import annotations

import json
from typing import Any

from evergrow.core.archive import Archive, Kind, shallow
from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.fields import Fields


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the values of a JSON text from a file.

    Parameters
    ----------
    text : str or bytes
        The text.
    name : str
        What messages call the file.

    Raises
    ------
    FileFormatError
        If it is no whole JSON, is nested too deeply, or holds NaN, infinity or an integer of thousands of digits.

    Examples
    --------
    >>> from evergrow.core.documents import parse_json
    >>> parse_json('{"n": NaN}', "run.json")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: run.json must be a whole JSON file, got ...: numbers must be finite, got NaN
    """
    try:
        return shallow(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
        raise FileFormatError(f"{name} must be a whole JSON file, got a damaged one: {error}") from error


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"numbers must be finite, got {word}")


def open_document(values: Any, kind: Kind, name: str, *, version: Any, writer: Any = None) -> Fields:
    """Return checked access to a document, migrated to the present version of its kind.

    Parameters
    ----------
    values : object
        What the file holds, which must be an object.
    kind : Kind
        What it must be.
    name : str
        What messages call the file.
    version : object
        The version that the file states.
    writer : object
        The evergrow that wrote it, where the file says so.

    Raises
    ------
    FileFormatError
        If it is no object, or states no version, or cannot be migrated.
    NewerSchemaError
        If this evergrow is too old for it.

    Examples
    --------
    >>> from evergrow.core.archive import register_kind
    >>> from evergrow.core.documents import open_document
    >>> kind = register_kind("docs/note")
    >>> open_document({"text": "hello"}, kind, "note.json", version=1).text("text")
    'hello'
    >>> open_document({"text": "hello"}, kind, "note.json", version=2, writer="0.9")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.NewerSchemaError: ... got 2: it needs a newer evergrow (0.9); upgrade with ...
    """
    if not isinstance(values, dict):
        raise FileFormatError(f"{name} must hold an object, got {type(values).__name__}")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FileFormatError(f"{name} must carry an integer schema version, got {version!r:.60}")
    if version > kind.version:
        known = isinstance(writer, str) and len(writer) < 20
        needs = f"a newer evergrow ({writer})" if known else "a newer evergrow"
        raise NewerSchemaError(
            f"{name} must have schema version {kind.version} or older, got {version}: it needs {needs}; "
            "upgrade with 'pip install -U evergrow'"
        )
    return Archive(kind.name, values, version=version).open(kind.name, name=name)
