"""Image folders, and tables of images or texts, as sources: names and labels in the manifest, files read by workers."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.core.items import ImageFiles, Items, Texts
from evergrow.data.fetched import HeldImages
from evergrow.data.folders import Walk
from evergrow.data.labelled import Label, LabelledItems, listed
from evergrow.data.lists import LIST_SUFFIXES, read_lists
from evergrow.data.options import DataOptions
from evergrow.data.places import DiskPlace, Place
from evergrow.data.readers import LAYOUTS, fitting_layout, list_layouts
from evergrow.data.shard import Shard, ShardData
from evergrow.data.sources.base import LARGEST_IMAGE, SOURCES, FileSource, SampleKind, SourceOptions, where_of
from evergrow.data.sources.spans import spans
from evergrow.data.tables import (
    IMAGE_COLUMNS,
    TABLE_SUFFIXES,
    Columns,
    TableFile,
    read_table_files,
    read_table_rows,
    row_items,
)
from evergrow.data.trees import DiskTree, EntryKind, FileTree, folder_entries


@dataclass(frozen=True)
class ListedTree(FileTree):
    """The files below a place, from one listing of it.

    Parameters
    ----------
    root : Place
        Where they are.
    sizes : dict of str to int
        All files, and their bytes.
    children : dict
        What every folder holds.
    base : str
        Folder that is the root.
    """

    root: Place
    sizes: dict[str, int]
    children: dict[str, dict[str, EntryKind]]
    base: str = ""

    @classmethod
    def of(cls, place: Place) -> ListedTree:
        """Return the tree of a place, which is asked once."""
        sizes = place.listing(deep=True)
        if not sizes:
            raise DatasetNotFoundError(f"{place.title()} must hold files, got none")
        return cls(place, sizes, folder_entries(sizes, place.title()))

    @property
    def title(self) -> str:
        """The address of the root."""
        return self.root.title(self.base)

    def entries(self, folder: str) -> Iterator[tuple[str, EntryKind]]:
        """Yield what a folder holds."""
        yield from self.children.get(self._full(folder), {}).items()

    def identity(self, folder: str) -> Hashable:
        """Return the name: there are no links."""
        return self._full(folder)

    def is_file(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return self._full(name) in self.sizes

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        full = self._full(name)
        if full not in self.sizes:
            raise DatasetNotFoundError(f"{self.root.title(full)} must exist, but it does not")
        return self.root.read(full, 0, self.sizes[full])

    def images(self, names: list[str]) -> ImageFiles:
        """Return images by their names; the root is that of this tree below the place, and no path on disk."""
        return ImageFiles(Path(self.base), tuple(names))

    def below(self, folder: str) -> ListedTree:
        """Return the tree of a folder in this one."""
        return ListedTree(self.root, self.sizes, self.children, self._full(folder))

    def _full(self, name: str) -> str:
        full = posixpath.normpath(posixpath.join(self.base, name))
        return "" if full == "." else full


@dataclass(frozen=True)
class _Rows:
    """The samples of a folder or table: files with their sizes, or texts, and labels where there are such."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    labels: tuple[str, ...] | None
    texts: tuple[str, ...] | None = None


