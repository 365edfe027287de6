"""Encode items: load batches, run the backbone, check the features and cache them.

:func:`encode` takes items and uses the cache. :func:`encode_batch` takes samples that
are prepared already, and runs the network once for all of them.

Items are encoded in chunks, which are the files of the cache. A chunk goes through the
network in smaller batches, which are loaded in this process or in workers.
:class:`Runner` runs the backbone on a :class:`LoadedBatch` at the chosen precision.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from evergrow.core.errors import (
    CacheWarning,
    DatasetNotFoundError,
    DataWarning,
    ImageError,
    InputError,
    NewerSchemaError,
    NumericalError,
    ParameterError,
)
from evergrow.core.files import StrPath
from evergrow.core.progress import Meter, meter
from evergrow.core.record import UNWRITTEN, Spec, record, require, to_values
from evergrow.core.seeding import generator
from evergrow.core.threads import limit_threads
from evergrow.core.validation import check_choice, check_integer, with_changes
from evergrow.data.feature_blocks import join_blocks
from evergrow.data.items import Dataset, Items, Samples
from evergrow.features.backbone import (
    Backbone,
    BackboneSpec,
    FeatureRecipe,
    LazyBackbone,
    Precision,
)
from evergrow.features.images import decode_image
from evergrow.features.preprocess import Preprocessing

if TYPE_CHECKING:
    from evergrow.features.cache import CacheEntry

Transform = Callable[[Any], Tensor]
Result = TypeVar("Result")

Policy = Literal["auto", "float32", "float16"]
"""Precision that can be requested."""

OnError = Literal["raise", "skip"]

HALF_PRECISION_ERROR = 1e-3
"""Largest distance of half-precision rows from float32 rows that "auto" accepts.

It is relative to the norm of the row, and holds for each block.
"""

_PREFETCH = 2  # batches that each worker holds ready
_MAX_WORKERS_FOR_GPU = 16
_MAX_WORKERS_FOR_CPU = 8
_SHARED_MEMORY = "/dev/shm"

CHUNK = 1024
"""Number of items in a chunk. A killed process loses at most one chunk."""

_MIN_CACHED_ITEMS = 5  # fewer are encoded faster than files are locked and written
_CPU_BATCHES = 4  # that run at once; each needs memory for its activations
_GPU_BATCHES_AHEAD = 3  # batches in the queue of a GPU
_CPU_BATCH_SIZE = 32
_GPU_BATCH_SIZE = 128
_NAMED_FAILURES = 5  # images that a warning or an error names
_MAX_DECODED = 10_000  # images that are decoded to name the unreadable ones
_NAMED_CLASSES = 5  # classes that an error names
_JOINING_THREADS = 4
_JOINED_ROWS = 256  # rows that a thread turns into feature vectors at a time
_CUSTOM_IMAGE_BYTES = 12 * 512 * 512  # guess for a transform of the user


@dataclass(frozen=True)
class EncodeConfig:
    """Settings of :func:`encode`.

    Parameters
    ----------
    batch_size : int, optional
        Items per batch. By default 32 on a CPU and 128 on a GPU.
    workers : int or "auto", default="auto"
        Processes that decode images. 0 decodes in the calling process.
    precision : {"auto", "float32", "float16"}, default="auto"
        ``"auto"`` uses half precision on a GPU if the features of the first batch agree
        with float32 to 1e-3 of every row's norm, else float32.
    on_error : {"raise", "skip"}, default="raise"
        Whether an image that cannot be read raises an error, or is left out with a
        warning.
    cache : False or path-like, optional
        Folder of the feature cache. By default the standard folder. False disables the
        cache.
    progress : bool, default=False
        Whether to show a progress bar on standard error.
    estimate : bool, optional
        Whether to print the expected duration of an adaptation on standard error. By
        default if progress bars are shown.

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
    on_error: OnError = "raise"
    cache: StrPath | Literal[False] | None = None
    progress: bool = False
    estimate: bool | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size)
        if self.workers != "auto":
            check_integer("workers", self.workers, low=0)
        check_choice("precision", self.precision, get_args(Policy))
        check_choice("on_error", self.on_error, get_args(OnError))
        is_folder = isinstance(self.cache, (str, os.PathLike))
        if not is_folder and self.cache is not None and self.cache is not False:
            raise ParameterError(
                f"cache must be None, False or a folder, got {self.cache!r}"
            )

    def changed(self, **changes: Any) -> EncodeConfig:
        """Return a copy with some settings changed.

        Unknown names raise an error that suggests the nearest.
        """
        return with_changes(self, changes, "setting of an encoding")


