"""The one way from items to features: read, batch, run the backbone, check, keep.

:func:`encode` and :func:`encode_chunks` take whole data sets and use the cache; :func:`encode_batch` takes samples that
are prepared already, one pass of the network for all of them. What is done to an image before the network sees it is
the business of :class:`~evergrow.features.Preprocessing`; which vectors are read of one pass, that of the recipe.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import (
    CacheWarning,
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    ImageError,
    InputError,
    NewerSchemaError,
    NumericalError,
    ParameterError,
)
from evergrow.core.feature_blocks import block_slices, join_blocks
from evergrow.core.settings import with_changes
from evergrow.core.validation import check_choice, check_number
from evergrow.data.items import Items, Kind
from evergrow.features import cache
from evergrow.features.base import Backbone
from evergrow.features.cache import CacheEntry, Chunk, FeatureCache, describe, feature_key
from evergrow.features.loader import (
    Failure,
    ImageBatches,
    ImageLoader,
    LoadedBatch,
    PlannedBatch,
    Precision,
    choose_workers,
    loaded_batches,
    plan_batches,
    text_batches,
)
from evergrow.features.preprocess import Preprocessing

OnError = Literal["raise", "skip"]
Decode = Literal["cpu", "gpu"]
Policy = Literal["auto", "float32", "float16"]

AGREEMENT = 1e-3
"""Largest distance of half-precision features from float32 ones, relative to the norm of each row (of each of its
blocks), that "auto" accepts."""

KEEP_FROM = 5
"""Fewer items go straight through the backbone, which takes less time than a lock and a safe way to disk."""

_NAMED = 5  # images that a warning names
_UNDER_WAY = 2  # batches that a GPU has been given beyond the one that is fetched


@dataclass(frozen=True)
class EncodeConfig:
    """How items are encoded.

    Parameters
    ----------
    batch_size : int, optional
        Items per batch; by default 32 on a CPU and 128 on a GPU.
    workers : int or "auto"
        Processes that decode images; 0 decodes in this one.
    precision : {"auto", "float32", "float16"}
        ``"auto"`` runs the backbone in half precision on a GPU if its first batch then agrees with float32 to 1e-3 of
        every row's norm, and in float32 otherwise.
    decode : {"cpu", "gpu"}
        What decodes JPEG files: processes of this machine, or the GPU that the backbone runs on. The latter is several
        times as fast where the network is (see :mod:`evergrow.features.gpu_jpeg`), and changes the pixels a little:
        such features are kept apart.
    on_error : {"raise", "skip"}
        What to do about an image that cannot be read: raise and name it, or leave it out and warn.
    cache : None, False or path-like
        The default cache, none, or the one in this folder.
    progress : bool
        Whether to show a progress bar on standard error.

    Examples
    --------
    >>> from evergrow.features import EncodeConfig
    >>> EncodeConfig(workers=-1)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: workers must be an integer >= 0, got -1
    """

    batch_size: int | None = None
    workers: int | Literal["auto"] = "auto"
    precision: Policy = "auto"
    decode: Decode = "cpu"
    on_error: OnError = "raise"
    cache: str | os.PathLike[str] | Literal[False] | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_number("batch_size", self.batch_size, low=1, integer=True)
        if self.workers != "auto":
            check_number("workers", self.workers, low=0, integer=True)
        for name, choices in (("precision", Policy), ("decode", Decode), ("on_error", OnError)):
            check_choice(name, getattr(self, name), get_args(choices))
        if self.cache is not None and self.cache is not False and not isinstance(self.cache, (str, os.PathLike)):
            raise ParameterError(f"cache must be None, False or a folder, got {self.cache!r}")

    @property
    def policy(self) -> str:
        """What decides features beside the items and the backbone, as the cache writes it."""
        return self.precision if self.decode == "cpu" else f"{self.precision}, JPEG decoded by a GPU"

    def changed(self, **changes: Any) -> EncodeConfig:
        """Return the settings with some of them changed; an unknown name is an error that names the nearest."""
        return with_changes(self, changes, "setting of an encoding")


@dataclass(frozen=True, eq=False)
class Features:
    """Feature vectors of items, and how they came about.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The features.
    rows : ndarray of int of shape (n,)
        The items they belong to: all, unless some could not be read and were left out.
    failures : tuple of (str, str)
        Name of every item left out, and why.
    widths : tuple of int
        Columns of each block.
    precision : {"float32", "float16"}
        What the backbone was run at.
    computed : int
        Items that were looked at; the others came from the cache.
    seconds : float
        Time that it took.
    """

    X: NDArray[Any]
    rows: NDArray[np.int64]
    failures: tuple[tuple[str, str], ...] = ()
    widths: tuple[int, ...] = ()
    precision: Precision = "float32"
    computed: int = 0
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.X)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the features, for ``np.asarray`` and whatever takes arrays."""
        X = self.X if dtype is None else self.X.astype(dtype, copy=False)
        return X.copy() if copy else X


