"""Batches to train on: random crops and flips of images, drawn from named generators.

Images in memory are augmented in batches where the network is; files are decoded and augmented one by one, by workers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from evergrow.adapt.settings import TrainConfig
from evergrow.core.errors import (
    InputError,
    ParameterError,
)
from evergrow.core.seeding import generator
from evergrow.core.validation import check_number
from evergrow.data.items import Images, Items
from evergrow.features.images import decode_image
from evergrow.features.loader import choose_workers, loaded_batches
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
    >>> from evergrow.adapt.training_images import train_transform
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
    >>> from evergrow.adapt.training_images import train_transform
    >>> from evergrow.features import Preprocessing
    >>> train_transform(Preprocessing.pilot(96)).mean
    (0.0, 0.0, 0.0)
    """
    return TrainTransform(
        preprocessing.size, scale, ratio, flip, interpolation, mean=preprocessing.mean, std=preprocessing.std
    )


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
    """Draw the crops of n images of one size, by the same law as :class:`TrainTransform`.

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
    >>> from evergrow.adapt.training_images import train_transform
    >>> from evergrow.features import Preprocessing
    >>> from evergrow.core.seeding import generator
    >>> from evergrow.adapt.training_images import draw_crops
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


Batch = tuple[Tensor, Tensor]

_RESIDENT_SHARE = 0.25
"""Share of a GPU's free memory that the images may take to lie there throughout."""


@dataclass(frozen=True)
class TrainingSeed:
    """A named source of randomness; the batches of an epoch depend on nothing else.

    Parameters
    ----------
    seed : int
        The user's seed.
    purpose : tuple of str or int
        What is trained, for example ``("ease", 3)``.
    """

    seed: int
    purpose: tuple[str | int, ...] = ()

    def generator(self, *what: str | int) -> torch.Generator:
        """Return the generator of one use."""
        return generator(self.seed, "train", *self.purpose, *what)


class TrainingImages(ABC):
    """Labelled images that can be gone through any number of times."""

    def __init__(
        self, codes: NDArray[np.int64], config: TrainConfig, seeds: TrainingSeed, device: torch.device
    ) -> None:
        self._codes = torch.from_numpy(np.array(codes, dtype=np.int64)).to(device)
        self._config = config
        self.seeds = seeds
        self._device = device

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return -(-len(self) // self._config.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield images (n, 3, height, width) and codes (n,) on the device, in an order of the epoch's own.

        Parameters
        ----------
        number : int
            The epoch, from 0. The same number gives the same batches, whatever came before.
        """
        order = torch.randperm(len(self), generator=self.seeds.generator("order", number))
        # Sent to the device once: in every step it would make the CPU wait for a GPU.
        there = order.to(self._device)
        codes = torch.split(self._codes[there], self._config.batch_size)
        yield from zip(self._images(number, order, there), codes)

    def _rows(self, order: Tensor) -> tuple[Tensor, ...]:
        return torch.split(order, self._config.batch_size)

    @abstractmethod
    def _images(self, epoch: int, order: Tensor, there: Tensor) -> Iterator[Tensor]:
        """Yield the images in an order, batch by batch; it is given on the CPU and on the device."""


def training_images(
    items: Items,
    codes: NDArray[np.int64],
    config: TrainConfig,
    *,
    preprocessing: Preprocessing,
    seeds: TrainingSeed,
    device: torch.device,
) -> TrainingImages:
    """Return the images for a training, by the fastest way there is.

    Parameters
    ----------
    items : Items
        Images.
    codes : ndarray of int64 of shape (n,)
        Their classes.
    config : TrainConfig
        Batch size, augmentation, workers.
    preprocessing : Preprocessing
        What the backbone sees when it is evaluated.
    seeds : TrainingSeed
        Where order and augmentation come from.
    device : torch.device
        Where the network is.

    Raises
    ------
    InputError
        If there are no images, or not one code for each.
    """
    if items.kind != "image":
        raise InputError(f"items must be images to train on, got items of kind {items.kind!r}")
    if len(items) == 0 or len(items) != len(codes):
        raise InputError(f"items must be at least one image and as many as codes, got {len(items)} and {len(codes)}")
    if config.augment:
        filtered = preprocessing.interpolation if config.interpolation == "evaluation" else config.interpolation
        transform = train_transform(preprocessing, scale=config.crop_scale, interpolation=filtered)
        if isinstance(items, Images) and items.pixels is not None and filtered in FILTERS:
            return ArrayImages(items.pixels, codes, config, seeds, device, transform=transform)
        return LoadedImages(items, codes, config, seeds, device, transform=transform)
    return LoadedImages(items, codes, config, seeds, device, transform=preprocessing)


class ArrayImages(TrainingImages):
    """Images of one size in memory, augmented in batches on the network's device."""

    def __init__(self, pixels: NDArray[np.uint8], *common: Any, transform: TrainTransform) -> None:
        super().__init__(*common)
        self._pixels = pixels
        self._transform = transform
        self._crop = Cropper(transform, self._device)
        self._resident: Tensor | None = None
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            if pixels.nbytes <= _RESIDENT_SHARE * free:
                self._resident = torch.from_numpy(np.array(pixels)).to(self._device)

    def _images(self, epoch: int, order: Tensor, there: Tensor) -> Iterator[Tensor]:
        height, width = self._pixels.shape[1:3]
        draws = self.seeds.generator("augment", epoch)
        crops = draw_crops(self._transform, len(self), height, width, draws).to(self._device)
        for here, rows in zip(self._rows(order), self._rows(there)):
            if self._resident is not None:
                pixels = self._resident[rows]
            else:
                pixels = torch.from_numpy(self._pixels[here.numpy()]).to(self._device)
            if pixels.ndim == 3:  # grey
                pixels = pixels[..., None].expand(-1, -1, -1, 3)
            yield self._crop(pixels, crops.take(rows))


class LoadedImages(TrainingImages):
    """Images that are decoded and transformed one by one, in worker processes where that pays."""

    def __init__(self, items: Items, *common: Any, transform: TrainTransform | Preprocessing) -> None:
        super().__init__(*common)
        self._items = items
        self._transform = transform

    def _images(self, epoch: int, order: Tensor, there: Tensor) -> Iterator[Tensor]:
        batches = [batch.tolist() for batch in self._rows(order)]
        height, width = self._transform.size
        batch_bytes = self._config.batch_size * 12 * height * width
        workers = choose_workers(self._config.workers, len(batches), self._device, batch_bytes)
        reader = _AugmentedImages(self._items, self._transform, self.seeds, epoch)
        draws = self.seeds.generator("workers", epoch)
        with loaded_batches(reader, batches, workers=workers, device=self._device, draws=draws) as loaded:
            for images in loaded:
                yield images.to(self._device, non_blocking=True)


class _AugmentedImages(Dataset[Tensor]):
    """Batches by their rows; every image has a generator of its own, so no worker decides what it looks like."""

    def __init__(
        self, items: Items, transform: TrainTransform | Preprocessing, seeds: TrainingSeed, epoch: int
    ) -> None:
        self._items, self._transform, self._seeds, self._epoch = items, transform, seeds, epoch

    def __getitems__(self, rows: list[int]) -> Tensor:
        return torch.stack([self._image(row, *item) for row, item in zip(rows, self._items.batch(rows), strict=True)])

    def _image(self, row: int, name: str, source: Any) -> Tensor:
        if isinstance(source, Exception):
            raise source
        image = decode_image(source, name=name)
        if isinstance(self._transform, TrainTransform):
            return self._transform(image, self._seeds.generator("augment", self._epoch, row))
        return self._transform(image)
