"""The ``imagefolder`` of Hugging Face: images with a ``metadata.csv`` or ``metadata.jsonl`` beside them."""

from __future__ import annotations

import dataclasses
import posixpath

from evergrow.core.errors import FileFormatError, InputError
from evergrow.core.items import Items
from evergrow.core.wording import hint
from evergrow.data.folders import TEST_FOLDERS, TRAIN_FOLDERS, Walk
from evergrow.data.labelled import LabelledItems, listed
from evergrow.data.options import DataOptions
from evergrow.data.readers import register_tree_layout
from evergrow.data.tables import TableFile, read_table_files, read_table_rows
from evergrow.data.trees import FileTree

FILE_COLUMN = "file_name"
_NAMES = ("metadata.csv", "metadata.jsonl")


def _metadata(tree: FileTree, folder: str) -> TableFile | None:
    """Return the metadata of a folder, unless it is another file that happens to be called so."""
    for name in _NAMES:
        table = TableFile(tree, posixpath.join(folder, name))
        if tree.is_file(table.name) and FILE_COLUMN in tree.read(table.name)[:4096].decode("utf-8", "replace"):
            return table
    return None


def _parts(tree: FileTree) -> dict[str, TableFile]:
    """Return the metadata of the training and the test part, or of the whole under the empty name."""
    whole = _metadata(tree, "")
    if whole is not None:
        return {"": whole}
    folders = {name.lower(): name for name, kind in tree.entries("") if kind == "folder"}
    found: dict[str, TableFile] = {}
    for part, names in (("train", TRAIN_FOLDERS), ("test", TEST_FOLDERS)):
        for name in names:
            table = _metadata(tree, folders[name]) if name in folders else None
            if table is not None and part not in found:
                found[part] = table
    return found if "train" in found else {}


@register_tree_layout("imagefolder", fits=lambda tree: bool(_parts(tree)), rank=45)
def read_imagefolder(tree: FileTree, options: DataOptions) -> LabelledItems:
    """Read images that ``metadata.csv`` or ``metadata.jsonl`` names by ``file_name``, and their labels.

    The metadata lie beside the images, for all or in a training and a test folder. Where they have no column of labels,
    the folders that the images are in give the classes.

    Raises
    ------
    FileFormatError
        If there are neither labels nor folders.
    """
    tables = _parts(tree)
    if not tables:
        raise InputError(f"{tree.title} must hold metadata.csv or metadata.jsonl with a column {FILE_COLUMN}, got none")
    read = [_read_part(table, options) for table in tables.values()]
    first = read[0]
    if len(read) == 1:
        return first
    second = read[1]
    return LabelledItems(
        "imagefolder",
        first.train,
        first.train_labels,
        second.train,
        second.train_labels,
        notes=[*first.notes, *second.notes],
        cautions=[*first.cautions, *second.cautions],
    )


def _read_part(table: TableFile, options: DataOptions) -> LabelledItems:
    settings = dataclasses.replace(options, image_column=options.image_column or FILE_COLUMN)
    header, rows = read_table_rows(table)
    notes = [f"labels from {posixpath.basename(table.name)}"]
    if settings.label_column in header:
        labelled = read_table_files(table, None, settings)
    else:
        labelled = _from_folders(table, header, [cells.get(settings.image_column, "") for _, cells in rows])
        notes = [f"{posixpath.basename(table.name)} has no column {settings.label_column!r}: folders are the classes"]
    listed_images = [labelled.train, *([] if labelled.test is None else [labelled.test])]
    cautions = _unlisted(table, listed_images)
    return dataclasses.replace(
        labelled, layout="imagefolder", notes=[*labelled.notes, *notes], cautions=[*labelled.cautions, *cautions]
    )


def _from_folders(table: TableFile, header: list[str], names: list[str]) -> LabelledItems:
    below = table.tree.below(table.folder) if table.folder else table.tree
    plain = [posixpath.normpath(name.strip().replace("\\", "/")) for name in names]
    labels = [posixpath.basename(posixpath.dirname(name)) for name in plain]
    if not all(labels) or len(set(labels)) < 2:
        raise FileFormatError(
            f"{table} must have a column 'label', or name images in one folder per class, got the columns "
            f"{listed(header, most=8)}{hint('label_column', '; say which one it is by {}')}"
        )
    missing = [name for name in plain if not below.is_file(name)]
    if missing:
        raise FileFormatError(f"{table} must name images that are there, but {len(missing)} are not: {listed(missing)}")
    return LabelledItems("imagefolder", below.images(plain), labels)


def _unlisted(table: TableFile, parts: list[Items]) -> list[str]:
    """Return a caution where images lie beside the metadata that these do not name."""
    below = table.tree.below(table.folder) if table.folder else table.tree
    walk = Walk(below)
    there = len(walk.images("."))
    rest = there - sum(len(part) for part in parts)
    cautions = [f"images that {posixpath.basename(table.name)} does not name left out: {rest}"] if rest > 0 else []
    return [*cautions, *walk.cautions()]
