"""Decode images of all readable formats to 8-bit RGB, after checks of the file.

A small file can ask for much work: a progressive JPEG may repeat its scans, a TIFF may
store tiles larger than the image, a PNG may hold thousands of compressed profiles. The
checks read headers only. They estimate the work of decoding and refuse files that ask
for more than an honest file of the largest accepted size.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ImageError
from evergrow.core.files import StrPath
from evergrow.data.items import Items, has_plugin, plugin_of, unread_format

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 178_956_970
"""Images with more pixels are refused before decoding. Pillow has the same limit."""

ImageSource = StrPath | bytes | NDArray[Any] | Any
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
    elif isinstance(source, (str, os.PathLike)):
        name = name or os.fspath(source)
    else:
        raise ImageError(
            "image must be a path, bytes, a PIL image or a uint8 array, got "
            f"{type(source).__name__}"
        )
    if plugin_of(name) == "raw" and has_plugin("raw"):
        return _from_raw(source, name, max_pixels)
    with _readable(name), _open(source) as file, open_image(file, name) as image:
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
        with _readable(name), _open(data) as file, open_image(file, name) as image:
            _check_size(*image.size, max_pixels)
            return decoding_work(image, file, max_pixels) <= _QUICK_WORK
    except ImageError:
        return True


def _open(source: Any) -> BinaryIO:
    """Open a path, or the content of a file."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    return Path(source).open("rb")


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
    with _open(source) as file, open_image(file, "the image") as image:
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
            return f"{unread[0]} are not read as they are; {unread[1]}"
        return "its content is of no known image format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the path, which is part of the message
    return str(error) or type(error).__name__


def _from_raw(source: Any, name: str, max_pixels: int) -> Image:
    """Develop camera RAW with the white balance of the camera, as an RGB image."""
    from PIL import Image

    rawpy = importlib.import_module("rawpy")
    is_path = isinstance(source, (str, os.PathLike))
    file = os.fspath(source) if is_path else io.BytesIO(source)
    with _readable(name), rawpy.imread(file) as raw:
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


# -- checks before decoding ------------------------------------------------------------


WORK_PER_PIXEL = 16
"""Largest work of decoding, in passes over an image of ``max_pixels`` pixels.

One pass is one scan of a JPEG, about 3 ns per pixel. A progressive photograph has 10
scans.
"""

# Names for people by Pillow's names. JPEG includes MPO, which holds several images.
_PILLOW_FORMATS = {
    "JPEG": "JPEG",
    "PNG": "PNG",
    "WEBP": "WebP",
    "GIF": "GIF",
    "TIFF": "TIFF",
    "BMP": "BMP",
    "PPM": "PPM",
}
_HEIF = "HEIF"

_PREFIX = 64  # bytes at the start of a file that tell its format
# Starts of files of other formats, which are named in errors.
_FOREIGN = (
    (re.compile(rb"%!PS|\xc5\xd0\xd3\xc6"), "an EPS"),
    (re.compile(rb"%PDF"), "a PDF"),
    (re.compile(rb"8BPS"), "a PSD"),
    (re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"), "a JPEG 2000"),
    (re.compile(rb"\0\0\0\x0cJXL |\xff\x0a"), "a JPEG XL"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "an AVIF"),
    (re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL), "a HEIC"),
    (re.compile(rb"\s*<(\?xml|svg|!DOCTYPE svg)", re.IGNORECASE), "an SVG or XML"),
    (re.compile(rb"\0\0[\x01\x02]\0"), "an ICO or CUR"),
    (re.compile(rb"icns"), "an ICNS"),
    (re.compile(rb"qoif"), "a QOI"),
    (re.compile(rb"DDS "), "a DDS"),
    (re.compile(rb"SIMPLE  ="), "a FITS"),
    (re.compile(rb"\x89HDF"), "an HDF5"),
    (re.compile(rb"\xd7\xcd\xc6\x9a|\x01\0\0\0.{36} EMF", re.DOTALL), "a WMF or EMF"),
)

# Units of work. One unit is one pixel in one scan of a JPEG (about 3 ns). Formats that
# are missing here take one unit per pixel, and none per byte.
_UNITS_PER_BYTE = {"JPEG": 8, "MPO": 8, "PNG": 8, "WEBP": 24, "GIF": 8, "HEIF": 24}
_UNITS_PER_PIXEL = {"PNG": 2, "WEBP": 4, "GIF": 2, "HEIF": 2}
# Decoders that Pillow has written in Python, for 8 and 16 bits.
_UNITS_IN_PYTHON = 400
_DEEP_UNITS_IN_PYTHON = 1200

