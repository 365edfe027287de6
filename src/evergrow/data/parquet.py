"""Parquet files, and Arrow files of Hugging Face: images, texts or vectors in columns, read by groups of rows."""

from __future__ import annotations

import itertools
import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, ImageError, InputError
from evergrow.data.archives import sound
from evergrow.data.items import Images, Samples, Texts, check_widths, concat_samples, listed
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.sources import Shard, Source, as_features, class_labels, spans, where_of
from evergrow.data.storage import LARGEST_IMAGE, RATIO, ROOM, Tree
from evergrow.data.tables import FILE_COLUMN, IMAGE_COLUMNS, SPLIT_COLUMN, Columns, row_items

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
WIDTHS = "evergrow.widths"
"""Metadata of a file of features: a JSON list of the columns of each block, which are at equal energy already."""

_TEXT = ("text", "sentence")
_FEATURES = ("feature", "features", "embedding", "embeddings", "X")
_NAMES = ("name", "file_name")
_ROWS_PER_BYTE = 1000
"""A row group that claims more rows for its bytes lies."""

_BATCH = {"image": 64, "text": 4096, "features": 4096}


@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table hold what.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What the samples are.
    sample : str
        Their column.
    label, name : str
        Columns of labels and of names; empty where there are none.
    classes : mapping of int to str
        Names of integer labels, where the table has them.
    width : int
        Length of feature vectors where the type of the column says it, else 0.
    paths : bool
        Whether images are paths, relative to the folder of the table.
    """

    kind: str
    sample: str
    label: str = ""
    name: str = ""
    classes: Mapping[int, str] = field(default_factory=dict)
    width: int = 0
    paths: bool = False

    def wanted(self, *, bodies: bool = True) -> list[str]:
        """Return the columns to read."""
        return [column for column in (self.sample if bodies else "", self.label, self.name) if column]


def choose_columns(schema: pa.Schema, options: DataOptions, title: str) -> TableColumns:
    """Return which columns of a table hold what: those that the options name, else those of usual names.

    Raises
    ------
    FileFormatError
        If a column is not there, or none holds samples; the message says which there are.
    """
    header = list(schema.names)
    if len(set(header)) != len(header):
        raise FileFormatError(f"{title} must have every column once, got {listed(header, most=8)}")
    for column in (options.text_column, options.image_column, options.label_column):
        if column and column not in header:
            raise FileFormatError(f"{title} must have a column {column!r}, got {listed(header, most=8)}")
    contents = {name: _contents(schema.field(name).type) for name in header}
    if contents.get(SPLIT_COLUMN) == "text" and options.labelled and options.part != "all":
        raise FileFormatError(
            f"{title} has a column {SPLIT_COLUMN!r}; write the parts to files of their own, such as train.parquet and "
            "test.parquet"
        )
    kind, sample = _sample_column(schema, contents, options, title)
    usual = (name for name in LABEL_COLUMNS if name in header and name != sample)
    label = (options.label_column or next(usual, "")) if options.labelled else ""
    name = next((column for column in _NAMES if contents.get(column) == "text" and column != sample), "")
    width = getattr(schema.field(sample).type, "list_size", 0) if kind == "features" else 0
    paths = kind == "image" and contents[sample] == "text"
    return TableColumns(kind, sample, label, name, _label_names(schema, label) if label else {}, int(width), paths)


def _sample_column(schema: pa.Schema, contents: Mapping[str, str], options: DataOptions, title: str) -> tuple[str, str]:
    """Return the kind of the samples and their column."""
    given = (("text", options.text_column, "texts"), ("image", options.image_column, "bytes of images"))
    for kind, column, what in given:
        if column and options.kind in ("", kind):
            if contents[column] not in (kind, "text"):
                raise FileFormatError(f"{title}: column {column!r} must hold {what}, got {schema.field(column).type}")
            return kind, column
    texts, bodies, vectors = (
        [name for name, held in contents.items() if held == kind] for kind in ("text", "image", "features")
    )
    label = {options.label_column} if options.label_column else set(LABEL_COLUMNS)
    others = [name for name in texts if name not in label | {*_NAMES, *IMAGE_COLUMNS, SPLIT_COLUMN}]
    candidates = (
        ("text", [name for name in _TEXT if name in texts]),
        ("image", [*(name for name in (*IMAGE_COLUMNS, "img") if name in bodies), *bodies]),
        ("features", [name for name in (*_FEATURES, *(vectors if len(vectors) == 1 else ())) if name in vectors]),
        ("image", [name for name in (*IMAGE_COLUMNS, FILE_COLUMN) if name in texts]),
        ("text", others if len(others) == 1 else []),
    )
    for kind, names in candidates:
        if names and options.kind in ("", kind):
            return kind, names[0]
    raise FileFormatError(
        f"{title} must have a column of texts, of image bytes or of feature vectors, got {listed(contents, most=8)}; "
        "say which one it is by text_column or image_column"
    )


def _contents(kind: Any) -> str:
    """Return what a column of a type can hold: ``"text"``, ``"image"``, ``"features"`` or nothing that we read.

    Images are bytes, or the ``{bytes, path}`` of Hugging Face.
    """
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "image"
    if types.is_struct(kind) and {"bytes", "path"} & {kind.field(row).name for row in range(kind.num_fields)}:
        return "image"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "features" if lists and types.is_floating(kind.value_type) else ""


def _label_names(schema: pa.Schema, label: str) -> dict[int, str]:
    """Return the names of integer labels where the Hugging Face library left them in the file."""
    from pyarrow import types

    kept = (schema.metadata or {}).get(b"huggingface")
    if kept is None or not types.is_integer(schema.field(label).type):
        return {}
    try:
        names = json.loads(kept)["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    good = isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names)
    return dict(enumerate(names)) if good and len(set(names)) == len(names) else {}


@dataclass(frozen=True)
class _Groups:
    """Where a shard lies: its file, its groups, rows of the first to skip, and the number of its first row."""

    file: str
    first: int
    last: int
    skip: int
    row: int


class _ArrowFile:
    """An Arrow stream whose record batches are its row groups; files on disk are mapped, not read."""

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree, self._name = tree, name
        self.schema_arrow: pa.Schema = self.stream().schema

    def stream(self) -> pa.RecordBatchStreamReader:
        """Return the batches from the first on."""
        import pyarrow as pa

        if self._tree.on_disk and self._tree.size(self._name):  # an empty file cannot be mapped
            return pa.ipc.open_stream(pa.memory_map(str(self._tree.root / self._name)))
        return pa.ipc.open_stream(pa.PythonFile(self._tree.open(self._name, 2**20), mode="r"))

    def iter_batches(self, _: int, *, row_groups: range, columns: list[str], **__: Any) -> Iterator[pa.RecordBatch]:
        """Yield some batches, as :class:`pyarrow.parquet.ParquetFile` does."""
        batches = itertools.islice(self.stream(), row_groups.start, row_groups.stop)
        return (batch.select(columns) for batch in batches)


@dataclass(frozen=True)
class _OpenFile:
    """A file of which the footer is read: its columns, and rows and bytes of every row group."""

    file: pq.ParquetFile | _ArrowFile
    columns: TableColumns
    groups: list[tuple[int, int]]


class ParquetSource(Source):
    """Rows of Parquet files: images as bytes or as the ``{bytes, path}`` of Hugging Face, texts, or feature vectors.

    Shards are row groups, several where they are small; a group that is too large is shared out, and then whoever reads
    a later part of it reads the parts before it too.
    """

    format = "parquet"
    suffixes = (".parquet",)

    def _open_file(self, name: str) -> _OpenFile:
        import pyarrow.parquet as pq

        title = self.tree.place(name)
        with sound(title, "Parquet file"):
            file = pq.ParquetFile(self.tree.open(name), pre_buffer=False)
            columns = choose_columns(file.schema_arrow, self.options, title)
            return _OpenFile(file, columns, _row_groups(file, columns.wanted(), title))

    @property
    def _first(self) -> str:
        return next(iter(self.files))

    def _look_for_kind(self) -> str:
        return str(self._open(self._first).columns.kind)

    @property
    def classes(self) -> Mapping[int, str]:
        """Names of integer labels, where the first file has them."""
        names: Mapping[int, str] = self._open(self._first).columns.classes
        return names

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block that feature vectors were joined of, as the first file states."""
        return self._shape(self._first)[1]

    def _shape(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Return the length of feature vectors, and the widths of their blocks as the file states them."""
        opened, title = self._open(name), self.tree.place(name)
        columns, groups = opened.columns, opened.groups
        if columns.kind != "features":
            return 0, ()
        width = columns.width
        filled = [number for number, (rows, _) in enumerate(groups) if rows]
        if not width and filled:  # where the type does not say it, the first row does
            table = self._table(name, (filled[0], filled[0] + 1, 0, 1), [columns.sample])
            width = len(table.column(columns.sample)[0].as_py() or ())
        stated = (opened.file.schema_arrow.metadata or {}).get(WIDTHS.encode())
        try:
            blocks = () if stated is None else check_widths(WIDTHS, parse_json(stated, f"{title}: {WIDTHS}"), width)
        except InputError as error:
            raise FileFormatError(f"{title}: {error}") from error
        return width, blocks

    def _check_alike(self, name: str) -> None:
        first, place = self._first, self.tree.place()
        (width, blocks), (was, before) = self._shape(name), self._shape(first)
        if width != was:
            raise FileFormatError(
                f"{place}: feature files must have one width, got {was} in {first} and {width} in {name}"
            )
        if blocks != before:
            shown, known = (", ".join(map(str, each)) or "of one block" for each in (blocks, before))
            raise FileFormatError(
                f"{place}: feature files must have the same blocks, got widths {known} in {first} and {shown} in {name}"
            )
        mine, theirs = self._open(name).columns, self._open(first).columns
        if (mine.kind, mine.sample, mine.label) != (theirs.kind, theirs.sample, theirs.label):
            raise FileFormatError(
                f"{place}: files must have the same columns, got {theirs.sample!r} and {theirs.label or 'no label'!r} "
                f"in {first}, {mine.sample!r} and {mine.label or 'no label'!r} in {name}"
            )
        if mine.classes != theirs.classes:
            raise FileFormatError(f"{place}: files must name the same classes, got others in {name}")

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        for name in self.files:
            self._check_alike(name)
            groups = self._open(name).groups
            for span in spans(groups, rows, size):
                where = {"file": name, "first": span.first, "last": span.last, "skip": span.skip}
                row = sum(n for n, _ in groups[: span.first]) + span.skip
                yield Shard(0, span.rows, span.size, {**where, "row": row})

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the rows of a shard: its columns of its groups."""
        import pyarrow as pa

        where = where_of(shard, _Groups)
        columns = self._open(where.file).columns.wanted(bodies=bodies)
        part = (where.first, where.last, where.skip, shard.rows)
        table = self._table(where.file, part, columns) if columns else pa.table({"": pa.nulls(shard.rows)})
        return self._as_samples(where.file, table, where.row, bodies=bodies)

    def _table(self, name: str, where: tuple[int, int, int, int], wanted: list[str]) -> pa.Table:
        """Return so many rows of the groups from the first to the last, after those to skip."""
        import pyarrow as pa

        first, last, skip, rows = where
        title, opened = self.tree.place(name), self._open(name)
        if not first < last <= len(opened.groups):
            raise FileFormatError(f"{title} must hold {last} row groups, as when shards were made")
        left = RATIO * self.tree.size(name) + ROOM
        kept, count = [], 0
        with sound(title, f"{self.format.capitalize()} file"):
            for batch in opened.file.iter_batches(
                _BATCH[opened.columns.kind], row_groups=range(first, last), columns=wanted, use_threads=False
            ):
                left -= batch.nbytes
                if left < 0:
                    raise FileFormatError(f"{title} must unpack to at most {RATIO} times its size, got more")
                batch.validate(full=True)
                before = min(skip, batch.num_rows)
                part = batch.slice(before, rows - count)
                skip -= before
                kept += [part] if part.num_rows else []
                count += part.num_rows
                if count >= rows:
                    break
        if count != rows:
            raise FileFormatError(f"{title} must hold the rows that it states, got {count} instead of {rows}")
        return pa.Table.from_batches(kept)

    def _as_samples(self, name: str, table: pa.Table, start: int, *, bodies: bool) -> Samples:
        """Return the rows of a table, of which the first has this number in its file."""
        columns, title = self._open(name).columns, self.tree.place(name)
        labels = None
        names = tuple(f"{name}[{row}]" for row in range(start, start + table.num_rows))
        if columns.label:
            values = table.column(columns.label).to_pylist()
            plain = [value.strip() if isinstance(value, str) else value for value in values]
            labels = class_labels(plain, columns.classes, title)
        if columns.name:
            given = table.column(columns.name).to_pylist()
            names = tuple(own or usual for own, usual in zip(given, names, strict=True))
        if not bodies:
            return Samples("image", Images((b"",) * len(names), names), labels=labels)
        column = table.column(columns.sample)
        if columns.kind == "features":
            return Samples("features", features=_vectors(column, columns, title), labels=labels, row_names=names)
        values = column.to_pylist()
        if columns.kind == "image" and not columns.paths:
            folder = self.tree.below(posixpath.dirname(name))
            images = tuple(_image(cell, folder, own) for cell, own in zip(values, names, strict=True))
            return Samples("image", Images(images, names), labels=labels)
        for row, text in enumerate(values):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{title}: {columns.sample} must not be empty, got {text!r} for {names[row]}")
        if columns.kind == "text":
            return Samples("text", Texts(tuple(values)), labels=labels, row_names=names)
        rows = [(row, {columns.sample: value}) for row, value in enumerate(values)]
        items = row_items(self.tree, name, rows, Columns(columns.sample, "", "", images=True))
        return Samples("image", items, labels=labels)

    def samples(self, part: str | None = None) -> Samples:
        """Return all samples of a part; images are read when they are wanted, unless the table names files."""
        wanted = self._of_part(part) if part is not None and part != self.options.part else self
        if self._open(self._first).columns.paths:
            found = [wanted.read(shard) for shard in wanted.shards(2**20, 2**62)]
            return replace(concat_samples(found), lasting=True)
        return super(ParquetSource, wanted).samples()


def _row_groups(file: pq.ParquetFile, wanted: list[str], title: str) -> list[tuple[int, int]]:
    """Return rows and bytes of every row group, of the columns that are read; claims that cannot be are refused."""
    footer = file.metadata
    groups = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunks = [group.column(row) for row in range(group.num_columns)]
        kept = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in wanted]
        packed = sum(chunk.total_compressed_size for chunk in kept)
        unpacked = sum(chunk.total_uncompressed_size for chunk in kept)
        flat = (chunk for row, chunk in enumerate(chunks) if not file.schema.column(row).max_repetition_level)
        lies = {chunk.num_values for chunk in flat} - {group.num_rows}
        if lies or not 0 <= group.num_rows <= _ROWS_PER_BYTE * (packed + 1):
            raise FileFormatError(f"{title} must hold the rows that it states, got {group.num_rows} in group {number}")
        if unpacked > RATIO * packed + ROOM:
            raise FileFormatError(f"{title} must unpack to at most {RATIO} times its size and 64 MiB, got more")
        groups.append((group.num_rows, packed))
    if sum(rows for rows, _ in groups) != footer.num_rows:
        raise FileFormatError(f"{title} must hold the {footer.num_rows} rows that it states, got other groups")
    return groups


