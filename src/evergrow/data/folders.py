"""Images in folders: ``train/<class>/*`` and ``test/<class>/*``, and one folder per class."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from evergrow.core.errors import InputError
from evergrow.core.escaping import printable
from evergrow.data.items import (
    Dataset,
    check_test_classes,
    is_image,
    listed,
    unread_format,
)
from evergrow.data.readers import (
    TEST_WORDS,
    TRAIN_WORDS,
    DataOptions,
    file_suffixes,
    register_reader,
)
from evergrow.data.storage import Tree

_SYSTEM = frozenset(
    {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is one that people do not see: hidden, or of the system."""
    return name.startswith(".") or name.lower() in _SYSTEM


@dataclass
class Walk:
    """Listing of images below a root, with a count of what was left out.

    Parameters
    ----------
    tree : Tree
        The files.
    ignored : Counter
        Files left out, by reason.
    unread : Counter
        Images left out because a plugin that reads them is not installed, or none is
        known.
    """

    tree: Tree
    ignored: Counter[str] = field(default_factory=Counter)
    unread: Counter[tuple[str, str]] = field(default_factory=Counter)

    def subfolders(self, folder: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted; images beside them are counted as left out."""
        names = []
        for name, kind in self._entries(folder):
            if kind == "folder":
                names.append(name)
            elif is_image(name):
                self.ignored["images outside class folders"] += 1
            else:
                self.count_other(name)
        return sorted(names)

    def images(self, folder: str = "") -> list[str]:
        """Return the images in a folder and the folders below it, relative to the root, sorted by name.

        Links to folders are followed once; those to a folder above would bring in other
        classes, or the whole disk. Only folders are asked for their status, so that a
        hundred thousand files cost little more than their names.
        """
        names: list[str] = []
        followed = {os.path.realpath(self.tree.root / folder)}
        pending = [folder]
        while pending:
            current = pending.pop()
            for name, kind in self._entries(current):
                path = posixpath.join(current, name)
                if kind == "folder":
                    link = self.tree.on_disk and os.path.islink(self.tree.root / path)
                    target = ""
                    if link:
                        target = os.path.realpath(self.tree.root / path)
                    above = (
                        (self.tree.root / place).resolve()
                        for place in (current, "")
                        if target
                    )
                    if target in followed or any(
                        place.is_relative_to(target) for place in above
                    ):
                        self.ignored["links back to a folder above"] += 1
                        continue
                    followed |= {target} - {""}
                    pending.append(path)
                elif not is_image(name):
                    self.count_other(name)
                elif kind == "file":
                    names.append(path)
                else:
                    self.ignored["broken links"] += 1
        names.sort()
        return names

    def note(self) -> list[str]:
        """Return a sentence about what was left out, if anything was."""
        if not self.ignored:
            return []
        parts = ", ".join(
            f"{printable(reason)}: {count}"
            for reason, count in sorted(self.ignored.items())
        )
        return [f"files left out: {sum(self.ignored.values())} ({parts})"]

    def cautions(self) -> list[str]:
        """Return a sentence about every kind of images that was left out because nothing here reads it."""
        return [
            f"{title} images left out: {n}; {remedy}"
            for (title, remedy), n in sorted(self.unread.items())
        ]

    def unread_hint(self) -> str:
        """Return the cautions as the end of a message."""
        return "".join(f"; {caution}" for caution in self.cautions())

    def _entries(self, folder: str) -> Iterator[tuple[str, str]]:
        for name, kind in self.tree.entries(folder):
            if is_hidden(name):
                self.ignored["hidden"] += 1
            else:
                yield name, kind

    def count_other(self, name: str) -> None:
        """Count a file that is no image which can be read here."""
        if unread := unread_format(name):
            self.unread[unread] += 1
        else:
            self.ignored[
                f"not images ({os.path.splitext(name)[1].lower() or 'no suffix'})"
            ] += 1


# -- which layout ----------------------------------------------------------------------


def split_folders(tree: Tree) -> tuple[str, str, list[str]] | None:
    """Return the names of the training and test folders and of other test folders, or None where they are not.

    Names are compared without case. A test folder without folders in it (unlabelled
    images) gives way to a validation folder.
    """
    walk = Walk(tree)
    spelled: dict[str, str] = {}
    for name in walk.subfolders():
        lower = name.lower()
        if (
            lower in (*TRAIN_WORDS, *TEST_WORDS)
            and spelled.setdefault(lower, name) != name
        ):
            raise InputError(
                f"{tree.place()} must hold one of the folders {spelled[lower]!r} and {name!r}, got both"
            )
    train = [spelled[name] for name in TRAIN_WORDS if name in spelled]
    tests = [spelled[name] for name in TEST_WORDS if name in spelled]
    if not train or not tests:
        return None
    labelled = [name for name in tests if walk.subfolders(name)] or tests
    return train[0], labelled[0], [name for name in tests if name != labelled[0]]


def unwrapped(tree: Tree) -> Tree:
    """Return the tree itself, or the only folder in it if that one holds a training and a test folder.

    Archives often unpack to ``cub/cub/train``, and VTAB lies in ``vtab-cil/vtab``.
    """
    if split_folders(tree) is None:
        inner = Walk(tree).subfolders()
        if len(inner) == 1 and split_folders(tree.below(inner[0])) is not None:
            return tree.below(inner[0])
    return tree


def partner_name(tree: Tree, train: str) -> str | None:
    """Return the test file in a tree that goes with a training file: ``x_train.csv`` and ``x_test.csv``."""
    folder, name = posixpath.split(train)
    stem, suffix = posixpath.splitext(name)
    at = stem.lower().rfind("train")
    if at < 0:
        return None
    end = at + (8 if stem.lower().startswith("training", at) else 5)
    names = [
        posixpath.join(folder, f"{stem[:at]}{word}{stem[end:]}{suffix}")
        for word in (*TEST_WORDS, "dev")
    ]
    return next((candidate for candidate in names if tree.is_file(candidate)), None)


def training_file(tree: Tree, suffixes: tuple[str, ...]) -> str | None:
    """Return the training list or table in a folder, its ``splits`` or its ``data`` that has a partner."""
    folders = tree.folders()
    for place in (
        "",
        *(folders[name] for name in ("splits", "data") if name in folders),
    ):
        for file in tree.files(place):
            stem, suffix = posixpath.splitext(posixpath.basename(file))
            right = suffix.lower() in suffixes and stem.lower().endswith(TRAIN_WORDS)
            if right and partner_name(tree, file) is not None:
                return file
    return None


def has_train_test(tree: Tree) -> bool:
    """Return whether there are training and test folders; flat ones belong to a list or table beside them."""
    names = split_folders(tree)
    if names is None:
        return False
    return training_file(tree, file_suffixes()) is None or bool(
        Walk(tree).subfolders(names[0])
    )


@register_reader("train-test", fits=has_train_test, rank=50)
def read_train_test(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read ``train/<class>/*`` and ``test/<class>/*``; the test folder may be called val, valid or validation.

    Raises
    ------
    InputError
        If there is no such pair of folders, or a class folder is empty.
    LabelError
        If a class is in the test folder only.
    """
    train, test, others = split_folders(tree) or ("train", "test", [])
    notes = [f"folder {other} left out: {test} is the test set" for other in others]
    return _read_parts(Walk(tree), [train, test], "train-test", notes)


@register_reader("class-folders", fits=lambda tree: True, rank=100)
def read_class_folders(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read one folder per class.

    Raises
    ------
    InputError
        If there are no class folders, if one is empty, or if the folders are data sets
        of their own.
    """
    folders = Walk(tree).subfolders()
    base = ""
    walk = Walk(tree)
    if (
        len(folders) == 1 and folders[0].lower() in TRAIN_WORDS
    ):  # a training folder alone
        base = folders[0]
        folders = Walk(tree).subfolders(folders[0])
        walk.subfolders()  # counts what lies beside it
    if folders and all(
        split_folders(tree.below(posixpath.join(base, folder))) is not None
        for folder in folders
    ):
        raise InputError(
            f"{tree.place()} must be one data set, got several: point to one of {listed(folders)}"
        )
    return _read_parts(walk, [base], "class-folders", [])


def _read_parts(walk: Walk, parts: list[str], layout: str, notes: list[str]) -> Dataset:
    """Return the images of one folder with class folders, or of one for training and one for testing."""
    tree = walk.tree
    cautions: list[str] = []
    found: list[tuple[list[str], list[str]]] = []
    for folders in [_class_folders(walk, part, cautions) for part in parts]:
        files = {folder: walk.images(folder) for folder in folders}
        empty = [folder for folder, names in files.items() if not names]
        if len(empty) == len(files):
            where = f"{listed(empty)} of {tree.place()}{walk.unread_hint()}"
            raise InputError(
                f"class folders must hold at least one image, got none in {where}"
            )
        cautions += (
            [f"class folders without images left out: {listed(empty)}"] if empty else []
        )
        labels = [
            posixpath.basename(folder) for folder, names in files.items() for _ in names
        ]
        found.append(([name for names in files.values() for name in names], labels))
    if len(parts) == 2:
        check_test_classes(found[0][1], found[1][1])
    columns: list[Any] = [
        value for names, labels in found for value in (tree.images(names), labels)
    ]
    said = (*cautions, *walk.cautions())
    return Dataset.of(
        *columns, layout=layout, notes=(*walk.note(), *notes), cautions=said
    )


def _class_folders(walk: Walk, part: str, cautions: list[str]) -> list[str]:
    """Return the class folders in a part; where folders in them have the same names, these may have been meant."""
    names = walk.subfolders(part)
    if not names:
        loose = walk.ignored["images outside class folders"] + sum(walk.unread.values())
        hint = ""
        if loose:
            hint = (
                f" but {loose} images: move them to folders named after their classes"
            )
        raise InputError(
            f"{walk.tree.place(part)} holds no folder{hint}{walk.unread_hint()}. It takes one folder per class, or "
            "train/<class>/ and test/<class>/."
        )
    places = [posixpath.join(part, name) for name in names]
    inner = Counter(
        name
        for place in places
        for name, kind in walk.tree.entries(place)
        if kind == "folder"
    )
    repeated = sorted(
        name for name, count in inner.items() if count > 1 and not is_hidden(name)
    )
    if repeated and 2 * len(repeated) >= len(inner):
        cautions.append(
            f"folders of the same names ({listed(repeated)}) repeat in {listed(names)}, which were taken for the "
            "classes; if the inner ones are, move them up or name their images in a table"
        )
    return places


# -- images without labels -------------------------------------------------------------


def images_below(tree: Tree) -> Dataset:
    """Return all images of a folder or an archive, wherever they lie, with empty labels."""
    walk = Walk(tree)
    names = walk.images()
    if not names:
        raise InputError(
            f"{tree.place()} must hold images, got none{walk.unread_hint()}"
        )
    return Dataset.of(
        tree.images(names), [""] * len(names), cautions=tuple(walk.cautions())
    )
