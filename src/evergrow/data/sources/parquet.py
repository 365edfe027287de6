"""Parquet files of images, texts or feature vectors as sources: row groups, and of those the needed columns alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from evergrow.core.documents import parse_json
from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.core.escaping import one_line
from evergrow.core.feature_blocks import check_widths
from evergrow.core.optional import require
from evergrow.data.places import Place
from evergrow.data.shard import Shard, ShardData
from evergrow.data.sources.base import SOURCES, FileSource, SampleKind, SourceOptions, where_of
from evergrow.data.sources.columns import TableColumns, choose_columns, table_data
from evergrow.data.sources.spans import block_spans

WIDTHS = "evergrow.widths"
"""Metadata of a file of features: a JSON list of the columns of each block, which are at equal energy already."""

_RATIO, _ROOM = 100, 64 * 2**20
"""Rows may unpack to so many times what they take in the file, and so many bytes."""

_ROWS_PER_BYTE = 1000
"""A row group that claims more rows for its bytes lies."""

_BATCH = {"image": 64, "text": 4096, "features": 4096}


@SOURCES.register("parquet")
class ParquetSource(FileSource):
    """Rows of Parquet files: images as bytes or as the ``{bytes, path}`` of Hugging Face, texts, or feature vectors.

    Shards are row groups, several where they are small; a group that is too large is shared out, and then whoever
    reads a later part of it reads the parts before it too, because Parquet packs a group as a whole.
    """

    format = "parquet"
    suffixes = (".parquet",)

    def __init__(self, place: Place, pattern: str, options: SourceOptions, kind: str = "") -> None:
        super().__init__(place, pattern, options, kind)
        self._opened = lru_cache(maxsize=64)(self._open)
        self._groups = lru_cache(maxsize=64)(self._read_groups)

    def _open(self, name: str) -> tuple[Any, TableColumns]:
        """Return a file of which the footer is read, and its columns."""
        parquet = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet")
        size = self.files[name] if "files" in self.__dict__ else self.place.size(name)
        title = self.place.title(name)
        try:
            file = parquet.ParquetFile(self.place.open(name, size), pre_buffer=False)
            return file, choose_columns(file.schema_arrow, self.options, title)
        except (EvergrowError, MemoryError):
            raise
        except Exception as error:  # arrow has errors of its own, and damaged bytes bring any of them
            raise FileFormatError(f"{title} must be a whole Parquet file: {one_line(str(error))}") from error

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block that feature vectors were joined of, as the first file states."""
        return self._stated_widths(next(iter(self.files)))

    def _stated_widths(self, name: str) -> tuple[int, ...]:
        file, columns = self._opened(name)
        stated = (file.schema_arrow.metadata or {}).get(WIDTHS.encode())
        if columns.kind != "features" or stated is None:
            return ()
        values = parse_json(stated, f"{self.place.title(name)}: {WIDTHS}")
        width = self._width(name, columns, self._groups(name))
        try:
            return check_widths(WIDTHS, values, width)
        except InputError as error:
            raise FileFormatError(f"{self.place.title(name)}: {error}") from error

    def _look_for_kind(self) -> SampleKind:
        return self._opened(next(iter(self.files)))[1].kind

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        first: tuple[str, TableColumns, int] | None = None
        for name in self.files:
            columns = self._opened(name)[1]
            blocks = self._groups(name)
            width = self._width(name, columns, blocks)
            first = first or (name, columns, width)
            self._check_alike(first, name, columns, width)
            for span in block_spans(blocks, rows, size):
                where = {"file": name, "first": span.first, "last": span.last, "skip": span.skip}
                yield Shard(0, span.rows, span.size, where)

    def _read_groups(self, name: str) -> list[tuple[int, int]]:
        """Return rows and bytes of every row group, of the columns that are read."""
        file, columns = self._opened(name)
        footer, title = file.metadata, self.place.title(name)
        wanted = columns.wanted(file.schema_arrow)
        blocks = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            chunks = [group.column(row) for row in range(group.num_columns)]
            kept = [chunk for chunk in chunks if any(_leads_to(chunk.path_in_schema, column) for column in wanted)]
            packed = sum(chunk.total_compressed_size for chunk in kept)
            unpacked = sum(chunk.total_uncompressed_size for chunk in kept)
            counts = {
                chunk.num_values for row, chunk in enumerate(chunks) if not file.schema.column(row).max_repetition_level
            }
            if counts - {group.num_rows} or not 0 <= group.num_rows <= _ROWS_PER_BYTE * (packed + 1):
                raise FileFormatError(
                    f"{title} must hold the rows that it states, got {group.num_rows} in group {number}"
                )
            if unpacked > _RATIO * packed + _ROOM:
                raise FileFormatError(f"{title} must unpack to at most {_RATIO} times its size and 64 MiB, got more")
            blocks.append((group.num_rows, packed))
        if sum(rows for rows, _ in blocks) != footer.num_rows:
            raise FileFormatError(f"{title} must hold the {footer.num_rows} rows that it states, got other groups")
        return blocks

    def _width(self, name: str, columns: TableColumns, blocks: list[tuple[int, int]]) -> int:
        """Return the length of feature vectors; where the type does not say it, the first row does."""
        if columns.kind != "features" or columns.width or not any(rows for rows, _ in blocks):
            return columns.width
        first = next(number for number, (rows, _) in enumerate(blocks) if rows)
        table = self._table(name, first, first + 1, 0, 1)
        return len(table.column(columns.sample)[0].as_py() or ())

    def _check_alike(self, first: tuple[str, TableColumns, int], name: str, columns: TableColumns, width: int) -> None:
        other, known, was = first
        if width != was:
            raise FileFormatError(
                f"{self.place.title()}: feature files must have one width, got {was} in {other} and {width} in {name}"
            )
        blocks, before = (self._stated_widths(each) for each in (name, other))
        if blocks != before:
            raise FileFormatError(
                f"{self.place.title()}: feature files must have the same blocks, got widths {_listed(before)} in "
                f"{other} and {_listed(blocks)} in {name}"
            )
        if (columns.kind, columns.sample, columns.label) != (known.kind, known.sample, known.label):
            raise FileFormatError(
                f"{self.place.title()}: files must have the same columns, got {known.sample!r} and "
                f"{known.label or 'no label'!r} in {other}, {columns.sample!r} and {columns.label or 'no label'!r} in "
                f"{name}"
            )
        if columns.classes != known.classes:
            raise FileFormatError(f"{self.place.title()}: files must name the same classes, got others in {name}")

    def read(self, shard: Shard) -> ShardData:
        """Return the rows of a shard."""
        where = where_of(shard)
        name, skip, first, last = (where.text("file"), *(where.integer(key) for key in ("skip", "first", "last")))
        file, columns = self._opened(name)
        if not first < last <= file.metadata.num_row_groups:
            raise FileFormatError(f"{self.place.title(name)} must hold {last} row groups, as when shards were made")
        table = self._table(name, first, last, skip, shard.rows)
        before = sum(file.metadata.row_group(number).num_rows for number in range(first)) + skip
        names = tuple(f"{name}[{row}]" for row in range(before, before + shard.rows))
        return table_data(table, columns, self.place.title(name), names)

    def _table(self, name: str, first: int, last: int, skip: int, rows: int) -> Any:
        """Return so many rows of some row groups, after those to skip."""
        import pyarrow as arrow

        file, columns = self._opened(name)
        title, wanted = self.place.title(name), columns.wanted(file.schema_arrow)
        left = _RATIO * max(sum(size for _, size in self._groups(name)[first:last]), 0) + _ROOM
        kept, count = [], 0
        try:
            for batch in file.iter_batches(
                batch_size=_BATCH[columns.kind], row_groups=range(first, last), columns=wanted, use_threads=False
            ):
                left -= batch.nbytes
                if left < 0:
                    raise FileFormatError(f"{title} must unpack to at most {_RATIO} times its size, got more")
                batch.validate(full=True)
                before = min(skip, batch.num_rows)
                part = batch.slice(before, rows - count)
                skip -= before
                kept += [part] if part.num_rows else []
                count += part.num_rows
                if count >= rows:
                    break
        except (EvergrowError, MemoryError):
            raise
        except Exception as error:
            raise FileFormatError(f"{title} must be a whole Parquet file: {one_line(str(error))}") from error
        if count != rows:
            raise FileFormatError(f"{title} must hold the rows that it states, got {count} instead of {rows}")
        return arrow.Table.from_batches(kept)


def _leads_to(path: str, column: str) -> bool:
    """Return whether a column of the file belongs to one of the table: ``image.bytes`` and ``feature.list.element``."""
    return path == column or path.startswith(f"{column}.")


def _listed(widths: tuple[int, ...]) -> str:
    return ", ".join(map(str, widths)) or "of one block"
