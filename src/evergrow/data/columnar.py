"""Parquet files, and Hugging Face data sets that were saved to disk: images, texts or feature vectors in columns."""

from __future__ import annotations

import itertools
import json
import posixpath
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import DatasetNotFoundError, FileFormatError, ImageError, InputError
from evergrow.core.feature_blocks import check_widths
from evergrow.data.archives import sound
from evergrow.data.dataset import listed
from evergrow.data.items import Images, Samples, Texts, concat_samples
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.sources import Shard, Source, as_features, class_labels, matching_files, spans, where_of
from evergrow.data.storage import LARGEST_IMAGE, RATIO, ROOM, Tree
from evergrow.data.tables import FILE_COLUMN, IMAGE_COLUMNS, SPLIT_COLUMN, Columns, row_items, split_rows

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
WIDTHS = "evergrow.widths"
"""Metadata of a file of features: a JSON list of the columns of each block, which are at equal energy already."""

_TEXT = ("text", "sentence")
_FEATURES = ("feature", "features", "embedding", "embeddings", "X")
_NAMES = ("name", "file_name")
_TESTS = ("test", "validation", "valid", "val", "eval")
_ROWS_PER_BYTE = 1000
"""A row group that claims more rows for its bytes lies."""

_BATCH = {"image": 64, "text": 4096, "features": 4096}
_LONGEST = 64 * 2**20


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
    kind, sample = _sample_column(schema, options, title)
    usual = (name for name in LABEL_COLUMNS if name in header and name != sample)
    label = (options.label_column or next(usual, "")) if options.labelled else ""
    name = next((column for column in _NAMES if column in header and column != sample and _is_text(schema, column)), "")
    width = getattr(schema.field(sample).type, "list_size", 0) if kind == "features" else 0
    paths = kind == "image" and _is_text(schema, sample)
    return TableColumns(kind, sample, label, name, _label_names(schema, label) if label else {}, int(width), paths)


def _sample_column(schema: pa.Schema, options: DataOptions, title: str) -> tuple[str, str]:
    header = list(schema.names)
    fitting = {
        "text": [name for name in header if _is_text(schema, name)],
        "image": [name for name in header if _is_images(schema, name) or _is_text(schema, name)],
        "features": [name for name in header if _is_vectors(schema, name)],
    }
    for kind, column, what in (
        ("text", options.text_column, "texts"),
        ("image", options.image_column, "bytes of images"),
    ):
        if column and options.kind in ("", kind):
            if column not in fitting[kind]:
                raise FileFormatError(f"{title}: column {column!r} must hold {what}, got {schema.field(column).type}")
            return kind, column
    vectors = fitting["features"]
    bodies = [name for name in header if _is_images(schema, name)]
    paths = [name for name in (*IMAGE_COLUMNS, FILE_COLUMN) if name in fitting["text"]]
    label = {options.label_column} if options.label_column else set(LABEL_COLUMNS)
    others = [name for name in fitting["text"] if name not in label | {*_NAMES, *IMAGE_COLUMNS, SPLIT_COLUMN}]
    usual = {
        "text": [name for name in _TEXT if name in fitting["text"]],
        "image": [*(name for name in (*IMAGE_COLUMNS, "img") if name in bodies), *bodies],
        "features": [name for name in (*_FEATURES, *(vectors if len(vectors) == 1 else ())) if name in vectors],
    }
    kinds = [options.kind] if options.kind else list(usual)
    found = [(kind, usual[kind][0]) for kind in kinds if usual[kind]]
    if not found and paths and "image" in kinds:
        found = [("image", paths[0])]
    if not found and len(others) == 1 and "text" in kinds:
        found = [("text", others[0])]
    if not found:
        raise FileFormatError(
            f"{title} must have a column of texts, of image bytes or of feature vectors, got {listed(header, most=8)}; "
            "say which one it is by text_column or image_column"
        )
    return found[0]


def _is_text(schema: pa.Schema, name: str) -> bool:
    from pyarrow import types

    kind = schema.field(name).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_vectors(schema: pa.Schema, name: str) -> bool:
    from pyarrow import types

    kind = schema.field(name).type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and types.is_floating(kind.value_type))


def _is_images(schema: pa.Schema, name: str) -> bool:
    """Return whether a column holds images themselves: bytes, or the ``{bytes, path}`` of Hugging Face."""
    from pyarrow import types

    kind = schema.field(name).type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return True
    return bool(types.is_struct(kind) and {"bytes", "path"} & {kind.field(row).name for row in range(kind.num_fields)})


