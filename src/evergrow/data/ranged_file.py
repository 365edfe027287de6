"""A file at any place for libraries that seek and read: only what they ask for is fetched."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergrow.data.places import Place

_WIDEST = 8 * 2**20
"""Bytes that are fetched at once at most, beyond what is asked for."""


class RangedFile(io.RawIOBase):
    """A file of a place, for libraries that want to seek and read.

    Parameters
    ----------
    place : Place
        Where it is.
    name : str
        Its name there.
    size : int
        Its bytes.
    window : int
        Bytes that are read at least, so that what follows in small steps costs no further request; more and more while
        steps stay small, since a request costs as much time as a megabyte.
    """

    def __init__(self, place: Place, name: str, size: int, window: int = 0) -> None:
        super().__init__()
        self._place, self._name, self._size, self._window = place, name, size, window
        self._at = 0
        self._held, self._held_at, self._reach = b"", 0, window

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"position must not be negative, got {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        first = self._at - self._held_at
        if first < 0 or stop - self._held_at > len(self._held):
            near = 0 <= self._at - self._held_at <= 2 * len(self._held)
            self._reach = min(2 * self._reach, _WIDEST) if near and self._held else self._window
            body = self._place.read(self._name, self._at, min(max(stop, self._at + self._reach), self._size))
            self._held, self._held_at, first = (body if self._window else b""), self._at, 0
        else:
            body = self._held
        part = body[first : first + stop - self._at]
        self._at += len(part)
        return part

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        body = self.read(len(buffer))
        buffer[: len(body)] = body
        return len(body)
