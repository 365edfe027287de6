"""Batches to train on: random crops and flips of images, drawn from named generators.

Images in memory are augmented in batches where the network is; files are decoded and
augmented one by one, by workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from evergrow.adapt.settings import TrainConfig
from evergrow.core.errors import InputError
from evergrow.core.seeding import derive_seed, generator
from evergrow.data.items import Images, Items
from evergrow.features.batches import choose_workers, loaded_batches
from evergrow.features.images import decode_image
from evergrow.features.preprocess import Interpolation, Preprocessing, to_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

RATIO = (3 / 4, 4 / 3)
"""Proportions (width over height) of a crop."""

FLIP = 0.5
"""Probability of mirroring left and right."""

_ATTEMPTS = 10
_BATCH_FILTERS = ("bilinear", "bicubic")  # that images can be resized with in batches
_RESIDENT_SHARE = (
    0.25  # of a GPU's free memory that the images may take to lie there throughout
)


@dataclass(frozen=True)
class TrainTransform:
    """A random crop of random proportions, resized, mirrored half of the time, normalised.

    Parameters
    ----------
    evaluation : Preprocessing
        What the backbone sees when it is evaluated; size and normalisation are its.
    scale : tuple of float
        Share of the image's area that a crop takes.
    interpolation : str
        Pillow's filter for resizing; bilinear, as in the published training runs.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.adapt.training_images import TrainTransform
    >>> from evergrow.features import Preprocessing, decode_image
    >>> from evergrow.core.seeding import derive_seed, generator
    >>> augment = TrainTransform(Preprocessing.pilot(64))
    >>> image = decode_image(np.arange(100 * 80 * 3, dtype=np.uint8).reshape(100, 80, 3))
    >>> first, again = (augment(image, generator(0, "crops")) for _ in range(2))
    >>> tuple(first.shape), bool((first == again).all())
    ((3, 64, 64), True)
    """

    evaluation: Preprocessing
    scale: tuple[float, float] = (0.05, 1.0)
    interpolation: Interpolation = "bilinear"

    def __call__(self, image: Image, generator: torch.Generator) -> Tensor:
        """Return a float32 tensor (3, height, width) of a random part of an image in RGB.

        Parameters
        ----------
        image : PIL.Image.Image
            From :func:`decode_image`.
        generator : torch.Generator
            Where all randomness comes from.
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


