"""Parquet tables of texts or images: paths, bytes, or the ``{bytes, path}`` of Hugging Face."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, ImageError, InputError
from evergrow.core.items import Items, concat_items
from evergrow.core.optional import require
from evergrow.data.labelled import Label, LabelledItems, integers, listed
from evergrow.data.options import DataOptions
from evergrow.data.pairs import partner
from evergrow.data.readers import register_file_format, register_layout
from evergrow.data.stored import ImageStore, StoredImages
from evergrow.data.tables import IMAGE_COLUMNS, Columns, Row, TableFile, choose_columns, row_items, split_rows

SUFFIXES = (".parquet",)

_RATIO, _ROOM = 100, 64 * 2**20
"""Texts and labels may unpack to so many times the file, and so many bytes."""

_KEPT = 256 * 2**20
"""Bytes of images that a process keeps: a row can only be had by reading those of its group before it."""

_BATCH = 16
_SHARD = re.compile(r"^(?P<part>[A-Za-z]+?)(-\d+-of-\d+)?$")
_PARTS = {"train": "train", "training": "train", "test": "test", "validation": "validation", "valid": "validation"}


def _arrow() -> Any:
    return require("pyarrow.parquet", extra="parquet", purpose="reading Parquet")


def _opened(path: Path) -> Any:
    """Return an open Parquet file, or say that it is none."""
    arrow = _arrow()
    if not path.is_file():
        raise DatasetNotFoundError(f"file must exist, got {path}")
    try:
        return arrow.ParquetFile(path, memory_map=False)
    except MemoryError:
        raise
    except Exception as error:  # arrow has errors of its own, and damaged bytes bring any of them
        raise FileFormatError(f"{path} must be a whole Parquet file: {error}") from error


@register_file_format("parquet", SUFFIXES, by_name="last", paired=True)
def read_parquet_file(path: Path, options: DataOptions) -> LabelledItems:
    """Read a Parquet table and, if there is one, the table of test samples that goes with it.

    Raises
    ------
    FileFormatError
        If it is damaged, lacks a column, or a column is of a type that is neither text nor image.
    """
    test = partner(path)
    return _read_parts([path], [] if test is None else [test], options)


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Return the files of every part in a folder or its ``data``: ``train-00000-of-00002.parquet``."""
    for place in (folder, folder / "data"):
        parts: dict[str, list[Path]] = {}
        for file in sorted(place.glob("*.parquet")) if place.is_dir() else []:
            match = _SHARD.match(file.stem)
            part = _PARTS.get(match["part"].lower()) if match else None
            if part is not None:
                parts.setdefault(part, []).append(file)
        if "train" in parts:
            return parts
    return {}


@register_layout("parquet", fits=lambda folder: bool(_shards(folder)), rank=20)
def read_parquet_folder(folder: Path, options: DataOptions) -> LabelledItems:
    """Read a folder of Parquet files as the Hugging Face hub keeps them: parts, each in one or more files."""
    parts = _shards(folder)
    if not parts:
        raise DatasetNotFoundError(f"{folder} must hold train.parquet or train-00000-of-00001.parquet, got none")
    labelled = _read_parts(parts["train"], parts.get("test") or parts.get("validation") or [], options)
    if "test" in parts and "validation" in parts:
        labelled.notes.append(f"files for validation left out: {len(parts['validation'])}")
    return labelled


@dataclass(frozen=True)
class _Table:
    """One file as it was read: columns and rows, and a store where images are in it."""

    path: Path
    columns: Columns
    rows: list[Row]
    store: ParquetImages | None
    names: dict[int, str]


def _read_parts(train: Sequence[Path], test: Sequence[Path], options: DataOptions) -> LabelledItems:
    tables = [_read(path, options) for path in (*train, *test)]
    kinds = {(table.columns.images, table.store is not None) for table in tables}
    if len(kinds) > 1:
        raise FileFormatError(f"{listed([str(path) for path in (*train, *test)])} must all hold texts, or all images")
    if any(table.names != tables[0].names for table in tables):
        raise FileFormatError(f"{listed([str(table.path) for table in tables])} must name the same classes, got others")
    parts = [_joined(tables[: len(train)])]
    if test:
        parts.append(_joined(tables[len(train) :]))
    elif len(tables) == 1 and tables[0].columns.split:
        return _by_split(tables[0])
    test_items, test_labels = parts[1] if test else (None, ())
    return LabelledItems("parquet", *parts[0], test_items, test_labels, names=tables[0].names)


def _joined(tables: Sequence[_Table]) -> tuple[Items, Sequence[Label]]:
    items = concat_items([_items(table, table.rows) for table in tables])
    labels = [_label(cells[table.columns.label], table.names) for table in tables for _, cells in table.rows]
    return items, labels if tables[0].names else _as_integers(labels)


