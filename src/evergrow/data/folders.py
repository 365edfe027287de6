"""Images in folders: ``train/<class>/*`` and ``test/<class>/*``, one folder per class, and patterns of names."""

from __future__ import annotations

import glob
import os
import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evergrow.core.errors import DatasetNotFoundError, InputError
from evergrow.data.items import (
    Dataset,
    Images,
    PluginFormat,
    check_test_classes,
    is_image,
    listed,
    plugin_format,
    shown,
)
from evergrow.data.readers import DataOptions, file_suffixes, register_reader
from evergrow.data.storage import Tree

TRAIN_WORDS = ("train", "training")
TEST_WORDS = ("test", "testing", "val", "valid", "validation")
_SYSTEM = frozenset({"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"})


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
        Images left out because a plugin that reads them is not installed, or none is known.
    """

    tree: Tree
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
                self.count_other(name)
        return sorted(names)

    def images(self, folder: str = "") -> list[str]:
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
        parts = ", ".join(f"{shown(reason)}: {count}" for reason, count in sorted(self.ignored.items()))
        return [f"files left out: {sum(self.ignored.values())} ({parts})"]

    def cautions(self) -> list[str]:
        """Return a sentence about every kind of images that was left out because nothing here reads it."""
        return [
            f"{kind.title} images left out: {count}; {kind.remedy}"
            for kind, count in sorted(self.unread.items(), key=lambda entry: entry[0].title)
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
        kind = plugin_format(name)
        if kind is not None:
            self.unread[kind] += 1
            return
        suffix = os.path.splitext(name)[1].lower()
        self.ignored[f"not images ({suffix or 'no suffix'})"] += 1


# -- which layout -------------------------------------------------------------------------------------------


def split_folders(tree: Tree) -> tuple[str, str, list[str]] | None:
    """Return the names of the training and test folders and of other test folders, or None where they are not.

    Names are compared without case. A test folder without folders in it (unlabelled images) gives way to a
    validation folder.
    """
    walk = Walk(tree)
    spelled: dict[str, str] = {}
    for name in walk.subfolders():
        lower = name.lower()
        if lower in (*TRAIN_WORDS, *TEST_WORDS) and spelled.setdefault(lower, name) != name:
            raise InputError(
                f"{tree.place()} must hold one folder called {lower!r}, got {spelled[lower]!r} and {name!r}"
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
    names = [posixpath.join(folder, f"{stem[:at]}{word}{stem[end:]}{suffix}") for word in (*TEST_WORDS, "dev")]
    return next((candidate for candidate in names if tree.is_file(candidate)), None)


def training_file(tree: Tree, suffixes: tuple[str, ...]) -> str | None:
    """Return the training list or table in a folder, its ``splits`` or its ``data`` that has a partner."""
    folders = tree.folders()
    for place in ("", *(folders[name] for name in ("splits", "data") if name in folders)):
        for file in tree.files(place):
            stem, suffix = posixpath.splitext(posixpath.basename(file))
            right = suffix.lower() in suffixes and stem.lower().endswith(TRAIN_WORDS)
            if right and partner_name(tree, file) is not None:
                return file
    return None


def _has_train_test(tree: Tree) -> bool:
    """Return whether there are training and test folders; flat ones belong to a list or table beside them."""
    names = split_folders(tree)
    if names is None:
        return False
    return training_file(tree, file_suffixes()) is None or bool(Walk(tree).subfolders(names[0]))


@register_reader("train-test", fits=_has_train_test, rank=50)
def read_train_test(tree: Tree, name: str, options: DataOptions) -> Dataset:
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
            f"{tree.place()} must hold a folder train and a folder test, val, valid or validation, got neither"
        )
    train_folder, test_folder, others = names
    walk = Walk(tree)
    cautions: list[str] = []
    classes = {part: _class_folders(walk, part, options, cautions) for part in (train_folder, test_folder)}
    for part, folders in classes.items():
        if not folders:
            raise InputError(f"{tree.place(part)} must hold one folder per class, got none")
    check_test_classes({label for label, _ in classes[train_folder]}, {label for label, _ in classes[test_folder]})
    parts = {part: _read_classes(walk, part, classes[part], options, cautions) for part in classes}
    (train, train_labels), (test, test_labels) = parts[train_folder], parts[test_folder]
    check_test_classes(train_labels, test_labels)
    left = [f"folder {other} left out: {test_folder} is the test set" for other in others]
    return Dataset.of(
        tree.images(train),
        train_labels,
        tree.images(test),
        test_labels,
        layout="train-test",
        notes=(*walk.note(), *left),
        cautions=(*cautions, *walk.cautions()),
    )


@register_reader("class-folders", fits=lambda tree: True, rank=100)
def read_class_folders(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read one folder per class.

    Raises
    ------
    InputError
        If there are no class folders, if one is empty, or if the folders are data sets of their own.
    """
    walk = Walk(tree)
    base = ""
    folders = walk.subfolders()
    if len(folders) == 1 and folders[0].lower() in TRAIN_WORDS:  # a training folder alone
        base = folders[0]
        folders = walk.subfolders(base)
    if not folders:
        loose = walk.ignored["images outside class folders"] + sum(walk.unread.values())
        hint = f" but {loose} images: move them to folders named after their classes" if loose else ""
        raise InputError(
            f"{tree.place(base)} must hold one folder per class, or train/<class>/ and test/<class>/, got no folder"
            f"{hint}{walk.unread_hint()}"
        )
    if all(split_folders(tree.below(posixpath.join(base, folder))) is not None for folder in folders):
        raise InputError(
            f"{tree.place()} must be one data set, got a folder of several ({listed(folders)}): point to one of them"
        )
    walk = Walk(tree)  # counts anew: the folders are listed again
    if base:
        walk.subfolders()
    cautions: list[str] = []
    names, labels = _read_classes(walk, base, _class_folders(walk, base, options, cautions), options, cautions)
    said = (*cautions, *walk.cautions())
    return Dataset.of(tree.images(names), labels, layout="class-folders", notes=tuple(walk.note()), cautions=said)


