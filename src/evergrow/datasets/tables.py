"""Tables of texts or of images: CSV, TSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.core.items import ImageFiles, Items, Texts
from evergrow.core.wording import hint
from evergrow.datasets.labelled import LabelledItems, integers, listed
from evergrow.datasets.lists import read_text
from evergrow.datasets.options import DataOptions
from evergrow.datasets.pairs import pair_reader, partner
from evergrow.datasets.readers import register_file_format, register_layout

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
IMAGE_COLUMNS = ("path", "image", "file", "filename")
_TRAIN = ("train", "training")
_TEST = ("test", "testing")
_VALIDATION = ("val", "valid", "validation", "dev", "eval")
_SEPARATORS = (",", ";", "\t")

Row = tuple[int, dict[str, str]]
"""Line number in the file, and the cells by column."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what.

    Parameters
    ----------
    sample : str
        The text, or the path of the image.
    label : str
        The class.
    split : str
        Training or test, or empty where there is no such column.
    images : bool
        Whether the sample is an image.
    """

    sample: str
    label: str
    split: str
    images: bool


def read_tables(train: Path, test: Path | None, options: DataOptions) -> LabelledItems:
    """Read a table and, if there is one, a table of test samples.

    Raises
    ------
    FileFormatError
        If a table cannot be understood; the message has the line.
    InputError
        If a text or a label is empty, or an image is named twice.
    DatasetNotFoundError
        If an image that a table names is missing.
    """
    columns, rows = _read(train, options)
    notes: list[str] = []
    parts = _split_rows(train, rows, columns, notes) if test is None else (rows, None)
    if test is not None:
        test_columns, test_rows = _read(test, options)
        if test_columns.images != columns.images:
            raise FileFormatError(f"{test} must hold texts or images like {train}, got the other")
        if columns.split:
            notes.append(f"column {columns.split} of {train.name} not used: {test.name} is the test set")
        parts = (rows, test_rows)
        notes.append(f"tables: {train.name}, {test.name}")
        return _labelled(train, (columns, test_columns), parts, notes)
    return _labelled(train, (columns, columns), parts, notes)


@register_file_format("table", TABLE_SUFFIXES, by_name="last", paired=True)
def read_table_file(path: Path, options: DataOptions) -> LabelledItems:
    """Read a table and, if there is one, the table of test samples that goes with it."""
    return read_tables(path, partner(path), options)


_FITS, _READ_FOLDER = pair_reader(TABLE_SUFFIXES, read_tables)
register_layout("tables", fits=_FITS, rank=70)(_READ_FOLDER)


def read_texts(path: Path, column: str = "text") -> list[str]:
    r"""Return the texts of a file without labels: the lines of a ``.txt``, one column of a table.

    Parameters
    ----------
    path : Path
        A ``.txt``, ``.csv``, ``.tsv`` or ``.jsonl`` file.
    column : str
        The column, or the key, that holds the texts; empty ones are left out.

    Raises
    ------
    FileFormatError
        If there is no such column, no text, or a line cannot be understood.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.datasets.tables import read_texts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "mail.csv")
    ...     _ = file.write_text("id,text\n1,buy now\n2,see you\n")
    ...     read_texts(file)
    ['buy now', 'see you']
    """
    if path.suffix.lower() == ".txt":
        texts = [line.strip() for line in read_text(path).split("\n")]
    else:
        header, rows = _read_rows(path)
        if column not in header:
            raise FileFormatError(f"{path} must have a column {column!r}, got {listed(header, most=8)}")
        lacking = [line for line, cells in rows if column not in cells]
        if lacking:
            raise FileFormatError(f"{path} line {lacking[0]} must have a text under {column!r}")
        texts = [cells[column] for _, cells in rows]
    kept = [text for text in texts if text.strip()]
    if not kept:
        raise FileFormatError(f"{path} must hold at least one text, got none")
    return kept


def _labelled(
    train: Path, columns: tuple[Columns, Columns], parts: tuple[list[Row], list[Row] | None], notes: list[str]
) -> LabelledItems:
    rows, test_rows = parts
    test_part = test_rows or []
    labels = integers(
        [cells[columns[0].label] for _, cells in rows] + [cells[columns[1].label] for _, cells in test_part]
    )
    items = [_items(train, part, column) for part, column in zip((rows, test_part), columns, strict=True)]
    if columns[0].images:
        _check_unique(train, [item for item in items if isinstance(item, ImageFiles)])
    return LabelledItems(
        "table",
        items[0],
        labels[: len(rows)],
        items[1] if test_rows is not None else None,
        labels[len(rows) :],
        notes=notes,
    )


def _items(path: Path, rows: list[Row], columns: Columns) -> Items:
    values = tuple(cells[columns.sample] for _, cells in rows)
    if not columns.images:
        return Texts(values)
    values = tuple(posixpath.normpath(name.strip().replace("\\", "/")) for name in values)
    missing = [name for name in values if not (path.parent / name).is_file()]
    if missing:
        raise DatasetNotFoundError(
            f"the images of {path} must be in {path.parent}, but {len(missing)} of {len(values)} are not: "
            f"{listed(missing)}; paths are relative to the folder of the table"
        )
    return ImageFiles(path.parent, values)


def _check_unique(path: Path, parts: Sequence[ImageFiles]) -> None:
    seen: set[str] = set()
    for part in parts:
        for name in part.names:
            if name in seen:
                raise InputError(f"images must be named once, got {name!r} twice in the tables of {path}")
            seen.add(name)


def _split_rows(path: Path, rows: list[Row], columns: Columns, notes: list[str]) -> tuple[list[Row], list[Row] | None]:
    """Share the rows out by the split column; without one, or with training rows only, the test set is drawn later."""
    if not columns.split:
        return rows, None
    parts: dict[str, list[Row]] = {"train": [], "test": [], "validation": []}
    for line, cells in rows:
        word = cells[columns.split].strip().lower()
        part = "train" if word in _TRAIN else "test" if word in _TEST else "validation" if word in _VALIDATION else ""
        if not part:
            raise FileFormatError(
                f"{path} line {line}: {columns.split} must be train, test or validation, got {word!r}"
            )
        parts[part].append((line, cells))
    if not parts["train"]:
        raise FileFormatError(f"{path} must have rows with {columns.split} = train, got none")
    if parts["test"] and parts["validation"]:
        notes.append(f"rows for validation left out: {len(parts['validation'])}")
    return parts["train"], parts["test"] or parts["validation"] or None


# -- reading ------------------------------------------------------------------------------------------------


def _read(path: Path, options: DataOptions) -> tuple[Columns, list[Row]]:
    header, rows = _read_rows(path)
    if not rows:
        raise FileFormatError(f"{path} must hold at least one row, got none")
    columns = _columns(path, header, options)
    needed = [columns.sample, columns.label, *([columns.split] if columns.split else [])]
    checked = []
    for line, cells in rows:
        for column in needed:
            if column not in cells:
                raise FileFormatError(
                    f"{path} line {line} must have {column!r} as a string or an integer, got {listed(cells)}"
                )
        values = {column: cells[column] for column in needed}
        values[columns.label] = values[columns.label].strip()
        for column in (columns.sample, columns.label):
            if not values[column].strip():
                raise InputError(f"{path} line {line}: {column} must not be empty")
        checked.append((line, values))
    return columns, checked


def _read_rows(path: Path) -> tuple[list[str], list[Row]]:
    return _read_json_lines(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _read_csv(path)


def _columns(path: Path, header: Sequence[str], options: DataOptions) -> Columns:
    images = [options.image_column] if options.image_column else [name for name in IMAGE_COLUMNS if name in header]
    use_images = bool(options.image_column) or (options.text_column not in header and bool(images))
    sample = images[0] if use_images else options.text_column
    for column in (sample, options.label_column):
        if column not in header:
            meant = hint(("text_column", "image_column", "label_column"), ", or say which one it is by {}")
            raise FileFormatError(
                f"{path} must have a column {column!r}, got {listed(header, most=8)}; rename one{meant}"
            )
    split = options.split_column if options.split_column in header else ""
    return Columns(sample, options.label_column, split, use_images)


def _read_csv(path: Path) -> tuple[list[str], list[Row]]:
    text = read_text(path)
    separator = "\t" if path.suffix.lower() == ".tsv" else _separator(text)
    rows: list[Row] = []
    header: list[str] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        with _long_fields():
            for cells in reader:
                if not cells or cells == [""]:
                    continue
                if not header:
                    header = [cell.strip() for cell in cells]
                    if len(set(header)) != len(header):
                        raise FileFormatError(f"{path} must have every column once, got {listed(header, most=8)}")
                elif len(cells) != len(header):
                    raise FileFormatError(
                        f"{path} line {reader.line_num} must have {len(header)} cells, got {len(cells)}; "
                        "texts with separators in them need quotes"
                    )
                else:
                    rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise FileFormatError(f"{path} line {reader.line_num} must be a row of cells: {error}") from error
    return header, rows


def _separator(text: str) -> str:
    first = text.partition("\n")[0]
    return max(_SEPARATORS, key=first.count)


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let the csv module take texts of any length for a while; its limit belongs to the whole process."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_json_lines(path: Path) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise FileFormatError(f"{path} line {line} must be JSON: {error}") from error
        if not isinstance(record, dict):
            raise FileFormatError(f"{path} line {line} must be a JSON object, got {type(record).__name__}")
        rows.append((line, {key: _cell(value) for key, value in record.items() if isinstance(value, (str, int))}))
    return list(dict.fromkeys(key for _, cells in rows for key in cells)), rows


def _cell(value: str | int) -> str:
    return value if isinstance(value, str) else str(value)
