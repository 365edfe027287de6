"""One entry of the feature cache on disk: a folder that is finished, or can be taken up where it ended.

``meta.json`` says what an entry holds and whether it is finished; ``features.npy`` holds the features, appended to
while unfinished, its header written at the end; ``shards.jsonl``, while unfinished, has a line for every shard whose
rows are safely on disk. What is read is not trusted: sizes are compared with the files, nothing is allocated from a
number, and links are not followed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import Archive, register_kind
from evergrow.core.documents import open_document, parse_json
from evergrow.core.errors import BusyError, FileFormatError
from evergrow.core.fields import Fields
from evergrow.core.files import locked
from evergrow.core.version import __version__
from evergrow.features.loader import Failure
from evergrow.features.precision import Precision
from evergrow.features.recipes import FeatureRecipe

META, FEATURES, SHARDS = "meta.json", "features.npy", "shards.jsonl"
HEADER = 128
"""Bytes before the rows: room for the shape, whatever it turns out to be."""

_CHUNK = 1 << 22


def _with_schema(old: Archive) -> Archive:
    """Return the description of an entry of 0.1, which calls its version ``format``, as version 2 has it."""
    return Archive(old.kind, {key: value for key, value in old.meta.items() if key != "format"}, version=2)


KIND = register_kind("feature-cache", 2, since="0.1", migrations={1: _with_schema})
"""Version 1 has no schema; evergrow 0.1 reads version 2 as well, since it looks at neither."""


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The features of a finished entry.

    Parameters
    ----------
    features : ndarray of shape (n, d)
        Memory-mapped, read-only.
    failures : tuple of Failure
        Items that are not among the rows.
    precision : str
        What the backbone was run at.
    recipe : FeatureRecipe or None
        The blocks that lie side by side in a row; None for a network's own vector alone.
    """

    features: NDArray[np.float32]
    failures: tuple[Failure, ...]
    precision: Precision
    recipe: FeatureRecipe | None = None


@dataclass(frozen=True)
class Shard:
    """A run of items whose features are safely on disk.

    Parameters
    ----------
    stop : int
        Row number of the item after its last one; it begins where the one before ends.
    n_read : int
        Items of it that were read, which is the number of its rows on disk.
    crc32 : int
        Checksum of all rows on disk up to its end.
    precision : {"float32", "float16"}
        What the backbone was run at.
    failures : tuple of Failure
        Items of it that could not be read.
    """

    stop: int
    n_read: int
    crc32: int
    precision: Precision
    failures: tuple[Failure, ...]


class CacheEntry:
    """A folder of the cache.

    Parameters
    ----------
    folder : Path
        The folder; made when the entry is held.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from evergrow.features.cache_entry import CacheEntry
    >>> from evergrow.features.shard_writer import ShardWriter
    >>> with tempfile.TemporaryDirectory() as root:
    ...     entry = CacheEntry(pathlib.Path(root, "key"))
    ...     with entry.hold():
    ...         writer = ShardWriter(entry, {}, n_items=3, n_features=2)
    ...         writer.append(3, np.ones((3, 2), dtype=np.float32), [], "float32")
    ...         features = writer.finish()
    ...     entry.load().features.shape
    (3, 2)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hold(self, wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Make the folder and hold it for this process.

        Parameters
        ----------
        wait : callable, optional
            Called once if another process holds it, before waiting for it; without it that is an error.

        Raises
        ------
        BusyError
            If another process holds it and ``wait`` is not given.
        OSError
            If the folder cannot be made.
        """
        with ExitStack() as stack:
            while not self._take(stack, wait):
                wait = _quietly if wait else None
            yield

    def _take(self, stack: ExitStack, wait: Callable[[], None] | None) -> bool:
        """Take the lock; false if the folder was removed meanwhile, so that the lock is on nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as attempt:
            try:
                before = self.folder.stat().st_ino
                try:
                    attempt.enter_context(locked(self.folder))
                except BusyError:
                    if wait is None:
                        raise
                    wait()
                    attempt.enter_context(locked(self.folder, wait=True))
                if self.folder.stat().st_ino != before:
                    return False
            except FileNotFoundError:
                return False
            stack.enter_context(attempt.pop_all())
        return True

    def meta(self) -> Fields | None:
        """Return what ``meta.json`` says, in the present version; None where there is none.

        Raises
        ------
        FileFormatError
            If it is not what this class writes.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        body = self._read(META)
        if body is None:
            return None
        name = f"{META} of a cache entry"
        values = parse_json(body, name)
        stamp = values if isinstance(values, dict) else {}
        if stamp.get("schema", KIND.name) != KIND.name:
            raise FileFormatError(f"{name} must be that of a {KIND.name!r}, got another")
        version = stamp.get("schema_version", 1 if "schema" not in stamp else None)
        return open_document(values, KIND, name, version=version, writer=stamp.get("evergrow"))

    def load(self) -> StoredFeatures | None:
        """Return the features of a finished entry, None where there is none or it is unfinished.

        Raises
        ------
        FileFormatError
            If it is damaged.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        meta = self.meta()
        if meta is None or not meta.flag("finished", default=False):
            return None
        shape = (meta.integer("n_read", low=1), meta.integer("n_features", low=1))
        failures = _failures(meta)
        precision = _precision(meta)
        expected = meta.integer("crc32", high=2**32 - 1)
        path = self.folder / FEATURES
        try:
            size = path.stat().st_size
            if path.is_symlink() or size != HEADER + 4 * shape[0] * shape[1]:
                raise FileFormatError(f"{FEATURES} of a cache entry must hold {shape} numbers, got {size} bytes")
            with open(path, "rb") as file:
                if file.read(HEADER) != npy_header(*shape):
                    raise FileFormatError(f"{FEATURES} of a cache entry must have the header of {shape} numbers")
                crc = checksum(file, size - HEADER, finite=True)
        except OSError as error:
            raise FileFormatError(f"{FEATURES} of a cache entry must be readable, got {error}") from error
        if crc != expected:
            raise FileFormatError(f"{FEATURES} of a cache entry must have checksum {expected}, got {crc}")
        recipe = entry_recipe(meta)
        if recipe is not None and recipe.n_features != shape[1]:
            raise FileFormatError(
                f"{META} of a cache entry must have a recipe {shape[1]} wide, got {recipe.n_features}"
            )
        return StoredFeatures(mapped(path, shape), failures, precision, recipe)

    def shards(self) -> list[Shard]:
        """Return the lines of ``shards.jsonl``, up to one that a killed process left half or that is none."""
        try:
            lines = (self._read(SHARDS) or b"").split(b"\n")[:-1]
        except FileFormatError:
            return []
        shards: list[Shard] = []
        for line in lines:
            shard = parse_shard(line, start=shards[-1].stop if shards else 0)
            if shard is None:
                break
            shards.append(shard)
        return shards

    def _read(self, name: str) -> bytes | None:
        """Return the contents of a file of the entry, None where there is none."""
        path = self.folder / name
        try:
            if path.is_symlink():
                raise FileFormatError(f"{name} of a cache entry must be a file, got a link")
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileFormatError(f"{name} of a cache entry must be readable, got {error}") from error

    def empty(self) -> None:
        """Remove what the entry holds; held by the caller, who goes on holding it since the folder stays."""
        if self.folder.is_symlink():  # what lies behind a link is not the cache's to remove
            raise OSError(f"{self.folder} must be a folder of the cache, got a link")
        (self.folder / META).unlink(missing_ok=True)  # first, so that no half of the rest passes for whole
        for path in self.folder.iterdir():
            path.unlink()

    def clear(self) -> None:
        """Remove the entry, folder and all; held by the caller."""
        self.empty()
        self.folder.rmdir()


def entry_recipe(meta: Fields) -> FeatureRecipe | None:
    """Return the recipe that ``meta.json`` names, None for a network's own vector alone."""
    given = Fields(meta.mapping("backbone", default={}), {}, {}, f"{META} of a cache entry")
    return FeatureRecipe.from_dict(given.mapping("recipe")) if given.has("recipe") else None


