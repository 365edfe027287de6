"""JPEG files decoded by the GPU that runs the backbone: processes beside it only read files and look at their headers.

Whatever the GPU does not take (other formats, CMYK, truncated files, images that need a border) is decoded by Pillow.
The pixels differ from Pillow's where colours change, because the GPU interpolates the colour channels differently.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from evergrow.core.errors import ParameterError
from evergrow.data.items import Items
from evergrow.features.base import Backbone
from evergrow.features.images import Failure, ImageReader, LoadedBatch, opened_image
from evergrow.features.preprocess import Preprocessing

TORCH_FILTERS = ("bilinear", "bicubic")
"""Filters that torch resizes with, antialiased."""

_LARGEST_FILE = 2**26
_LARGEST_IMAGE = 2**26
"""Bytes of a file, and pixels of an image: what has more is decoded by Pillow."""

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
_LYING = (5, 6, 7, 8)  # whose height and width change places


class Jpeg(NamedTuple):
    """A file that the GPU can decode: its bytes, its number of pixels, and its EXIF orientation."""

    data: bytes
    pixels: int
    orientation: int


class FileBatch(NamedTuple):
    """A batch on its way to the GPU. All files are one tensor: a tensor each would be slow to send between processes.

    Parameters
    ----------
    rows : list of int
        Row numbers of the images.
    data : Tensor of uint8
        The bytes of the files, one after another.
    files : list of (int, int, int)
        Bytes, pixels and EXIF orientation of each file.
    places : list of int
        Which images of the batch the files are.
    others : Tensor of uint8 or None
        The pixels of the other images, in order.
    failures : list of Failure
        Images that could not be read.
    """

    rows: list[int]
    data: Tensor
    files: list[tuple[int, int, int]]
    places: list[int]
    others: Tensor | None
    failures: list[Failure]


def check_decodable(backbone: Backbone) -> None:
    """Raise :class:`ParameterError` if images of a backbone cannot be decoded by a GPU, and say why."""
    own = backbone.transform
    if backbone.device.type != "cuda":
        raise ParameterError(f"decode must be 'cpu' where the backbone runs on {backbone.device.type}, got 'gpu'")
    if not isinstance(own, Preprocessing) or own.interpolation not in TORCH_FILTERS:
        raise ParameterError(
            f"decode must be 'cpu' for {backbone.spec.name}, got 'gpu': a GPU resizes images by the filters "
            f"{' and '.join(map(repr, TORCH_FILTERS))} only"
        )


class FileReader(ImageReader):
    """Reads batches in which JPEG files stay files."""

    def load(self, source: Any, name: str | None = None) -> Any:
        """Return a :class:`Jpeg` if the GPU can decode the image, or else its pixels."""
        found = self._jpeg(source)
        return super().load(source, name) if found is None else found

    def __getitems__(self, rows: Sequence[int]) -> FileBatch:
        """Return a batch of files."""
        read, loaded, failures = self.read(rows)
        places = [place for place, item in enumerate(loaded) if isinstance(item, Jpeg)]
        files = [loaded[place] for place in places]
        others = [item for item in loaded if not isinstance(item, Jpeg)]
        data = np.frombuffer(b"".join(file.data for file in files), dtype=np.uint8).copy()
        about = [(len(file.data), file.pixels, file.orientation) for file in files]
        return FileBatch(read, torch.from_numpy(data), about, places, torch.stack(others) if others else None, failures)

    def _jpeg(self, source: Any) -> Jpeg | None:
        try:
            if isinstance(source, (str, os.PathLike)):
                with open(source, "rb") as file:  # a link may lead to something without size or end
                    data = file.read(_LARGEST_FILE + 1)
            else:
                data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else b""
            # The GPU's decoder fills in the missing part of a truncated file. Pillow raises an error, as it should be.
            whole = data.startswith(b"\xff\xd8\xff") and data[-64:].rstrip(b"\0").endswith(b"\xff\xd9")
            if not whole or len(data) > _LARGEST_FILE:
                return None
            with opened_image(io.BytesIO(data)) as image:
                (width, height), orientation = image.size, image.getexif().get(_ORIENTATION, 1)
                if image.format != "JPEG" or image.mode not in ("RGB", "L") or height * width > _LARGEST_IMAGE:
                    return None
        except Exception:  # Pillow will say what is wrong with the file
            return None
        upright = (width, height) if orientation in _LYING else (height, width)
        fits = self._own is not None and self._own.window(*upright) is not None
        return Jpeg(data, height * width, orientation) if fits else None


def _parts(files: list[tuple[int, int, int]]) -> Iterator[list[int]]:
    """Yield the numbers of files whose pixels fit into memory together."""
    part: list[int] = []
    held = 0
    for number, (_, pixels, _) in enumerate(files):
        if part and held + pixels > _AT_ONCE:
            yield part
            part, held = [], 0
        part.append(number)
        held += pixels
    if part:
        yield part


class GpuDecoder:
    """Decodes, resizes and crops files on a GPU, some batches ahead of the network.

    Parameters
    ----------
    items : Items
        The images, for those that the GPU does not take after all.
    transform : Preprocessing
        How an image is resized and cropped.
    device : torch.device
        Where the backbone runs.

    Raises
    ------
    ParameterError
        If this torchvision has no decoder for the device.
    """

    def __init__(self, items: Items, transform: Any, device: torch.device) -> None:
        from PIL import Image

        self._reader, self._own, self._device = ImageReader(items, transform), transform, device
        smallest = io.BytesIO()
        Image.new("RGB", (16, 16)).save(smallest, "JPEG")
        try:
            self._decode([torch.frombuffer(bytearray(smallest.getvalue()), dtype=torch.uint8)])
        except (ImportError, RuntimeError) as error:
            raise ParameterError(
                f"decode must be 'cpu' here, got 'gpu': torchvision has no JPEG decoder for {device} ({error})"
            ) from error

    def __call__(self, batches: Iterable[FileBatch]) -> Iterator[LoadedBatch]:
        """Yield batches of pixels on the device.

        A thread decodes on a stream of its own; decoding on the network's stream would wait for the network.
        """
        if self._device.type == "cpu":
            yield from map(self._decoded, batches)
            return
        stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]

        def work(batch: FileBatch) -> tuple[LoadedBatch, Any]:
            with torch.inference_mode(), torch.cuda.stream(stream):
                loaded, done = self._decoded(batch), torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(stream)
            return loaded, done

        waiting: deque[Future[tuple[LoadedBatch, Any]]] = deque()
        with ThreadPoolExecutor(1, "evergrow-decoding") as pool:
            for batch in batches:
                waiting.append(pool.submit(work, batch))
                if len(waiting) > _AHEAD:
                    yield self._arrived(*waiting.popleft().result())
            while waiting:
                yield self._arrived(*waiting.popleft().result())

    def _arrived(self, loaded: LoadedBatch, done: Any) -> LoadedBatch:
        if isinstance(loaded.batch, Tensor):
            current = torch.cuda.current_stream(self._device)
            current.wait_event(done)
            loaded.batch.record_stream(current)  # its memory must not be reused before the network has read it
        return loaded

    def _decoded(self, batch: FileBatch) -> LoadedBatch:
        n, failures = len(batch.rows), list(batch.failures)
        shape = (n, 3, *self._own.size)
        pixels = torch.empty(shape, dtype=torch.uint8, device=self._device, memory_format=torch.channels_last).zero_()
        if batch.others is not None:
            rest = np.setdiff1d(np.arange(n), batch.places)
            pixels[torch.from_numpy(rest).to(self._device)] = batch.others.to(self._device, non_blocking=True)
        kept = np.ones(n, dtype=bool)
        for part in _parts(batch.files):
            alike: dict[tuple[int, ...], list[tuple[int, Tensor]]] = defaultdict(list)
            for number, image in zip(part, self._images(batch, part), strict=True):
                place = batch.places[number]
                if image is not None and self._own.window(image.shape[1], image.shape[2]) is not None:
                    alike[tuple(image.shape)].append((place, image))
                    continue
                _, read, failed = self._reader.read([batch.rows[place]])
                failures += failed
                kept[place] = bool(read)
                if read:
                    pixels[place] = read[0].to(self._device)
            for found in alike.values():
                places = torch.tensor([place for place, _ in found], device=self._device)
                images = torch.stack([image for _, image in found])
                for part, columns in self._own.cuts():
                    pixels[places, :, : part.size[0], columns] = self._cropped(part, images)
        rows = np.array(batch.rows, dtype=np.int64)[kept]
        if not kept.all():
            pixels = pixels[torch.from_numpy(kept).to(self._device)]
        failures.sort(key=lambda failure: failure.row)
        return LoadedBatch(rows, pixels if len(rows) else None, failures)

    def _images(self, batch: FileBatch, part: list[int]) -> list[Tensor | None]:
        """Return the images of some files, upright; None for what the decoder refuses."""
        every = torch.split(batch.data, [size for size, _, _ in batch.files])
        files = [every[number] for number in part]
        try:
            decoded: list[Tensor | None] = [*self._decode(files)]
        except RuntimeError:  # one of them, or too little memory: one by one
            decoded = [self._alone(file) for file in files]
        turns = [_TURNS.get(batch.files[number][2]) for number in part]
        return [
            image if image is None or turn is None else turn(image) for image, turn in zip(decoded, turns, strict=True)
        ]

    def _alone(self, file: Tensor) -> Tensor | None:
        try:
            return self._decode([file])[0]
        except RuntimeError:
            return None

    def _decode(self, files: list[Tensor]) -> list[Tensor]:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped, unused-ignore]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            decoded: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=self._device)
        return decoded

    def _cropped(self, own: Preprocessing, images: Tensor) -> Tensor:
        """Return images (n, 3, height, width) resized and cropped, as bytes."""
        window = own.window(images.shape[2], images.shape[3])
        assert window is not None  # images that need a border were not sent
        (height, width), top, left = window
        if (height, width) != images.shape[2:]:
            resized = interpolate(images.float(), (height, width), mode=own.interpolation, antialias=True)
            images = resized.round_().clamp_(0, 255).to(torch.uint8)
        return images[:, :, top : top + own.size[0], left : left + own.size[1]]
