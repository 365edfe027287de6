"""CSV rows equal those of the ``csv`` module, without its process-wide limit."""

from __future__ import annotations

import csv
import io
import random

import pytest

from evergrow.core.csv_rows import read_csv_rows
from evergrow.core.errors import FileFormatError


def rows_of_csv_module(text: str) -> list[tuple[int, list[str]]] | None:
    """Return what the strict reader of the standard library gives; None for errors."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error:
        return None


def test_rows_and_line_numbers_agree_with_the_csv_module() -> None:
    rng = random.Random(0)
    for _ in range(20_000):
        text = "".join(rng.choice('ab,"\n\r;') for _ in range(rng.randrange(14)))
        try:
            found = list(read_csv_rows(text, "table.csv"))
        except FileFormatError:
            found = None
        assert found == rows_of_csv_module(text), repr(text)


def test_a_long_cell_is_read_and_the_limit_of_the_process_never_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: int) -> int:
        raise AssertionError("the limit belongs to the whole process")

    monkeypatch.setattr(csv, "field_size_limit", refuse)
    cell = 'say "hi", ' * 100_000
    quoted = cell.replace('"', '""')
    text = f'"{quoted}",{"x" * 500_000}\n'
    ((line, cells),) = read_csv_rows(text, "table.csv")
    assert line == 1
    assert cells == [cell, "x" * 500_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b\n"c,d', "table.csv line 2 .* not closed"),
        ('a\n"b"c\n', "table.csv line 2 .* not followed by ','"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        list(read_csv_rows(text, "table.csv"))
