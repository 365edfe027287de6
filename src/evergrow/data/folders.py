"""Images in folders: ``train/<class>/*`` and ``test/<class>/*``, or one folder per class."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evergrow.core.errors import InputError
from evergrow.core.image_formats import PluginFormat, is_image, plugin_format
from evergrow.core.wording import hint, setting
from evergrow.data.labelled import LabelledItems, check_test_classes, listed, shown
from evergrow.data.options import DataOptions
from evergrow.data.pairs import training_file
from evergrow.data.readers import file_suffixes, register_tree_layout
from evergrow.data.trees import DiskTree, FileTree

TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")
_SYSTEM = frozenset({"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"})


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is one that people do not see: hidden, or of the system."""
    return name.startswith(".") or name.lower() in _SYSTEM


@dataclass
class Walk:
    """Listing of images below a root, with a count of what was left out.

    Parameters
    ----------
    tree : FileTree
        The files.
    ignored : Counter
        Files left out, by reason.
    unread : Counter
        Images left out because a plugin that reads them is not installed, or none is known.
    """

    tree: FileTree
    ignored: Counter[str] = field(default_factory=Counter)
    unread: Counter[PluginFormat] = field(default_factory=Counter)

    def subfolders(self, folder: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted; images beside them are counted as left out."""
        names = []
        for name, kind in self._entries(folder):
            if kind == "folder":
                names.append(name)
            elif is_image(name):
                self.ignored["images outside class folders"] += 1
            else:
                self._count_other(name)
        return sorted(names)

    def images(self, folder: str) -> list[str]:
        """Return the images in a folder and the folders below it, relative to the root, sorted by name.

        Links are followed; one that leads back to a folder above it is left out. Only folders are asked for their
        status, so that a hundred thousand files cost little more than their names.
        """
        names: list[str] = []
        pending = [(folder, self.tree.above | {self.tree.identity(folder)})]
        while pending:
            current, above = pending.pop()
            for name, kind in self._entries(current):
                path = f"{current}/{name}" if current else name
                if kind == "folder":
                    identity = self.tree.identity(path)
                    if identity in above:
                        self.ignored["links back to a folder above"] += 1
                    else:
                        pending.append((path, above | {identity}))
                elif not is_image(name):
                    self._count_other(name)
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
        parts = ", ".join(f"{shown(reason)}: {count}" for reason, count in sorted(self.ignored.items()))
        return [f"files left out: {sum(self.ignored.values())} ({parts})"]

    def cautions(self) -> list[str]:
        """Return a sentence about every kind of images that was left out because nothing here reads it."""
        return [
            f"{kind.title} images left out: {count}; {kind.remedy}"
            for kind, count in sorted(self.unread.items(), key=lambda entry: entry[0].title)
        ]

    def _entries(self, folder: str) -> Iterator[tuple[str, str]]:
        for name, kind in self.tree.entries(folder):
            if is_hidden(name):
                self.ignored["hidden"] += 1
            else:
                yield name, kind

    def _count_other(self, name: str) -> None:
        kind = plugin_format(name)
        if kind is not None:
            self.unread[kind] += 1
            return
        suffix = os.path.splitext(name)[1].lower()
        self.ignored[f"not images ({suffix or 'no suffix'})"] += 1


# -- which layout -------------------------------------------------------------------------------------------


def split_folders(tree: FileTree) -> tuple[str, str, list[str]] | None:
    """Return the names of the training and test folders and of other test folders, or None where they are not.

    Names are compared without case. A test folder without folders in it (unlabelled images) gives way to a
    validation folder.
    """
    walk = Walk(tree)
    spelled: dict[str, str] = {}
    for name in walk.subfolders():
        if name.lower() in (*TRAIN_FOLDERS, *TEST_FOLDERS):
            if name.lower() in spelled:
                raise InputError(
                    f"{tree.title} must hold one folder called {name.lower()!r}, "
                    f"got {spelled[name.lower()]!r} and {name!r}"
                )
            spelled[name.lower()] = name
    train = [spelled[name] for name in TRAIN_FOLDERS if name in spelled]
    tests = [spelled[name] for name in TEST_FOLDERS if name in spelled]
    if not train or not tests:
        return None
    labelled = [name for name in tests if walk.subfolders(name)] or tests
    return train[0], labelled[0], [name for name in tests if name != labelled[0]]


def unwrapped(root: Path) -> Path:
    """Return the folder itself, or the only folder in it if that one holds a training and a test folder.

    Archives often unpack to ``cub/cub/train``, and VTAB lies in ``vtab-cil/vtab``.
    """
    tree = DiskTree(root)
    if split_folders(tree) is None:
        inner = Walk(tree).subfolders()
        if len(inner) == 1 and split_folders(tree.below(inner[0])) is not None:
            return root / inner[0]
    return root


def _has_train_test(tree: FileTree) -> bool:
    """Return whether there are training and test folders; flat ones belong to a list or table beside them."""
    names = split_folders(tree)
    if names is None:
        return False
    beside = training_file(tree, file_suffixes(paired=True))
    return beside is None or bool(Walk(tree).subfolders(names[0]))


@register_tree_layout("train-test", fits=_has_train_test, rank=50)
def read_train_test(tree: FileTree, options: DataOptions) -> LabelledItems:
    """Read ``train/<class>/*`` and ``test/<class>/*``; the test folder may be called val, valid or validation.

    Raises
    ------
    InputError
        If there is no such pair of folders, or a class folder is empty.
    LabelError
        If a class is in the test folder only.
    """
    names = split_folders(tree)
    if names is None:
        raise InputError(
            f"{tree.title} must hold a folder train and a folder test, val, valid or validation, got neither"
        )
    train_folder, test_folder, others = names
    walk = Walk(tree)
    cautions: list[str] = []
    classes = {part: _class_folders(walk, part, options, cautions) for part in (train_folder, test_folder)}
    for part, folders in classes.items():
        if not folders:
            raise InputError(f"{tree.place(part)} must hold one folder per class, got none")
    check_test_classes({name for name, _ in classes[train_folder]}, {name for name, _ in classes[test_folder]})
    parts = {part: _read_classes(walk, part, classes[part], options, cautions) for part in classes}
    check_test_classes(parts[train_folder][1], set(parts[test_folder][1]))
    notes = walk.note() + [f"folder {name} left out: {test_folder} is the test set" for name in others]
    (train, train_labels), (test, test_labels) = parts[train_folder], parts[test_folder]
    return LabelledItems(
        "train-test",
        tree.images(train),
        train_labels,
        tree.images(test),
        test_labels,
        notes=notes,
        cautions=[*cautions, *walk.cautions()],
    )


@register_tree_layout("class-folders", fits=lambda tree: True, rank=100)
def read_class_folders(tree: FileTree, options: DataOptions) -> LabelledItems:
    """Read one folder per class; the test set is drawn later.

    Raises
    ------
    InputError
        If there are no class folders, if one is empty, or if the folders are data sets of their own.
    """
    walk = Walk(tree)
    base = ""
    folders = walk.subfolders()
    if len(folders) == 1 and folders[0].lower() in TRAIN_FOLDERS:  # a training folder alone: its classes are split
        base = folders[0]
        folders = walk.subfolders(base)
    if not folders:
        raise InputError(_no_folders(walk, base))
    if all(split_folders(tree.below(posixpath.join(base, name))) is not None for name in folders):
        raise InputError(
            f"{tree.title} must be one data set, got a folder of several ({listed(folders)}): point to one of them"
        )
    walk = Walk(tree)  # counts anew: the folders are listed again
    if base:
        walk.subfolders()
    cautions: list[str] = []
    classes = _class_folders(walk, base, options, cautions)
    names, labels = _read_classes(walk, base, classes, options, cautions)
    return LabelledItems(
        "class-folders", tree.images(names), labels, notes=walk.note(), cautions=[*cautions, *walk.cautions()]
    )


def _no_folders(walk: Walk, base: str) -> str:
    """Return the complaint about a folder without folders, with what it holds instead."""
    loose = walk.ignored["images outside class folders"] + sum(walk.unread.values())
    hint = f" but {loose} images: move them to folders named after their classes" if loose else ""
    return (
        f"{walk.tree.place(base)} must hold one folder per class, or train/<class>/ and test/<class>/, got no folder"
        f"{hint}{_unread_hint(walk)}"
    )


def _unread_hint(walk: Walk) -> str:
    return "".join(f"; {caution}" for caution in walk.cautions())


# -- classes ------------------------------------------------------------------------------------------------


def _class_folders(walk: Walk, part: str, options: DataOptions, cautions: list[str]) -> list[tuple[str, str]]:
    """Return the class and the path of every class folder in a part, so many levels down as the options say."""
    places = [""]
    for _ in range(max(options.class_level, 1)):
        places = [
            posixpath.join(place, name) for place in places for name in walk.subfolders(posixpath.join(part, place))
        ]
    if not places and options.class_level > 1:
        raise InputError(
            f"{setting('class_level')} must be a depth at which {walk.tree.place(part)} has folders, got "
            f"{options.class_level}"
        )
    if not options.class_level:
        cautions += _repeated_below(walk.tree, part, places)
    return [(posixpath.basename(place), posixpath.join(part, place)) for place in places]


def _repeated_below(tree: FileTree, part: str, folders: list[str]) -> list[str]:
    """Return a caution where the folders hold folders of the same names, which may be the classes that were meant."""
    inner = Counter(
        name
        for folder in folders
        for name, kind in tree.entries(posixpath.join(part, folder))
        if kind == "folder" and not is_hidden(name)
    )
    repeated = sorted(name for name, count in inner.items() if count > 1)
    if not repeated or 2 * len(repeated) < len(inner):
        return []
    return [
        f"folders of the same names ({listed(repeated)}) repeat in {listed(folders)}: the outer {len(folders)} were "
        f"taken for classes; a class level of 2 takes the inner {len(inner)}, one of 1 says that the outer are meant"
    ]


def _read_classes(
    walk: Walk, part: str, folders: list[tuple[str, str]], options: DataOptions, cautions: list[str]
) -> tuple[list[str], list[str]]:
    names: list[str] = []
    labels: list[str] = []
    empty: list[str] = []
    for label, path in folders:
        files = walk.images(path)
        if not files:
            empty.append(path)
        names += files
        labels += [label] * len(files)
    if empty and not options.allow_empty:
        raise InputError(
            f"class folders must hold at least one image, got none in {listed(empty)} of {walk.tree.title}; "
            f"delete them{hint('allow_empty', ', or go on without them by {}', True)}{_unread_hint(walk)}"
        )
    if not names:
        raise InputError(
            f"{walk.tree.place(part)} must hold images, got none in its {len(folders)} class folders"
            f"{_unread_hint(walk)}"
        )
    if empty:
        cautions.append(f"class folders without images left out: {listed(empty)}")
    return names, labels
