"""Samples without labels in files that hold many: archives and tables."""

from __future__ import annotations

import posixpath
import warnings
from pathlib import Path

from evergrow.core.errors import DatasetNotFoundError, DataWarning, FileFormatError, InputError
from evergrow.core.items import Items, Texts
from evergrow.core.wording import hint
from evergrow.data.archives import ARCHIVE_SUFFIXES, open_archive
from evergrow.data.folders import Walk
from evergrow.data.labelled import listed
from evergrow.data.options import DataOptions
from evergrow.data.parquet import SUFFIXES as PARQUET_SUFFIXES
from evergrow.data.parquet import unlabelled_column
from evergrow.data.tables import IMAGE_COLUMNS, TABLE_SUFFIXES, TableFile, read_table_rows, read_texts

CONTAINER_SUFFIXES = (*ARCHIVE_SUFFIXES, *TABLE_SUFFIXES, *PARQUET_SUFFIXES)
"""Endings of files that hold many samples."""


def is_container(path: Path) -> bool:
    """Return whether a file holds many samples, by its ending."""
    return path.name.lower().endswith(CONTAINER_SUFFIXES)


def read_container(path: Path, kind: str, options: DataOptions | None = None) -> Items:
    r"""Return all images or texts of an archive or a table; labels in it are not looked at.

    Parameters
    ----------
    path : Path
        A ``.zip`` or ``.tar``, a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``.
    kind : {"image", "text"}
        Which is wanted.
    options : DataOptions, optional
        Names of columns.

    Raises
    ------
    FileFormatError
        If there is no such column.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.unlabelled import read_container
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "mail.csv")
    ...     _ = file.write_text("text\nbuy now\n")
    ...     read_container(file, "text").raw(0)
    'buy now'
    """
    chosen = options or DataOptions()
    name = path.name.lower()
    if name.endswith(ARCHIVE_SUFFIXES):
        if kind != "image":
            raise InputError(f"ITEMS must be tables or .txt files for a model of texts, got the archive {path}")
        return _images_in(path)
    if name.endswith(PARQUET_SUFFIXES):
        return unlabelled_column(path, kind, chosen)
    if kind == "text":
        return Texts(tuple(read_texts(path, chosen.text_column)))
    return _named_images(TableFile.on_disk(path), chosen)


def _images_in(path: Path) -> Items:
    tree = open_archive(path)
    walk = Walk(tree)
    names = walk.images("")
    unread = "; ".join(walk.cautions())
    if not names:
        raise InputError(f"{path} must hold images, got none" + (f"; {unread}" if unread else ""))
    if unread:
        warnings.warn(f"archive {path.name!r} can be used but: {unread}", DataWarning, stacklevel=3)
    return tree.images(names)


def _named_images(table: TableFile, options: DataOptions) -> Items:
    header, rows = read_table_rows(table)
    usual = [name for name in (*IMAGE_COLUMNS, "file_name") if name in header]
    column = options.image_column or (usual[0] if usual else "")
    if column not in header or not rows:
        raise FileFormatError(
            f"{table} must have a column of images, such as {listed(IMAGE_COLUMNS)}, got "
            f"{listed(header, most=8)}{hint('image_column', '; say which one it is by {}')}"
        )
    names = [posixpath.normpath(cells.get(column, "").strip().replace("\\", "/")) for _, cells in rows]
    missing = [name for name in names if not table.tree.is_file(name)]
    if missing:
        raise DatasetNotFoundError(
            f"the images of {table} must be in {table.tree.title}, but {len(missing)} of {len(names)} are not: "
            f"{listed(missing)}; paths are relative to the folder of the table"
        )
    return table.tree.images(names)