def _by_split(table: _Table) -> LabelledItems:
    notes: list[str] = []
    kept, tested = split_rows(TableFile.on_disk(table.path), table.rows, table.columns, notes)
    parts = [(_items(table, rows), rows) for rows in (kept, *([tested] if tested is not None else []))]
    labels = [[_label(cells[table.columns.label], table.names) for _, cells in rows] for _, rows in parts]
    if not table.names:
        both = _as_integers([label for part in labels for label in part])
        labels = [list(both[: len(labels[0])]), list(both[len(labels[0]) :])]
    test = parts[1][0] if tested is not None else None
    return LabelledItems(
        "parquet", parts[0][0], labels[0], test, labels[1] if tested is not None else (), names=table.names, notes=notes
    )


def _as_integers(labels: Sequence[Label]) -> Sequence[Label]:
    return integers([str(label) for label in labels])


def _label(text: str, names: dict[int, str]) -> Label:
    if not names:
        return text
    if not text.lstrip("-").isdigit() or int(text) not in names:
        raise InputError(f"labels must be among the {len(names)} that the file names, got {text!r}")
    return int(text)


def _items(table: _Table, rows: list[Row]) -> Items:
    if table.store is not None:
        return StoredImages(table.store, np.array([number for number, _ in rows], dtype=np.int64))
    return row_items(TableFile.on_disk(table.path), rows, table.columns)


def unlabelled_column(path: Path, kind: str, options: DataOptions) -> Items:
    """Return all texts or images of a Parquet file; no label is needed."""
    file = _opened(path)
    header = list(file.schema_arrow.names)
    holding = image_columns(file.schema_arrow)
    usual = [name for name in (*IMAGE_COLUMNS, "file_name", *holding) if name in header]
    wanted = options.text_column if kind == "text" else options.image_column or next(iter(usual), "")
    if header.count(wanted) != 1:
        raise FileFormatError(
            f"{path} must have one column of {kind}s, got {listed(header, most=8)}; say which one it is by "
            f"{kind}_column"
        )
    if kind == "image" and wanted in holding:
        return StoredImages(ParquetImages(path, wanted), np.arange(file.metadata.num_rows, dtype=np.int64))
    columns = Columns(wanted, wanted, "", kind == "image")
    return row_items(TableFile.on_disk(path), _rows(path, file, [wanted], columns), columns)


# -- one file -------------------------------------------------------------------------------------------------


def _read(path: Path, options: DataOptions) -> _Table:
    file = _opened(path)
    schema = file.schema_arrow
    header = list(schema.names)
    if len(set(header)) != len(header):
        raise FileFormatError(f"{path} must have every column once, got {listed(header, most=8)}")
    columns = choose_columns(TableFile.on_disk(path), header, options, image_columns(schema))
    kind = schema.field(columns.sample).type
    inline = columns.images and _image_path(kind, columns.sample) is not None
    texts = [columns.label, *([columns.split] if columns.split else []), *([] if inline else [columns.sample])]
    rows = _rows(path, file, texts, columns)
    store = ParquetImages(path, columns.sample) if inline else None
    return _Table(path, columns, rows, store, label_names(schema, columns.label))


def image_columns(schema: Any) -> list[str]:
    """Return the columns that hold images themselves."""
    return [field.name for field in schema if _image_path(field.type, field.name) is not None]


def _image_path(kind: Any, column: str) -> str | None:
    """Return where the bytes of images are in a column, or None where it holds something else."""
    import pyarrow.types as types

    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column
    if types.is_struct(kind) and {"bytes", "path"} & {kind.field(row).name for row in range(kind.num_fields)}:
        return f"{column}.bytes"
    return None


def _rows(path: Path, file: Any, names: list[str], columns: Columns) -> list[Row]:
    """Return the texts of columns, row by row, numbered from 0; a file that unpacks without bounds is refused."""
    left = _RATIO * path.stat().st_size + _ROOM
    rows: list[Row] = []
    for batch in _batches(path, file, columns=names):
        values = [_texts(path, batch.column(name), name) for name in names]
        for cells in zip(*values, strict=True):
            number = len(rows)
            row = dict(zip(names, cells, strict=True))
            left -= 16 + sum(len(cell) for cell in cells)
            if left < 0:
                raise FileFormatError(f"{path} must unpack to at most {_RATIO} times its size and 64 MiB, got more")
            row[columns.label] = row[columns.label].strip()
            for name in names:
                if not row[name].strip():
                    raise InputError(f"{path} row {number}: {name} must not be empty")
            rows.append((number, row))
    if not rows:
        raise FileFormatError(f"{path} must hold at least one row, got none")
    return rows


def _batches(path: Path, file: Any, **options: Any) -> Iterator[Any]:
    try:
        yield from file.iter_batches(batch_size=options.pop("batch_size", 1024), use_threads=False, **options)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, (FileFormatError, InputError)):
            raise
        raise FileFormatError(f"{path} must be a whole Parquet file: {error}") from error