_MAX_JPEG_SEGMENTS = 2000  # before the first scan
_MAX_JPEG_PADDING = 65_536  # bytes outside of segments before the first scan
_MAX_PNG_OTHER_CHUNKS = 1000  # chunks without pixels
_GIF_HEADER = 13  # bytes
_MAX_GIF_BLOCKS = 20_000  # before the first frame
_MAX_TIFF_ENTRIES = 4096
_MAX_TIFF_VALUES = 200_000  # of an entry: a palette has 196,608
_MAX_HEIF_META = 4 * 2**20  # bytes
_MAX_HEIF_BOXES = 20_000
_BIG_TIFF = 43  # version with numbers of 8 bytes
_TIFF_BYTE_TYPES = (1, 2, 6, 7)  # types of values that are read as bytes at once
_TIFF_JPEG = 7
_TIFF_COMPRESSIONS = {
    1: "none",
    2: "CCITT RLE",
    3: "CCITT group 3",
    4: "CCITT group 4",
    5: "LZW",
    _TIFF_JPEG: "JPEG",
    8: "deflate",
    32773: "PackBits",
    32946: "deflate",
    50000: "Zstandard",
}
_BYTES_PER_PIXEL = 4  # of Pillow's images in memory

_START_OF_SCAN = b"\xff\xda"
_MARKER_IN_SCAN = re.compile(rb"\xff[^\0\1\xff\xd0-\xd7]")
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE_MARKERS = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})


def read_formats() -> list[str]:
    """Return the names of the image formats that can be read on this machine.

    Examples
    --------
    >>> from evergrow.features.images import read_formats
    >>> read_formats()[:4]
    ['JPEG', 'PNG', 'WebP', 'GIF']
    """
    names = list(_PILLOW_FORMATS.values())
    if has_plugin("heic"):
        names.append("HEIC")
    return names


def open_image(file: BinaryIO, name: str) -> Image:
    """Open an image without decoding it. The file stays open.

    Only the formats of :func:`read_formats` are tried. No other decoder of Pillow, and
    no program that one of them would start, sees the file.

    Parameters
    ----------
    file : binary file
        Can be read from any position.
    name : str
        Name of the file in messages.

    Returns
    -------
    PIL.Image.Image
        Not loaded yet.

    Raises
    ------
    ImageError
        If the file is of a known format that is not read, or if its structure asks for
        more work than a header should.

    Examples
    --------
    >>> import io
    >>> from evergrow.features.images import open_image
    >>> open_image(io.BytesIO(b"%!PS-Adobe-3.0 EPSF-3.0"), "x.eps")
    Traceback (most recent call last):
    ...
    evergrow.core.errors.ImageError: 'x.eps' is an EPS file; evergrow reads JPEG, ...
    """
    from PIL import Image, UnidentifiedImageError

    prefix = _read_at(file, 0, _PREFIX)
    _check_structure(file, prefix)
    file.seek(0)
    try:
        return Image.open(file, formats=_prepare_pillow())
    except UnidentifiedImageError as error:
        for pattern, title in _FOREIGN:
            if title == "a HEIC" and has_plugin("heic"):
                continue
            if pattern.match(prefix):
                readable = ", ".join(read_formats())
                message = f"{name!r} is {title} file; evergrow reads {readable}"
                if title == "a HEIC":
                    message += "; pip install 'evergrow[heic]' reads it"
                raise ImageError(message) from error
        raise


@cache
def _prepare_pillow() -> tuple[str, ...]:
    """Return the formats to try, by Pillow's names.

    The first call registers the HEIC plugin, if it is installed, and silences Pillow's
    warnings in this process.
    """
    from PIL import Image

    # Refusing is up to the checks here. Pillow warns once per damaged tag, which would
    # fill the log of a service.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    if not has_plugin("heic"):
        return tuple(_PILLOW_FORMATS)
    importlib.import_module("pillow_heif").register_heif_opener()
    return (*_PILLOW_FORMATS, _HEIF)


