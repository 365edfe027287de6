"""Parquet files, and Arrow files of Hugging Face: images, texts or vectors in columns, read by groups of rows."""

from __future__ import annotations

import itertools
import json
import posixpath
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, ImageError, InputError
from evergrow.core.escaping import quote_names
from evergrow.data.archives import wrap_format_errors
from evergrow.data.feature_blocks import check_widths
from evergrow.data.items import Images, Samples, Texts
from evergrow.data.readers import has_files, register_reader
from evergrow.data.shards import (
    Shard,
    Source,
    as_features,
    class_labels,
    spans,
    where_of,
)
from evergrow.data.storage import LARGEST_IMAGE, RATIO, ROOM, Tree
from evergrow.data.tables import NAME_COLUMNS, SPLIT_COLUMN, choose_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

WIDTHS = "evergrow.widths"
"""Metadata of a file of features: a JSON list of the columns of each block, which are at equal energy already."""

_ROWS_PER_BYTE = 1000
"""A row group that claims more rows for its bytes lies."""

_BATCH = {"image": 64, "text": 4096, "features": 4096}


@dataclass(frozen=True)
class _Table:
    """A file whose footer is read.

    Parameters
    ----------
    file : ParquetFile or _ArrowFile
        The open file.
    kind : {"image", "text", "features"}
        What the samples are.
    sample, label, name : str
        Columns of samples, labels and names; empty where there are none.
    classes : mapping of int to str
        Names of integer labels, where the table has them.
    groups : list of (int, int)
        Rows and bytes of every row group.
    """

    file: pq.ParquetFile | _ArrowFile
    kind: str
    sample: str
    label: str
    name: str
    classes: Mapping[int, str]
    groups: list[tuple[int, int]]


def _contents(kind: Any) -> str:
    """Return the content of a column type: ``"text"``, ``"image"``, ``"features"``, or an empty string.

    Images are bytes, or the ``{bytes, path}`` of Hugging Face.
    """
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return "image"
    if types.is_struct(kind) and {"bytes", "path"} & {
        kind.field(row).name for row in range(kind.num_fields)
    }:
        return "image"
    lists = (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )
    if lists and types.is_floating(kind.value_type):
        return "features"
    return ""


def _label_names(schema: pa.Schema, label: str) -> dict[int, str]:
    """Return the names of integer labels where the Hugging Face library left them in the file."""
    from pyarrow import types

    kept = (schema.metadata or {}).get(b"huggingface")
    if kept is None or not label or not types.is_integer(schema.field(label).type):
        return {}
    try:
        names = json.loads(kept)["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    good = isinstance(names, list) and all(
        isinstance(name, str) and name.strip() for name in names
    )
    if good and len(set(names)) == len(names):
        return dict(enumerate(names))
    return {}


