"""Data sets that are read by parts, on disk or in a bucket: the same shards whoever asks, wherever they are read."""

from __future__ import annotations

import bisect
import copy
import glob
import hashlib
import os
import posixpath
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import (
    DatasetNotFoundError,
    EvergrowError,
    FileFormatError,
    InputError,
)
from evergrow.core.record import from_values, to_values
from evergrow.core.validation import check_choice, check_number
from evergrow.data.class_labels import integers
from evergrow.data.folders import images_below, is_hidden, unwrapped
from evergrow.data.items import Dataset, Images, Samples, Stored, Texts, concat_samples
from evergrow.data.readers import (
    DEFAULTS,
    READERS,
    TEST_WORDS,
    DataOptions,
    read_folder,
)
from evergrow.data.storage import LARGEST_IMAGE, Tree

if TYPE_CHECKING:
    from evergrow.data.arrays import FeatureSet

_SHARD_BYTES = 64 * 2**20
_SHARDS_KEPT = 4
_FILES_KEPT = 64
_AT_ONCE = 8
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|val|valid|validation)(?![a-z])"
)


@dataclass(frozen=True)
class Shard:
    """Where a part of a data set lies, which one worker reads at once.

    Parameters
    ----------
    number : int
        Place of the shard in its manifest, from 0.
    rows : int
        Samples in it.
    size : int
        Bytes of it at the source, or 0 where they are not known.
    where : dict
        What its source needs to read it: file, byte range, row groups, rows. Plain JSON
        values.

    Examples
    --------
    >>> from evergrow.data import Shard
    >>> Shard(0, 500, 1 << 20, {"file": "train-000.tar", "start": 0, "stop": 1 << 20}).rows
    500
    """

    number: int
    rows: int
    size: int
    where: dict[str, Any] = field(default_factory=dict)


