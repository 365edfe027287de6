"""Backbones, each loaded once, shared by all models that use it, and run by a thread with a queue of its own.

Questions of many callers go through a backbone together. What is learned or unlearned goes through it alone: features
depend, in their last digits, on what else is in a batch, and what is taught must give the same numbers again when it is
to be unlearned.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.data.items import Kind
from evergrow.features import encode_batch
from evergrow.features.backbones import ImageBackbone, create_backbone
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.sources import best_backbone, list_backbones
from evergrow.serve.config import Limits
from evergrow.serve.monitoring import Metrics
from evergrow.serve.problems import Problem
from evergrow.serve.schemas import SAMPLE_KINDS, BackboneOffer

if TYPE_CHECKING:
    from evergrow.learner.answers import Answers
    from evergrow.learner.learner import Learner

Prepared = torch.Tensor | str
"""An image after the preprocessing, or a text."""
FeatureRows = NDArray[np.float32]
FEW_SAMPLES = 512
"""Up to so many samples, in the model and new, matrices are so small that a change is made by one thread."""
_SHARE, _LONGEST = 0.1, 0.05
"""A batch waits for requests on their way for a tenth of the time that the last one took, and no longer than this."""


# -- threads of torch -------------------------------------------------------------------------------------------
# Torch gives every thread that computes a team as large as there are cores. If several compute at once, the teams take
# the cores from each other: a change of a handful of samples then takes ten times as long as with one thread.


@cache
def cores() -> int:
    """Return how many threads torch may use in all: the cores, or what ``OMP_NUM_THREADS`` allows."""
    return torch.get_num_threads()


def limit_torch(n: int) -> None:
    """Let torch use so many threads in the calling thread; others, and those that begin later, keep theirs.

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
    usual = cores()
    torch.get_num_threads()  # a thread that was never asked takes the number that was set last, at its first use
    torch.set_num_threads(n)
    if n != usual:  # threads that begin later get the number that was set last, so another thread sets it again
        passing = threading.Thread(target=torch.set_num_threads, args=(usual,))
        passing.start()
        passing.join()


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Let torch use so many threads in this thread until the block ends."""
    before = torch.get_num_threads()
    if n == before:
        yield
        return
    limit_torch(n)
    try:
        yield
    finally:
        limit_torch(before)


# -- one backbone -----------------------------------------------------------------------------------------------


class Answering(Protocol):
    """A model that answers about features."""

    def ask(self, rows: NDArray[Any]) -> Answers:
        """Return answers, one for each row."""


@dataclass
class _Waiting:
    """Samples of one request in the queue, and the model that is asked about them; None where features are wanted."""

    samples: Sequence[Prepared]
    asked: Answering | None
    result: Future[Any] = field(default_factory=Future)


class Batcher:
    """A thread that runs a backbone on what waits for it, and lets models answer about the features.

    While one batch is computed the next one gathers by itself, so that a single caller never waits for others. If
    requests are on their way (being decoded), a batch waits a moment for them. Questions to one model that went through
    the backbone together are answered together: a head reads all its weights for one sample as for thirty.

    Parameters
    ----------
    backbone : Backbone
        What to run. On a CPU images of one batch are spread over the cores.
    batch : int
        Most samples of a batch.
    queue : int
        Most samples that wait.
    wait : float
        Seconds that a batch waits for requests on their way, at least.
    metrics : Metrics, optional
        Where sizes of batches are counted.
    """

    def __init__(
        self, backbone: Backbone, *, batch: int, queue: int, wait: float = 0.005, metrics: Metrics | None = None
    ) -> None:
        self.backbone = backbone
        self._batch, self._queue, self._wait, self._metrics = batch, queue, wait, metrics
        self._asked: deque[_Waiting] = deque()
        self._taught: deque[_Waiting] = deque()
        self._coming = 0
        self._held = 0
        self._last = 0.0  # seconds that the latest batch took
        self._closed = False
        self._changed = threading.Condition()
        # Tokenizers of texts, and backbones of others, may not bear several threads.
        spread = isinstance(backbone, ImageBackbone) and backbone.device.type == "cpu" and cores() > 1
        name = f"backbone {backbone.spec.name}"
        self._crew = ThreadPoolExecutor(cores(), name, limit_torch, (1,)) if spread else None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def has_room(self, n: int) -> bool:
        """Return whether samples may be announced. Any number may while nothing waits."""
        return not self._held or self._held + n <= self._queue

    def announce(self, n: int) -> None:
        """Take note of samples that will be submitted or withdrawn soon.

        Raises
        ------
        Problem
            If as many wait already as may.
        """
        with self._changed:
            if not self.has_room(n):
                raise Problem(503, "the queue of the service is full: try again later", "QueueFull", retry_after=1)
            self._held += n
            self._coming += 1

    def withdraw(self, n: int) -> None:
        """Forget samples that were announced and will not come."""
        with self._changed:
            self._held -= n
            self._coming -= 1
            self._changed.notify_all()

    def submit(
        self, samples: Sequence[Prepared], *, alone: bool = False, asked: Answering | None = None
    ) -> Future[Any]:
        """Return the features to come of samples that were announced, or the answers of a model about them.

        Parameters
        ----------
        samples : sequence of Tensor or str
            Prepared as the backbone takes them.
        alone : bool
            Whether each goes through the backbone by itself, so that the same sample always gives the same numbers.
        asked : Answering, optional
            The model that is to answer; by default the result is the features.
        """
        waiting = _Waiting(samples, asked)
        with self._changed:
            if self._closed:
                raise Problem(503, "the service is shutting down", "ShuttingDown", retry_after=5)
            (self._taught if alone else self._asked).append(waiting)
            self._coming -= 1
            self._changed.notify_all()
        return waiting.result

    @property
    def depth(self) -> int:
        """Samples that wait or are being prepared."""
        return self._held

    def close(self) -> None:
        """Finish what waits and end all threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=60)
        if self._crew is not None:
            self._crew.shutdown(wait=False)

    def _run(self) -> None:
        limit_torch(cores())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._taught or self._closed)
                if self._closed and not self._asked and not self._taught:
                    return
            # In turn, so that neither a long job nor a stream of questions keeps the other waiting.
            if self._taught:
                self._answer([self._taught.popleft()], alone=True)
            taken = self._gathered()
            if taken:
                started = time.perf_counter()
                self._answer(taken, alone=False)
                self._last = time.perf_counter() - started

    def _gathered(self) -> list[_Waiting]:
        """Return requests that go together, after waiting a moment for those on their way."""
        with self._changed:
            if self._asked and self._coming and not self._is_full():
                moment = max(self._wait, min(_SHARE * self._last, _LONGEST))
                self._changed.wait_for(lambda: not self._coming or self._is_full(), moment)
            taken: list[_Waiting] = []
            size = 0
            while self._asked and (not taken or size + len(self._asked[0].samples) <= self._batch):
                taken.append(self._asked.popleft())
                size += len(taken[-1].samples)
            return taken

    def _is_full(self) -> bool:
        return sum(len(entry.samples) for entry in self._asked) >= self._batch

    def _answer(self, taken: list[_Waiting], *, alone: bool) -> None:
        """Encode the samples of requests, and let each model answer all questions to it at once."""
        try:
            rows = self._encode([sample for entry in taken for sample in entry.samples], alone)
        except BaseException as error:
            self._finish(taken, error)
            return
        start, by_model = 0, dict[int, list[tuple[_Waiting, FeatureRows]]]()
        for entry in taken:
            by_model.setdefault(id(entry.asked), []).append((entry, rows[start : start + len(entry.samples)]))
            start += len(entry.samples)
        for entries in by_model.values():
            model, requests = entries[0][0].asked, [entry for entry, _ in entries]
            if model is None:
                self._finish(requests, [part for _, part in entries])
                continue
            try:
                answers = model.ask(np.concatenate([part for _, part in entries]))
            except BaseException as error:
                self._finish(requests, error)
                continue
            ends = np.cumsum([0, *(len(part) for _, part in entries)])
            self._finish(requests, [answers.part(slice(*ends)) for ends in pairwise(ends.tolist())])

    def _encode(self, samples: list[Any], alone: bool) -> FeatureRows:
        """Return the features of samples: one by one, or in batches, each in equal parts for the cores."""
        size = 1 if alone else self._batch
        batches = [samples[i : i + size] for i in range(0, len(samples), size)]
        if self._metrics is not None:
            for batch in batches:
                self._metrics.batch_size.observe(len(batch))
        if self._crew is None or (not alone and len(samples) < cores()):  # all cores work on one batch
            return np.concatenate([encode_batch(self.backbone, batch) for batch in batches])
        parts = batches if alone else [part for batch in batches for part in _parts(batch, cores())]
        return np.concatenate(list(self._crew.map(partial(encode_batch, self.backbone), parts)))

    def _finish(self, requests: list[_Waiting], results: list[Any] | BaseException) -> None:
        for i, request in enumerate(requests):
            with self._changed:
                self._held -= len(request.samples)
            if not request.result.set_running_or_notify_cancel():  # the caller left
                continue
            if isinstance(results, BaseException):
                request.result.set_exception(results)
            else:
                request.result.set_result(results[i])