@SOURCES.register("folder")
class FolderSource(FileSource):
    """Images in folders named after their classes, perhaps in ``train/`` and ``test/``, or named by a table there.

    Folders are read as :func:`evergrow.data.load_data` reads them. The manifest names every file, so that a worker
    lists nothing; beyond some ten million images, tar or Parquet shards serve better.
    """

    format = "folder"

    def _look_for_kind(self) -> SampleKind:
        return "image" if self._rows.texts is None else "text"

    def _tree(self) -> FileTree:
        if not isinstance(self.place, DiskPlace):
            return ListedTree.of(self.place)
        if not self.place.root.is_dir():
            raise DatasetNotFoundError(f"{self.place.title()} must be an existing folder, got none")
        return DiskTree(self.place.root)

    def _read_tree(self, tree: FileTree) -> LabelledItems:
        options = _data_options(self.options)
        if isinstance(self.place, DiskPlace):
            return fitting_layout(self.place.root).read(self.place.root, options)
        layouts = [layout for name in list_layouts() if (layout := LAYOUTS[name].in_archive) is not None]
        return next(read for fits, read in layouts if fits(tree))(tree, options)  # one folder per class fits any

    @cached_property
    def _rows(self) -> _Rows:
        tree = self._tree()
        if not self.options.labelled and self.format == "folder":
            walk = Walk(tree)
            names = walk.images("")
            if not names:
                raise InputError(f"{tree.title} must hold images, got none{''.join(f'; {c}' for c in walk.cautions())}")
            return self._measured(tree, names, None)
        labelled = self._read_tree(tree)
        parts: list[tuple[Items, list[Label]]] = [(labelled.train, list(labelled.train_labels))]
        if labelled.test is not None:
            test = (labelled.test, list(labelled.test_labels))
            parts = {"train": parts, "test": [test], "all": [*parts, test]}[self.options.part]
        labels = tuple(_name_of(label, labelled) for _, part in parts for label in part)
        kept = labels if self.options.labelled else None
        if all(isinstance(items, Texts) for items, _ in parts):
            texts = tuple(str(items.raw(row)) for items, _ in parts for row in range(len(items)))
            return _Rows((), tuple(len(text.encode("utf-8", "surrogatepass")) for text in texts), kept, texts)
        return self._measured(tree, [name for items, _ in parts for name in self._from_place(items)], kept)

    def _from_place(self, items: Items) -> list[str]:
        """Return the names of files relative to the place."""
        if not isinstance(items, ImageFiles):
            raise InputError(f"{self.place.title()} must hold images in files, got {type(items).__name__}")
        root = items.root
        if isinstance(self.place, DiskPlace):  # the images of a list may lie beside its folder
            root = Path(os.path.relpath(root, self.place.root))
        base = "" if root == Path() else root.as_posix()
        return [posixpath.join(base, name) for name in items.names]

    def _measured(self, tree: FileTree, names: list[str], labels: tuple[str, ...] | None) -> _Rows:
        sizes = [tree.sizes[name] if isinstance(tree, ListedTree) else self.place.size(name) for name in names]
        for name, size in zip(names, sizes, strict=True):
            if size > LARGEST_IMAGE:
                raise FileFormatError(
                    f"{self.place.title(name)} must be an image of at most {LARGEST_IMAGE // 2**20} MiB, got "
                    f"{size // 2**20} MiB"
                )
        return _Rows(tuple(names), tuple(sizes), labels)

    def _marks(self) -> Iterable[str]:
        rows = self._rows
        labels = rows.labels or ("",) * len(rows.sizes)
        for text in rows.texts or ():
            yield hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        yield from (f"{name}\0{size}" for name, size in zip(rows.names, rows.sizes, strict=False))
        yield from labels

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        every = self._rows
        for start, stop, weight in spans(every.sizes, rows, size):
            where: dict[str, Any] = {"start": start, "stop": stop}
            if every.texts is None:
                where = {"files": list(every.names[start:stop]), "sizes": list(every.sizes[start:stop])}
                where |= {} if every.labels is None else {"labels": list(every.labels[start:stop])}
            yield Shard(0, stop - start, weight, where)

    def read(self, shard: Shard) -> ShardData:
        """Return the samples of a shard; files on disk are only named, and opened by whoever decodes them."""
        if "files" not in shard.where:
            return self._read_texts(shard)
        where = where_of(shard)
        names, sizes = tuple(where.texts("files")), where.integers("sizes")
        labels = where.texts("labels") if "labels" in shard.where else None
        if not shard.rows == len(names) == len(sizes) == len(names if labels is None else labels):
            raise FileFormatError(f"shard {shard.number} must name {shard.rows} files and labels, got other numbers")
        return ShardData(names, items=self._images(names, sizes), labels=_as_array(labels))

    def _images(self, names: tuple[str, ...], sizes: list[int]) -> Items:
        if isinstance(self.place, DiskPlace):
            return ImageFiles(self.place.root, names)
        bodies = self.place.read_all([(name, 0, size) for name, size in zip(names, sizes, strict=True)])
        return HeldImages(names, tuple(body if isinstance(body, bytes) else str(body) for body in bodies))

    def _read_texts(self, shard: Shard) -> ShardData:
        """Return texts; a table is read whole, once in a process, and for many texts Parquet serves better."""
        where, every = where_of(shard), self._rows
        start, stop = where.integer("start"), where.integer("stop")
        if every.texts is None or stop > len(every.texts) or stop - start != shard.rows:
            raise FileFormatError(f"{self.place.title(self.pattern)} must hold {stop} texts, as when shards were made")
        labels = None if every.labels is None else list(every.labels[start:stop])
        names = tuple(f"{self.pattern or 'row'}[{row}]" for row in range(start, stop))
        return ShardData(names, items=Texts(every.texts[start:stop]), labels=_as_array(labels))