def encode(
    backbone: Backbone, items: Items, *, config: EncodeConfig | None = None, join: bool = True, **settings: Any
) -> Features:
    """Run a backbone over all items, or fetch what an earlier run made of them.

    Parameters
    ----------
    backbone : Backbone
        What to run.
    items : Items
        Images or texts.
    config : EncodeConfig, optional
        How.
    join : bool
        Whether blocks of a recipe are brought to equal energy, as heads take them; otherwise they lie side by side as
        the network gave them.
    **settings
        Fields of :class:`EncodeConfig` to change.

    Returns
    -------
    Features
        In the order of the items.

    Raises
    ------
    ImageError
        If an image cannot be read and ``on_error`` is ``"raise"``, or if none can.
    InputError
        If there are no items, or the backbone does not take their kind.
    NumericalError
        If features are not finite.

    Examples
    --------
    >>> import torch
    >>> from evergrow.data.items import Texts
    >>> from evergrow.features import Backbone, BackboneSpec, encode
    >>> class Length(Backbone):
    ...     spec = BackboneSpec("length", "text", 1, "module", "0", "", {}, {})
    ...     transform, device = None, torch.device("cpu")
    ...     def encode(self, batch):
    ...         return torch.tensor([[float(len(text))] for text in batch])
    ...     def to(self, device):
    ...         return self
    >>> encode(Length(), Texts(("one", "three")), cache=False).X.tolist()
    [[3.0], [5.0]]
    """
    started = time.perf_counter()
    work = _Work(backbone, items, (config or EncodeConfig()).changed(**settings))
    chunks = list(_chunks(work))
    failures = [failure for chunk in chunks for failure in chunk.failures]
    _judge(work, failures)
    features = chunks[0].features if len(chunks) == 1 else np.concatenate([chunk.features for chunk in chunks])
    return _features(work, chunks, features, failures, join, time.perf_counter() - started)


def encode_chunks(
    backbone: Backbone, items: Items, *, config: EncodeConfig | None = None, join: bool = True, **settings: Any
) -> Iterator[Features]:
    """Yield the features of items a thousand or so at a time, so that memory does not grow with their number.

    Parameters
    ----------
    backbone, items, config, join, **settings
        As for :func:`encode`.

    Yields
    ------
    Features
        Of consecutive items; ``rows`` are those of all items. One without any row is left out.
    """
    work = _Work(backbone, items, (config or EncodeConfig()).changed(**settings))
    for chunk in _chunks(work):
        if len(chunk.features):
            yield _features(work, [chunk], chunk.features, chunk.failures, join, 0.0)


def encode_batch(backbone: Backbone, samples: Sequence[Tensor] | Sequence[str]) -> NDArray[np.float32]:
    """Return the features of prepared samples from one pass in float32, blocks at equal energy.

    Parameters
    ----------
    backbone : Backbone
        What to run.
    samples : sequence of Tensor or str
        At least one: images as ``backbone.transform`` gives them, or texts.

    Raises
    ------
    NumericalError
        If features are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone, decode_image, encode_batch
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
    >>> image = decode_image(np.zeros((40, 60, 3), dtype=np.uint8))
    >>> encode_batch(backbone, [backbone.transform(image)]).shape
    (1, 96)
    """
    batch: Any = list(samples)
    if backbone.transform is not None:
        layout = torch.channels_last if batch[0].ndim == 3 else torch.contiguous_format
        batch = torch.stack(batch).contiguous(memory_format=layout)
    runner = _Runner(backbone, "float32")
    return join_blocks(runner.fetch(runner.run(batch), batch), backbone.spec.blocks.widths)


