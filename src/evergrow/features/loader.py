"""From items to batches: images decoded and transformed in worker processes, texts grouped by length."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from evergrow.core.errors import ImageError, InputError
from evergrow.core.record import UNWRITTEN
from evergrow.core.seeding import generator
from evergrow.data.items import Items
from evergrow.features.preprocess import Preprocessing

Precision = Literal["float32", "float16"]
Transform = Callable[[Any], Tensor]

_PREFETCH = 2  # batches that each worker holds ready
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Failure:
    """An item that could not be read.

    Parameters
    ----------
    row : int
        Its row number.
    name : str
        Its name.
    reason : str
        Why, without any path of this machine beyond the name.
    passing : bool
        Whether the system refused (no permission, an input error), which may be over next time; what the file holds
        is not to blame.
    """

    row: int
    name: str
    reason: str
    passing: bool = field(default=False, compare=False, metadata=UNWRITTEN)


class LoadedBatch(NamedTuple):
    """A batch that is ready for a backbone; what could not be read is missing from it.

    Parameters
    ----------
    rows : ndarray of int64
        Row numbers of the items in the batch.
    batch : Tensor, list of str or None
        What the backbone takes; None if nothing could be read.
    failures : list of Failure
        What is missing.
    last : bool
        Whether a chunk ends here.
    """

    rows: NDArray[np.int64]
    batch: Tensor | list[str] | None
    failures: list[Failure]
    last: bool


class PlannedBatch(NamedTuple):
    """Rows that go through the backbone together, and whether they are the last of their chunk."""

    rows: range
    last: bool


def plan_batches(chunks: Sequence[range], batch_size: int) -> list[PlannedBatch]:
    """Return the batches of chunks; none reaches over the end of its chunk, so that a resumed run forms the same ones.

    Examples
    --------
    >>> from evergrow.features.loader import plan_batches
    >>> [(list(batch.rows), batch.last) for batch in plan_batches([range(5, 8)], 2)]
    [([5, 6], False), ([7], True)]
    """
    return [
        PlannedBatch(range(start, min(start + batch_size, chunk.stop)), start + batch_size >= chunk.stop)
        for chunk in chunks
        for start in range(chunk.start, chunk.stop, batch_size)
    ]


@dataclass(frozen=True)
class ImageLoader:
    """From the file, bytes or array of an image to the tensor that a backbone takes; cheap to send to workers.

    Parameters
    ----------
    transform : callable
        From a decoded image to a tensor.
    as_bytes : bool
        Whether to leave the last step of a :class:`Preprocessing`, from bytes to normalised numbers, to the device:
        bytes are a quarter of what they become, so that there is less to send and to copy.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import Preprocessing
    >>> from evergrow.features.loader import ImageLoader
    >>> image = np.zeros((300, 400, 3), dtype=np.uint8)
    >>> ImageLoader(Preprocessing())(image).dtype, ImageLoader(Preprocessing(), as_bytes=True)(image).dtype
    (torch.float32, torch.uint8)
    """

    transform: Transform
    as_bytes: bool = False

    def __call__(self, source: Any, name: str | None = None) -> Tensor:
        """Return the tensor, or raise :class:`ImageError`."""
        from evergrow.features import images

        own = self.transform if isinstance(self.transform, Preprocessing) else None
        image = images.decode_image(source, name=name, draft_size=own.draft_size if own is not None else None)
        return own.pixels(image) if own is not None and self.as_bytes else self.transform(image)

    def read(self, items: Items, row: int) -> Tensor | Failure:
        """Return the tensor of an item, or why there is none."""
        source, name = None, items.name(row)
        try:
            source = items.raw(row)
            return self(source, name)
        except (ImageError, OSError) as error:
            reason = str(error) or type(error).__name__
            if isinstance(source, os.PathLike):  # what is kept on disk names the file, not where this machine has it
                reason = reason.replace(os.fspath(source), name)
            return Failure(row, name, reason, _refused(error))


def _refused(error: BaseException) -> bool:
    """Say whether the system refused to read, as opposed to a decoder that does not like what it read."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class ImageBatches(Dataset[Any]):
    """Whole batches of images by number: one message from a worker per batch, made up where it was read.

    Parameters
    ----------
    items : Items
        The images.
    load : ImageLoader
        From an image to a tensor.
    plan : sequence of PlannedBatch
        Which rows.
    """

    def __init__(self, items: Items, load: ImageLoader, plan: Sequence[PlannedBatch]) -> None:
        self._items, self._load, self._plan = items, load, plan

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, number: int) -> Any:
        """Return a :class:`LoadedBatch`, its pixels in channels-last order."""
        rows, last = self._plan[number]
        pixels: Tensor | None = None
        read: list[int] = []
        failures: list[Failure] = []
        for row in rows:
            image = self._load.read(self._items, row)
            if isinstance(image, Failure):
                failures.append(image)
                continue
            if pixels is None:
                layout = torch.channels_last if image.ndim == 3 else torch.contiguous_format
                pixels = torch.empty((len(rows), *image.shape), dtype=image.dtype, memory_format=layout)
            elif image.shape != pixels.shape[1:]:
                raise InputError(
                    f"transform must give images of one shape, got {tuple(image.shape)} for {self._items.name(row)} "
                    f"after {tuple(pixels.shape[1:])}"
                )
            pixels[len(read)] = image
            read.append(row)
        return LoadedBatch(
            np.array(read, dtype=np.int64), None if pixels is None else pixels[: len(read)], failures, last
        )


