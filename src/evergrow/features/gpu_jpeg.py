"""JPEG files decoded by the GPU that runs the backbone: processes beside it only read files and look at their headers.

What a GPU does not take (other formats, CMYK, files cut short, images that need a border) is decoded as always. Its
pixels differ from Pillow's where colours change, since it spreads the coarser colour channels in another way.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from evergrow.core.errors import ImageError, ParameterError
from evergrow.data.items import Items
from evergrow.features.base import Backbone
from evergrow.features.images import opened_image
from evergrow.features.loader import Failure, ImageBatches, ImageLoader, LoadedBatch
from evergrow.features.preprocess import TORCH_FILTERS, Preprocessing

_LARGEST_FILE = 2**26
_LARGEST_IMAGE = 2**26
"""Bytes of a file, and pixels of an image: what has more is decoded as always."""

_AT_ONCE = 2**27
"""Pixels that are decoded at a time: 400 MB of the GPU's memory, and as much again four times while resizing."""

_AHEAD = 3  # decoded batches that wait for the network

_ORIENTATION = 0x0112  # of the EXIF block
_TURNS: dict[int, Callable[[Tensor], Tensor]] = {
    2: lambda pixels: pixels.flip(-1),
    3: lambda pixels: pixels.flip(-2, -1),
    4: lambda pixels: pixels.flip(-2),
    5: lambda pixels: pixels.transpose(-2, -1),
    6: lambda pixels: pixels.transpose(-2, -1).flip(-1),
    7: lambda pixels: pixels.transpose(-2, -1).flip(-2, -1),
    8: lambda pixels: pixels.transpose(-2, -1).flip(-2),
}

Decoder = Callable[[list[Tensor]], list[Tensor]]
"""From the bytes of files to pixels (3, height, width); raises RuntimeError if it cannot decode one of them."""


_Made = tuple[LoadedBatch, Any] | BaseException | None  # a batch and when it is there, what went wrong, or the end


class Jpeg(NamedTuple):
    """A file that a GPU can decode.

    Parameters
    ----------
    data : bytes
        All of it.
    height, width : int
        Of the image as it is stored.
    orientation : int
        How it is to be turned, as EXIF numbers it.
    """

    data: bytes
    height: int
    width: int
    orientation: int


class EncodedBatch(NamedTuple):
    """A batch of which some images are still to be decoded.

    Parameters
    ----------
    rows : ndarray of int64
        Row numbers of the images in the batch.
    data : Tensor of uint8
        Files that are still to be decoded, one after another.
    ends : list of int
        Where each file ends.
    shapes : list of (int, int, int)
        Height, width and EXIF orientation of each.
    places : list of int
        Which images of the batch they are.
    others : Tensor of uint8 or None
        All other images, decoded, resized and cropped, in their order.
    failures : list of Failure
        What is missing.
    last : bool
        Whether a chunk ends here.
    """

    rows: NDArray[np.int64]
    data: Tensor
    ends: list[int]
    shapes: list[tuple[int, int, int]]
    places: list[int]
    others: Tensor | None
    failures: list[Failure]
    last: bool