def _features(
    work: _Work,
    chunks: Sequence[Chunk],
    features: NDArray[np.float32],
    failures: Sequence[Failure],
    join: bool,
    seconds: float,
) -> Features:
    widths = work.backbone.spec.blocks.widths
    rows = np.arange(chunks[0].rows.start, chunks[-1].rows.stop)
    return Features(
        X=join_blocks(features, widths) if join else features,
        rows=np.delete(rows, [failure.row - chunks[0].rows.start for failure in failures]),
        failures=tuple((failure.name, failure.reason) for failure in failures),
        widths=widths,
        precision=chunks[-1].precision,
        computed=sum(len(chunk.rows) for chunk in chunks if chunk.computed),
        seconds=seconds,
    )


@dataclass(frozen=True)
class _Work:
    """What is to be encoded, by what and how."""

    backbone: Backbone
    items: Items
    config: EncodeConfig

    def __post_init__(self) -> None:
        if len(self.items) == 0:
            raise InputError("items must hold at least one item, got none")
        if self.backbone.kind != self.items.kind:
            raise InputError(
                f"items must be what {self.backbone.spec.name} takes, which is of kind {self.backbone.kind!r}, got "
                f"{self.items.kind!r}"
            )
        if self.config.decode == "gpu":
            from evergrow.features.gpu_jpeg import check_decodable

            check_decodable(self.backbone)

    @property
    def batch_size(self) -> int:
        return self.config.batch_size or (32 if self.backbone.device.type == "cpu" else 128)


# -- chunks: from the cache, or computed and put there ----------------------------------------------------


def _chunks(work: _Work) -> Iterator[Chunk]:
    """Yield the chunks of all items in order."""
    n_items = len(work.items)
    chunks = [range(start, min(start + cache.CHUNK, n_items)) for start in range(0, n_items, cache.CHUNK)]
    runner = _Runner(work.backbone, work.config.precision)  # refuses a precision that the device does not have
    entry = _find_entry(work)
    with _item_meter(work.items.kind, n_items, enabled=work.config.progress) as tick:
        if entry is None:
            yield from _computed(work, runner, chunks, tick)
        else:
            yield from _cached(work, runner, chunks, entry, tick)


def _find_entry(work: _Work) -> CacheEntry | None:
    """Return the entry of this work, whether or not it exists; None where nothing is to be kept."""
    config = work.config
    if config.cache is False or len(work.items) < KEEP_FROM:
        return None
    try:
        stamp = work.items.stamp()
    except DatasetNotFoundError as error:
        if config.on_error == "raise":
            raise
        _warn_unused(error)  # a missing image is one more that is left out, but has no stamp
        return None
    return FeatureCache(config.cache).entry(feature_key(stamp, work.backbone.spec, config.policy))


def _cached(
    work: _Work, runner: _Runner, chunks: list[range], entry: CacheEntry, tick: Callable[[int, bool], None]
) -> Iterator[Chunk]:
    """Yield chunks from an entry, and put into it what is missing there."""
    recipe = work.backbone.spec.blocks
    with ExitStack() as stack:
        writes = True
        try:
            missing = _missing(work, entry, chunks)
            if missing:
                stack.enter_context(entry.writing())
                missing = _missing(work, entry, chunks)  # another process may have computed it meanwhile
                _agree_on_precision(work, runner, entry, missing, chunks)
                stack.callback(_remove_if_empty, entry)
                entry.begin(describe(work.items, work.backbone.spec, work.config.policy))
        except (OSError, NewerSchemaError) as error:  # what a newer evergrow wrote is left to it
            _warn_unused(error)
            missing, writes = chunks, False
        computed = _computed(work, runner, missing, tick)
        for rows in chunks:
            chunk = None if rows in missing else _load(work, entry, rows, tick)
            if chunk is None:
                chunk = next(computed) if rows in missing else next(_computed(work, runner, [rows], tick))
                if writes and not any(failure.passing for failure in chunk.failures):
                    try:
                        entry.store(chunk, recipe)
                    except OSError as error:
                        _warn_unused(error)
                        writes = False
            yield chunk


