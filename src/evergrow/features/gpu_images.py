"""Resize and crop images on the GPU that runs the backbone.

Worker processes decode the images. The GPU does Pillow's integer arithmetic, so that
pixels are equal to those of Pillow. Images that need a border, and large images, are
prepared by Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache, partial
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.data.items import Items
from evergrow.features.encoding import Failure, ImageReader, LoadedBatch, run_ahead
from evergrow.features.images import decode_image
from evergrow.features.preprocess import Preprocessing

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""Radius in pixels of the resampling filters that the GPU supports."""

MAX_IMAGE_BYTES = 2**20
"""Larger decoded images are not sent to the GPU: their views are smaller."""

_MAX_ASPECT = 2  # height over width; some versions of Pillow resize rows first above it
_RESIZED_AT_ONCE = 64  # images
_BATCHES_AHEAD = 3
_BITS = 22  # fractional bits of Pillow's weights
_LOWER_BITS = 12  # fractional bits in the lower part of a weight


class RawBatch(NamedTuple):
    """Decoded images in one tensor, which is faster to send than one tensor each.

    Parameters
    ----------
    rows : list of int
        Indices of the images. Images of the same shape are adjacent.
    data : Tensor of uint8
        Concatenated pixels.
    shapes : list of (int, int) or None
        Height and width of each image. None for views that are prepared already.
    failures : list of Failure
        Images that could not be read.
    """

    rows: list[int]
    data: Tensor
    shapes: list[tuple[int, int] | None]
    failures: list[Failure]


def can_prepare(transform: Preprocessing) -> bool:
    """Return whether the GPU can resize and crop as Pillow does.

    Both sides must be scaled alike: only then is the order of Pillow's two passes the
    same in all of its versions, except for tall images.
    """
    return all(
        view.interpolation in FILTERS and view.crop_mode == "center"
        for view, _ in transform.cuts()
    )


class RawReader(ImageReader):
    """Reads batches of decoded images for a GPU.

    Parameters
    ----------
    items : Items
        The images.
    transform : Preprocessing
        Preprocessing that the GPU will do.
    pinned : bool
        Whether to put batches in pinned memory. Not possible in worker processes.
    """

    def __init__(
        self, items: Items, transform: Preprocessing, *, pinned: bool = False
    ) -> None:
        super().__init__(items, transform)
        self._preprocessing = transform
        self._pinned = pinned

    def load(
        self, source: Any, name: str | None = None
    ) -> tuple[NDArray[np.uint8], tuple[int, int] | None]:
        """Decode an image. Prepare it with Pillow if the GPU cannot.

        Returns
        -------
        pixels : ndarray of uint8
            Pixels of the image, or of its views if they are prepared, as a vector.
        shape : tuple of int or None
            Height and width of the image. None if its views are prepared.
        """
        if _is_rgb_array(source):
            image = source
        else:
            image = np.asarray(decode_image(source, name=name))
        height, width = image.shape[:2]
        if (
            image.nbytes <= MAX_IMAGE_BYTES
            and height <= _MAX_ASPECT * width
            and self._preprocessing.window(height, width)
        ):
            return image.reshape(-1), (height, width)
        views = self._preprocessing.pixels(decode_image(image, name=name))
        return views.permute(1, 2, 0).reshape(-1).numpy(), None

    def __getitems__(self, rows: Sequence[int]) -> RawBatch:
        """Return the images `rows` as a :class:`RawBatch`, sorted by shape."""
        read, loaded, failures = self.read(rows)
        shapes = [shape for _, shape in loaded]
        order = sorted(range(len(read)), key=lambda index: shapes[index] or (0, 0))
        pieces = [loaded[index][0] for index in order]
        data = torch.empty(
            sum(map(len, pieces)), dtype=torch.uint8, pin_memory=self._pinned
        )
        if pieces:
            np.concatenate(pieces, out=data.numpy())
        return RawBatch(
            [read[index] for index in order],
            data,
            [shapes[index] for index in order],
            failures,
        )


def _is_rgb_array(source: Any) -> bool:
    """Return whether an image is decoded already: an array (height, width, 3)."""
    return (
        isinstance(source, np.ndarray)
        and source.dtype == np.uint8
        and source.shape[2:] == (3,)
        and source.size > 0
    )


