"""Backbones of the service: loaded once, shared by models, run in batches by a thread.

Predictions of many callers are encoded in one batch. Samples that are learned or
unlearned are encoded one at a time, because the last digits of features depend on the
other samples in a batch, and unlearning needs exactly the same features again.
"""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    UnknownNameError,
)
from evergrow.core.registry import nearest
from evergrow.core.threads import limit_threads
from evergrow.data.items import Kind
from evergrow.features import encode_batch
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.catalog import create_backbone
from evergrow.features.joined_backbone import JoinedBackbone, split_names
from evergrow.features.networks import SEPARATOR
from evergrow.features.preprocess import Preprocessing
from evergrow.features.weights import (
    BackboneInfo,
    best_backbone,
    catalog_entry,
    list_backbones,
)
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import read_adaptation
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.monitoring import Metrics
from evergrow.serve.problems import Problem
from evergrow.serve.schemas import SAMPLE_KINDS, BackboneOffer

Prepared = torch.Tensor | str
"""A preprocessed image, or a text."""
FeatureRows = NDArray[np.float32]
"""Features of shape (n, d)."""
_PREDICTED_PER_CORE = 8
"""Samples per core that one request may encode before others have a turn."""
_ALONE_PER_CORE = 2
"""The same for samples that are encoded alone, which takes longer per sample."""
_MAX_VIEWS = 16
"""Largest number of pixels of an uploaded model's views, relative to the network's own.

The level ``best`` has 4 times as many, and the network sees them twice.
"""


Result = TypeVar("Result")

# -- threads of torch ------------------------------------------------------------------
# Every thread that uses torch gets as many worker threads as there are cores. If
# several compute at the same time, they compete for the cores: a change of a few
# samples then takes ten times as long as with one thread.


@cache
def cores() -> int:
    """Return the number of cores, or ``OMP_NUM_THREADS`` if it is set."""
    return torch.get_num_threads()


def limit_torch(n: int) -> None:
    """Let torch use at most `n` cores in this thread, until it is called again."""
    cores()  # remembered now, because the limit would hide it
    limit_threads(n)


# -- one backbone ----------------------------------------------------------------------


@dataclass(eq=False)
class _Waiting:
    """A request in a queue. Its samples move to `rows` as they are encoded.

    Parameters
    ----------
    samples : sequence of Tensor or str
        Samples that are not encoded yet.
    model : Version or None
        Model that predicts from the features. None if the result is the features.
    result : Future
        Result of the request.
    rows : list of ndarray
        Features of the samples encoded so far, one matrix per piece.
    """

    samples: Sequence[Prepared]
    model: Any
    result: Future[Any] = field(default_factory=Future)
    rows: list[FeatureRows] = field(default_factory=list)

    def finish(self, value: Any) -> None:
        """Set the result, or the exception if `value` is one.

        Does nothing if the caller cancelled the request.
        """
        if not self.result.set_running_or_notify_cancel():
            return
        if isinstance(value, BaseException):
            self.result.set_exception(value)
        else:
            self.result.set_result(value)


