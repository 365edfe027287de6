"""Line numbers of the keys of a TOML text, which the standard parser does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]
"""For example ``("methods", 1, "options", "n_units")``."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_INLINE_KEY = re.compile(r"""([\w-]+)\s*=(?!=)""")
_STRINGS = re.compile(r"""\"(?:[^"\\]|\\.)*\"|'[^']*'""")


class KeyLines:
    r"""Line numbers of the keys and tables of a TOML text.

    Parameters
    ----------
    text : str
        A text that parses; for others the parser's own message has the line.

    Examples
    --------
    >>> from evergrow.lab.bench.toml_lines import KeyLines
    >>> lines = KeyLines('seeds = [1]\n[[methods]]\nname = "a"\n[[methods]]\noptions = {x = 1}')
    >>> lines.find(("methods", 0, "name")), lines.find(("methods", 1, "options", "x"))
    (3, 5)
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {}
        self._counts: dict[KeyPath, int] = {}
        table: KeyPath = ()
        for number, header, key, inline in _statements(text):
            if header:
                table = self._open(header)
                self._lines.setdefault(table, number)
                self._lines.setdefault(_names(table), number)  # an array of tables as a whole
                continue
            statement = (*table, *_split(key))
            self._lines.setdefault(statement, number)
            for offset, name in inline:
                self._lines.setdefault((*statement, name), number + offset)

    def find(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest thing around it that has one."""
        last = path[-1:]
        for end in range(len(path), 0, -1):
            # Keys inside inline tables are filed under the statement they are part of, without positions.
            for candidate in ((*path[:end], *last), (*_names(path[:end]), *last)):
                if candidate in self._lines:
                    return self._lines[candidate]
            for candidate in (path[:end], _names(path[:end])):
                if candidate in self._lines:
                    return self._lines[candidate]
        return self._lines.get((*last,), 1)

    def _open(self, header: str) -> KeyPath:
        """Return the path of ``[a.b]`` or ``[[a.b]]``, with positions in arrays of tables."""
        array = header.startswith("[[")
        parts = _split(header.strip("[]"))
        path: KeyPath = ()
        for depth, part in enumerate(parts):
            path = (*path, part)
            if array and depth == len(parts) - 1:
                self._counts[path] = self._counts.get(path, -1) + 1
            if path in self._counts:
                path = (*path, self._counts[path])
        return path


def _names(path: KeyPath) -> KeyPath:
    return tuple(part for part in path if isinstance(part, str))


def _split(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _statements(text: str) -> Iterator[tuple[int, str, str, list[tuple[int, str]]]]:
    """Yield (line, header, key, [(line offset, inline key)]) for every header and key of the text."""
    rows = text.splitlines()
    number = 0
    while number < len(rows):
        start = number
        header, key = _HEADER.match(rows[number]), _KEY.match(rows[number])
        number += 1
        if header and not key:
            yield start + 1, header.group(1) + header.group(2), "", []
        elif key:
            value, depth, quote = _bare(rows[start][key.end() :], None)
            inline = [(0, name) for name in _INLINE_KEY.findall(value)]
            while (depth > 0 or quote) and number < len(rows):
                value, more, quote = _bare(rows[number], quote)
                depth += more
                inline += [(number - start, name) for name in _INLINE_KEY.findall(value)]
                number += 1
            yield start + 1, "", key.group(1), inline


def _bare(row: str, quote: str | None) -> tuple[str, int, str | None]:
    """Return a row without strings and comments, its net bracket depth, and an open multi-line quote."""
    if quote:
        _, closed, row = row.partition(quote)
        if not closed:
            return "", 0, quote
    for mark in ('"""', "'''"):
        while row.count(mark) >= 2:
            row = re.sub(f"{mark}.*?{mark}", "", row, count=1)
    opened = next((mark for mark in ('"""', "'''") if mark in row), None)
    row = row.partition(opened)[0] if opened else row
    row = _STRINGS.sub("", row).partition("#")[0]
    return row, sum(row.count(c) for c in "[{") - sum(row.count(c) for c in "]}"), opened