def _parts(batch: list[Any], n: int) -> list[list[Any]]:
    bounds = np.linspace(0, len(batch), n + 1).astype(int)
    return [batch[start:stop] for start, stop in pairwise(bounds) if start < stop]


# -- all of them ------------------------------------------------------------------------------------------------


class BackbonePool:
    """All backbones of the service.

    Parameters
    ----------
    limits : Limits
        Sizes of batches and queues.
    device : str
        Where they compute.
    given : mapping of str to Backbone
        Backbones beside those of the catalogue.
    metrics : Metrics, optional
        Where batches are counted.
    """

    def __init__(
        self,
        limits: Limits,
        device: str = "auto",
        given: Mapping[str, Backbone] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._limits, self._device, self._metrics = limits, device, metrics
        self._given = dict(given or {})
        self._shared: dict[str, Batcher] = {}
        self._loading = threading.Lock()

    def offers(self) -> list[BackboneOffer]:
        """Return what new models can be made with here, without downloading anything; the strongest first."""
        own = [(name, made.kind, made.n_features, "given to this service") for name, made in self._given.items()]
        listed = [(i.name, i.kind, i.n_features, i.about) for i in list_backbones() if i.available]
        return [
            BackboneOffer(name=name, kind=SAMPLE_KINDS[kind], n_features=width, about=about)
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
            If it is not offered for this kind. Names are looked up, never loaded from: no path and no download.
        """
        offered = [offer.name for offer in self.offers() if offer.kind == SAMPLE_KINDS[kind]]
        if name == "auto":
            name = offered[0] if offered else best_backbone(kind).name  # which raises, and says what to install
        if name not in offered:
            raise UnknownNameError(
                f"backbone must be 'auto' or one of {', '.join(map(repr, offered)) or 'none'} for {kind}s here, got "
                f"{name[:80]!r}; nearest: {nearest(name, offered)}"
            )
        if name in self._given:
            made = self._given[name]
            return self._sharing(_key(made.spec), lambda: made)
        return self._sharing(f"offer {name}", lambda: create_backbone(name, device=self._device))

    def of_learner(self, learner: Learner) -> Batcher | None:
        """Return the backbone of a model, loading it if no other model has; None where samples are features."""
        spec = learner.spec_
        if spec is None:
            return None
        known = next((made for made in self._given.values() if _key(made.spec) == _key(spec)), None)
        return self._sharing(_key(spec), (lambda: known) if known is not None else learner.backbone_)

    def loaded(self, learner: Learner) -> Batcher | None:
        """Return the backbone of a model if it is loaded, at once."""
        return None if learner.spec_ is None else self._shared.get(_key(learner.spec_))

    def check_offered(self, learner: Learner) -> None:
        """Refuse a stranger's model unless its backbone is one that is offered here, with the same numbers.

        A file names the weights of its backbone, and a stranger's could name any path or address.
        """
        base = learner.base_spec_
        if base is None:
            return
        try:
            ours = self.chosen(base.kind, base.name).backbone.spec
        except UnknownNameError as error:
            raise FileFormatError(f"backbone of the model must be one that is offered here: {error}") from error
        if ours.decisive() != base.decisive():
            raise FileFormatError(f"backbone of the model must be {base.name} as it is here, got another of that name")

    def depth(self) -> int:
        """Return how many samples wait for a backbone."""
        return sum(batcher.depth for batcher in set(self._shared.values()))

    def close(self) -> None:
        """Finish what waits and end all threads."""
        for batcher in set(self._shared.values()):
            batcher.close()

    def _sharing(self, key: str, load: Callable[[], Backbone]) -> Batcher:
        """Return the queue of a backbone, which is loaded unless it is there; one is loaded at a time."""
        if key not in self._shared:
            with self._loading:
                if key not in self._shared:
                    backbone, limits = load(), self._limits
                    same = self._shared.get(_key(backbone.spec)) or Batcher(
                        backbone, batch=limits.batch, queue=limits.queue, metrics=self._metrics
                    )
                    self._shared = {**self._shared, key: same, _key(backbone.spec): same}
        return self._shared[key]


def _key(spec: BackboneSpec) -> str:
    return json.dumps(spec.decisive(), sort_keys=True, default=str)