class Batcher:
    """A thread that encodes queued samples in batches and runs predictions on them.

    While one batch is computed, the next one is collected, so a single caller never
    waits for others. Predictions of one model are computed together, because a head
    reads all its weights once per call. Large requests are encoded in pieces, in turn
    with other requests.

    Parameters
    ----------
    backbone : Backbone
        The backbone. On a CPU, the images of a batch are spread over the cores.
    limits : Limits
        Maximum size of a batch and of the queue.
    metrics : Metrics
        Metrics of the service.

    Attributes
    ----------
    backbone : Backbone
        The backbone.
    depth : int
        Number of samples that are queued or being encoded.
    """

    def __init__(self, backbone: Backbone, limits: Limits, metrics: Metrics) -> None:
        self.backbone = backbone
        self.depth = 0
        self._reserved = 0  # samples being decoded for the queue
        self._limits = limits
        self._metrics = metrics
        self._predict_piece = min(limits.batch, _PREDICTED_PER_CORE * cores())
        self._alone_piece = _ALONE_PER_CORE * cores()
        self._predict_queue: deque[_Waiting] = deque()
        self._alone_queue: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        name = f"backbone {backbone.spec.name}"
        self._worker = ThreadPoolExecutor(1, name, limit_torch, (cores(),))
        self._crew: ThreadPoolExecutor | None = None
        # Tokenizers and backbones of plugins may not be thread-safe.
        if backbone.is_thread_safe and backbone.device.type == "cpu" and cores() > 1:
            self._crew = ThreadPoolExecutor(cores(), f"{name} crew", limit_torch, (1,))

    def has_room(self, n: int) -> bool:
        """Return whether `n` samples may be queued. An empty queue takes any number."""
        return not self.depth or self.depth + n <= self._limits.queue

    @contextmanager
    def reserve(self, n: int) -> Iterator[None]:
        """Reserve room for `n` samples during a block that decodes them.

        Without a reservation, any number of requests could hold decoded images while
        the queue still has room.

        Raises
        ------
        Problem
            503 if the queue and the reservations leave no room.
        """
        with self._lock:
            used = self.depth + self._reserved
            if used and used + n > self._limits.queue:
                raise _queue_full()
            self._reserved += n
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= n

    def submit(
        self, samples: Sequence[Prepared], *, alone: bool = False, model: Any = None
    ) -> Future[Any]:
        """Queue samples and return the future of their features or predictions.

        Parameters
        ----------
        samples : sequence of Tensor or str
            Preprocessed images, or texts.
        alone : bool, default=False
            Whether every sample is encoded alone, so that the same sample always has
            the same features.
        model : Version, optional
            Model whose ``predict`` is called. Default: the result is the features.

        Returns
        -------
        Future
            Features of shape (n, d), or with `model` its :class:`Predictions`.

        Raises
        ------
        Problem
            503 if the queue is full or the service is shutting down.
        """
        waiting = _Waiting(samples, model)
        queue = self._alone_queue if alone else self._predict_queue
        piece = self._alone_piece if alone else self._predict_piece
        with self._lock:
            if not self.has_room(len(samples)):
                raise _queue_full()
            try:
                # One call per piece, so that the worker returns for the rest.
                for _ in range(0, len(samples), piece):
                    self._worker.submit(self._work)
            except RuntimeError as error:  # the executor was shut down
                raise _shutting_down() from error
            queue.append(waiting)
            self.depth += len(samples)
        return waiting.result

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Queue a function that uses the backbone, and return the future of its result.

        It runs while no batch is encoded, and counts as one sample.

        Raises
        ------
        Problem
            503 if the queue is full or the service is shutting down.
        """

        def leave(future: Future[Result]) -> None:
            with self._lock:
                self.depth -= 1

        with self._lock:
            if not self.has_room(1):
                raise _queue_full()
            try:
                future = self._worker.submit(function)
            except RuntimeError as error:  # the executor was shut down
                raise _shutting_down() from error
            self.depth += 1
        future.add_done_callback(leave)  # also if the caller cancelled it
        return future

    def close(self) -> None:
        """Finish all queued requests and end all threads."""
        self._worker.shutdown()
        if self._crew is not None:
            self._crew.shutdown()

    def _work(self) -> None:
        """Encode a piece of one ``alone`` request and one batch of predictions.

        Called once per piece of a request. Does nothing if an earlier call has taken
        all queued requests.
        """
        with self._lock:
            alone = []
            if self._alone_queue:
                alone.append(self._alone_queue.popleft())
            batch = self._take_batch()
        if alone:
            self._process(alone, self._alone_queue)
        if batch:
            self._process(batch, self._predict_queue)

    def _take_batch(self) -> list[_Waiting]:
        """Remove requests to the first model in the queue and return them.

        Together they have at most a batch of samples; the first may have more.
        """
        batch: list[_Waiting] = []
        left = self._limits.batch
        for entry in list(self._predict_queue):
            fits = not batch or (
                entry.model is batch[0].model and len(entry.samples) <= left
            )
            if fits:
                batch.append(entry)
                self._predict_queue.remove(entry)
                left -= len(entry.samples)
        return batch

    def _process(self, requests: list[_Waiting], queue: deque[_Waiting]) -> None:
        """Encode a piece of each request, which was taken from `queue`.

        Complete requests get their result; the others return to the end of the queue.
        An error is the result of all of them.
        """
        alone = queue is self._alone_queue
        size = self._alone_piece if alone else self._predict_piece
        finished = [entry for entry in requests if len(entry.samples) <= size]
        results: Sequence[Any]
        try:
            self._encode_pieces(requests, size, alone)
            results = [np.concatenate(entry.rows) for entry in finished]
            if finished and finished[0].model is not None:
                results = finished[0].model.predict(results)
        except BaseException as error:
            finished = requests
            results = [error] * len(requests)
        for entry in requests:
            n = size
            # The rest of a failed or cancelled request is dropped.
            if entry in finished or entry.result.cancelled():
                n = len(entry.samples)
            entry.samples = entry.samples[n:]
            with self._lock:
                self.depth -= n
                if entry.samples:
                    queue.append(entry)
        for entry, result in zip(finished, results, strict=True):
            entry.finish(result)

    def _encode_pieces(self, requests: list[_Waiting], size: int, alone: bool) -> None:
        """Encode the first `size` samples of each request and store their features."""
        pieces = [entry.samples[:size] for entry in requests]
        rows = self._encode([sample for piece in pieces for sample in piece], alone)
        ends = np.cumsum([len(piece) for piece in pieces])
        parts = np.split(rows, ends[:-1])
        for entry, part in zip(requests, parts, strict=True):
            entry.rows.append(part)

    def _encode(self, samples: list[Any], alone: bool) -> FeatureRows:
        """Return the features of samples, encoded one by one or in batches.

        The crew encodes parts in parallel, with one core for each. Without it, or for
        few samples, each part uses all cores.
        """
        crew = None
        if alone or len(samples) >= cores():
            crew = self._crew
        size = 1
        if not alone:
            size = min(self._limits.batch, len(samples))
        if crew is not None:
            size = math.ceil(size / cores())
        parts = [samples[i : i + size] for i in range(0, len(samples), size)]
        for part in parts:
            self._metrics.batch_size.observe(len(part))
        encode = partial(encode_batch, self.backbone)
        if crew is None:
            return np.concatenate([encode(part) for part in parts])
        return np.concatenate(list(crew.map(encode, parts)))


def _shutting_down() -> Problem:
    return Problem(503, "the service is shutting down", "ShuttingDown", retry_after=5)


def _queue_full() -> Problem:
    """Return the problem of requests for which the queue has no room."""
    return Problem(
        503,
        "the queue of the service is full: try again later",
        "QueueFull",
    )


# -- all of them -----------------------------------------------------------------------


class BackbonePool:
    """All backbones of the service.

    Parameters
    ----------
    config : ServeConfig
        Device, limits and additional backbones.
    metrics : Metrics
        Metrics of the service.
    """

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self._limits = config.limits
        self._device = config.device
        self._metrics = metrics
        self._added = dict(config.backbones)
        self._shared: dict[str, Batcher] = {}
        self._loading = threading.Lock()

    def offers(self) -> list[BackboneOffer]:
        """Return the backbones for new models that need no download, the best first."""
        added = [
            _offer(name, backbone, "added to this service")
            for name, backbone in self._added.items()
        ]
        listed = [
            _offer(info.name, info, info.about)
            for info in list_backbones()
            if info.available
        ]
        return added + listed

    def chosen(self, kind: Kind, name: str) -> Batcher:
        """Return the queue of the backbone for a new model. Load it if necessary.

        Parameters
        ----------
        kind : {"image", "text"}
            Kind of samples.
        name : str
            Name of an offered backbone, several of them joined by ``+``, or ``"auto"``
            for the best one.

        Raises
        ------
        UnknownNameError
            If no backbone of this kind and name is offered. Names are never paths, and
            nothing is downloaded.
        ParameterError
            If a name is empty or repeated.
        """
        offered = [
            offer.name for offer in self.offers() if offer.kind == SAMPLE_KINDS[kind]
        ]
        if name == "auto":
            name = offered[0] if offered else best_backbone(kind).name
        parts = [name] if name in offered else split_names(name)
        for part in parts:
            if part not in offered:
                names = ", ".join(map(repr, offered)) or "none"
                raise UnknownNameError(
                    f"backbone must be 'auto' or one of the {kind} backbones offered "
                    f"here ({names}), got {part[:80]!r}; nearest: "
                    f"{nearest(part, offered)}"
                )
        return self._share(f"offer {name}", lambda: self._create(parts))

    def _create(self, names: Sequence[str]) -> Backbone:
        """Return an offered backbone, or several of them side by side."""
        parts = [
            self._added.get(name) or create_backbone(name, device=self._device)
            for name in names
        ]
        if len(parts) == 1:
            return parts[0]
        return JoinedBackbone(parts)

    def of_learner(self, learner: Learner) -> Batcher | None:
        """Return the queue of a model's backbone, or None if it takes features.

        The backbone is loaded if no other model uses it.
        """
        spec = learner.state_.spec
        if spec is None:
            return None
        key = _key(spec)
        added = {_key(backbone.spec): backbone for backbone in self._added.values()}
        if key in added:
            return self._share(key, lambda: added[key])
        return self._share(key, learner.backbone_)

    def loaded(self, learner: Learner) -> Batcher | None:
        """Return the queue of a model's backbone, or None if it is not loaded.

        Never waits. A model that takes features has none.
        """
        if learner.state_.spec is None:
            return None
        return self._shared.get(_key(learner.state_.spec))

    def check_offered(self, learner: Learner) -> None:
        """Check that the backbone of an uploaded model is offered here.

        An untrusted model file can name any path or address as weights of its backbone.

        Raises
        ------
        FileFormatError
            If the backbone is not offered, or has other weights or settings.
        """
        adaptation = learner.state_.adaptation
        spec = learner.state_.spec
        if adaptation is not None:
            spec = read_adaptation(adaptation).base
        if spec is None:
            return
        name = SEPARATOR.join(_offered_name(part.name) for part in spec.networks)
        try:
            offered = self.chosen(spec.kind, name).backbone
        except (UnknownNameError, ParameterError) as error:
            raise FileFormatError(
                f"backbone of the model must be one that is offered here: {error}"
            ) from error
        same = _with_features_of(offered, spec)
        self._share(_key(spec), lambda: same)

    def depth(self) -> int:
        """Return how many samples are waiting for a backbone."""
        return sum(batcher.depth for batcher in set(self._shared.values()))

    def shutdown(self) -> None:
        """Finish all queued requests and end all threads."""
        for batcher in set(self._shared.values()):
            batcher.close()

    def _share(self, key: str, load: Callable[[], Backbone]) -> Batcher:
        """Return the queue of a backbone. Load the backbone if necessary.

        Parameters
        ----------
        key : str
            Key of the backbone: ``offer NAME``, or the key of its specification. Both
            lead to the same queue.
        load : callable
            Loads the backbone. Only one is loaded at a time.
        """
        if key not in self._shared:
            with self._loading:
                if key not in self._shared:
                    backbone = load()
                    spec_key = _key(backbone.spec)
                    batcher = self._shared.get(spec_key)
                    if batcher is None:
                        batcher = Batcher(backbone, self._limits, self._metrics)
                    # A new dict, because others read it without the lock.
                    self._shared = {**self._shared, key: batcher, spec_key: batcher}
        return self._shared[key]


def _with_features_of(offered: Backbone, spec: BackboneSpec) -> Backbone:
    """Return an offered backbone with the recipe of an uploaded model.

    Raises
    ------
    FileFormatError
        If its features differ from those of `spec`, or its views cost too much.
    """
    if offered.spec.decisive() == spec.decisive():
        return offered
    plain = offered.with_recipe("fast")
    same = plain.with_blocks(spec.blocks)
    if same.spec.decisive() != spec.decisive():
        raise FileFormatError(
            f"backbone of the model must be {spec.name} as offered here, got another "
            "one of that name"
        )
    if isinstance(plain.transform, Preprocessing):
        assert isinstance(same.transform, Preprocessing)
        cost = math.prod(same.transform.size) / math.prod(plain.transform.size)
        if cost > _MAX_VIEWS:
            raise FileFormatError(
                f"views of the model must have at most {_MAX_VIEWS} times the pixels "
                f"of {spec.name}, got {cost:.0f} times"
            )
    try:
        found = plain.with_recipe(spec.blocks)  # runs the network
    except (InputError, ParameterError) as error:
        raise FileFormatError(
            f"features of the model must be those of {spec.name}: {error}"
        ) from error
    if found.spec.blocks != spec.blocks:
        raise FileFormatError(
            f"features of the model must be as wide as those of {spec.name}, got "
            f"{spec.blocks.widths} instead of {found.spec.blocks.widths}"
        )
    return same


def _offered_name(network: str) -> str:
    """Return the name under which a network of the catalogue is offered."""
    entry = catalog_entry(network)
    return network if entry is None else entry.name


def _offer(name: str, backbone: Backbone | BackboneInfo, about: str) -> BackboneOffer:
    """Return the description of an offered backbone."""
    kind = SAMPLE_KINDS[backbone.kind]
    return BackboneOffer(
        name=name, kind=kind, n_features=backbone.n_features, about=about
    )


def _key(spec: BackboneSpec) -> str:
    """Return a text that is equal for backbones with the same features."""
    return json.dumps(spec.decisive(), sort_keys=True, default=str)
