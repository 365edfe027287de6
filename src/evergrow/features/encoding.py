"""The one way from items to features: read, batch, run the backbone, check, keep.

:func:`encode` takes whole data sets and uses the cache; :func:`encode_batch` takes
samples that are prepared already, one pass of the network for all of them. What is done
to an image before the network sees it is the business of
:class:`~evergrow.features.Preprocessing`; which vectors are read of one pass, that of
the recipe.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import (
    CacheWarning,
    DatasetNotFoundError,
    DataWarning,
    ImageError,
    InputError,
    NewerSchemaError,
    ParameterError,
)
from evergrow.core.progress import meter
from evergrow.core.record import to_values
from evergrow.core.validation import check_choice, check_number, with_changes
from evergrow.data.arrays import FeatureSet
from evergrow.data.feature_blocks import join_blocks
from evergrow.data.items import Dataset, Items
from evergrow.features import cache
from evergrow.features.backbone import Backbone, BackboneSpec, LazyBackbone, Precision
from evergrow.features.batches import (
    Failure,
    ImageReader,
    LoadedBatch,
    choose_workers,
    loaded_batches,
    run_ahead,
    split_rows,
    text_batches,
)
from evergrow.features.cache import (
    CacheEntry,
    CacheInfo,
    Chunk,
    ChunkHead,
    FeatureCache,
    feature_key,
)
from evergrow.features.gpu_images import (
    LARGEST_RAW,
    GpuPreparation,
    RawReader,
    can_prepare,
)
from evergrow.features.preprocess import Preprocessing
from evergrow.features.recipe import FeatureRecipe
from evergrow.features.runner import Policy, Runner, first_precision

Encoded = tuple[LoadedBatch, NDArray[np.float32]]
OnError = Literal["raise", "skip"]

KEEP_FROM = 5
"""Fewer items go straight through the backbone, which takes less time than a lock and a safe way to disk."""

_NAMED = 5  # images that a warning names
_AHEAD = 3  # batches that a GPU is given before the first of them is fetched
_FINISHED = 256  # rows that a thread brings into their final form at a time


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
        ``"auto"`` runs the backbone in half precision on a GPU if its first batch then
        agrees with float32 to 1e-3 of every row's norm, and in float32 otherwise.
    on_error : {"raise", "skip"}
        What to do about an image that cannot be read: raise and name it, or leave it
        out and warn.
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
    on_error: OnError = "raise"
    cache: str | os.PathLike[str] | Literal[False] | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_number("batch_size", self.batch_size, low=1, integer=True)
        if self.workers != "auto":
            check_number("workers", self.workers, low=0, integer=True)
        check_choice("precision", self.precision, get_args(Policy))
        check_choice("on_error", self.on_error, get_args(OnError))
        if (
            self.cache is not None
            and self.cache is not False
            and not isinstance(self.cache, (str, os.PathLike))
        ):
            raise ParameterError(
                f"cache must be None, False or a folder, got {self.cache!r}"
            )

    def changed(self, **changes: Any) -> EncodeConfig:
        """Return the settings with some of them changed; an unknown name is an error that names the nearest."""
        if changes:
            return with_changes(self, changes, "setting of an encoding")
        return self


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
        """Return the features, for ``np.asarray``."""
        if dtype is None:
            X = self.X
        else:
            X = self.X.astype(dtype, copy=False)
        if copy:
            return X.copy()
        return X


def encode(
    backbone: Backbone | LazyBackbone,
    items: Items,
    *,
    config: EncodeConfig | None = None,
    join: bool = True,
    **settings: Any,
) -> Features:
    """Run a backbone over all items, or fetch their cached features.

    Parameters
    ----------
    backbone : Backbone or LazyBackbone
        What to run.
    items : Items
        Images or texts.
    config : EncodeConfig, optional
        How.
    join : bool
        Whether blocks of a recipe are brought to equal energy, as heads take them;
        otherwise they lie side by side as the network gave them.
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
    work = _Encoding(backbone, items, (config or EncodeConfig()).changed(**settings))
    X = np.empty((work.n_items, work.recipe.n_features), dtype=np.float32)
    failures: list[Failure] = []
    end = computed = 0
    with ThreadPoolExecutor(
        4, "evergrow-features"
    ) as pool:  # while the next chunk goes through the backbone
        finished = []
        for chunk in work.chunks():
            start = end
            end = end + len(next(iter(chunk.blocks.values())))
            for rows in split_rows(range(end - start), _FINISHED):
                place = X[start + rows.start : start + rows.stop]
                finished.append(
                    pool.submit(_finish, place, chunk, rows, work.recipe, join)
                )
            failures += chunk.failures
            computed = computed + chunk.computed
            precision = chunk.precision
    for done in finished:
        done.result()
    _judge(failures, work.n_items)
    return Features(
        X=X[:end],
        rows=np.delete(np.arange(work.n_items), [failure.row for failure in failures]),
        failures=tuple((failure.name, failure.reason) for failure in failures),
        widths=work.recipe.widths,
        precision=precision,
        computed=computed,
        seconds=time.perf_counter() - work.started,
    )