def _centred(height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the largest centred box of allowed proportions."""
    tall = height
    wide = width
    if width / height < RATIO[0]:
        tall = max(round(width / RATIO[0]), 1)
    elif width / height > RATIO[1]:
        wide = max(round(height * RATIO[1]), 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def draw_crops(
    scale: tuple[float, float],
    n: int,
    height: int,
    width: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draw the crops of n images of one size: area uniform in ``scale``, log-proportions uniform in :data:`RATIO`.

    A box that does not fit is drawn anew, ten times at most; then it is the largest in
    the middle.

    Parameters
    ----------
    scale : tuple of float
        Share of the image's area that a crop takes.
    n : int
        How many.
    height, width : int
        Size of the images.
    generator : torch.Generator
        Where all randomness comes from.

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
    draws = torch.rand(n, _ATTEMPTS, 4, generator=generator, dtype=torch.float64)
    flips = torch.rand(n, generator=generator, dtype=torch.float64) < FLIP
    low, high = scale
    area = height * width * (low + (high - low) * draws[..., 0])
    first, last = (math.log(value) for value in RATIO)
    proportion = torch.exp(first + (last - first) * draws[..., 1])
    wide = torch.round(torch.sqrt(area * proportion)).to(torch.int64)
    tall = torch.round(torch.sqrt(area / proportion)).to(torch.int64)
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    attempt = fits.to(torch.int8).argmax(
        dim=1
    )  # the first that fits, 0 where none does
    rows = torch.arange(n)
    wide = wide[rows, attempt]
    tall = tall[rows, attempt]
    top = (draws[rows, attempt, 2] * (height - tall + 1)).floor().to(torch.int64)
    left = (draws[rows, attempt, 3] * (width - wide + 1)).floor().to(torch.int64)
    drawn = torch.stack([top, left, tall, wide], dim=1)
    return torch.where(
        fits.any(dim=1)[:, None], drawn, torch.tensor(_centred(height, width))
    ), flips


class Cropper:
    """Crops, resizes, mirrors and normalises images in batches.

    Resizing is separable and linear: out = A x B^T with one banded matrix per image and
    direction. The entries are Pillow's filter, widened where a crop shrinks, so that
    the result is Pillow's up to its rounding of intermediate bytes.

    Parameters
    ----------
    transform : TrainTransform
        Size and normalisation of the result, and the filter: bilinear or bicubic.
    """

    def __init__(self, transform: TrainTransform) -> None:
        self._own = transform.evaluation
        self._size = transform.evaluation.size
        self._cubic = transform.interpolation == "bicubic"

    def __call__(self, pixels: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
        """Return images (n, 3, height, width) in float32.

        Parameters
        ----------
        pixels : Tensor of shape (n, h, w, 3)
            Bytes.
        boxes, flips : Tensor
            From :func:`draw_crops`, on the same device.
        """
        top, left, tall, wide = boxes.to(torch.float32).unbind(dim=1)
        rows = _filters(
            top,
            tall,
            self._size[0],
            pixels.shape[1],
            torch.zeros_like(flips),
            cubic=self._cubic,
        )
        columns = _filters(
            left, wide, self._size[1], pixels.shape[2], flips, cubic=self._cubic
        )
        planes = pixels.permute(0, 3, 1, 2).to(torch.float32)
        # The arithmetic is of image values, which half precision would coarsen; an
        # outer autocast must not apply.
        with torch.autocast(pixels.device.type, enabled=False):
            across = planes @ columns[:, None].transpose(2, 3)
            if self._cubic:  # overshoots, and bytes do not
                across = across.clamp_(0, 255)
            resized = (rows[:, None] @ across).clamp_(0, 255)
        return self._own.normalised(resized.round_())


def _filters(
    start: Tensor, length: Tensor, n_out: int, n_in: int, flips: Tensor, *, cubic: bool
) -> Tensor:
    """Return matrices (n, n_out, n_in) that resize the stretch of ``length`` pixels from ``start`` on."""
    places = torch.arange(n_out, device=start.device, dtype=torch.float32)
    places = torch.where(flips[:, None], n_out - 1 - places, places)
    step = (length / n_out)[:, None]
    centres = start[:, None] + (places + 0.5) * step
    pixels = torch.arange(n_in, device=start.device, dtype=torch.float32)
    distance = (pixels + 0.5 - centres[:, :, None]).abs_() / step.clamp(min=1.0)[
        :, :, None
    ]
    if cubic:
        weights = _cubic(distance)
    else:
        weights = (1.0 - distance).clamp_(min=0.0)
    inside = (pixels >= start[:, None]) & (pixels < (start + length)[:, None])
    weights *= inside[:, None, :]
    return weights / weights.sum(dim=2, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Return Keys's cubic of distances >= 0 with a = -1/2, which is Pillow's."""
    near = (1.5 * distance - 2.5) * distance.square() + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


class TrainingImages:
    """Labelled images that can be gone through any number of times.

    Images of one size in memory are augmented in batches on the network's device;
    others are decoded and transformed one by one, in worker processes where that pays.

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
    seed : int
        The user's seed. Order and augmentation of an epoch come from generators named
        after it and the purpose.
    purpose : tuple of str or int
        What is trained, for example ``("ease", 3)``.
    device : torch.device
        Where the network is.

    Raises
    ------
    InputError
        If there are no images, or not one code for each.
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
                f"items must be at least one image and as many as codes, got {len(items)} and {len(codes)}"
            )
        self.seed = seed
        self.purpose = purpose
        self._stream = partial(generator, seed, "train", *purpose)
        self._items = items
        self._config = config
        self._device = device
        self._evaluation = preprocessing
        self._codes = torch.from_numpy(np.array(codes, dtype=np.int64)).to(device)
        self._pixels: NDArray[np.uint8] | Tensor | None = None
        if config.interpolation == "evaluation":
            used = preprocessing.interpolation
        else:
            used = config.interpolation
        self._augment = TrainTransform(preprocessing, config.crop_scale, used)
        if (
            isinstance(items, Images)
            and items.pixels is not None
            and used in _BATCH_FILTERS
        ):
            self._pixels = items.pixels
            self._crop = Cropper(self._augment)
            if (
                device.type == "cuda"
                and items.pixels.nbytes
                <= _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
            ):
                self._pixels = torch.from_numpy(np.array(items.pixels)).to(device)

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return -(-len(self) // self._config.batch_size)

    def shares(self, number: int) -> list[float]:
        """Return for every step of an epoch how much of each image stays when pairs are mixed; 1 for all of it."""
        if not self._config.mixup:
            return [1.0] * self.steps
        draws = np.random.default_rng(
            derive_seed(self.seed, "train", *self.purpose, "mixup", number)
        )
        shares: list[float] = draws.beta(
            self._config.mixup, self._config.mixup, self.steps
        ).tolist()
        return shares

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, height, width) and codes (n,) on the device, in an order of the epoch's own.

        Parameters
        ----------
        number : int
            The epoch, from 0. The same number gives the same batches, whatever came
            before.
        """
        order = torch.randperm(len(self), generator=self._stream("order", number))
        # Sent to the device once: in every step it would make the CPU wait for a GPU.
        there = order.to(self._device)
        codes = torch.split(self._codes[there], self._config.batch_size)
        if self._pixels is None:
            images = self._loaded(number, order)
        else:
            images = self._cropped(number, order, there)
        yield from zip(images, codes)

    def _cropped(self, epoch: int, order: Tensor, there: Tensor) -> Iterator[Tensor]:
        """Yield crops of the images in memory; their order is given on the CPU and on the device."""
        assert self._pixels is not None
        height, width = self._pixels.shape[1:3]
        draws = self._stream("augment", epoch)
        boxes, flips = draw_crops(
            self._config.crop_scale, len(self), height, width, draws
        )
        boxes = boxes.to(self._device)
        flips = flips.to(self._device)
        for here, rows in zip(
            *(torch.split(rows, self._config.batch_size) for rows in (order, there))
        ):
            if isinstance(self._pixels, Tensor):
                pixels = self._pixels[rows]
            else:
                pixels = torch.from_numpy(self._pixels[here.numpy()]).to(self._device)
            if pixels.ndim == 3:  # grey
                pixels = pixels[..., None].expand(-1, -1, -1, 3)
            yield self._crop(pixels, boxes[rows], flips[rows])

    def _loaded(self, epoch: int, order: Tensor) -> Iterator[Tensor]:
        """Yield the images of files, decoded and transformed."""
        batches = [
            batch.tolist() for batch in torch.split(order, self._config.batch_size)
        ]
        height, width = self._evaluation.size
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


class _AugmentedImages(Dataset[Tensor]):
    """Batches by their rows; every image has a generator of its own, so no worker decides what it looks like."""

    def __init__(
        self,
        items: Items,
        transform: TrainTransform,
        stream: Callable[[int], torch.Generator],
    ) -> None:
        self._items = items
        self._transform = transform
        self._stream = stream

    def __getitems__(self, rows: list[int]) -> Tensor:
        return torch.stack(
            [
                self._image(row, *item)
                for row, item in zip(rows, self._items.batch(rows), strict=True)
            ]
        )

    def _image(self, row: int, name: str, source: Any) -> Tensor:
        if isinstance(source, Exception):
            raise source
        return self._transform(decode_image(source, name=name), self._stream(row))