def _label_names(schema: pa.Schema, label: str) -> dict[int, str]:
    """Return the names of integer labels where the Hugging Face library left them in the file."""
    from pyarrow import types

    kept = (schema.metadata or {}).get(b"huggingface")
    if kept is None or not types.is_integer(schema.field(label).type):
        return {}
    try:
        return _class_names(json.loads(kept)["info"], label)
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _class_names(about: Any, label: str) -> dict[int, str]:
    try:
        names = about["features"][label]["names"]
    except (KeyError, TypeError):
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


class ColumnSource(Source):
    """Rows of files with columns, which lie in groups that are read as a whole; Parquet and Arrow have their own.

    Shards are groups, several where they are small; a group that is too large is shared out, and then whoever reads a
    later part of it reads the parts before it too.
    """

    def __init__(self, tree: Tree, pattern: str, options: DataOptions) -> None:
        super().__init__(tree, pattern, options)
        self._columns = lru_cache(maxsize=64)(self._choose)
        self._groups = lru_cache(maxsize=64)(self._read_groups)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("tree", "pattern", "options", "known_kind")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["tree"], state["pattern"], state["options"])
        self.known_kind = state["known_kind"]

    @abstractmethod
    def _schema(self, name: str) -> pa.Schema:
        """Return the columns of a file."""

    @abstractmethod
    def _read_groups(self, name: str) -> list[tuple[int, int]]:
        """Return rows and bytes of every group of a file."""

    @abstractmethod
    def _batches(self, name: str, first: int, last: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some groups."""

    def _choose(self, name: str) -> TableColumns:
        title = self.tree.place(name)
        with sound(title, f"{self.format.capitalize()} file"):
            return choose_columns(self._schema(name), self.options, title)

    @property
    def _first(self) -> str:
        return next(iter(self.files))

    def _look_for_kind(self) -> str:
        return self._columns(self._first).kind

    @property
    def classes(self) -> Mapping[int, str]:
        """Names of integer labels, where the first file has them."""
        return self._columns(self._first).classes

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block that feature vectors were joined of, as the first file states."""
        return self._stated_widths(self._first)

    def _stated_widths(self, name: str) -> tuple[int, ...]:
        stated = (self._schema(name).metadata or {}).get(WIDTHS.encode())
        if self._columns(name).kind != "features" or stated is None:
            return ()
        title = self.tree.place(name)
        try:
            return check_widths(WIDTHS, parse_json(stated, f"{title}: {WIDTHS}"), self._width(name))
        except InputError as error:
            raise FileFormatError(f"{title}: {error}") from error

    def _width(self, name: str) -> int:
        """Return the length of feature vectors; where the type does not say it, the first row does."""
        columns, groups = self._columns(name), self._groups(name)
        if columns.kind != "features" or columns.width or not any(rows for rows, _ in groups):
            return columns.width
        first = next(number for number, (rows, _) in enumerate(groups) if rows)
        table = self._table(name, (first, first + 1, 0, 1), [columns.sample])
        return len(table.column(columns.sample)[0].as_py() or ())

    def _check_alike(self, first: str, name: str) -> None:
        known, columns, place = self._columns(first), self._columns(name), self.tree.place()
        width, was = self._width(name), self._width(first)
        if width != was:
            raise FileFormatError(
                f"{place}: feature files must have one width, got {was} in {first} and {width} in {name}"
            )
        blocks, before = self._stated_widths(name), self._stated_widths(first)
        if blocks != before:
            raise FileFormatError(
                f"{place}: feature files must have the same blocks, got widths {_shown(before)} in {first} and "
                f"{_shown(blocks)} in {name}"
            )
        if (columns.kind, columns.sample, columns.label) != (known.kind, known.sample, known.label):
            raise FileFormatError(
                f"{place}: files must have the same columns, got {known.sample!r} and {known.label or 'no label'!r} in "
                f"{first}, {columns.sample!r} and {columns.label or 'no label'!r} in {name}"
            )
        if columns.classes != known.classes:
            raise FileFormatError(f"{place}: files must name the same classes, got others in {name}")

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        for name in self.files:
            self._check_alike(self._first, name)
            for span in spans(self._groups(name), rows, size):
                where = {"file": name, "first": span.first, "last": span.last, "skip": span.skip}
                row = sum(n for n, _ in self._groups(name)[: span.first]) + span.skip
                yield Shard(0, span.rows, span.size, {**where, "row": row})

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the rows of a shard: its columns of its groups."""
        import pyarrow as pa

        where = where_of(shard, _Groups)
        name, part = where.file, (where.first, where.last, where.skip, shard.rows)
        columns = self._columns(name).wanted(bodies=bodies)
        plain = pa.table({"": pa.nulls(shard.rows)})
        table = self._table(name, part, columns) if columns else plain
        return self._as_samples(name, table, where.row, bodies=bodies)

    def _table(self, name: str, where: tuple[int, int, int, int], wanted: list[str]) -> pa.Table:
        """Return so many rows of the groups from the first to the last, after those to skip."""
        import pyarrow as pa

        first, last, skip, rows = where
        title = self.tree.place(name)
        left = RATIO * self.tree.size(name) + ROOM
        kept, count = [], 0
        with sound(title, f"{self.format.capitalize()} file"):
            for batch in self._batches(name, first, last, wanted):
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
        columns, title = self._columns(name), self.tree.place(name)
        labels = None
        names = tuple(f"{name}[{row}]" for row in range(start, start + table.num_rows))
        if columns.label:
            values = table.column(columns.label).to_pylist()
            plain = [value.strip() if isinstance(value, str) else value for value in values]
            labels = class_labels(plain, columns.classes, title)
        if columns.name:
            given = table.column(columns.name).to_pylist()
            names = tuple(
                own if isinstance(own, str) and own else usual for own, usual in zip(given, names, strict=True)
            )
        if not bodies:
            return Samples("image", Images((b"",) * len(names), names), labels=labels)
        column = table.column(columns.sample)
        if columns.kind == "features":
            return Samples("features", features=_vectors(column, columns, title), labels=labels, row_names=names)
        values = column.to_pylist()
        if columns.kind == "text" or columns.paths:
            for row, text in enumerate(values):
                if not isinstance(text, str) or not text.strip():
                    raise InputError(f"{title}: {columns.sample} must not be empty, got {text!r} for {names[row]}")
        if columns.paths:
            rows = [(row, {columns.sample: value}) for row, value in enumerate(values)]
            items = row_items(self.tree, name, rows, Columns(columns.sample, "", "", images=True))
            return Samples("image", items, labels=labels)
        if columns.kind == "text":
            return Samples("text", Texts(tuple(values)), labels=labels, row_names=names)
        folder = self.tree.below(posixpath.dirname(name))
        images = tuple(_image(cell, folder, title) for cell, title in zip(values, names, strict=True))
        return Samples("image", Images(images, names), labels=labels)

    def samples(self, part: str | None = None) -> Samples:
        """Return all samples of a part; images are read when they are wanted, unless the table names files."""
        wanted = self._of_part(part) if part is not None and part != self.options.part else self
        if self._columns(next(iter(self.files))).paths:
            found = [wanted.read(shard) for shard in wanted.shards(2**20, 2**62)]
            return replace(concat_samples(found), lasting=True)
        return super(ColumnSource, wanted).samples()


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
    import pyarrow as pa

    n = len(column)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.flatten()  # leaves out what a list that is null holds, so that the count tells
    width = columns.width or (len(values) // n if n else 0)
    even = array.null_count == 0 and values.null_count == 0 and len(values) == n * width and width > 0
    if even and not columns.width:
        even = bool((np.diff(np.asarray(array.offsets)) == width).all())
    if not even:
        raise FileFormatError(f"{title}: {columns.sample} must hold vectors of one width in every row, got others")
    return as_features(np.asarray(values.to_numpy(zero_copy_only=False)).reshape(n, width), title)


def _shown(widths: tuple[int, ...]) -> str:
    return ", ".join(map(str, widths)) or "of one block"


# -- Parquet ----------------------------------------------------------------------------------------------------


class ParquetSource(ColumnSource):
    """Rows of Parquet files: images as bytes or as the ``{bytes, path}`` of Hugging Face, texts, or feature vectors.

    Groups are the row groups of the files.
    """

    format = "parquet"
    suffixes = (".parquet",)

    def __init__(self, tree: Tree, pattern: str, options: DataOptions) -> None:
        super().__init__(tree, pattern, options)
        self._file = lru_cache(maxsize=64)(self._open)

    def _open(self, name: str) -> pq.ParquetFile:
        """Return a file of which the footer is read."""
        import pyarrow.parquet as pq

        with sound(self.tree.place(name), "Parquet file"):
            return pq.ParquetFile(self.tree.open(name), pre_buffer=False)

    def _schema(self, name: str) -> pa.Schema:
        return self._file(name).schema_arrow

    def _batches(self, name: str, first: int, last: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if not first < last <= len(self._groups(name)):
            raise FileFormatError(f"{self.tree.place(name)} must hold {last} row groups, as when shards were made")
        size = _BATCH[self._columns(name).kind]
        yield from self._file(name).iter_batches(
            batch_size=size, row_groups=range(first, last), columns=columns, use_threads=False
        )

    def _read_groups(self, name: str) -> list[tuple[int, int]]:
        """Return rows and bytes of every row group, of the columns that are read."""
        file, wanted, title = self._file(name), self._columns(name).wanted(), self.tree.place(name)
        footer = file.metadata
        blocks = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            chunks = [group.column(row) for row in range(group.num_columns)]
            kept = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in wanted]
            packed = sum(chunk.total_compressed_size for chunk in kept)
            unpacked = sum(chunk.total_uncompressed_size for chunk in kept)
            counts = {
                chunk.num_values for row, chunk in enumerate(chunks) if not file.schema.column(row).max_repetition_level
            }
            if counts - {group.num_rows} or not 0 <= group.num_rows <= _ROWS_PER_BYTE * (packed + 1):
                raise FileFormatError(
                    f"{title} must hold the rows that it states, got {group.num_rows} in group {number}"
                )
            if unpacked > RATIO * packed + ROOM:
                raise FileFormatError(f"{title} must unpack to at most {RATIO} times its size and 64 MiB, got more")
            blocks.append((group.num_rows, packed))
        if sum(rows for rows, _ in blocks) != footer.num_rows:
            raise FileFormatError(f"{title} must hold the {footer.num_rows} rows that it states, got other groups")
        return blocks

    @cached_property
    def _split(self) -> NDArray[np.str_] | None:
        """The words of a split column, where one file holds both parts."""
        name = next(iter(self._every_file))
        if len(self._every_file) > 1 or not self.options.labelled:
            return None
        schema = self._schema(name)
        if SPLIT_COLUMN not in schema.names or not _is_text(schema, SPLIT_COLUMN):
            return None
        groups = self._groups(name)
        table = self._table(name, (0, len(groups), 0, sum(rows for rows, _ in groups)), [SPLIT_COLUMN])
        return np.array([value or "" for value in table.column(0).to_pylist()], dtype=np.str_)

    @property
    def has_test(self) -> bool:
        """Whether there is a test part beside the training part."""
        return super().has_test or (self._split is not None and self._split_rows()[1] is not None)

    def _split_rows(self) -> tuple[list[int], list[int] | None]:
        words = [] if self._split is None else self._split.tolist()
        cells = [(row, {SPLIT_COLUMN: word}) for row, word in enumerate(words)]
        title = self.tree.place(self.pattern)
        train, test = split_rows(title, cells, Columns("", "", SPLIT_COLUMN, images=False), [])
        return [row for row, _ in train], None if test is None else [row for row, _ in test]

    def samples(self, part: str | None = None) -> Samples:
        """Return all samples of a part, by the names of files or by the column ``split``."""
        found = super().samples(part)
        wanted = part or self.options.part
        if self._split is None or wanted == "all":
            return found
        train, test = self._split_rows()
        rows = train if wanted == "train" or test is None else test
        return found.take(rows)


def _has_parquet(tree: Tree) -> bool:
    folders = tree.folders()
    places = [
        "",
        *([folders["data"]] if "data" in folders else list(folders.values())[:1] if len(folders) == 1 else []),
    ]
    return any(name.lower().endswith(".parquet") for place in places for name in tree.files(place))


register_reader("parquet", suffixes=(".parquet",), fits=_has_parquet, marks=(".parquet",), rank=20)(ParquetSource)


# -- Arrow ------------------------------------------------------------------------------------------------------


class ArrowSource(ColumnSource):
    """A data set that ``save_to_disk`` of the Hugging Face library wrote, one split or a dictionary of them.

    Groups are record batches, a thousand rows as the library writes them. Files on disk are mapped, not read; those in
    a bucket are read from their beginning.
    """

    format = "arrow"
    suffixes = (".arrow",)

    @cached_property
    def files(self) -> dict[str, int]:
        """Names and sizes of the Arrow files, in the order of their names."""
        if self.pattern:
            return super().files
        every = self.tree.listing()
        splits = self._splits
        wanted = {"train": ["train"], "test": self._tests, "all": splits}[self.options.part] if splits else [""]
        if not wanted or not set(wanted) <= {"", *splits}:
            raise DatasetNotFoundError(
                f"{self.tree.place()} must have a split {self.options.part}, got {listed(splits)}"
            )
        found = {name: every[name] for folder in wanted for name in self._data_files(folder, every)}
        return dict(sorted(found.items()))

    @property
    def _every_file(self) -> dict[str, int]:
        return matching_files(self.tree, self.pattern) if self.pattern else self._of_part("all").files

    @property
    def has_test(self) -> bool:
        """Whether there is a test split beside the training split."""
        return bool(self._tests)

    @cached_property
    def _tests(self) -> list[str]:
        """The split to test with; competitions publish test splits with -1 for labels, which give way to others."""
        names = [name for name in _TESTS if name in self._splits]
        for name in names if len(names) > 1 and self.options.labelled else []:
            split = ArrowSource(Tree(f"{self.tree.address}/{name}", self.tree.storage), "", self.options)
            labels = split.read(next(split.shards(100, _LONGEST)), bodies=False).labels
            if labels is not None and "-1" not in labels.tolist():
                return [name]
        return names[:1]

    @cached_property
    def _splits(self) -> list[str]:
        """Names of the splits; none where the folder is one."""
        if not self.tree.exists("dataset_dict.json"):
            return []
        names = self._json("dataset_dict.json").get("splits", [])
        every = names if isinstance(names, list) else []
        return [name for name in every if isinstance(name, str) and self.tree.exists(f"{name}/state.json")]

    def _data_files(self, folder: str, every: dict[str, int]) -> list[str]:
        state_name = posixpath.join(folder, "state.json")
        state, title = self._json(state_name), self.tree.place(state_name)
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise FileFormatError(
                f"{self.tree.place(folder)} must be saved without indices: run flatten_indices() before save_to_disk()"
            )
        entries = state.get("_data_files")
        names: list[str] = []
        for entry in entries if isinstance(entries, list) else []:
            name = entry.get("filename") if isinstance(entry, dict) else None
            if not isinstance(name, str) or "/" in name or posixpath.join(folder, name) not in every:
                raise FileFormatError(f"{title} must name files beside it, got {name!r}")
            names.append(posixpath.join(folder, name))
        if not names:
            raise FileFormatError(f"{title} must name data files, got none")
        return names

    def _json(self, name: str) -> dict[str, Any]:
        title, size = self.tree.place(name), self.tree.size(name)
        content = parse_json(self.tree.read(name), title) if size <= _LONGEST else None
        if not isinstance(content, dict):
            raise FileFormatError(f"{title} must be part of a whole saved Hugging Face data set")
        return content

    def _stream(self, name: str) -> pa.RecordBatchStreamReader:
        import pyarrow as pa

        if self.tree.on_disk and self.tree.size(name):  # an empty file cannot be mapped
            return pa.ipc.open_stream(pa.memory_map(str(self.tree.root / name)))
        return pa.ipc.open_stream(pa.PythonFile(self.tree.open(name, 2**20), mode="r"))

    def _schema(self, name: str) -> pa.Schema:
        return self._stream(name).schema

    def _read_groups(self, name: str) -> list[tuple[int, int]]:
        with sound(self.tree.place(name), "Arrow file"):
            return [(batch.num_rows, batch.nbytes) for batch in self._stream(name)]

    def _batches(self, name: str, first: int, last: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for batch in itertools.islice(self._stream(name), first, last):
            yield batch.select(columns)

    def _choose(self, name: str) -> TableColumns:
        columns = super()._choose(name)
        about = posixpath.join(posixpath.dirname(name), "dataset_info.json")
        if columns.classes or not columns.label or not self.tree.exists(about):
            return columns
        return replace(columns, classes=_class_names(self._json(about), columns.label))


def _is_saved(tree: Tree) -> bool:
    """Return whether a folder is what ``save_to_disk`` of the datasets library writes."""
    return tree.is_file("dataset_dict.json") or tree.is_file("state.json")


register_reader("arrow", suffixes=(".arrow",), fits=_is_saved, marks=(".json",), rank=10)(ArrowSource)