class _ArrowFile:
    """An Arrow stream whose record batches are its row groups; files on disk are mapped, not read."""

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._name = name
        self.schema_arrow: pa.Schema = self.stream().schema

    def opened(self) -> Any:
        """Return the file from its first byte on."""
        import pyarrow as pa

        if self._tree.on_disk and self._tree.size(
            self._name
        ):  # an empty file cannot be mapped
            return pa.memory_map(str(self._tree.root / self._name))
        return pa.PythonFile(self._tree.open(self._name, 2**20), mode="r")

    def stream(self) -> pa.RecordBatchStreamReader:
        """Return the batches from the first on."""
        import pyarrow as pa

        return pa.ipc.open_stream(self.opened())

    def iter_batches(
        self, _: int, *, row_groups: range, columns: list[str], **__: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield some batches, as :class:`pyarrow.parquet.ParquetFile` does."""
        batches = itertools.islice(self.stream(), row_groups.start, row_groups.stop)
        return (batch.select(columns) for batch in batches)


class ParquetSource(Source):
    """Rows of Parquet files: images as bytes or as the ``{bytes, path}`` of Hugging Face, texts, or feature vectors.

    Shards are row groups, several where they are small; a group that is too large is
    shared out, and then whoever reads a later part of it reads the parts before it too.
    """

    format = "parquet"
    suffixes = (".parquet",)

    def _open_file(self, name: str) -> _Table:
        title = self.tree.display_name(name)
        with wrap_format_errors(title, f"{self.format.capitalize()} file"):
            file = self._file(name)
            schema = file.schema_arrow
            if len(set(schema.names)) != len(schema.names):
                raise FileFormatError(
                    f"{title} must have every column once, got {quote_names(schema.names, most=8)}"
                )
            contents = {
                column: _contents(schema.field(column).type) for column in schema.names
            }
            if (
                contents.get(SPLIT_COLUMN) == "text"
                and self.options.labelled
                and self.options.part != "all"
            ):
                raise FileFormatError(
                    f"{title} has a column {SPLIT_COLUMN!r}; write the parts to files of their own"
                )
            kind, sample, label = choose_columns(contents, self.options, title)
            names = (
                column
                for column in NAME_COLUMNS
                if contents.get(column) == "text" and column != sample
            )
            if kind == "image" and contents[sample] == "text":
                raise FileFormatError(
                    f"{title}: {sample!r} must hold images, got their names, which a .csv can hold"
                )
            own = next(names, "")
            groups = self._row_groups(file, [sample, label, own], title)
            return _Table(
                file, kind, sample, label, own, _label_names(schema, label), groups
            )

    def _file(self, name: str) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.tree.open(name), pre_buffer=False)

    def _row_groups(
        self, file: Any, wanted: list[str], title: str
    ) -> list[tuple[int, int]]:
        """Return rows and bytes of every row group, of the columns that are read; impossible claims are refused."""
        footer = file.metadata
        groups = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            chunks = [group.column(row) for row in range(group.num_columns)]
            kept = [
                chunk
                for chunk in chunks
                if chunk.path_in_schema.partition(".")[0] in wanted
            ]
            packed = sum(chunk.total_compressed_size for chunk in kept)
            flat = (
                chunk
                for row, chunk in enumerate(chunks)
                if not file.schema.column(row).max_repetition_level
            )
            lies = {chunk.num_values for chunk in flat} - {group.num_rows}
            if lies or not 0 <= group.num_rows <= _ROWS_PER_BYTE * (packed + 1):
                raise FileFormatError(
                    f"{title} must hold the rows that it states, got others in group {number}"
                )
            if (
                sum(chunk.total_uncompressed_size for chunk in kept)
                > RATIO * packed + ROOM
            ):
                raise FileFormatError(
                    f"{title} must unpack to at most {RATIO} times its size and 64 MiB, got more"
                )
            groups.append((group.num_rows, packed))
        if sum(rows for rows, _ in groups) != footer.num_rows:
            raise FileFormatError(
                f"{title} must hold the {footer.num_rows} rows that it states, got other groups"
            )
        return groups

    @property
    def _first(self) -> _Table:
        table: _Table = self._open(next(iter(self.files)))
        return table

    @cached_property
    def kind(self) -> str:
        """What the column of the first file holds."""
        return self._first.kind

    @property
    def classes(self) -> Mapping[int, str]:
        """Names of integer labels, where the first file has them."""
        return self._first.classes

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block that feature vectors were joined of, as the first file states."""
        return self._shape(next(iter(self.files)))[1]

    def _shape(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Return the length of feature vectors, and the widths of their blocks as the file states them."""
        table = self._open(name)
        title = self.tree.display_name(name)
        if table.kind != "features":
            return 0, ()
        schema = table.file.schema_arrow
        width = int(getattr(schema.field(table.sample).type, "list_size", 0))
        filled = [number for number, (rows, _) in enumerate(table.groups) if rows]
        if not width and filled:  # where the type does not say it, the first row does
            row = self._rows(
                name, (filled[0], filled[0] + 1, 0, 1), [table.sample]
            ).column(table.sample)[0]
            width = len(row.as_py() or ())
        stated = (schema.metadata or {}).get(WIDTHS.encode())
        try:
            return width, check_widths(
                WIDTHS, parse_json(stated or "[]", f"{title}: {WIDTHS}"), width
            )
        except InputError as error:
            raise FileFormatError(f"{title}: {error}") from error

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        table = self._open(name)
        shards = []
        form = {
            "samples": table.sample,
            "labels": table.label,
            "classes": table.classes,
        }
        form |= dict(zip(("width", "blocks"), self._shape(name), strict=True))
        for span in spans(table.groups, rows, size):
            where = {
                "file": name,
                "first": span.first,
                "last": span.last,
                "skip": span.skip,
            }
            row = sum(n for n, _ in table.groups[: span.first]) + span.skip
            shards.append(Shard(0, span.rows, span.size, {**where, "row": row}))
        return form, shards

    def _rows(
        self, name: str, where: tuple[int, int, int, int], wanted: list[str]
    ) -> pa.Table:
        """Return rows of a range of row groups: (first, last, rows to skip, rows)."""
        import pyarrow as pa

        first, last, skip, rows = where
        title = self.tree.display_name(name)
        table = self._open(name)
        if not first < last <= len(table.groups):
            raise FileFormatError(
                f"{title} must hold {last} row groups, as when shards were made"
            )
        left = RATIO * self.tree.size(name) + ROOM
        kept = []
        count = 0
        with wrap_format_errors(title, f"{self.format.capitalize()} file"):
            for batch in table.file.iter_batches(
                _BATCH[table.kind],
                row_groups=range(first, last),
                columns=wanted,
                use_threads=False,
            ):
                left -= batch.nbytes
                if left < 0:
                    raise FileFormatError(
                        f"{title} must unpack to at most {RATIO} times its size, got more"
                    )
                batch.validate(full=True)
                before = min(skip, batch.num_rows)
                part = batch.slice(before, rows - count)
                skip -= before
                kept += [part] if part.num_rows else []
                count += part.num_rows
                if count >= rows:
                    break
        if count != rows:
            raise FileFormatError(
                f"{title} must hold the rows that it states, got {count} instead of {rows}"
            )
        return pa.Table.from_batches(kept)

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the rows of a shard: its columns of its groups."""
        name, first, last, skip, row = where_of(
            shard, file=str, first=int, last=int, skip=int, row=int
        )
        title = self.tree.display_name(name)
        table = self._open(name)
        wanted = [
            column
            for column in (table.sample if bodies else "", table.label, table.name)
            if column
        ]
        if wanted:
            rows = self._rows(name, (first, last, skip, shard.rows), wanted)
        else:
            rows = None
        names = tuple(f"{name}[{number}]" for number in range(row, row + shard.rows))
        labels = None
        if rows is not None and table.label:
            values = rows.column(table.label).to_pylist()
            plain = [
                value.strip() if isinstance(value, str) else value for value in values
            ]
            labels = class_labels(plain, table.classes, title)
        if rows is not None and table.name:
            given = rows.column(table.name).to_pylist()
            names = tuple(own or usual for own, usual in zip(given, names, strict=True))
        if rows is None or not bodies:
            return Samples("image", Images((b"",) * len(names), names), labels=labels)
        column = rows.column(table.sample)
        if table.kind == "features":
            vectors = _vectors(column, f"{title}: {table.sample}")
            return Samples("features", features=vectors, labels=labels, row_names=names)
        values = column.to_pylist()
        if table.kind == "image":
            images = tuple(
                _image(cell, own) for cell, own in zip(values, names, strict=True)
            )
            return Samples("image", Images(images, names), labels=labels)
        for own, text in zip(names, values, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise InputError(
                    f"{title}: {table.sample} must not be empty, got {text!r} for {own}"
                )
        return Samples("text", Texts(tuple(values)), labels=labels, row_names=names)


def _image(cell: Any, title: str) -> bytes | ImageError:
    """Return the bytes of an image, or why there are none: one bad cell is one bad image, not a bad shard."""
    if isinstance(cell, dict):
        body = cell.get("bytes")
    else:
        body = cell
    if not isinstance(body, bytes) or not body:
        return ImageError(
            f"image must be there, but its bytes are not in the table: {title}"
        )
    large = len(body) > LARGEST_IMAGE
    if large:
        return ImageError(
            f"{title} must have at most {LARGEST_IMAGE // 2**20} MiB, got more"
        )
    return body


def _vectors(column: Any, title: str) -> NDArray[Any]:
    """Return lists of numbers as rows of one width."""
    array = column.combine_chunks()
    values = array.flatten()  # leaves out null lists, so that the count differs
    width = 0
    if len(array):
        width = len(values) // len(array)
    even = (
        array.null_count == 0 == values.null_count
        and len(values) == len(array) * width > 0
    )
    if even and not hasattr(array.type, "list_size"):
        even = bool((np.diff(np.asarray(array.offsets)) == width).all())
    if not even:
        raise FileFormatError(
            f"{title} must hold vectors of one width in every row, got others"
        )
    return as_features(
        np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, width), title
    )


_is_parquet = partial(has_files, suffixes=".parquet")
register_reader("parquet", suffixes=(".parquet",), fits=_is_parquet, rank=20)(
    ParquetSource
)


def _is_packed(flatbuffer: bytes) -> bool:
    """Return whether a record batch is compressed: Arrow would unpack it whole to tell its size, however large."""

    def entry(table: int, number: int) -> int:
        """Return where an entry of a table begins, counted from the table; 0 where it has none."""
        names = table - struct.unpack_from("<i", flatbuffer, table)[0]
        (size,) = struct.unpack_from("<H", flatbuffer, names)
        if 4 + 2 * number < size:
            return int(struct.unpack_from("<H", flatbuffer, names + 4 + 2 * number)[0])
        return 0

    (message,) = struct.unpack_from("<I", flatbuffer)
    header = message + entry(message, 2)
    return bool(entry(header + struct.unpack_from("<I", flatbuffer, header)[0], 3))


class ArrowSource(ParquetSource):
    """Rows of a data set that ``save_to_disk`` of the Hugging Face library wrote, one split or a dictionary of them."""

    format = "arrow"
    suffixes = (".arrow",)

    @cached_property
    def _every_file(self) -> dict[str, int]:
        every = super()._every_file
        found = {
            name: size
            for name, size in every.items()
            if not posixpath.basename(name).startswith("cache-")
        }
        if any(name.endswith("indices.arrow") for name in found):
            raise FileFormatError(
                f"{self.tree.display_name()} must be saved without indices: run flatten_indices() before"
            )
        return found

    def _file(self, name: str) -> Any:
        return _ArrowFile(self.tree, name)

    def _row_groups(
        self, file: Any, wanted: list[str], title: str
    ) -> list[tuple[int, int]]:
        from pyarrow.ipc import MessageReader

        messages = iter(MessageReader.open_stream(file.opened()))
        next(messages)  # the schema
        if any(
            message.type != "record batch" or _is_packed(message.metadata.to_pybytes())
            for message in messages
        ):
            raise FileFormatError(
                f"{title} must hold plain batches, as save_to_disk writes them, got packed ones"
            )
        return [(batch.num_rows, batch.nbytes) for batch in file.stream()]


_is_saved = partial(has_files, suffixes=(".arrow", "dataset_dict.json"))
register_reader("arrow", suffixes=(".arrow",), fits=_is_saved, rank=10)(ArrowSource)
