"""JSON documents: what is wrong with one is always a file error, and no number in it does harm."""

from __future__ import annotations

import pytest

from evergrow.core.archive import Archive, register_kind
from evergrow.core.documents import open_document, parse_json
from evergrow.core.errors import FileFormatError, NewerSchemaError


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"a":' * 100_000, "NaN", "[Infinity]", "9" * 5000, b"\xff\xfe", "\ud800x"],
)
def test_a_text_that_is_no_plain_json(text: str | bytes) -> None:
    with pytest.raises(FileFormatError, match=r"note\.json must be a whole JSON file"):
        parse_json(text, "note.json")


def test_older_documents_are_migrated_and_unknown_fields_kept() -> None:
    def second(old: Archive) -> Archive:
        return Archive(old.kind, {**old.meta, "length": old.meta["size"]}, version=2)

    kind = register_kind("tests/migrated-document", version=2, migrations={1: second})
    fields = open_document({"size": 3, "later": [1]}, kind, "note.json", version=1)
    assert fields.integer("length") == 3
    assert fields.unknown() == {"size": 3, "later": [1]}
    with pytest.raises(FileFormatError, match="must be a whole 'tests/migrated-document' of version 1"):
        open_document({}, kind, "note.json", version=1)


def test_newer_documents_name_the_evergrow_they_need() -> None:
    kind = register_kind("tests/plain-document")
    with pytest.raises(NewerSchemaError, match=r"got 7: it needs a newer evergrow \(1\.4\.0\)"):
        open_document({}, kind, "note.json", version=7, writer="1.4.0")
    for writer in (None, 3, "x" * 1000):
        with pytest.raises(NewerSchemaError, match="it needs a newer evergrow"):
            open_document({}, kind, "note.json", version=7, writer=writer)


@pytest.mark.parametrize("version", [None, 0, -1, True, "1", 1.0])
def test_versions_are_positive_integers(version: object) -> None:
    with pytest.raises(FileFormatError, match="integer schema version"):
        open_document({}, register_kind("tests/plain-document"), "note.json", version=version)
