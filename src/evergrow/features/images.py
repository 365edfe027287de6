"""From items to batches: images decoded to 8-bit RGB and transformed, in worker processes; texts grouped by length.

An image that cannot be read is an error that names it.
"""

from __future__ import annotations

import importlib
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ImageError
from evergrow.data.image_suffixes import has_plugin, plugin_of, unread_format
from evergrow.data.items import Items
from evergrow.features.image_formats import (
    WORK_PER_PIXEL,
    decoding_work,
    open_image,
)

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_PIXELS = 178_956_970
"""Images with more pixels are refused before they are decoded (the point where Pillow refuses them too)."""

ImageSource = str | os.PathLike[str] | bytes | NDArray[Any] | Any
"""What :func:`decode_image` takes: a path, the bytes of a file, a PIL image or a uint8 array."""

_QUICK_WORK = 60_000_000  # units of decoding_work: about a quarter of a second
_RAW_UNITS_PER_PIXEL = 32
_BAND = 2**20  # pixels that are scaled at once
_ORIENTATION = 0x0112  # tag of EXIF data
_TURNS = {  # names of PIL.Image.Transpose by orientation
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

_LOOKED_AT = 64  # images whose sizes decide which view is taken


def decode_image(
    source: ImageSource, *, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> Image:
    """Return an image in RGB, the right way up.

    Reads JPEG, PNG, WebP, GIF, TIFF, BMP and PPM, and HEIC and camera RAW if their
    plugins are installed; other formats are refused by name. An orientation in the EXIF
    data is applied; the result has no metadata. Grey, palette and CMYK images become
    RGB as by Pillow's ``convert("RGB")``; an alpha channel is dropped, not laid over a
    colour. 16-bit grey is scaled to 8 bits (Pillow would clip it). Only the first frame
    of an animation is decoded.

    Before decoding, the size, the bytes of decoded pixels and the work (such as the
    scans of a progressive JPEG) are read from headers and compared with ``max_pixels``.

    Parameters
    ----------
    source : path-like, bytes, PIL.Image.Image or ndarray
        A file, the content of a file, an image, or uint8 pixels of shape (height,
        width), (height, width, 1), (height, width, 3) or (height, width, 4).
    name : str, optional
        What to call the image in messages; the path by default.
    max_pixels : int
        Larger images are refused before they are decoded.

    Returns
    -------
    PIL.Image.Image
        In mode ``"RGB"``, fully read; no file stays open.

    Raises
    ------
    ImageError
        If it cannot be read whole; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import decode_image
    >>> image = decode_image(np.full((4, 6), 128, dtype=np.uint8))
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (6, 4), (128, 128, 128))
    """
    from PIL import Image

    if isinstance(source, np.ndarray):
        return _from_array(source, name or "the array", max_pixels)
    if isinstance(source, Image.Image):
        with _readable(name or "the image"):
            _check_size(*source.size, max_pixels)
            return _to_rgb(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        name = name or f"{len(source)} bytes"
        opened: Any = io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        opened = Path(source)
        name = name or str(opened)
    else:
        raise ImageError(
            "image must be a path, bytes, a PIL image or a uint8 array, got "
            f"{type(source).__name__}"
        )
    if plugin_of(name) == "raw" and has_plugin("raw"):
        return _from_raw(opened, name, max_pixels)
    with _readable(name), _opened(opened) as file, open_image(file, name) as image:
        _check_size(*image.size, max_pixels)
        decoding_work(image, file, max_pixels)
        image.load()
        return _to_rgb(image)


def is_quick_to_decode(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> bool:
    """Return whether decoding an image takes no more than about a quarter of a second.

    Only headers are read. A file that :func:`decode_image` refuses counts as quick.

    Parameters
    ----------
    data : bytes
        Content of the file.
    name : str
        Its name, which tells camera RAW from other formats.
    max_pixels : int
        As in :func:`decode_image`.

    Examples
    --------
    >>> import io
    >>> from PIL import Image
    >>> from evergrow.features.images import is_quick_to_decode
    >>> file = io.BytesIO()
    >>> Image.new("L", (64, 64)).save(file, "PNG")
    >>> is_quick_to_decode(file.getvalue(), "x.png")
    True
    """
    if plugin_of(name) == "raw" and has_plugin("raw"):
        return False
    try:
        file = io.BytesIO(data)
        with _readable(name), open_image(file, name) as image:
            _check_size(*image.size, max_pixels)
            return decoding_work(image, file, max_pixels) <= _QUICK_WORK
    except ImageError:
        return True


@contextmanager
def _opened(source: Path | io.BytesIO) -> Iterator[BinaryIO]:
    """Yield an open file; a file that is given stays open."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            yield file
    else:
        yield source


def median_side(items: Items) -> int | None:
    """Return the median length of the shorter side of the first images, from their headers; None if none can be read.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.items import Images
    >>> from evergrow.features.images import median_side
    >>> median_side(Images(np.zeros((3, 40, 60, 3), dtype=np.uint8)))
    40
    """
    sides = []
    for _, source in items.batch(range(min(_LOOKED_AT, len(items)))):
        if isinstance(source, np.ndarray):
            sides.append(min(source.shape[:2]))
        elif not isinstance(source, Exception):
            with suppress(Exception):  # decoding will say what is wrong with it
                sides.append(min(_size_of(source)))
    if sides:
        return int(np.median(sides))
    return None


def _size_of(source: Any) -> tuple[int, int]:
    """Return width and height of a file, its content or a PIL image."""
    if hasattr(source, "size"):
        return (source.width, source.height)
    if isinstance(source, (bytes, bytearray, memoryview)):
        opened: Path | io.BytesIO = io.BytesIO(source)
    else:
        opened = Path(source)
    with _opened(opened) as file, open_image(file, "the image") as image:
        return image.size


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn a decoder's exception into an error with the image's name."""
    try:
        yield
    except ImageError as error:
        if repr(name) in str(error):
            raise
        raise ImageError(f"{error} (in {name})") from error
    except MemoryError:
        raise  # says something about the machine, not about the image
    except Exception as error:  # decoders meet broken files with any exception: OSError, SyntaxError, struct.error, ...
        raise ImageError(
            f"image must be a readable image file, got {name}: {_reason(error, name)}"
        ) from error


def _reason(error: Exception, name: str) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        if unread := unread_format(name):
            return f"{unread[0]} images are not read as they are; {unread[1]}"
        return "its content is of no known image format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # the path is in the message already
    return str(error) or type(error).__name__


def _from_raw(opened: Any, name: str, max_pixels: int) -> Image:
    """Return the image that a camera's own file holds, developed as the camera would."""
    from PIL import Image

    rawpy = importlib.import_module("rawpy")
    with (
        _readable(name),
        rawpy.imread(
            opened if isinstance(opened, io.BytesIO) else os.fspath(opened)
        ) as raw,
    ):
        # Developing takes 32 times as long as a pass over a JPEG.
        most = max(1, max_pixels * WORK_PER_PIXEL // _RAW_UNITS_PER_PIXEL)
        _check_size(raw.sizes.raw_width, raw.sizes.raw_height, most)
        return Image.fromarray(raw.postprocess(use_camera_wb=True)).convert("RGB")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"image must have at least one pixel, got {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(
            f"image must have at most {max_pixels:,} pixels, got {width} x {height} = {width * height:,}; "
            "make it smaller"
        )


def _to_rgb(image: Image) -> Image:
    """Return an image in RGB, turned as its EXIF data says, without any metadata."""
    from PIL.Image import Transpose

    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # a damaged EXIF block says nothing about the pixels
        orientation = None
    converted = _converted(image)
    if orientation in _TURNS:
        converted = converted.transpose(Transpose[_TURNS[orientation]])
    elif converted is image:
        converted = image.copy()
    converted.info = {}
    return converted


def _converted(image: Image) -> Image:
    """Convert an image to RGB as :func:`decode_image` documents it."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith(("I", "F")):
        return _scaled_to_bytes(image).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        # The same colours, without a warning about transparency.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _scaled_to_bytes(image: Image) -> Image:
    """Scale grey levels of 16 bits, 32 bits or floating point to 0..255.

    Bands of rows are scaled one after another, so that memory stays small beside the
    image itself.
    """
    from PIL import Image

    rows_at_once = max(1, _BAND // image.width)
    bands = [
        (0, top, image.width, min(top + rows_at_once, image.height))
        for top in range(0, image.height, rows_at_once)
    ]
    low = math.inf
    high = -math.inf
    for band in bands:
        levels = np.asarray(image.crop(band))
        band_low = float(levels.min())
        band_high = float(levels.max())
        if not (math.isfinite(band_low) and math.isfinite(band_high)):
            raise ImageError("image must have finite grey levels, got NaN or infinity")
        low = min(low, band_low)
        high = max(high, band_high)
    if image.mode == "F" and low >= 0 and high <= 1:
        low = 0.0
        high = 1.0
    elif image.mode != "F" and low >= 0 and high <= 65535:
        # The range of the format, so that a dark image stays dark.
        low = 0.0
        high = 65535.0
    span = high - low or 1.0
    scaled = np.empty((image.height, image.width), dtype=np.uint8)
    for band in bands:
        levels = np.asarray(image.crop(band)).astype(np.float64)
        levels -= low
        levels /= span
        levels *= 255
        scaled[band[1] : band[3]] = np.rint(levels, out=levels)
    return Image.fromarray(scaled)


def _from_array(array: NDArray[Any], name: str, max_pixels: int) -> Image:
    from PIL import Image

    channels = array.shape[2] if array.ndim == 3 else 1
    if (
        array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or channels not in (1, 3, 4)
        or array.size == 0
    ):
        raise ImageError(
            f"image must be uint8 of shape (height, width) or (height, width, 1, 3 or 4), got {array.dtype} of shape "
            f"{array.shape} (in {name})"
        )
    with _readable(name):
        image = Image.fromarray(
            np.ascontiguousarray(
                array[..., 0] if array.ndim == 3 and channels == 1 else array
            )
        )
        _check_size(*image.size, max_pixels)
        return image.convert("RGB")
