"""Training files and the test files that go with them: ``x_train.csv`` and ``x_test.csv``."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from evergrow.core.errors import DatasetNotFoundError
from evergrow.data.trees import DiskTree, FileTree

if TYPE_CHECKING:
    from evergrow.data.labelled import LabelledItems
    from evergrow.data.options import DataOptions

_PARTNERS = ("test", "testing", "val", "valid", "validation", "dev")

TreeFit = Callable[[FileTree], bool]


def partner(train: Path) -> Path | None:
    """Return the test list or table that goes with a training one: ``x_train.yaml`` and ``x_test.yaml``.

    Examples
    --------
    >>> import pathlib
    >>> from evergrow.data.pairs import partner
    >>> partner(pathlib.Path("nowhere/train.csv")) is None
    True
    """
    name = partner_name(DiskTree(train.parent), train.name)
    return None if name is None else train.with_name(name)


def partner_name(tree: FileTree, train: str) -> str | None:
    """Return the name of the test file in a tree that goes with a training file."""
    folder, name = posixpath.split(train)
    stem, suffix = posixpath.splitext(name)
    at = stem.lower().rfind("train")
    if at < 0:
        return None
    end = at + (8 if stem.lower().startswith("training", at) else 5)
    for word in _PARTNERS:
        candidate = posixpath.join(folder, f"{stem[:at]}{word}{stem[end:]}{suffix}")
        if tree.is_file(candidate):
            return candidate
    return None


def training_file(tree: FileTree, suffixes: tuple[str, ...]) -> str | None:
    """Return the training list or table in a folder or its ``splits`` that has a partner, if there is one."""
    folders = {name for name, kind in tree.entries("") if kind == "folder"}
    for place in ("", "splits"):
        if not place or place in folders:
            for file in tree.files(place):
                stem, suffix = posixpath.splitext(posixpath.basename(file))
                right = suffix.lower() in suffixes and stem.lower().endswith(("train", "training"))
                if right and partner_name(tree, file) is not None:
                    return file
    return None


def pair_reader(
    suffixes: tuple[str, ...], read: Callable[[FileTree, str, str | None, DataOptions], LabelledItems]
) -> tuple[TreeFit, Callable[[FileTree, DataOptions], LabelledItems]]:
    """Return how to tell and how to read a folder that holds a training file of these endings and its partner."""

    def fits(tree: FileTree) -> bool:
        return training_file(tree, suffixes) is not None

    def read_folder(tree: FileTree, options: DataOptions) -> LabelledItems:
        train = training_file(tree, suffixes)
        if train is None:
            raise DatasetNotFoundError(
                f"{tree.title} must hold a training file and its partner, such as train{suffixes[0]} and "
                f"test{suffixes[0]}"
            )
        return read(tree, train, partner_name(tree, train), options)

    return fits, read_folder
