"""Random crops and flips for fine-tuning, drawn from a generator that the caller holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_number
from evergrow.features.preprocess import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Interpolation,
    Preprocessing,
    resampling,
    to_tensor,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_ATTEMPTS = 10


@dataclass(frozen=True)
class TrainTransform:
    """A random crop of random proportions, resized, mirrored half of the time, normalised.

    Parameters
    ----------
    size : tuple of int
        Height and width of the result.
    scale : tuple of float
        Share of the image's area that a crop takes.
    ratio : tuple of float
        Proportions (width over height) of a crop.
    flip : float
        Probability of mirroring left and right.
    interpolation : str
        Pillow's filter for resizing; bilinear, as in the published training runs.
    mean, std : tuple of float
        Per channel, for pixels in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.adapt.augment import train_transform
    >>> from evergrow.features import Preprocessing, decode_image
    >>> from evergrow.core.seeding import generator
    >>> augment = train_transform(Preprocessing.pilot(64))
    >>> image = decode_image(np.arange(100 * 80 * 3, dtype=np.uint8).reshape(100, 80, 3))
    >>> first, again = (augment(image, generator(0, "crops")) for _ in range(2))
    >>> tuple(first.shape), bool((first == again).all())
    ((3, 64, 64), True)
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.05, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        # The settings that evaluation has too are checked where they are defined.
        Preprocessing(self.size, self.size, "center", self.interpolation, self.mean, self.std)
        check_number("flip", self.flip, low=0, high=1)
        for name, high in (("scale", 1.0), ("ratio", 1e3)):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or len(value) != 2 or not 0 < value[0] <= value[1] <= high:
                raise ParameterError(f"{name} must be two numbers, 0 < low <= high <= {high:g}, got {value!r}")

    def __call__(self, image: Image, generator: torch.Generator) -> Tensor:
        """Return a float32 tensor (3, height, width) of a random part of an image in RGB.

        Parameters
        ----------
        image : PIL.Image.Image
            From :func:`decode_image`.
        generator : torch.Generator
            Where all randomness comes from.
        """
        if getattr(image, "mode", None) != "RGB":
            raise InputError(
                f"image must be a PIL image in RGB (see decode_image), got {getattr(image, 'mode', image)!r}"
            )
        top, left, height, width = self._box(image, generator)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((self.size[1], self.size[0]), resampling(self.interpolation))
        if float(torch.rand(1, generator=generator)) < self.flip:
            from PIL.Image import Transpose

            image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
        return to_tensor(image, self.mean, self.std)

    def _box(self, image: Image, generator: torch.Generator) -> tuple[int, int, int, int]:
        """Return top, left, height and width: area uniform in ``scale``, log-proportions uniform in ``ratio``.

        A box that does not fit is drawn anew; after ten attempts the largest centred box of allowed proportions is
        taken. The draws come in torchvision's order, so that the same generator gives its crops.
        """
        area = image.height * image.width
        low, high = (float(v) for v in torch.log(torch.tensor(self.ratio)))
        for _ in range(_ATTEMPTS):
            target = area * torch.empty(1).uniform_(*self.scale, generator=generator).item()
            proportion = torch.exp(torch.empty(1).uniform_(low, high, generator=generator)).item()
            width, height = round(math.sqrt(target * proportion)), round(math.sqrt(target / proportion))
            if 0 < width <= image.width and 0 < height <= image.height:
                top = int(torch.randint(0, image.height - height + 1, (1,), generator=generator))
                left = int(torch.randint(0, image.width - width + 1, (1,), generator=generator))
                return top, left, height, width
        width, height = image.width, image.height
        if width / height < min(self.ratio):
            height = max(round(width / min(self.ratio)), 1)
        elif width / height > max(self.ratio):
            width = max(round(height * max(self.ratio)), 1)
        return (image.height - height) // 2, (image.width - width) // 2, height, width


def train_transform(
    preprocessing: Preprocessing,
    *,
    scale: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    interpolation: Interpolation = "bilinear",
) -> TrainTransform:
    """Return the training transform that goes with an evaluation transform: same size, same normalisation.

    Parameters
    ----------
    preprocessing : Preprocessing
        What the backbone sees when it is evaluated, for example ``backbone.transform``.
    scale, ratio, flip, interpolation
        See :class:`TrainTransform`.

    Examples
    --------
    >>> from evergrow.adapt.augment import train_transform
    >>> from evergrow.features import Preprocessing
    >>> train_transform(Preprocessing.pilot(96)).mean
    (0.0, 0.0, 0.0)
    """
    return TrainTransform(
        preprocessing.size, scale, ratio, flip, interpolation, mean=preprocessing.mean, std=preprocessing.std
    )
