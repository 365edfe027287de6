"""Load batches of images and texts for a backbone, in worker processes or in this one."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

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

if TYPE_CHECKING:
    pass

from evergrow.features.images import decode_image

Transform = Callable[[Any], Tensor]
Step = TypeVar("Step")

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
        Whether the system refused (no permission, an input error), which may be over
        next time; what the file holds is not to blame.
    """

    row: int
    name: str
    reason: str
    passing: bool = field(default=False, compare=False, metadata=UNWRITTEN)


class LoadedBatch(NamedTuple):
    """A batch that is ready for a backbone, without the items that could not be read.

    Parameters
    ----------
    rows : ndarray of int64
        Row numbers of the items in the batch.
    batch : Tensor, list of str or None
        What the backbone takes; None if nothing could be read.
    failures : list of Failure
        What is missing.
    """

    rows: NDArray[np.int64]
    batch: Tensor | list[str] | None
    failures: list[Failure]


def split_rows(rows: range, batch_size: int) -> list[range]:
    """Return the batches of a chunk; a resumed run forms the same ones.

    Examples
    --------
    >>> from evergrow.features.batches import split_rows
    >>> split_rows(range(5, 8), 2)
    [range(5, 7), range(7, 8)]
    """
    return [
        rows[start : start + batch_size] for start in range(0, len(rows), batch_size)
    ]


class ImageReader(Dataset[Any]):
    """Batches of images by their rows: read, decoded and transformed; cheap to send to workers.

    The last step of a :class:`Preprocessing`, from bytes to normalised numbers, is left
    to the device: bytes are a quarter of what they become, so that there is less to
    send and to copy.

    Parameters
    ----------
    items : Items
        The images.
    transform : callable
        From a decoded image to a tensor.
    """

    def __init__(self, items: Items, transform: Transform) -> None:
        self._items = items
        self._transform = transform
        if isinstance(transform, Preprocessing):
            self._own = transform
        else:
            self._own = None

    def load(self, source: Any, name: str | None = None) -> Any:
        """Return the tensor of one image, or raise :class:`ImageError`."""
        image = decode_image(source, name=name)
        if self._own is None:
            return self._transform(image)
        return self._own.pixels(image)

    def read(self, rows: Sequence[int]) -> tuple[list[int], list[Any], list[Failure]]:
        """Return the rows that could be read, their images as :meth:`load` gives them, and the failures."""
        read: list[int] = []
        loaded: list[Any] = []
        failures: list[Failure] = []
        for row, (name, source) in zip(rows, self._items.batch(rows), strict=True):
            try:
                if isinstance(source, Exception):
                    raise source
                loaded.append(self.load(source, name))
                read.append(row)
            except (ImageError, OSError) as error:  # noqa: PERF203 - decoding takes a thousand times as long
                reason = str(error) or type(error).__name__
                if isinstance(
                    source, os.PathLike
                ):  # the cache names the file, not where this machine has it
                    reason = reason.replace(os.fspath(source), name)
                failures.append(Failure(row, name, reason, _refused(error)))
        return read, loaded, failures

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return a :class:`LoadedBatch`, its pixels in channels-last order."""
        read, loaded, failures = self.read(rows)
        batch: Tensor | None = None
        for place, image in enumerate(loaded):
            if batch is None:
                if image.ndim == 3:
                    layout = torch.channels_last
                else:
                    layout = torch.contiguous_format
                batch = torch.empty(
                    (len(loaded), *image.shape), dtype=image.dtype, memory_format=layout
                )
            elif image.shape != batch.shape[1:]:
                raise InputError(
                    f"transform must give images of one shape, got {tuple(image.shape)} for "
                    f"{self._items.name(read[place])} after {tuple(batch.shape[1:])}"
                )
            batch[place] = image
        return LoadedBatch(np.array(read, dtype=np.int64), batch, failures)


def _refused(error: BaseException) -> bool:
    """Return whether the system refused to read a file; a decoder's error is another matter."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _as_it_is(loaded: Any) -> Any:
    return loaded


