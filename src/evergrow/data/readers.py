"""Registries of readers: layouts of folders, formats of files, and schemes such as ``hf:``.

A reader registers itself where it is written; whatever loads, checks or lists data asks here. Adding one touches its
own module and the import of it in ``evergrow.data``; a package of someone else's only has to be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from evergrow.core.registry import Registry

if TYPE_CHECKING:
    from evergrow.data.features import FeatureSet
    from evergrow.data.labelled import LabelledItems
    from evergrow.data.options import DataOptions
    from evergrow.data.trees import FileTree

FolderRead: TypeAlias = "Callable[[Path, DataOptions], LabelledItems]"
FileRead: TypeAlias = "Callable[[Path, DataOptions], LabelledItems | FeatureSet]"
SchemeRead: TypeAlias = "Callable[[str, DataOptions], LabelledItems]"
TreeFits: TypeAlias = "Callable[[FileTree], bool]"
TreeRead: TypeAlias = "Callable[[FileTree, DataOptions], LabelledItems]"


@dataclass(frozen=True)
class FolderLayout:
    """A way in which a folder can be laid out.

    Parameters
    ----------
    fits : callable
        Tells from a folder whether it is laid out this way.
    read : callable
        Reads such a folder.
    rank : int
        Layouts are tried from the lowest rank up, so that a telling one comes before one that fits any folder.
    in_archive : tuple of callable, optional
        The same two for the files in an archive, where the layout can be read from one as it is.
    """

    fits: Callable[[Path], bool]
    read: FolderRead
    rank: int
    in_archive: tuple[TreeFits, TreeRead] | None = None


@dataclass(frozen=True)
class FileFormat:
    """A format of data files.

    Parameters
    ----------
    suffixes : tuple of str
        Endings of such files, in lower case.
    read : callable
        Reads such a file.
    by_name : {"first", "last", "never"}
        Whether a file is found by its bare name in the search path: before a folder of that name, after it, or not.
    paired : bool
        Whether a training file can have a test file beside it.
    """

    suffixes: tuple[str, ...]
    read: FileRead
    by_name: Literal["first", "last", "never"]
    paired: bool


LAYOUTS: Registry[FolderLayout] = Registry("layout")
FILE_FORMATS: Registry[FileFormat] = Registry("file format")
SCHEMES: Registry[SchemeRead] = Registry("scheme")


def register_layout(name: str, *, fits: Callable[[Path], bool], rank: int = 0) -> Callable[[FolderRead], FolderRead]:
    """Return a decorator that registers the reader of a layout of folders.

    Parameters
    ----------
    name : str
        What ``DataOptions(layout=...)`` and ``evergrow data --layout`` call it.
    fits : callable
        Tells from a folder whether it is laid out this way; must be quick and must not raise.
    rank : int
        Layouts are tried from the lowest rank up. Those of evergrow have 10 (files of telling names) to 100 (one folder
        per class, which fits any folder), so that others come first unless they ask for more.

    Examples
    --------
    >>> from evergrow.core.items import Texts
    >>> from evergrow.data.labelled import LabelledItems
    >>> from evergrow.data.readers import LAYOUTS, register_layout
    >>> @register_layout("letters", fits=lambda folder: (folder / "letters.txt").is_file())
    ... def read_letters(folder, options):
    ...     texts = (folder / "letters.txt").read_text().split()
    ...     return LabelledItems("letters", Texts(tuple(texts)), [text[0] for text in texts])
    >>> "letters" in list_layouts()
    True
    >>> LAYOUTS.remove("letters")
    """

    def decorate(read: FolderRead) -> FolderRead:
        LAYOUTS.register(name)(FolderLayout(fits, read, rank))
        return read

    return decorate


def register_tree_layout(name: str, *, fits: TreeFits, rank: int) -> Callable[[TreeRead], TreeRead]:
    """Return a decorator that registers the reader of a layout of folders, on disk and in archives.

    Parameters
    ----------
    name, rank
        As for :func:`register_layout`.
    fits : callable
        Tells from a :class:`~evergrow.data.trees.FileTree` whether it is laid out this way.
    """
    from evergrow.data.trees import DiskTree

    def decorate(read: TreeRead) -> TreeRead:
        layout = FolderLayout(
            lambda folder: fits(DiskTree(folder)),
            lambda folder, options: read(DiskTree(folder), options),
            rank,
            (fits, read),
        )
        LAYOUTS.register(name)(layout)
        return read

    return decorate


def register_file_format(
    name: str,
    suffixes: tuple[str, ...],
    *,
    by_name: Literal["first", "last", "never"] = "never",
    paired: bool = False,
) -> Callable[[FileRead], FileRead]:
    """Return a decorator that registers the reader of a format of files; see :class:`FileFormat`."""

    def decorate(read: FileRead) -> FileRead:
        FILE_FORMATS.register(name)(FileFormat(suffixes, read, by_name, paired))
        return read

    return decorate


def register_scheme(name: str) -> Callable[[SchemeRead], SchemeRead]:
    """Return a decorator that registers the reader of data sets called ``name:...``."""
    return SCHEMES.register(name)


def list_layouts() -> list[str]:
    """Return the names of all layouts of folders, in the order in which they are tried.

    Examples
    --------
    >>> from evergrow.data import list_layouts
    >>> list_layouts()[-2:]
    ['single-table', 'class-folders']
    """
    return sorted(LAYOUTS, key=lambda name: LAYOUTS[name].rank)


def fitting_layout(folder: Path) -> FolderLayout:
    """Return the first layout that fits a folder."""
    return next(LAYOUTS[name] for name in list_layouts() if LAYOUTS[name].fits(folder))


def file_suffixes(*by_name: str, paired: bool = False) -> tuple[str, ...]:
    """Return the endings of all data files, or of those that are found by name like this, or come in pairs."""
    formats = [FILE_FORMATS[name] for name in FILE_FORMATS]
    return tuple(
        suffix
        for item in formats
        if (not by_name or item.by_name in by_name) and (item.paired or not paired)
        for suffix in item.suffixes
    )


def file_format(path: Path) -> FileFormat | None:
    """Return the format of a file by its ending, or None where it is no data file."""
    lower = path.name.lower()  # some endings have two dots, such as .tar.gz
    return next((FILE_FORMATS[name] for name in FILE_FORMATS if lower.endswith(FILE_FORMATS[name].suffixes)), None)
