"""Columns of Parquet and Arrow tables that hold samples: which they are, and their rows as the data of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, InputError
from evergrow.core.items import Texts
from evergrow.core.wording import hint
from evergrow.data.fetched import HeldImages
from evergrow.data.hub import LABEL_COLUMNS
from evergrow.data.labelled import listed
from evergrow.data.parquet import image_columns, label_names
from evergrow.data.shard import ShardData
from evergrow.data.sources.base import LARGEST_IMAGE, SampleKind, SourceOptions, as_features, class_names
from evergrow.data.tables import IMAGE_COLUMNS

_TEXT = ("text", "sentence")
_FEATURES = ("feature", "features", "embedding", "embeddings", "X")
_NAMES = ("name", "file_name")


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
    """

    kind: SampleKind
    sample: str
    label: str = ""
    name: str = ""
    classes: Mapping[int, str] = field(default_factory=dict)
    width: int = 0

    def wanted(self, schema: Any) -> list[str]:
        """Return the columns to read: of images ``{bytes, path}`` the bytes alone."""
        import pyarrow.types as types

        nested = self.kind == "image" and types.is_struct(schema.field(self.sample).type)
        sample = f"{self.sample}.bytes" if nested else self.sample
        return [sample, *(column for column in (self.label, self.name) if column)]


def choose_columns(schema: Any, options: SourceOptions, title: str) -> TableColumns:
    """Return which columns of a table hold what: those that the options name, else those of usual names.

    Raises
    ------
    FileFormatError
        If a column is not there, or none holds samples; the message says which there are.
    """
    header = list(schema.names)
    if len(set(header)) != len(header):
        raise FileFormatError(f"{title} must have every column once, got {listed(header, most=8)}")
    kind, sample = _sample_column(schema, options, title)
    label = _present(schema, options.label_column, title, "label_column")
    if not label:
        label = next((name for name in LABEL_COLUMNS if name in header and name != sample), "")
    label = label if options.labelled else ""
    name = _present(schema, options.name_column, title, "name_column")
    name = name or next((column for column in _NAMES if column in header and _is_text(schema, column)), "")
    width = getattr(schema.field(sample).type, "list_size", 0) if kind == "features" else 0
    return TableColumns(kind, sample, label, name, label_names(schema, label) if label else {}, int(width))


def _sample_column(schema: Any, options: SourceOptions, title: str) -> tuple[SampleKind, str]:
    header, images = list(schema.names), image_columns(schema)
    vectors = [name for name in header if _is_vectors(schema, name)]
    texts = [name for name in header if _is_text(schema, name)]
    asked: list[tuple[SampleKind, str, str, list[str]]] = [
        ("text", options.text_column, "text_column", texts),
        ("image", options.image_column, "image_column", images),
        ("features", options.feature_column, "feature_column", vectors),
    ]
    for kind, column, option, fitting in asked:
        if _present(schema, column, title, option):
            if column not in fitting:
                what = {"text": "texts", "image": "bytes of images", "features": "lists of numbers"}[kind]
                raise FileFormatError(f"{title}: column {column!r} must hold {what}, got {schema.field(column).type}")
            return kind, column
    usual: list[tuple[SampleKind, list[str]]] = [
        ("text", [name for name in _TEXT if name in texts]),
        ("image", [name for name in (*IMAGE_COLUMNS, "img", *images) if name in images]),
        ("features", [name for name in (*_FEATURES, *(vectors if len(vectors) == 1 else ())) if name in vectors]),
    ]
    for kind, found in usual:
        if found:
            return kind, found[0]
    meant = hint(("text_column", "image_column", "feature_column"), "; say which one it is by {}")
    raise FileFormatError(
        f"{title} must have a column of texts, of image bytes or of feature vectors, got {listed(header, most=8)}"
        f"{meant}"
    )


def _present(schema: Any, column: str, title: str, option: str) -> str:
    if column and column not in schema.names:
        raise FileFormatError(f"{title} must have a column {column!r}, got {listed(schema.names, most=8)}")
    return column


def _is_text(schema: Any, name: str) -> bool:
    import pyarrow.types as types

    kind = schema.field(name).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_vectors(schema: Any, name: str) -> bool:
    import pyarrow.types as types

    kind = schema.field(name).type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and types.is_floating(kind.value_type))


def table_data(table: Any, columns: TableColumns, title: str, names: tuple[str, ...]) -> ShardData:
    """Return the rows of a table as the samples of a shard.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    columns : TableColumns
        Which column holds what.
    title : str
        The file, for messages.
    names : tuple of str
        What to call rows that have no name of their own.

    Raises
    ------
    InputError
        If a text or a label is missing, or a feature is not finite.
    """
    labels = None
    if columns.label:
        values = [
            value.strip() if isinstance(value, str) else value for value in table.column(columns.label).to_pylist()
        ]
        labels = class_names(values, columns.classes, title)
    if columns.name:
        given = table.column(columns.name).to_pylist()
        names = tuple(own if isinstance(own, str) and own else plain for own, plain in zip(given, names, strict=True))
    column = table.column(columns.sample)
    if columns.kind == "features":
        return ShardData(names, features=_vectors(column, columns, title), labels=labels)
    if columns.kind == "text":
        texts = column.to_pylist()
        for row, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{title}: {columns.sample} must not be empty, got {text!r} for {names[row]}")
        return ShardData(names, items=Texts(tuple(texts)), labels=labels)
    return ShardData(names, items=HeldImages(names, tuple(map(_body, column.to_pylist()))), labels=labels)


def _body(cell: Any) -> bytes | str:
    """Return the bytes of an image, or why there are none: one bad cell is one bad image, not a bad shard."""
    body = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(body, bytes) or not body:
        return "its bytes are not in the table"
    return body if len(body) <= LARGEST_IMAGE else f"it has more than {LARGEST_IMAGE // 2**20} MiB"


def _vectors(column: Any, columns: TableColumns, title: str) -> NDArray[Any]:
    """Return lists of numbers as rows of one width."""
    import pyarrow as arrow

    n = len(column)
    array = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    values = array.flatten()  # leaves out what a list that is null holds, so that the count tells
    width = columns.width or (len(values) // n if n else 0)
    even = array.null_count == 0 and values.null_count == 0 and len(values) == n * width and width > 0
    if even and not columns.width:
        even = bool((np.diff(np.asarray(array.offsets)) == width).all())
    if not even:
        raise FileFormatError(f"{title}: {columns.sample} must hold vectors of one width in every row, got others")
    return as_features(np.asarray(values.to_numpy(zero_copy_only=False)).reshape(n, width), title, 0)