def read_jpeg(source: Any, own: Preprocessing) -> Jpeg | None:
    """Return the file of an image if a GPU can make what a backbone takes of it; None where it is to be decoded here.

    Parameters
    ----------
    source : path-like, bytes or other
        The image; only files and their bytes can be such.
    own : Preprocessing
        What is made of it.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:  # what a link leads to may have no size and no end
            data = file.read(_LARGEST_FILE + 1)
    else:
        data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else b""
    if len(data) > _LARGEST_FILE:
        return None
    # A decoder of a GPU fills up what is missing of a file; here that is an error, which Pillow words.
    if not data.startswith(b"\xff\xd8\xff") or not data[-64:].rstrip(b"\0").endswith(b"\xff\xd9"):
        return None
    try:
        with opened_image(io.BytesIO(data)) as image:
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                return None
            height, width = image.height, image.width
            orientation = _orientation(image)
    except Exception:  # whatever is wrong with it is told by the way that all images take
        return None
    upright = (width, height) if orientation >= 5 else (height, width)
    if height * width > _LARGEST_IMAGE or min(height, width) < 1 or own.window(*upright) is None:
        return None
    return Jpeg(data, height, width, orientation)


def _orientation(image: Any) -> int:
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block says nothing about the pixels
        return 1
    return found if found in _TURNS else 1


class EncodedImages(ImageBatches):
    """Batches for processes that read and do not decode; the loader takes what a GPU does not, as bytes."""

    def __getitem__(self, number: int) -> EncodedBatch:
        """Return a batch of files."""
        planned, last = self._plan[number]
        files: list[Jpeg] = []
        places: list[int] = []
        others: list[Tensor] = []
        rows: list[int] = []
        failures: list[Failure] = []
        for row in planned:
            found = self._read(row)
            if isinstance(found, Failure):
                failures.append(found)
                continue
            if isinstance(found, Jpeg):
                places.append(len(rows))
                files.append(found)
            else:
                others.append(found)
            rows.append(row)
        together = b"".join(file.data for file in files)
        return EncodedBatch(
            np.array(rows, dtype=np.int64),
            torch.from_numpy(np.frombuffer(together, dtype=np.uint8).copy()),
            np.cumsum([len(file.data) for file in files], dtype=np.int64).tolist(),
            [(file.height, file.width, file.orientation) for file in files],
            places,
            torch.stack(others) if others else None,
            failures,
            last,
        )

    def _read(self, row: int) -> Jpeg | Tensor | Failure:
        own = self._load.transform
        try:
            found = read_jpeg(self._items.raw(row), own) if isinstance(own, Preprocessing) else None
        except (ImageError, OSError):
            found = None
        return found if found is not None else self._load.read(self._items, row)


def check_decodable(backbone: Backbone) -> None:
    """Raise :class:`ParameterError` if images of a backbone cannot be decoded by a GPU, and say why."""
    own = backbone.transform
    if backbone.device.type != "cuda":
        raise ParameterError(f"decode must be 'cpu' where the backbone runs on {backbone.device.type}, got 'gpu'")
    if backbone.kind != "image" or not isinstance(own, Preprocessing):
        raise ParameterError(f"decode must be 'cpu' for {backbone.spec.name}, whose transform is its own, got 'gpu'")
    if own.interpolation not in TORCH_FILTERS:
        raise ParameterError(
            f"decode must be 'cpu' for images that are resized by the filter {own.interpolation!r}, got 'gpu'; "
            f"GPUs have {' and '.join(map(repr, TORCH_FILTERS))}"
        )


def gpu_decoder(device: torch.device) -> Decoder:
    """Return torchvision's decoder for a GPU, once it has shown to work; torchvision says that it will go one day.

    Raises
    ------
    ParameterError
        If this torchvision has none.
    """

    def decode(files: list[Tensor]) -> list[Tensor]:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped, unused-ignore]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            decoded: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
        return decoded

    try:
        decode([_smallest()])
    except (ImportError, RuntimeError) as error:
        raise ParameterError(
            f"decode must be 'cpu' here, got 'gpu': torchvision has no JPEG decoder for {device} ({error})"
        ) from error
    return decode


def _smallest() -> Tensor:
    from PIL import Image

    held = io.BytesIO()
    Image.new("RGB", (16, 16)).save(held, "JPEG")
    return torch.frombuffer(bytearray(held.getvalue()), dtype=torch.uint8)


def decoded_batches(
    batches: Iterator[EncodedBatch], items: Items, load: ImageLoader, device: torch.device, decode: Decoder
) -> Iterator[LoadedBatch]:
    """Return an iterator over batches with all images decoded, resized and cropped, as bytes on the device.

    Parameters
    ----------
    batches : iterator of EncodedBatch
        From :class:`EncodedImages`.
    items : Items
        The images, for those that turn out to be none for the decoder.
    load : ImageLoader
        Takes those.
    device : torch.device
        Where the backbone runs.
    decode : callable
        What decodes.
    """
    own = load.transform
    assert isinstance(own, Preprocessing)  # check_decodable
    decoded = (_decoded(batch, items, load, own, device, decode) for batch in batches)
    return decoded if device.type == "cpu" else _beside(decoded, device)


def _beside(batches: Iterator[LoadedBatch], device: torch.device) -> Iterator[LoadedBatch]:
    """Yield batches that a thread makes on a stream of its own: it would else wait for the network at every turn."""
    ready: queue.Queue[_Made] = queue.Queue(maxsize=_AHEAD)
    stopped = threading.Event()
    stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def offer(made: _Made) -> bool:
        while not stopped.is_set():
            with suppress(queue.Full):
                ready.put(made, timeout=0.1)
                return True
        return False

    def work() -> None:
        try:
            with torch.inference_mode(), torch.cuda.stream(stream):
                for loaded in batches:
                    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    done.record(stream)
                    if not offer((loaded, done)):
                        return
        except BaseException as error:  # for the thread that waits
            offer(error)
        else:
            offer(None)

    thread = threading.Thread(target=work, name="evergrow-decoding", daemon=True)
    thread.start()
    try:
        while (made := ready.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            loaded, done = made
            if isinstance(loaded.batch, Tensor):
                current = torch.cuda.current_stream(device)
                current.wait_event(done)
                loaded.batch.record_stream(current)  # its memory is not to be used again before
            yield loaded
    finally:
        stopped.set()
        thread.join()


def _decoded(
    batch: EncodedBatch, items: Items, load: ImageLoader, own: Preprocessing, device: torch.device, decode: Decoder
) -> LoadedBatch:
    n = len(batch.rows)
    if not n:
        return LoadedBatch(batch.rows, None, batch.failures, batch.last)
    pixels = torch.empty((n, 3, *own.size), dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    if batch.others is not None:
        elsewhere = np.setdiff1d(np.arange(n), batch.places)
        pixels[torch.from_numpy(elsewhere).to(device)] = batch.others.to(device, non_blocking=True)
    lost: dict[int, Failure] = {}
    for part in _parts(batch.shapes):
        alike: dict[tuple[int, ...], list[tuple[int, Tensor]]] = defaultdict(list)
        for number, image in zip(part, _images(batch, part, decode)):
            place = batch.places[number]
            if image is not None:
                alike[tuple(image.shape)].append((place, image))
                continue
            found = load.read(items, int(batch.rows[place]))
            if isinstance(found, Failure):
                lost[place] = found
            else:
                pixels[place] = found.to(device)
        for images in alike.values():
            places = torch.tensor([place for place, _ in images], device=device)
            pixels[places] = _cropped(torch.stack([image for _, image in images]), own)
    if not lost:
        return LoadedBatch(batch.rows, pixels, batch.failures, batch.last)
    kept = np.setdiff1d(np.arange(n), sorted(lost))
    failures = sorted([*batch.failures, *lost.values()], key=lambda failure: failure.row)
    left = pixels[torch.from_numpy(kept).to(device)] if len(kept) else None
    return LoadedBatch(batch.rows[kept], left, failures, batch.last)


def _parts(shapes: Sequence[tuple[int, int, int]]) -> Iterator[list[int]]:
    """Yield the numbers of files that are decoded together: no more pixels at a time than there is room for."""
    part: list[int] = []
    held = 0
    for number, (height, width, _) in enumerate(shapes):
        if part and held + height * width > _AT_ONCE:
            yield part
            part, held = [], 0
        part.append(number)
        held += height * width
    if part:
        yield part


def _images(batch: EncodedBatch, part: list[int], decode: Decoder) -> list[Tensor | None]:
    """Return images the right way up; None for what the decoder does not take, or has another size than it says."""
    starts = [0, *batch.ends]
    files = [batch.data[starts[number] : starts[number + 1]] for number in part]
    try:
        decoded: list[Tensor | None] = [*decode(files)]
    except RuntimeError:  # one of them, or too little memory: one by one
        decoded = [_alone(file, decode) for file in files]
    return [_upright(image, batch.shapes[number]) for number, image in zip(part, decoded)]


def _alone(file: Tensor, decode: Decoder) -> Tensor | None:
    try:
        return decode([file])[0]
    except RuntimeError:
        return None


def _upright(image: Tensor | None, shape: tuple[int, int, int]) -> Tensor | None:
    height, width, orientation = shape
    if image is None or tuple(image.shape) != (3, height, width):
        return None
    return _TURNS[orientation](image) if orientation in _TURNS else image


def _cropped(images: Tensor, own: Preprocessing) -> Tensor:
    """Return images (n, 3, height, width) resized and cropped, as bytes."""
    window = own.window(images.shape[2], images.shape[3])
    assert window is not None  # read_jpeg looked
    (height, width), top, left = window
    if (height, width) != images.shape[2:]:
        resized = interpolate(images.float(), (height, width), mode=own.interpolation, antialias=True)
        images = resized.round_().clamp_(0, 255).to(torch.uint8)
    return images[:, :, top : top + own.size[0], left : left + own.size[1]]
