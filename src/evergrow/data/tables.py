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
from evergrow.core.items import Items, Texts
from evergrow.core.wording import hint
from evergrow.data.folders import is_hidden
from evergrow.data.labelled import LabelledItems, integers, listed
from evergrow.data.options import DataOptions
from evergrow.data.pairs import pair_reader, partner
from evergrow.data.readers import register_file_format, register_tree_layout
from evergrow.data.trees import DiskTree, FileTree

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
IMAGE_COLUMNS = ("path", "image", "file", "filename")
_TRAIN = ("train", "training")
_TEST = ("test", "testing")
_VALIDATION = ("val", "valid", "validation", "dev", "eval")
_SEPARATORS = (",", ";", "\t")

Row = tuple[int, dict[str, str]]
"""Line number in the file, and the cells by column."""


@dataclass(frozen=True)
class TableFile:
    """A table, on disk or in an archive.

    Parameters
    ----------
    tree : FileTree
        Where it is; the paths in it are relative to its folder.
    name : str
        Its name there.
    """

    tree: FileTree
    name: str

    def __str__(self) -> str:
        return self.tree.place(self.name)

    @property
    def suffix(self) -> str:
        """The ending, in lower case."""
        return posixpath.splitext(self.name)[1].lower()

    @property
    def folder(self) -> str:
        """The folder that the table is in."""
        return posixpath.dirname(self.name)

    def text(self) -> str:
        """Return what is written in it."""
        return self.tree.text(self.name)

    @classmethod
    def on_disk(cls, path: Path) -> TableFile:
        """Return the table of a path."""
        return cls(DiskTree(path.parent), path.name)


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
    other = None if test is None else TableFile.on_disk(test)
    return read_table_files(TableFile.on_disk(train), other, options)


def read_table_files(train: TableFile, test: TableFile | None, options: DataOptions) -> LabelledItems:
    """Read a table and, if there is one, a table of test samples, wherever they are."""
    columns, rows = read_table(train, options)
    notes: list[str] = []
    parts = split_rows(train, rows, columns, notes) if test is None else (rows, None)
    if test is not None:
        test_columns, test_rows = read_table(test, options)
        if test_columns.images != columns.images:
            raise FileFormatError(f"{test} must hold texts or images like {train}, got the other")
        names = [posixpath.basename(table.name) for table in (train, test)]
        if columns.split:
            notes.append(f"column {columns.split} of {names[0]} not used: {names[1]} is the test set")
        parts = (rows, test_rows)
        notes.append(f"tables: {names[0]}, {names[1]}")
        return _labelled(train, (columns, test_columns), parts, notes)
    return _labelled(train, (columns, columns), parts, notes)


@register_file_format("table", TABLE_SUFFIXES, by_name="last", paired=True)
def read_table_file(path: Path, options: DataOptions) -> LabelledItems:
    """Read a table and, if there is one, the table of test samples that goes with it."""
    return read_tables(path, partner(path), options)


def _tables_in(tree: FileTree, train: str, test: str | None, options: DataOptions) -> LabelledItems:
    other = None if test is None else TableFile(tree, test)
    return read_table_files(TableFile(tree, train), other, options)


_FITS, _READ_FOLDER = pair_reader(TABLE_SUFFIXES, _tables_in)
register_tree_layout("tables", fits=_FITS, rank=70)(_READ_FOLDER)


def _single_table(tree: FileTree) -> str | None:
    """Return the only table of a folder without class folders: one that holds the images of the table at most."""
    tables = [name for name in tree.files() if name.lower().endswith(TABLE_SUFFIXES)]
    folders = [name for name, kind in tree.entries("") if kind == "folder" and not is_hidden(name)]
    return tables[0] if len(tables) == 1 and len(folders) <= 1 else None


