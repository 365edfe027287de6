"""Files of texts without labels, to be asked about."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from evergrow.core.errors import FileFormatError
from evergrow.datasets.lists import read_text

COLUMN = "text"
"""Column of tables, and key of JSON lines, that holds the texts."""


def read_texts(path: Path) -> list[str]:
    r"""Return the texts of a file: the lines of a ``.txt``, the column ``text`` of a ``.csv``, ``.tsv`` or ``.jsonl``.

    Raises
    ------
    FileFormatError
        If there is no such column, or a line cannot be understood.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.learner.texts import read_texts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "mail.csv")
    ...     _ = file.write_text("id,text\n1,buy now\n2,see you\n")
    ...     read_texts(file)
    ['buy now', 'see you']
    """
    body, suffix = read_text(path), path.suffix.lower()
    if suffix == ".txt":
        texts = [line.strip() for line in body.split("\n")]
    elif suffix in (".csv", ".tsv"):
        texts = _from_table(path, body, "\t" if suffix == ".tsv" else _separator(body))
    else:
        texts = _from_json_lines(path, body)
    kept = [text for text in texts if text.strip()]
    if not kept:
        raise FileFormatError(f"{path} must hold at least one text, got none")
    return kept


def _separator(body: str) -> str:
    first = body.partition("\n")[0]
    return max((",", ";", "\t"), key=first.count)


def _from_table(path: Path, body: str, separator: str) -> list[str]:
    reader = csv.DictReader(io.StringIO(body, newline=""), delimiter=separator, strict=True)
    try:
        if COLUMN not in (reader.fieldnames or ()):
            raise FileFormatError(f"{path} must have a column {COLUMN!r}, got {list(reader.fieldnames or ())[:8]}")
        return [row[COLUMN] or "" for row in reader]
    except csv.Error as error:
        raise FileFormatError(f"{path} line {reader.line_num} must be a row of cells: {error}") from error


def _from_json_lines(path: Path, body: str) -> list[str]:
    texts = []
    for number, line in enumerate(body.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text = record[COLUMN]
        except (json.JSONDecodeError, RecursionError, KeyError, TypeError, IndexError) as error:
            raise FileFormatError(f"{path} line {number} must be a JSON object with {COLUMN!r}: {error}") from error
        if not isinstance(text, str):
            raise FileFormatError(f"{path} line {number} must have a text under {COLUMN!r}, got {text!r}")
        texts.append(text)
    return texts
