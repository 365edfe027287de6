"""Images prepared by the GPU that runs the backbone: processes beside it decode them, and the GPU resizes and crops.

Resizing is Pillow's arithmetic in the same integers, so that the bytes are those that a
CPU gives, view by view. Images that need a border, and large ones, go through Pillow.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
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
from evergrow.features.batches import Failure, ImageReader, LoadedBatch, run_ahead
from evergrow.features.images import decode_image
from evergrow.features.preprocess import Preprocessing

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""Filters that the GPU resizes with, and the pixels that each reaches to either side."""

LARGEST_RAW = 2**20
"""Bytes of a decoded image; of one with more, the views are less to send than the image."""

# Height over width; some versions of Pillow resize what is taller in another order
_TALLEST = 2
_SLICE = 64  # images that are resized at a time
_AHEAD = 3  # prepared batches that wait for the network
_BITS = 22  # of the fraction of Pillow's weights
_LOWER = 12  # of them, in the lower part of a weight


class RawBatch(NamedTuple):
    """Images on their way to the GPU, all in one tensor: a tensor each would be slow to send between processes.

    Parameters
    ----------
    rows : list of int
        Row numbers of the images; those of one shape lie together.
    data : Tensor of uint8
        Their bytes, one image after another.
    shapes : list of (int, int) or None
        Height and width of each; None for finished views.
    failures : list of Failure
        Images that could not be read.
    """

    rows: list[int]
    data: Tensor
    shapes: list[tuple[int, int] | None]
    failures: list[Failure]


def can_prepare(own: Preprocessing) -> bool:
    """Return whether a GPU resizes and crops as Pillow does.

    Where both sides of an image are scaled alike, the order of Pillow's two passes is
    the same in all of its versions, but for tall images.
    """
    return own.interpolation in FILTERS and own.crop_mode == "center"


class RawReader(ImageReader):
    """Reads batches for a GPU: images decoded, and no more; pixels in memory need not even that.

    Parameters
    ----------
    items : Items
        The images.
    transform : Preprocessing
        What will be done to them.
    pinned : bool
        Whether batches are placed where a GPU can fetch them by itself; not in worker
        processes, which have none.
    """

    def __init__(
        self, items: Items, transform: Preprocessing, *, pinned: bool = False
    ) -> None:
        super().__init__(items, transform)
        self._pinned = pinned

    def load(
        self, source: Any, name: str | None = None
    ) -> tuple[NDArray[np.uint8], tuple[int, int] | None]:
        """Return the bytes of an image, and its height and width, or the bytes of its views."""
        assert self._own is not None
        in_memory = (
            isinstance(source, np.ndarray)
            and source.dtype == np.uint8
            and source.shape[2:] == (3,)
        )
        if in_memory and source.size:
            image = source
        else:
            image = np.asarray(decode_image(source, name=name))
        height, width = image.shape[:2]
        if (
            image.nbytes <= LARGEST_RAW
            and height <= _TALLEST * width
            and self._own.window(height, width)
        ):
            return image.reshape(-1), (height, width)
        views = self._own.pixels(decode_image(image, name=name))
        return views.permute(1, 2, 0).reshape(-1).numpy(), None

    def __getitems__(self, rows: Sequence[int]) -> RawBatch:
        """Return a batch."""
        read, loaded, failures = self.read(rows)
        order = sorted(range(len(read)), key=lambda place: loaded[place][1] or (0, 0))
        pieces = [loaded[place][0] for place in order]
        data = torch.empty(
            sum(map(len, pieces)), dtype=torch.uint8, pin_memory=self._pinned
        )
        np.concatenate([data.numpy()[:0], *pieces], out=data.numpy())
        return RawBatch(
            [read[place] for place in order],
            data,
            [loaded[place][1] for place in order],
            failures,
        )