def _texts(path: Path, array: Any, name: str) -> list[str]:
    import pyarrow.types as types

    kind = array.type.value_type if types.is_dictionary(array.type) else array.type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        raise FileFormatError(f"{path}: column {name!r} must hold texts or integers, got {kind}")
    return ["" if value is None else str(value) for value in array.to_pylist()]


def label_names(schema: Any, label: str) -> dict[int, str]:
    """Return the names of integer labels where the Hugging Face library left them in the file."""
    import pyarrow.types as types

    kept = (schema.metadata or {}).get(b"huggingface")
    if kept is None or not types.is_integer(schema.field(label).type):
        return {}
    try:
        names = json.loads(kept)["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    good = isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names)
    return dict(enumerate(names)) if good and len(set(names)) == len(names) else {}


# -- images ---------------------------------------------------------------------------------------------------


class ParquetImages(ImageStore):
    """Images in a column of a Parquet file; every process reads it for itself.

    Parameters
    ----------
    path : Path
        The file.
    column : str
        The column: bytes of image files, or the ``{bytes, path}`` of Hugging Face.
    """

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column = path, column
        footer = _opened(path).metadata
        self._ends = np.cumsum([footer.row_group(row).num_rows for row in range(footer.num_row_groups)]).tolist()
        about = f"{path.stat().st_size}\0{footer.num_rows}\0{footer.serialized_size}"
        self._tag = hashlib.blake2b(about.encode(), digest_size=8).hexdigest()
        self._forget()

    def _forget(self) -> None:
        self._file: Any = None
        self._owner = 0
        self._kept: OrderedDict[tuple[int, int], tuple[list[Any], int]] = OrderedDict()
        self._reading: tuple[int, int, Iterator[Any]] | None = None
        self._lock = threading.Lock()

    def name(self, row: int) -> str:
        """Return the file and the row in it."""
        return f"{self.path.name}[{row}]"

    def key(self, row: int) -> str:
        """Return what tells the file from others, and the row."""
        return f"{self._tag}\0{self.column}\0{row}"

    def read(self, row: int) -> bytes | Path:
        """Return the bytes of an image as they are in the table, or the path of one."""
        group = int(np.searchsorted(self._ends, row, side="right"))
        within = row - (self._ends[group - 1] if group else 0)
        if self._owner != os.getpid():  # a forked process shares neither the position in the file nor a held lock
            self._forget()
            self._owner = os.getpid()
        with self._lock:
            cell = self._cell(group, within)
        body = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(body, bytes) and body:
            return body
        path = cell.get("path") if isinstance(cell, dict) else None
        if isinstance(path, str) and path:
            return self._beside(path, row)
        raise ImageError(f"image must be there, got an empty cell for {self.name(row)}")

    def _beside(self, path: str, row: int) -> Path:
        """Return a file that the table refers to; names that lead out of its folder are not followed."""
        name = posixpath.normpath(path.replace("\\", "/"))
        if posixpath.isabs(name) or name.startswith(".."):
            raise ImageError(f"image must be in the folder of the table, got {path!r} for {self.name(row)}")
        return self.path.parent / name

    def _cell(self, group: int, within: int) -> Any:
        block = (group, within // _BATCH)
        if block not in self._kept:
            self._load(group, block[1])
        self._kept.move_to_end(block)
        return self._kept[block][0][within % _BATCH]

    def _load(self, group: int, wanted: int) -> None:
        """Read a group of rows as far as the wanted block, from where the last reading of it stopped if that helps."""
        at, number, blocks = self._reading or (-1, 0, iter(()))
        if at != group or number > wanted:
            number, blocks = 0, self._blocks(group)
        for cells in blocks:
            self._kept[group, number] = cells, sum(map(_weight, cells))
            while len(self._kept) > 1 and sum(weight for _, weight in self._kept.values()) > _KEPT:
                self._kept.popitem(last=False)
            number += 1
            if number > wanted:
                self._reading = (group, number, blocks)
                return
        raise FileFormatError(f"{self.path} must hold the rows that it says, but group {group} ends early")

    def _blocks(self, group: int) -> Iterator[list[Any]]:
        """Yield the cells of a group in blocks of one length, which batches need not have."""
        if self._file is None:
            self._file = _opened(self.path)
        waiting: list[Any] = []
        for batch in _batches(self.path, self._file, row_groups=[group], columns=[self.column], batch_size=_BATCH):
            waiting += batch.column(0).to_pylist()
            while len(waiting) >= _BATCH:
                yield waiting[:_BATCH]
                waiting = waiting[_BATCH:]
        if waiting:
            yield waiting

    def __getstate__(self) -> dict[str, Any]:
        kept = ("path", "column", "_ends", "_tag")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _weight(cell: Any) -> int:
    body = cell.get("bytes") if isinstance(cell, dict) else cell
    return len(body) if isinstance(body, bytes) else 0
