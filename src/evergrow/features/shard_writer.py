"""Writing an entry of the feature cache shard by shard, going on after what an earlier process left.

Everything is written by plain writes: on a full disk they raise, where a memory map would end the process.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError
from evergrow.core.files import PARTIAL, atomic_path
from evergrow.features.cache_entry import (
    FEATURES,
    HEADER,
    META,
    SHARDS,
    CacheEntry,
    Shard,
    checksum,
    mapped,
    npy_header,
    shard_line,
    written_by,
)
from evergrow.features.loader import Failure
from evergrow.features.precision import Precision


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
        self._kept = self._optional_fields() if shards else {}
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
        if (folder / FEATURES).is_symlink():
            (folder / FEATURES).unlink()  # it would lead the rows elsewhere
        if not shards:
            self._write_meta({"finished": False})
        if not shards or len(shards) != len(self._entry.shards()):
            with atomic_path(folder / SHARDS) as path:
                path.write_text("".join(shard_line(shard) for shard in shards), encoding="utf-8")
        # Unbuffered: what a full disk did not take must not be tried again behind our back when the file is closed.
        with ExitStack() as stack:
            file = stack.enter_context(open(folder / FEATURES, "r+b" if shards else "w+b", buffering=0))
            if not shards:
                _write(file, bytes(HEADER))
            file.truncate(self._end)
            file.seek(self._end)
            stack.pop_all()
        return file

    def _optional_fields(self) -> dict[str, Any]:
        """Return what an unfinished entry says of itself that this version does not know, to be written again."""
        try:
            meta = self._entry.meta()
        except FileFormatError:
            return {}
        return {} if meta is None else meta.unknown()

    @property
    def _end(self) -> int:
        return HEADER + 4 * self._n_features * self.n_read

    def _whole_shards(self) -> list[Shard]:
        """Return the leading shards whose rows are all there and have their checksum."""
        whole: list[Shard] = []
        crc, path = 0, self._entry.folder / FEATURES
        if path.is_symlink():
            return []
        try:
            with open(path, "rb") as file:
                file.seek(HEADER)
                for shard in self._entry.shards():
                    crc = checksum(file, 4 * self._n_features * shard.n_read, crc, finite=True)
                    if crc != shard.crc32 or shard.stop > self._n_items:
                        break
                    if whole and shard.precision != whole[0].precision:
                        break
                    whole.append(shard)
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
            _write(journal, shard_line(shard).encode())
            os.fsync(journal.fileno())
        self.done, self._crc, self.precision = stop, crc, precision
        self.n_read += len(features)
        self.failures.extend(failures)

    def finish(self) -> NDArray[np.float32]:
        """Declare the entry finished and return its features, memory-mapped."""
        self._file.seek(0)
        _write(self._file, npy_header(self.n_read, self._n_features))
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
        return mapped(self._entry.folder / FEATURES, (self.n_read, self._n_features))

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
        rows = np.fromfile(self._entry.folder / FEATURES, dtype="<f4", count=count, offset=HEADER)
        _clear_if_possible(self._entry)
        return rows.reshape(self.n_read, self._n_features)

    def _write_meta(self, state: dict[str, Any]) -> None:
        values = {**self._kept, **self._about, **written_by(), **state}
        with atomic_path(self._entry.folder / META) as path:
            path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _clear_if_possible(entry: CacheEntry) -> None:
    with suppress(OSError):
        entry.clear()


def _write(file: BinaryIO, data: Any) -> None:
    """Write all of it: one call may take only a part."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]