@lru_cache
def _image_stream(device: torch.device) -> Any:
    """Return the CUDA stream that prepares images.

    It is kept, since the allocator reuses memory only within a stream.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class GpuPreparation:
    """Resizes and crops batches on a GPU, some batches ahead of the network.

    Parameters
    ----------
    transform : Preprocessing
        Preprocessing of the images.
    device : torch.device
        Device of the backbone.
    """

    def __init__(self, transform: Preprocessing, device: torch.device) -> None:
        self._preprocessing = transform
        self._device = device
        # Half precision holds bytes and the parts of weights exactly, and uses matrix
        # units. Sums need float32.
        self._matmul_options: dict[str, Any] = {}
        dtype = torch.float32
        if device.type == "cuda":
            self._matmul_options = {"out_dtype": torch.float32}
            dtype = torch.float16
        self._weights = _cached_weights(device, dtype)

    def __call__(
        self, batches: Iterable[RawBatch]
    ) -> Generator[LoadedBatch, None, None]:
        """Yield batches of pixels on the device.

        On a GPU, a thread prepares them on a separate stream, so that they do not wait
        for the network.
        """
        if self._device.type == "cpu":
            yield from map(self._prepare, batches)
            return
        calls = repeat(partial(next, self._prepare_on_stream(batches), None))
        with (
            ThreadPoolExecutor(1, "evergrow-images") as pool,
            closing(run_ahead(calls, _BATCHES_AHEAD, pool)) as prepared,
        ):
            for result in prepared:
                if result is None:
                    return
                loaded, done = result
                self._wait_for(loaded, done)
                yield loaded

    def _prepare_on_stream(
        self, batches: Iterable[RawBatch]
    ) -> Iterator[tuple[LoadedBatch, Any]]:
        """Yield each prepared batch with the event of its completion."""
        stream = _image_stream(self._device)
        for batch in batches:
            with torch.inference_mode(), torch.cuda.stream(stream):
                loaded = self._prepare(batch)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(stream)
            yield loaded, done

    def _wait_for(self, loaded: LoadedBatch, done: Any) -> None:
        """Let the current stream wait for a batch."""
        if not isinstance(loaded.batch, Tensor):
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(done)
        # The memory must not be reused before the network has read it.
        loaded.batch.record_stream(stream)

    def _prepare(self, batch: RawBatch) -> LoadedBatch:
        """Send a batch to the device, and resize images of the same shape together."""
        rows = np.array(batch.rows, dtype=np.int64)
        if not batch.rows:
            return LoadedBatch(rows, None, batch.failures)
        size = self._preprocessing.size
        out = torch.zeros((len(rows), *size, 3), dtype=torch.uint8, device=self._device)
        data = batch.data.to(self._device, non_blocking=True)
        first_byte = 0
        first_row = 0
        for shape, group in groupby(batch.shapes):
            count = len(list(group))
            height, width = shape or size
            n_bytes = 3 * count * height * width
            images = data[first_byte : first_byte + n_bytes]
            images = images.view(count, height, width, 3)
            out_images = out[first_row : first_row + count]
            if shape is None:
                out_images.copy_(images)
            else:
                self._fill_views(out_images, images)
            first_byte += n_bytes
            first_row += count
        return LoadedBatch(rows, out.permute(0, 3, 1, 2), batch.failures)

    def _fill_views(self, out: Tensor, images: Tensor) -> None:
        """Write all views of images (n, h, w, 3) to `out` (n, height, width, 3)."""
        for start in range(0, len(images), _RESIZED_AT_ONCE):
            rows = slice(start, start + _RESIZED_AT_ONCE)
            for view, columns in self._preprocessing.cuts():
                out[rows, : view.size[0], columns] = self._resize(view, images[rows])

    def _resize(self, view: Preprocessing, images: Tensor) -> Tensor:
        """Resize and crop images (n, h, w, 3) to (n, height, width, 3).

        The result is bytes plus a fraction below 1.
        """
        window = view.window(*images.shape[1:3])
        assert window is not None  # `RawReader` does not send other images
        (height, width), top, left = window
        name = view.interpolation
        across = self._weights(name, images.shape[2], width, left, view.size[1])
        down = self._weights(name, images.shape[1], height, top, view.size[0])
        with torch.autocast(self._device.type, enabled=False):
            return self._resize_columns(self._resize_rows(images, across), down)

    def _resize_rows(self, images: Tensor, weights: Tensor) -> Tensor:
        """Resize the rows of images (n, h, w, 3). Return uint8 (n, 3, h, width).

        `weights` (2, width, w) are those of :func:`resize_weights`.
        """
        planes = images.permute(0, 3, 1, 2).to(
            weights.dtype, memory_format=torch.contiguous_format
        )
        lines = planes.view(-1, planes.shape[3])
        lower, upper = (
            torch.mm(lines, part.T, **self._matmul_options) for part in weights
        )
        return _round_sums(lower, upper).to(torch.uint8).view(*planes.shape[:3], -1)

    def _resize_columns(self, planes: Tensor, weights: Tensor) -> Tensor:
        """Resize the columns of uint8 (n, 3, h, width) to (n, height, width, 3).

        `weights` (2, height, h) are those of :func:`resize_weights`. The result has
        fractions as in :func:`_round_sums`.
        """
        n, channels, _, width = planes.shape
        columns = planes.permute(0, 2, 3, 1).to(
            weights.dtype, memory_format=torch.contiguous_format
        )
        lower, upper = (
            torch.bmm(
                part.expand(n, *part.shape), columns.flatten(2), **self._matmul_options
            )
            for part in weights
        )
        return _round_sums(lower, upper).view(n, -1, width, channels)


def _cached_weights(device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return a function like :func:`resize_weights` that caches results on a device."""

    @lru_cache(64)
    def weights(*arguments: Any) -> Tensor:
        return resize_weights(*arguments).to(device, dtype)

    return weights