@dataclass(frozen=True, eq=False)
class Features:
    """Feature vectors of the items that could be read.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The features.
    rows : ndarray of int of shape (n,)
        Index of the item of each row of `X`, ascending.
    failures : tuple of (str, str)
        Name and error message of every item that could not be read.
    widths : tuple of int
        Number of columns of each block. Empty if they are unknown.
    precision : {"float32", "float16"}
        Precision at which the backbone ran.
    computed : int
        Number of items that were computed. The others came from the cache.
    seconds : float
        Duration of the call.
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
        """Return the features, for ``np.asarray``."""
        X = self.X
        if dtype is not None:
            X = X.astype(dtype, copy=False)
        return X.copy() if copy else X


def encode(
    backbone: Backbone | LazyBackbone,
    items: Items,
    *,
    config: EncodeConfig | None = None,
    join: bool = True,
    **settings: Any,
) -> Features:
    """Compute the features of items, or read them from the cache.

    Computed features are written to the cache. Warns with :class:`DataWarning` about
    images that are left out, and with :class:`CacheWarning` if the cache cannot be
    used. A :class:`LazyBackbone` is loaded if features are missing in the cache.

    Parameters
    ----------
    backbone : Backbone or LazyBackbone
        The backbone.
    items : Items
        Images or texts.
    config : EncodeConfig, optional
        Settings.
    join : bool, default=True
        Whether to scale the blocks of a recipe to equal energy, as classifiers expect
        them. Otherwise blocks are concatenated without scaling.
    **settings
        Fields of :class:`EncodeConfig` to change in `config`.

    Returns
    -------
    Features
        In the order of the items.

    Raises
    ------
    ImageError
        If no image can be read, or one cannot be read and ``on_error`` is ``"raise"``.
    InputError
        If there are no items, or the backbone takes another kind of items.
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
    config = config or EncodeConfig()
    if settings:
        config = config.changed(**settings)
    encoding = _Encoding(backbone, items, config)
    X = np.empty((encoding.n_items, encoding.recipe.n_features), dtype=np.float32)
    failures: list[Failure] = []
    joining = []
    end = 0
    computed = 0
    # Vectors are built while the next chunk goes through the backbone.
    with ThreadPoolExecutor(_JOINING_THREADS, "evergrow-features") as pool:
        for chunk in encoding.chunks():
            start = end
            end = start + len(next(iter(chunk.blocks.values())))
            for rows in split_rows(range(end - start), _JOINED_ROWS):
                out = X[start + rows.start : start + rows.stop]
                joining.append(
                    pool.submit(_write_vectors, out, chunk, rows, encoding.recipe, join)
                )
            failures += chunk.failures
            computed += chunk.computed
            precision = chunk.precision
    for future in joining:
        future.result()  # raises its exception, if any
    _report_failures(failures, encoding.n_items)
    return Features(
        X=X[:end],
        rows=np.delete(
            np.arange(encoding.n_items), [failure.row for failure in failures]
        ),
        failures=tuple((failure.name, failure.reason) for failure in failures),
        widths=encoding.recipe.widths,
        precision=precision,
        computed=computed,
        seconds=time.perf_counter() - encoding.started,
    )


def _write_vectors(
    out: NDArray[np.float32],
    chunk: Chunk,
    rows: range,
    recipe: FeatureRecipe,
    join: bool,
) -> None:
    """Write the feature vectors of some rows of a chunk to an array."""
    blocks = {
        name: block[rows.start : rows.stop] for name, block in chunk.blocks.items()
    }
    vectors = recipe.vectors(blocks)
    out[:] = join_blocks(vectors, recipe.widths) if join else vectors