@register_tree_layout("single-table", fits=lambda tree: _single_table(tree) is not None, rank=80)
def read_single_table(tree: FileTree, options: DataOptions) -> LabelledItems:
    """Read the one table of a folder, and images in the folder beside it."""
    name = _single_table(tree)
    if name is None:
        raise DatasetNotFoundError(f"{tree.title} must hold one table and at most one folder, got something else")
    return read_table_files(TableFile(tree, name), None, options)


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
    >>> from evergrow.data.tables import read_texts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "mail.csv")
    ...     _ = file.write_text("id,text\n1,buy now\n2,see you\n")
    ...     read_texts(file)
    ['buy now', 'see you']
    """
    if path.suffix.lower() == ".txt":
        texts = [line.strip() for line in TableFile.on_disk(path).text().split("\n")]
    else:
        header, rows = read_table_rows(TableFile.on_disk(path))
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
    train: TableFile, columns: tuple[Columns, Columns], parts: tuple[list[Row], list[Row] | None], notes: list[str]
) -> LabelledItems:
    rows, test_rows = parts
    test_part = test_rows or []
    labels = integers(
        [cells[columns[0].label] for _, cells in rows] + [cells[columns[1].label] for _, cells in test_part]
    )
    items = [row_items(train, part, column) for part, column in zip((rows, test_part), columns, strict=True)]
    if columns[0].images:
        check_unique(str(train), [part.name(row) for part in items for row in range(len(part))])
    return LabelledItems(
        "table",
        items[0],
        labels[: len(rows)],
        items[1] if test_rows is not None else None,
        labels[len(rows) :],
        notes=notes,
    )


def row_items(table: TableFile, rows: list[Row], columns: Columns) -> Items:
    """Return the texts of rows, or the images that they name."""
    values = [cells[columns.sample] for _, cells in rows]
    if not columns.images:
        return Texts(tuple(values))
    below = table.tree.below(table.folder) if table.folder else table.tree
    names = [posixpath.normpath(name.strip().replace("\\", "/")) for name in values]
    missing = [name for name in names if not below.is_file(name)]
    if missing:
        raise DatasetNotFoundError(
            f"the images of {table} must be in {below.title}, but {len(missing)} of {len(names)} are not: "
            f"{listed(missing)}; paths are relative to the folder of the table"
        )
    return below.images(names)


def check_unique(title: str, names: Sequence[str]) -> None:
    """Raise :class:`InputError` where an image is named twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"images must be named once, got {name!r} twice in the tables of {title}")
        seen.add(name)


def split_rows(
    path: TableFile, rows: list[Row], columns: Columns, notes: list[str]
) -> tuple[list[Row], list[Row] | None]:
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


def read_table(path: TableFile, options: DataOptions) -> tuple[Columns, list[Row]]:
    """Return which columns of a table hold what, and its rows, of which none lacks a sample or a label."""
    header, rows = read_table_rows(path)
    if not rows:
        raise FileFormatError(f"{path} must hold at least one row, got none")
    columns = choose_columns(path, header, options)
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


def read_table_rows(path: TableFile) -> tuple[list[str], list[Row]]:
    """Return the columns of a table, and the cells of every row with its line."""
    return _read_json_lines(path) if path.suffix in (".jsonl", ".ndjson") else _read_csv(path)


def choose_columns(
    path: TableFile, header: Sequence[str], options: DataOptions, holding: Sequence[str] = ()
) -> Columns:
    """Return which columns hold what: those that the options name, else those of usual names.

    Parameters
    ----------
    path : TableFile
        The table, for messages.
    header : sequence of str
        Its columns.
    options : DataOptions
        What to call for.
    holding : sequence of str
        Columns that hold images themselves, whatever they are called.
    """
    usual = [name for name in (*IMAGE_COLUMNS, *holding) if name in header]
    images = [options.image_column] if options.image_column else usual
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


def _read_csv(path: TableFile) -> tuple[list[str], list[Row]]:
    text = path.text()
    separator = "\t" if path.suffix == ".tsv" else _separator(text)
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


def _read_json_lines(path: TableFile) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    for line, text in enumerate(path.text().split("\n"), start=1):
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
