"""JPEG files decoded by the GPU that runs the backbone: processes beside it only read files and look at their headers.

What a GPU does not take (other formats, CMYK, files cut short, images that are turned or need a border) is decoded as
always. Its pixels differ from Pillow's where colours change, since it spreads the coarser colour channels in another
way.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from evergrow.core.errors import ParameterError
from evergrow.data.items import Items
from evergrow.features.base import Backbone
from evergrow.features.images import opened_image
from evergrow.features.loader import Failure, ImageReader, LoadedBatch
from evergrow.features.preprocess import TORCH_FILTERS, Preprocessing

_LARGEST_FILE = 2**26
_LARGEST_IMAGE = 2**25
"""Bytes of a file, and pixels of an image: what has more is decoded as always."""

_AT_ONCE = 16  # files that are decoded at a time, which bounds the GPU's memory
_ORIENTATION = 0x0112  # of the EXIF block


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
    """Batches in which a JPEG file stays a file: its bytes (n,) stand in the place of the pixels (3, height, width)."""

    def load(self, source: Any, name: str | None = None) -> Tensor:
        """Return the bytes of a file that a GPU can decode, the pixels of any other image."""
        data = self._jpeg(source)
        return super().load(source, name) if data is None else torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def __getitems__(self, rows: Sequence[int]) -> tuple[list[int], list[Tensor], list[Failure]]:
        """Return the rows that could be read, their bytes or pixels, and the failures."""
        return self.read(rows)

    def _jpeg(self, source: Any) -> bytes | None:
        try:
            if isinstance(source, (str, os.PathLike)):
                with open(source, "rb") as file:  # what a link leads to may have no size and no end
                    data = file.read(_LARGEST_FILE + 1)
            else:
                data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else b""
            # A decoder of a GPU fills up what is missing of a file; here that is an error, which Pillow words.
            whole = data.startswith(b"\xff\xd8\xff") and data[-64:].rstrip(b"\0").endswith(b"\xff\xd9")
            if not whole or len(data) > _LARGEST_FILE:
                return None
            with opened_image(io.BytesIO(data)) as image:
                taken = image.format == "JPEG" and image.mode in ("RGB", "L")
                taken = taken and image.height * image.width <= _LARGEST_IMAGE
                taken = taken and image.getexif().get(_ORIENTATION, 1) == 1
                fits = self._own is not None and self._own.window(image.height, image.width) is not None
        except Exception:  # whatever is wrong with it is told by the way that all images take
            return None
        return data if taken and fits else None


class GpuDecoder:
    """Decodes, resizes and crops the files of a batch on a GPU.

    Parameters
    ----------
    items : Items
        The images, for those that the GPU does not take after all.
    transform : Preprocessing
        What is made of an image.
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

    def __call__(self, batch: tuple[list[int], list[Tensor], list[Failure]]) -> LoadedBatch:
        """Return a batch of pixels on the device."""
        rows, images, failures = batch
        files = [place for place, image in enumerate(images) if image.ndim == 1]
        for start in range(0, len(files), _AT_ONCE):
            places = files[start : start + _AT_ONCE]
            try:
                decoded: list[Tensor | None] = [*self._decode([images[place] for place in places])]
            except RuntimeError:  # one of them, or too little memory
                decoded = [None] * len(places)
            for place, image in zip(places, decoded, strict=True):
                cropped = None if image is None else self._cropped(image)
                if cropped is None:  # decoded as always
                    _, read, failed = self._reader.read([rows[place]])
                    cropped, failures = (read[0] if read else images[place]), [*failures, *failed]
                images[place] = cropped
        kept = [place for place, image in enumerate(images) if image.ndim == 3]
        pixels: Tensor | None = None
        if kept:
            pixels = torch.stack([images[place].to(self._device) for place in kept])
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        failures = sorted(failures, key=lambda failure: failure.row)
        return LoadedBatch(np.array([rows[place] for place in kept], dtype=np.int64), pixels, failures)

    def _decode(self, files: list[Tensor]) -> list[Tensor]:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped, unused-ignore]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            decoded: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=self._device)
        return decoded

    def _cropped(self, image: Tensor) -> Tensor | None:
        """Return an image resized and cropped, as bytes; None where it has another size than its header says."""
        window = self._own.window(image.shape[1], image.shape[2])
        if window is None:
            return None
        (height, width), top, left = window
        pixels = image[None]
        if (height, width) != image.shape[1:]:
            pixels = interpolate(pixels.float(), (height, width), mode=self._own.interpolation, antialias=True)
            pixels = pixels.round_().clamp_(0, 255).to(torch.uint8)
        return pixels[0, :, top : top + self._own.size[0], left : left + self._own.size[1]]
