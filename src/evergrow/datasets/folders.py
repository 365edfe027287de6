"""Images in folders: ``train/<class>/*`` and ``test/<class>/*``, or one folder per class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from evergrow.core.errors import DatasetNotFoundError, InputError
from evergrow.core.items import ImageFiles
from evergrow.core.wording import hint
from evergrow.datasets.labelled import LabelledItems, check_test_classes, listed, shown
from evergrow.datasets.options import DataOptions
from evergrow.datasets.pairs import training_file
from evergrow.datasets.readers import file_suffixes, register_layout

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
)
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")
_SYSTEM = frozenset({"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"})


def is_image(name: str) -> bool:
    """Return whether a file name ends like an image's.

    Examples
    --------
    >>> from evergrow.datasets.folders import is_image
    >>> is_image("a.JPEG"), is_image("labels.txt")
    (True, False)
    """
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


@dataclass
class Walk:
    """Listing of images below a root, with a count of what was left out.

    Parameters
    ----------
    root : Path
        Folder that names are relative to.
    ignored : Counter
        Files left out, by reason.
    """

    root: Path
    ignored: Counter[str] = field(default_factory=Counter)

    def subfolders(self, folder: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted; images beside them are counted as left out."""
        names = []
        for entry in self._entries(folder):
            if _is_folder(entry):
                names.append(entry.name)
            elif is_image(entry.name):
                self.ignored["images outside class folders"] += 1
            else:
                self._count_other(entry.name)
        return sorted(names)

    def images(self, folder: str) -> list[str]:
        """Return the images in a folder and the folders below it, relative to the root, sorted by name.

        Links are followed; one that leads back to a folder above it is left out. Only folders are asked for their
        status, so that a hundred thousand files cost little more than their names.
        """
        names: list[str] = []
        pending = [(folder, self._above | {self._identity(folder)})]
        while pending:
            current, above = pending.pop()
            for entry in self._entries(current):
                path = f"{current}/{entry.name}"
                if _is_folder(entry):
                    identity = self._identity(path)
                    if identity in above:
                        self.ignored["links back to a folder above"] += 1
                    else:
                        pending.append((path, above | {identity}))
                elif not is_image(entry.name):
                    self._count_other(entry.name)
                elif _is_file(entry):
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

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name.lower() in _SYSTEM:
                        self.ignored["hidden"] += 1
                    else:
                        yield entry
        except OSError as error:
            raise DatasetNotFoundError(f"folder must be readable, got {self.root / folder}: {error}") from error

    @cached_property
    def _above(self) -> frozenset[tuple[int, int]]:
        """The root and all folders above it: a link to one of them would bring in other classes, or the whole disk."""
        real = self.root.resolve()
        return frozenset(self._identity(os.fspath(folder)) for folder in (real, *real.parents))

    def _identity(self, folder: str) -> tuple[int, int]:
        try:
            status = os.stat(self.root / folder)
        except OSError as error:
            raise DatasetNotFoundError(f"folder must be readable, got {self.root / folder}: {error}") from error
        return status.st_dev, status.st_ino

    def _count_other(self, name: str) -> None:
        suffix = os.path.splitext(name)[1].lower()
        self.ignored[f"not images ({suffix or 'no suffix'})"] += 1


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


# -- which layout -------------------------------------------------------------------------------------------