def _check_structure(file: BinaryIO, prefix: bytes) -> None:
    """Refuse a file whose header takes long to parse.

    Raises :class:`ImageError` if it has more segments, chunks, blocks or tags than an
    image needs. Files of other formats than JPEG, PNG, GIF and TIFF are not checked.

    Parameters
    ----------
    file : binary file
        An image file, or anything else. Its position changes.
    prefix : bytes
        Start of the file.
    """
    if prefix.startswith(b"\xff\xd8"):
        file.seek(0)
        _read_jpeg_header(file.read())
    elif prefix.startswith(b"\x89PNG\r\n\x1a\n"):
        _check_png(file)
    elif prefix.startswith((b"GIF87a", b"GIF89a")):
        _check_gif(file)
    elif prefix.startswith((b"II", b"MM")):
        _check_tiff(file)


def _read_at(file: BinaryIO, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)


def _read_jpeg_header(data: bytes) -> tuple[int, int]:
    """Return the pixels of the largest frame and the position of the first scan.

    The position is the end of the data if there is no scan. Raises
    :class:`ImageError` if the header has too many segments or too much padding.
    """
    position = 2
    segments = 0
    padding = 0
    pixels = 0
    while position + 4 <= len(data):
        if segments > _MAX_JPEG_SEGMENTS or padding > _MAX_JPEG_PADDING:
            raise ImageError(
                f"a JPEG file must have at most {_MAX_JPEG_SEGMENTS:,} segments and "
                f"{_MAX_JPEG_PADDING:,} bytes of padding before its pixels"
            )
        if data[position] != 0xFF:
            found = data.find(b"\xff", position)
            if found < 0:
                break
            padding += found - position
            position = found
            continue
        marker = data[position + 1]
        if marker == 0xFF:
            padding += 1
            position += 1
        elif marker in _STANDALONE_MARKERS:
            padding += 2
            position += 2
        elif marker in _START_OF_SCAN[1:]:
            return pixels, position
        else:
            if marker in _FRAME_MARKERS and position + 9 <= len(data):
                height, width = struct.unpack_from(">HH", data, position + 5)
                pixels = max(pixels, height * width)
            segments += 1
            (length,) = struct.unpack_from(">H", data, position + 2)
            position += 2 + length
    return pixels, len(data)


