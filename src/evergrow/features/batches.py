"""Load batches of images or texts, and run a backbone on them.

Batches are loaded in this process or in workers. :class:`Runner` runs the backbone on a
:class:`LoadedBatch` at the chosen precision. A :class:`Chunk` holds the features of
many batches, and is a file of the cache.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from evergrow.core.errors import (
    ImageError,
    InputError,
    NumericalError,
    ParameterError,
)
from evergrow.core.record import UNWRITTEN, Spec, record, require
from evergrow.core.seeding import generator
from evergrow.data.items import Items
from evergrow.features.backbone import Backbone, Precision
from evergrow.features.images import decode_image
from evergrow.features.preprocess import Preprocessing

Transform = Callable[[Any], Tensor]
Result = TypeVar("Result")

Policy = Literal["auto", "float32", "float16"]
"""Precision that can be requested."""

HALF_PRECISION_ERROR = 1e-3
"""Largest distance of half-precision rows from float32 rows that "auto" accepts.

It is relative to the norm of the row, and holds for each block.
"""

_PREFETCH = 2  # batches that each worker holds ready
_MAX_WORKERS_FOR_GPU = 16
_MAX_WORKERS_FOR_CPU = 8
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Failure:
    """An item that could not be read.

    Parameters
    ----------
    row : int
        Index of the item.
    name : str
        Name of the item.
    reason : str
        Error message. It contains no path of this machine beyond the name.
    temporary : bool
        Whether the operating system refused access, which may succeed next time.
        Otherwise the content is invalid.
    """

    row: int
    name: str
    reason: str
    temporary: bool = field(default=False, compare=False, metadata=UNWRITTEN)


class LoadedBatch(NamedTuple):
    """Items that could be read, as a backbone takes them.

    Parameters
    ----------
    rows : ndarray of int64
        Indices of the items.
    batch : Tensor, list of str or None
        Images or texts. None if no item could be read.
    failures : list of Failure
        The other items.
    """

    rows: NDArray[np.int64]
    batch: Tensor | list[str] | None
    failures: list[Failure]


@dataclass(frozen=True)
class ChunkHead:
    """The part of a chunk that is read without its features; see :class:`Chunk`."""

    names: tuple[str, ...]
    precision: Precision
    failures: tuple[Failure, ...] = ()


@record("feature-chunk")
@dataclass(frozen=True, eq=False)
class Chunk(ChunkHead):
    """Features of consecutive items.

    Parameters
    ----------
    names : tuple of str
        Names of the blocks.
    precision : {"float32", "float16"}
        Precision of the backbone.
    failures : tuple of Failure
        Items that could not be read.
    blocks : dict of str to ndarray of shape (n, width)
        Features of the other items by the name of the block, without scaling.
    computed : int
        Number of items that were computed in this call, 0 if the chunk was read from
        the cache. Not stored.
    """

    blocks: dict[
        str, Annotated[NDArray[np.float32], Spec(("n", None), dtype="float32")]
    ] = field(default_factory=dict)
    computed: int = field(default=0, metadata=UNWRITTEN)

    def check(self) -> None:
        """Raise :class:`FileFormatError` if names and blocks do not agree."""
        require(
            sorted(self.names) == sorted(self.blocks),
            "its blocks are not those that it names",
        )

    def joined(self, other: Chunk) -> Chunk:
        """Return a chunk with the blocks of both chunks of the same items.

        If precision or failures differ, this chunk is returned without those blocks.
        """
        if (self.precision, self.failures) != (other.precision, other.failures):
            return self
        blocks = {**other.blocks, **self.blocks}
        return replace(self, names=tuple(blocks), blocks=blocks)


def split_rows(rows: range, batch_size: int) -> list[range]:
    """Split a range into batches.

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
    """Reads, decodes and transforms batches of images.

    With a :class:`Preprocessing`, batches are uint8 pixels: a quarter of the size of
    the float32 tensors, which the device computes.

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

    def load(self, source: Any, name: str | None = None) -> Any:
        """Decode and transform an image.

        Parameters
        ----------
        source : path, bytes, PIL.Image.Image or ndarray
            The image; see :func:`~evergrow.features.decode_image`.
        name : str, optional
            Name of the image in messages.

        Returns
        -------
        Tensor
            Result of the transform. uint8 pixels if it is a :class:`Preprocessing`.

        Raises
        ------
        ImageError
            If the image cannot be read.
        """
        image = decode_image(source, name=name)
        if isinstance(self._transform, Preprocessing):
            return self._transform.pixels(image)
        return self._transform(image)

    def read(self, rows: Sequence[int]) -> tuple[list[int], list[Any], list[Failure]]:
        """Read images, and collect the failures.

        Parameters
        ----------
        rows : sequence of int
            Indices of the images.

        Returns
        -------
        rows : list of int
            Indices of the images that could be read.
        loaded : list
            These images, from :meth:`load`.
        failures : list of Failure
            The other images.
        """
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
                if isinstance(source, os.PathLike):
                    # Failures are cached: name the item instead of its path.
                    reason = reason.replace(os.fspath(source), name)
                failures.append(Failure(row, name, reason, _is_system_error(error)))
        return read, loaded, failures

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return the images `rows` as a :class:`LoadedBatch`, for torch's loader.

        Images are in channels-last order in memory.

        Raises
        ------
        InputError
            If images have different shapes.
        """
        read, loaded, failures = self.read(rows)
        batch = None
        if loaded:
            batch = self._stack(read, loaded)
        return LoadedBatch(np.array(read, dtype=np.int64), batch, failures)

    def _stack(self, rows: Sequence[int], images: Sequence[Tensor]) -> Tensor:
        """Stack images, which must have the same shape."""
        shape = images[0].shape
        batch = torch.empty(
            (len(images), *shape),
            dtype=images[0].dtype,
            memory_format=(
                torch.channels_last if len(shape) == 3 else torch.contiguous_format
            ),
        )
        for index, image in enumerate(images):
            if image.shape != shape:
                raise InputError(
                    "transform must give images of one shape, got "
                    f"{tuple(image.shape)} for {self._items.name(rows[index])} after "
                    f"{tuple(shape)}"
                )
            batch[index] = image
        return batch