def _image(cell: Any, folder: Tree, title: str) -> Any:
    """Return the bytes of an image, its path, or why there are none: one bad cell is one bad image, not a bad shard."""
    body, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    if isinstance(body, bytes) and body:
        large = len(body) > LARGEST_IMAGE
        return ImageError(f"{title} must have at most {LARGEST_IMAGE // 2**20} MiB, got more") if large else body
    if not isinstance(path, str) or not path or not folder.on_disk:
        return ImageError(f"image must be there, but its bytes are not in the table: {title}")
    name = posixpath.normpath(path.replace("\\", "/"))
    if posixpath.isabs(name) or name.startswith(".."):
        return ImageError(f"image must be in the folder of the table, got {path!r} for {title}")
    return folder.root / name


def _vectors(column: Any, columns: TableColumns, title: str) -> NDArray[Any]:
    """Return lists of numbers as rows of one width."""
    n, array = len(column), column.combine_chunks()
    values = array.flatten()  # leaves out what a list that is null holds, so that the count tells
    width = columns.width or (len(values) // n if n else 0)
    even = array.null_count == 0 and values.null_count == 0 and len(values) == n * width and width > 0
    if even and not columns.width:
        even = bool((np.diff(np.asarray(array.offsets)) == width).all())
    if not even:
        raise FileFormatError(f"{title}: {columns.sample} must hold vectors of one width in every row, got others")
    return as_features(np.asarray(values.to_numpy(zero_copy_only=False)).reshape(n, width), title)


def _has_parquet(tree: Tree) -> bool:
    folders = tree.folders()
    only = list(folders.values()) if len(folders) == 1 else []
    places = ["", *([folders["data"]] if "data" in folders else only)]
    return any(name.lower().endswith(".parquet") for place in places for name in tree.files(place))


register_reader("parquet", suffixes=(".parquet",), fits=_has_parquet, marks=(".parquet",), rank=20)(ParquetSource)


class ArrowSource(ParquetSource):
    """Rows of a data set that ``save_to_disk`` of the Hugging Face library wrote, one split or a dictionary of them."""

    format = "arrow"
    suffixes = (".arrow",)

    @cached_property
    def _every_file(self) -> dict[str, int]:
        every = super()._every_file
        found = {name: size for name, size in every.items() if not posixpath.basename(name).startswith("cache-")}
        if any(name.endswith("indices.arrow") for name in found):
            raise FileFormatError(
                f"{self.tree.place()} must be saved without indices: run flatten_indices() before save_to_disk()"
            )
        return found

    def _open_file(self, name: str) -> _OpenFile:
        title = self.tree.place(name)
        with sound(title, "Arrow file"):
            file = _ArrowFile(self.tree, name)
            columns = choose_columns(file.schema_arrow, self.options, title)
            return _OpenFile(file, columns, [(batch.num_rows, batch.nbytes) for batch in file.stream()])


def _is_saved(tree: Tree) -> bool:
    return tree.is_file("dataset_dict.json") or tree.is_file("state.json")


register_reader("arrow", suffixes=(".arrow",), fits=_is_saved, marks=(".json",), rank=10)(ArrowSource)