def split_folders(root: Path) -> tuple[str, str, list[str]] | None:
    """Return the names of the training and test folders and of other test folders, or None where they are not.

    Names are compared without case. A test folder without folders in it (unlabelled images) gives way to a
    validation folder.
    """
    walk = Walk(root)
    spelled: dict[str, str] = {}
    for name in walk.subfolders():
        if name.lower() in (*TRAIN_FOLDERS, *TEST_FOLDERS):
            if name.lower() in spelled:
                raise InputError(
                    f"{root} must hold one folder called {name.lower()!r}, got {spelled[name.lower()]!r} and {name!r}"
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
    if split_folders(root) is None:
        inner = Walk(root).subfolders()
        if len(inner) == 1 and split_folders(root / inner[0]) is not None:
            return root / inner[0]
    return root


def _has_train_test(folder: Path) -> bool:
    """Return whether there are training and test folders; flat ones belong to a list or table beside them."""
    names = split_folders(folder)
    if names is None:
        return False
    beside = training_file(folder, file_suffixes(paired=True))
    return beside is None or bool(Walk(folder).subfolders(names[0]))


@register_layout("train-test", fits=_has_train_test, rank=50)
def read_train_test(root: Path, options: DataOptions) -> LabelledItems:
    """Read ``train/<class>/*`` and ``test/<class>/*``; the test folder may be called val, valid or validation.

    Raises
    ------
    InputError
        If there is no such pair of folders, or a class folder is empty.
    LabelError
        If a class is in the test folder only.
    """
    names = split_folders(root)
    if names is None:
        raise InputError(f"{root} must hold a folder train and a folder test, val, valid or validation, got neither")
    train_folder, test_folder, others = names
    walk = Walk(root)
    classes = {part: walk.subfolders(part) for part in (train_folder, test_folder)}
    for part, folders in classes.items():
        if not folders:
            raise InputError(f"{root / part} must hold one folder per class, got none")
    check_test_classes(classes[train_folder], classes[test_folder])
    cautions: list[str] = []
    parts = {part: _read_classes(walk, part, classes[part], options, cautions) for part in classes}
    check_test_classes(parts[train_folder][1], set(parts[test_folder][1]))
    notes = walk.note() + [f"folder {name} left out: {test_folder} is the test set" for name in others]
    (train, train_labels), (test, test_labels) = parts[train_folder], parts[test_folder]
    return LabelledItems(
        "train-test",
        ImageFiles(root, tuple(train)),
        train_labels,
        ImageFiles(root, tuple(test)),
        test_labels,
        notes=notes,
        cautions=cautions,
    )


@register_layout("class-folders", fits=lambda folder: True, rank=100)
def read_class_folders(root: Path, options: DataOptions) -> LabelledItems:
    """Read one folder per class; the test set is drawn later.

    Raises
    ------
    InputError
        If there are no class folders, if one is empty, or if the folders are data sets of their own.
    """
    walk = Walk(root)
    base = ""
    folders = walk.subfolders()
    if len(folders) == 1 and folders[0].lower() in TRAIN_FOLDERS:  # a training folder alone: its classes are split
        base = folders[0]
        folders = walk.subfolders(base)
    if not folders:
        loose = walk.ignored["images outside class folders"]
        raise InputError(
            f"{root / base} must hold one folder per class, or train/<class>/ and test/<class>/, got no folder"
            + (f" but {loose} images: move them to folders named after their classes" if loose else "")
        )
    if all(split_folders(root / base / name) is not None for name in folders):
        raise InputError(
            f"{root} must be one data set, got a folder of several ({listed(folders)}): point to one of them"
        )
    cautions: list[str] = []
    names, labels = _read_classes(walk, base, folders, options, cautions)
    return LabelledItems("class-folders", ImageFiles(root, tuple(names)), labels, notes=walk.note(), cautions=cautions)


def _read_classes(
    walk: Walk, part: str, folders: list[str], options: DataOptions, cautions: list[str]
) -> tuple[list[str], list[str]]:
    names: list[str] = []
    labels: list[str] = []
    empty: list[str] = []
    for folder in folders:
        path = f"{part}/{folder}" if part else folder
        files = walk.images(path)
        if not files:
            empty.append(path)
        names += files
        labels += [folder] * len(files)
    if empty and not options.allow_empty:
        raise InputError(
            f"class folders must hold at least one image, got none in {listed(empty)} of {walk.root}; "
            f"delete them{hint('allow_empty', ', or go on without them by {}', True)}"
        )
    if not names:
        raise InputError(f"{walk.root / part} must hold images, got none in its {len(folders)} class folders")
    if empty:
        cautions.append(f"class folders without images left out: {listed(empty)}")
    return names, labels
