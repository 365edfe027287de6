"""How data are read: the options, and the registry of readers.

A reader registers itself where it is written. Adding one touches its own module and the
import of it in ``evergrow.data``; a package of someone else's only has to be imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import Registry
from evergrow.core.validation import check_choice, check_number

if TYPE_CHECKING:
    from evergrow.data.items import Dataset
    from evergrow.data.shards import Source
    from evergrow.data.storage import Tree

Read: TypeAlias = "Callable[[Tree, str, DataOptions], Dataset | Source]"

ReadT = TypeVar("ReadT", bound="Callable[..., Dataset | Source]")

PARTS = ("train", "test", "all")
TRAIN_WORDS = ("train", "training")
TEST_WORDS = ("test", "testing", "val", "valid", "validation")
_TELLING = (
    "data",
    "splits",
    *TRAIN_WORDS,
    *TEST_WORDS,
)  # folders whose files tell how a data set is laid out


@dataclass(frozen=True)
class DataOptions:
    """Settings of reading data.

    Parameters
    ----------
    layout : str
        Name of the reader, one of :func:`evergrow.data.list_readers`; ``"auto"`` finds
        out.
    part : {"train", "test", "all"}
        Which part is read where data have two and only one is wanted.
    labelled : bool
        Whether labels are wanted; without them all images below a folder count, however
        it is laid out.
    kind : {"", "image", "text"}
        What the samples must be, where a table could give both.
    text_column, image_column, label_column : str
        Columns of tables, and of Hugging Face data sets; empty ones are found by their
        usual names: ``text``, ``path``, ``image``, ``file`` or ``filename``, ``label``.
        Labels of tars are the field of that name in their ``.json``, or their files of
        that ending if it begins with a dot.
    root : path-like, optional
        Folder that names are looked for in, and that the paths of a table are relative
        to.
    test_size : float
        Share of each class that becomes the test part where one is drawn, see
        :func:`evergrow.data.load_data`; 0 draws none.
    seed : int
        Seed of that draw.

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
        check_number("seed", self.seed, low=0, high=2**32 - 1, integer=True)
        if isinstance(self.root, os.PathLike):
            object.__setattr__(self, "root", os.fspath(self.root))
        for name in ("kind", "text_column", "image_column", "label_column", "root"):
            if not isinstance(getattr(self, name), str) and (name, self.root) != (
                "root",
                None,
            ):
                raise ParameterError(
                    f"{name} must be a string, got {getattr(self, name)!r}"
                )


@dataclass(frozen=True)
class Reader:
    """A way of reading data; see :func:`register_reader`."""

    name: str
    read: Read
    suffixes: tuple[str, ...] = ()
    fits: Callable[[Tree], bool] | None = None
    rank: int = 0

    def reads(self, tree: Tree) -> bool:
        """Return whether it reads a folder."""
        return self.fits is not None and self.fits(tree)


READERS: Registry[Reader] = Registry("reader of data")
DEFAULTS = DataOptions()
"""How data are read where nobody says otherwise."""


def register_reader(name: str, **about: Any) -> Callable[[ReadT], ReadT]:
    """Return a decorator that registers a reader of files or of folders.

    The reader takes a tree of files, the name of a file in it (empty for the folder
    itself) and the options, and returns a :class:`~evergrow.data.Dataset`, or a source
    that is read by shards.

    Parameters
    ----------
    name : str
        What ``DataOptions(layout=...)`` and ``evergrow data --layout`` call it.
    suffixes : tuple of str
        Endings of files that it reads, in lower case.
    fits : callable, optional
        Tells from a :class:`~evergrow.data.storage.Tree` whether it reads that folder;
        must be quick.
    rank : int
        Folders are tried from the lowest rank up. Readers of evergrow have 10 (files of
        telling names) to 100 (one folder per class, which fits any folder), so that
        others come first unless they ask for more.

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
    """Return the names of all readers, those of folders last and in the order in which they are tried.

    Examples
    --------
    >>> from evergrow.data import list_readers
    >>> list_readers()[-2:]
    ['train-test', 'class-folders']
    """
    return [
        reader.name
        for reader in sorted(
            READERS.values(), key=lambda each: (each.fits is not None, each.rank)
        )
    ]


def reader_of_file(name: str) -> str | None:
    """Return the reader of a file by its ending, or None where it is no data file."""
    lower = name.lower()  # some endings have two dots, such as .tar.gz
    return next(
        (
            each.name
            for each in READERS.values()
            if each.suffixes and lower.endswith(each.suffixes)
        ),
        None,
    )


def file_suffixes() -> tuple[str, ...]:
    """Return the endings of all data files."""
    return tuple(suffix for reader in READERS.values() for suffix in reader.suffixes)


def reader_of_folder(tree: Tree) -> str:
    """Return the first reader that fits a folder; one folder per class fits any."""
    readers = sorted(READERS.values(), key=lambda each: each.rank)
    return next(reader.name for reader in readers if reader.reads(tree))


def has_files(tree: Tree, suffixes: str | tuple[str, ...]) -> bool:
    """Return whether files end so: in a folder, in ``data``, ``splits`` and parts in it, or in its only folder."""
    folders = tree.folders()
    if len(folders) == 1:
        inner = folders.values()
    else:
        inner = [folders[name] for name in _TELLING if name in folders]
    return any(
        name.lower().endswith(suffixes)
        for place in ("", *inner)
        for name in tree.files(place)
    )


def read_folder(layout: str, tree: Tree, options: DataOptions) -> Dataset | Source:
    """Return what the reader of a layout reads from a folder; :class:`InputError` where it is no such folder."""
    if not READERS[layout].reads(tree):
        raise InputError(
            f"{tree.place()} must be a folder of the layout {layout!r}, got another"
        )
    return READERS[layout].read(tree, "", options)