def _quietly() -> None:
    """Wait without telling it a second time."""


def written_by() -> dict[str, Any]:
    """Return what ``meta.json`` says of its own form."""
    return {"schema": KIND.name, "schema_version": KIND.version, "evergrow": __version__}


def shard_line(shard: Shard) -> str:
    """Return the line of ``shards.jsonl`` about a shard."""
    return json.dumps(asdict(shard)) + "\n"


def parse_shard(line: bytes, *, start: int) -> Shard | None:
    """Return the shard that a line is about, None if it is no such line or does not go on at ``start``."""
    try:
        given = Fields(_mapping(parse_json(line, SHARDS)), {}, {}, SHARDS)
        failures = _failures(given)
        shard = Shard(
            stop=given.integer("stop", low=start + 1),
            n_read=given.integer("n_read"),
            crc32=given.integer("crc32", high=2**32 - 1),
            precision=_precision(given),
            failures=failures,
        )
    except FileFormatError:
        return None
    inside = all(start <= failure.row < shard.stop for failure in failures)
    return shard if inside and shard.n_read + len(failures) == shard.stop - start else None


def _mapping(values: Any) -> dict[str, Any]:
    return values if isinstance(values, dict) else {}


def _precision(given: Fields) -> Precision:
    return "float16" if given.text("precision", choices=("float16", "float32")) == "float16" else "float32"


def _failures(given: Fields) -> tuple[Failure, ...]:
    """Return the items that could not be read, in the order of their rows."""
    failures = tuple(_failure(given, values) for values in given.values("failures"))
    rows = [failure.row for failure in failures]
    given.require(rows == sorted(set(rows)), "the rows that could not be read are not in order")
    return failures


def _failure(given: Fields, values: Any) -> Failure:
    kinds = (int, str, str, bool)
    whole = isinstance(values, list) and len(values) == len(kinds)
    given.require(whole and all(map(isinstance, values, kinds)), "an item that could not be read is garbled")
    given.require(not isinstance(values[0], bool) and 0 <= values[0] < 2**53, "the row of an item is out of range")
    return Failure(*values)


def mapped(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return the rows of a features file of this shape, memory-mapped and read-only."""
    return np.memmap(path, dtype="<f4", mode="r", offset=HEADER, shape=shape)


def checksum(file: BinaryIO, size: int, crc: int = 0, *, finite: bool = False) -> int:
    """Carry a checksum on over the next ``size`` bytes; fewer bytes, or numbers that are not finite, give another."""
    while size > 0:
        part = file.read(min(size, _CHUNK))
        if not part or (finite and not np.isfinite(np.frombuffer(part[: len(part) // 4 * 4], dtype="<f4")).all()):
            return -1
        crc = zlib.crc32(part, crc)
        size -= len(part)
    return crc


def npy_header(rows: int, columns: int) -> bytes:
    """Return the header of a NPY file of format 1.0, filled up to a fixed size so that it can be written last."""
    start = b"\x93NUMPY\x01\x00"
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    length = HEADER - len(start) - 2
    return bytes(start + length.to_bytes(2, "little") + text.ljust(length - 1).encode("latin1") + b"\n")