def _as_it_is(loaded: Any) -> Any:
    return loaded


@contextmanager
def loaded_batches(
    batches: Dataset[Any], n: int, *, workers: int, pin: bool, draws: torch.Generator | None = None
) -> Iterator[Iterator[Any]]:
    """Yield an iterator over the batches of a data set, in order.

    Parameters
    ----------
    batches : Dataset
        Batches by number, such as :class:`ImageBatches`.
    n : int
        How many there are.
    workers : int
        Processes that make them; 0 makes them in this one.
    pin : bool
        Whether to place batches where a GPU can fetch them by itself.
    draws : torch.Generator, optional
        Where the workers' seeds come from; the global random state stays as it is in any case.
    """
    if workers == 0:
        yield (batches[number] for number in range(n))
        return
    # Forked workers share the items instead of a copy each, and need no importable main module.
    context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    loader = DataLoader(
        batches,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=_PREFETCH,
        pin_memory=pin,
        multiprocessing_context=context,
        generator=generator(0, "workers") if draws is None else draws,
    )
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        stop = getattr(iterator, "_shutdown_workers", None)  # at once, not when the garbage collector comes by
        if stop is not None:
            stop()


def text_batches(items: Items, chunks: Sequence[range], batch_size: int) -> Iterator[LoadedBatch]:
    """Yield batches of texts, sorted by length within a chunk: texts of one length need the least padding."""
    for chunk in chunks:
        texts = [str(items.raw(row)) for row in chunk]
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]), reverse=True)
        for first in range(0, len(order), batch_size):
            places = order[first : first + batch_size]
            rows = np.array([chunk.start + place for place in places], dtype=np.int64)
            yield LoadedBatch(rows, [texts[place] for place in places], [], first + batch_size >= len(order))


def choose_workers(n_batches: int, device: torch.device, batch_bytes: int) -> int:
    """Return how many processes should decode.

    A model on the CPU needs the cores itself, so few workers suffice there; a GPU wants all but two, which start its
    kernels and pin its batches (on 16 cores 14 workers were faster than 16).
    Batches wait in shared memory, which containers often keep small: no more workers than it has room for.

    Parameters
    ----------
    n_batches : int
        How many batches there are.
    device : torch.device
        Where the model runs.
    batch_bytes : int
        Size of a batch of transformed images.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.loader import choose_workers
    >>> choose_workers(1, torch.device("cpu"), 1)
    0
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpu = device.type != "cpu"
    if n_batches <= _PREFETCH or (sys.platform != "linux" and not gpu):
        return 0  # starting processes would cost more than they save
    wanted = min(max(cores - 2, 1), 16) if gpu else (0 if cores <= 2 else min(cores // 4 or 1, 8))
    return min(wanted, n_batches, _room(batch_bytes))


def _room(batch_bytes: int) -> int:
    """Return for how many workers' batches there is room in shared memory; half of it is left to others."""
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return 64
    return int(free // 2 // max(1, batch_bytes * (_PREFETCH + 1)))
