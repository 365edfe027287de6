"""Tables of texts or of images: CSV, TSV and JSON lines, alone, in pairs, and as the metadata of an image folder."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.data.folders import TEST_WORDS, TRAIN_WORDS, Walk, is_hidden, partner_name, training_file
from evergrow.data.items import Dataset, Items, Texts, integers, listed
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
IMAGE_COLUMNS = ("path", "image", "file", "filename")
TEXT_COLUMN, LABEL_COLUMN, SPLIT_COLUMN, FILE_COLUMN = "text", "label", "split", "file_name"
_TEST = ("test", "testing")
_VALIDATION = ("val", "valid", "validation", "dev", "eval")
_SEPARATORS = (",", ";", "\t")
_METADATA = ("metadata.csv", "metadata.jsonl")

Row = tuple[int, dict[str, str]]
"""Line number in the file, and the cells by column."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what.

    Parameters
    ----------
    sample : str
        The text, or the path of the image.
    label, split : str
        The class, and training or test; empty where there is no such column.
    images : bool
        Whether the sample is an image.
    """

    sample: str
    label: str
    split: str
    images: bool


# -- readers --------------------------------------------------------------------------------------------------


@register_reader("table", suffixes=TABLE_SUFFIXES)
def read_table(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a table and, if there is one, the table of test samples that goes with it.

    Raises
    ------
    FileFormatError
        If a table cannot be understood; the message has the line.
    InputError
        If a text or a label is empty, or an image is named twice.
    DatasetNotFoundError
        If an image that a table names is missing.
    """
    if not options.labelled:
        return _unlabelled(tree, name, options)
    return _read_pair(tree, name, partner_name(tree, name), options)


def _read_pair(tree: Tree, train: str, test: str | None, options: DataOptions) -> Dataset:
    columns, rows = _read_rows(tree, train, options)
    notes: list[str] = []
    if test is None:
        parts = split_rows(tree.place(train), rows, columns, notes)
        return _labelled(tree, train, (columns, columns), parts, notes)
    test_columns, test_rows = _read_rows(tree, test, options)
    if test_columns.images != columns.images:
        raise FileFormatError(f"{tree.place(test)} must hold texts or images like {tree.place(train)}, got the other")
    names = [posixpath.basename(name) for name in (train, test)]
    if columns.split:
        notes.append(f"column {columns.split} of {names[0]} not used: {names[1]} is the test set")
    notes.append(f"tables: {names[0]}, {names[1]}")
    return _labelled(tree, train, (columns, test_columns), (rows, test_rows), notes)


def _single_table(tree: Tree) -> str | None:
    """Return the only table of a folder without class folders: one that holds the images of the table at most."""
    folders = [name for name, kind in tree.entries() if kind == "folder" and not is_hidden(name)]
    inside = tree.files("data") if folders == ["data"] else []
    tables = [name for name in (*tree.files(), *inside) if name.lower().endswith(TABLE_SUFFIXES)]
    return tables[0] if len(tables) == 1 and len(folders) <= 1 else None