@contextmanager
def loaded_batches(
    reader: Any,
    batches: Sequence[Sequence[int]],
    *,
    workers: int,
    device: torch.device,
    draws: torch.Generator | None = None,
) -> Iterator[Iterator[Any]]:
    """Yield an iterator over batches, in order.

    Parameters
    ----------
    reader : Dataset
        Reads a batch with ``__getitems__(rows)``, such as :class:`ImageReader`.
    batches : sequence of sequence of int
        The rows of each batch.
    workers : int
        Processes that read; 0 reads in this one.
    device : torch.device
        Where the batches will go: those of a GPU are placed where it can fetch them by
        itself.
    draws : torch.Generator, optional
        Where the workers' seeds come from; the global random state stays as it is in
        any case.
    """
    if workers == 0:
        yield (reader.__getitems__(rows) for rows in batches)
        return
    # Forked workers share the items instead of a copy each, and need no importable main
    # module.
    context = None
    if sys.platform == "linux":
        context = multiprocessing.get_context("fork")
    loader = DataLoader(
        reader,
        batch_sampler=batches,  # type: ignore[arg-type]
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=_PREFETCH,
        pin_memory=device.type == "cuda",
        multiprocessing_context=context,
        generator=generator(0, "workers") if draws is None else draws,
    )
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        stop = getattr(
            iterator, "_shutdown_workers", None
        )  # at once, not when the garbage collector comes by
        if stop is not None:
            stop()


def run_ahead(
    calls: Iterable[Callable[[], Step]], count: int, pool: Executor
) -> Generator[Step, None, None]:
    """Yield what calls give, in their order; threads make some of them ahead of the caller.

    Parameters
    ----------
    calls : iterable of callable
        What is called.
    count : int
        Calls that are made before they are asked for.
    pool : Executor
        The threads. None of the calls runs any longer once this generator is closed.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from functools import partial
    >>> from evergrow.features.batches import run_ahead
    >>> with ThreadPoolExecutor(1) as pool:
    ...     list(run_ahead((partial(pow, number, 2) for number in range(5)), 2, pool))
    [0, 1, 4, 9, 16]
    """
    waiting: deque[Future[Step]] = deque()
    try:
        for call in calls:
            waiting.append(pool.submit(call))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        wait([step for step in waiting if not step.cancel()])


def text_batches(
    items: Items, chunks: Sequence[range], batch_size: int
) -> Iterator[LoadedBatch]:
    """Yield batches of texts, sorted by length within a chunk: texts of one length need the least padding."""
    for chunk in chunks:
        texts = [str(text) for _, text in items.batch(chunk)]
        order = sorted(
            range(len(texts)), key=lambda place: len(texts[place]), reverse=True
        )
        for first in range(0, len(order), batch_size):
            places = order[first : first + batch_size]
            rows = np.array([chunk.start + place for place in places], dtype=np.int64)
            yield LoadedBatch(rows, [texts[place] for place in places], [])


def choose_workers(
    wanted: int | Literal["auto"],
    n_batches: int,
    device: torch.device,
    batch_bytes: int,
) -> int:
    """Return the number of decoding processes: as wanted, or as suits the machine.

    A model on the CPU needs the cores itself, so few workers suffice there; a GPU wants
    all but two, which start its kernels and pin its batches (on 16 cores 14 workers
    were faster than 16). Batches wait in shared memory, which containers often keep
    small: no more workers than it has room for.

    Parameters
    ----------
    wanted : int or "auto"
        What was asked for.
    n_batches : int
        How many batches there are.
    device : torch.device
        Where the model runs.
    batch_bytes : int
        Size of a batch of transformed images.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.batches import choose_workers
    >>> choose_workers("auto", 1, torch.device("cpu"), 1), choose_workers(3, 2, torch.device("cpu"), 1)
    (0, 2)
    """
    if wanted != "auto":
        return min(wanted, n_batches)
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    gpu = device.type != "cpu"
    if n_batches <= _PREFETCH or (sys.platform != "linux" and not gpu):
        return 0  # starting processes would cost more than they save
    if gpu:
        useful = min(max(cores - 2, 1), 16)
    elif cores <= 2:
        useful = 0
    else:
        useful = min(cores // 4 or 1, 8)
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:  # no such limit
        return min(useful, n_batches)
    room = (
        free // 2 // max(1, batch_bytes * (_PREFETCH + 1))
    )  # half of it is left to others
    return min(useful, n_batches, int(room))
