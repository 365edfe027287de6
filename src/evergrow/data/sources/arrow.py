"""Hugging Face data sets that were saved to disk, as sources: ranges of record batches of their Arrow files.

An Arrow stream is a row of messages: four bytes of ones, the length of the metadata, the metadata (a flatbuffer that
states how long the body is and, of a record batch, how many rows it has), and the body. So a file is indexed by its
metadata alone, and a shard is the bytes of some messages, read after those of the schema.
"""

from __future__ import annotations

import io
import posixpath
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from evergrow.core.documents import parse_json
from evergrow.core.errors import DatasetNotFoundError, EvergrowError, FileFormatError
from evergrow.core.escaping import one_line
from evergrow.core.optional import require
from evergrow.data.labelled import listed
from evergrow.data.places import Place
from evergrow.data.ranged_file import RangedFile
from evergrow.data.shard import Shard, ShardData
from evergrow.data.sources.base import SOURCES, FileSource, SampleKind, SourceOptions, where_of
from evergrow.data.sources.columns import TableColumns, choose_columns, table_data
from evergrow.data.sources.spans import block_spans

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_LONGEST = 64 * 2**20
_WINDOW = 4096
_TESTS = ("test", "validation", "valid", "val", "eval")


@dataclass(frozen=True)
class Batch:
    """A record batch in a file.

    Parameters
    ----------
    start, stop : int
        Its first byte, and the one after its last.
    rows : int
        Rows that it states.
    """

    start: int
    stop: int
    rows: int


@dataclass(frozen=True)
class ArrowIndex:
    """Where the record batches of a file are.

    Parameters
    ----------
    head : bytes
        The schema, and dictionaries where there are such: what must come before any batch.
    batches : tuple of Batch
        All of them.
    """

    head: bytes
    batches: tuple[Batch, ...]


def index_stream(file: RangedFile, size: int) -> ArrowIndex:
    """Return where the record batches of an Arrow stream are; bodies are not read.

    Raises
    ------
    ValueError
        If it is no such stream, or is cut off.
    """
    batches: list[Batch] = []
    position = head = 0
    while position < size:
        file.seek(position)
        mark, length = struct.unpack("<Ii", file.read(8))
        if mark != 0xFFFFFFFF:
            raise ValueError("it must be an Arrow stream, as save_to_disk writes it")
        if length == 0:  # the end
            break
        if not 0 < length <= min(_LONGEST, size - position):
            raise ValueError("a message is cut off")
        kind, body, rows = _message(file.read(length))
        stop = position + 8 + length + body
        if body < 0 or rows < 0 or stop > size:
            raise ValueError("a message is cut off")
        if kind == _BATCH:
            batches.append(Batch(position, stop, rows))
        elif batches or kind not in (_SCHEMA, _DICTIONARY):
            raise ValueError("dictionaries must come before all rows")
        else:
            head = stop
        position = stop
    if not head or head > _LONGEST:
        raise ValueError("it must begin with a schema")
    file.seek(0)
    return ArrowIndex(file.read(head), tuple(batches))


def _message(body: bytes) -> tuple[int, int, int]:
    """Return kind, length of the body and rows that the metadata of a message states."""
    (table,) = struct.unpack_from("<I", body, 0)
    kind_at, header_at, length_at = (_field(body, table, number) for number in (1, 2, 3))
    kind = body[kind_at] if kind_at else 0
    length = struct.unpack_from("<q", body, length_at)[0] if length_at else 0
    rows = 0
    if kind == _BATCH and header_at:
        batch = header_at + struct.unpack_from("<I", body, header_at)[0]
        rows_at = _field(body, batch, 0)
        rows = struct.unpack_from("<q", body, rows_at)[0] if rows_at else 0
    return int(kind), int(length), int(rows)