@lru_cache
def _stream_beside(device: torch.device) -> Any:
    """Return the stream that images are prepared on; memory belongs to a stream, and stays with it."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class GpuPreparation:
    """Resizes and crops images on a GPU, some batches ahead of the network.

    Parameters
    ----------
    transform : Preprocessing
        How an image is resized and cropped.
    device : torch.device
        Where the backbone runs.
    """

    def __init__(self, transform: Preprocessing, device: torch.device) -> None:
        self._own = transform
        self._device = device
        # Halves go through a GPU's matrix units, and hold bytes and parts of weights
        # exactly; sums need more.
        self._exact: dict[str, Any]
        if device.type == "cuda":
            self._exact = {"out_dtype": torch.float32}
        else:
            self._exact = {}
        dtype = torch.float16 if self._exact else torch.float32
        self._weights = lru_cache(64)(
            lambda *about: resize_weights(*about).to(device, dtype)
        )

    def __call__(
        self, batches: Iterable[RawBatch]
    ) -> Generator[LoadedBatch, None, None]:
        """Yield batches of pixels on the device.

        A thread reads and prepares them, on a stream of its own; on the network's
        stream it would wait for the network.
        """
        if self._device.type == "cpu":
            yield from map(self._prepared, batches)
            return
        stream = _stream_beside(self._device)

        def prepared() -> Iterator[tuple[LoadedBatch, Any]]:
            for batch in batches:
                with torch.inference_mode(), torch.cuda.stream(stream):
                    loaded = self._prepared(batch)  # type: ignore[no-untyped-call]
                    done = torch.cuda.Event()
                    done.record(stream)
                yield loaded, done

        calls = repeat(partial(next, prepared(), None))
        with (
            ThreadPoolExecutor(1, "evergrow-images") as pool,
            closing(run_ahead(calls, _AHEAD, pool)) as ready,
        ):
            for loaded, done in iter(lambda: next(ready), None):
                if isinstance(loaded.batch, Tensor):
                    current = torch.cuda.current_stream(self._device)
                    current.wait_event(done)
                    loaded.batch.record_stream(
                        current
                    )  # its memory must not be reused before the network has read it
                yield loaded

    def _prepared(self, batch: RawBatch) -> LoadedBatch:
        sheets = torch.zeros(
            (len(batch.rows), *self._own.size, 3),
            dtype=torch.uint8,
            device=self._device,
        )
        here = batch.data.to(self._device, non_blocking=True)
        start = 0
        place = 0
        for shape, alike in groupby(batch.shapes):
            count = len(list(alike))
            (height, width) = shape or self._own.size
            images = here[start : start + 3 * count * height * width].view(
                count, height, width, 3
            )
            found = (
                torch.split(part, _SLICE)
                for part in (images, sheets[place : place + count])
            )
            for some, places in zip(*found, strict=True):
                if shape is None:
                    places.copy_(some)
                    continue
                for view, columns in self._own.cuts():
                    places[:, : view.size[0], columns] = self._view(view, some)
            start = start + images.numel()
            place = place + count
        pixels = None
        if len(sheets):
            pixels = sheets.permute(0, 3, 1, 2)
        return LoadedBatch(np.array(batch.rows, dtype=np.int64), pixels, batch.failures)

    def _view(self, own: Preprocessing, images: Tensor) -> Tensor:
        """Return images (n, h, w, 3) resized and cropped to (n, height, width, 3): bytes, plus a fraction."""
        window = own.window(*images.shape[1:3])
        assert window is not None  # images that need a border were not sent
        (height, width), top, left = window
        across = self._weights(
            own.interpolation, images.shape[2], width, left, own.size[1]
        )
        down = self._weights(
            own.interpolation, images.shape[1], height, top, own.size[0]
        )
        with torch.autocast(self._device.type, enabled=False):
            planes = images.permute(0, 3, 1, 2).to(
                across.dtype, memory_format=torch.contiguous_format
            )
            lines = planes.view(-1, planes.shape[3])
            wide = _as_bytes(
                *(torch.mm(lines, part.T, **self._exact) for part in across)
            ).to(torch.uint8)
            wide = wide.view(*planes.shape[:3], -1).permute(0, 2, 3, 1)
            wide = wide.to(across.dtype, memory_format=torch.contiguous_format).flatten(
                2
            )
            sums = (
                torch.bmm(part.expand(len(wide), *part.shape), wide, **self._exact)
                for part in down
            )
            return _as_bytes(*sums).view(-1, *own.size, 3)


def resize_weights(
    name: str, length: int, resized: int, start: int, kept: int
) -> Tensor:
    """Return Pillow's weights (2, kept, length) from a side of ``length`` pixels to some of its ``resized`` ones.

    Pillow rounds weights to 22 binary digits. The two matrices are their lower and
    upper parts, of at most 11 digits, which half precision holds; float32 adds their
    products with bytes without rounding.

    Parameters
    ----------
    name : str
        One of :data:`FILTERS`.
    length, resized : int
        Pixels before and after.
    start, kept : int
        Which of the latter are computed.
    """
    scale = length / resized
    stretch = max(scale, 1.0)
    centres = (np.arange(start, start + kept) + 0.5) * scale
    first, last = (
        (centres + side * FILTERS[name] * stretch + 0.5).astype(np.int64)
        for side in (-1, 1)
    )
    pixels = np.arange(length)
    x = np.abs((pixels - centres[:, None] + 0.5) * (1.0 / stretch))
    if name == "bilinear":
        weights = np.maximum(1.0 - x, 0.0)
    else:
        weights = np.where(
            x < 1,
            (1.5 * x - 2.5) * x * x + 1,
            np.where(x < 2, -0.5 * (((x - 5) * x + 8) * x - 4), 0),
        )
    weights *= (pixels >= first[:, None]) & (pixels < last[:, None])
    whole = np.trunc(
        weights / weights.sum(axis=1, keepdims=True) * 2**_BITS
        + np.copysign(0.5, weights)
    )
    upper = np.rint(whole / 2**_LOWER)
    lower = whole - upper * 2**_LOWER
    return torch.from_numpy(
        np.stack([lower / 2**_LOWER, upper / 2 ** (_BITS - _LOWER)])
    ).float()


def _as_bytes(lower: Tensor, upper: Tensor) -> Tensor:
    """Return sums of weighted bytes, from those of both parts: bytes as Pillow rounds them, plus a fraction."""
    return (
        upper.add_(lower.floor_(), alpha=2.0 ** (_LOWER - _BITS))
        .add_(0.5)
        .clamp_(0, 255)
    )
