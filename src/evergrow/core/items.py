"""What a backbone can be shown: images in files, images in memory, texts.

All kinds are sequences that hand out parts of themselves by row numbers, know a name for every item (for messages) and
can be told apart by a stamp (for caches). Nothing is read or decoded here.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import DatasetNotFoundError, InputError

Kind = Literal["image", "text"]


class Items(ABC):
    """A sequence of images or texts.

    Attributes
    ----------
    kind : {"image", "text"}
        What the items are.
    """

    kind: ClassVar[Kind]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, row: int) -> str:
        """Return a name of an item for people."""

    @abstractmethod
    def raw(self, row: int) -> Any:
        """Return one item as it is held: a path, an array or a text."""

    @abstractmethod
    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Self:
        """Return the items of these rows, in this order."""

    @abstractmethod
    def stamp(self) -> str:
        """Return a hash that differs for different items; files are told apart by name, size and time of change."""

    def identity(self) -> str:
        """Return a hash that is the same on every machine; files are told apart by name and size alone."""
        return self.stamp()


@dataclass(frozen=True)
class ImageFiles(Items):
    """Images in files.

    Parameters
    ----------
    root : Path
        Folder that the names are relative to.
    names : tuple of str
        Paths relative to the root, with forward slashes. Stamps use them, so that a folder can be moved.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.core.items import ImageFiles
    >>> files = ImageFiles(Path("data"), ("cat/1.jpg", "dog/1.jpg"))
    >>> files.take([1]).raw(0).as_posix()
    'data/dog/1.jpg'
    """

    root: Path
    names: tuple[str, ...]
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        """Return the path relative to the root."""
        return self.names[row]

    def raw(self, row: int) -> Path:
        """Return the path of the file."""
        return self.root / self.names[row]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> ImageFiles:
        """Return the files of these rows."""
        return ImageFiles(self.root, tuple(self.names[int(row)] for row in rows))

    def stamp(self) -> str:
        """Return a hash of names, sizes and times of change; reads no image."""
        return self._hash(times=True)

    def identity(self) -> str:
        """Return a hash of names and sizes; a copy on another machine has the same."""
        return self._hash(times=False)

    def _hash(self, *, times: bool) -> str:
        digest = hashlib.blake2b(b"files", digest_size=16)
        for name in self.names:
            try:
                status = os.stat(self.root / name)
            except OSError as error:
                raise DatasetNotFoundError(f"image must be a readable file, got {self.root / name}: {error}") from error
            changed = status.st_mtime_ns if times else 0
            digest.update(f"{name}\0{status.st_size}\0{changed}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ImageArrays(Items):
    """Images in memory.

    Parameters
    ----------
    pixels : ndarray of shape (n, height, width, 3) or (n, height, width)
        Bytes, red first; two-dimensional images are grey.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.items import ImageArrays
    >>> len(ImageArrays(np.zeros((5, 32, 32, 3), dtype=np.uint8)).take([0, 4]))
    2
    """

    pixels: NDArray[np.uint8]
    kind: ClassVar[Kind] = "image"

    def __post_init__(self) -> None:
        array = self.pixels
        right = isinstance(array, np.ndarray) and array.dtype == np.uint8
        if not right or not (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3)):
            raise InputError(
                "pixels must be uint8 of shape (n, height, width, 3) or (n, height, width), "
                f"got {getattr(array, 'dtype', type(array).__name__)} of shape {getattr(array, 'shape', ())}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, row: int) -> str:
        """Return the row number as a name."""
        return f"image {row}"

    def raw(self, row: int) -> NDArray[np.uint8]:
        """Return the pixels of one image."""
        return np.asarray(self.pixels[row])

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> ImageArrays:
        """Return the images of these rows."""
        return ImageArrays(self.pixels[np.asarray(rows, dtype=np.int64)])

    def stamp(self) -> str:
        """Return a hash of the pixels."""
        return self._stamp

    @cached_property
    def _stamp(self) -> str:
        digest = hashlib.blake2b(f"pixels{self.pixels.shape}".encode(), digest_size=16)
        for start in range(0, len(self.pixels), 1024):  # a part at a time: the array may be memory-mapped
            digest.update(np.ascontiguousarray(self.pixels[start : start + 1024]).reshape(-1).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Texts(Items):
    """Texts in memory.

    Parameters
    ----------
    texts : tuple of str
        The texts.

    Examples
    --------
    >>> from evergrow.core.items import Texts
    >>> Texts(("hello", "world")).take([1]).raw(0)
    'world'
    """

    texts: tuple[str, ...]
    kind: ClassVar[Kind] = "text"

    def __len__(self) -> int:
        return len(self.texts)

    def name(self, row: int) -> str:
        """Return the beginning of the text."""
        text = self.texts[row]
        return repr(text if len(text) <= 40 else f"{text[:37]}...")

    def raw(self, row: int) -> str:
        """Return the text."""
        return self.texts[row]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Texts:
        """Return the texts of these rows."""
        return Texts(tuple(self.texts[int(row)] for row in rows))

    def stamp(self) -> str:
        """Return a hash of the texts."""
        digest = hashlib.blake2b(b"texts", digest_size=16)
        for text in self.texts:
            body = text.encode("utf-8", "surrogatepass")
            digest.update(len(body).to_bytes(8, "little") + body)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class JoinedItems(Items):
    """Images of several origins, one after another.

    Parameters
    ----------
    parts : tuple of Items
        The origins.
    places : ndarray of int64 of shape (n, 2)
        Origin of every item, and its row there.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.items import ImageArrays, JoinedItems
    >>> small, large = (ImageArrays(np.zeros((2, side, side), np.uint8)) for side in (4, 8))
    >>> joined = JoinedItems.of([small, large])
    >>> len(joined), joined.take([3]).raw(0).shape
    (4, (8, 8))
    """

    parts: tuple[Items, ...]
    places: NDArray[np.int64]
    kind: ClassVar[Kind] = "image"

    @classmethod
    def of(cls, parts: Sequence[Items]) -> JoinedItems:
        """Return all images of these origins."""
        pairs = [(number, row) for number, part in enumerate(parts) for row in range(len(part))]
        return cls(tuple(parts), np.array(pairs, dtype=np.int64).reshape(-1, 2))

    def __len__(self) -> int:
        return len(self.places)

    def name(self, row: int) -> str:
        """Return the name that the image has where it comes from."""
        part, within = (int(number) for number in self.places[row])
        return self.parts[part].name(within)

    def raw(self, row: int) -> Any:
        """Return one image."""
        part, within = (int(number) for number in self.places[row])
        return self.parts[part].raw(within)

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> JoinedItems:
        """Return the images of these rows."""
        return JoinedItems(self.parts, self.places[np.asarray(rows, dtype=np.int64)])

    def stamp(self) -> str:
        """Return a hash of the stamps of the origins and of the rows."""
        return self._hash([part.stamp() for part in self.parts])

    def identity(self) -> str:
        """Return a hash of the identities of the origins and of the rows."""
        return self._hash([part.identity() for part in self.parts])

    def _hash(self, stamps: Sequence[str]) -> str:
        digest = hashlib.blake2b("\0".join(["joined", *stamps]).encode(), digest_size=16)
        digest.update(self.places.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()


def concat_items(parts: Sequence[Items]) -> Items:
    """Return items of one kind one after another, as one sequence of that kind.

    Parameters
    ----------
    parts : sequence of Items
        At least one: all texts, or all images; images in memory must be of one size.

    Raises
    ------
    InputError
        If they do not go together.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.core.items import ImageFiles, concat_items
    >>> concat_items([ImageFiles(Path("a"), ("1.jpg",)), ImageFiles(Path("a/b"), ("2.jpg",))]).names
    ('1.jpg', 'b/2.jpg')
    """
    if not parts:
        raise InputError("parts must be at least one sequence of items, got none")
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Texts) for part in parts):
        return Texts(tuple(part.raw(row) for part in parts for row in range(len(part))))
    arrays = [part.pixels for part in parts if isinstance(part, ImageArrays)]
    if len(arrays) == len(parts):
        shapes = sorted({array.shape[1:] for array in arrays})
        if len(shapes) > 1:
            raise InputError(f"items must be images of one size to go together, got {shapes}")
        return ImageArrays(np.concatenate(arrays))
    kinds = sorted({part.kind for part in parts})
    if len(kinds) > 1:
        raise InputError(f"items must be of one kind to go together, got {', '.join(kinds)}")
    files = [part for part in parts if isinstance(part, ImageFiles)]
    return _concat_files(files) if len(files) == len(parts) else JoinedItems.of(parts)


def _concat_files(parts: Sequence[ImageFiles]) -> ImageFiles:
    """Return all files with names relative to their common folder."""
    root = parts[0].root
    if any(part.root != root for part in parts):
        try:
            root = Path(os.path.commonpath([part.root.absolute() for part in parts]))
        except ValueError as error:
            raise InputError(f"items must lie on one drive to go together: {error}") from error
    names = [
        name if part.root == root else (part.root.absolute() / name).relative_to(root).as_posix()
        for part in parts
        for name in part.names
    ]
    return ImageFiles(root, tuple(names))
