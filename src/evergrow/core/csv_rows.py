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
    mark = re.escape(separator)
    # A quoted or a plain cell, and the separator or line end behind it.
    next_cell = re.compile(
        rf'(?:"([^"]*(?:""[^"]*)*)"|((?!")[^{mark}\r\n]*))({mark}|\r\n|\r|\n|\Z)'
    )
    position = 0
    line = 0
    while position < len(text):
        line += 1
        first_line = line
        cells = []
        end = separator
        while end == separator:
            found = next_cell.match(text, position)
            if found is None:
                raise FileFormatError(
                    f"{title} line {first_line} must be a row of cells: a quoted cell "
                    f"is not closed, or not followed by {separator!r} or the line end"
                )
            quoted, plain, end = found.groups()
            position = found.end()
            if quoted is None:
                cells.append(plain)
            else:
                cells.append(quoted.replace('""', '"'))
                line += len(_LINE_END.findall(quoted))
        is_blank = quoted is None and cells == [""]
        yield line, [] if is_blank else cells
