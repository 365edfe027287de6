"""Batches to train on: images in memory are augmented where the network is, files are decoded by workers."""

from __future__ import annotations

import multiprocessing
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from evergrow.adapt.augment import TrainTransform, train_transform
from evergrow.adapt.crops import FILTERS, Cropper, draw_crops
from evergrow.adapt.settings import TrainConfig
from evergrow.core.errors import InputError
from evergrow.core.items import Images, Items
from evergrow.core.seeding import generator
from evergrow.features.loader import choose_workers
from evergrow.features.preprocess import Preprocessing

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
        rows = self._rows(order)
        batches = _Batches(self._items, self._transform, [batch.tolist() for batch in rows], self.seeds, epoch)
        workers = self._workers(len(rows))
        if workers == 0:
            for number in range(len(rows)):
                yield batches[number].to(self._device)
            return
        # Forked workers share the items instead of a copy each, and need no importable main module.
        context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
        loader = DataLoader(
            batches,
            batch_size=None,
            num_workers=workers,
            pin_memory=self._device.type == "cuda",
            multiprocessing_context=context,
            generator=self.seeds.generator("workers", epoch),  # the global random state stays as it is
        )
        for images in loader:
            yield images.to(self._device, non_blocking=True)

    def _workers(self, n_batches: int) -> int:
        if self._config.workers != "auto":
            return min(self._config.workers, n_batches)
        height, width = self._transform.size
        return choose_workers(n_batches, self._device, self._config.batch_size * 12 * height * width)


class _Batches(Dataset[Tensor]):
    """Whole batches by number; every image has a generator of its own, so no worker decides what it looks like."""

    def __init__(
        self,
        items: Items,
        transform: TrainTransform | Preprocessing,
        rows: Sequence[list[int]],
        seeds: TrainingSeed,
        epoch: int,
    ) -> None:
        self._items, self._transform, self._rows = items, transform, rows
        self._stream, self._epoch = seeds, epoch

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Tensor:
        return torch.stack([self._image(row) for row in self._rows[number]])

    def _image(self, row: int) -> Tensor:
        from evergrow.features.images import decode_image

        image = decode_image(self._items.raw(row), name=self._items.name(row))
        if isinstance(self._transform, TrainTransform):
            return self._transform(image, self._stream.generator("augment", self._epoch, row))
        return self._transform(image)
