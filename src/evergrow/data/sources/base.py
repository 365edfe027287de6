"""What all sources have in common: files at a place, how they are described, and what tells them from others."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError, ParameterError
from evergrow.core.fields import Fields
from evergrow.core.registry import Registry
from evergrow.core.settings import from_mapping
from evergrow.core.validation import check_choice, check_number
from evergrow.core.wording import setting
from evergrow.data.folders import is_hidden
from evergrow.data.places import Place, open_place, public_storage
from evergrow.data.shard import Shard, ShardData
from evergrow.data.sources.patterns import matching_files, part_of_files

SampleKind = Literal["image", "text", "features"]
KINDS = ("image", "text", "features")

PARTS = ("train", "test", "all")
LARGEST_IMAGE = 256 * 2**20
"""Bytes that one image file may have."""


@dataclass(frozen=True)
class SourceOptions:
    """Settings of reading a source.

    Parameters
    ----------
    part : {"train", "test", "all"}
        Which part is read where data come with a training and a test set; data with one set are read whole.
    labelled : bool
        Whether labels are read; without them all images below a folder count, however it is laid out.
    text_column, image_column, feature_column, label_column, name_column : str
        Columns of tables; empty ones are found by their usual names.
    class_level : int
        How many folders down the folders named after classes are; 0 is 1.
    label_suffix : str
        Ending of the files of a tar that hold labels, such as ``"cls"``; empty takes the first there is of ``cls``,
        ``json`` and ``txt``.
    storage : mapping
        Settings of the storage, as fsspec takes them. Those that may be secret are never written down.

    Examples
    --------
    >>> from evergrow.data.sources import SourceOptions
    >>> SourceOptions.from_dict({"label_colum": "y"})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: option of a source must be known, got 'label_colum'; nearest: ...
    """

    part: str = "train"
    labelled: bool = True
    text_column: str = ""
    image_column: str = ""
    feature_column: str = ""
    label_column: str = ""
    name_column: str = ""
    class_level: int = 0
    label_suffix: str = ""
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_choice("part", self.part, PARTS)
        check_number("class_level", self.class_level, low=0, high=32, integer=True)
        if not isinstance(self.labelled, bool):
            raise ParameterError(f"{setting('labelled')} must be true or false, got {self.labelled!r}")
        for name in ("text_column", "image_column", "feature_column", "label_column", "name_column", "label_suffix"):
            if not isinstance(getattr(self, name), str):
                raise ParameterError(f"{setting(name)} must be a string, got {getattr(self, name)!r}")
        if not isinstance(self.storage, Mapping):
            raise ParameterError(f"{setting('storage')} must be values by name, got {type(self.storage).__name__}")

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Self:
        """Build the settings from plain values, rejecting unknown keys."""
        return from_mapping(cls, options, "option of a source")

    def reading(self) -> dict[str, Any]:
        """Return the settings that decide what is read, as plain values, without those of the storage."""
        values = {name: value for name, value in asdict(self).items() if name != "storage"}
        plain = asdict(SourceOptions())
        return {name: value for name, value in values.items() if value != plain[name]}


class FileSource(ABC):
    """A data set in files at one place, read by parts.

    Parameters
    ----------
    place : Place
        The folder.
    pattern : str
        Which files in it: a name, a pattern with ``*``, ``?`` or ``{000..012}``; empty takes all of the format.
    options : SourceOptions
        How they are read.
    kind : str
        What the samples are, where that is known already; empty looks.
    """

    format: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, place: Place, pattern: str, options: SourceOptions, kind: str = "") -> None:
        self.place, self.pattern, self.options = place, pattern, options
        self._known_kind = kind

    @property
    def kind(self) -> str:
        """``"image"``, ``"text"`` or ``"features"``."""
        self._known_kind = self._known_kind or self._look_for_kind()
        return self._known_kind

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block, where samples are features of several; none elsewhere."""
        return ()

    @abstractmethod
    def _look_for_kind(self) -> SampleKind:
        """Return what the samples are."""

    @cached_property
    def files(self) -> dict[str, int]:
        """Names and sizes of the files, sorted by name; the place is asked once."""
        if self.pattern:
            return matching_files(self.place, self.pattern)
        every = self.place.listing(deep=True)
        wanted = {
            name: size
            for name, size in every.items()
            if name.lower().endswith(self.suffixes) and not any(map(is_hidden, name.split("/")))
        }
        if not wanted:
            raise DatasetNotFoundError(
                f"{self.place.title()} must hold files that end in {' or '.join(self.suffixes)}, got none"
            )
        return part_of_files(wanted, self.options.part)

    def readable(self) -> tuple[Self, dict[str, str]]:
        """Return the source without files of which not even the contents can be listed, and those with the reason."""
        found: dict[str, int] = {}
        unreadable: dict[str, str] = {}
        for name, size in self.files.items():
            why = self._of({name: size})._damage()
            if why:
                unreadable[name] = why
            else:
                found[name] = size
        return self._of(found), unreadable

    def _damage(self) -> str:
        """Return why the contents of the files cannot be listed; empty where they can."""
        try:
            for _ in self._parts(2**62, 2**62):
                pass
        except (FileFormatError, InputError) as error:
            return str(error)
        return ""

    def _of(self, files: dict[str, int]) -> Self:
        """Return the source of some of the files alone."""
        part = copy.copy(self)
        part._known_kind = ""
        part.__dict__["files"] = files
        return part

    def describe(self) -> dict[str, Any]:
        """Return plain JSON values from which :func:`source_from` makes the source again; no secret is among them."""
        storage = public_storage(self.options.storage)
        return {
            "format": self.format,
            "address": self.place.address,
            "pattern": self.pattern,
            "kind": self.kind,
            "options": {**self.options.reading(), **({"storage": storage} if storage else {})},
        }

    def identity(self) -> str:
        """Return a hash of names, sizes and how they are read: the same on every machine and at every address."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (self.format, repr(sorted(self.options.reading().items())), *self._marks()):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()

    def _marks(self) -> Iterable[str]:
        """Yield what tells the data from others."""
        return (f"{name}\0{size}" for name, size in self.files.items())

    def shards(self, rows: int, size: int) -> Iterator[Shard]:
        """Yield the shards, each of at most so many rows and, where more than one row fits, so many bytes."""
        check_number("rows", rows, low=1, integer=True)
        check_number("size", size, low=1, integer=True)
        number = -1
        for number, part in enumerate(self._parts(rows, size)):
            yield Shard(number, part.rows, part.size, part.where)
        if number < 0:
            raise InputError(f"{self.place.title(self.pattern)} must hold at least one sample, got none")

    @abstractmethod
    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        """Yield the shards in order, with any number."""

    @abstractmethod
    def read(self, shard: Shard) -> ShardData:
        """Return the samples of a shard; reads no more of the source than that."""


SOURCES: Registry[type[FileSource]] = Registry("format of a source")


def source_from(description: Mapping[str, Any]) -> FileSource:
    """Return the source that a description is of; nothing is listed or read.

    Parameters
    ----------
    description : mapping
        What :meth:`FileSource.describe` returned, on this machine or another.

    Raises
    ------
    FileFormatError
        If it is no such description.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from evergrow.data.sources import open_source, source_from
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(pathlib.Path(folder, "a.npz"), X=np.eye(5, dtype=np.float32), y=np.arange(5))
    ...     source = open_source(folder)
    ...     shards = list(source.shards(rows=2, size=1 << 20))
    ...     read = source_from(source.describe()).read(shards[1])
    >>> len(shards), read.names, read.labels.tolist()
    (3, ('a.npz[2]', 'a.npz[3]'), ['2', '3'])
    """
    given = Fields(description, {}, {}, "description of a source")
    settings = SourceOptions.from_dict(given.mapping("options", default={}))
    name, kind = given.text("format", choices=SOURCES.names()), given.text("kind", choices=("", *KINDS), default="")
    place = open_place(given.text("address"), settings.storage)
    return SOURCES[name](place, given.text("pattern", default=""), settings, kind)


def where_of(shard: Shard) -> Fields:
    """Return checked access to where a shard lies, as its manifest says it."""
    return Fields(shard.where, {}, {}, f"shard {shard.number}")


def class_names(labels: Sequence[Any], names: Mapping[int, str], title: str) -> NDArray[np.str_]:
    """Return labels as class names; integers take the names that the data have for them.

    Raises
    ------
    InputError
        If one is missing, or has no name where others do.
    """
    found = []
    for row, value in enumerate(labels):
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, int) and names:
            if value not in names:
                raise InputError(f"{title}: labels must be among the {len(names)} that it names, got {value}")
            value = names[value]
        text = str(value) if isinstance(value, (str, int)) else ""
        if not text.strip():
            raise InputError(f"{title}: every sample must have a label, got {value!r} in row {row}")
        found.append(text)
    return np.array(found, dtype=np.str_)


def as_features(values: NDArray[Any], title: str, start: int) -> NDArray[Any]:
    """Return finite rows in the precision that they have: half is widened, and integers become floats."""
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.float64)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise InputError(f"{title} must be finite, got NaN or infinity, first in row {start + int(finite.argmin())}")
    return np.ascontiguousarray(values)
