"""Images that lie together in one file: in an archive, or in a column of a table."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, ImageError
from evergrow.core.items import Items, Kind


class ImageStore(ABC):
    """A file with images in it, numbered from 0; it can be sent to worker processes.

    Attributes
    ----------
    path : Path
        The file.
    """

    path: Path

    @abstractmethod
    def name(self, row: int) -> str:
        """Return the name of an image for people."""

    @abstractmethod
    def read(self, row: int) -> bytes | Path:
        """Return the bytes of an image file, or the path of one."""

    @abstractmethod
    def key(self, row: int) -> str:
        """Return what tells an image from others, the same on every machine; it is not read for that."""


@dataclass(frozen=True, eq=False)
class StoredImages(Items):
    """Images of a store, by their numbers there.

    Parameters
    ----------
    store : ImageStore
        The file that they lie in.
    rows : ndarray of int64
        Their numbers.
    """

    store: ImageStore
    rows: NDArray[np.int64]
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        """Return the name of an image in its file."""
        return self.store.name(int(self.rows[row]))

    def raw(self, row: int) -> bytes | Path:
        """Return the bytes of one image file, or the path of one."""
        try:
            return self.store.read(int(self.rows[row]))
        except FileFormatError as error:  # one damaged image among many, which can be left out
            raise ImageError(str(error)) from error

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> StoredImages:
        """Return the images of these rows; none is read."""
        return StoredImages(self.store, self.rows[np.asarray(rows, dtype=np.int64)])

    def stamp(self) -> str:
        """Return a hash of names and sizes, and of size and time of change of the file; no image is read."""
        try:
            status = os.stat(self.store.path)
        except OSError as error:
            raise DatasetNotFoundError(f"file must be readable, got {self.store.path}: {error}") from error
        return self._hash(f"{status.st_size}\0{status.st_mtime_ns}")

    def identity(self) -> str:
        """Return a hash of names and sizes; a copy of the file on another machine has the same."""
        return self._hash("")

    def _hash(self, about: str) -> str:
        digest = hashlib.blake2b(f"stored\0{about}\0".encode(), digest_size=16)
        for row in self.rows.tolist():
            digest.update(self.store.key(row).encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()
