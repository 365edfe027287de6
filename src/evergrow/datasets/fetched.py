"""Images that a library hands out one by one, and the bytes of one image file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
    >>> from evergrow.datasets.fetched import FetchedImages
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
    >>> from evergrow.datasets.fetched import HeldImage
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