def _check_png(file: BinaryIO) -> None:
    """Raise :class:`ImageError` for too many chunks, or two colour profiles.

    Pillow parses every chunk: those before the pixels when it opens the file, and the
    others when it loads the pixels. Many small chunks take a long time.
    """
    size = file.seek(0, io.SEEK_END)
    position = 8
    chunks = 0
    other_chunks = 0
    profiles = 0
    while len(head := _read_at(file, position, 8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        chunks += 1
        if kind not in (b"IDAT", b"fdAT", b"fcTL"):
            other_chunks += 1
        if kind == b"iCCP":
            profiles += 1
        # Encoders write pixels in chunks of several kB.
        max_chunks = _MAX_PNG_OTHER_CHUNKS + size // 1000
        if chunks > max_chunks or other_chunks > _MAX_PNG_OTHER_CHUNKS:
            raise ImageError(
                f"a PNG file must have at most {_MAX_PNG_OTHER_CHUNKS:,} chunks "
                "besides its pixels, and at most one more per 1,000 bytes of the file"
            )
        if profiles > 1:
            raise ImageError("a PNG file must have at most one colour profile")
        if kind == b"IEND":
            break
        position += 12 + length  # length, kind and checksum take 12 bytes


def _check_gif(file: BinaryIO) -> None:
    """Raise :class:`ImageError` for too many blocks before the first frame."""
    head = _read_at(file, 0, _GIF_HEADER)
    if len(head) < _GIF_HEADER:
        return
    flags = head[10]
    position = _GIF_HEADER
    if flags & 0x80:  # a palette of 3 bytes for each colour follows
        position += 3 << (flags & 7) + 1
    file.seek(position)
    blocks = 0
    while file.read(1) == b"!":
        file.read(1)  # the type of the extension
        while size := file.read(1):
            blocks += 1
            if blocks > _MAX_GIF_BLOCKS:
                raise ImageError(
                    f"a GIF file must have at most {_MAX_GIF_BLOCKS:,} blocks before "
                    "its first frame"
                )
            if size == b"\0":
                break
            file.seek(size[0], io.SEEK_CUR)


def _check_tiff(file: BinaryIO) -> None:
    """Raise :class:`ImageError` for too many tags, or a tag with too many values.

    Only the first directory is checked, which Pillow reads when it opens a file.
    Damaged directories are left to Pillow.
    """
    head = _read_at(file, 0, 16)
    order = "<" if head.startswith(b"II") else ">"
    try:
        (version,) = struct.unpack_from(f"{order}H", head, 2)
        # A tag has its number, the type and the number of its values, and the values.
        if version == _BIG_TIFF:
            (start,) = struct.unpack_from(f"{order}Q", head, 8)
            count_format = f"{order}Q"
            entry_format = f"{order}HHQ8x"
        else:
            (start,) = struct.unpack_from(f"{order}I", head, 4)
            count_format = f"{order}H"
            entry_format = f"{order}HHI4x"
        count_size = struct.calcsize(count_format)
        (entries,) = struct.unpack(count_format, _read_at(file, start, count_size))
    except (struct.error, OverflowError, ValueError, OSError):
        return  # Pillow reports the error
    if entries > _MAX_TIFF_ENTRIES:
        raise ImageError(
            f"a TIFF file must have at most {_MAX_TIFF_ENTRIES:,} tags, got {entries:,}"
        )
    entry_size = struct.calcsize(entry_format)
    table = file.read(entries * entry_size)
    whole = len(table) - len(table) % entry_size
    for tag, kind, values in struct.iter_unpack(entry_format, table[:whole]):
        if kind not in _TIFF_BYTE_TYPES and values > _MAX_TIFF_VALUES:
            raise ImageError(
                f"a tag of a TIFF file must have at most {_MAX_TIFF_VALUES:,} values, "
                f"got {values:,} in tag {tag}; store the image in larger strips"
            )


def decoding_work(image: Image, file: BinaryIO, max_pixels: int) -> int:
    """Return an estimate of the work of decoding an opened image.

    Parameters
    ----------
    image : PIL.Image.Image
        From :func:`open_image`; its size has been checked.
    file : binary file
        The file that it was opened from.
    max_pixels : int
        Largest number of pixels of an image. The limit of the work is
        :data:`WORK_PER_PIXEL` times this number.

    Returns
    -------
    int
        Units of about 3 ns.

    Raises
    ------
    ImageError
        If it is too much, or if decoded pixels would need too much memory.

    Examples
    --------
    >>> import io
    >>> from PIL import Image
    >>> from evergrow.features.images import decoding_work, open_image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (20, 10)).save(file, "BMP")
    >>> decoding_work(open_image(file, "x.bmp"), file, max_pixels=1000)
    200
    """
    position = file.tell()  # Pillow goes on reading from here
    try:
        size = file.seek(0, io.SEEK_END)
        pixels = image.width * image.height
        kind = image.format or ""
        work = pixels * _UNITS_PER_PIXEL.get(kind, 1)
        work += size * _UNITS_PER_BYTE.get(kind, 0)
        if image.mode.startswith(("I", "F")):
            work += 2 * pixels  # grey levels are scaled
        if kind in ("JPEG", "MPO"):
            file.seek(0)
            work += _jpeg_work(file.read(), pixels, max_pixels * WORK_PER_PIXEL)
        elif kind == _HEIF:
            work += _UNITS_PER_PIXEL[_HEIF] * _heif_pixels(file, size)
        elif kind == "TIFF":
            work += _tiff_work(image, file, max_pixels)
        elif kind in ("PPM", "BMP"):
            work = pixels * _units_per_pixel(image)
    finally:
        file.seek(position)
    if work > max_pixels * WORK_PER_PIXEL:
        raise ImageError(
            f"image must take at most {WORK_PER_PIXEL} passes over {max_pixels:,} "
            f"pixels to decode, got {work / max_pixels:,.0f}; make it smaller, or save "
            "it as a PNG or a JPEG that is not progressive"
        )
    return work


def _jpeg_work(data: bytes, pixels: int, most: int) -> int:
    """Return the number of scans times pixels. Above `most`, it is a lower bound.

    Every scan begins with a marker, so that counting its two bytes gives an upper
    bound. The segments are walked only if that bound is too high, since thumbnails
    contain scans too.
    """
    frame_pixels, start = _read_jpeg_header(data)
    pixels = max(pixels, frame_pixels)
    scans = data.count(_START_OF_SCAN, start)
    if scans * pixels > most:
        scans = _count_scans(data, start, most // max(1, pixels))
    return scans * pixels


def _count_scans(data: bytes, position: int, most: int) -> int:
    """Count the scans of a JPEG from `position` to its end marker.

    Counting stops at ``most + 1``.
    """
    scans = 0
    while found := _MARKER_IN_SCAN.search(data, position):
        position = found.start()
        marker = data[position + 1]
        if marker == 0xD9:
            break
        if marker == 0xDA:
            scans += 1
            if scans > most:
                break
        if position + 4 > len(data):
            break
        (length,) = struct.unpack_from(">H", data, position + 2)
        position += 2 + length
    return scans


@dataclass
class _HeifItems:
    """Images in a HEIC file, according to its metadata.

    Parameters
    ----------
    sizes : list of int
        Pixels of each property, 0 for a property that is not a size.
    properties : dict of int to list of int
        Properties of each item, counted from 1.
    parts : dict of int to list of int
        Items that a derived item, such as a grid of tiles, is made of.
    n_boxes : int
        Number of boxes read so far.
    """

    sizes: list[int] = field(default_factory=list)
    properties: dict[int, list[int]] = field(default_factory=dict)
    parts: dict[int, list[int]] = field(default_factory=dict)
    n_boxes: int = 0

    def boxes(self, data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the kind and the content of each box, and count it."""
        position = 0
        while position + 8 <= len(data):
            self.n_boxes += 1
            if self.n_boxes > _MAX_HEIF_BOXES:
                raise ImageError(
                    f"a HEIC file must have at most {_MAX_HEIF_BOXES:,} boxes of "
                    "metadata"
                )
            length, kind, start = _heif_box(data[position:], len(data) - position)
            if length < start:
                raise ImageError("the metadata of the HEIC file is damaged")
            yield kind, data[position + start : position + length]
            position += length

    def read(self, data: memoryview) -> None:
        """Read the boxes of a ``meta`` box, or of a box in it, into this record."""
        for kind, body in self.boxes(data):
            if kind == b"iprp":
                self.read(body)
            elif kind == b"ipco":
                self.sizes = [_heif_size(*box) for box in self.boxes(body)]
            elif kind == b"ipma":
                self._read_associations(body)
            elif kind == b"iref":
                self._read_references(body)

    def _read_associations(self, data: memoryview) -> None:
        """Read the box ``ipma``: which properties an item has."""
        version = data[0]
        is_wide = data[3] & 1
        (entries,) = struct.unpack_from(">I", data, 4)
        position = 8
        for _ in range(entries):
            item_format = ">I" if version else ">H"
            (item,) = struct.unpack_from(item_format, data, position)
            position += struct.calcsize(item_format)
            (count,) = struct.unpack_from(">B", data, position)
            index_format = f">{count}{'H' if is_wide else 'B'}"
            indices = struct.unpack_from(index_format, data, position + 1)
            position += 1 + struct.calcsize(index_format)
            without_flag = 0x7FFF if is_wide else 0x7F
            properties = self.properties.setdefault(item, [])
            properties.extend(index & without_flag for index in indices)

    def _read_references(self, data: memoryview) -> None:
        """Read the box ``iref``: which items a derived item is made of."""
        number = "I" if data[0] == 1 else "H"
        for kind, body in self.boxes(data[4:]):
            if kind == b"dimg":
                item, count = struct.unpack_from(f">{number}H", body)
                start = struct.calcsize(f">{number}H")
                parts = struct.unpack_from(f">{count}{number}", body, start)
                self.parts.setdefault(item, []).extend(parts)

    def pixels(self, item: int, known: dict[int, int]) -> int:
        """Return the pixels that are decoded for an item: all tiles of a grid.

        `known` holds the results of other items, and gets the result.
        """
        if item in known:
            return known[item]
        known[item] = 0  # an item that is part of itself is refused by the decoder
        own = [
            self.sizes[index - 1]
            for index in self.properties.get(item, ())
            if 0 < index <= len(self.sizes)
        ]
        total = max(own, default=0) or max(self.sizes, default=0)
        if item in self.parts:
            total = sum(self.pixels(part, known) for part in self.parts[item])
        known[item] = total
        return total


def _heif_box(data: bytes | memoryview, available: int) -> tuple[int, bytes, int]:
    """Return length and kind of the box at the start, and where its content begins.

    `available` is the number of bytes up to the end, to which a box without a length
    extends.
    """
    length, kind = struct.unpack_from(">I4s", data)
    if length == 1:
        (length,) = struct.unpack_from(">Q", data, 8)
        return length, kind, 16
    return length or available, kind, 8


def _heif_size(kind: bytes, body: memoryview) -> int:
    """Return the pixels of a property, 0 if it is not a size."""
    if kind != b"ispe":
        return 0
    width, height = struct.unpack_from(">II", body, 4)
    return int(width * height)


def _heif_pixels(file: BinaryIO, size: int) -> int:
    """Return the largest number of pixels that are decoded for an image.

    A grid may have more or larger tiles than its size needs, and repeat a tile.
    """
    items = _HeifItems()
    position = 0
    try:
        while position + 8 <= size:
            head = _read_at(file, position, 16)
            length, kind, start = _heif_box(head, size - position)
            if kind == b"meta":
                if length > _MAX_HEIF_META:
                    raise ImageError(
                        f"the metadata of a HEIC file must have at most "
                        f"{_MAX_HEIF_META:,} bytes, got {length:,}"
                    )
                body = _read_at(file, position + start + 4, length - start - 4)
                items.read(memoryview(body))
            if length < 8:
                break
            position += length
        known: dict[int, int] = {}
        return max((items.pixels(item, known) for item in items.parts), default=0)
    except (struct.error, IndexError, RecursionError) as error:
        raise ImageError("the metadata of the HEIC file is damaged") from error


def _tiff_work(image: Image, file: BinaryIO, max_pixels: int) -> int:
    """Return the work beyond one pass.

    Raises :class:`ImageError` if the compression is unknown, or if whole tiles or their
    bytes exceed the limits.
    """
    from PIL import TiffImagePlugin

    tags = image.tag_v2  # type: ignore[attr-defined]
    compression = tags.get(TiffImagePlugin.COMPRESSION, 1)
    if compression not in _TIFF_COMPRESSIONS:
        raise ImageError(
            f"a TIFF file must be compressed with one of "
            f"{', '.join(dict.fromkeys(_TIFF_COMPRESSIONS.values()))}, got compression "
            f"{compression}"
        )
    tile_width = max(1, int(tags.get(TiffImagePlugin.TILEWIDTH, image.width)))
    tile_height = max(1, int(tags.get(TiffImagePlugin.TILELENGTH, image.height)))
    width = math.ceil(image.width / tile_width) * tile_width
    height = math.ceil(image.height / tile_height) * tile_height
    pixels = width * height
    if pixels > max_pixels:
        raise ImageError(
            f"image must have at most {max_pixels:,} pixels in whole tiles, got "
            f"{width} x {height} = {pixels:,}; make it smaller"
        )
    bits = int(max(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,))))
    decoded = pixels * bits * int(tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1)) // 8
    if decoded > max_pixels * _BYTES_PER_PIXEL:
        raise ImageError(
            f"image must have at most {max_pixels * _BYTES_PER_PIXEL:,} bytes when "
            f"decoded, got {decoded:,}; save it with 8 bits per channel"
        )
    if compression == _TIFF_JPEG:
        return decoded + _tiff_jpeg_work(tags, file, pixels)
    return decoded


def _tiff_jpeg_work(tags: Any, file: BinaryIO, pixels: int) -> int:
    """Return the number of scans times pixels, summed over all strips or tiles.

    `tags` are Pillow's tags by number, `pixels` the pixels of whole tiles. Raises
    :class:`ImageError` if strips overlap, which would multiply the work.
    """
    from PIL import TiffImagePlugin

    offsets = (
        tags.get(TiffImagePlugin.TILEOFFSETS)
        or tags.get(TiffImagePlugin.STRIPOFFSETS)
        or ()
    )
    sizes = (
        tags.get(TiffImagePlugin.TILEBYTECOUNTS)
        or tags.get(TiffImagePlugin.STRIPBYTECOUNTS)
        or ()
    )
    size = file.seek(0, io.SEEK_END)
    if len(sizes) != len(offsets):
        return _read_at(file, 0, size).count(_START_OF_SCAN) * pixels
    if sum(sizes) > 2 * size:
        raise ImageError("strips of a TIFF file must not overlap")
    work = 0
    for offset, length in zip(offsets, sizes, strict=True):
        data = _read_at(file, offset, length)
        frame_pixels, start = _read_jpeg_header(data)
        work += data.count(_START_OF_SCAN, start) * max(
            frame_pixels, pixels // len(offsets)
        )
    return work


def _units_per_pixel(image: Image) -> int:
    """Return the work per pixel of a PPM or BMP: Pillow decodes some in Python."""
    tile = image.tile[0]  # type: ignore[attr-defined]
    if tile.codec_name == "raw":
        return 1
    if tile.codec_name == "ppm" and tile.args[1] > 255:  # the largest grey level
        return _DEEP_UNITS_IN_PYTHON
    return _UNITS_IN_PYTHON
