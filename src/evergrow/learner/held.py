"""Images that a program holds in memory, of any size each."""

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
class HeldImages(Items):
    """Images in memory, or of mixed origin.

    Parameters
    ----------
    images : tuple
        PIL images, arrays of bytes, or paths.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.held import HeldImages
    >>> images = HeldImages((np.zeros((4, 6, 3), np.uint8), np.zeros((5, 5), np.uint8)))
    >>> len(images), images.take([1]).raw(0).shape
    (2, (5, 5))
    """

    images: tuple[Any, ...]
    kind: ClassVar[Kind] = "image"

    def __len__(self) -> int:
        return len(self.images)

    def name(self, row: int) -> str:
        """Return the file name of an image that has one, else its row number."""
        image = self.images[row]
        named = image if isinstance(image, (str, os.PathLike)) else getattr(image, "filename", "")
        return os.path.basename(os.fspath(named)) if named else f"image {row}"

    def raw(self, row: int) -> Any:
        """Return one image."""
        return self.images[row]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> HeldImages:
        """Return the images of these rows."""
        return HeldImages(tuple(self.images[int(row)] for row in rows))

    def stamp(self) -> str:
        """Return a hash of the pixels, and of name, size and time of change of files."""
        return self._stamp

    @cached_property
    def _stamp(self) -> str:
        from evergrow.backbones.images import decode_image

        digest = hashlib.blake2b(b"held", digest_size=16)
        for image in self.images:
            if isinstance(image, (str, os.PathLike)):
                status = os.stat(image)
                digest.update(f"{os.fspath(image)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
                continue
            pixels = np.ascontiguousarray(decode_image(image))  # what a backbone will see: palette and EXIF applied
            digest.update(f"{pixels.shape}\0".encode())
            digest.update(pixels.reshape(-1).data)
        return digest.hexdigest()
