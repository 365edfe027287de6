"""Batches of training images, with random crops and flips from named generators.

Images in memory are augmented in batches on the network's device. Image files are
decoded and augmented one by one in worker processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from evergrow.adapt.settings import TrainConfig
from evergrow.core.errors import InputError
from evergrow.core.seeding import derive_seed, generator
from evergrow.data.items import Images, Items
from evergrow.features.encoding import choose_workers, loaded_batches
from evergrow.features.images import decode_image
from evergrow.features.preprocess import Interpolation, Preprocessing, to_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

ASPECT_RATIOS = (3 / 4, 4 / 3)
"""Range of the aspect ratio (width over height) of a crop."""

FLIP_PROBABILITY = 0.5
"""Probability of a horizontal flip."""

_MAX_DRAWS = 10
"""Number of draws of a crop until one fits into the image."""

_BATCH_FILTERS = ("bilinear", "bicubic")
"""Filters that :meth:`TrainTransform.crop_batch` supports."""

_LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey value."""

_MAX_GPU_FRACTION = 0.25
"""Largest fraction of free GPU memory for keeping all images on the GPU."""


@dataclass(frozen=True)
class TrainTransform:
    """Random crop, resize, horizontal flip and normalisation.

    Transforms one image with Pillow, or a batch on any device.

    Parameters
    ----------
    evaluation : Preprocessing
        Preprocessing of the backbone. It sets size and normalisation.
    scale : tuple of float, default=(0.05, 1.0)
        Range of the fraction of the image's area that a crop covers.
    interpolation : str, default="bilinear"
        Pillow's filter for resizing.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.adapt.training_images import TrainTransform
    >>> from evergrow.features import Preprocessing, decode_image
    >>> from evergrow.core.seeding import derive_seed, generator
    >>> augment = TrainTransform(Preprocessing.pilot(64))
    >>> pixels = np.arange(100 * 80 * 3, dtype=np.uint8).reshape(100, 80, 3)
    >>> image = decode_image(pixels)
    >>> first, again = (augment(image, generator(0, "crops")) for _ in range(2))
    >>> tuple(first.shape), bool((first == again).all())
    ((3, 64, 64), True)
    """

    evaluation: Preprocessing
    scale: tuple[float, float] = (0.05, 1.0)
    interpolation: Interpolation = "bilinear"

    def __call__(self, image: Image, generator: torch.Generator) -> Tensor:
        """Return an image, randomly augmented, as a float32 tensor (3, height, width).

        Parameters
        ----------
        image : PIL.Image.Image
            RGB image, from :func:`decode_image`.
        generator : torch.Generator
            Source of all randomness.
        """
        from PIL.Image import Resampling, Transpose

        boxes, flips = draw_crops(self.scale, 1, image.height, image.width, generator)
        top, left, height, width = boxes[0].tolist()
        image = image.crop((left, top, left + width, top + height))
        image = image.resize(
            self.evaluation.size[::-1], Resampling[self.interpolation.upper()]
        )
        if flips[0]:
            image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
        return self.evaluation.normalised(to_bytes(image).contiguous())

    def crop_batch(self, pixels: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
        """Crop, resize, flip and normalise images together, on their device.

        Resizing is separable and linear: out = A x B^T with one banded matrix per image
        and direction. The matrices hold Pillow's filter, so that the result equals
        Pillow's up to its rounding of intermediate bytes.

        Parameters
        ----------
        pixels : Tensor of shape (n, h, w, 3)
            Images as bytes.
        boxes, flips : Tensor
            From :func:`draw_crops`, on the same device.

        Returns
        -------
        Tensor of shape (n, 3, height, width)
            float32.
        """
        height, width = self.evaluation.size
        is_cubic = self.interpolation == "bicubic"
        top, left, tall, wide = boxes.to(torch.float32).unbind(dim=1)
        no_flips = torch.zeros_like(flips)
        rows = _resize_matrices(
            top, tall, height, pixels.shape[1], no_flips, cubic=is_cubic
        )
        columns = _resize_matrices(
            left, wide, width, pixels.shape[2], flips, cubic=is_cubic
        )
        planes = pixels.permute(0, 3, 1, 2).to(torch.float32)
        # Images need full precision, so an outer autocast is disabled.
        with torch.autocast(pixels.device.type, enabled=False):
            across = planes @ columns[:, None].transpose(2, 3)
            # Pillow clips bicubic overshoots between the two directions.
            if is_cubic:
                across = across.clamp_(0, 255)
            resized = (rows[:, None] @ across).clamp_(0, 255)
        return self.evaluation.normalised(resized.round_())


def draw_crops(
    scale: tuple[float, float],
    n: int,
    height: int,
    width: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draw random crops and flips of images of one size.

    The area is uniform in `scale` and the logarithm of the aspect ratio is uniform in
    :data:`ASPECT_RATIOS`. A crop that does not fit is drawn again, at most ten times.
    After that, the largest centred crop is used.

    Parameters
    ----------
    scale : tuple of float
        Range of the fraction of the image's area.
    n : int
        Number of images.
    height, width : int
        Size of the images.
    generator : torch.Generator
        Source of all randomness.

    Returns
    -------
    boxes : Tensor of shape (n, 4)
        Top, left, height and width, int64.
    flips : Tensor of shape (n,)
        Whether each image is mirrored.

    Examples
    --------
    >>> from evergrow.core.seeding import derive_seed, generator
    >>> from evergrow.adapt.training_images import draw_crops
    >>> boxes, flips = draw_crops((0.05, 1.0), 1000, 32, 32, generator(0, "crops"))
    >>> bool((boxes[:, 0] + boxes[:, 2] <= 32).all())
    True
    """
    # All draws are made at once. Of each image, the first crop that fits is used.
    draws = torch.rand(n, _MAX_DRAWS, 4, generator=generator, dtype=torch.float64)
    area_draws, aspect_draws, top_draws, left_draws = draws.unbind(dim=2)
    flip_draws = torch.rand(n, generator=generator, dtype=torch.float64)
    flips = flip_draws < FLIP_PROBABILITY

    widths, heights = _crop_sizes(scale, height * width, area_draws, aspect_draws)
    fits_width = (widths > 0) & (widths <= width)
    fits_height = (heights > 0) & (heights <= height)
    fits = fits_width & fits_height

    # argmax returns the first draw that fits, or 0 if none does.
    first_fit = fits.to(torch.int8).argmax(dim=1)
    chosen = (torch.arange(n), first_fit)
    crop_width = widths[chosen]
    crop_height = heights[chosen]
    # A crop has height - crop_height + 1 places, and likewise across.
    top = (top_draws[chosen] * (height - crop_height + 1)).floor().to(torch.int64)
    left = (left_draws[chosen] * (width - crop_width + 1)).floor().to(torch.int64)

    drawn = torch.stack([top, left, crop_height, crop_width], dim=1)
    centred = torch.tensor(_centred_crop(height, width))
    has_fit = fits.any(dim=1)
    boxes = torch.where(has_fit[:, None], drawn, centred)
    return boxes, flips


def _crop_sizes(
    scale: tuple[float, float],
    image_area: int,
    area_draws: Tensor,
    aspect_draws: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return widths and heights of crops, int64, from uniform draws within 0 and 1."""
    low, high = scale
    area = image_area * (low + (high - low) * area_draws)
    log_low = math.log(ASPECT_RATIOS[0])
    log_high = math.log(ASPECT_RATIOS[1])
    aspect = torch.exp(log_low + (log_high - log_low) * aspect_draws)
    widths = torch.round(torch.sqrt(area * aspect))
    heights = torch.round(torch.sqrt(area / aspect))
    return widths.to(torch.int64), heights.to(torch.int64)


def _centred_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the largest centred crop.

    Its aspect ratio is within :data:`ASPECT_RATIOS`.
    """
    crop_height = height
    crop_width = width
    low, high = ASPECT_RATIOS
    if width / height < low:
        crop_height = max(round(width / low), 1)
    elif width / height > high:
        crop_width = max(round(height * high), 1)
    top = (height - crop_height) // 2
    left = (width - crop_width) // 2
    return top, left, crop_height, crop_width


def _resize_matrices(
    start: Tensor, length: Tensor, n_out: int, n_in: int, flips: Tensor, *, cubic: bool
) -> Tensor:
    """Return matrices that resize and flip a part of one axis of n images.

    Parameters
    ----------
    start, length : Tensor of shape (n,)
        First pixel of the part and number of its pixels.
    n_out, n_in : int
        Length of the axis after and before.
    flips : Tensor of shape (n,)
        Whether the axis is reversed.
    cubic : bool
        Use the bicubic filter instead of the bilinear one.

    Returns
    -------
    Tensor of shape (n, n_out, n_in)
    """
    outputs = torch.arange(n_out, device=start.device, dtype=torch.float32)
    outputs = torch.where(flips[:, None], n_out - 1 - outputs, outputs)
    step = (length / n_out)[:, None]
    centres = start[:, None] + (outputs + 0.5) * step
    pixels = torch.arange(n_in, device=start.device, dtype=torch.float32)
    offsets = (pixels + 0.5 - centres[:, :, None]).abs_()
    distance = offsets / step.clamp(min=1.0)[:, :, None]
    if cubic:
        weights = _cubic(distance)
    else:
        weights = (1.0 - distance).clamp_(min=0.0)
    inside = (pixels >= start[:, None]) & (pixels < (start + length)[:, None])
    weights *= inside[:, None, :]
    return weights / weights.sum(dim=2, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Return Keys's cubic kernel with a = -1/2 at distances >= 0, as Pillow."""
    near = (1.5 * distance - 2.5) * distance.square() + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def jitter_colours(
    images: Tensor, factors: Tensor, preprocessing: Preprocessing
) -> Tensor:
    """Multiply brightness, contrast and saturation of normalised images.

    Values are clipped to the range of a pixel after each of the three.

    Parameters
    ----------
    images : Tensor of shape (n, 3, height, width)
        Normalised images.
    factors : Tensor of shape (n, 3)
        Factors of brightness, contrast and saturation. 1 changes nothing.
    preprocessing : Preprocessing
        The normalisation.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.training_images import jitter_colours
    >>> from evergrow.features import Preprocessing
    >>> white = torch.ones(1, 3, 2, 2)
    >>> darker = torch.tensor([[0.5, 1.0, 1.0]])
    >>> jitter_colours(white, darker, Preprocessing.pilot(2)).unique()
    tensor([0.5000])
    """
    mean = images.new_tensor(preprocessing.mean)[:, None, None]
    std = images.new_tensor(preprocessing.std)[:, None, None]
    brightness, contrast, saturation = factors.to(images.dtype)[
        ..., None, None, None
    ].unbind(dim=1)
    pixels = ((images * std + mean) * brightness).clamp(0, 1)
    level = _luminance(pixels).mean(dim=(2, 3), keepdim=True)
    pixels = torch.lerp(level, pixels, contrast).clamp(0, 1)
    pixels = torch.lerp(_luminance(pixels), pixels, saturation).clamp(0, 1)
    return (pixels - mean) / std


def _luminance(pixels: Tensor) -> Tensor:
    """Return the grey values (n, 1, height, width) of RGB images, as Pillow does."""
    weights = pixels.new_tensor(_LUMINANCE)[:, None, None]
    return (pixels * weights).sum(dim=1, keepdim=True)


class TrainingImages:
    """Batches of labelled images for training, augmented differently in every epoch.

    Parameters
    ----------
    items : Items
        Images.
    codes : ndarray of int64 of shape (n,)
        Class indices, or another second argument of the loss.
    config : TrainConfig
        Batch size, augmentation and workers.
    preprocessing : Preprocessing
        Preprocessing of the backbone.
    seed : int
        Seed of order and augmentation.
    purpose : tuple of str or int
        Name of the training, for example ``("ease", 3)``.
    device : torch.device
        Device of the network.

    Raises
    ------
    InputError
        If there are no images, or not one code per image.
    """

    def __init__(
        self,
        items: Items,
        codes: NDArray[np.int64],
        config: TrainConfig,
        *,
        preprocessing: Preprocessing,
        seed: int,
        purpose: tuple[str | int, ...] = (),
        device: torch.device,
    ) -> None:
        if items.kind != "image":
            raise InputError(
                f"items must be images to train on, got items of kind {items.kind!r}"
            )
        if len(items) == 0 or len(items) != len(codes):
            raise InputError(
                "items must be at least one image and as many as codes, "
                f"got {len(items)} and {len(codes)}"
            )
        self.seed = seed
        self.purpose = purpose
        self._stream = partial(generator, seed, "train", *purpose)
        self._items = items
        self._config = config
        self._device = device
        self._codes = torch.from_numpy(np.array(codes, dtype=np.int64)).to(device)
        interpolation: Interpolation = preprocessing.interpolation
        if config.interpolation != "evaluation":
            interpolation = config.interpolation
        self._augment = TrainTransform(preprocessing, config.crop_scale, interpolation)
        self._pixels = self._batch_pixels()

    def _batch_pixels(self) -> NDArray[np.uint8] | Tensor | None:
        """Return the images in memory, on the GPU if they are few.

        None if there are files, or if the filter needs one image at a time.
        """
        if (
            not isinstance(self._items, Images)
            or self._items.pixels is None
            or self._augment.interpolation not in _BATCH_FILTERS
        ):
            return None
        pixels = self._items.pixels
        if self._device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(self._device)[0]
            if pixels.nbytes <= _MAX_GPU_FRACTION * free_bytes:
                return torch.from_numpy(np.array(pixels)).to(self._device)
        return pixels

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def steps(self) -> int:
        """Number of batches per epoch."""
        return -(-len(self) // self._config.batch_size)

    def mixup_fractions(self, number: int) -> list[float]:
        """Return the weight of the first image of a mixed pair, for every step.

        1 mixes nothing. `number` is the epoch, from 0.
        """
        alpha = self._config.mixup
        if not alpha:
            return [1.0] * self.steps
        seed = derive_seed(self.seed, "train", *self.purpose, "mixup", number)
        draws = np.random.default_rng(seed).beta(alpha, alpha, self.steps)
        fractions: list[float] = draws.tolist()
        return fractions

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, height, width) and codes (n,) of each step of an epoch.

        They are on the device.

        Parameters
        ----------
        number : int
            The epoch, from 0. It alone determines order and augmentation.
        """
        order = torch.randperm(len(self), generator=self._stream("order", number))
        # Moved to the device once, because every transfer would synchronise.
        order_on_device = order.to(self._device)
        codes = torch.split(self._codes[order_on_device], self._config.batch_size)
        if self._pixels is None:
            images = self._loaded(number, order)
        else:
            images = self._cropped(self._pixels, number, order, order_on_device)
        if self._config.jitter:
            images = self._jittered(images, number)
        yield from zip(images, codes)

    def _jittered(self, batches: Iterator[Tensor], epoch: int) -> Iterator[Tensor]:
        """Change brightness, contrast and saturation of every image at random."""
        jitter = self._config.jitter
        preprocessing = self._augment.evaluation
        draws = torch.rand(len(self), 3, generator=self._stream("jitter", epoch))
        factors = (1 + jitter * (2 * draws - 1)).to(self._device)
        parts = torch.split(factors, self._config.batch_size)
        for images, part in zip(batches, parts):
            yield jitter_colours(images, part, preprocessing)

    def _cropped(
        self,
        all_pixels: NDArray[np.uint8] | Tensor,
        epoch: int,
        order: Tensor,
        order_on_device: Tensor,
    ) -> Iterator[Tensor]:
        """Yield batches of crops of the images in memory."""
        height, width = all_pixels.shape[1:3]
        draws = self._stream("augment", epoch)
        boxes, flips = draw_crops(
            self._config.crop_scale, len(self), height, width, draws
        )
        boxes = boxes.to(self._device)
        flips = flips.to(self._device)
        batch_size = self._config.batch_size
        cpu_batches = torch.split(order, batch_size)
        device_batches = torch.split(order_on_device, batch_size)
        for cpu_rows, rows in zip(cpu_batches, device_batches):
            if isinstance(all_pixels, Tensor):
                pixels = all_pixels[rows]
            else:
                pixels = torch.from_numpy(all_pixels[cpu_rows.numpy()])
                pixels = pixels.to(self._device)
            is_grey = pixels.ndim == 3
            if is_grey:
                pixels = pixels[..., None].expand(-1, -1, -1, 3)
            yield self._augment.crop_batch(pixels, boxes[rows], flips[rows])

    def _loaded(self, epoch: int, order: Tensor) -> Iterator[Tensor]:
        """Yield batches of images that are decoded and augmented one by one."""
        batches = [
            batch.tolist() for batch in torch.split(order, self._config.batch_size)
        ]
        height, width = self._augment.evaluation.size
        # Three channels of four bytes.
        batch_bytes = self._config.batch_size * 12 * height * width
        workers = choose_workers(
            self._config.workers, len(batches), self._device, batch_bytes
        )
        reader = _AugmentedImages(
            self._items, self._augment, partial(self._stream, "augment", epoch)
        )
        draws = self._stream("workers", epoch)
        with loaded_batches(
            reader, batches, workers=workers, device=self._device, draws=draws
        ) as loaded:
            for images in loaded:
                yield images.to(self._device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class _AugmentedImages(Dataset[Tensor]):
    """Batches of augmented images by row numbers.

    Parameters
    ----------
    items : Items
        Images.
    transform : TrainTransform
        The augmentation.
    stream : callable
        Maps the row number of an image to its generator.
    """

    items: Items
    transform: TrainTransform
    stream: Callable[[int], torch.Generator]

    def __getitems__(self, rows: list[int]) -> Tensor:
        """Return images (n, 3, height, width), or raise the error of a file."""
        images = []
        for row, (name, source) in zip(rows, self.items.batch(rows), strict=True):
            if isinstance(source, Exception):
                raise source
            image = decode_image(source, name=name)
            images.append(self.transform(image, self.stream(row)))
        return torch.stack(images)