def _finish(
    place: NDArray[np.float32],
    chunk: Chunk,
    rows: range,
    recipe: FeatureRecipe,
    join: bool,
) -> None:
    """Make feature vectors of some rows of a chunk."""
    some = recipe.vectors(
        {name: block[rows.start : rows.stop] for name, block in chunk.blocks.items()}
    )
    place[:] = join_blocks(some, recipe.widths) if join else some


def encode_batch(
    backbone: Backbone, samples: Sequence[Tensor] | Sequence[str]
) -> NDArray[np.float32]:
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
        if batch[0].ndim == 3:
            layout = torch.channels_last
        else:
            layout = torch.contiguous_format
        batch = torch.stack(batch).contiguous(memory_format=layout)
    return join_blocks(
        Runner(backbone, "float32").start(batch)(), backbone.spec.blocks.widths
    )


def featurize(
    data: Dataset,
    backbone: Backbone,
    *,
    config: EncodeConfig | None = None,
    **settings: Any,
) -> FeatureSet:
    """Run a backbone over a whole data set, once; later calls on the same data look at no image.

    Parameters
    ----------
    data : Dataset
        Images or texts.
    backbone : Backbone
        What to run.
    config : EncodeConfig, optional
        How; see :func:`evergrow.features.encode`.
    **settings
        Fields of :class:`~evergrow.features.EncodeConfig` to change.

    Returns
    -------
    FeatureSet
        Items that could not be read are left out if ``on_error`` is
        ``"skip"``. Blocks of a recipe are kept apart.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import Dataset
    >>> from evergrow.data.items import Images
    >>> from evergrow.features import create_backbone, featurize
    >>> images = Images(np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8))
    >>> y = np.array([0, 0, 0, 1, 1, 1])
    >>> data = Dataset.of(images, y, images, y, names=("first", "second"), name="toy")
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
    >>> featurize(data, backbone, cache=False).X_train.shape == (6, backbone.n_features)
    True
    """
    parts = [part.raw_items() for part in (data.train, data.test) if part is not None]
    train, *rest = (
        encode(backbone, items, config=config, join=False, **settings)
        for items in parts
    )
    lost = sorted(set(data.y_train.tolist()) - set(data.y_train[train.rows].tolist()))
    if lost:
        names = ", ".join(data.class_names[label] for label in lost[:5])
        raise InputError(
            f"every class must keep a training sample, got none that can be read for {names}"
        )
    return FeatureSet(
        data.name,
        train.X,
        data.y_train[train.rows],
        rest[0].X if rest else train.X[:0],
        data.y_test[rest[0].rows] if rest else data.y_test[:0],
        data.class_names,
        backbone_entry(backbone.spec),
        has_test=data.has_test,
        widths=() if backbone.spec.recipe is None else backbone.spec.recipe.widths,
    )


