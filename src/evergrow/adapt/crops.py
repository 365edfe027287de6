"""Random crops of many images at once: boxes drawn on the CPU, pixels resampled wherever they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.adapt.augment import TrainTransform
from evergrow.core.errors import ParameterError

_ATTEMPTS = 10

FILTERS = ("bilinear", "bicubic")
"""Filters that images can be resized with in batches."""


@dataclass(frozen=True)
class Crops:
    """Which part of every image is taken, and whether it is mirrored.

    Parameters
    ----------
    boxes : Tensor of shape (n, 4)
        Top, left, height and width, int64.
    flips : Tensor of shape (n,)
        Booleans.
    """

    boxes: Tensor
    flips: Tensor

    def take(self, rows: Tensor) -> Crops:
        """Return the crops of these rows."""
        return Crops(self.boxes[rows], self.flips[rows])

    def to(self, device: torch.device) -> Crops:
        """Return the crops on a device."""
        return Crops(self.boxes.to(device), self.flips.to(device))


def draw_crops(transform: TrainTransform, n: int, height: int, width: int, generator: torch.Generator) -> Crops:
    """Draw the crops of n images of one size, by the same law as :class:`~evergrow.adapt.augment.TrainTransform`.

    Area uniform in ``scale``, log-proportions uniform in ``ratio``; the first of ten attempts that fits, or else the
    largest centred box of allowed proportions; anywhere in the image.

    Parameters
    ----------
    transform : TrainTransform
        The law.
    n : int
        How many.
    height, width : int
        Size of the images.
    generator : torch.Generator
        Where all randomness comes from.

    Examples
    --------
    >>> from evergrow.adapt.augment import train_transform
    >>> from evergrow.features import Preprocessing
    >>> from evergrow.core.seeding import generator
    >>> from evergrow.adapt.crops import draw_crops
    >>> crops = draw_crops(train_transform(Preprocessing.pilot(16)), 1000, 32, 32, generator(0, "crops"))
    >>> bool((crops.boxes[:, 0] + crops.boxes[:, 2] <= 32).all())
    True
    """
    draws = torch.rand(n, _ATTEMPTS, 4, generator=generator, dtype=torch.float64)
    mirror = torch.rand(n, generator=generator, dtype=torch.float64) < transform.flip
    low, high = transform.scale
    area = height * width * (low + (high - low) * draws[..., 0])
    first, last = (math.log(value) for value in transform.ratio)
    proportion = torch.exp(first + (last - first) * draws[..., 1])
    wide = torch.round(torch.sqrt(area * proportion)).to(torch.int64)
    tall = torch.round(torch.sqrt(area / proportion)).to(torch.int64)
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    attempt = fits.to(torch.int8).argmax(dim=1)  # the first that fits, 0 where none does
    rows = torch.arange(n)
    wide, tall = wide[rows, attempt], tall[rows, attempt]
    top = (draws[rows, attempt, 2] * (height - tall + 1)).floor().to(torch.int64)
    left = (draws[rows, attempt, 3] * (width - wide + 1)).floor().to(torch.int64)
    drawn = torch.stack([top, left, tall, wide], dim=1)
    centred = torch.tensor(_centred(transform, height, width))
    return Crops(torch.where(fits.any(dim=1)[:, None], drawn, centred), mirror)


def _centred(transform: TrainTransform, height: int, width: int) -> tuple[int, int, int, int]:
    """Return the largest centred box of allowed proportions."""
    tall, wide = height, width
    if width / height < min(transform.ratio):
        tall = max(round(width / min(transform.ratio)), 1)
    elif width / height > max(transform.ratio):
        wide = max(round(height * max(transform.ratio)), 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


class Cropper:
    """Crops, resizes, mirrors and normalises images in batches.

    Resizing is separable and linear: out = A x B^T with one banded matrix per image and direction. The entries are
    Pillow's filter, widened where a crop shrinks, so that the result is Pillow's up to its rounding of intermediate
    bytes.

    Parameters
    ----------
    transform : TrainTransform
        Size and normalisation of the result, and the filter: one of :data:`FILTERS`.
    device : torch.device
        Where the images are. Nothing is sent there later: that would make the CPU wait for a GPU in every step.
    """

    def __init__(self, transform: TrainTransform, device: torch.device) -> None:
        if transform.interpolation not in FILTERS:
            raise ParameterError(f"interpolation must be one of {FILTERS} for batches, got {transform.interpolation!r}")
        self._size = transform.size
        self._cubic = transform.interpolation == "bicubic"
        self._mean = torch.tensor(transform.mean, device=device).view(-1, 1, 1)
        self._std = torch.tensor(transform.std, device=device).view(-1, 1, 1)

    def __call__(self, pixels: Tensor, crops: Crops) -> Tensor:
        """Return images (n, 3, height, width) in float32.

        Parameters
        ----------
        pixels : Tensor of shape (n, h, w, 3)
            Bytes.
        crops : Crops
            On the same device.
        """
        top, left, tall, wide = crops.boxes.to(torch.float32).unbind(dim=1)
        still = torch.zeros_like(crops.flips)
        rows = _filters(top, tall, self._size[0], pixels.shape[1], still, cubic=self._cubic)
        columns = _filters(left, wide, self._size[1], pixels.shape[2], crops.flips, cubic=self._cubic)
        planes = pixels.permute(0, 3, 1, 2).to(torch.float32)
        # The arithmetic is of image values, which half precision would coarsen; an outer autocast must not apply.
        with torch.autocast(pixels.device.type, enabled=False):
            across = planes @ columns[:, None].transpose(2, 3)
            if self._cubic:  # overshoots, and bytes do not
                across = across.clamp_(0, 255)
            resized = (rows[:, None] @ across).clamp_(0, 255)
        return resized.round_().div_(255).sub_(self._mean).div_(self._std)


def _filters(start: Tensor, length: Tensor, n_out: int, n_in: int, flips: Tensor, *, cubic: bool) -> Tensor:
    """Return matrices (n, n_out, n_in) that resize the stretch of ``length`` pixels from ``start`` on."""
    places = torch.arange(n_out, device=start.device, dtype=torch.float32)
    places = torch.where(flips[:, None], n_out - 1 - places, places)
    step = (length / n_out)[:, None]
    centres = start[:, None] + (places + 0.5) * step
    pixels = torch.arange(n_in, device=start.device, dtype=torch.float32)
    distance = (pixels + 0.5 - centres[:, :, None]).abs_() / step.clamp(min=1.0)[:, :, None]
    weights = _cubic(distance) if cubic else (1.0 - distance).clamp_(min=0.0)
    inside = (pixels >= start[:, None]) & (pixels < (start + length)[:, None])
    weights *= inside[:, None, :]
    return weights / weights.sum(dim=2, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Return Keys's cubic of distances >= 0 with a = -1/2, which is Pillow's."""
    near = (1.5 * distance - 2.5) * distance.square() + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
