"""Texts escaped for a CSV cell come back unchanged."""

from __future__ import annotations

import sys

import pytest

from evergrow.core.escaping import csv_exact, exact_text


def test_every_character_comes_back() -> None:
    for start in range(0, sys.maxunicode + 1, 4096):
        text = "".join(map(chr, range(start, min(start + 4096, sys.maxunicode + 1))))
        cell = csv_exact(text)
        assert cell.isprintable()
        assert exact_text(cell) == text


@pytest.mark.parametrize(
    "text", ["", "'", "''", "'=1", "=1", "\\x41", "\\\\", "\\", "-rf", "\t", "\udce9"]
)
def test_texts_that_look_escaped_come_back(text: str) -> None:
    assert exact_text(csv_exact(text)) == text


@pytest.mark.parametrize(
    "cell", ["\\", "\\q", "a\\x4", "\\uD800", "\\U00110000", "\\Uffffffff"]
)
def test_an_unknown_escape_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match="is not an escape"):
        exact_text(cell)
