"""Questions of many callers through one backbone together; what is learned or unlearned goes through it alone.

Features depend, in their last digits, on what else is in a batch. Questions do not mind. What is taught must give the
same numbers again when it is to be unlearned, so each such sample is encoded by itself, by one thread.

A head reads all of its weights for one sample as for thirty, so questions to one model that went through the backbone
together are answered together too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import InputError, NumericalError
from evergrow.core.feature_blocks import join_blocks
from evergrow.features.vision import ImageBackbone
from evergrow.serve.problems import Problem
from evergrow.serve.threads import cores, limit_torch

if TYPE_CHECKING:
    from evergrow.features.base import Backbone
    from evergrow.learner.answers import Answers
    from evergrow.serve.monitoring import Metrics

Prepared = torch.Tensor | str
"""An image after the preprocessing, or a text."""

FeatureRows = NDArray[np.float32]

_SHARE, _LONGEST = 0.1, 0.05
"""A batch waits for requests on their way as long as a tenth of what the last one took, and no longer than this."""


class Answering(Protocol):
    """A model that answers about features."""

    def ask(self, rows: NDArray[Any]) -> Answers:
        """Return answers, one for each row."""


@dataclass
class _Waiting:
    """Samples of one request in the queue, and the model that is asked about them; None where features are wanted."""

    samples: Sequence[Prepared]
    alone: bool
    asked: Answering | None = None
    result: Future[Any] = field(default_factory=Future)


class Batcher:
    """A thread that runs a backbone on what waits for it, and lets models answer about the features.

    While one batch is computed the next one gathers by itself, so that a single caller never waits for others. Where
    requests are known to be on their way (being decoded), a batch waits a moment for them.

    Parameters
    ----------
    backbone : Backbone
        What to run. On a processor images of one batch are spread over the cores.
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
        self._crew = _crew(backbone)
        self._thread = threading.Thread(target=self._run, name=f"backbone {backbone.spec.name}", daemon=True)
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

    def submit(self, samples: Sequence[Prepared], *, alone: bool = False) -> Future[FeatureRows]:
        """Return the features to come of samples that were announced.

        Parameters
        ----------
        samples : sequence of Tensor or str
            Prepared as the backbone takes them.
        alone : bool
            Whether each goes through the backbone by itself, so that the same sample always gives the same numbers.
        """
        return self._enqueue(_Waiting(samples, alone))

    def ask(self, samples: Sequence[Prepared], asked: Answering) -> Future[Answers]:
        """Return the answers to come of a model about samples that were announced.

        Parameters
        ----------
        samples : sequence of Tensor or str
            Prepared as the backbone takes them.
        asked : Answering
            The model.
        """
        return self._enqueue(_Waiting(samples, False, asked))

    def _enqueue(self, waiting: _Waiting) -> Future[Any]:
        with self._changed:
            if self._closed:
                raise Problem(503, "the service is shutting down", "ShuttingDown", retry_after=5)
            (self._taught if waiting.alone else self._asked).append(waiting)
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
                self._encode_alone(self._taught.popleft())
            taken = self._gathered()
            if taken:
                started = time.perf_counter()
                self._encode_together(taken)
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

    # -- computing ----------------------------------------------------------------------------------------------

    def _encode_together(self, taken: list[_Waiting]) -> None:
        samples = [sample for entry in taken for sample in entry.samples]
        try:
            parts = [self._side_by_side(samples[i : i + self._batch]) for i in range(0, len(samples), self._batch)]
            rows = np.concatenate(parts)
        except BaseException as error:
            self._give_up(taken, error)
            return
        start, asked = 0, dict[int, list[tuple[_Waiting, FeatureRows]]]()
        for entry in taken:
            part = rows[start : start + len(entry.samples)]
            start += len(entry.samples)
            if entry.asked is None:
                self._done(entry, part)
            else:
                asked.setdefault(id(entry.asked), []).append((entry, part))
        for entries in asked.values():
            self._answer(entries)

    def _answer(self, entries: list[tuple[_Waiting, FeatureRows]]) -> None:
        """Let one model answer all questions to it at once."""
        model = entries[0][0].asked
        assert model is not None
        try:
            answers = model.ask(np.concatenate([rows for _, rows in entries]))
        except BaseException as error:
            self._give_up([entry for entry, _ in entries], error)
            return
        start = 0
        for entry, rows in entries:
            self._done(entry, answers.part(slice(start, start + len(rows))))
            start += len(rows)

    def _encode_alone(self, entry: _Waiting) -> None:
        try:
            self._count(1, len(entry.samples))
            run = map if self._crew is None else self._crew.map
            rows = np.concatenate(list(run(self._features, [[sample] for sample in entry.samples])))
        except BaseException as error:
            self._give_up([entry], error)
            return
        self._done(entry, rows)

    def _side_by_side(self, samples: Sequence[Any]) -> FeatureRows:
        """Return the features of a batch: in equal parts where there is one for each core, else with all cores."""
        self._count(len(samples))
        if self._crew is None or len(samples) < cores():
            return self._features(samples)
        bounds = np.linspace(0, len(samples), cores() + 1).astype(int)
        parts = [samples[start:stop] for start, stop in pairwise(bounds)]
        return np.concatenate(list(self._crew.map(self._features, parts)))

    def _count(self, size: int, times: int = 1) -> None:
        if self._metrics is not None:
            for _ in range(times):
                self._metrics.batch_size.observe(size)

    def _features(self, samples: Sequence[Any]) -> FeatureRows:
        backbone = self.backbone
        batch: Any = list(samples)
        if backbone.transform is not None:
            layout = torch.channels_last if samples[0].ndim == 3 else torch.contiguous_format
            batch = torch.stack(batch).contiguous(memory_format=layout)
        with torch.inference_mode(), torch.autocast(backbone.device.type, enabled=False):
            rows = backbone.encode(batch).float().cpu().numpy()
        if rows.shape != (len(samples), backbone.n_features):
            raise InputError(f"backbone must return {backbone.n_features} features for each sample, got {rows.shape}")
        if not np.isfinite(rows).all():
            raise NumericalError(f"features must be finite, got NaN or infinity from {backbone.spec.name}")
        return join_blocks(np.asarray(rows, dtype=np.float32), backbone.spec.blocks.widths)

    # -- results ------------------------------------------------------------------------------------------------

    def _done(self, entry: _Waiting, result: Any) -> None:
        self._release(entry)
        if entry.result.set_running_or_notify_cancel():  # the caller may have left
            entry.result.set_result(result)

    def _give_up(self, entries: list[_Waiting], error: BaseException) -> None:
        for entry in entries:
            self._release(entry)
            if entry.result.set_running_or_notify_cancel():
                entry.result.set_exception(error)

    def _release(self, entry: _Waiting) -> None:
        with self._changed:
            self._held -= len(entry.samples)


def _crew(backbone: Backbone) -> ThreadPoolExecutor | None:
    """Return threads that run a backbone side by side; None where it is run by one, with all cores or a GPU.

    Tokenizers of texts, and backbones of others, may not bear several threads.
    """
    if not isinstance(backbone, ImageBackbone) or backbone.device.type != "cpu" or cores() < 2:
        return None
    return ThreadPoolExecutor(cores(), f"backbone {backbone.spec.name}", initializer=limit_torch, initargs=(1,))
