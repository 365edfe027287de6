"""Options for reading data, and the registry of readers.

A reader registers itself in its own module. A new reader touches its module and the
imports of ``evergrow.data``; a reader of another package only has to be imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import Registry
from evergrow.core.validation import check_choice, check_integer, check_number

if TYPE_CHECKING:
    from evergrow.data.items import Dataset
    from evergrow.data.shards import Source
    from evergrow.data.storage import Tree

Read: TypeAlias = "Callable[[Tree, str, DataOptions], Dataset | Source]"
"""The function or class of a reader, see :func:`register_reader`."""

ReadT = TypeVar("ReadT", bound="Callable[..., Dataset | Source]")

PARTS = ("train", "test", "all")

# Names of training and test folders, in the order in which they are looked up.
TRAIN_WORDS = ("train", "training")
TEST_WORDS = ("test", "testing", "val", "valid", "validation")
ARCHIVE_SUFFIXES = (
    ".zip",
    ".tar",
    ".tar.gz",
    ".tgz",
    ".tar.bz2",
    ".tbz2",
    ".tar.xz",
    ".txz",
)

_DATA_FOLDERS = ("data", "splits", *TRAIN_WORDS, *TEST_WORDS)
"""Folders whose files show the layout of a data set."""


@dataclass(frozen=True)
class DataOptions:
    """Options for reading data.

    Parameters
    ----------
    layout : str
        Name of the reader, one of :func:`evergrow.data.list_readers`. ``"auto"``
        detects it.
    part : {"train", "test", "all"}
        Part to read if the data has a training and a test part.
    labelled : bool
        Whether labels are required. Without them, all images below a folder are read
        in any layout.
    kind : {"", "image", "text"}
        Kind of samples to read from a table that has both.
    text_column, image_column, label_column : str
        Columns of tables and of Hugging Face data sets. If empty, columns are found by
        their usual names: ``text``, ``path``, ``image``, ``file`` or ``filename``,
        ``label``. For tars, ``label_column`` is the field of the ``.json`` files, or
        the suffix of the label files if it begins with a dot.
    root : path-like, optional
        Folder in which names are looked up, and to which paths in a table are relative.
    test_size : float
        Fraction of each class that is drawn as a test part from data without one, see
        :func:`evergrow.data.load_data`; 0 draws none.
    seed : int
        Seed of this draw.

    Examples
    --------
    >>> from evergrow.data import DataOptions
    >>> DataOptions(test_size=0.3).seed
    1993
    >>> DataOptions(label_column=3)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: label_column must be a string, got 3
    """

    layout: str = "auto"
    part: str = "train"
    labelled: bool = True
    kind: str = ""
    text_column: str = ""
    image_column: str = ""
    label_column: str = ""
    root: str | None = None
    test_size: float = 0.2
    seed: int = 1993

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, ("auto", *READERS))
        check_choice("part", self.part, PARTS)
        check_number("test_size", self.test_size, low=0, high=1, high_open=True)
        check_integer("seed", self.seed, low=0, high=2**32 - 1)
        if isinstance(self.root, os.PathLike):
            object.__setattr__(self, "root", os.fspath(self.root))
        for name in ("kind", "text_column", "image_column", "label_column", "root"):
            value = getattr(self, name)
            is_default = name == "root" and value is None
            if not is_default and not isinstance(value, str):
                raise ParameterError(f"{name} must be a string, got {value!r}")


@dataclass(frozen=True)
class Reader:
    """A registered reader; see :func:`register_reader`."""

    name: str
    read: Read
    suffixes: tuple[str, ...] = ()
    fits: Callable[[Tree], bool] | None = None
    rank: int = 0

    def reads(self, tree: Tree) -> bool:
        """Return whether it reads this folder; a reader of files reads none."""
        return self.fits is not None and self.fits(tree)


READERS: Registry[Reader] = Registry("reader of data")
DEFAULTS = DataOptions()
"""The default options."""


def register_reader(name: str, **about: Any) -> Callable[[ReadT], ReadT]:
    """Return a decorator that registers a reader of files or folders.

    The reader takes a :class:`~evergrow.data.storage.Tree` of files, the name of a file
    in it (empty for the folder itself) and the options. It returns a
    :class:`~evergrow.data.Dataset`, or a source that is read by shards.

    Parameters
    ----------
    name : str
        Name for ``DataOptions(layout=...)`` and ``evergrow data --layout``.
    suffixes : tuple of str
        Suffixes of the files that it reads, in lower case.
    fits : callable, optional
        Function of a :class:`~evergrow.data.storage.Tree` that returns whether the
        reader reads this folder. It must be fast.
    rank : int
        Readers of folders are tried in ascending rank, 0 by default. The
        built-in ranks range from 10 (files with special names) to 100 (one folder per
        class, which fits any folder).

    Examples
    --------
    >>> from evergrow.data import Dataset, list_readers, register_reader
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data.readers import READERS
    >>> @register_reader("letters", suffixes=(".letters",))
    ... def read_letters(tree, name, options):
    ...     texts = tree.text(name).split()
    ...     return Dataset.of(Texts(tuple(texts)), [text[0] for text in texts])
    >>> "letters" in list_readers()
    True
    >>> READERS.remove("letters")
    """

    def decorate(read: ReadT) -> ReadT:
        READERS.register(name)(Reader(name, read, **about))
        return read

    return decorate


def list_readers() -> list[str]:
    """Return the names of all readers.

    Readers of files come first, then readers of folders in the order in which they are
    tried.

    Examples
    --------
    >>> from evergrow.data import list_readers
    >>> list_readers()[-2:]
    ['train-test', 'class-folders']
    """
    readers = sorted(
        READERS.values(), key=lambda reader: (reader.fits is not None, reader.rank)
    )
    return [reader.name for reader in readers]


def reader_of_file(name: str) -> str | None:
    """Return the name of the reader of a file by its suffix, or None if it has none."""
    lower = name.lower()  # a suffix can have two dots, such as .tar.gz
    for reader in READERS.values():
        if reader.suffixes and lower.endswith(reader.suffixes):
            return reader.name
    return None


def file_suffixes() -> tuple[str, ...]:
    """Return the suffixes of all data files."""
    return tuple(suffix for reader in READERS.values() for suffix in reader.suffixes)


def reader_of_folder(tree: Tree) -> str:
    """Return the name of the first reader that fits; the last one fits any folder."""
    readers = sorted(READERS.values(), key=lambda reader: reader.rank)
    return next(reader.name for reader in readers if reader.reads(tree))


def has_files(tree: Tree, suffixes: str | tuple[str, ...]) -> bool:
    """Return whether a folder or a usual subfolder holds files with these suffixes.

    An only subfolder is searched under any name; of several, those named ``data``,
    ``splits``, ``train``, ``test`` and the like.
    """
    folders = tree.folders()
    if len(folders) == 1:
        inner = list(folders.values())
    else:
        inner = [folders[name] for name in _DATA_FOLDERS if name in folders]
    return any(
        name.lower().endswith(suffixes)
        for folder in ("", *inner)
        for name in tree.files(folder)
    )


def read_folder(layout: str, tree: Tree, options: DataOptions) -> Dataset | Source:
    """Read a folder with the reader named ``layout``.

    Raises
    ------
    InputError
        If the folder has another layout.
    """
    reader = READERS[layout]
    if not reader.reads(tree):
        raise InputError(
            f"{tree.display_name()} must be a folder of the layout {layout!r}, "
            "got another"
        )
    return reader.read(tree, "", options)