def encode_blocks(
    backbone: Backbone | LazyBackbone, items: Items, config: EncodeConfig
) -> dict[str, NDArray[np.float32]]:
    """Return the features of items by block, as the cache stores them.

    Items that cannot be read are left out. The blocks have one view and one side each.

    Parameters
    ----------
    backbone : Backbone or LazyBackbone
        The backbone.
    items : Items
        Images or texts.
    config : EncodeConfig
        Settings.
    """
    encoding = _Encoding(backbone, items, config)
    chunks = [chunk.blocks for chunk in encoding.chunks()]
    names = encoding.components.blocks
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}


def encode_batch(
    backbone: Backbone, samples: Sequence[Tensor] | Sequence[str]
) -> NDArray[np.float32]:
    """Compute the features of prepared samples in float32 with a single pass.

    The cache is not used. Blocks are scaled to equal energy.

    Parameters
    ----------
    backbone : Backbone
        The backbone.
    samples : sequence of Tensor or str
        At least one text or image. Images are results of ``backbone.transform``, of
        one shape.

    Returns
    -------
    ndarray of shape (n, d)
        The features.

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
        is_image = batch[0].ndim == 3
        layout = torch.channels_last if is_image else torch.contiguous_format
        batch = torch.stack(batch).contiguous(memory_format=layout)
    fetch = Runner(backbone, "float32").start(batch)
    return join_blocks(fetch(), backbone.spec.blocks.widths)


def featurize(
    data: Dataset,
    backbone: Backbone,
    *,
    config: EncodeConfig | None = None,
    **settings: Any,
) -> Dataset:
    """Compute the features of a dataset. Later calls read them from the cache.

    Parameters
    ----------
    data : Dataset
        Images or texts.
    backbone : Backbone
        The backbone.
    config : EncodeConfig, optional
        Settings; see :func:`encode`.
    **settings
        Fields of :class:`EncodeConfig` to change.

    Returns
    -------
    Dataset
        Features and labels. Blocks of a recipe are concatenated without scaling. Items
        that could not be read are left out if ``on_error`` is ``"skip"``.

    Raises
    ------
    InputError
        If no training sample of a class can be read.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import Dataset
    >>> from evergrow.data.items import Images
    >>> from evergrow.features import create_backbone, featurize
    >>> pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3))
    >>> images = Images(pixels.astype(np.uint8))
    >>> y = np.array([0, 0, 0, 1, 1, 1])
    >>> data = Dataset.of(images, y, images, y, names=("first", "second"), name="toy")
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
    >>> featurize(data, backbone, cache=False).X_train.shape
    (6, 96)
    """
    recipe = backbone.spec.recipe

    def encoded(part: Samples) -> Samples:
        found = encode(
            backbone, part.raw_items(), config=config, join=False, **settings
        )
        return Samples(
            "features",
            features=found.X,
            labels=part.required_labels()[found.rows],
            backbone=backbone_entry(backbone.spec),
            widths=() if recipe is None else recipe.widths,
            joined=False,
        )

    train = encoded(data.train)
    kept = set(train.required_labels().tolist())
    lost = [name for name in data.class_names if name not in kept]
    if lost:
        raise InputError(
            "every class must keep a training sample, got none that can be read for "
            f"{', '.join(lost[:_NAMED_CLASSES])}"
        )
    test = None if data.test is None else encoded(data.test)
    return replace(data, train=train, test=test)


def backbone_entry(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone for records and feature files.

    It has most fields of :class:`BackboneSpec` by name. The source of the weights is
    without its path, and the recipe, if any, is without its note.
    """
    names = (
        "name",
        "weights",
        "weights_hash",
        "preset",
        "preprocessing",
        "options",
        "n_features",
    )
    entry = {name: getattr(spec, name) for name in names}
    entry["weights"] = spec.weights.partition(":")[0]
    if spec.recipe is not None:
        entry["recipe"] = to_values(replace(spec.recipe, note=""))
    return entry