def _missing(work: _Work, entry: CacheEntry, chunks: list[range]) -> list[range]:
    """Return the chunks that an entry does not hold in whole."""
    missing = []
    for rows in chunks:
        try:
            if entry.holds(rows, work.backbone.spec.blocks):
                continue
        except NewerSchemaError:
            raise
        except FileFormatError as error:
            _warn_damaged(entry, error)
        missing.append(rows)
    return missing


def _agree_on_precision(
    work: _Work, runner: _Runner, entry: CacheEntry, missing: list[range], chunks: list[range]
) -> None:
    """Go on at the precision of what is there; where this device does not have it, begin anew."""
    for rows in chunks:
        if rows in missing:
            continue
        with suppress(FileFormatError):
            runner.precision = entry.load(rows, work.backbone.spec.blocks).precision
            break
    if runner.precision == "float16" and work.backbone.device.type != "cuda":
        entry.clear()
        missing[:], runner.precision = chunks, "float32"


def _load(work: _Work, entry: CacheEntry, rows: range, tick: Callable[[int, bool], None]) -> Chunk | None:
    """Return a chunk that is there, None where it is damaged."""
    try:
        chunk = entry.load(rows, work.backbone.spec.blocks)
    except FileFormatError as error:
        _warn_damaged(entry, error)
        return None
    _raise_if_fatal(work, chunk.failures)
    tick(len(rows), False)
    return chunk


def _remove_if_empty(entry: CacheEntry) -> None:
    with suppress(OSError):
        if not entry.chunks():
            entry.clear()


def _warn_unused(error: Exception) -> None:
    warnings.warn(
        f"The feature cache cannot be used, features are kept in memory only: {error}. Set EVERGROW_CACHE to a folder "
        "with room, or do without by cache=False.",
        CacheWarning,
        stacklevel=2,
    )


def _warn_damaged(entry: CacheEntry, error: Exception) -> None:
    warnings.warn(
        f"Cached features {entry.folder.name[:12]} are computed again, damaged: {error}", CacheWarning, stacklevel=2
    )


# -- computing ----------------------------------------------------------------------------------------------


def _computed(work: _Work, runner: _Runner, chunks: list[range], tick: Callable[[int, bool], None]) -> Iterator[Chunk]:
    """Take chunks through the backbone."""
    rows: list[NDArray[np.int64]] = []
    blocks: list[NDArray[np.float32]] = []
    failures: list[Failure] = []
    waiting = iter(chunks)
    with _batches(work, chunks) as batches:
        for loaded, features in _encoded(runner, batches):
            _raise_if_fatal(work, loaded.failures)
            failures += loaded.failures
            if features is not None:
                rows.append(loaded.rows)
                blocks.append(features)
            tick(len(loaded.rows) + len(loaded.failures), True)
            if loaded.last:
                found = np.empty((0, work.backbone.n_features), dtype=np.float32)
                if blocks:
                    found = np.concatenate(blocks)[np.argsort(np.concatenate(rows))]
                yield Chunk(next(waiting), found, tuple(failures), runner.precision or "float32", computed=True)
                rows, blocks, failures = [], [], []


@contextmanager
def _batches(work: _Work, chunks: list[range]) -> Iterator[Iterator[LoadedBatch]]:
    if work.items.kind == "text":
        yield text_batches(work.items, chunks, work.batch_size)
        return
    transform, device = work.backbone.transform, work.backbone.device
    if transform is None:
        raise InputError(f"backbone must have a transform to take images, got None from {work.backbone.spec.name}")
    plan = plan_batches(chunks, work.batch_size)
    workers = _workers(work, plan)
    load, pin = ImageLoader(transform, as_bytes=True), device.type == "cuda"
    if work.config.decode == "cpu":
        with loaded_batches(ImageBatches(work.items, load, plan), len(plan), workers=workers, pin=pin) as batches:
            yield batches
        return
    from evergrow.features.gpu_jpeg import EncodedImages, decoded_batches, gpu_decoder

    with loaded_batches(EncodedImages(work.items, load, plan), len(plan), workers=workers, pin=pin) as files:
        yield decoded_batches(files, work.items, load, device, gpu_decoder(device))


