"""Images that a library hands out one by one, and image files as bytes in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ImageError
from evergrow.core.items import Items, Kind


@dataclass(frozen=True, eq=False)
class FetchedImages(Items):
    """Images that are fetched, and decoded, only when they are asked for.

    Parameters
    ----------
    fetch : callable
        From a row number of the whole set to an image: a PIL image, an array, the bytes of a file or a path. It is
        sent to worker processes, so it must be picklable.
    rows : ndarray of int64
        The rows of the whole set that these are.
    title : str
        Name of the whole set, for messages.
    tag : str
        What tells the whole set from every other one.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.fetched import FetchedImages
    >>> images = FetchedImages(lambda row: f"image {row}", np.arange(10), "toy", "v1")
    >>> images.take([3, 4]).take([1]).raw(0)
    'image 4'
    """

    fetch: Callable[[int], Any]
    rows: NDArray[np.int64]
    title: str
    tag: str
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        """Return the set and the row in it."""
        return f"{self.title}[{int(self.rows[row])}]"

    def raw(self, row: int) -> Any:
        """Return one image."""
        return self.fetch(int(self.rows[row]))

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> FetchedImages:
        """Return the images of these rows; none is fetched."""
        return FetchedImages(self.fetch, self.rows[np.asarray(rows, dtype=np.int64)], self.title, self.tag)

    def stamp(self) -> str:
        """Return a hash of the tag and the rows; no image is fetched."""
        digest = hashlib.blake2b(f"fetched\0{self.title}\0{self.tag}\0".encode(), digest_size=16)
        digest.update(self.rows.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class HeldImage(Items):
    """One image file as bytes in memory, perhaps several times or not at all.

    Parameters
    ----------
    body : bytes
        The file.
    title : str
        Its name, for messages.
    count : int
        How many times it counts.

    Examples
    --------
    >>> from evergrow.data.fetched import HeldImage
    >>> len(HeldImage(b"...", "photo")), HeldImage(b"...", "photo").raw(0)
    (1, b'...')
    """

    body: bytes
    title: str
    count: int = 1
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return self.count

    def name(self, row: int) -> str:
        """Return its name."""
        return self.title

    def raw(self, row: int) -> bytes:
        """Return the bytes."""
        return self.body

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> HeldImage:
        """Return the image as often as there are rows."""
        return HeldImage(self.body, self.title, len(rows))

    def stamp(self) -> str:
        """Return a hash of the bytes."""
        return hashlib.blake2b(b"held image" + self.body, digest_size=16, salt=str(self.count).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class HeldImages(Items):
    """Image files as bytes in memory.

    Parameters
    ----------
    names : tuple of str
        Their names, for messages and answers.
    bodies : tuple of bytes or str
        The files; a string where one could not be read, which says why.

    Examples
    --------
    >>> from evergrow.data.fetched import HeldImages
    >>> HeldImages(("cat/1.jpg", "cat/2.jpg"), (b"...", b"....")).take([1]).raw(0)
    b'....'
    """

    names: tuple[str, ...]
    bodies: tuple[bytes | str, ...]
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        """Return the name of one file."""
        return self.names[row]

    def raw(self, row: int) -> bytes:
        """Return the bytes of one file, or raise :class:`ImageError` where it could not be read."""
        body = self.bodies[row]
        if isinstance(body, str):
            raise ImageError(f"image must be a readable file, got {self.names[row]}: {body}")
        return body

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> HeldImages:
        """Return the files of these rows; no bytes are copied."""
        numbers = [int(row) for row in rows]
        return HeldImages(tuple(self.names[row] for row in numbers), tuple(self.bodies[row] for row in numbers))

    def stamp(self) -> str:
        """Return a hash of the bytes."""
        digest = hashlib.blake2b(b"held images", digest_size=16)
        for body in self.bodies:
            content = body if isinstance(body, bytes) else b""
            digest.update(len(content).to_bytes(8, "little") + content)
        return digest.hexdigest()
