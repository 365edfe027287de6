"""One entry of the feature cache on disk: written shard by shard, taken up where it ended, read by memory map.

An entry is a folder. ``meta.json`` says what it holds and whether it is finished; ``features.npy`` holds the features,
appended to while unfinished, its header written at the end; ``shards.jsonl``, while unfinished, has a line for every
shard whose rows are safely on disk. Everything is written by plain writes: on a full disk they raise, where a memory
map would end the process.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from evergrow.backbones.loader import Failure
from evergrow.backbones.precision import Precision
from evergrow.core.errors import BusyError, FileFormatError
from evergrow.core.files import PARTIAL, atomic_path, locked

META, FEATURES, SHARDS = "meta.json", "features.npy", "shards.jsonl"
_HEADER = 128  # bytes before the rows: room for the shape, whatever it turns out to be
_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class Stored:
    """What a finished entry holds.

    Parameters
    ----------
    features : ndarray of shape (n, d)
        Memory-mapped, read-only.
    failures : tuple of Failure
        Items that are not among the rows.
    precision : str
        What the backbone was run at.
    """

    features: NDArray[np.float32]
    failures: tuple[Failure, ...]
    precision: Precision


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
    >>> from evergrow.backbones.shards import CacheEntry, ShardWriter
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

    def meta(self) -> dict[str, Any] | None:
        """Return what ``meta.json`` says, None where there is none.

        Raises
        ------
        FileFormatError
            If it is not what this class writes.
        """
        try:
            values = json.loads((self.folder / META).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{META} of a cache entry must be readable JSON, got {error}") from error
        if not isinstance(values, dict):
            raise FileFormatError(f"{META} of a cache entry must hold an object, got {type(values).__name__}")
        return values

    def load(self) -> Stored | None:
        """Return the features of a finished entry, None where there is none or it is unfinished.

        Raises
        ------
        FileFormatError
            If it is damaged.
        """
        meta = self.meta()
        if meta is None or not meta.get("finished"):
            return None
        try:
            shape = (int(meta["n_read"]), int(meta["n_features"]))
            failures = tuple(_failure(values) for values in meta["failures"])
            precision, expected = cast(Precision, str(meta["precision"])), int(meta["crc32"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{META} of a cache entry must be complete, got {error!r}") from error
        path = self.folder / FEATURES
        try:
            size, found = path.stat().st_size, _checksum(path)
            features = _mapped(path)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{FEATURES} of a cache entry must be readable, got {error}") from error
        if size != _HEADER + 4 * shape[0] * shape[1] or features.shape != shape or features.dtype != np.float32:
            raise FileFormatError(f"{FEATURES} of a cache entry must hold {shape} numbers, got {size} bytes")
        if found != expected:
            raise FileFormatError(f"{FEATURES} of a cache entry must have checksum {expected}, got {found}")
        return Stored(features, failures, precision)

    def shards(self) -> list[Shard]:
        """Return the lines of ``shards.jsonl``, up to one that a killed process left half."""
        try:
            lines = (self.folder / SHARDS).read_bytes().split(b"\n")[:-1]
        except OSError:
            return []
        found: list[Shard] = []
        for line in lines:
            shard = _parsed(line)
            if shard is None:
                break
            found.append(shard)
        return found

    def empty(self) -> None:
        """Remove what the entry holds; held by the caller, who goes on holding it since the folder stays."""
        (self.folder / META).unlink(missing_ok=True)  # first, so that no half of the rest passes for whole
        for path in self.folder.iterdir():
            path.unlink()

    def clear(self) -> None:
        """Remove the entry, folder and all; held by the caller."""
        self.empty()
        self.folder.rmdir()


class ShardWriter:
    """Write an entry shard by shard, going on after the whole shards that an earlier process left.

    Parameters
    ----------
    entry : CacheEntry
        Where; held by the caller.
    about : dict
        What ``meta.json`` says besides.
    n_items, n_features : int
        How many items there are, and the width of their features.

    Attributes
    ----------
    done : int
        Items that need not be looked at again.
    n_read : int
        Rows on disk.
    failures : list of Failure
        Items among them that could not be read.
    precision : str or None
        What they were run at; None before the first shard.
    """

    def __init__(self, entry: CacheEntry, about: dict[str, Any], *, n_items: int, n_features: int) -> None:
        self._entry, self._about = entry, about
        self._n_items, self._n_features = n_items, n_features
        shards = self._whole_shards()
        self.done = shards[-1].stop if shards else 0
        self.n_read = sum(shard.n_read for shard in shards)
        self.failures = [failure for shard in shards for failure in shard.failures]
        self.precision: Precision | None = shards[-1].precision if shards else None
        self._crc = shards[-1].crc32 if shards else 0
        with ExitStack() as undo:
            if not shards:  # what others left stays for better times; what begins here must not stay half made
                undo.callback(_clear_if_possible, entry)
            self._file = self._open(shards)
            undo.pop_all()

    def _open(self, shards: list[Shard]) -> BinaryIO:
        """Bring the files to the state after these shards and return the one to append to."""
        folder = self._entry.folder
        for leftover in folder.glob(f".*{PARTIAL}"):
            leftover.unlink(missing_ok=True)
        if not shards:
            self._write_meta({"finished": False})
        if not shards or len(shards) != len(self._entry.shards()):
            with atomic_path(folder / SHARDS) as path:
                path.write_text("".join(_line(shard) for shard in shards), encoding="utf-8")
        # Unbuffered: what a full disk did not take must not be tried again behind our back when the file is closed.
        with ExitStack() as stack:
            file = stack.enter_context(open(folder / FEATURES, "r+b" if shards else "w+b", buffering=0))
            if not shards:
                _write(file, bytes(_HEADER))
            file.truncate(self._end)
            file.seek(self._end)
            stack.pop_all()
        return file

    @property
    def _end(self) -> int:
        return _HEADER + 4 * self._n_features * self.n_read

    def _whole_shards(self) -> list[Shard]:
        """Return the leading shards whose rows are all there and have their checksum."""
        whole: list[Shard] = []
        start, crc = 0, 0
        try:
            with open(self._entry.folder / FEATURES, "rb") as file:
                file.seek(_HEADER)
                for shard in self._entry.shards():
                    size = 4 * self._n_features * shard.n_read
                    crc = _crc_of(file, size, crc)
                    count = shard.n_read + len(shard.failures)
                    if crc != shard.crc32 or count != shard.stop - start or shard.stop > self._n_items:
                        break
                    if whole and shard.precision != whole[0].precision:
                        break
                    whole.append(shard)
                    start = shard.stop
        except OSError:  # nothing there yet
            return []
        return whole

    def append(self, stop: int, features: NDArray[np.float32], failures: list[Failure], precision: Precision) -> None:
        """Put a shard on disk; it counts once its line is there too.

        Parameters
        ----------
        stop : int
            Row number of the item after the shard's last one.
        features : ndarray of shape (n, d)
            Features of the items that were read.
        failures : list of Failure
            The other items.
        precision : str
            What the backbone was run at.
        """
        if os.fstat(self._file.fileno()).st_size != self._end:  # possible only where there are no locks
            raise OSError("another process writes the same features")
        data = np.ascontiguousarray(features, dtype="<f4").reshape(-1).view(np.uint8).data
        _write(self._file, data)
        os.fsync(self._file.fileno())
        crc = zlib.crc32(data, self._crc)
        shard = Shard(stop, len(features), crc, precision, tuple(failures))
        with open(self._entry.folder / SHARDS, "ab", buffering=0) as journal:
            _write(journal, _line(shard).encode())
            os.fsync(journal.fileno())
        self.done, self._crc, self.precision = stop, crc, precision
        self.n_read += len(features)
        self.failures.extend(failures)

    def finish(self) -> NDArray[np.float32]:
        """Declare the entry finished and return its features, memory-mapped."""
        self._file.seek(0)
        _write(self._file, _npy_header(self.n_read, self._n_features))
        os.fsync(self._file.fileno())
        self._file.close()
        self._write_meta(
            {
                "finished": True,
                "n_read": self.n_read,
                "n_features": self._n_features,
                "precision": self.precision,
                "bytes": self._end,
                "crc32": self._crc,
                "failures": self.failures,
            }
        )
        (self._entry.folder / SHARDS).unlink(missing_ok=True)
        return _mapped(self._entry.folder / FEATURES)

    def restart(self) -> None:
        """Forget the shards that are there."""
        with atomic_path(self._entry.folder / SHARDS) as path:
            path.write_bytes(b"")
        self.done, self.n_read, self._crc = 0, 0, 0
        self.failures, self.precision = [], None
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def close(self) -> None:
        """Let go of the file; an entry without a single shard is removed."""
        self._file.close()
        if self.done == 0:
            self._entry.clear()

    def salvage(self) -> NDArray[np.float32]:
        """Return the rows of whole shards in memory and remove the entry: the disk takes no more."""
        self._file.close()
        count = self.n_read * self._n_features
        rows = np.fromfile(self._entry.folder / FEATURES, dtype="<f4", count=count, offset=_HEADER)
        _clear_if_possible(self._entry)
        return rows.reshape(self.n_read, self._n_features)

    def _write_meta(self, state: dict[str, Any]) -> None:
        with atomic_path(self._entry.folder / META) as path:
            path.write_text(json.dumps({**self._about, **state}, indent=1) + "\n", encoding="utf-8")


def _mapped(path: Path) -> NDArray[np.float32]:
    return cast("NDArray[np.float32]", np.load(path, mmap_mode="r", allow_pickle=False))


def _clear_if_possible(entry: CacheEntry) -> None:
    with suppress(OSError):
        entry.clear()


def _quietly() -> None:
    """Wait without telling it a second time."""


def _failure(values: Any) -> Failure:
    row, name, reason, passing = values
    return Failure(int(row), str(name), str(reason), bool(passing))


def _line(shard: Shard) -> str:
    return json.dumps(asdict(shard)) + "\n"


def _parsed(line: bytes) -> Shard | None:
    """Return the shard that a line is about, None if it is no such line."""
    try:
        values = json.loads(line)
        return Shard(
            stop=int(values["stop"]),
            n_read=int(values["n_read"]),
            crc32=int(values["crc32"]),
            precision=cast(Precision, str(values["precision"])),
            failures=tuple(_failure(item) for item in values["failures"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _write(file: BinaryIO, data: Any) -> None:
    """Write all of it: one call may take only a part."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]


def _crc_of(file: BinaryIO, size: int, crc: int) -> int:
    """Carry a checksum on over the next ``size`` bytes; fewer bytes give another checksum."""
    while size > 0:
        part = file.read(min(size, _CHUNK))
        if not part:
            return -1
        crc = zlib.crc32(part, crc)
        size -= len(part)
    return crc


def _checksum(path: Path) -> int:
    with open(path, "rb") as file:
        file.seek(_HEADER)
        return _crc_of(file, path.stat().st_size - _HEADER, 0)


def _npy_header(rows: int, columns: int) -> bytes:
    """Return the header of a NPY file of format 1.0, filled up to a fixed size so that it can be written last."""
    start = np.lib.format.magic(1, 0)
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    length = _HEADER - len(start) - 2
    return bytes(start + length.to_bytes(2, "little") + text.ljust(length - 1).encode("latin1") + b"\n")
