"""Images named by lists, ``path label`` per line, and lines that are texts."""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.data.folders import find_place, partner_name, training_file
from evergrow.data.items import Dataset, Images, Label, Texts, integers, is_image, listed, shown
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree

LIST_SUFFIXES = (".txt",)


class ImageList(NamedTuple):
    """A list as it is written: its path, the names of images with forward slashes, and their labels."""

    path: Path
    names: list[str]
    labels: Sequence[Label]


@register_reader(
    "lists",
    suffixes=LIST_SUFFIXES,
    fits=lambda tree: tree.on_disk and training_file(tree, LIST_SUFFIXES) is not None,
    marks=LIST_SUFFIXES,
    rank=60,
)
def read_lists(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a training list on disk and, if there is one, the test list; without labels, the lines are texts.

    Raises
    ------
    FileFormatError
        If a list cannot be understood; the message has the line.
    InputError
        If an image is named twice.
    DatasetNotFoundError
        If images are missing; the message says where they were looked for.
    """
    train = name or training_file(tree, LIST_SUFFIXES)
    if train is None:
        raise DatasetNotFoundError(
            f"{tree.place()} must hold a training and a test list, such as train.txt and test.txt"
        )
    if not options.labelled:
        texts = tuple(line.strip() for line in tree.text(train).split("\n") if line.strip())
        if not texts:
            raise FileFormatError(f"{tree.place(train)} must hold at least one text, got none")
        return Dataset.of(Texts(texts), [""] * len(texts), layout="lists")
    if not tree.on_disk:
        raise InputError(f"{tree.place(train)} must be a table such as .csv in a storage or an archive, got a list")
    test = partner_name(tree, train)
    names = [train] if test is None else [train, test]
    return read_image_lists([read_list(tree.root / each) for each in names], options)


def read_image_lists(lists: Sequence[ImageList], options: DataOptions) -> Dataset:
    """Return the images of a training list and, if there is one, of a test list."""
    _check_unique(lists)
    root, drop = _find_root(lists[0], options)
    names = [_located(part, root, drop) for part in lists]
    items = [Images(tuple(part), root=root) for part in names]
    labels = [part.labels for part in lists]
    known = _names_from_folders(names, labels)
    test_part = (items[1], labels[1]) if len(lists) == 2 else (None, ())
    notes = (f"lists: {', '.join(part.path.name for part in lists)}",)
    return Dataset.of(items[0], labels[0], *test_part, names=known, layout="lists", notes=notes)


def read_list(path: Path) -> ImageList:
    r"""Read one list.

    Each line is a path and a label parted by blanks or a tab; a line that ends with the name of an image has no label
    and takes that of its folder. A path may be a pattern such as ``cats/*.jpg``. Lines that begin with ``# `` are
    comments.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.lists import read_list
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "train.txt")
    ...     _ = file.write_text("cat/1.jpg 0\ndog/1.jpg 1\n")
    ...     read_list(file).labels
    [0, 1]
    """
    names, labels = _parse_text(path, Tree(path.parent).text(path.name))
    return image_list(path, names, labels)


def image_list(path: Path, names: Sequence[str], labels: Sequence[Label]) -> ImageList:
    """Return a list whose names have one spelling; it must not be empty."""
    if not names:
        raise FileFormatError(f"{path} must name at least one image, got none")
    return ImageList(path, [posixpath.normpath(name.replace("\\", "/")) for name in names], labels)


def _parse_text(path: Path, body: str) -> tuple[list[str], Sequence[Label]]:
    names: list[str] = []
    labels: list[str] = []
    for number, line in enumerate(body.split("\n"), start=1):
        text = line.strip()
        if not text or text.startswith("# "):
            continue
        name, label = _parse_line(text)
        if not name or not label:
            raise FileFormatError(f"{path} line {number} must be a path and a label, got {text!r}")
        for match in _matches(path, number, name):
            names.append(match)
            labels.append(_folder(match) if is_image(text) else label)
    return names, integers(labels)


def _matches(path: Path, number: int, name: str) -> list[str]:
    """Return the images that a line names: one, or all that its pattern matches beside the list."""
    if not glob.has_magic(name) or (path.parent / name).is_file():
        return [name]
    found = glob.glob(name, root_dir=path.parent, recursive=True)
    images = sorted(match for match in found if is_image(match))
    if not images:
        raise DatasetNotFoundError(f"{path} line {number} must match at least one image, got none for {name!r}")
    return images


def _parse_line(text: str) -> tuple[str, str]:
    if is_image(text):
        return text, PurePosixPath(text.replace("\\", "/")).parent.name
    name, _, label = text.rpartition("\t") if "\t" in text else text.rpartition(" ")
    return name.strip(), label.strip()


# -- where the images are ---------------------------------------------------------------------------------


def _check_unique(lists: Sequence[ImageList]) -> None:
    seen: dict[str, str] = {}
    for part in lists:
        for name in part.names:
            if name in seen:
                where = part.path.name if seen[name] == part.path.name else f"{seen[name]} and {part.path.name}"
                raise InputError(f"images must be named once, got {name!r} twice in {where}")
            seen[name] = part.path.name


def _find_root(part: ImageList, options: DataOptions) -> tuple[Path, int]:
    """Return the folder that the images lie in, and how many leading folders of their names to drop."""
    given, own = options.root_path, part.path.absolute().parent
    bases = [given] if given is not None else [own, *list(own.parents)[:3]]
    folders = [os.fspath(folder) for base in bases for folder in (base, base / "images", base / "data")]
    found = find_place(folders, part.names, os.path.isfile)
    if found is not None:
        return Path(found[0]), found[1]
    raise DatasetNotFoundError(
        f"the images of {part.path} must be on disk, got none of them: looked for {shown(part.names[0])} in "
        f"{', '.join(map(str, bases))} and in images/ and data/ there, also with leading folders dropped; name the "
        "folder they are in by root"
    )


def _located(part: ImageList, root: Path, drop: int) -> list[str]:
    names = ["/".join(name.split("/")[drop:]) or name for name in part.names]
    missing = [name for name in names if not os.path.isfile(root / name)]
    if missing:
        raise DatasetNotFoundError(
            f"the images of {part.path} must be in {root}, "
            f"but {len(missing)} of {len(names)} are not: {listed(missing)}"
        )
    return names


def _names_from_folders(names: Sequence[list[str]], labels: Sequence[Sequence[Label]]) -> dict[int, str]:
    """Return the folder names of integer labels if folders and labels go together one to one."""
    folder_of: dict[int, str] = {}
    for part, codes in zip(names, labels, strict=True):
        for name, label in zip(part, codes, strict=True):
            if not isinstance(label, int) or folder_of.setdefault(label, _folder(name)) != _folder(name):
                return {}
    return folder_of if len(set(folder_of.values())) == len(folder_of) and all(folder_of.values()) else {}


def _folder(name: str) -> str:
    return posixpath.basename(posixpath.dirname(name))
