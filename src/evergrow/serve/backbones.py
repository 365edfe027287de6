"""Backbones, each loaded once, shared by all models that use it, and run by a thread with a queue of its own.

Questions of many callers go through a backbone together. What is learned or unlearned
goes through it alone: features depend, in their last digits, on what else is in a
batch, and what is taught must give the same numbers again when it is to be unlearned.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.core.threads import limit_threads
from evergrow.data.items import Kind
from evergrow.features import encode_batch
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.catalog import create_backbone
from evergrow.features.image_backbone import ImageBackbone
from evergrow.features.weight_sources import best_backbone, list_backbones
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import read_adaptation
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.monitoring import Metrics
from evergrow.serve.requests import Problem
from evergrow.serve.schemas import SAMPLE_KINDS, BackboneOffer

Prepared = torch.Tensor | str
"""An image after the preprocessing, or a text."""
FeatureRows = NDArray[np.float32]


# -- threads of torch ------------------------------------------------------------------
# Torch gives every thread that computes a team as large as there are cores. If several
# compute at once, the teams take the cores from each other: a change of a handful of
# samples then takes ten times as long as with one thread.


@cache
def cores() -> int:
    """Return how many threads torch may use in all: the cores, or what ``OMP_NUM_THREADS`` allows."""
    return torch.get_num_threads()


def limit_torch(n: int) -> None:
    """Set torch's thread count for the calling thread only.

    Parameters
    ----------
    n : int
        At least one.

    Examples
    --------
    >>> import threading, torch
    >>> from evergrow.serve.backbones import limit_torch
    >>> before, seen = torch.get_num_threads(), []
    >>> def work():
    ...     limit_torch(1)
    ...     seen.append(torch.get_num_threads())
    >>> thread = threading.Thread(target=work)
    >>> thread.start(); thread.join()
    >>> seen, torch.get_num_threads() == before
    ([1], True)
    """
    cores()  # the number that torch began with, before this thread has another
    limit_threads(n)


# -- one backbone ----------------------------------------------------------------------


@dataclass(eq=False)
class _Waiting:
    """What is left of a request in the queue, its features so far, and the model that is asked; None for features."""

    samples: Sequence[Prepared]
    model: Any
    result: Future[Any] = field(default_factory=Future)
    rows: list[FeatureRows] = field(default_factory=list)


class Batcher:
    """A thread that runs a backbone on what waits for it, and lets models answer about the features.

    While one batch is computed the next one gathers, so that a single caller never
    waits for others. Questions to one model are answered together: a head reads all its
    weights for one sample as for thirty. Large requests are encoded in pieces, in turn
    with all others.

    Parameters
    ----------
    backbone : Backbone
        What to run. On a CPU images of one batch are spread over the cores.
    limits : Limits
        Most samples of a batch, and most that wait.
    metrics : Metrics
        Where sizes of batches are counted.
    """

    def __init__(self, backbone: Backbone, limits: Limits, metrics: Metrics) -> None:
        self.backbone = backbone
        self.depth = 0  # samples that wait or are being computed
        self._preparing = 0  # samples that are being decoded for the queue
        self._limits = limits
        self._metrics = metrics
        self._pieces = (
            min(limits.batch, 8 * cores()),
            2 * cores(),
        )  # of questions, of lessons: until others have a turn
        self._questions: deque[_Waiting] = deque()
        self._lessons: deque[_Waiting] = deque()
        self._guard = threading.Lock()
        name = f"backbone {backbone.spec.name}"
        self._worker = ThreadPoolExecutor(1, name, limit_torch, (cores(),))
        # Tokenizers of texts, and backbones of others, may not bear several threads.
        spread = (
            isinstance(backbone, ImageBackbone)
            and backbone.device.type == "cpu"
            and cores() > 1
        )
        if spread:
            self._crew = ThreadPoolExecutor(cores(), f"{name} crew", limit_torch, (1,))
        else:
            self._crew = None

    def has_room(self, n: int) -> bool:
        """Return whether samples may be submitted. Any number may while nothing waits."""
        return not self.depth or self.depth + n <= self._limits.queue

    def check_room(self, n: int) -> None:
        """Raise the problem 503 if as many samples wait already as may."""
        if not self.has_room(n):
            raise _queue_full()

    @contextmanager
    def preparing(self, n: int) -> Iterator[None]:
        """Reserve places in the queue while samples are decoded.

        Without this, any number of requests could hold decoded images while the
        queue still has room.

        Raises
        ------
        Problem
            503 if the samples that wait and those being decoded leave no room.
        """
        with self._guard:
            taken = self.depth + self._preparing
            if taken and taken + n > self._limits.queue:
                raise _queue_full()
            self._preparing += n
        try:
            yield
        finally:
            with self._guard:
                self._preparing -= n

    def submit(
        self, samples: Sequence[Prepared], *, alone: bool = False, model: Any = None
    ) -> Future[Any]:
        """Return the features to come of samples, or the answers of a model about them.

        Parameters
        ----------
        samples : sequence of Tensor or str
            Prepared as the backbone takes them.
        alone : bool
            Whether each goes through the backbone by itself, so that the same sample
            always gives the same numbers.
        model : Version, optional
            The model whose ``ask`` is to answer; by default the result is the features.

        Raises
        ------
        Problem
            If the queue is full or the service is about to end.
        """
        waiting = _Waiting(samples, model)
        with self._guard:
            self.check_room(len(samples))
            try:
                for _ in range(0, len(samples), self._pieces[alone]):
                    self._worker.submit(self._work)
            except RuntimeError as error:  # it was closed
                raise Problem(
                    503, "the service is shutting down", "ShuttingDown", retry_after=5
                ) from error
            (self._lessons if alone else self._questions).append(waiting)
            self.depth += len(samples)
        return waiting.result

    def close(self) -> None:
        """Finish what waits and end all threads."""
        self._worker.shutdown()
        if self._crew is not None:
            self._crew.shutdown()

    def _work(self) -> None:
        """Encode a piece of a lesson and a batch of questions to one model, so that no request keeps others waiting.

        It is called once for each piece of a request, and does nothing where an earlier
        call took all that waited.
        """
        with self._guard:
            if self._lessons:
                lessons = [self._lessons.popleft()]
            else:
                lessons = []
            questions: list[_Waiting] = []
            left = self._limits.batch
            for entry in list(self._questions):
                if not questions or (
                    entry.model is questions[0].model and len(entry.samples) <= left
                ):
                    questions.append(entry)
                    self._questions.remove(entry)
                    left -= len(entry.samples)
        for requests, queue in ((lessons, self._lessons), (questions, self._questions)):
            if requests:
                self._answer(requests, queue)

    def _answer(self, requests: list[_Waiting], queue: deque[_Waiting]) -> None:
        """Encode a piece of each request, answer those that are whole, and put the others at the end of the queue."""
        results: Sequence[Any] | BaseException
        alone = queue is self._lessons
        size = self._pieces[alone]
        pieces = [entry.samples[:size] for entry in requests]
        whole = [entry for entry in requests if len(entry.samples) <= size]
        try:
            rows = self._encode([sample for piece in pieces for sample in piece], alone)
            for entry, found in zip(
                requests,
                np.split(rows, np.cumsum([len(piece) for piece in pieces])[:-1]),
            ):
                entry.rows.append(found)
            results = [np.concatenate(entry.rows) for entry in whole]
            if whole and whole[0].model is not None:
                results = whole[0].model.ask(results)
        except BaseException as error:
            results = error
            whole = requests
        for entry in requests:
            if entry in whole or entry.result.cancelled():
                n = len(entry.samples)
            else:
                n = size
            entry.samples = entry.samples[n:]
            with self._guard:
                self.depth -= n
                queue.extend([entry] if entry.samples else ())
        for i, entry in enumerate(whole):
            if not entry.result.set_running_or_notify_cancel():  # the caller left
                continue
            if isinstance(results, BaseException):
                entry.result.set_exception(results)
            else:
                entry.result.set_result(results[i])

    def _encode(self, samples: list[Any], alone: bool) -> FeatureRows:
        """Return the features of samples: one by one, or in batches, which the cores share."""
        crew = None
        if alone or len(samples) >= cores():
            crew = self._crew
        if alone:
            size = 1
        else:
            size = min(self._limits.batch, len(samples))
        if crew is not None:
            size = -(-size // cores())
        parts = [samples[i : i + size] for i in range(0, len(samples), size)]
        for part in parts:
            self._metrics.batch_size.observe(len(part))
        encode = partial(encode_batch, self.backbone)
        return np.concatenate(
            list(map(encode, parts) if crew is None else crew.map(encode, parts))
        )


def _queue_full() -> Problem:
    return Problem(
        503,
        "the queue of the service is full: try again later",
        "QueueFull",
        retry_after=1,
    )


# -- all of them -----------------------------------------------------------------------


class BackbonePool:
    """All backbones of the service.

    Parameters
    ----------
    config : ServeConfig
        Where they compute, sizes of batches and queues, and backbones beside those of
        the catalogue.
    metrics : Metrics
        Where batches are counted.
    """

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self._limits = config.limits
        self._device = config.device
        self._metrics = metrics
        self._given = dict(config.backbones)
        self._shared: dict[str, Batcher] = {}
        self._loading = threading.Lock()

    def offers(self) -> list[BackboneOffer]:
        """Return what new models can be made with here, without downloading anything; the strongest first."""
        own = [
            (name, made.kind, made.n_features, "given to this service")
            for name, made in self._given.items()
        ]
        listed = [
            (i.name, i.kind, i.n_features, i.about)
            for i in list_backbones()
            if i.available
        ]
        return [
            BackboneOffer(
                name=name, kind=SAMPLE_KINDS[kind], n_features=width, about=about
            )
            for name, kind, width, about in (*own, *listed)
        ]

    def chosen(self, kind: Kind, name: str) -> Batcher:
        """Return the backbone for a new model.

        Parameters
        ----------
        kind : {"image", "text"}
            What the model takes.
        name : str
            A name that is offered, or ``"auto"`` for the strongest.

        Raises
        ------
        UnknownNameError
            If it is not offered for this kind. Names are looked up, never loaded from:
            no path and no download.
        """
        offered = [
            offer.name for offer in self.offers() if offer.kind == SAMPLE_KINDS[kind]
        ]
        if name == "auto":
            if offered:
                name = offered[0]
            else:
                name = best_backbone(kind).name
        if name not in offered:
            raise UnknownNameError(
                f"backbone must be 'auto' or one of {', '.join(map(repr, offered)) or 'none'} for {kind}s here, got "
                f"{name[:80]!r}; nearest: {nearest(name, offered)}"
            )
        return self._sharing(
            f"offer {name}",
            lambda: self._given.get(name) or create_backbone(name, device=self._device),
        )

    def of_learner(self, learner: Learner) -> Batcher | None:
        """Return the backbone of a model, loading it if no other model has; None where samples are features."""
        spec = learner.state_.spec
        if spec is None:
            return None
        known = next(
            (made for made in self._given.values() if _key(made.spec) == _key(spec)),
            None,
        )
        return self._sharing(
            _key(spec), (lambda: known) if known is not None else learner.backbone_
        )

    def loaded(self, learner: Learner) -> Batcher | None:
        """Return the backbone of a model if it is loaded, at once."""
        if learner.state_.spec is None:
            return None
        return self._shared.get(_key(learner.state_.spec))

    def check_offered(self, learner: Learner) -> None:
        """Refuse a stranger's model unless its backbone is one that is offered here, with the same numbers.

        A file names the weights of its backbone, and a stranger's could name any path
        or address.
        """
        adaptation = learner.state_.adaptation
        if adaptation is None:
            base = learner.state_.spec
        else:
            base = read_adaptation(adaptation).base
        if base is None:
            return
        try:
            ours = self.chosen(base.kind, base.name).backbone.spec
        except UnknownNameError as error:
            raise FileFormatError(
                f"backbone of the model must be one that is offered here: {error}"
            ) from error
        if ours.decisive() != base.decisive():
            raise FileFormatError(
                f"backbone of the model must be {base.name} as it is here, got another of that name"
            )

    def depth(self) -> int:
        """Return how many samples wait for a backbone."""
        return sum(batcher.depth for batcher in set(self._shared.values()))

    def shutdown(self) -> None:
        """Finish what waits and end all threads."""
        for batcher in set(self._shared.values()):
            batcher.close()

    def _sharing(self, key: str, load: Callable[[], Backbone]) -> Batcher:
        """Return the queue of a backbone, which is loaded unless it is there; one is loaded at a time."""
        if key not in self._shared:
            with self._loading:
                if key not in self._shared:
                    backbone = load()
                    known = _key(backbone.spec)
                    same = self._shared.get(known) or Batcher(
                        backbone, self._limits, self._metrics
                    )
                    self._shared = {**self._shared, key: same, known: same}
        return self._shared[key]


def _key(spec: BackboneSpec) -> str:
    return json.dumps(spec.decisive(), sort_keys=True, default=str)