def _field(body: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer table is, or 0 where the table lacks it."""
    (back,) = struct.unpack_from("<i", body, table)
    directory = table - back
    if directory < 0:
        raise ValueError("a message is damaged")
    (length,) = struct.unpack_from("<H", body, directory)
    if 4 + 2 * number + 2 > length:
        return 0
    (offset,) = struct.unpack_from("<H", body, directory + 4 + 2 * number)
    return table + offset if offset else 0


@SOURCES.register("arrow")
class ArrowSource(FileSource):
    """A data set that ``save_to_disk`` of the Hugging Face library wrote, one split or a dictionary of them.

    Shards are record batches, a thousand rows as the library writes them; of a batch that is too large a part is kept.
    """

    format = "arrow"
    suffixes = (".arrow",)

    def __init__(self, place: Place, pattern: str, options: SourceOptions, kind: str = "") -> None:
        super().__init__(place, pattern, options, kind)
        self._index = lru_cache(maxsize=64)(self._read_index)
        self._head = lru_cache(maxsize=64)(self._read_head)

    @cached_property
    def files(self) -> dict[str, int]:
        """Names and sizes of the Arrow files, in the order of their names."""
        if self.pattern:
            return super().files
        every = self.place.listing(deep=True)
        folders = self._splits(every)
        found = {name: every[name] for folder in folders for name in self._data_files(folder, every)}
        return dict(sorted(found.items()))

    def _splits(self, every: dict[str, int]) -> list[str]:
        """Return the folders of the splits that are read; the empty name is the place itself."""
        if "dataset_dict.json" not in every:
            return [""]
        content = self._json("dataset_dict.json", every)
        splits = [name for name in content.get("splits", []) if isinstance(name, str) and f"{name}/state.json" in every]
        tests = [name for name in _TESTS if name in splits]
        wanted = {"train": ["train"], "test": tests[:1], "all": splits}[self.options.part]
        if not wanted or not set(wanted) <= set(splits):
            raise DatasetNotFoundError(
                f"{self.place.title()} must have a split {self.options.part}, got {listed(splits)}"
            )
        return wanted

    def _data_files(self, folder: str, every: dict[str, int]) -> list[str]:
        state_name = posixpath.join(folder, "state.json")
        if state_name not in every:
            raise DatasetNotFoundError(f"{self.place.title(state_name)} must exist, but it does not")
        state = self._json(state_name, every)
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise FileFormatError(
                f"{self.place.title(folder)} must be saved without indices: run flatten_indices() before save_to_disk()"
            )
        entries = state.get("_data_files")
        names: list[str] = []
        for entry in entries if isinstance(entries, list) else []:
            name = entry.get("filename") if isinstance(entry, dict) else None
            if not isinstance(name, str) or "/" in name or posixpath.join(folder, name) not in every:
                raise FileFormatError(f"{self.place.title(state_name)} must name files beside it, got {name!r}")
            names.append(posixpath.join(folder, name))
        if not names:
            raise FileFormatError(f"{self.place.title(state_name)} must name data files, got none")
        return names

    def _json(self, name: str, every: dict[str, int]) -> dict[str, Any]:
        if every[name] > _LONGEST:
            raise FileFormatError(f"{self.place.title(name)} must be a small JSON file, got {every[name]} bytes")
        content = parse_json(self.place.read(name, 0, every[name]), self.place.title(name))
        if not isinstance(content, dict):
            raise FileFormatError(f"{self.place.title(name)} must hold a JSON object")
        return content

    def _read_index(self, name: str) -> ArrowIndex:
        size = self.files[name]
        with _whole(self.place.title(name)):
            return index_stream(self.place.open(name, size, window=_WINDOW), size)

    def _read_head(self, name: str, length: int) -> tuple[bytes, Any, TableColumns]:
        """Return the bytes before the batches of a file, its schema and its columns."""
        ipc = require("pyarrow", extra="parquet", purpose="reading Arrow files").ipc
        title = self.place.title(name)
        head = self.place.read(name, 0, length)
        with _whole(title):
            schema = ipc.open_stream(io.BytesIO(head)).schema
            columns = choose_columns(schema, self.options, title)
        return head, schema, columns if columns.classes else replace(columns, classes=self._names_beside(name, columns))

    def _names_beside(self, name: str, columns: TableColumns) -> dict[int, str]:
        """Return the names of integer labels from the description beside the files, where it has such."""
        about = posixpath.join(posixpath.dirname(name), "dataset_info.json")
        if not columns.label or not self.place.exists(about):
            return {}
        content = self._json(about, {about: self.place.size(about)})
        try:
            names = content["features"][columns.label]["names"]
        except (KeyError, TypeError):
            return {}
        good = isinstance(names, list) and all(isinstance(item, str) and item.strip() for item in names)
        return dict(enumerate(names)) if good else {}

    def _look_for_kind(self) -> SampleKind:
        name = next(iter(self.files))
        return self._head(name, len(self._index(name).head))[2].kind

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        first: tuple[str, TableColumns] | None = None
        for name in self.files:
            index = self._index(name)
            columns = self._head(name, len(index.head))[2]
            first = first or (name, columns)
            if columns != first[1]:
                raise FileFormatError(f"{self.place.title()}: files must have the same columns, got others in {name}")
            blocks = [(batch.rows, batch.stop - batch.start) for batch in index.batches]
            done = 0
            for span in block_spans(blocks, rows, size):
                start, stop = index.batches[span.first].start, index.batches[span.last - 1].stop
                where = {"file": name, "head": len(index.head), "start": start, "stop": stop, "skip": span.skip}
                yield Shard(0, span.rows, span.size, {**where, "row": done})
                done += span.rows

    def read(self, shard: Shard) -> ShardData:
        """Return the rows of a shard: its record batches after the schema, as one stream."""
        arrow = require("pyarrow", extra="parquet", purpose="reading Arrow files")
        where = where_of(shard)
        name, row, skip = where.text("file"), where.integer("row"), where.integer("skip")
        start, stop = where.integer("start"), where.integer("stop")
        head, schema, columns = self._head(name, where.integer("head", high=_LONGEST))
        title = self.place.title(name)
        body = self.place.read(name, start, stop)
        if len(body) != stop - start:
            raise FileFormatError(f"{title} must be as long as when the shards were made, but it ends early")
        kept = [schema.get_field_index(column) for column in (columns.sample, columns.label, columns.name) if column]
        with _whole(title):
            options = arrow.ipc.IpcReadOptions(included_fields=sorted(kept), use_threads=False)
            table = arrow.ipc.open_stream(arrow.py_buffer(head + body), options=options).read_all()
            table.validate(full=True)
        table = table.slice(skip, shard.rows)
        if table.num_rows != shard.rows:
            raise FileFormatError(f"{title} must hold the rows that it states, got {table.num_rows} of {shard.rows}")
        names = tuple(f"{name}[{number}]" for number in range(row, row + shard.rows))
        return table_data(table, columns, title, names)


class _whole:  # noqa: N801  reads as a phrase: with _whole(title)
    """Turn whatever is raised where bytes are not what they should be into an error with the file's name."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, (EvergrowError, MemoryError)):
            reason = "a message is cut off" if isinstance(error, struct.error) else one_line(str(error))
            raise FileFormatError(f"{self.title} must be a whole Arrow stream: {reason}") from error