def resize_weights(
    name: str, length: int, resized: int, start: int, kept: int
) -> Tensor:
    """Return Pillow's weights (2, kept, length) for resizing one side of an image.

    Pillow rounds weights to 22 fractional bits. The two matrices are the lower and the
    upper parts of the weights. Each part has at most 11 bits, which half precision
    holds, and float32 sums of their products with bytes are exact.

    Parameters
    ----------
    name : str
        Name of a filter in :data:`FILTERS`.
    length, resized : int
        Number of pixels before and after resizing.
    start, kept : int
        First resized pixel that is computed, and number of computed pixels.
    """
    scale = length / resized
    stretch = max(scale, 1.0)
    radius = FILTERS[name] * stretch
    centres = (np.arange(start, start + kept)[:, None] + 0.5) * scale
    first = (centres - radius + 0.5).astype(np.int64)
    last = (centres + radius + 0.5).astype(np.int64)
    pixels = np.arange(length)
    is_inside = (pixels >= first) & (pixels < last)
    distances = np.abs((pixels - centres + 0.5) * (1.0 / stretch))
    weights = _filter_values(name, distances) * is_inside
    normalized = weights / weights.sum(axis=1, keepdims=True)

    # Rounded as Pillow does, then divided into upper and lower bits.
    whole = np.trunc(normalized * 2**_BITS + np.copysign(0.5, weights))
    upper = np.rint(whole / 2**_LOWER_BITS)
    lower = whole - upper * 2**_LOWER_BITS
    scaled_lower = lower / 2**_LOWER_BITS
    scaled_upper = upper / 2 ** (_BITS - _LOWER_BITS)
    return torch.from_numpy(np.stack([scaled_lower, scaled_upper])).float()


def _filter_values(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of a filter at distances from its centre."""
    if name == "bilinear":
        return np.maximum(1.0 - x, 0.0)
    # Bicubic, with a = -0.5.
    inner = (1.5 * x - 2.5) * x * x + 1
    outer = -0.5 * (((x - 5) * x + 8) * x - 4)
    return np.select([x < 1, x < 2], [inner, outer], 0.0)


def _round_sums(lower: Tensor, upper: Tensor) -> Tensor:
    """Combine the sums of the lower and the upper parts of weights, in place.

    The result is a pixel as Pillow rounds it, in 0..255, plus a fraction below 1 that
    the conversion to uint8 drops.
    """
    total = upper.add_(lower.floor_(), alpha=2.0 ** (_LOWER_BITS - _BITS))
    return total.add_(0.5).clamp_(0, 255)
