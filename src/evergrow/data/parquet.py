"""Parquet files, and Arrow files of Hugging Face, read by groups of rows."""

from __future__ import annotations

import itertools
import json
import posixpath
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, ImageError, InputError
from evergrow.core.escaping import quote_names
from evergrow.data.archives import wrap_format_errors
from evergrow.data.class_labels import class_labels
from evergrow.data.feature_blocks import as_features, check_widths
from evergrow.data.items import Images, Samples, Texts
from evergrow.data.readers import has_files, register_reader
from evergrow.data.shards import Shard, Source, spans, where_of
from evergrow.data.storage import LARGEST_IMAGE, RATIO, ROOM, Tree
from evergrow.data.tables import NAME_COLUMNS, SPLIT_COLUMN, choose_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

WIDTHS = "evergrow.widths"
"""Metadata key: JSON list of the columns of each block, already at equal energy."""

_MAX_ROWS_PER_BYTE = 1000
"""Row groups that state more rows per byte are refused."""

_BATCH_ROWS = {"image": 64, "text": 4096, "features": 4096}


@dataclass(frozen=True)
class _Table:
    """An open file and its columns.

    Parameters
    ----------
    file : ParquetFile or _ArrowFile
        The open file.
    kind : {"image", "text", "features"}
        Kind of the samples.
    sample, label, name : str
        Columns of samples, labels and names, or "".
    classes : mapping of int to str
        Names of integer labels, if the file has them.
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
    """Return ``"text"``, ``"image"``, ``"features"`` or "" for a column type.

    Images are bytes, or the ``{bytes, path}`` of Hugging Face.
    """
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return "image"
    if types.is_struct(kind):
        fields = {kind.field(number).name for number in range(kind.num_fields)}
        if fields & {"bytes", "path"}:
            return "image"
    is_list = (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )
    return "features" if is_list and types.is_floating(kind.value_type) else ""


def _label_names(schema: pa.Schema, label: str) -> dict[int, str]:
    """Return the names of integer labels from the metadata of Hugging Face.

    The result is empty without such metadata, or if they are damaged.
    """
    from pyarrow import types

    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None or not label or not types.is_integer(schema.field(label).type):
        return {}
    try:
        names = json.loads(metadata)["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(names, list):
        return {}
    are_names = all(isinstance(name, str) and name.strip() for name in names)
    if not are_names or len(set(names)) != len(names):
        return {}
    return dict(enumerate(names))


class _ArrowFile:
    """An Arrow stream whose record batches are used like row groups of Parquet.

    Files on disk are memory-mapped.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._name = name
        self.schema_arrow: pa.Schema = self.stream().schema

    def open(self) -> Any:
        """Open the file at its first byte."""
        import pyarrow as pa

        # An empty file cannot be mapped.
        if self._tree.on_disk and self._tree.size(self._name):
            return pa.memory_map(str(self._tree.root / self._name))
        return pa.PythonFile(self._tree.open(self._name, 2**20), mode="r")

    def stream(self) -> pa.RecordBatchStreamReader:
        """Return a reader of all batches."""
        import pyarrow as pa

        return pa.ipc.open_stream(self.open())

    def iter_batches(
        self, _: int, *, row_groups: range, columns: list[str], **__: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of a range of batches, as a ParquetFile of pyarrow does."""
        batches = itertools.islice(self.stream(), row_groups.start, row_groups.stop)
        return (batch.select(columns) for batch in batches)


class ParquetSource(Source):
    """Rows of Parquet files: images, texts or feature vectors.

    Images are bytes, or the ``{bytes, path}`` of Hugging Face. A shard is one row group
    or several small ones. A row group that is too large is divided among shards. To
    read a later part of it, the parts before it are read too.
    """

    format = "parquet"
    suffixes = (".parquet",)

    def _open_file(self, name: str) -> _Table:
        """Open a file, choose its columns, and check its row groups."""
        title = self.tree.display_name(name)
        with wrap_format_errors(title, f"{self.format.capitalize()} file"):
            file = self._file(name)
            schema = file.schema_arrow
            contents = self._column_contents(schema, title)
            kind, sample, label = choose_columns(contents, self.options, title)
            if kind == "image" and contents[sample] == "text":
                raise FileFormatError(
                    f"{title}: {sample!r} must hold images, got their names; list the "
                    "names in a .csv file"
                )
            usable = (
                column
                for column in NAME_COLUMNS
                if contents.get(column) == "text" and column != sample
            )
            row_name = next(usable, "")
            groups = self._row_groups(file, [sample, label, row_name], title)
            classes = _label_names(schema, label)
            return _Table(file, kind, sample, label, row_name, classes, groups)

    def _column_contents(self, schema: pa.Schema, title: str) -> dict[str, str]:
        """Return the content of each column; refuse duplicates and split columns."""
        if len(set(schema.names)) != len(schema.names):
            raise FileFormatError(
                f"{title} must have every column once, "
                f"got {quote_names(schema.names, most=8)}"
            )
        contents = {name: _contents(schema.field(name).type) for name in schema.names}
        needs_parts = self.options.labelled and self.options.part != "all"
        if needs_parts and contents.get(SPLIT_COLUMN) == "text":
            raise FileFormatError(
                f"{title} has a column {SPLIT_COLUMN!r}; write the parts to files of "
                "their own"
            )
        return contents

    def _file(self, name: str) -> Any:
        """Open a file of this format."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.tree.open(name), pre_buffer=False)

    def _row_groups(
        self, file: Any, wanted: list[str], title: str
    ) -> list[tuple[int, int]]:
        """Return rows and bytes of every row group, in the wanted columns.

        Groups that do not add up to the rows of the file are refused.
        """
        footer = file.metadata
        groups = [
            _row_group(file, number, wanted, title)
            for number in range(footer.num_row_groups)
        ]
        if sum(rows for rows, _ in groups) != footer.num_rows:
            raise FileFormatError(
                f"{title} must hold the {footer.num_rows} rows that it states, "
                "got other groups"
            )
        return groups

    @property
    def _first(self) -> _Table:
        """The first file."""
        table: _Table = self._open(next(iter(self.files)))
        return table

    @cached_property
    def kind(self) -> str:
        """Kind of the samples in the first file."""
        return self._first.kind

    @property
    def classes(self) -> Mapping[int, str]:
        """Names of integer labels, if the first file has them."""
        return self._first.classes

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Columns of each joined block of features, as the first file states."""
        return self._shape(next(iter(self.files)))[1]

    def _shape(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Return the length of feature vectors in a file, and the widths of blocks.

        The length is 0, and the widths are empty, for other samples.
        """
        table = self._open(name)
        title = self.tree.display_name(name)
        if table.kind != "features":
            return 0, ()
        schema = table.file.schema_arrow
        width = int(getattr(schema.field(table.sample).type, "list_size", 0))
        filled = [number for number, (rows, _) in enumerate(table.groups) if rows]
        if not width and filled:
            # The type does not state the length, so the first row is read.
            where = (filled[0], filled[0] + 1, 0, 1)
            first_row = self._rows(name, where, [table.sample]).column(table.sample)[0]
            width = len(first_row.as_py() or ())
        stated = (schema.metadata or {}).get(WIDTHS.encode())
        widths = parse_json(stated or "[]", f"{title}: {WIDTHS}")
        try:
            return width, check_widths(WIDTHS, widths, width)
        except InputError as error:
            raise FileFormatError(f"{title}: {error}") from error

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        """Return the form and the shards of a file.

        A shard is at the row groups from ``first`` to before ``last``, after ``skip``
        rows of them. ``row`` is the number of its first row in the file.
        """
        table = self._open(name)
        shards = []
        width, widths = self._shape(name)
        form = {
            "samples": table.sample,
            "labels": table.label,
            "classes": table.classes,
            "width": width,
            "blocks": widths,
        }
        for span in spans(table.groups, rows, size):
            where = {
                "file": name,
                "first": span.first,
                "last": span.last,
                "skip": span.skip,
            }
            rows_before = sum(n for n, _ in table.groups[: span.first])
            where["row"] = rows_before + span.skip
            shards.append(Shard(0, span.rows, span.size, where))
        return form, shards

    def _rows(
        self, name: str, where: tuple[int, int, int, int], wanted: list[str]
    ) -> pa.Table:
        """Return columns of consecutive rows.

        Parameters
        ----------
        name : str
            The file.
        where : tuple of int
            First row group, the one after the last, rows to skip, rows to return.
        wanted : list of str
            The columns.
        """
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
                _BATCH_ROWS[table.kind],
                row_groups=range(first, last),
                columns=wanted,
                use_threads=False,
            ):
                left -= batch.nbytes
                if left < 0:
                    raise FileFormatError(
                        f"{title} must unpack to at most {RATIO} times its size, "
                        "got more"
                    )
                batch.validate(full=True)
                before = min(skip, batch.num_rows)
                part = batch.slice(before, rows - count)
                skip -= before
                if part.num_rows:
                    kept.append(part)
                count += part.num_rows
                if count >= rows:
                    break
        if count != rows:
            raise FileFormatError(
                f"{title} must hold the rows that it states, "
                f"got {count} instead of {rows}"
            )
        return pa.Table.from_batches(kept)

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Read the rows of a shard; without ``bodies``, labels and names of images.

        The names of rows are those in the file, or else ``file[row]``.
        """
        name, first, last, skip, row = where_of(
            shard, file=str, first=int, last=int, skip=int, row=int
        )
        title = self.tree.display_name(name)
        table = self._open(name)
        sample = table.sample if bodies else ""
        columns = [column for column in (sample, table.label, table.name) if column]
        names = tuple(f"{name}[{number}]" for number in range(row, row + shard.rows))
        if not columns:  # images without bodies, labels and names
            return Samples("image", Images((b"",) * len(names), names))
        rows = self._rows(name, (first, last, skip, shard.rows), columns)
        labels = None
        if table.label:
            labels = _labels(rows.column(table.label), table.classes, title)
        if table.name:
            written = rows.column(table.name).to_pylist()
            pairs = zip(written, names, strict=True)
            names = tuple(given or default for given, default in pairs)
        if not bodies:
            return Samples("image", Images((b"",) * len(names), names), labels=labels)
        column = rows.column(table.sample)
        column_title = f"{title}: {table.sample}"
        if table.kind == "features":
            vectors = _vectors(column, column_title)
            return Samples("features", features=vectors, labels=labels, row_names=names)
        if table.kind == "image":
            return Samples("image", _images(column, names), labels=labels)
        texts = _texts(column, names, column_title)
        return Samples("text", texts, labels=labels, row_names=names)


def _row_group(
    file: Any, number: int, wanted: list[str], title: str
) -> tuple[int, int]:
    """Return rows of a row group, and its bytes in the wanted columns.

    Groups with inconsistent numbers of rows, or that unpack to far too much, are
    refused. Only the footer of the file is used.
    """
    group = file.metadata.row_group(number)
    chunks = [group.column(column) for column in range(group.num_columns)]
    counts = {
        chunk.num_values
        for column, chunk in enumerate(chunks)
        # Columns of lists hold more values than rows.
        if not file.schema.column(column).max_repetition_level
    }
    used = [
        chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in wanted
    ]
    packed = sum(chunk.total_compressed_size for chunk in used)
    unpacked = sum(chunk.total_uncompressed_size for chunk in used)
    is_consistent = counts <= {group.num_rows}
    most = _MAX_ROWS_PER_BYTE * (packed + 1)
    if not is_consistent or not 0 <= group.num_rows <= most:
        raise FileFormatError(
            f"{title} must hold the rows that it states, got others in group {number}"
        )
    if unpacked > RATIO * packed + ROOM:
        raise FileFormatError(
            f"{title} must unpack to at most {RATIO} times its size and 64 MiB, "
            "got more"
        )
    return group.num_rows, packed


def _labels(column: Any, names: Mapping[int, str], title: str) -> NDArray[np.str_]:
    """Return a column of labels as class names."""
    stripped = [
        value.strip() if isinstance(value, str) else value
        for value in column.to_pylist()
    ]
    return class_labels(stripped, names, title)


def _texts(column: Any, names: Sequence[str], title: str) -> Texts:
    """Return a column of texts; raise :class:`InputError` if one is empty."""
    texts = column.to_pylist()
    for name, text in zip(names, texts, strict=True):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{title} must not be empty, got {text!r} for {name}")
    return Texts(tuple(texts))


def _images(column: Any, names: tuple[str, ...]) -> Images:
    """Return a column of images with their names."""
    cells = zip(column.to_pylist(), names, strict=True)
    return Images(tuple(_image(cell, name) for cell, name in cells), names)


def _image(cell: Any, title: str) -> bytes | ImageError:
    """Return the bytes of an image, or an error, so that other images can be read."""
    body = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(body, bytes) or not body:
        return ImageError(f"the bytes of the image must be in the table: {title}")
    if len(body) > LARGEST_IMAGE:
        return ImageError(
            f"{title} must have at most {LARGEST_IMAGE // 2**20} MiB, got more"
        )
    return body


def _vectors(column: Any, title: str) -> NDArray[Any]:
    """Return a column of vectors as a matrix; they must have the same length."""
    array = column.combine_chunks()
    values = array.flatten()  # without null lists, so that the count differs
    width = len(values) // len(array) if len(array) else 0
    is_even = (
        array.null_count == 0 == values.null_count
        and len(values) == len(array) * width > 0
    )
    if is_even and not hasattr(array.type, "list_size"):
        is_even = bool((np.diff(np.asarray(array.offsets)) == width).all())
    if not is_even:
        raise FileFormatError(
            f"{title} must hold vectors of one width in every row, got others"
        )
    matrix = np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, width)
    return as_features(matrix, title)


_is_parquet = partial(has_files, suffixes=".parquet")
register_reader("parquet", suffixes=(".parquet",), fits=_is_parquet, rank=20)(
    ParquetSource
)


def _is_compressed(flatbuffer: bytes) -> bool:
    """Return whether a record batch is compressed.

    pyarrow does not expose this flag, and decompresses a batch completely before it
    returns its size. So the flag is read from the flatbuffer metadata: the third field
    of a message is the record batch, and the fourth field of a record batch is the
    compression. The format specification of Arrow fixes both numbers.
    """
    message = _uint32(flatbuffer, 0)
    header = message + _field_offset(flatbuffer, message, 2)
    batch = header + _uint32(flatbuffer, header)
    return _field_offset(flatbuffer, batch, 3) != 0


def _uint32(flatbuffer: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", flatbuffer, position)[0])


def _field_offset(flatbuffer: bytes, table: int, number: int) -> int:
    """Return the offset of a field from its flatbuffer table; 0 if it is missing."""
    vtable = table - int(struct.unpack_from("<i", flatbuffer, table)[0])
    (vtable_size,) = struct.unpack_from("<H", flatbuffer, vtable)
    entry = 4 + 2 * number
    if entry >= vtable_size:
        return 0
    return int(struct.unpack_from("<H", flatbuffer, vtable + entry)[0])


class ArrowSource(ParquetSource):
    """Rows of a Hugging Face data set or dictionary written by ``save_to_disk``."""

    format = "arrow"
    suffixes = (".arrow",)

    @cached_property
    def _every_file(self) -> dict[str, int]:
        """Names and sizes of the files, without caches of Hugging Face."""
        every = super()._every_file
        found = {
            name: size
            for name, size in every.items()
            if not posixpath.basename(name).startswith("cache-")
        }
        if any(name.endswith("indices.arrow") for name in found):
            raise FileFormatError(
                f"{self.tree.display_name()} must be saved without indices: run "
                "flatten_indices() before"
            )
        return found

    def _file(self, name: str) -> Any:
        return _ArrowFile(self.tree, name)

    def _row_groups(
        self, file: Any, wanted: list[str], title: str
    ) -> list[tuple[int, int]]:
        # All columns count: the batches of a stream are read completely.
        from pyarrow.ipc import MessageReader

        messages = iter(MessageReader.open_stream(file.open()))
        next(messages)  # the schema
        for message in messages:
            if message.type != "record batch" or _is_compressed(
                message.metadata.to_pybytes()
            ):
                raise FileFormatError(
                    f"{title} must hold plain batches, as save_to_disk writes them, "
                    "got compressed ones"
                )
        return [(batch.num_rows, batch.nbytes) for batch in file.stream()]


_is_saved = partial(has_files, suffixes=(".arrow", "dataset_dict.json"))
register_reader("arrow", suffixes=(".arrow",), fits=_is_saved, rank=10)(ArrowSource)
