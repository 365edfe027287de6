"""Images in memory: PIL images, arrays of bytes and tensors, as items that a backbone takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.items import Items, Kind
from evergrow.core.optional import is_instance_of


def is_pil_image(item: Any) -> bool:
    """Return whether an object is a PIL image; where PIL was never imported, nothing is."""
    return is_instance_of(item, "PIL.Image", "Image")


def is_pixels(item: Any) -> bool:
    """Return whether an object is an image as an array of bytes."""
    return isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (2, 3)


@dataclass(frozen=True, eq=False)
class MixedImages(Items):
    """Images in memory, or of mixed origin.

    Parameters
    ----------
    images : tuple
        PIL images, arrays of bytes, or paths.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.memory_images import MixedImages
    >>> images = MixedImages((np.zeros((4, 6, 3), np.uint8), np.zeros((5, 5), np.uint8)))
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

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> MixedImages:
        """Return the images of these rows."""
        return MixedImages(tuple(self.images[int(row)] for row in rows))

    def stamp(self) -> str:
        """Return a hash of the pixels, and of name, size and time of change of files."""
        return self._stamp

    @cached_property
    def _stamp(self) -> str:
        digest = hashlib.blake2b(b"held", digest_size=16)
        for image in self.images:
            if isinstance(image, (str, os.PathLike)):
                status = os.stat(image)
                digest.update(f"{os.fspath(image)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
                continue
            pixels = np.ascontiguousarray(image)
            shown = () if isinstance(image, np.ndarray) else (image.mode, image.getpalette(), image.getexif().get(274))
            digest.update(f"{pixels.shape}{pixels.dtype}{shown}\0".encode())
            digest.update(pixels.reshape(-1).data)
        return digest.hexdigest()


def channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return images of a tensor, channels first and of bytes or floats from 0 to 1, as bytes with the channels last.

    Parameters
    ----------
    array : ndarray of shape (3, h, w) or (n, 3, h, w)
        One image or several; one channel does as well. What has its channels last already only becomes bytes.

    Raises
    ------
    InputError
        If floats lie outside of 0 to 1, as those of normalised images do.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.memory_images import channels_last
    >>> channels_last(np.full((3, 4, 5), 0.2, np.float32))[0, 0].tolist()
    [51, 51, 51]
    """
    if array.dtype.kind == "f":
        low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        if not 0.0 <= low <= high <= 1.0:
            raise InputError(
                f"images of floats must lie between 0 and 1, got {low:.3g} to {high:.3g}: leave out the "
                "normalisation, which the backbone brings along"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    if array.dtype == np.uint8 and array.shape[-3] in (1, 3) and array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, -3, -1)
        array = array[..., 0] if array.shape[-1] == 1 else array
    return np.ascontiguousarray(array)
