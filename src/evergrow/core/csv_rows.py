"""Read CSV text without the field size limit of the ``csv`` module.

That limit belongs to the whole process. Raising it while a file is read would change
it for every other thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from evergrow.core.errors import FileFormatError

_LINE_END = re.compile(r"\r\n|\r|\n")


def read_csv_rows(
    text: str, title: str, separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    r"""Yield the rows of a CSV text, each with the number of its last line.

    Cells may be quoted as in RFC 4180: quotes inside a quoted cell are doubled, and
    separators and line ends belong to the cell. A blank line is an empty row. Cells of
    any length are accepted.

    Parameters
    ----------
    text : str
        Content of the file.
    title : str
        Name of the file in messages.
    separator : str
        The character between cells.

    Raises
    ------
    FileFormatError
        If a quoted cell is not closed, or text follows its closing quote.

    Examples
    --------
    >>> from evergrow.core.csv_rows import read_csv_rows
    >>> list(read_csv_rows('a,b\n"1,\n2",say "hi"\n', "table.csv"))
    [(1, ['a', 'b']), (3, ['1,\n2', 'say "hi"'])]
    """
    position = 0
    line = 0
    while position < len(text):
        line += 1
        found = _LINE_END.search(text, position)
        end = len(text) if found is None else found.start()
        if text.find('"', position, end) < 0:
            cells = []
            if end > position:
                cells = text[position:end].split(separator)
            position = end if found is None else found.end()
        else:
            start = position
            cells, position = _quoted_row(text, title, separator, start, line)
            row = text[start:position]
            line += len(_LINE_END.findall(row))
            if row.endswith(("\r", "\n")):
                line -= 1
        yield line, cells


def _quoted_row(
    text: str, title: str, separator: str, position: int, line: int
) -> tuple[list[str], int]:
    """Return the cells of a row with quotes, and the position of the next row."""
    plain_end = re.compile(rf"{re.escape(separator)}|\r\n|\r|\n|\Z")
    cells: list[str] = []
    while True:
        if text.startswith('"', position):
            cell, position = _quoted_cell(text, title, position, line)
            found = plain_end.match(text, position)
            if found is None:
                raise FileFormatError(
                    f"{title} line {line} must be a row of cells: {separator!r} "
                    "expected after a closing quote"
                )
        else:
            found = plain_end.search(text, position)
            assert found is not None  # the end of the text always matches
            cell = text[position : found.start()]
        cells.append(cell)
        position = found.end()
        if found[0] != separator:
            return cells, position


def _quoted_cell(text: str, title: str, position: int, line: int) -> tuple[str, int]:
    """Return the quoted cell at a position, and the position after its last quote."""
    parts: list[str] = []
    position += 1
    while True:
        end = text.find('"', position)
        if end < 0:
            raise FileFormatError(
                f"{title} line {line} must be a row of cells: a quoted cell is not "
                "closed"
            )
        parts.append(text[position:end])
        position = end + 1
        if not text.startswith('"', position):
            return '"'.join(parts), position
        position += 1