def _workers(work: _Work, plan: list[PlannedBatch]) -> int:
    if work.config.workers != "auto":
        return min(work.config.workers, len(plan))
    transform = work.backbone.transform
    own = isinstance(transform, Preprocessing)
    height, width = transform.size if isinstance(transform, Preprocessing) else (512, 512)  # a guess on the safe side
    return choose_workers(len(plan), work.backbone.device, work.batch_size * 3 * (1 if own else 4) * height * width)


def _encoded(
    runner: _Runner, batches: Iterator[LoadedBatch]
) -> Iterator[tuple[LoadedBatch, NDArray[np.float32] | None]]:
    """Yield every batch with its features, of a GPU some late: it always has the next before the last is fetched."""
    waiting: deque[tuple[LoadedBatch, _Encoding | None]] = deque()

    def finished() -> tuple[LoadedBatch, NDArray[np.float32] | None]:
        loaded, encoding = waiting.popleft()
        return loaded, None if encoding is None or loaded.batch is None else runner.fetch(encoding, loaded.batch)

    for loaded in batches:
        waiting.append((loaded, None if loaded.batch is None else runner.run(loaded.batch)))
        while waiting and (len(waiting) > _UNDER_WAY or waiting[0][1] is None or waiting[0][1].ready is None):
            yield finished()
    while waiting:
        yield finished()


class _Encoding(NamedTuple):
    """Features on their way: in the memory of this process once the GPU's event ``ready``, if there is one, is over."""

    features: Tensor
    ready: torch.cuda.Event | None


class _Runner:
    """Runs a backbone at a precision that is settled by its first batch, and checks what it gives.

    Attributes
    ----------
    precision : {"float32", "float16"} or None
        What is used; None before the first batch of an undecided policy.
    """

    def __init__(self, backbone: Backbone, policy: Policy) -> None:
        device = backbone.device.type
        if policy == "float16" and device != "cuda":
            raise ParameterError(
                f"precision must be 'auto' or 'float32' where the backbone runs on {device}, got 'float16'; "
                "only CUDA devices run it"
            )
        self._backbone = backbone
        self.precision: Precision | None = policy if policy != "auto" else (None if device == "cuda" else "float32")

    def run(self, batch: Tensor | list[str]) -> _Encoding:
        """Begin with a batch: images as the backbone's transform gives them or, by its preprocessing, as bytes."""
        with torch.inference_mode():
            features = self._settled(self._on_device(batch)).float()
            if features.device.type != "cuda":
                return _Encoding(features, None)
            # Asking for them later would wait for all that the GPU was given meanwhile.
            host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            host.copy_(features, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(features.device))
        return _Encoding(host, ready)

    def fetch(self, encoding: _Encoding, batch: Tensor | list[str]) -> NDArray[np.float32]:
        """Return finished features as an array; a batch that overflowed in half precision is run again in float32.

        Raises
        ------
        InputError
            If they have another shape than the backbone says.
        NumericalError
            If they are not finite.
        """
        if encoding.ready is not None:
            encoding.ready.synchronize()
        array = encoding.features.numpy()
        if encoding.ready is not None:
            array = array.copy()  # pinned memory is scarce
        finite = np.isfinite(array).all(axis=-1)
        if not finite.all() and self.precision == "float16":
            with torch.inference_mode():
                array = self._encode(self._on_device(batch), "float32").float().cpu().numpy()
            finite = np.isfinite(array).all(axis=-1)
        name, expected = self._backbone.spec.name, (len(batch), self._backbone.n_features)
        if array.shape != expected:
            raise InputError(f"backbone must return features of shape {expected}, got {array.shape} from {name}")
        if not finite.all():
            raise NumericalError(
                f"features must be finite, got NaN or infinity from {name} in {int((~finite).sum())} of a batch of "
                f"{len(array)}"
            )
        return np.asarray(array, dtype=np.float32)

    def _on_device(self, batch: Tensor | list[str]) -> Tensor | list[str]:
        """Return a batch on the backbone's device, bytes made into what its preprocessing gives."""
        if not isinstance(batch, Tensor):
            return batch
        batch, transform = batch.to(self._backbone.device, non_blocking=True), self._backbone.transform
        if batch.dtype == torch.uint8 and isinstance(transform, Preprocessing):
            return transform.normalised(batch)
        return batch

    def _settled(self, batch: Tensor | list[str]) -> Tensor:
        """Return the features of a batch, where the backbone computes them; the first one settles the precision."""
        if self.precision is not None:
            return self._encode(batch, self.precision)
        exact, half = self._encode(batch, "float32"), self._encode(batch, "float16")
        # Block by block: one of small numbers must agree as well as the others.
        blocks = block_slices(self._backbone.spec.blocks.widths)
        gap = max(distance(half[:, columns], exact[:, columns]) for columns in blocks)
        self.precision = "float16" if gap <= AGREEMENT else "float32"
        return half if self.precision == "float16" else exact

    def _encode(self, batch: Tensor | list[str], precision: Precision) -> Tensor:
        device = self._backbone.device.type
        # On a CPU an outer autocast of the caller is turned off: the precision is part of the result.
        kind = torch.float16 if device == "cuda" else None
        with torch.autocast(device, dtype=kind, enabled=precision == "float16"):
            return self._backbone.encode(batch)