class Source(ABC):
    """A data set in files that can be read in parts, on any machine that reaches them.

    Parameters
    ----------
    tree : Tree
        The folder.
    pattern : str
        Which files in it: a name, a pattern with ``*`` or ``?``; empty takes all of the
        format.
    options : DataOptions
        How they are read.
    """

    format: ClassVar[str] = ""
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tree: Tree, pattern: str, options: DataOptions) -> None:
        self.tree = tree
        self.pattern = pattern
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name != "_opened"
        }

    def _open(self, name: str) -> Any:
        """Return what :meth:`_open_file` gives for a file; the last ones are kept."""
        opened = self.__dict__.setdefault("_opened", {})
        if name not in opened:
            if len(opened) >= _FILES_KEPT:
                opened.clear()
            opened[name] = self._open_file(name)
        return opened[name]

    def _open_file(self, name: str) -> Any:
        """Return what is known of a file before its rows are read."""
        raise NotImplementedError

    @cached_property
    @abstractmethod
    def kind(self) -> str:
        """What the samples are: ``"image"``, ``"text"`` or ``"features"``."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block, where samples are features of several; none elsewhere."""
        return ()

    @property
    def classes(self) -> Mapping[int, str]:
        """Names of integer labels, where the data have them; they give the order of the classes."""
        return {}

    @cached_property
    def files(self) -> dict[str, int]:
        """Names and sizes of the files of the part, sorted by name; the place is asked once."""
        return part_of_files(self._every_file, self.options.part)

    @cached_property
    def _every_file(self) -> dict[str, int]:
        tree = self.tree
        pattern = self.pattern
        if pattern and (not glob.has_magic(pattern) or tree.is_file(pattern)):
            return {pattern: tree.size(pattern)}
        listing = tree.listing(deep=not pattern or "/" in pattern)
        if pattern:
            names = [name for name in listing if name.count("/") == pattern.count("/")]
            wanted = [name for name in names if PurePosixPath(name).match(pattern)]
        else:
            right = [name for name in listing if name.lower().endswith(self.suffixes)]
            wanted = [
                name for name in right if not any(map(is_hidden, name.split("/")))
            ]
        if not wanted:
            like = pattern or " or ".join(f"*{suffix}" for suffix in self.suffixes)
            raise DatasetNotFoundError(
                f"{tree.display_name()} must hold files like {like}, got none"
            )
        return {name: listing[name] for name in wanted}

    # -- whole -------------------------------------------------------------------------

    def samples(self) -> Samples:
        """Return all samples of the part; images that files hold are referred to, and read when they are wanted."""
        if self.kind != "image":
            return concat_samples(list(self.chunks(4096)))
        store = ShardStore(self)
        found = [self.read(shard, bodies=False) for shard in store.shards]
        labels = [part.labels for part in found if part.labels is not None]
        names = tuple(name for part in found for name in part.names())
        images = Images(tuple(Stored(store, row) for row in range(len(names))), names)
        return Samples(
            "image",
            images,
            labels=np.concatenate(labels) if labels else None,
            lasting=True,
        )

    def chunks(self, rows: int) -> Iterator[Samples]:
        """Yield the samples of the part, at most so many at a time."""
        for shard in self.shards(rows, 2**62):
            yield replace(self.read(shard), lasting=True)

    def _of_part(self, part: str) -> Self:
        other = copy.copy(self)
        other.options = replace(self.options, part=part)
        other.__dict__.pop("files", None)
        return other

    def dataset(self) -> Dataset | FeatureSet:
        """Return the training part, or all, and the test part where there is one."""
        has_test = part_of_files(self._every_file, "test") != self._every_file
        train = self._of_part("train").samples()
        test = None
        if has_test:
            test = self._of_part("test").samples()
        if train.labels is None:
            raise InputError(
                f"{self.tree.display_name(self.pattern)} must have labels; name their column by label_column"
            )
        present = set(train.labels.tolist())
        names = [name for name in self.classes.values() if name in present]
        if not names:
            if test is None or test.labels is None:
                tested = []
            else:
                tested = test.labels.tolist()
            names = list(
                map(str, sorted(integers([*sorted(present), *tested])[: len(present)]))
            )
        return Dataset(train, test, tuple(names), layout=self.format)

    # -- shards ------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return plain JSON values from which :func:`source_from` makes the source again; no secret is among them."""
        kind: Any = self.kind
        return dict(
            to_values(
                _Description(
                    self.format, self.tree.address, self.pattern, kind, self.options
                )
            )
        )

    def identity(self) -> str:
        """Return a hash of names, sizes and how they are read: the same on every machine and at every address."""
        digest = hashlib.blake2b(digest_size=16)
        chosen = sorted(vars(self.options).items() - vars(DEFAULTS).items())
        for text in (self.format, repr(chosen), *self._marks()):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()

    def _marks(self) -> Iterable[str]:
        """Yield what tells the data from others."""
        return (f"{name}\0{size}" for name, size in self.files.items())

    def shards(
        self, rows: int, size: int, unreadable: dict[str, str] | None = None
    ) -> Iterator[Shard]:
        """Yield the shards, each of at most so many rows and, where more than one row fits, so many bytes.

        Parameters
        ----------
        rows, size : int
            Most samples and bytes of a shard.
        unreadable : dict, optional
            Gets the name of every file of which not even the contents can be listed,
            and why; the source then goes on without these files. By default the first
            one raises.
        """
        check_number("rows", rows, low=1, integer=True)
        check_number("size", size, low=1, integer=True)
        number = -1
        for number, part in enumerate(self._parts(rows, size, unreadable)):
            yield replace(part, number=number)
        if number < 0:
            none = f"{self.tree.display_name(self.pattern)} must hold at least one sample, got none"
            raise InputError(next(iter((unreadable or {}).values()), none))

    def _parts(
        self, rows: int, size: int, unreadable: dict[str, str] | None
    ) -> Iterator[Shard]:
        """Yield the shards of all files in order, with any number."""

        def parts_of(name: str) -> tuple[dict[str, Any], list[Shard]] | EvergrowError:
            try:
                return self._file_parts(name, rows, size)
            except (FileFormatError, InputError) as error:
                return error

        first = None
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = (pool.map if self.tree.remote else map)(
                parts_of, self.files
            )  # each of a storage is slow
            for name, parts in zip(self.files, found, strict=True):
                if isinstance(parts, tuple):
                    first = check_same_form(self.tree, first, name, parts[0])
                    yield from parts[1]
                elif unreadable is None:
                    raise parts
                else:
                    unreadable[name] = str(parts)
        self.__dict__["files"] = {
            name: size
            for name, size in self.files.items()
            if name not in (unreadable or {})
        }

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        """Return what all files must have alike, and the shards of a file in order, with any number."""
        raise NotImplementedError

    @abstractmethod
    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the samples of a shard and read no more than that; without bodies, images have no bytes."""


class ShardStore:
    """The images of a source that is read by shards, as a store of images by their rows; the last shards are kept.

    Parameters
    ----------
    source : Source
        Images in files that hold many of them.
    """

    def __init__(self, source: Source, shards: Sequence[Shard] = ()) -> None:
        self.source = source
        self.shards = shards or list(source.shards(1024, _SHARD_BYTES))
        self._ends = np.cumsum([shard.rows for shard in self.shards]).tolist()
        self._read_shard = lru_cache(_SHARDS_KEPT)(
            lambda number: source.read(self.shards[number])
        )
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardStore, (self.source, self.shards)

    def read(self, key: int) -> Any:
        """Return one image."""
        number = bisect.bisect_right(self._ends, key)
        with self._lock:
            found = self._read_shard(number)
        return found.raw_items().raw(
            key - self._ends[number] + self.shards[number].rows
        )

    @cached_property
    def _identity(self) -> tuple[str, str]:
        tree = self.source.tree
        name = next(iter(self.source.files))
        changed = ""
        if tree.on_disk:
            changed = str(os.stat(tree.root / name).st_mtime_ns)
        return self.source.identity(), changed

    def mark(self, key: int, *, times: bool) -> str:
        """Return what tells the source from others, and the row."""
        identity, changed = self._identity
        return f"{identity}\0{changed if times else ''}\0{key}"


@dataclass(frozen=True)
class _Files:
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    labels: tuple[str, ...] | None = None


class ListedSource(Source):
    """Samples that a reader lists: folders, tables, lists, archives, and whatever users of the package register.

    The manifest names every file, so that a worker lists nothing; beyond some ten
    million images, tar or Parquet shards serve better. What are no plain files is
    listed by every worker, once.
    """

    def __init__(
        self, tree: Tree, pattern: str, options: DataOptions, reader: str
    ) -> None:
        super().__init__(tree, pattern, options)
        self.format = reader  # type: ignore[misc]

    @cached_property
    def kind(self) -> str:
        """What the reader lists."""
        return self._samples.kind

    @cached_property
    def _dataset(self) -> Dataset:
        tree = self.tree
        if not self.options.labelled and not self.pattern:
            return images_below(tree)
        if self.pattern:
            found = READERS[self.format].read(tree, self.pattern, self.options)
        else:
            found = read_folder(self.format, unwrapped(tree), self.options)
        if not isinstance(found, Dataset):
            raise InputError(
                f"{tree.display_name(self.pattern)} must be labelled images or texts, got another form of data"
            )
        return found

    def dataset(self) -> Dataset:
        """Return the data as the reader lists them."""
        return self._dataset

    def samples(self) -> Samples:
        """Return all samples of the part."""
        found = self._dataset.part(self.options.part)
        if self.options.labelled:
            return found
        return replace(found, labels=None)

    @cached_property
    def _samples(self) -> Samples:
        return self.samples()

    @cached_property
    def _names(self) -> list[str] | None:
        """Names of the files relative to the place; None where samples are not plain files of it."""
        items = self._samples.items
        if not isinstance(items, Images):
            return None
        if (
            self.tree.on_disk and items.root is not None
        ):  # the images of a list may lie beside its folder
            base = Path(os.path.relpath(items.root, self.tree.address)).as_posix()
            return [
                posixpath.normpath(posixpath.join(base, name)) for name in items.values
            ]
        stores = [
            (value.store, value.key)
            for value in items.values
            if isinstance(value, Stored)
        ]
        names = [
            posixpath.join(store.base, key)
            for store, key in stores
            if isinstance(store, Tree)
        ]
        return names if len(names) == len(items) else None

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of every sample."""
        items = self._samples.items
        if isinstance(items, Texts):
            return [len(text.encode("utf-8", "surrogatepass")) for text in items.texts]
        if self._names is None:
            return [0] * len(self._samples)
        sizes = [self.tree.size(name) for name in self._names]
        for name, size in zip(self._names, sizes, strict=True):
            if size > LARGEST_IMAGE:
                most = f"{LARGEST_IMAGE // 2**20} MiB"
                raise FileFormatError(
                    f"{self.tree.display_name(name)} must be an image of at most {most}, got {size} bytes"
                )
        return sizes

    def _marks(self) -> Iterable[str]:
        if self._names is None:
            yield self._samples.raw_items().stamp(times=False)
        else:
            yield from (
                f"{name}\0{size}"
                for name, size in zip(self._names, self._sizes, strict=True)
            )
        yield from [] if self._samples.labels is None else self._samples.labels.tolist()

    def _parts(
        self, rows: int, size: int, unreadable: dict[str, str] | None
    ) -> Iterator[Shard]:
        labels = self._samples.labels
        for span in spans([(1, weight) for weight in self._sizes], rows, size):
            start = span.first
            stop = span.last
            where: dict[str, Any] = {"start": start, "stop": stop}
            if self._names is not None:
                where = {
                    "files": self._names[start:stop],
                    "sizes": self._sizes[start:stop],
                }
                where |= (
                    {} if labels is None else {"labels": labels[start:stop].tolist()}
                )
            yield Shard(0, stop - start, span.size, where)

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the samples of a shard; files on disk are only named, and opened by whoever decodes them."""
        if "files" not in shard.where:
            start, stop = where_of(shard, start=int, stop=int)
            if stop > len(self._samples) or stop - start != shard.rows:
                title = self.tree.display_name(self.pattern)
                raise FileFormatError(
                    f"{title} must hold {stop} samples, as when shards were made"
                )
            found = self._samples.take(np.arange(start, stop))
            if found.kind != "text":
                return replace(found, row_names=())
            title = self.pattern or "row"
            row_names = tuple(f"{title}[{row}]" for row in range(start, stop))
            return replace(found, row_names=row_names)
        where = from_values(_Files, shard.where, f"shard {shard.number}")
        names = where.files
        sizes = where.sizes
        labels = where.labels
        if (
            not shard.rows
            == len(names)
            == len(sizes)
            == len(names if labels is None else labels)
        ):
            raise FileFormatError(
                f"shard {shard.number} must name {shard.rows} files and labels, got other numbers"
            )
        images = self.tree.images(names)
        if not self.tree.on_disk:
            images = Images(tuple(self.tree.read_all(names, sizes)), names)
        return Samples(
            "image",
            images,
            labels=None if labels is None else np.array(labels, dtype=np.str_),
        )


def make_source(reader: str, tree: Tree, pattern: str, options: DataOptions) -> Source:
    """Return the source that a reader makes of files; nothing is listed or read."""
    read = READERS[reader].read
    if isinstance(read, type) and issubclass(read, Source):
        return read(tree, pattern, options)
    return ListedSource(tree, pattern, options, reader)


def source_from(description: Mapping[str, Any]) -> Source:
    """Return the source that a description is of; nothing is listed or read.

    Parameters
    ----------
    description : mapping
        What :meth:`Source.describe` returned, on this machine or another.

    Raises
    ------
    FileFormatError
        If it is no such description.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from evergrow.data import read, source_from
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(pathlib.Path(folder, "a.npz"), X=np.eye(5, dtype=np.float32), y=np.arange(5))
    ...     source = read(folder)
    ...     shards = list(source.shards(rows=2, size=1 << 20))
    ...     found = source_from(source.describe()).read(shards[1])
    >>> len(shards), found.names(), found.labels.tolist()
    (3, ['a.npz[2]', 'a.npz[3]'], ['2', '3'])
    """
    given = from_values(_Description, description, "description of a source")
    check_choice("format", given.format, READERS)
    source = make_source(
        given.format, Tree(given.address), given.pattern, given.options
    )
    if given.kind:
        source.__dict__["kind"] = given.kind  # no file has to be opened to know it
    return source


@dataclass(frozen=True)
class _Description:
    format: str
    address: str
    pattern: str = ""
    kind: Literal["", "image", "text", "features"] = ""
    options: DataOptions = DEFAULTS


def where_of(shard: Shard, **kinds: type) -> list[Any]:
    """Return where a shard lies, as its manifest says it: names, and numbers from 0."""
    values = [shard.where.get(key) for key in kinds]
    for (key, kind), value in zip(kinds.items(), values, strict=True):
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise FileFormatError(
                f"shard {shard.number}: {key} must be of {kind.__name__}, got {value!r}"
            )
    return values


def class_labels(
    labels: Sequence[Any], names: Mapping[int, str], title: str
) -> NDArray[np.str_]:
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
                raise InputError(
                    f"{title}: labels must be among the {len(names)} that it names, got {value}"
                )
            value = names[value]
        text = ""
        if isinstance(value, (str, int)):
            text = str(value)
        if not text.strip():
            raise InputError(
                f"{title}: every sample must have a label, got {value!r} in row {row}"
            )
        found.append(text)
    return np.array(found, dtype=np.str_)


def as_features(values: NDArray[Any], title: str, start: int = 0) -> NDArray[Any]:
    """Return finite rows in the precision that they have: half is widened, and integers become floats."""
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.float64)
    check_finite(values, title, start)
    return np.ascontiguousarray(values)


def check_finite(values: NDArray[Any], title: str, start: int = 0) -> None:
    """Raise :class:`InputError` where a row has NaN or infinity."""
    for first in range(
        0, len(values), 4096
    ):  # a part at a time: the array may be memory-mapped
        finite = np.isfinite(values[first : first + 4096]).all(axis=1)
        if not finite.all():
            row = start + first + int(finite.argmin())
            raise InputError(
                f"{title} must be finite, got NaN or infinity, first in row {row}"
            )


def check_same_form(
    tree: Tree, first: tuple[str, Any] | None, name: str, form: Any
) -> tuple[str, Any]:
    """Return the first file and its form; raise :class:`FileFormatError` where a later file has another."""
    known, expected = first or (name, form)
    if form != expected:
        pairs = [
            (key, expected[key], form[key])
            for key in form
            if form[key] != expected[key]
        ]
        said = ", ".join(
            f"{key} {was!r} in {known} and {now!r} in {name}" for key, was, now in pairs
        )
        raise FileFormatError(f"{tree.display_name()}: files must be alike, got {said}")
    return known, expected


# -- how rows become shards ------------------------------------------------------------


class Span(NamedTuple):
    """A run of rows in blocks: the first block, the one after the last, rows of the first to skip, rows, bytes."""

    first: int
    last: int
    skip: int
    rows: int
    size: int


def spans(blocks: Sequence[tuple[int, int]], rows: int, size: int) -> Iterator[Span]:
    """Yield runs of rows from blocks of (rows, bytes): whole blocks where they fit, equal parts of one that does not.

    Examples
    --------
    >>> from evergrow.data.shards import spans
    >>> [tuple(span)[:4] for span in spans([(4, 40), (4, 40), (9, 90)], rows=8, size=1000)]
    [(0, 2, 0, 8), (2, 3, 0, 5), (2, 3, 5, 4)]
    """
    start = count = weight = 0
    for number, (n, bytes_) in enumerate(blocks):
        whole = n <= rows and bytes_ <= size
        if count and not (whole and count + n <= rows and weight + bytes_ <= size):
            yield Span(start, number, 0, count, weight)
            count = weight = 0
        if whole:
            start = start if count else number
            count = count + n
            weight = weight + bytes_
            continue
        if not n:
            continue
        most = max(min(rows, size * n // max(bytes_, 1)), 1)
        step = -(-n // -(-n // most))  # as many parts as that takes, of one length
        for skip in range(0, n, step):
            take = min(step, n - skip)
            yield Span(number, number + 1, skip, take, bytes_ * take // n)
    if count:
        yield Span(start, len(blocks), 0, count, weight)


# -- which files -----------------------------------------------------------------------


def part_of_files(files: dict[str, int], part: str) -> dict[str, int]:
    """Return the files of the training or the test set where their names say so, else all of them.

    Examples
    --------
    >>> from evergrow.data.shards import part_of_files
    >>> part_of_files({"test-0.parquet": 5, "train-0.parquet": 9}, "train")
    {'train-0.parquet': 9}
    >>> part_of_files({"a.npz": 5, "b.npz": 9}, "train")
    {'a.npz': 5, 'b.npz': 9}
    """
    words = {name: match[1] for name in files if (match := _SPLIT.search(name.lower()))}
    train = {
        name: size
        for name, size in files.items()
        if words.get(name, "").startswith("train")
    }
    tests = [word for word in TEST_WORDS if word in words.values()]
    if part == "all" or not train or not tests:
        return files
    if part == "train":
        return train
    return {name: size for name, size in files.items() if words.get(name) == tests[0]}
