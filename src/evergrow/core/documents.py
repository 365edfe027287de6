"""JSON documents with a kind and a version: the contract of archives, for files that people read and compare.

Records of runs, entries of the feature cache and the stamps of feature files are such documents. An older one is
migrated when it is opened, a newer one is refused with the evergrow that it needs, and what this version does not know
is handed to the owner, who writes it again.
"""

from __future__ import annotations

from typing import Any

from evergrow.core.archive import Archive, Kind, parse_json
from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.fields import Fields

__all__ = ["open_document", "parse_json"]


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
