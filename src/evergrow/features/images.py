"""Decode images of all readable formats to 8-bit RGB."""

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
from evergrow.data.items import Items, has_plugin, plugin_of, unread_format
from evergrow.features.image_formats import decoding_work, open_image

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_PIXELS = 178_956_970
"""Images with more pixels are refused before decoding. Pillow has the same limit."""

ImageSource = str | os.PathLike[str] | bytes | NDArray[Any] | Any
"""A path, the bytes of a file, a PIL image or a uint8 array."""

_QUICK_WORK = 60_000_000  # units of decoding_work: about a quarter of a second
_BAND = 2**20  # pixels that are scaled at a time
_TURNS = {  # names of PIL.Image.Transpose by orientation
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

_SAMPLED_SIZES = 64  # images that median_side looks at


def decode_image(
    source: ImageSource, *, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> Image:
    """Decode an image to RGB and apply its EXIF orientation.

    Reads JPEG, PNG, WebP, GIF, TIFF, BMP and PPM, and HEIC and camera RAW if their
    plugins are installed. Other formats raise an error. Grey, palette and CMYK images
    are converted as by Pillow's ``convert("RGB")``. An alpha channel is dropped without
    blending. 16-bit grey is scaled to 8 bits, while Pillow would clip it. Only the
    first frame of an animation is decoded. The result has no metadata.

    Before decoding, the size, the bytes of decoded pixels and the work (such as the
    scans of a progressive JPEG) are read from headers and compared with ``max_pixels``.

    Parameters
    ----------
    source : path-like, bytes, PIL.Image.Image or ndarray
        A file, the content of a file, an image, or uint8 pixels of shape (height,
        width), (height, width, 1), (height, width, 3) or (height, width, 4).
    name : str, optional
        Name of the image in messages. By default the path.
    max_pixels : int
        Larger images raise an error before they are decoded.

    Returns
    -------
    PIL.Image.Image
        In mode ``"RGB"`` and loaded. No file stays open.

    Raises
    ------
    ImageError
        If the image is too large or cannot be read completely. The message names it.

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
    with _readable(name), _open(opened) as file, open_image(file, name) as image:
        _check_size(*image.size, max_pixels)
        decoding_work(image, file, max_pixels)
        image.load()
        return _to_rgb(image)


def is_quick_to_decode(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> bool:
    """Return whether decoding an image takes at most about a quarter of a second.

    Only headers are read. Files that :func:`decode_image` refuses count as quick.

    Parameters
    ----------
    data : bytes
        Content of the file.
    name : str
        Name of the file. Its extension identifies camera RAW.
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


def _open(source: Path | io.BytesIO) -> BinaryIO:
    """Open a path. A file in memory is returned as it is."""
    if isinstance(source, Path):
        return source.open("rb")
    return source


def median_side(items: Items) -> int | None:
    """Return the median length in pixels of the shorter side of the first images.

    Only headers of at most 64 images are read. Unreadable images are left out. The
    result is None if no image can be read.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.items import Images
    >>> from evergrow.features.images import median_side
    >>> median_side(Images(np.zeros((3, 40, 60, 3), dtype=np.uint8)))
    40
    """
    sides = []
    for _, source in items.batch(range(min(_SAMPLED_SIZES, len(items)))):
        if isinstance(source, np.ndarray):
            sides.append(min(source.shape[:2]))
        elif not isinstance(source, Exception):
            with suppress(Exception):  # decoding reports the error
                sides.append(min(_size_of(source)))
    return int(np.median(sides)) if sides else None


def _size_of(source: Any) -> tuple[int, int]:
    """Return the width and height of an image: a path, bytes of a file or a PIL image.

    Raises any error of decoders if it cannot be read.
    """
    if hasattr(source, "size"):
        return (source.width, source.height)
    if isinstance(source, (bytes, bytearray, memoryview)):
        opened: Path | io.BytesIO = io.BytesIO(source)
    else:
        opened = Path(source)
    with _open(opened) as file, open_image(file, "the image") as image:
        return image.size


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Convert exceptions of decoders to :class:`ImageError` with the image's name."""
    try:
        yield
    except ImageError as error:
        if repr(name) in str(error):
            raise
        raise ImageError(f"{error} (in {name})") from error
    except MemoryError:
        raise  # the image may be valid
    except Exception as error:  # decoders raise any type for broken files
        raise ImageError(
            f"image must be a readable image file, got {name}: {_reason(error, name)}"
        ) from error


def _reason(error: Exception, name: str) -> str:
    """Return why a decoder failed, for a message that names the image."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        if unread := unread_format(name):
            return f"{unread[0]} images are not read as they are; {unread[1]}"
        return "its content is of no known image format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path, which is part of the message
    return str(error) or type(error).__name__


def _from_raw(opened: Path | io.BytesIO, name: str, max_pixels: int) -> Image:
    """Develop camera RAW with the white balance of the camera, as an RGB image."""
    from PIL import Image

    rawpy = importlib.import_module("rawpy")
    source = os.fspath(opened) if isinstance(opened, Path) else opened
    with _readable(name), rawpy.imread(source) as raw:
        _check_size(raw.sizes.raw_width, raw.sizes.raw_height, max_pixels)
        return Image.fromarray(raw.postprocess(use_camera_wb=True)).convert("RGB")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise :class:`ImageError` if an image has no pixel or more than `max_pixels`."""
    if width < 1 or height < 1:
        raise ImageError(f"image must have at least one pixel, got {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(
            f"image must have at most {max_pixels:,} pixels, got {width} x {height} = "
            f"{width * height:,}; make it smaller"
        )


def _to_rgb(image: Image) -> Image:
    """Return an image in RGB, turned by its EXIF orientation, without metadata.

    The given image does not change.
    """
    from PIL.ExifTags import Base
    from PIL.Image import Transpose

    try:
        orientation = image.getexif().get(Base.Orientation)
    except Exception:  # the EXIF data are damaged, the pixels may be intact
        orientation = None
    converted = _converted(image)
    if orientation in _TURNS:
        converted = converted.transpose(Transpose[_TURNS[orientation]])
    elif converted is image:
        converted = image.copy()
    converted.info = {}
    return converted


def _converted(image: Image) -> Image:
    """Convert an image to RGB as :func:`decode_image` documents it.

    An image in RGB is returned as it is, not copied.
    """
    if image.mode == "RGB":
        return image
    if image.mode.startswith(("I", "F")):
        return _scaled_to_bytes(image).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        # Avoids Pillow's warning about transparency. The colours are the same.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _scaled_to_bytes(image: Image) -> Image:
    """Scale grey levels of 16 bits, 32 bits or floating point to 0..255.

    Levels from 0 to 1 in floating point, and from 0 to 65535 in integers, are scaled by
    that range. Others are scaled by their own. Bands of rows are scaled one after
    another to save memory. Raises :class:`ImageError` if a level is not finite.
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
        # The full range of 16 bits: a dark image stays dark.
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
    """Convert uint8 pixels to an RGB image, or raise :class:`ImageError`.

    The shape is (height, width), or (height, width, channels) with 1, 3 or 4 channels.
    """
    from PIL import Image

    channels = array.shape[2] if array.ndim == 3 else 1
    if (
        array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or channels not in (1, 3, 4)
        or array.size == 0
    ):
        raise ImageError(
            "image must be uint8 of shape (height, width) or (height, width, 1, 3 or "
            f"4), got {array.dtype} of shape {array.shape} (in {name})"
        )
    if array.ndim == 3 and channels == 1:
        array = array[..., 0]
    with _readable(name):
        image = Image.fromarray(np.ascontiguousarray(array))
        _check_size(*image.size, max_pixels)
        return image.convert("RGB")