def _is_system_error(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, came from the operating system."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _unchanged(batch: Any) -> Any:
    """Return a batch as it is. A function of the module can be sent to workers."""
    return batch


@contextmanager
def loaded_batches(
    reader: Any,
    batches: Sequence[Sequence[int]],
    *,
    workers: int,
    device: torch.device,
    draws: torch.Generator | None = None,
) -> Iterator[Iterator[Any]]:
    """Yield an iterator over batches, in order. Stop the workers at the end.

    Parameters
    ----------
    reader : Dataset
        Reads a batch with ``__getitems__(rows)``, for example :class:`ImageReader`.
    batches : sequence of sequence of int
        Indices of the items of each batch.
    workers : int
        Number of worker processes. 0 reads in the calling process.
    device : torch.device
        Device of the model. Batches for a GPU are placed in pinned memory.
    draws : torch.Generator, optional
        Generator of the workers' seeds. The global generator is not used.
    """
    if workers == 0:
        yield map(reader.__getitems__, batches)
        return
    # Forked workers share the items, and need no importable main module.
    context = None
    if sys.platform == "linux":
        context = multiprocessing.get_context("fork")
    loader = DataLoader(
        reader,
        batch_sampler=batches,  # type: ignore[arg-type]
        collate_fn=_unchanged,
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
        # Without this call workers live until the iterator is garbage-collected.
        shut_down = getattr(iterator, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()


def run_ahead(
    calls: Iterable[Callable[[], Result]], count: int, pool: Executor
) -> Generator[Result, None, None]:
    """Yield the results of calls in order, and run some calls in advance.

    When the generator is closed, waiting calls are cancelled and running ones finish.

    Parameters
    ----------
    calls : iterable of callable
        The calls.
    count : int
        Number of calls that run in advance.
    pool : Executor
        Threads that run the calls.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from functools import partial
    >>> from evergrow.features.batches import run_ahead
    >>> squares = (partial(pow, number, 2) for number in range(5))
    >>> with ThreadPoolExecutor(1) as pool:
    ...     list(run_ahead(squares, 2, pool))
    [0, 1, 4, 9, 16]
    """
    futures: deque[Future[Result]] = deque()
    try:
        for call in calls:
            futures.append(pool.submit(call))
            if len(futures) > count:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        running = [future for future in futures if not future.cancel()]
        wait(running)


def text_batches(
    items: Items, chunks: Sequence[range], batch_size: int
) -> Iterator[LoadedBatch]:
    """Yield batches of texts, each of one chunk.

    Within a chunk, texts are sorted by length, the longest first, to reduce padding.

    Parameters
    ----------
    items : Items
        The texts.
    chunks : sequence of range
        Indices of the texts of each chunk.
    batch_size : int
        Largest number of texts in a batch.
    """
    for chunk in chunks:
        texts = [str(text) for _, text in items.batch(chunk)]
        order = sorted(
            range(len(texts)), key=lambda index: len(texts[index]), reverse=True
        )
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            rows = np.array([chunk.start + index for index in indices], dtype=np.int64)
            yield LoadedBatch(rows, [texts[index] for index in indices], [])


def choose_workers(
    wanted: int | Literal["auto"],
    n_batches: int,
    device: torch.device,
    batch_bytes: int,
) -> int:
    """Return the number of worker processes. 0 means to read in this process.

    A requested number is used, but at most one worker per batch. ``"auto"`` gives a
    quarter of the cores, at most 8, to workers for a model on the CPU, which needs the
    others. For a GPU, all but two cores are given, at most 16: the two start kernels
    and pin batches. Batches wait in shared memory, which is small in many containers
    and limits the number of workers.

    Parameters
    ----------
    wanted : int or "auto"
        Requested number.
    n_batches : int
        Number of batches.
    device : torch.device
        Device of the model.
    batch_bytes : int
        Size of a batch in bytes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.batches import choose_workers
    >>> choose_workers("auto", 1, torch.device("cpu"), batch_bytes=1)
    0
    >>> choose_workers(3, 2, torch.device("cpu"), batch_bytes=1)
    2
    """
    if wanted != "auto":
        return min(wanted, n_batches)
    is_gpu = device.type != "cpu"
    starts_slowly = sys.platform != "linux" and not is_gpu
    if n_batches <= _PREFETCH or starts_slowly:
        return 0
    cores = _count_cores()
    if is_gpu:
        useful = min(max(cores - 2, 1), _MAX_WORKERS_FOR_GPU)
    elif cores <= 2:
        useful = 0
    else:
        useful = min(cores // 4 or 1, _MAX_WORKERS_FOR_CPU)
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:  # there is no such limit
        return min(useful, n_batches)
    # Half of the memory is left to other programs.
    fitting = free // 2 // max(1, batch_bytes * (_PREFETCH + 1))
    return min(useful, n_batches, int(fitting))


def _count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def first_precision(device: torch.device, policy: Policy) -> Precision | None:
    """Return the precision of the first batch, or None if that batch decides it.

    Raises :class:`ParameterError` for half precision on another device than a GPU.
    """
    if policy == "float16" and device.type != "cuda":
        raise ParameterError(
            "precision must be 'auto' or 'float32' where the backbone runs on "
            f"{device.type}, got 'float16'; only CUDA devices run it"
        )
    if policy != "auto":
        return policy
    if device.type == "cuda":
        return None
    return "float32"


class Runner:
    """Runs a backbone, and checks the features.

    Parameters
    ----------
    backbone : Backbone
        The backbone.
    precision : {"float32", "float16"} or None
        Precision. None is replaced when the first batch is run: by ``"float16"`` if its
        features agree with float32, else by ``"float32"``.
    """

    def __init__(self, backbone: Backbone, precision: Precision | None) -> None:
        self.backbone = backbone
        self.precision = precision

    def start(
        self, batch: Tensor | list[str] | None
    ) -> Callable[[], NDArray[np.float32]]:
        """Start a batch, and return a function that waits for its features (n, d).

        That function returns a float32 array in main memory. A batch that overflowed in
        half precision is run again in float32. The function raises
        :class:`InputError` if features have another shape than described, and
        :class:`NumericalError` if they are not finite.

        Parameters
        ----------
        batch : Tensor, list of str or None
            Texts, or images from the backbone's transform. If the transform is a
            :class:`Preprocessing`, images can also be its uint8 pixels. None gives no
            rows.
        """
        if batch is None:
            empty = np.empty((0, self.backbone.n_features), dtype=np.float32)
            return lambda: empty
        with torch.inference_mode():
            features = self._run(batch)
            if features.device.type != "cuda":
                return partial(self._fetch, batch, features, None)
            # Copied now: a later copy would wait for batches that are queued meanwhile.
            host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            host.copy_(features, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(features.device))
        return partial(self._fetch, batch, host, ready)

    def _fetch(
        self, batch: Tensor | list[str], features: Tensor, ready: Any
    ) -> NDArray[np.float32]:
        """Wait for features, check them and return them as an array.

        Parameters
        ----------
        batch : Tensor or list of str
            The batch, for running it again.
        features : Tensor
            Features in main memory.
        ready : torch.cuda.Event or None
            Event after which `features` are complete. None if they are.
        """
        array: NDArray[np.float32] = features.numpy()
        if ready is not None:
            ready.synchronize()
            array = array.copy()  # frees the pinned memory, which is scarce
        if self.precision == "float16" and not np.isfinite(array).all():
            with torch.inference_mode():
                array = self._encode(batch, "float32").cpu().numpy()
        spec = self.backbone.spec
        expected = (len(batch), spec.n_features)
        if array.shape != expected:
            raise InputError(
                f"backbone must return features of shape {expected}, got {array.shape} "
                f"from {spec.name}"
            )
        is_finite = np.isfinite(array).all(axis=1)
        if not is_finite.all():
            raise NumericalError(
                f"features must be finite, got NaN or infinity from {spec.name} in "
                f"{int((~is_finite).sum())} of a batch of {len(array)}"
            )
        return array

    def _run(self, batch: Tensor | list[str]) -> Tensor:
        """Run a batch, and return its features on the device.

        Sets :attr:`precision` if it is None, after running the batch at both.
        """
        if self.precision is not None:
            return self._encode(batch, self.precision)
        exact = self._encode(batch, "float32")
        half = self._encode(batch, "float16")
        # Blocks are compared one by one: some have much smaller values than others.
        widths = list(self.backbone.spec.blocks.widths)
        gaps = map(
            _largest_error,
            torch.split(half, widths, dim=1),
            torch.split(exact, widths, dim=1),
        )
        if max(gaps) <= HALF_PRECISION_ERROR:
            self.precision = "float16"
            return half
        self.precision = "float32"
        return exact

    def _encode(self, batch: Any, precision: Precision) -> Tensor:
        """Return float32 features on the device, computed at a precision."""
        device = self.backbone.device
        transform = self.backbone.transform
        if isinstance(batch, Tensor):
            batch = batch.to(device, non_blocking=True)
            if batch.dtype == torch.uint8 and isinstance(transform, Preprocessing):
                batch = transform.normalised(batch)
        # On a CPU this turns off an autocast of the caller.
        dtype = torch.float16 if device.type == "cuda" else None
        with torch.autocast(device.type, dtype=dtype, enabled=precision == "float16"):
            return self.backbone.encode(batch).float()


def _largest_error(half: Tensor, exact: Tensor) -> float:
    """Return the largest distance between rows, relative to the norm of the row.

    The result is infinite if a row is not finite.
    """
    norms = exact.double().norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    gaps = (half.double() - exact.double()).norm(dim=1) / norms
    return float(torch.nan_to_num(gaps, nan=torch.inf, posinf=torch.inf).max())
