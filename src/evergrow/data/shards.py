"""Data sets that are read in shards, on disk or in a bucket.

The shards of a data set are the same on every machine.
"""

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
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from typing_extensions import Self

from evergrow.core.errors import (
    DatasetNotFoundError,
    EvergrowError,
    FileFormatError,
    InputError,
)
from evergrow.core.record import from_values, to_values
from evergrow.core.validation import check_choice, check_integer
from evergrow.data.class_labels import as_integers
from evergrow.data.folders import images_below, is_hidden, unwrapped
from evergrow.data.items import (
    Dataset,
    Images,
    Samples,
    StoredImage,
    Texts,
    concat_samples,
)
from evergrow.data.readers import (
    DEFAULTS,
    READERS,
    TEST_WORDS,
    DataOptions,
    read_folder,
)
from evergrow.data.storage import LARGEST_IMAGE, Tree

_SHARD_BYTES = 64 * 2**20
"""Bytes of a shard from which single images are read."""

_CACHED_SHARDS = 4
_CACHED_FILES = 64
_PARALLEL_REQUESTS = 8
"""Files of a remote storage that are listed at a time."""

_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|val|valid|validation)(?![a-z])"
)
"""A word in a file name that says to which part the file belongs."""


@dataclass(frozen=True)
class Shard:
    """A part of a data set that one worker reads at once.

    Parameters
    ----------
    number : int
        Index of the shard in its manifest.
    rows : int
        Number of samples.
    size : int
        Size at the source in bytes, or 0 if unknown.
    where : dict
        Location of the samples, as JSON values. Each class of sources writes its own
        keys (such as ``file``, ``start`` and ``stop``) and reads them again.

    Examples
    --------
    >>> from evergrow.data import Shard
    >>> where = {"file": "train-000.tar", "start": 0, "stop": 1 << 20}
    >>> Shard(0, 500, 1 << 20, where).rows
    500
    """

    number: int
    rows: int
    size: int
    where: dict[str, Any] = field(default_factory=dict)


