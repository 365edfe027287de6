"""From items to features: one pass, in batches, once and for all."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import (
    CacheWarning,
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    ImageError,
    InputError,
    NewerSchemaError,
)
from evergrow.core.feature_blocks import join_blocks
from evergrow.core.items import Items
from evergrow.core.wording import hint, setting
from evergrow.features.base import Backbone
from evergrow.features.cache import FeatureCache, describe, feature_key
from evergrow.features.cache_entry import CacheEntry, StoredFeatures
from evergrow.features.collector import Collector, item_meter, warn_unused
from evergrow.features.gpu_jpeg import EncodedImages, check_decodable, decoded_batches, gpu_decoder
from evergrow.features.loader import (
    BatchPlan,
    Failure,
    ImageBatches,
    ImageLoader,
    LoadedBatch,
    choose_workers,
    image_batches,
    load_image,
    text_batches,
)
from evergrow.features.precision import Encoding, Precision, PrecisionEncoder
from evergrow.features.preprocess import Preprocessing
from evergrow.features.settings import ExtractConfig, configured
from evergrow.features.shard_writer import ShardWriter

_LOG = logging.getLogger(__name__)
_NAMED = 5  # images that a warning names
_UNDER_WAY = 2  # batches that a GPU has been given beyond the one that is fetched


@dataclass(frozen=True, eq=False)
class Extraction:
    """Features and how they came about.

    Parameters
    ----------
    features : ndarray of shape (n, d)
        Float32; memory-mapped and read-only where they lie in a cache. Blocks of a recipe lie side by side as the
        network gave them; :attr:`joined` has them at equal energy.
    rows : ndarray of shape (n,)
        Which items they belong to: all of them unless some were left out.
    failures : tuple of (str, str)
        Name of every item left out, and why.
    seconds : float
        Time that the call took.
    images_per_second : float
        Items that went through the backbone in this call, by the time it took; 0 where none had to.
    from_cache : bool
        Whether no item had to be looked at.
    precision : {"float32", "float16"}
        What the backbone was run at.
    resumed : int
        Items that an earlier, interrupted call had done.
    widths : tuple of int
        Columns of each block.
    """

    features: NDArray[np.float32]
    rows: NDArray[np.int64]
    failures: tuple[tuple[str, str], ...]
    seconds: float
    images_per_second: float
    from_cache: bool
    precision: Precision
    resumed: int = 0
    widths: tuple[int, ...] = ()

    @property
    def joined(self) -> NDArray[np.float32]:
        """The features as heads take them, blocks at equal energy; a single block is not copied."""
        return join_blocks(self.features, self.widths)


def extract(backbone: Backbone, items: Items, *, config: ExtractConfig | None = None, **settings: Any) -> Extraction:
    """Run a backbone over all items, or fetch what an earlier run made of them.

    A handful of items (fewer than ``keep_from``) goes straight through the backbone and leaves nothing behind.

    Parameters
    ----------
    backbone : Backbone
        What to run.
    items : Items
        Images or texts.
    config : ExtractConfig, optional
        How.
    **settings
        Fields of :class:`ExtractConfig` to change.

    Returns
    -------
    Extraction
        The features, in the order of the items.

    Raises
    ------
    ImageError
        If an image cannot be read and ``on_error`` is ``"raise"``, or if none can.
    InputError
        If there are no items, or the backbone does not take their kind.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from evergrow.features.base import Backbone, BackboneSpec
    >>> from evergrow.features.extraction import extract
    >>> from evergrow.core.items import Texts
    >>> class Length(Backbone):
    ...     spec = BackboneSpec("length", "text", 1, "module", "0", "", {}, {})
    ...     transform, device = None, torch.device("cpu")
    ...     def encode(self, batch):
    ...         return torch.tensor([[float(len(text))] for text in batch])
    ...     def to(self, device):
    ...         return self
    >>> extract(Length(), Texts(("one", "three")), cache=False).features.tolist()
    [[3.0], [5.0]]
    """
    config = configured(config, settings)
    _check(backbone, items)
    if config.decode == "gpu":
        check_decodable(backbone)
    work = _Work(backbone, items, config, time.perf_counter())
    encoder = PrecisionEncoder(backbone, config.precision)  # refuses a precision that the device does not have
    entry, stamp = _find_entry(work)
    if work.few and (entry is None or not entry.folder.exists()):
        return _run_few(work, encoder)
    try:
        stored = None if entry is None else _load(work, entry, mend=False)
    except NewerSchemaError as error:  # left to whoever wrote it
        warn_unused(error)
        entry = stored = None
    if stored is None and entry is not None:
        stored = _part_of_another(work, stamp)
    if stored is not None:
        return _fetched(work, stored)
    if entry is None:
        return _run(work, encoder, Collector(len(items), backbone.n_features))
    return _run_into(entry, stamp, work, encoder)


@dataclass(frozen=True)
class _Work:
    backbone: Backbone
    items: Items
    config: ExtractConfig
    started: float

    @property
    def batch_size(self) -> int:
        return self.config.batch_size or (32 if self.backbone.device.type == "cpu" else 128)

    @property
    def few(self) -> bool:
        """Whether the items are one batch, and too few for their features to be kept."""
        return len(self.items) < self.config.keep_from and len(self.items) <= self.batch_size


def _check(backbone: Backbone, items: Items) -> None:
    if len(items) == 0:
        raise InputError(f"{setting('items')} must hold at least one item, got none")
    if backbone.kind != items.kind:
        raise InputError(
            f"{setting('items')} must be what {backbone.spec.name} takes, which is of kind {backbone.kind!r}, got "
            f"{items.kind!r}"
        )


# -- cache ----------------------------------------------------------------------------------------------


def _find_entry(work: _Work) -> tuple[CacheEntry | None, str]:
    """Return the entry of this work, whether or not it exists, and the stamp of its items; None without a cache."""
    config = work.config
    if config.cache is False:
        return None, ""
    try:
        stamp = work.items.stamp()
    except DatasetNotFoundError as error:
        if config.on_error == "raise":
            raise
        warn_unused(error)  # a missing image is one more that is left out, but has no stamp
        return None, ""
    key = feature_key(stamp, work.backbone.spec, config.policy)
    return FeatureCache(config.cache).entry(key), stamp


def _part_of_another(work: _Work, stamp: str) -> StoredFeatures | None:
    """Return what is wanted out of features of a recipe that contains it; None where the cache has no such."""
    config, spec = work.config, work.backbone.spec
    cache = FeatureCache(None if config.cache is False else config.cache)
    for entry, recipe in cache.containing(stamp, spec, config.policy):
        columns = recipe.columns(spec.blocks) or []
        try:
            stored = entry.load()
        except FileFormatError:
            continue
        if stored is None or stored.features.shape[1] != recipe.n_features:
            continue
        first, last = columns[0], columns[-1]
        run = columns == list(range(first, last + 1))  # then nothing is copied
        part = replace(stored, features=stored.features[:, first : last + 1] if run else stored.features[:, columns])
        part = replace(part, recipe=spec.recipe)
        if _fits(work, part) and not _readable_now(work, part.failures):
            return part
    return None


def _run_into(entry: CacheEntry, stamp: str, work: _Work, encoder: PrecisionEncoder) -> Extraction:
    """Take all items that are not done yet through the backbone, and put their features into the cache."""
    with ExitStack() as stack:
        collector, stored = Collector(len(work.items), work.backbone.n_features), None
        try:
            stack.enter_context(entry.hold(wait=lambda: _tell_waiting(entry)))
            stored = _load(work, entry, mend=True)  # another process may have finished it meanwhile
            if stored is None:
                collector.write_to(_writer(work, entry, stamp))
        except OSError as error:
            warn_unused(error)
        if stored is not None:
            return _fetched(work, stored)
        stack.callback(collector.close)
        return _run(work, encoder, collector)


def _load(work: _Work, entry: CacheEntry, *, mend: bool) -> StoredFeatures | None:
    """Return the stored features if they are there and still right.

    With ``mend``, while the entry is held, what is damaged or was cut short by the system is removed.
    """
    try:
        stored = entry.load()
        if stored is None or (_fits(work, stored) and not _readable_now(work, stored.failures)):
            return stored
        reason = _misfit(work, stored)
    except NewerSchemaError:
        raise
    except FileFormatError as error:
        reason = f"damaged: {error}"
    if mend:
        warnings.warn(
            f"cached features {entry.folder.name[:12]} are extracted again, {reason}", CacheWarning, stacklevel=3
        )
        entry.empty()
    return None


def _fits(work: _Work, stored: StoredFeatures) -> bool:
    """Return whether stored features have the width and the number that this work would give."""
    last = stored.failures[-1].row if stored.failures else 0
    count = len(stored.features) + len(stored.failures)
    wide = stored.features.shape[1] == work.backbone.n_features
    return last < len(work.items) == count and wide and stored.recipe == work.backbone.spec.recipe


def _misfit(work: _Work, stored: StoredFeatures) -> str:
    """Return why stored features cannot be used."""
    if _fits(work, stored):
        return "images that could not be read can be read now"
    if stored.recipe != work.backbone.spec.recipe:
        return (
            f"they are of another recipe: {stored.recipe or 'final'} instead of {work.backbone.spec.recipe or 'final'}"
        )
    return "they are of other items"


def _readable_now(work: _Work, failures: Sequence[Failure]) -> bool:
    """Say whether an image that the system once refused to hand out can be read by now."""
    refused = [failure.row for failure in failures if failure.passing]
    transform = work.backbone.transform if refused else None  # asking for it may load the backbone
    return transform is not None and any(
        not isinstance(load_image(work.items, ImageLoader(transform), row), Failure) for row in refused
    )


def _writer(work: _Work, entry: CacheEntry, stamp: str) -> ShardWriter:
    """Return a writer that goes on with an unfinished entry, or begins a new one where that does not fit."""
    about = describe(work.items, stamp, work.backbone.spec, work.config.policy)
    sizes = {"n_items": len(work.items), "n_features": work.backbone.n_features}
    writer = ShardWriter(entry, about, **sizes)
    halves_here = work.backbone.device.type == "cuda"
    if (writer.precision == "float16" and not halves_here) or _readable_now(work, writer.failures):
        writer.restart()
    return writer


def _tell_waiting(entry: CacheEntry) -> None:
    _LOG.warning("waiting for another process that extracts the same features (%s)", entry.folder.name[:12])


def _fetched(work: _Work, stored: StoredFeatures) -> Extraction:
    _judge(work, stored.failures)
    return _result(work, stored.features, stored.failures, stored.precision, from_cache=True)


# -- work -----------------------------------------------------------------------------------------------


def _run_few(work: _Work, encoder: PrecisionEncoder) -> Extraction:
    """Take a handful of items straight through the backbone, in one batch."""
    n_items = len(work.items)
    plan = BatchPlan(0, n_items, n_items, n_items)
    with torch.inference_mode(), _batches(work, plan) as batches:
        ((loaded, features),) = _encoded(encoder, batches)
    _judge(work, loaded.failures)
    block = np.empty((0, work.backbone.n_features), np.float32) if features is None else features
    ordered = _in_order(work, [loaded.rows], [_shaped(work, block, len(loaded.rows))])
    return _result(work, ordered, loaded.failures, encoder.precision or "float32", done_here=n_items)


def _run(work: _Work, encoder: PrecisionEncoder, collector: Collector) -> Extraction:
    """Take all items that are not done yet through the backbone."""
    _raise_if_fatal(work, collector.failures)
    if collector.precision is not None:
        encoder = PrecisionEncoder(work.backbone, work.config.precision, collector.precision)
    resumed, n_items = collector.done, len(work.items)
    shard_size = -(-work.config.shard_size // work.batch_size) * work.batch_size
    plan = BatchPlan(resumed, n_items, work.batch_size, shard_size)
    rows: list[NDArray[np.int64]] = []
    blocks: list[NDArray[np.float32]] = []
    failures: list[Failure] = []
    with (
        torch.inference_mode(),
        item_meter(work.items.kind, len(work.items), resumed, enabled=work.config.progress) as tick,
        _batches(work, plan) as batches,
    ):
        for loaded, features in _encoded(encoder, batches):
            _raise_if_fatal(work, loaded.failures)
            failures += loaded.failures
            if features is not None:
                rows.append(loaded.rows)
                blocks.append(_shaped(work, features, len(loaded.rows)))
            tick(len(loaded.rows) + len(loaded.failures))
            if loaded.last:
                stop = min(collector.done + shard_size, n_items)
                collector.add(stop, _in_order(work, rows, blocks), failures, encoder.precision or "float32")
                rows, blocks, failures = [], [], []
    _judge(work, collector.failures)
    return _result(
        work,
        collector.finish(),
        collector.failures,
        collector.precision or "float32",
        done_here=n_items - resumed,
        resumed=resumed,
    )


@contextmanager
def _batches(work: _Work, plan: BatchPlan) -> Iterator[Iterator[LoadedBatch]]:
    transform = work.backbone.transform
    if transform is None and work.items.kind == "image":
        raise InputError(
            f"{setting('backbone')} must have a transform to take images, got None from {work.backbone.spec.name}"
        )
    if transform is None:
        yield text_batches(work.items, plan)
        return
    device, wanted = work.backbone.device, work.config.workers
    if wanted == "auto":
        workers = choose_workers(len(plan), device, work.batch_size * _image_bytes(work))
    else:
        workers = min(wanted, len(plan))
    load, pin = ImageLoader(transform, as_bytes=True), device.type == "cuda"
    if work.config.decode == "cpu":
        with image_batches(ImageBatches(work.items, load, plan), workers=workers, pin=pin) as batches:
            yield batches
        return
    with image_batches(EncodedImages(work.items, load, plan), workers=workers, pin=pin) as files:
        yield decoded_batches(files, work.items, load, device, gpu_decoder(device))


def _image_bytes(work: _Work) -> int:
    """Return the size of a transformed image; a guess on the safe side where the preprocessing does not tell."""
    size = work.backbone.spec.preprocessing.get("size")
    if not isinstance(size, (list, tuple)) or len(size) != 2 or not all(isinstance(part, int) for part in size):
        size = (512, 512)
    width = 1 if isinstance(work.backbone.transform, Preprocessing) else 4
    return 3 * width * int(size[0]) * int(size[1])


def _encoded(
    encoder: PrecisionEncoder, batches: Iterator[LoadedBatch]
) -> Iterator[tuple[LoadedBatch, NDArray[np.float32] | None]]:
    """Yield every batch with its features, of a GPU some late: it always has the next before the last is fetched."""
    waiting: deque[tuple[LoadedBatch, Encoding | None]] = deque()
    for loaded in batches:
        waiting.append((loaded, None if loaded.batch is None else encoder.run(loaded.batch)))
        while waiting and (len(waiting) > _UNDER_WAY or _is_there(waiting[0][1])):
            yield _finished(encoder, *waiting.popleft())
    while waiting:
        yield _finished(encoder, *waiting.popleft())


def _is_there(encoding: Encoding | None) -> bool:
    return encoding is None or encoding.ready is None


def _finished(
    encoder: PrecisionEncoder, loaded: LoadedBatch, encoding: Encoding | None
) -> tuple[LoadedBatch, NDArray[np.float32] | None]:
    if encoding is None or loaded.batch is None:
        return loaded, None
    return loaded, encoder.fetch(encoding, loaded.batch)


def _shaped(work: _Work, features: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    expected = (n, work.backbone.n_features)
    if features.shape != expected:
        raise InputError(
            f"{setting('backbone')} must return features of shape {expected}, got {features.shape} from "
            f"{work.backbone.spec.name}"
        )
    return features


def _in_order(work: _Work, rows: list[NDArray[np.int64]], blocks: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    if not blocks:
        return np.empty((0, work.backbone.n_features), dtype=np.float32)
    return np.concatenate(blocks)[np.argsort(np.concatenate(rows))]


def _raise_if_fatal(work: _Work, failures: Sequence[Failure]) -> None:
    """Raise for the first image that cannot be read, if that is to be fatal."""
    if failures and work.config.on_error == "raise":
        failure = failures[0]
        where = ""
        with suppress(ImageError):  # where it cannot even be had, the reason says so
            source = work.items.raw(failure.row)
            where = f" (file {os.fspath(source)})" if isinstance(source, os.PathLike) else ""
        raise ImageError(f"{failure.reason}{where}{hint('on_error', '; {} leaves such images out', 'skip')}")


def _judge(work: _Work, failures: Sequence[Failure]) -> None:
    """Raise or warn about what could not be read, as the settings say."""
    if not failures:
        return
    _raise_if_fatal(work, failures)
    named = ", ".join(failure.name for failure in failures[:_NAMED])
    more = f" and {len(failures) - _NAMED} more" if len(failures) > _NAMED else ""
    said = f"{named}{more}; the first because {failures[0].reason}"
    if len(failures) == len(work.items):
        raise ImageError(f"at least one image must be readable, got {len(failures)} that are not: {said}")
    warnings.warn(
        f"{len(failures)} of {len(work.items)} images could not be read and are left out: {said}",
        DataWarning,
        stacklevel=4,
    )


def _result(
    work: _Work,
    features: NDArray[np.float32],
    failures: Sequence[Failure],
    precision: Precision,
    *,
    done_here: int = 0,
    resumed: int = 0,
    from_cache: bool = False,
) -> Extraction:
    rows = np.delete(np.arange(len(work.items)), [failure.row for failure in failures])
    seconds = time.perf_counter() - work.started
    return Extraction(
        features=features,
        rows=rows,
        failures=tuple((failure.name, failure.reason) for failure in failures),
        seconds=seconds,
        images_per_second=done_here / seconds,
        from_cache=from_cache,
        precision=precision,
        resumed=resumed,
        widths=work.backbone.spec.blocks.widths,
    )