def _class_folders(walk: Walk, part: str, options: DataOptions, cautions: list[str]) -> list[tuple[str, str]]:
    """Return the class and the path of every class folder in a part, so many levels down as the options say."""
    places = [""]
    for _ in range(max(options.class_level, 1)):
        places = [
            posixpath.join(place, name) for place in places for name in walk.subfolders(posixpath.join(part, place))
        ]
    if not places and options.class_level > 1:
        raise InputError(
            f"class_level must be a depth at which {walk.tree.place(part)} has folders, got {options.class_level}"
        )
    if not options.class_level:
        cautions += _repeated_below(walk.tree, part, places)
    return [(posixpath.basename(place), posixpath.join(part, place)) for place in places]


def _repeated_below(tree: Tree, part: str, folders: list[str]) -> list[str]:
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
    found = [(label, path, walk.images(path)) for label, path in folders]
    names = [name for _, _, files in found for name in files]
    labels = [label for label, _, files in found for _ in files]
    empty = [path for _, path, files in found if not files]
    if empty and not options.allow_empty:
        raise InputError(
            f"class folders must hold at least one image, got none in {listed(empty)} of {walk.tree.place()}; "
            f"delete them, or go on without them by allow_empty{walk.unread_hint()}"
        )
    if not names:
        raise InputError(
            f"{walk.tree.place(part)} must hold images, got none in its {len(folders)} class folders"
            f"{walk.unread_hint()}"
        )
    if empty:
        cautions.append(f"class folders without images left out: {listed(empty)}")
    return names, labels


# -- images without labels, and patterns ----------------------------------------------------------------------


def images_below(tree: Tree) -> tuple[Images, list[str]]:
    """Return all images of a folder or an archive, wherever they lie, and what cannot be read here."""
    walk = Walk(tree)
    names = walk.images()
    if not names:
        raise InputError(f"{tree.place()} must hold images, got none{walk.unread_hint()}")
    return tree.images(names), walk.cautions()


def is_pattern(text: str) -> bool:
    """Return whether a name is a pattern, or several as in ``$PATH``, and no file or folder.

    Examples
    --------
    >>> from evergrow.data.folders import is_pattern
    >>> is_pattern("photos/*/*.jpg"), is_pattern("photos")
    (True, False)
    """
    return glob.has_magic(text) and not os.path.exists(text)


def patterns_of(text: str) -> list[str]:
    """Return the patterns in a name: one, or several with a colon between (a semicolon on Windows).

    Examples
    --------
    >>> from evergrow.data.folders import patterns_of
    >>> patterns_of("a/*.jpg:b/*.jpg"), patterns_of("10:30/*.jpg")
    (['a/*.jpg', 'b/*.jpg'], ['10:30/*.jpg'])
    """
    pieces = text.split(os.pathsep)
    return pieces if all(map(glob.has_magic, pieces)) else [text]


@register_reader("patterns")
def read_patterns(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read the images on disk that patterns name; the folder that an image is in is its class.

    Raises
    ------
    DatasetNotFoundError
        If a pattern matches no image.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat/1.jpg", "dog/1.jpg", "dog/notes.txt"):
    ...         pathlib.Path(folder, name).parent.mkdir(exist_ok=True)
    ...         _ = pathlib.Path(folder, name).write_bytes(b"x")
    ...     read(f"{folder}/*/*").dataset().train.labels.tolist()
    ['cat', 'dog']
    """
    patterns = patterns_of(name)
    found: set[str] = set()
    walk = Walk(tree)
    for pattern in patterns:
        files = [file for file in glob.iglob(pattern, recursive=True) if os.path.isfile(file)]
        images = {os.path.abspath(file) for file in files if is_image(file)}
        if not images:
            raise DatasetNotFoundError(f"pattern must match at least one image, got none for {pattern!r}")
        for file in files:
            if not is_image(file):
                walk.count_other(file)
        found |= images
    root = Path(os.path.commonpath([os.path.dirname(file) for file in found]))
    if all(os.path.dirname(file) == os.fspath(root) for file in found):
        root = root.parent  # one folder: it is the class, and its name must be in the names
    names = sorted(Path(file).relative_to(root).as_posix() for file in found)
    notes = (f"patterns: {listed(patterns)}; the folder of an image is its class", *walk.note())
    labels = [posixpath.basename(posixpath.dirname(file)) or root.name for file in names]
    images_found = Images(tuple(names), root=root)
    return Dataset.of(images_found, labels, layout="patterns", notes=notes, cautions=tuple(walk.cautions()))
