"""Pictures that a program holds in memory, of any size each."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.items import Items, Kind


def is_pil_image(item: Any) -> bool:
    """Return whether an object is a PIL image; where PIL was never imported, nothing is."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(item, module.Image)


@dataclass(frozen=True, eq=False)
class HeldPictures(Items):
    """Pictures in memory, or of mixed origin.

    Parameters
    ----------
    pictures : tuple
        PIL images, arrays of bytes, or paths.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.methods.learning.held import HeldPictures
    >>> pictures = HeldPictures((np.zeros((4, 6, 3), np.uint8), np.zeros((5, 5), np.uint8)))
    >>> len(pictures), pictures.take([1]).raw(0).shape
    (2, (5, 5))
    """

    pictures: tuple[Any, ...]
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, row: int) -> str:
        """Return the file name of a picture that has one, else its row number."""
        picture = self.pictures[row]
        named = picture if isinstance(picture, (str, os.PathLike)) else getattr(picture, "filename", "")
        return os.path.basename(os.fspath(named)) if named else f"picture {row}"

    def raw(self, row: int) -> Any:
        """Return one picture."""
        return self.pictures[row]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> HeldPictures:
        """Return the pictures of these rows."""
        return HeldPictures(tuple(self.pictures[int(row)] for row in rows))

    def stamp(self) -> str:
        """Return a hash of the pixels, and of name, size and time of change of files."""
        return self._stamp

    @cached_property
    def _stamp(self) -> str:
        from evergrow.backbones.images import decode_image

        digest = hashlib.blake2b(b"held", digest_size=16)
        for picture in self.pictures:
            if isinstance(picture, (str, os.PathLike)):
                status = os.stat(picture)
                digest.update(f"{os.fspath(picture)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
                continue
            pixels = np.ascontiguousarray(decode_image(picture))  # what a backbone will see: palette and EXIF applied
            digest.update(f"{pixels.shape}\0".encode())
            digest.update(pixels.reshape(-1).data)
        return digest.hexdigest()