class Source(ABC):
    """A data set in files that is read in shards, on any machine that has access.

    Subclasses set ``format``, the name of the reader, and ``suffixes`` of the files.
    They define ``kind``, ``read`` and ``_file_parts``, and ``_open_file`` if they use
    ``_open``. Nothing is listed or read until it is needed; lists of files are kept.

    Parameters
    ----------
    tree : Tree
        Folder of the files.
    pattern : str
        Files to read: a name, or a pattern with ``*`` or ``?``; "" reads all files of
        the format.
    options : DataOptions
        How to read them.
    """

    format: ClassVar[str] = ""
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tree: Tree, pattern: str, options: DataOptions) -> None:
        self.tree = tree
        self.pattern = pattern
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        # Open files cannot be sent to another process.
        return {
            name: value for name, value in self.__dict__.items() if name != "_opened"
        }

    def _open(self, name: str) -> Any:
        """Return the result of :meth:`_open_file`, from a cache of recent files."""
        opened = self.__dict__.setdefault("_opened", {})
        if name not in opened:
            if len(opened) >= _CACHED_FILES:
                opened.clear()
            opened[name] = self._open_file(name)
        return opened[name]

    def _open_file(self, name: str) -> Any:
        """Open a file and read its header or footer."""
        raise NotImplementedError

    @cached_property
    @abstractmethod
    def kind(self) -> str:
        """Kind of the samples: ``"image"``, ``"text"`` or ``"features"``."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block of features; empty for a single block."""
        return ()

    @property
    def classes(self) -> Mapping[int, str]:
        """Names of integer labels in the order of the classes; can be empty."""
        return {}

    @cached_property
    def files(self) -> dict[str, int]:
        """Names and sizes of the files of the selected part, sorted by name."""
        return part_of_files(self._every_file, self.options.part)

    @cached_property
    def _every_file(self) -> dict[str, int]:
        """Names and sizes of the files of all parts."""
        tree = self.tree
        pattern = self.pattern
        if pattern and (not glob.has_magic(pattern) or tree.is_file(pattern)):
            return {pattern: tree.size(pattern)}
        listing = tree.listing(deep=not pattern or "/" in pattern)
        if pattern:
            depth = pattern.count("/")
            wanted = [
                name
                for name in listing
                if name.count("/") == depth and PurePosixPath(name).match(pattern)
            ]
        else:
            wanted = [
                name
                for name in listing
                if name.lower().endswith(self.suffixes)
                and not any(map(is_hidden, name.split("/")))
            ]
        if not wanted:
            expected = pattern or " or ".join(f"*{suffix}" for suffix in self.suffixes)
            raise DatasetNotFoundError(
                f"{tree.display_name()} must hold files like {expected}, got none"
            )
        return {name: listing[name] for name in wanted}

    # -- all samples -------------------------------------------------------------------

    def samples(self) -> Samples:
        """Return all samples of the selected part.

        Images are read on use, texts and features at once.
        """
        if self.kind != "image":
            return concat_samples(list(self.chunks(4096)))
        store = ShardStore(self)
        found = [self.read(shard, bodies=False) for shard in store.shards]
        labels = [part.labels for part in found if part.labels is not None]
        names = tuple(name for part in found for name in part.names())
        stored = tuple(StoredImage(store, row) for row in range(len(names)))
        return Samples(
            "image",
            Images(stored, names),
            labels=np.concatenate(labels) if labels else None,
            lasting=True,
        )

    def chunks(self, rows: int) -> Iterator[Samples]:
        """Yield the samples of the selected part, at most ``rows`` at a time."""
        for shard in self.shards(rows, 2**62):
            yield replace(self.read(shard), lasting=True)

    def _with_part(self, part: str) -> Self:
        """Return a copy of the source with another part selected."""
        other = copy.copy(self)
        other.options = replace(self.options, part=part)
        other.__dict__.pop("files", None)
        return other

    def dataset(self) -> Dataset:
        """Return the training part and the test part, or all samples as one part.

        Samples without labels raise :class:`InputError`.
        """
        has_test = part_of_files(self._every_file, "test") != self._every_file
        train = self._with_part("train").samples()
        test = self._with_part("test").samples() if has_test else None
        if train.labels is None:
            raise InputError(
                f"{self.tree.display_name(self.pattern)} must have labels; name their "
                "column by label_column"
            )
        present = set(train.labels.tolist())
        class_names = [name for name in self.classes.values() if name in present]
        if not class_names:
            test_labels: list[str] = []
            if test is not None and test.labels is not None:
                test_labels = test.labels.tolist()
            class_names = _sorted_classes(present, test_labels)
        return Dataset(train, test, tuple(class_names), layout=self.format)

    # -- shards ------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return plain JSON values for :func:`source_from`, without secrets."""
        kind: Any = self.kind
        description = _Description(
            self.format, self.tree.address, self.pattern, kind, self.options
        )
        return dict(to_values(description))

    def identity(self) -> str:
        """Return a hash of file names, sizes and options.

        It is the same on every machine and at every address.
        """
        digest = hashlib.blake2b(digest_size=16)
        chosen = sorted(vars(self.options).items() - vars(DEFAULTS).items())
        for text in (self.format, repr(chosen), *self._marks()):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()

    def _marks(self) -> Iterable[str]:
        """Yield texts that together identify the data: names and sizes of files."""
        return (f"{name}\0{size}" for name, size in self.files.items())

    def shards(
        self, rows: int, size: int, unreadable: dict[str, str] | None = None
    ) -> Iterator[Shard]:
        """Yield the shards of the selected part in order.

        Parameters
        ----------
        rows, size : int
            Maximum number of samples and bytes of a shard. A shard of one sample can be
            larger than ``size``.
        unreadable : dict, optional
            Receives name and error of every file whose contents cannot be listed. At
            the end, these files are left out of :attr:`files`. By default the first one
            raises.

        Raises
        ------
        InputError
            If there is no sample.
        FileFormatError
            If a file is damaged, or has another form than the first one.
        """
        check_integer("rows", rows)
        check_integer("size", size)
        number = -1
        for number, part in enumerate(self._parts(rows, size, unreadable)):
            yield replace(part, number=number)
        if number < 0:
            if unreadable:
                raise InputError(next(iter(unreadable.values())))
            title = self.tree.display_name(self.pattern)
            raise InputError(f"{title} must hold at least one sample, got none")

    def _parts(
        self, rows: int, size: int, unreadable: dict[str, str] | None
    ) -> Iterator[Shard]:
        """Yield the shards of all files in order, not yet numbered.

        ``unreadable`` and its effect on ``files`` are those of :meth:`shards`.
        """

        def parts_of(name: str) -> tuple[dict[str, Any], list[Shard]] | EvergrowError:
            # An error is returned, so that the other files are listed, too.
            try:
                return self._file_parts(name, rows, size)
            except (FileFormatError, InputError) as error:
                return error

        first = None
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            # Requests to a remote storage are slow, so they are sent in parallel.
            map_files = pool.map if self.tree.remote else map
            for name, parts in zip(
                self.files, map_files(parts_of, self.files), strict=True
            ):
                if isinstance(parts, tuple):
                    form, shards = parts
                    first = check_same_form(self.tree, first, name, form)
                    yield from shards
                elif unreadable is None:
                    raise parts
                else:
                    unreadable[name] = str(parts)
        if unreadable:
            self.files = {
                name: n_bytes
                for name, n_bytes in self.files.items()
                if name not in unreadable
            }

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        """Return the form and the shards of a file, not yet numbered.

        The form is JSON values by name that all files must share, such as the length of
        feature vectors; see :func:`check_same_form`. ``rows`` and ``size`` are those
        of :meth:`shards`.
        """
        raise NotImplementedError

    @abstractmethod
    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Read the samples of a shard, and only these.

        Without ``bodies``, images are returned without their bytes.
        """


class ShardStore:
    """A store of the images in shards, see :class:`~evergrow.data.items.StoredImage`.

    A key is the row of an image in all shards. The last shards that were read are kept.

    Parameters
    ----------
    source : Source
        Images in files that hold many of them.
    shards : sequence of Shard
        Shards of the source; all by default.
    """

    def __init__(self, source: Source, shards: Sequence[Shard] = ()) -> None:
        self.source = source
        self.shards = shards or list(source.shards(1024, _SHARD_BYTES))
        self._ends = np.cumsum([shard.rows for shard in self.shards]).tolist()
        self._read_shard = lru_cache(_CACHED_SHARDS)(
            lambda number: source.read(self.shards[number])
        )
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardStore, (self.source, self.shards)

    def read(self, key: int) -> Any:
        """Return one image."""
        number = bisect.bisect_right(self._ends, key)
        with self._lock:
            samples = self._read_shard(number)
        first = self._ends[number] - self.shards[number].rows
        return samples.raw_items().raw(key - first)

    @cached_property
    def _identity(self) -> tuple[str, str]:
        """Identity of the source, and when its first file was modified, if on disk."""
        tree = self.source.tree
        name = next(iter(self.source.files))
        changed = ""
        if tree.on_disk:
            changed = str(os.stat(tree.root / name).st_mtime_ns)
        return self.source.identity(), changed

    def mark(self, key: int, *, times: bool) -> str:
        """Return a text that identifies an image by its source and row.

        With ``times``, it changes when the first file is modified.
        """
        identity, changed = self._identity
        return f"{identity}\0{changed if times else ''}\0{key}"


@dataclass(frozen=True)
class _Files:
    """Location of a shard of image files: names, sizes and labels."""

    files: tuple[str, ...]
    sizes: tuple[int, ...]
    labels: tuple[str, ...] | None = None


class ListedSource(Source):
    """Samples that a reader lists: of folders, tables, archives and the like.

    The shards name every plain file, so that a worker lists nothing. Data in archives
    and tables of texts is listed by every worker, once. For more than about ten million
    images, tar or Parquet files are better.
    """

    def __init__(
        self, tree: Tree, pattern: str, options: DataOptions, reader: str
    ) -> None:
        super().__init__(tree, pattern, options)
        self.format = reader  # type: ignore[misc]

    @cached_property
    def kind(self) -> str:
        """Kind of the listed samples."""
        return self._samples.kind

    @cached_property
    def _dataset(self) -> Dataset:
        """The data set that the reader lists, or all images without labels."""
        tree = self.tree
        if not self.options.labelled and not self.pattern:
            return images_below(tree)
        if self.pattern:
            found = READERS[self.format].read(tree, self.pattern, self.options)
        else:
            found = read_folder(self.format, unwrapped(tree), self.options)
        if not isinstance(found, Dataset):
            raise InputError(
                f"{tree.display_name(self.pattern)} must be a listed data set, "
                "got a source of shards"
            )
        return found

    def dataset(self) -> Dataset:
        """Return all parts that the reader lists, with notes and cautions."""
        return self._dataset

    def samples(self) -> Samples:
        """Return all samples of the selected part."""
        found = self._dataset.part(self.options.part)
        if self.options.labelled:
            return found
        return replace(found, labels=None)

    @cached_property
    def _samples(self) -> Samples:
        """The samples of the selected part."""
        return self.samples()

    @cached_property
    def _names(self) -> list[str] | None:
        """Names of the files relative to the tree; None unless all are plain files."""
        items = self._samples.items
        if not isinstance(items, Images):
            return None
        if self.tree.on_disk and items.root is not None:
            # A list can name images outside of its own folder.
            relative = os.path.relpath(items.root, self.tree.address)
            base = Path(relative).as_posix()
            return [
                posixpath.normpath(posixpath.join(base, name)) for name in items.values
            ]
        names = [
            posixpath.join(value.store.base, value.key)
            for value in items.values
            if isinstance(value, StoredImage) and isinstance(value.store, Tree)
        ]
        return names if len(names) == len(items) else None

    @cached_property
    def _sizes(self) -> list[int]:
        """Size of every sample in bytes; 0 if unknown."""
        items = self._samples.items
        if isinstance(items, Texts):
            return [len(text.encode("utf-8", "surrogatepass")) for text in items.texts]
        if self._names is None:
            return [0] * len(self._samples)
        sizes = [self.tree.size(name) for name in self._names]
        for name, size in zip(self._names, sizes, strict=True):
            if size > LARGEST_IMAGE:
                raise FileFormatError(
                    f"{self.tree.display_name(name)} must be an image of at most "
                    f"{LARGEST_IMAGE // 2**20} MiB, got {size} bytes"
                )
        return sizes

    def _marks(self) -> Iterable[str]:
        """Yield names and sizes of files, or a stamp of other samples, and labels."""
        features = self._samples.features
        if features is not None:
            yield hashlib.blake2b(features.tobytes()).hexdigest()
        elif self._names is None:
            yield self._samples.raw_items().stamp(times=False)
        else:
            for name, size in zip(self._names, self._sizes, strict=True):
                yield f"{name}\0{size}"
        if self._samples.labels is not None:
            yield from self._samples.labels.tolist()

    def _parts(
        self, rows: int, size: int, unreadable: dict[str, str] | None
    ) -> Iterator[Shard]:
        """Yield the shards: names of plain files, or a range of the listed samples."""
        labels = self._samples.labels
        for span in spans([(1, weight) for weight in self._sizes], rows, size):
            rows_of = slice(span.first, span.last)
            where: dict[str, Any] = {"start": span.first, "stop": span.last}
            if self._names is not None:
                where = {"files": self._names[rows_of], "sizes": self._sizes[rows_of]}
                if labels is not None:
                    where["labels"] = labels[rows_of].tolist()
            yield Shard(0, span.last - span.first, span.size, where)

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the samples of a shard.

        Files on disk are not opened; remote files are fetched. ``bodies`` has no
        effect.
        """
        if "files" not in shard.where:
            return self._read_range(shard)
        where = from_values(_Files, shard.where, f"shard {shard.number}")
        names = where.files
        n_labels = len(names) if where.labels is None else len(where.labels)
        if not shard.rows == len(names) == len(where.sizes) == n_labels:
            raise FileFormatError(
                f"shard {shard.number} must name {shard.rows} files and labels, "
                "got other numbers"
            )
        images = self.tree.images(names)
        if not self.tree.on_disk:
            images = Images(tuple(self.tree.read_all(names, where.sizes)), names)
        labels = None
        if where.labels is not None:
            labels = np.array(where.labels, dtype=np.str_)
        return Samples("image", images, labels=labels)

    def _read_range(self, shard: Shard) -> Samples:
        """Return the samples of a shard that is a range of the listed samples."""
        start, stop = where_of(shard, start=int, stop=int)
        if stop > len(self._samples) or stop - start != shard.rows:
            raise FileFormatError(
                f"{self.tree.display_name(self.pattern)} must hold {stop} samples, "
                "as when shards were made"
            )
        found = self._samples.take(np.arange(start, stop))
        row_names: tuple[str, ...] = ()
        if found.kind == "text":
            title = self.pattern or "row"
            row_names = tuple(f"{title}[{row}]" for row in range(start, stop))
        return replace(found, row_names=row_names)


