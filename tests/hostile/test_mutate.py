"""The generator of hostile files knows the format, does the same twice, and leaves no sort of change out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tests.hostile.mutate import changes, join, mutations, split
from tests.hostile.samples import Subject


def test_what_is_not_changed_is_signed_as_it_was(subjects: list[Subject]) -> None:
    """Fails where files have another format than the generator knows: then it must learn it."""

    def head(data: bytes) -> dict:
        (length,) = struct.unpack("<Q", data[:8])
        return dict(json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["evergrow"]))

    for subject in subjects:
        data = Path(subject.file).read_bytes()
        again = join(split(data))
        assert split(again) == split(data), subject.name
        assert head(again) == head(data), subject.name


def test_all_sorts_of_changes_have_their_turn(subjects: list[Subject]) -> None:
    for subject in subjects[::5]:
        data = Path(subject.file).read_bytes()
        assert len(changes(data)) == 15, subject.name
        sorts = {words.partition(":")[0] for words, _ in mutations(data, 0, 200)}
        assert sorts == set(changes(data)) | {"several"}, subject.name