def backbone_entry(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone for records and feature files; never a path."""
    names = (
        "name",
        "weights",
        "weights_hash",
        "preset",
        "preprocessing",
        "options",
        "n_features",
    )
    entry = {name: getattr(spec, name) for name in names} | {
        "weights": spec.weights.partition(":")[0]
    }
    if spec.recipe is None:
        return entry
    return {**entry, "recipe": to_values(replace(spec.recipe, note=""))}


class _Encoding:
    """One call of :func:`encode`: chunks come from the cache, or are computed and stored there."""

    def __init__(
        self, backbone: Backbone | LazyBackbone, items: Items, config: EncodeConfig
    ) -> None:
        self.backbone, self.items, self.config, self.recipe = (
            backbone,
            items,
            config,
            backbone.spec.blocks,
        )
        self.passes = self.recipe.passes
        self.batch_size = config.batch_size or (
            32 if backbone.device.type == "cpu" else 128
        )
        self.n_items = len(items)
        self.done = 0
        self.started = time.perf_counter()
        if self.n_items == 0:
            raise InputError("items must hold at least one item, got none")
        if backbone.spec.kind != items.kind:
            raise InputError(
                f"items must be what {backbone.spec.name} takes, which is of kind {backbone.spec.kind!r}, got "
                f"{items.kind!r}"
            )
        self.precision = first_precision(backbone.device, config.precision)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of all items in order."""
        chunks = split_rows(range(self.n_items), cache.CHUNK)
        wanted = set(self.passes.blocks)
        entry = self._find_entry()
        with ExitStack() as stack:
            if self.config.progress:
                self.tick = stack.enter_context(
                    meter("features", self.n_items, enabled=True)
                )
            try:
                if entry is None:
                    stored = {}
                else:
                    stored = self._open(entry, chunks, stack)
            except (
                OSError,
                NewerSchemaError,
            ) as error:  # files of a newer evergrow stay untouched
                _warn_unused(error)
                entry = None
                stored = {}
            names = {
                rows: wanted & set(stored[rows].names if rows in stored else ())
                for rows in chunks
            }
            missing = [rows for rows in chunks if names[rows] != wanted]
            # What all of them have is not computed again.
            if missing:
                there = set.intersection(*(names[rows] for rows in missing))
            else:
                there = set()
            computed = self._computed(
                missing, self.passes.without(tuple(there)) or self.passes
            )
            for rows in chunks:
                kept = None
                if entry is not None and rows in stored:
                    kept = entry.load(rows, self.passes)
                chunk = kept
                if names[rows] != wanted:
                    fresh = next(computed)
                    if kept is None:
                        chunk = fresh
                    else:
                        chunk = fresh.joined(kept)
                if chunk is None or not wanted <= set(chunk.names):
                    chunk = next(self._computed([rows], self.passes))
                if chunk is kept:
                    self._done(len(rows), chunk.failures)
                elif entry is not None and not any(
                    failure.passing for failure in chunk.failures
                ):
                    try:
                        entry.store(rows, chunk)
                    except OSError as error:
                        _warn_unused(error)
                        entry = None
                yield chunk

    def _find_entry(self) -> CacheEntry | None:
        """Return the entry of these features, whether or not it exists; None where nothing is to be stored."""
        config = self.config
        if config.cache is False or self.n_items < KEEP_FROM:
            return None
        try:
            stamp = self.items.stamp()
        except DatasetNotFoundError as error:  # a missing image has no stamp
            if config.on_error == "raise":
                raise
            _warn_unused(error)
            return None
        return FeatureCache(config.cache).entry(
            feature_key(stamp, self.backbone.spec, config.precision)
        )

    def _open(
        self, entry: CacheEntry, chunks: list[range], stack: ExitStack
    ) -> dict[range, ChunkHead]:
        """Return the chunks that an entry holds; where blocks are missing, it is locked and made ready for them."""
        stored = entry.stored(chunks)
        wanted = set(self.passes.blocks)
        if len(stored) == len(chunks) and all(
            wanted <= set(head.names) for head in stored.values()
        ):
            return stored
        stack.enter_context(entry.writing())
        stored = entry.stored(
            chunks
        )  # another process may have computed them meanwhile
        self.precision = next(
            (head.precision for head in stored.values()), self.precision
        )
        if self.precision == "float16" and self.backbone.device.type != "cuda":
            entry.clear()  # this device cannot go on at that precision
            stored = {}
            self.precision = "float32"
        entry.begin(CacheInfo.of(self.items, self.backbone.spec))
        return stored

    def _done(self, n_items: int, failures: Sequence[Failure]) -> None:
        """Show progress, or raise if an image could not be read and none may be left out."""
        if failures and self.config.on_error == "raise":
            raise ImageError(
                f"{failures[0].reason}; on_error='skip' leaves such images out"
            )
        self.done += n_items
        rate = self.done / max(time.perf_counter() - self.started, 1e-9)
        if self.config.progress:
            self.tick(self.done, f"{rate:,.1f} {self.items.kind}s/s")

    def _computed(self, chunks: list[range], recipe: FeatureRecipe) -> Iterator[Chunk]:
        """Yield chunks of some blocks that went through the backbone."""
        if isinstance(self.backbone, LazyBackbone):
            self.backbone = self.backbone.load().to(self.backbone.device)
        backbone = self.backbone.reading(recipe)
        runner = Runner(backbone, self.precision)
        with (
            self._batches(chunks, backbone) as batches,
            closing(_encoded(batches, runner)) as encoded,
        ):
            for rows in chunks:
                whole = np.empty((len(rows), recipe.n_features), dtype=np.float32)
                failures: list[Failure] = []
                for loaded, features in islice(
                    encoded, -(-len(rows) // self.batch_size)
                ):
                    self._done(len(loaded.rows) + len(loaded.failures), loaded.failures)
                    whole[loaded.rows - rows.start] = features
                    failures += loaded.failures
                if failures:
                    whole = np.delete(
                        whole,
                        [failure.row - rows.start for failure in failures],
                        axis=0,
                    )
                blocks = np.split(whole, np.cumsum(recipe.widths)[:-1], axis=1)
                self.precision = runner.precision
                yield Chunk(
                    recipe.blocks,
                    runner.precision or "float32",
                    tuple(failures),
                    dict(zip(recipe.blocks, blocks, strict=True)),
                    computed=len(rows),
                )

    @contextmanager
    def _batches(
        self, chunks: list[range], backbone: Backbone
    ) -> Iterator[Iterator[LoadedBatch]]:
        items = self.items
        transform = backbone.transform
        device = backbone.device
        if items.kind == "text":
            yield text_batches(items, chunks, self.batch_size)
            return
        if transform is None:
            raise InputError(
                f"backbone must have a transform to take images, got None from {self.backbone.spec.name}"
            )
        rows = [part for chunk in chunks for part in split_rows(chunk, self.batch_size)]
        # A transform of the user's gives floats, of a size that is not known.
        if isinstance(transform, Preprocessing):
            image_bytes = 3 * math.prod(transform.size)
        else:
            image_bytes = 12 * 512 * 512
        wanted = self.config.workers
        own = None
        if (
            device.type == "cuda"
            and isinstance(transform, Preprocessing)
            and can_prepare(transform)
        ):
            own = transform
            image_bytes = max(image_bytes, LARGEST_RAW)
            if (
                getattr(items, "pixels", None) is not None
            ):  # beside a GPU there is nothing left to do for them
                wanted = 0
        workers = choose_workers(
            wanted, len(rows), device, self.batch_size * image_bytes
        )
        if own is None:
            reader = ImageReader(items, transform)
        else:
            reader = RawReader(items, own, pinned=workers == 0)
        with (
            loaded_batches(reader, rows, workers=workers, device=device) as batches,
            nullcontext(batches)
            if own is None
            else closing(GpuPreparation(own, device)(batches)) as prepared,
        ):
            yield prepared


def _encoded(
    batches: Iterator[LoadedBatch], runner: Runner
) -> Generator[Encoded, None, None]:
    """Yield every batch with its features; a GPU is given the next ones before the first of them is fetched."""

    def start(
        batch: LoadedBatch,
    ) -> tuple[LoadedBatch, Callable[[], NDArray[np.float32]]]:
        return batch, runner.start(batch.batch)

    device = runner.backbone.device
    calls = (partial(start, batch) for batch in batches)
    if device.type == "cuda":
        steps = run_ahead(calls, _AHEAD, _starter(device))
    else:
        steps = (call() for call in calls)
    with closing(steps):
        for loaded, fetch in steps:
            yield loaded, fetch()


@lru_cache
def _starter(device: torch.device) -> ThreadPoolExecutor:
    """Return the one thread that starts networks on a GPU: in a new one, convolutions are prepared anew for seconds."""
    return ThreadPoolExecutor(1, "evergrow-network")


# -- warnings and progress -------------------------------------------------------------


def _judge(failures: Sequence[Failure], n_items: int) -> None:
    """Warn about failures; raise if every item failed."""
    if not failures:
        return
    named = ", ".join(failure.name for failure in failures[:_NAMED])
    more = ""
    if len(failures) > _NAMED:
        more = f" and {len(failures) - _NAMED} more"
    said = f"{named}{more}; the first because {failures[0].reason}"
    if len(failures) == n_items:
        raise ImageError(f"None of the {n_items} images can be read: {said}")
    warnings.warn(
        f"{len(failures)} of {n_items} images could not be read and are left out: {said}",
        DataWarning,
        stacklevel=3,
    )


def _warn_unused(error: Exception) -> None:
    warnings.warn(
        f"The feature cache cannot be used, features are kept in memory only: {error}. Set EVERGROW_CACHE to a folder "
        "with room, or do without by cache=False.",
        CacheWarning,
        stacklevel=2,
    )
