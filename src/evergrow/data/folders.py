"""Images in folders: ``train/<class>/*`` and ``test/<class>/*``, or ``<class>/*``."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from evergrow.core.errors import InputError
from evergrow.core.escaping import printable, quote_names
from evergrow.data.class_labels import check_test_classes
from evergrow.data.items import Dataset, is_image, unread_format
from evergrow.data.readers import (
    ARCHIVE_SUFFIXES,
    TEST_WORDS,
    TRAIN_WORDS,
    DataOptions,
    file_suffixes,
    register_reader,
)
from evergrow.data.storage import Tree

_SYSTEM_FOLDERS = frozenset(
    {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)
_ARCHIVES_INSIDE = ("archives inside", "unpack them first")
"""What is left out, and the remedy."""
_OUTSIDE = "images outside class folders"
"""Reason for which images are left out."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden or belongs to the operating system."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def counts_text(counts: Counter[str]) -> str:
    """Return reasons and their counts, sorted: ``"hidden: 2, links: 1"``."""
    return ", ".join(
        f"{printable(reason)}: {count}" for reason, count in sorted(counts.items())
    )


@dataclass
class Walk:
    """Lists images below a folder, and counts the files left out by each call.

    Parameters
    ----------
    tree : Tree
        The files.
    ignored : Counter
        Files left out, by reason.
    unread : Counter
        Images in formats that cannot be read, and archives, by format and remedy.
    """

    tree: Tree
    ignored: Counter[str] = field(default_factory=Counter)
    unread: Counter[tuple[str, str]] = field(default_factory=Counter)

    def subfolders(self, folder: str = "") -> list[str]:
        """Return the sorted names of subfolders, and count all files as left out."""
        names = []
        for name, kind in self._entries(folder):
            if kind == "folder":
                names.append(name)
            elif is_image(name):
                self.ignored[_OUTSIDE] += 1
            else:
                self._count_other(name)
        return sorted(names)

    def images(self, folder: str = "") -> list[str]:
        """Return the sorted paths of all images below a folder, relative to the root.

        Other files are counted as left out. Links to folders are followed once. Links
        to a folder above are not followed, because they would add images of other
        classes. Only folders are checked for links, so listing 100,000 files costs
        little more than reading their names.
        """
        paths: list[str] = []
        visited = {os.path.realpath(self.tree.root / folder)}
        pending = [folder]
        while pending:
            current = pending.pop()
            for name, kind in self._entries(current):
                path = posixpath.join(current, name)
                if kind == "folder":
                    if self._is_loop(path, current, visited):
                        self.ignored["links back to a folder above"] += 1
                    else:
                        pending.append(path)
                elif not is_image(name):
                    self._count_other(name)
                elif kind == "file":
                    paths.append(path)
                else:
                    self.ignored["broken links"] += 1
        paths.sort()
        return paths

    def _is_loop(self, path: str, parent: str, visited: set[str]) -> bool:
        """Return whether a folder is a link to a visited folder or to one above it.

        If it is another link, its target is added to ``visited``.
        """
        if not self.tree.on_disk or not os.path.islink(self.tree.root / path):
            return False
        target = os.path.realpath(self.tree.root / path)
        above = ((self.tree.root / folder).resolve() for folder in (parent, ""))
        if target in visited or any(folder.is_relative_to(target) for folder in above):
            return True
        visited.add(target)
        return False

    def notes(self) -> list[str]:
        """Return a list of one note about the files left out; empty without any."""
        if not self.ignored:
            return []
        total = sum(self.ignored.values())
        return [f"files left out: {total} ({counts_text(self.ignored)})"]

    def cautions(self) -> list[str]:
        """Return a caution about every image format that cannot be read."""
        return [
            f"{title} left out: {count}; {remedy}"
            for (title, remedy), count in sorted(self.unread.items())
        ]

    def unread_hint(self) -> str:
        """Return the cautions as the end of a message."""
        return "".join(f"; {caution}" for caution in self.cautions())

    def _entries(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield name and kind of the visible entries of a folder; count hidden ones."""
        for name, kind in self.tree.entries(folder):
            if is_hidden(name):
                self.ignored["hidden"] += 1
            else:
                yield name, kind

    def _count_other(self, name: str) -> None:
        """Count a file as left out, by its image format or its suffix."""
        unread = unread_format(name)
        if name.lower().endswith(ARCHIVE_SUFFIXES):
            unread = _ARCHIVES_INSIDE
        if unread:
            self.unread[unread] += 1
            return
        suffix = os.path.splitext(name)[1].lower() or "no suffix"
        self.ignored[f"not images ({suffix})"] += 1


# -- detection of the layout -----------------------------------------------------------


def split_folders(tree: Tree) -> tuple[str, str, list[str]] | None:
    """Return the training folder, the test folder and the other test folders.

    Returns None unless there are both. Names are compared case-insensitively. A test
    folder without subfolders, which holds unlabelled images, is passed over if there is
    a validation folder with some.
    """
    walk = Walk(tree)
    by_lower: dict[str, str] = {}
    for name in walk.subfolders():
        lower = name.lower()
        if lower in (*TRAIN_WORDS, *TEST_WORDS):
            other = by_lower.setdefault(lower, name)
            if other != name:
                raise InputError(
                    f"{tree.display_name()} must hold one of the folders {other!r} and "
                    f"{name!r}, got both"
                )
    trains = [by_lower[word] for word in TRAIN_WORDS if word in by_lower]
    tests = [by_lower[word] for word in TEST_WORDS if word in by_lower]
    if not trains or not tests:
        return None
    labelled = [name for name in tests if walk.subfolders(name)]
    test = (labelled or tests)[0]
    return trains[0], test, [name for name in tests if name != test]


def unwrapped(tree: Tree) -> Tree:
    """Return the tree of the only folder if it holds train and test, or else `tree`.

    Archives often unpack to ``cub/cub/train``, and VTAB lies in ``vtab-cil/vtab``.
    """
    if split_folders(tree) is not None:
        return tree
    inner = Walk(tree).subfolders()
    if len(inner) == 1 and split_folders(tree.below(inner[0])) is not None:
        return tree.below(inner[0])
    return tree


def test_file_of(tree: Tree, train: str) -> str | None:
    """Return the existing test file of a training file, or None.

    That of ``x_train.csv`` is ``x_test.csv``, ``x_val.csv`` or the like.
    """
    folder, name = posixpath.split(train)
    stem, suffix = posixpath.splitext(name)
    start = stem.lower().rfind("train")
    if start < 0:
        return None
    word = "training" if stem.lower().startswith("training", start) else "train"
    before = stem[:start]
    after = stem[start + len(word) :]
    for test_word in (*TEST_WORDS, "dev"):
        candidate = posixpath.join(folder, f"{before}{test_word}{after}{suffix}")
        if tree.is_file(candidate):
            return candidate
    return None


def training_file(tree: Tree, suffixes: tuple[str, ...]) -> str | None:
    """Return the training list or table in a folder that has a test file, or None.

    Also searched are the subfolders ``splits`` and ``data``.
    """
    folders = tree.folders()
    inner = [folders[name] for name in ("splits", "data") if name in folders]
    for folder in ("", *inner):
        for file in tree.files(folder):
            stem, suffix = posixpath.splitext(posixpath.basename(file))
            if (
                suffix.lower() in suffixes
                and stem.lower().endswith(TRAIN_WORDS)
                and test_file_of(tree, file) is not None
            ):
                return file
    return None


def has_train_test(tree: Tree) -> bool:
    """Return whether training and test folders are the data set itself.

    If there is also a training list or table, they are only if they hold class folders;
    otherwise they hold the images that it lists.
    """
    names = split_folders(tree)
    if names is None:
        return False
    if training_file(tree, file_suffixes()) is None:
        return True
    return bool(Walk(tree).subfolders(names[0]))


# -- readers ---------------------------------------------------------------------------


@register_reader("train-test", fits=has_train_test, rank=50)
def read_train_test(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read ``train/<class>/*`` and ``test/<class>/*``.

    The test folder can also be called val, valid or validation.

    Raises
    ------
    InputError
        If there are no such folders, or a class folder is empty.
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
        If there are no class folders, one is empty, or the folders are separate data
        sets.
    """
    folders = Walk(tree).subfolders()
    base = ""
    walk = Walk(tree)  # a second one, because _read_parts counts the same files
    if len(folders) == 1 and folders[0].lower() in TRAIN_WORDS:
        base = folders[0]
        folders = Walk(tree).subfolders(base)
        walk.subfolders()  # counts the files outside the training folder
    paths = [posixpath.join(base, folder) for folder in folders]
    if paths and all(split_folders(tree.below(path)) is not None for path in paths):
        raise InputError(
            f"{tree.display_name()} must be one data set, got several: point to one of "
            f"{quote_names(folders)}"
        )
    return _read_parts(walk, [base], "class-folders", [])


def _read_parts(walk: Walk, parts: list[str], layout: str, notes: list[str]) -> Dataset:
    """Return the images in the class folders of one part, or of train and test.

    Parameters
    ----------
    walk : Walk
        The files; its counts become notes and cautions.
    parts : list of str
        Folder of the training part, "" for the root, and of the test part, if any.
    layout : str
        Name of the reader.
    notes : list of str
        Further notes.
    """
    tree = walk.tree
    class_folders = [_class_folders(walk, part) for part in parts]
    doubts = []
    for folders in class_folders:
        doubts += [*_nesting_cautions(tree, folders), *_name_cautions(folders)]
    cautions = list(doubts)
    found = [_images_of(walk, folders) for folders in class_folders]
    for part in found:
        if part.empty:
            empty = quote_names(part.empty)
            cautions.append(f"class folders without images left out: {empty}")
    test_images = None
    test_labels: list[str] = []
    if len(found) == 2:
        test_images = tree.images(found[1].names)
        test_labels = found[1].labels
        check_test_classes(found[0].labels, test_labels)
    return Dataset.of(
        tree.images(found[0].names),
        found[0].labels,
        test_images,
        test_labels,
        layout=layout,
        notes=(*walk.notes(), *notes),
        cautions=(*cautions, *walk.cautions()),
        doubts=tuple(doubts),
    )


class _FolderImages(NamedTuple):
    """Images in class folders with their classes, and the folders without images."""

    names: list[str]
    labels: list[str]
    empty: list[str]


def _images_of(walk: Walk, folders: list[str]) -> _FolderImages:
    """Return the images in class folders; raise :class:`InputError` without any."""
    found = _FolderImages([], [], [])
    for folder in folders:
        images = walk.images(folder)
        found.names.extend(images)
        found.labels.extend([posixpath.basename(folder)] * len(images))
        if not images:
            found.empty.append(folder)
    if not found.names:
        raise InputError(
            "class folders must hold at least one image, got none in "
            f"{quote_names(found.empty)} of {walk.tree.display_name()}"
            f"{walk.unread_hint()}"
        )
    return found


def _class_folders(walk: Walk, part: str) -> list[str]:
    """Return the paths of a part's class folders, or raise :class:`InputError`."""
    names = walk.subfolders(part)
    if names:
        return [posixpath.join(part, name) for name in names]
    loose = walk.ignored[_OUTSIDE] + walk.unread.total()
    loose -= walk.unread[_ARCHIVES_INSIDE]
    hint = ""
    if loose:
        hint = f" but {loose} images: move them to folders named after their classes"
    raise InputError(
        f"{walk.tree.display_name(part)} holds no folder{hint}{walk.unread_hint()}. "
        "It takes one folder per class, or train/<class>/ and test/<class>/."
    )


def _nesting_cautions(tree: Tree, folders: list[str]) -> list[str]:
    """Return a caution if the subfolders of the class folders may be the classes.

    They may be if at least half of their names occur in more than one class folder.
    The list is empty otherwise.
    """
    folders_per_name = Counter(
        name
        for folder in folders
        for name, kind in tree.entries(folder)
        if kind == "folder"
    )
    repeated = sorted(
        name
        for name, n_folders in folders_per_name.items()
        if n_folders > 1 and not is_hidden(name)
    )
    if not repeated or 2 * len(repeated) < len(folders_per_name):
        return []
    class_names = quote_names(map(posixpath.basename, folders))
    return [
        f"subfolders of the same names ({quote_names(repeated)}) repeat in "
        f"{class_names}, which were taken as the classes; if the inner folders are "
        "the classes, move them up or list their images in a table"
    ]


def _name_cautions(folders: list[str]) -> list[str]:
    """Return a caution if class folders are named like parts of a data set.

    These names are train, test and the like. They can also be names of classes.
    """
    names = [posixpath.basename(folder) for folder in folders]
    parts = [name for name in names if name.lower() in (*TRAIN_WORDS, *TEST_WORDS)]
    if not parts:
        return []
    became = "became a class, although this is a usual name"
    if len(parts) > 1:
        became = "became classes, although these are usual names"
    return [
        f"{quote_names(parts)} {became} of a part of the data; if its subfolders are "
        "the classes, point to it instead"
    ]


# -- images without labels -------------------------------------------------------------


def images_below(tree: Tree) -> Dataset:
    """Return all images below a folder or in an archive, with empty labels."""
    walk = Walk(tree)
    names = walk.images()
    if not names:
        raise InputError(
            f"{tree.display_name()} must hold images, got none{walk.unread_hint()}"
        )
    return Dataset.of(
        tree.images(names), [""] * len(names), cautions=tuple(walk.cautions())
    )