@SOURCES.register("table")
class TableSource(FolderSource):
    """Images that a CSV, TSV or JSON-lines file names, relative to its folder, or the texts that it holds.

    On disk also a list of paths and labels, ``.txt`` or ``.yaml``, whose images are looked for around it; where no
    labels are wanted, a ``.txt`` is texts, one in a line.
    """

    format = "table"
    suffixes = (*TABLE_SUFFIXES, *LIST_SUFFIXES)

    def _read_tree(self, tree: FileTree) -> LabelledItems:
        if len(self.files) != 1:
            raise InputError(f"{self.place.title(self.pattern)} must be one table, got {len(self.files)}")
        name, options = next(iter(self.files)), _data_options(self.options)
        if not self.options.labelled and name.lower().endswith(".txt"):
            return _lines(tree, name)
        if name.lower().endswith(LIST_SUFFIXES):
            if not isinstance(self.place, DiskPlace):
                raise InputError(f"{self.place.title(name)} must be a table such as .csv in a storage, got a list")
            return read_lists(self.place.root / name, None, options)
        table = TableFile(tree, name)
        return read_table_files(table, None, options) if self.options.labelled else _without_labels(table, options)


def _lines(tree: FileTree, name: str) -> LabelledItems:
    """Return the lines of a file as texts; empty ones are left out."""
    texts = [line.strip() for line in tree.text(name).split("\n") if line.strip()]
    if not texts:
        raise FileFormatError(f"{tree.place(name)} must hold at least one text, got none")
    return LabelledItems("table", Texts(tuple(texts)), [""] * len(texts))


def _without_labels(table: TableFile, options: DataOptions) -> LabelledItems:
    """Return all rows of a table that need have no column of labels."""
    header, rows = read_table_rows(table)
    usual = [options.image_column] if options.image_column else [options.text_column, *IMAGE_COLUMNS]
    column = next((name for name in usual if name in header), "")
    if not column or not rows:
        raise FileFormatError(f"{table} must hold rows with a column {usual[0]!r}, got {listed(header, most=8)}")
    lacking = [line for line, cells in rows if not cells.get(column, "").strip()]
    if lacking:
        raise InputError(f"{table} line {lacking[0]}: {column} must not be empty")
    columns = Columns(column, column, "", column != options.text_column)
    return LabelledItems("table", row_items(table, rows, columns), [""] * len(rows))


def _data_options(options: SourceOptions) -> DataOptions:
    return DataOptions(
        split="none",
        class_level=options.class_level,
        text_column=options.text_column or "text",
        label_column=options.label_column or "label",
        image_column=options.image_column,
    )


def _name_of(label: Label, labelled: LabelledItems) -> str:
    return labelled.names.get(label, str(label)) if isinstance(label, int) else label


def _as_array(labels: list[str] | None) -> NDArray[np.str_] | None:
    return None if labels is None else np.array(labels, dtype=np.str_)