def distance(half: Tensor, exact: Tensor) -> float:
    """Return the largest distance between rows relative to their norm; infinite where a row is not finite.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.encoding import distance
    >>> round(distance(torch.tensor([[3.0, 4.5]]), torch.tensor([[3.0, 4.0]])), 6)
    0.1
    """
    norms = exact.double().norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    gaps = (half.double() - exact.double()).norm(dim=1) / norms
    return float(torch.nan_to_num(gaps, nan=torch.inf, posinf=torch.inf).max())


# -- failures and progress ----------------------------------------------------------------------------------


def _raise_if_fatal(work: _Work, failures: Sequence[Failure]) -> None:
    """Raise for the first image that cannot be read, if that is to be fatal."""
    if failures and work.config.on_error == "raise":
        failure = failures[0]
        where = ""
        with suppress(ImageError):  # where it cannot even be had, the reason says so
            source = work.items.raw(failure.row)
            where = f" (file {os.fspath(source)})" if isinstance(source, os.PathLike) else ""
        raise ImageError(f"{failure.reason}{where}; on_error='skip' leaves such images out")


def _judge(work: _Work, failures: Sequence[Failure]) -> None:
    """Warn about what was left out, or raise where that is everything."""
    if not failures:
        return
    named = ", ".join(failure.name for failure in failures[:_NAMED])
    more = f" and {len(failures) - _NAMED} more" if len(failures) > _NAMED else ""
    said = f"{named}{more}; the first because {failures[0].reason}"
    if len(failures) == len(work.items):
        raise ImageError(f"None of the {len(failures)} images can be read: {said}")
    warnings.warn(
        f"{len(failures)} of {len(work.items)} images could not be read and are left out: {said}",
        DataWarning,
        stacklevel=3,
    )


@contextmanager
def _item_meter(kind: Kind, total: int, *, enabled: bool) -> Iterator[Callable[[int, bool], None]]:
    """Yield a function that is told how many more items are done, and whether they count for the rate shown."""
    if not enabled:
        yield lambda more, computed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("[bold]features"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn(f"{{task.fields[rate]:,.1f}} {kind}s/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    begun, here = time.perf_counter(), 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total, rate=0.0)

        def tick(more: int, computed: bool) -> None:
            nonlocal here
            here += more if computed else 0
            progress.update(task, advance=more, rate=here / max(time.perf_counter() - begun, 1e-9))

        yield tick