class _Encoding:
    """One call of :func:`encode`: reads chunks from the cache, or computes them.

    Attributes
    ----------
    recipe : FeatureRecipe
        Blocks of the feature vectors.
    components : FeatureRecipe
        Blocks that are computed and stored. Each has one view of the images, and one
        side: the view itself or its mirror image.
    component_names : set of str
        Names of the components.
    precision : {"float32", "float16"} or None
        Precision of the backbone. None until the first batch decides.
    n_done : int
        Number of items so far, for the progress bar.
    tick : callable or None
        Updates the progress bar, if there is one.
    started : float
        Time of the start in seconds, for the rate in the progress bar.
    """

    def __init__(
        self, backbone: Backbone | LazyBackbone, items: Items, config: EncodeConfig
    ) -> None:
        self.backbone = backbone
        self.items = items
        self.config = config
        self.recipe = backbone.spec.blocks
        self.components = self.recipe.components
        self.component_names = set(self.components.blocks)
        is_cpu = backbone.device.type == "cpu"
        default_size = _CPU_BATCH_SIZE if is_cpu else _GPU_BATCH_SIZE
        self.batch_size = config.batch_size or default_size
        self.n_items = len(items)
        self.n_done = 0
        self.tick: Meter | None = None
        self.started = time.perf_counter()
        if self.n_items == 0:
            raise InputError("items must hold at least one item, got none")
        if backbone.spec.kind != items.kind:
            raise InputError(
                f"items must be what {backbone.spec.name} takes, which is of kind "
                f"{backbone.spec.kind!r}, got {items.kind!r}"
            )
        self.precision = first_precision(backbone.device, config.precision)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of all items in order, and store the computed ones.

        A chunk of which some blocks are stored is completed: only its missing blocks
        are computed. All incomplete chunks go through the backbone in one run, so that
        workers start once.
        """
        chunks = split_rows(range(self.n_items), CHUNK)
        wanted = self.component_names
        with ExitStack() as stack:
            if self.config.progress:
                bar = meter("features", self.n_items, enabled=True)
                self.tick = stack.enter_context(bar)
            entry, stored = self._open_cache(chunks, stack)
            is_writable = entry is not None
            incomplete = [rows for rows in chunks if stored.get(rows) != wanted]
            missing = self._missing_blocks(
                [stored.get(rows, set()) for rows in incomplete]
            )
            computed = self._computed(incomplete, missing)
            for rows in chunks:
                cached = None
                if entry is not None and rows in stored:
                    cached = entry.load(rows, self.components)
                is_complete = stored.get(rows) == wanted
                if is_complete and cached is not None:
                    self._check_failures(cached.failures, rows.stop)
                    self._show_progress(len(rows))
                    yield cached
                    continue
                chunk = None
                if not is_complete:
                    chunk = next(computed)
                    if cached is not None:
                        chunk = chunk.joined(cached)
                if chunk is None or not wanted <= set(chunk.names):
                    # The stored chunk is damaged, or has another precision or other
                    # failures than the new blocks.
                    chunk = next(self._computed([rows], self.components))
                if entry is not None and is_writable:
                    is_writable = _store_if_final(entry, rows, chunk)
                yield chunk

    def _missing_blocks(self, stored: Sequence[set[str]]) -> FeatureRecipe:
        """Return the blocks that some incomplete chunk lacks.

        Parameters
        ----------
        stored : sequence of set of str
            Stored blocks of each incomplete chunk.
        """
        shared = self.component_names.intersection(*stored)
        return self.components.without(shared) or self.components

    def _open_cache(
        self, chunks: list[range], stack: ExitStack
    ) -> tuple[CacheEntry | None, dict[range, set[str]]]:
        """Open the cache entry of the features.

        The entry is locked until `stack` is closed, unless it is complete.

        Returns
        -------
        entry : CacheEntry or None
            None if the cache is not used.
        stored : dict of range to set of str
            Names of the wanted blocks in each stored chunk.
        """
        config = self.config
        if config.cache is False or self.n_items < _MIN_CACHED_ITEMS:
            return None, {}
        from evergrow.features.cache import FeatureCache, feature_key

        try:
            stamp = self.items.stamp()
        except DatasetNotFoundError as error:  # an image is missing
            if config.on_error == "raise":
                raise
            _warn_unused(error)
            return None, {}
        key = feature_key(stamp, self.backbone.spec, config.precision)
        entry = FeatureCache(config.cache).entry(key)
        try:
            return entry, self._open_entry(entry, chunks, stack)
        except (OSError, NewerSchemaError) as error:  # newer files are not changed
            _warn_unused(error)
            return None, {}

    def _open_entry(
        self, entry: CacheEntry, chunks: list[range], stack: ExitStack
    ) -> dict[range, set[str]]:
        """Return the stored blocks of an entry. If some are missing, lock the entry.

        The precision of stored chunks is adopted.
        """
        from evergrow.features.cache import CacheInfo

        wanted = self.component_names
        heads = entry.read_heads(chunks)
        stored = {rows: wanted & set(head.names) for rows, head in heads.items()}
        if all(stored.get(rows) == wanted for rows in chunks):
            return stored
        stack.enter_context(entry.writing())
        heads = entry.read_heads(chunks)  # another process may have written some
        if heads:
            self.precision = next(iter(heads.values())).precision
        if self.precision == "float16" and self.backbone.device.type != "cuda":
            # This device cannot continue at that precision.
            entry.clear()
            heads = {}
            self.precision = "float32"
        entry.begin(CacheInfo.of(self.items, self.backbone.spec))
        return {rows: wanted & set(head.names) for rows, head in heads.items()}

    def _check_failures(self, failures: Sequence[Failure], n_read: int) -> None:
        """Raise :class:`ImageError` for failures if none may be left out.

        The images after the first `n_read` are only decoded then, so that the message
        names all unreadable images.
        """
        if not failures or self.config.on_error != "raise":
            return
        reader = ImageReader(self.items, _unchanged)
        every = list(failures)
        for row in range(n_read, min(self.n_items, n_read + _MAX_DECODED)):
            every += reader.read([row])[2]
        reason = every[0].reason
        if len(every) > 1:
            reason = (
                f"{len(every)} images cannot be read: {_failed_names(every)}; "
                f"the first because {reason}"
            )
        raise ImageError(f"{reason}; on_error='skip' leaves such images out")

    def _show_progress(self, n_items: int) -> None:
        if self.tick is None:
            return
        self.n_done += n_items
        rate = self.n_done / max(time.perf_counter() - self.started, 1e-9)
        self.tick(self.n_done, f"{rate:,.1f} {self.items.kind}s/s")

    def _computed(self, chunks: list[range], recipe: FeatureRecipe) -> Iterator[Chunk]:
        """Compute chunks and yield them in order. Load the backbone if needed.

        Parameters
        ----------
        chunks : list of range
            Indices of the items of each chunk.
        recipe : FeatureRecipe
            Blocks to compute, of one view and one side each.
        """
        if isinstance(self.backbone, LazyBackbone):
            self.backbone = self.backbone.load().to(self.backbone.device)
        backbone = self.backbone.with_blocks(recipe)
        runner = Runner(backbone, self.precision)
        batches_per_chunk = [split_rows(rows, self.batch_size) for rows in chunks]
        n_batches = sum(map(len, batches_per_chunk))
        with (
            self._batches(chunks, backbone) as batches,
            closing(_encoded_batches(batches, runner, n_batches)) as encoded,
        ):
            for rows, parts in zip(chunks, batches_per_chunk, strict=True):
                yield self._collect(rows, islice(encoded, len(parts)), recipe, runner)

    def _collect(
        self,
        rows: range,
        encoded: Iterator[tuple[LoadedBatch, NDArray[np.float32]]],
        recipe: FeatureRecipe,
        runner: Runner,
    ) -> Chunk:
        """Put the batches of a chunk together.

        Parameters
        ----------
        rows : range
            Indices of the items of the chunk.
        encoded : iterator of (LoadedBatch, ndarray)
            The batches of this chunk, with features in the order of their rows.
        recipe : FeatureRecipe
            Blocks of the features.
        runner : Runner
            It knows the precision once a batch was run.

        Raises
        ------
        ImageError
            If an image could not be read and none may be left out.
        """
        features = np.empty((len(rows), recipe.n_features), dtype=np.float32)
        failures: list[Failure] = []
        for loaded, values in encoded:
            if loaded.failures:
                last = max([*loaded.rows, *(item.row for item in loaded.failures)])
                self._check_failures(loaded.failures, int(last) + 1)
            self._show_progress(len(loaded.rows) + len(loaded.failures))
            features[loaded.rows - rows.start] = values
            failures += loaded.failures
        if failures:
            failed = [failure.row - rows.start for failure in failures]
            features = np.delete(features, failed, axis=0)
        blocks = np.split(features, np.cumsum(recipe.widths)[:-1], axis=1)
        self.precision = runner.precision
        return Chunk(
            recipe.blocks,
            runner.precision or "float32",  # None if no image could be read
            tuple(failures),
            dict(zip(recipe.blocks, blocks, strict=True)),
            computed=len(rows),
        )

    def _batches(
        self, chunks: list[range], backbone: Backbone
    ) -> AbstractContextManager[Iterator[LoadedBatch]]:
        """Return a context manager that gives an iterator over batches.

        No batch has items of two chunks. The context ends the worker processes.

        Parameters
        ----------
        chunks : list of range
            Indices of the items of each chunk.
        backbone : Backbone
            Its transform and device decide how images are prepared.

        Raises
        ------
        InputError
            If the items are images and the backbone has no transform.
        """
        if self.items.kind == "text":
            return nullcontext(text_batches(self.items, chunks, self.batch_size))
        transform = backbone.transform
        device = backbone.device
        if transform is None:
            raise InputError(
                "backbone must have a transform to take images, got None from "
                f"{backbone.spec.name}"
            )
        rows = [part for chunk in chunks for part in split_rows(chunk, self.batch_size)]
        image_bytes = _CUSTOM_IMAGE_BYTES
        if isinstance(transform, Preprocessing):
            image_bytes = 3 * math.prod(transform.size)
            if device.type == "cuda":
                from evergrow.features.gpu_images import can_prepare

                if can_prepare(transform):
                    return self._gpu_batches(rows, transform, device)
        return loaded_batches(
            ImageReader(self.items, transform),
            rows,
            workers=self._choose_workers(rows, device, image_bytes),
            device=device,
        )

    @contextmanager
    def _gpu_batches(
        self, rows: list[range], transform: Preprocessing, device: torch.device
    ) -> Iterator[Iterator[LoadedBatch]]:
        """Yield an iterator over batches that the GPU resizes and crops.

        Workers decode the images only. `rows` are the indices of each batch.
        """
        from evergrow.features.gpu_images import (
            MAX_IMAGE_BYTES,
            GpuPreparation,
            RawReader,
        )

        image_bytes = max(3 * math.prod(transform.size), MAX_IMAGE_BYTES)
        workers = self._choose_workers(rows, device, image_bytes)
        if getattr(self.items, "pixels", None) is not None:
            workers = 0  # there is nothing to decode
        raw = RawReader(self.items, transform, pinned=workers == 0)
        with (
            loaded_batches(raw, rows, workers=workers, device=device) as images,
            closing(GpuPreparation(transform, device)(images)) as prepared,
        ):
            yield prepared

    def _choose_workers(
        self, batches: Sequence[range], device: torch.device, image_bytes: int
    ) -> int:
        """Return the number of workers for batches of images, each of `image_bytes`."""
        return choose_workers(
            self.config.workers, len(batches), device, self.batch_size * image_bytes
        )


def _store_if_final(entry: CacheEntry, rows: range, chunk: Chunk) -> bool:
    """Store a chunk in the cache, and return whether the cache is still writable.

    A chunk with failures that may be temporary is not stored, so that a later run reads
    its samples again.

    Returns
    -------
    bool
        False after a write error, with a warning. True otherwise, also if the chunk was
        not stored.
    """
    if any(failure.temporary for failure in chunk.failures):
        return True
    try:
        entry.store(rows, chunk)
    except OSError as error:
        _warn_unused(error)
        return False
    return True


def _encoded_batches(
    batches: Iterator[LoadedBatch], runner: Runner, n_batches: int
) -> Generator[tuple[LoadedBatch, NDArray[np.float32]], None, None]:
    """Yield every batch with its features, in order.

    On a GPU, a few batches are queued in advance. On a CPU, several batches of images
    run at once, each on a fraction of the threads. If all threads shared one batch,
    they would wait for each other after every operation: ten times as long if other
    programs use the cores.
    """
    device = runner.backbone.device
    start_calls = (partial(_start, runner, batch) for batch in batches)
    with ExitStack() as stack:
        n_at_once = min(torch.get_num_threads(), n_batches, _CPU_BATCHES)
        if device.type == "cuda":
            started = run_ahead(
                start_calls, _GPU_BATCHES_AHEAD, _network_thread(device)
            )
        elif n_at_once > 1 and runner.backbone.is_thread_safe:
            n_threads = torch.get_num_threads() // n_at_once
            pool = ThreadPoolExecutor(
                n_at_once, "evergrow-network", limit_threads, (n_threads,)
            )
            started = run_ahead(start_calls, n_at_once, stack.enter_context(pool))
        else:
            started = (start() for start in start_calls)
        # Entered after the pool, so waiting batches are cancelled before it shuts down.
        stack.enter_context(closing(started))
        for batch, wait_for_features in started:
            yield batch, wait_for_features()


def _start(
    runner: Runner, batch: LoadedBatch
) -> tuple[LoadedBatch, Callable[[], NDArray[np.float32]]]:
    """Start a batch. Return it with the function that waits for its features."""
    return batch, runner.start(batch.batch)


@lru_cache
def _network_thread(device: torch.device) -> ThreadPoolExecutor:
    """Return the thread that runs networks on a GPU.

    It is kept, since cuDNN spends seconds on the convolutions of a new thread.
    """
    return ThreadPoolExecutor(1, "evergrow-network")


def _report_failures(failures: Sequence[Failure], n_items: int) -> None:
    """Warn about failures, or raise :class:`ImageError` if every item failed."""
    if not failures:
        return
    details = f"{_failed_names(failures)}; the first because {failures[0].reason}"
    if len(failures) == n_items:
        raise ImageError(f"None of the {n_items} images can be read: {details}")
    warnings.warn(
        f"{len(failures)} of {n_items} images could not be read and are left out: "
        f"{details}",
        DataWarning,
        stacklevel=3,
    )


def _failed_names(failures: Sequence[Failure]) -> str:
    """Return the names of the first failures, and the number of the others."""
    names = ", ".join(failure.name for failure in failures[:_NAMED_FAILURES])
    if len(failures) > _NAMED_FAILURES:
        return f"{names} and {len(failures) - _NAMED_FAILURES} more"
    return names


def _warn_unused(error: Exception) -> None:
    """Warn that the cache is not used because of an error."""
    warnings.warn(
        "The feature cache cannot be used, features are kept in memory only: "
        f"{error}. Set EVERGROW_CACHE to a folder with room, or do without by "
        "cache=False.",
        CacheWarning,
        stacklevel=2,
    )


# -- batches ---------------------------------------------------------------------------


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
    >>> from evergrow.features.encoding import split_rows
    >>> split_rows(range(5, 8), 2)
    [range(5, 7), range(7, 8)]
    """
    return [
        rows[start : start + batch_size] for start in range(0, len(rows), batch_size)
    ]


class ImageReader:
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

    An error of a call is raised in place of its result, and ends the generator. When
    the generator ends, waiting calls are cancelled and running ones finish.

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
    >>> from evergrow.features.encoding import run_ahead
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
    >>> from evergrow.features.encoding import choose_workers
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


# -- running a backbone ----------------------------------------------------------------


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