@register_reader("single-table", fits=lambda tree: _single_table(tree) is not None, marks=TABLE_SUFFIXES, rank=80)
@register_reader(
    "tables", fits=lambda tree: training_file(tree, TABLE_SUFFIXES) is not None, marks=TABLE_SUFFIXES, rank=70
)
def read_tables(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read the training and the test table of a folder, or its one table with images in the folder beside it."""
    table = training_file(tree, TABLE_SUFFIXES) or _single_table(tree)
    if table is None:
        raise DatasetNotFoundError(
            f"{tree.place()} must hold a training and a test table, such as train.csv and test.csv, or one table and "
            "at most one folder"
        )
    return read_table(tree, table, options)


# -- the imagefolder of Hugging Face --------------------------------------------------------------------------


def _metadata(tree: Tree) -> list[str]:
    """Return the metadata of a folder, or those of its training and its test folder."""
    folders = tree.folders()
    places = [[""], *([folders[name] for name in words if name in folders] for words in (TRAIN_WORDS, TEST_WORDS))]
    whole, train, test = ([name for place in part if (name := _metadata_in(tree, place))][:1] for part in places)
    return whole or ([*train, *test] if train else [])


def _metadata_in(tree: Tree, folder: str) -> str | None:
    """Return the metadata in a folder, unless it is another file that happens to be called so."""
    names = [posixpath.join(folder, name) for name in _METADATA]
    right = (name for name in names if tree.is_file(name) and FILE_COLUMN.encode() in tree.read(name, 0, 4096))
    return next(right, None)


@register_reader("imagefolder", fits=lambda tree: bool(_metadata(tree)), marks=_METADATA, rank=45)
def read_imagefolder(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read images that ``metadata.csv`` or ``metadata.jsonl`` names by ``file_name``, and their labels.

    The metadata lie beside the images, for all or in a training and a test folder.
    """
    tables = _metadata(tree)
    if not tables:
        raise InputError(
            f"{tree.place()} must hold metadata.csv or metadata.jsonl with a column {FILE_COLUMN}, got none"
        )
    settings = replace(options, image_column=options.image_column or FILE_COLUMN)
    parts = [_read_pair(tree, table, None, settings) for table in tables]
    first, cautions = parts[0], []
    for table, part in zip(tables, parts, strict=True):
        walk = Walk(tree.below(posixpath.dirname(table)))
        rest = len(walk.images(".")) - len(part.train) - (0 if part.test is None else len(part.test))
        left_out = f"images that {posixpath.basename(table)} does not name left out: {rest}"
        cautions += [*([left_out] if rest > 0 else []), *walk.cautions()]
    test = parts[1].train if len(parts) == 2 else first.test
    return replace(first, test=test, layout="imagefolder", cautions=tuple(cautions))


# -- samples of rows ------------------------------------------------------------------------------------------


def _unlabelled(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Return all rows of a table that need have no column of labels."""
    header, rows = read_cells(tree, name)
    images = [options.image_column] if options.image_column else [*IMAGE_COLUMNS, FILE_COLUMN]
    texts = [options.text_column or TEXT_COLUMN]
    wanted = {"image": images, "text": texts}.get(options.kind, images if options.image_column else [*texts, *images])
    column = next((each for each in wanted if each in header), "")
    if not column or not rows:
        raise FileFormatError(
            f"{tree.place(name)} must hold rows with a column {' or '.join(map(repr, wanted))}, got "
            f"{listed(header, most=8)}"
        )
    lacking = [line for line, cells in rows if column not in cells]
    if lacking:
        raise FileFormatError(f"{tree.place(name)} line {lacking[0]} must have a text under {column!r}")
    rows = [row for row in rows if row[1][column].strip()]
    if not rows:
        raise FileFormatError(f"{tree.place(name)} must hold at least one text, got none")
    columns = Columns(column, "", "", images=column not in texts)
    return Dataset.of(row_items(tree, name, rows, columns), [""] * len(rows), layout="table")


def _labelled(
    tree: Tree,
    table: str,
    columns: tuple[Columns, Columns],
    parts: tuple[list[Row], list[Row] | None],
    notes: Sequence[str],
) -> Dataset:
    rows, test_rows = parts
    test_part = test_rows or []
    labels = integers(
        [cells[columns[0].label] for _, cells in rows] + [cells[columns[1].label] for _, cells in test_part]
    )
    items = [row_items(tree, table, part, each) for part, each in zip((rows, test_part), columns, strict=True)]
    if columns[0].images:
        seen: set[str] = set()
        for name in (part.name(row) for part in items for row in range(len(part))):
            if name in seen:
                raise InputError(f"images must be named once, got {name!r} twice in the tables of {tree.place(table)}")
            seen.add(name)
    n, test = len(rows), items[1] if test_rows is not None else None
    return Dataset.of(items[0], labels[:n], test, labels[n:], layout="table", notes=tuple(notes))


def row_items(tree: Tree, table: str, rows: list[Row], columns: Columns) -> Items:
    """Return the texts of rows, or the images that they name relative to the folder of their table."""
    values = [cells[columns.sample] for _, cells in rows]
    if not columns.images:
        return Texts(tuple(values))
    below = tree.below(posixpath.dirname(table))
    names = [_plain_path(name) for name in values]
    missing = [name for name in names if not below.is_file(name)]
    if missing:
        raise DatasetNotFoundError(
            f"the images of {tree.place(table)} must be in {below.place()}, but {len(missing)} of {len(names)} are "
            f"not: {listed(missing)}; paths are relative to the folder of the table"
        )
    return below.images(names)


def _plain_path(name: str) -> str:
    return posixpath.normpath(name.strip().replace("\\", "/"))


def split_rows(title: str, rows: list[Row], columns: Columns, notes: list[str]) -> tuple[list[Row], list[Row] | None]:
    """Share the rows out by the split column; without one, or with training rows only, there is no test part."""
    if not columns.split:
        return rows, None
    parts: dict[str, list[Row]] = {"train": [], "test": [], "validation": []}
    for line, cells in rows:
        word = cells[columns.split].strip().lower()
        known = (("train", TRAIN_WORDS), ("test", _TEST), ("validation", _VALIDATION))
        part = next((part for part, words in known if word in words), None)
        if part is None:
            raise FileFormatError(
                f"{title} line {line}: {columns.split} must be train, test or validation, got {word!r}"
            )
        parts[part].append((line, cells))
    if not parts["train"]:
        raise FileFormatError(f"{title} must have rows with {columns.split} = train, got none")
    if parts["test"] and parts["validation"]:
        notes.append(f"rows for validation left out: {len(parts['validation'])}")
    return parts["train"], parts["test"] or parts["validation"] or None


def choose_columns(title: str, header: Sequence[str], options: DataOptions) -> Columns:
    """Return which columns hold what: those that the options name, else those of usual names."""
    usual = [name for name in IMAGE_COLUMNS if name in header]
    text, label = options.text_column or TEXT_COLUMN, options.label_column or LABEL_COLUMN
    images = bool(options.image_column) or (text not in header and bool(usual))
    sample = options.image_column or (usual[0] if images else text)
    for column in (sample, label):
        if column not in header:
            raise FileFormatError(
                f"{title} must have a column {column!r}, got {listed(header, most=8)}; rename one, or say which one it "
                "is by text_column, image_column or label_column"
            )
    return Columns(sample, label, SPLIT_COLUMN if SPLIT_COLUMN in header else "", images)


def _read_rows(tree: Tree, name: str, options: DataOptions) -> tuple[Columns, list[Row]]:
    """Return which columns of a table hold what, and its rows, of which none lacks a sample or a label."""
    title = tree.place(name)
    header, rows = read_cells(tree, name)
    if not rows:
        raise FileFormatError(f"{title} must hold at least one row, got none")
    columns = choose_columns(title, header, options)
    needed = [columns.sample, columns.label, *([columns.split] if columns.split else [])]
    checked = []
    for line, cells in rows:
        for column in needed:
            if column not in cells:
                raise FileFormatError(
                    f"{title} line {line} must have {column!r} as a string or an integer, got {listed(cells)}"
                )
        values = {column: cells[column] for column in needed}
        values[columns.label] = values[columns.label].strip()
        for column in (columns.sample, columns.label):
            if not values[column].strip():
                raise InputError(f"{title} line {line}: {column} must not be empty")
        checked.append((line, values))
    return columns, checked


# -- cells ----------------------------------------------------------------------------------------------------


def read_cells(tree: Tree, name: str) -> tuple[list[str], list[Row]]:
    """Return the columns of a table, and the cells of every row with its line."""
    text, title, lower = tree.text(name), tree.place(name), name.lower()
    if lower.endswith((".jsonl", ".ndjson")):
        return _read_json_lines(text, title)
    return _read_csv(text, title, "\t" if lower.endswith(".tsv") else _separator(text))


def _read_csv(text: str, title: str, separator: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    header: list[str] = []
    # Not pyarrow.csv: a message needs the line, and texts go over several.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        with _long_fields():
            for cells in reader:
                if not cells or cells == [""]:
                    continue
                if not header:
                    header = [cell.strip() for cell in cells]
                    if len(set(header)) != len(header):
                        raise FileFormatError(f"{title} must have every column once, got {listed(header, most=8)}")
                elif len(cells) != len(header):
                    raise FileFormatError(
                        f"{title} line {reader.line_num} must have {len(header)} cells, got {len(cells)}; "
                        "texts with separators in them need quotes"
                    )
                else:
                    rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise FileFormatError(f"{title} line {reader.line_num} must be a row of cells: {error}") from error
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


def _read_json_lines(text: str, title: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    for line, entry in enumerate(text.split("\n"), start=1):
        if not entry.strip():
            continue
        try:
            record = json.loads(entry)
        except (json.JSONDecodeError, RecursionError) as error:
            raise FileFormatError(f"{title} line {line} must be JSON: {error}") from error
        if not isinstance(record, dict):
            raise FileFormatError(f"{title} line {line} must be a JSON object, got {type(record).__name__}")
        rows.append((line, {key: str(value) for key, value in record.items() if isinstance(value, (str, int))}))
    return list(dict.fromkeys(key for _, cells in rows for key in cells)), rows