def make_source(reader: str, tree: Tree, pattern: str, options: DataOptions) -> Source:
    """Return the source of the reader named ``reader``; nothing is listed or read.

    Parameters
    ----------
    reader : str
        Name of a registered reader: a subclass of Source, or a function whose data set
        becomes a :class:`ListedSource`.
    tree : Tree
        Folder of the files.
    pattern : str
        A file, a pattern, or "" for the folder.
    options : DataOptions
        How to read them.
    """
    read = READERS[reader].read
    if isinstance(read, type) and issubclass(read, Source):
        return read(tree, pattern, options)
    return ListedSource(tree, pattern, options, reader)


def source_from(description: Mapping[str, Any]) -> Source:
    """Return the source of a description; nothing is listed or read.

    Parameters
    ----------
    description : mapping
        Result of :meth:`Source.describe`, on this machine or another.

    Raises
    ------
    FileFormatError
        If the description is malformed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from evergrow.data import read, source_from
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.npz")
    ...     np.savez(path, X=np.eye(5, dtype=np.float32), y=np.arange(5))
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
        source.kind = given.kind  # so that no file has to be opened
    return source


@dataclass(frozen=True)
class _Description:
    """Plain values that describe a source."""

    format: str
    address: str
    pattern: str = ""
    kind: Literal["", "image", "text", "features"] = ""
    options: DataOptions = DEFAULTS


def where_of(shard: Shard, **kinds: type) -> list[Any]:
    """Return values of the location of a shard, in the order of the arguments.

    Each argument is a key and its type. A missing key, another type or a negative
    number raises :class:`FileFormatError`.
    """
    values = []
    for key, kind in kinds.items():
        value = shard.where.get(key)
        is_negative = isinstance(value, int) and value < 0
        if type(value) is not kind or is_negative:
            raise FileFormatError(
                f"shard {shard.number}: {key} must be of {kind.__name__}, got {value!r}"
            )
        values.append(value)
    return values


def check_same_form(
    tree: Tree, first: tuple[str, Any] | None, name: str, form: Any
) -> tuple[str, Any]:
    """Compare the form of a file with that of the first file.

    Parameters
    ----------
    tree : Tree
        Folder of the files, for messages.
    first : (str, dict) or None
        Result of the call for the previous file; None for the first file.
    name : str
        Name of the file.
    form : dict
        Its form, with the same keys for every file.

    Returns
    -------
    (str, dict)
        Name and form of the first file.

    Raises
    ------
    FileFormatError
        If a value differs.
    """
    if first is None:
        return name, form
    first_name, expected = first
    differences = ", ".join(
        f"{key} {expected[key]!r} in {first_name} and {form[key]!r} in {name}"
        for key in form
        if form[key] != expected[key]
    )
    if form != expected:
        raise FileFormatError(
            f"{tree.display_name()}: files must have the same form, got {differences}"
        )
    return first


def _sorted_classes(names: set[str], test_labels: Sequence[str]) -> list[str]:
    """Sort class names, by value if all names and test labels are integers."""
    ordered = sorted(names)
    values = as_integers([*ordered, *test_labels])
    return list(map(str, sorted(values[: len(ordered)])))


# -- spans of rows ---------------------------------------------------------------------


class Span(NamedTuple):
    """A run of rows in consecutive blocks.

    Parameters
    ----------
    first, last : int
        First block, and the one after the last.
    skip : int
        Rows of the first block before the run.
    rows, size : int
        Rows and bytes of the run.
    """

    first: int
    last: int
    skip: int
    rows: int
    size: int


def spans(blocks: Sequence[tuple[int, int]], rows: int, size: int) -> Iterator[Span]:
    """Yield runs of rows: whole blocks that fit, and equal parts of larger blocks.

    Parameters
    ----------
    blocks : sequence of (int, int)
        Rows and bytes of each block.
    rows, size : int
        Maximum number of rows and bytes of a run.

    Examples
    --------
    >>> from evergrow.data.shards import spans
    >>> blocks = [(4, 40), (4, 40), (9, 90)]
    >>> [tuple(span)[:4] for span in spans(blocks, rows=8, size=1000)]
    [(0, 2, 0, 8), (2, 3, 0, 5), (2, 3, 5, 4)]
    """
    start = 0
    count = 0
    weight = 0
    for number, (n, n_bytes) in enumerate(blocks):
        fits = n <= rows and n_bytes <= size
        joins = fits and count + n <= rows and weight + n_bytes <= size
        if count and not joins:
            yield Span(start, number, 0, count, weight)
            count = 0
            weight = 0
        if fits:
            if not count:
                start = number
            count += n
            weight += n_bytes
        elif n:
            yield from _parts_of_block(number, n, n_bytes, rows, size)
    if count:
        yield Span(start, len(blocks), 0, count, weight)


def _parts_of_block(
    number: int, n: int, n_bytes: int, rows: int, size: int
) -> Iterator[Span]:
    """Divide a block that exceeds a limit into the smallest number of equal spans.

    ``number`` is the block, ``n`` and ``n_bytes`` its size, ``rows`` and ``size`` the
    limits. One row can exceed ``size``.
    """
    limit = max(min(rows, size * n // max(n_bytes, 1)), 1)
    n_parts = -(-n // limit)  # rounded up
    step = -(-n // n_parts)
    for skip in range(0, n, step):
        n_rows = min(step, n - skip)
        yield Span(number, number + 1, skip, n_rows, n_bytes * n_rows // n)


# -- training and test files -----------------------------------------------------------


def part_of_files(files: dict[str, int], part: str) -> dict[str, int]:
    """Return the training or test files by their names, or all if names do not tell.

    Examples
    --------
    >>> from evergrow.data.shards import part_of_files
    >>> part_of_files({"test-0.parquet": 5, "train-0.parquet": 9}, "train")
    {'train-0.parquet': 9}
    >>> part_of_files({"a.npz": 5, "b.npz": 9}, "train")
    {'a.npz': 5, 'b.npz': 9}
    """
    by_word: dict[str, dict[str, int]] = {}
    train: dict[str, int] = {}
    for name, size in files.items():
        match = _SPLIT.search(name.lower())
        if match is None:
            continue
        word = match[1]
        by_word.setdefault(word, {})[name] = size
        if word.startswith("train"):
            train[name] = size
    tests = [by_word[word] for word in TEST_WORDS if word in by_word]
    if part == "all" or not train or not tests:
        return files
    return train if part == "train" else tests[0]
