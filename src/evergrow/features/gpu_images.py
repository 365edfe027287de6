"""Images prepared by the GPU that runs the backbone: processes beside it decode them, and the GPU resizes and crops.

Resizing is Pillow's arithmetic in the same integers, so that the bytes are those that a CPU gives, view by view. Images
that need a border, and large ones, go through Pillow.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.features.images import Failure, ImageReader, LoadedBatch, decode_image
from evergrow.features.preprocess import Preprocessing

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""Filters that the GPU resizes with, and the pixels that each reaches to either side."""

LARGEST_RAW = 2**20
"""Bytes of a decoded image; of one with more, the views are less to send than the image."""

_SLICE = 32  # images that are resized at a time
_AHEAD = 3  # prepared batches that wait for the network
_BITS = 22  # of the fraction of Pillow's weights


class RawBatch(NamedTuple):
    """Images on their way to the GPU, all in one tensor: a tensor each would be slow to send between processes.

    Parameters
    ----------
    rows : list of int
        Row numbers of the images.
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

    Where both sides of an image are scaled alike, the order of Pillow's two passes is the same in all of its versions.
    """
    return own.interpolation in FILTERS and own.crop_mode == "center"


class RawReader(ImageReader):
    """Reads batches for a GPU: images decoded, and no more; pixels in memory need not even that."""

    def load(self, source: Any, name: str | None = None) -> tuple[NDArray[np.uint8], tuple[int, int] | None]:
        """Return the bytes of an image, and its height and width, or the bytes of its views."""
        assert self._own is not None
        in_memory = isinstance(source, np.ndarray) and source.dtype == np.uint8 and source.shape[2:] == (3,)
        image = source if in_memory and source.size else np.asarray(decode_image(source, name=name))
        height, width = image.shape[:2]
        if image.nbytes <= LARGEST_RAW and self._own.window(height, width):
            return image.reshape(-1), (height, width)
        views = self._own.pixels(decode_image(image, name=name))
        return views.permute(1, 2, 0).reshape(-1).numpy(), None

    def __getitems__(self, rows: Sequence[int]) -> RawBatch:
        """Return a batch."""
        read, loaded, failures = self.read(rows)
        data = np.concatenate([np.empty(0, dtype=np.uint8), *(data for data, _ in loaded)])
        return RawBatch(read, torch.from_numpy(data), [shape for _, shape in loaded], failures)


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
        self._own, self._device = transform, device
        self._weights = lru_cache(64)(lambda *about: resize_weights(*about).to(device))

    def __call__(self, batches: Iterable[RawBatch]) -> Iterator[LoadedBatch]:
        """Yield batches of pixels on the device.

        A thread prepares them on a stream of its own; on the network's stream it would wait for the network.
        """
        if self._device.type == "cpu":
            yield from map(self._prepared, batches)
            return
        stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]

        def work(batch: RawBatch) -> tuple[LoadedBatch, Any]:
            with torch.inference_mode(), torch.cuda.stream(stream):
                loaded, done = self._prepared(batch), torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(stream)
            return loaded, done

        waiting: deque[Future[tuple[LoadedBatch, Any]]] = deque()
        with ThreadPoolExecutor(1, "evergrow-images") as pool:
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

    def _prepared(self, batch: RawBatch) -> LoadedBatch:
        sheets = torch.zeros((len(batch.rows), *self._own.size, 3), dtype=torch.uint8, device=self._device)
        here, start = batch.data.to(self._device, non_blocking=True), 0
        alike: dict[tuple[int, int] | None, list[tuple[int, Tensor]]] = defaultdict(list)
        for place, shape in enumerate(batch.shapes):
            height, width = shape or self._own.size
            piece = here[start : start + 3 * height * width]
            alike[shape].append((place, piece.view(height, width, 3)))
            start += len(piece)
        for shape, found in alike.items():
            for start in range(0, len(found), _SLICE):
                numbers, pieces = zip(*found[start : start + _SLICE], strict=True)
                places, images = torch.tensor(numbers, device=self._device), torch.stack(pieces)
                if shape is None:
                    sheets[places] = images
                    continue
                for view, columns in self._own.cuts():
                    sheets[places, : view.size[0], columns] = self._view(view, images)
        pixels = sheets.permute(0, 3, 1, 2) if len(sheets) else None
        return LoadedBatch(np.array(batch.rows, dtype=np.int64), pixels, batch.failures)

    def _view(self, own: Preprocessing, images: Tensor) -> Tensor:
        """Return bytes (n, height, width, 3) of images (n, h, w, 3), resized and cropped."""
        window = own.window(*images.shape[1:3])
        assert window is not None  # images that need a border were not sent
        (height, width), top, left = window
        across = self._weights(own.interpolation, images.shape[2], width, left, own.size[1])
        down = self._weights(own.interpolation, images.shape[1], height, top, own.size[0])
        with torch.autocast(self._device.type, enabled=False):
            planes = images.permute(0, 3, 1, 2).float()
            wide = _as_bytes(*(planes @ part.T for part in across))
            return _as_bytes(*(part @ wide for part in down)).permute(0, 2, 3, 1).to(torch.uint8)


def resize_weights(name: str, length: int, resized: int, start: int, kept: int) -> Tensor:
    """Return Pillow's weights (2, kept, length) from a side of ``length`` pixels to some of its ``resized`` ones.

    Pillow rounds weights to 22 binary digits. The two matrices are their upper and lower halves, whose products with
    bytes are whole numbers that float32 (and TF32) adds without rounding.

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
    first, last = ((centres + side * FILTERS[name] * stretch + 0.5).astype(np.int64) for side in (-1, 1))
    pixels = np.arange(length)
    x = np.abs((pixels - centres[:, None] + 0.5) * (1.0 / stretch))
    if name == "bilinear":
        weights = np.maximum(1.0 - x, 0.0)
    else:
        weights = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, -0.5 * (((x - 5) * x + 8) * x - 4), 0))
    weights *= (pixels >= first[:, None]) & (pixels < last[:, None])
    whole = np.trunc(weights / weights.sum(axis=1, keepdims=True) * 2**_BITS + np.copysign(0.5, weights))
    return torch.from_numpy(np.stack(np.divmod(whole, 2 ** (_BITS // 2)))).float()


def _as_bytes(upper: Tensor, lower: Tensor) -> Tensor:
    """Return the sums of weighted bytes, rounded to bytes again as Pillow does it; as float32, for the next product."""
    total = (upper.int() << _BITS // 2) + lower.int()
    return ((total + (1 << _BITS - 1)) >> _BITS).clamp_(0, 255).float()
