"""How data are read: the options, and the registry of readers.

A reader registers itself where it is written. Adding one touches its own module and the import of it in
``evergrow.data``; a package of someone else's only has to be imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_choice, check_number, from_mapping

if TYPE_CHECKING:
    from evergrow.data.items import Dataset
    from evergrow.data.sources import Source
    from evergrow.data.storage import Tree

Read: TypeAlias = "Callable[[Tree, str, DataOptions], Dataset | Source]"

ReadT = TypeVar("ReadT", bound="Callable[..., Dataset | Source]")

PARTS = ("train", "test", "all")
TRAIN_WORDS = ("train", "training")
TEST_WORDS = ("test", "testing", "val", "valid", "validation")
_TELLING = ("data", "splits", *TRAIN_WORDS, *TEST_WORDS)  # folders whose files tell how a data set is laid out
_TYPES: dict[str, tuple[Any, str]] = {
    "str": (str, "a string"),
    "bool": (bool, "true or false"),
    "str | os.PathLike[str] | None": ((str, os.PathLike, type(None)), "a path"),
    "Mapping[str, Any]": (Mapping, "values by name"),
}


@dataclass(frozen=True)
class DataOptions:
    """Settings of reading data.

    Parameters
    ----------
    layout : str
        Name of the reader, one of :func:`evergrow.data.list_readers`; ``"auto"`` finds out.
    part : {"train", "test", "all"}
        Which part is read where data have two and only one is wanted.
    labelled : bool
        Whether labels are wanted; without them all images below a folder count, however it is laid out.
    kind : {"", "image", "text"}
        What the samples must be, where a table could give both.
    text_column, image_column, label_column : str
        Columns of tables, and of Hugging Face data sets; empty ones are found by their usual names: ``text``, ``path``,
        ``image``, ``file`` or ``filename``, ``label``. Labels of tars are the field of that name in their ``.json``, or
        their files of that ending if it begins with a dot.
    class_level : int
        How many folders down the folders named after classes are, where every class has a folder: 1 for
        ``<class>/``, 2 for ``<line>/<class>/`` with the same class in several lines. 0 is 1, with a warning where the
        same names repeat one level down.
    root : path-like, optional
        Folder that names are looked for in, and that the paths of a table are relative to.
    test_size : float
        Share of each class that becomes the test part where one is drawn, see :func:`evergrow.data.load_data`; 0 draws
        none.
    seed : int
        Seed of that draw.
    storage : mapping
        Settings of a bucket, as fsspec takes them. Those that may be secret are never written down.

    Examples
    --------
    >>> from evergrow.data import DataOptions
    >>> DataOptions(test_size=0.3).seed
    1993
    >>> DataOptions.from_dict({"test_sise": 0.3})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: data setting must be known, got 'test_sise'; nearest: 'test_size'
    """

    layout: str = "auto"
    part: str = "train"
    labelled: bool = True
    kind: str = ""
    text_column: str = ""
    image_column: str = ""
    label_column: str = ""
    class_level: int = 0
    root: str | os.PathLike[str] | None = None
    test_size: float = 0.2
    seed: int = 1993
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, ("auto", *READERS))
        check_choice("part", self.part, PARTS)
        check_number("test_size", self.test_size, low=0, high=1, high_open=True)
        check_number("seed", self.seed, low=0, high=2**32 - 1, integer=True)
        check_number("class_level", self.class_level, low=0, high=32, integer=True)
        for entry in fields(self):
            value, (kind, wanted) = getattr(self, entry.name), _TYPES.get(str(entry.type), (object, ""))
            if not isinstance(value, kind):
                raise ParameterError(f"{entry.name} must be {wanted}, got {value!r}")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Build the settings from plain values, rejecting unknown keys."""
        return from_mapping(cls, settings, "data setting")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that are not the usual ones as plain values, without those of the storage."""
        values = {**asdict(self), "root": None if self.root is None else os.fspath(self.root)}
        usual = asdict(DataOptions())
        return {name: value for name, value in values.items() if name != "storage" and value != usual[name]}

    @property
    def root_path(self) -> Path | None:
        """The root as a path."""
        return None if self.root is None else Path(self.root)


@dataclass(frozen=True)
class Reader:
    """A way of reading data; see :func:`register_reader`."""

    name: str
    read: Read
    suffixes: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    fits: Callable[[Tree], bool] | None = None
    rank: int = 0

    @property
    def of_folders(self) -> bool:
        """Whether it reads folders."""
        return bool(self.signs) or self.fits is not None

    def fits_folder(self, tree: Tree, names: list[str]) -> bool:
        """Return whether it reads a folder in which, or one level below, files of these names tell the layout."""
        signed = not self.signs or any(name.endswith(self.signs) for name in names)
        return self.of_folders and signed and (self.fits is None or self.fits(tree))


READERS: dict[str, Reader] = {}
DEFAULTS = DataOptions()
"""How data are read where nobody says otherwise."""


def register_reader(name: str, **about: Any) -> Callable[[ReadT], ReadT]:
    """Return a decorator that registers a reader of files or of folders.

    The reader takes a tree of files, the name of a file in it (empty for the folder itself) and the options, and
    returns a :class:`~evergrow.data.Dataset`, or a source that is read by shards.

    Parameters
    ----------
    name : str
        What ``DataOptions(layout=...)`` and ``evergrow data --layout`` call it.
    suffixes : tuple of str
        Endings of files that it reads, in lower case.
    signs : tuple of str
        Endings of files, in lower case, that a folder must hold for it: in itself, in ``data``, ``splits`` and folders
        named after parts, or in its only folder.
    fits : callable, optional
        Tells from a :class:`~evergrow.data.storage.Tree` with such files whether it reads that folder; must be quick.
    rank : int
        Folders are tried from the lowest rank up. Readers of evergrow have 10 (files of telling names) to 100 (one
        folder per class, which fits any folder), so that others come first unless they ask for more.

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
    >>> del READERS["letters"]
    """

    def decorate(read: ReadT) -> ReadT:
        if name in READERS:
            raise ValueError(f"reader of data {name!r} is registered twice")
        READERS[name] = Reader(name, read, **about)
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
    return [reader.name for reader in sorted(READERS.values(), key=lambda each: (each.of_folders, each.rank))]


def reader_of_file(name: str) -> str | None:
    """Return the reader of a file by its ending, or None where it is no data file."""
    lower = name.lower()  # some endings have two dots, such as .tar.gz
    return next((each.name for each in READERS.values() if each.suffixes and lower.endswith(each.suffixes)), None)


def file_suffixes() -> tuple[str, ...]:
    """Return the endings of all data files."""
    return tuple(suffix for reader in READERS.values() for suffix in reader.suffixes)


def reader_of_folder(tree: Tree) -> str:
    """Return the first reader that fits a folder; one folder per class fits any."""
    names = _telling_files(tree)
    readers = sorted(READERS.values(), key=lambda each: each.rank)
    return next(reader.name for reader in readers if reader.fits_folder(tree, names))


def _telling_files(tree: Tree) -> list[str]:
    folders = tree.folders()
    inner = folders.values() if len(folders) == 1 else [folders[name] for name in _TELLING if name in folders]
    return [name.lower() for place in ("", *inner) for name in tree.files(place)]


def read_folder(layout: str, tree: Tree, options: DataOptions) -> Dataset | Source:
    """Return what the reader of a layout reads from a folder; :class:`InputError` where it is no such folder."""
    if not READERS[layout].fits_folder(tree, _telling_files(tree)):
        raise InputError(f"{tree.place()} must be a folder of the layout {layout!r}, got another")
    return READERS[layout].read(tree, "", options)
