"""Questions of many callers through one backbone together; what is learned or unlearned goes through it alone.

Features depend, in their last digits, on what else is in a batch. Questions do not mind. What is taught must give the
same numbers again when it is to be unlearned, so each such sample is encoded by itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import InputError, NumericalError
from evergrow.serve.problems import Problem

if TYPE_CHECKING:
    from evergrow.backbones.base import Backbone
    from evergrow.serve.metrics import Metrics

Prepared = torch.Tensor | str
"""An image after the preprocessing, or a text."""

FeatureRows = NDArray[np.float32]


@dataclass
class _Waiting:
    """Samples of one request in the queue."""

    samples: Sequence[Prepared]
    alone: bool
    result: Future[FeatureRows] = field(default_factory=Future)


class Batcher:
    """A thread that runs a backbone on what waits for it.

    While one batch is computed the next one gathers by itself, so that a single caller never waits for others. Where
    requests are known to be on their way (being decoded), a batch waits a moment for them.

    Parameters
    ----------
    backbone : Backbone
        What to run.
    batch : int
        Most samples of a batch.
    queue : int
        Most samples that wait.
    wait : float
        Seconds that a batch waits for requests on their way.
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
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"backbone {backbone.spec.name}", daemon=True)
        self._thread.start()

    def announce(self, n: int) -> None:
        """Take note of samples that will be submitted or withdrawn soon.

        Raises
        ------
        Problem
            If as many wait already as may.
        """
        with self._changed:
            if self._held + n > max(self._queue, n if not self._held else 0):
                raise Problem(
                    503, "the service must have room for the samples, but its queue is full", "QueueFull", retry_after=1
                )
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
        waiting = _Waiting(samples, alone)
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
        """Finish what waits and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=60)

    def _run(self) -> None:
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
                self._encode_together(taken)

    def _gathered(self) -> list[_Waiting]:
        """Return requests that go together, after waiting a moment for those on their way."""
        with self._changed:
            if self._asked and self._coming and sum(len(entry.samples) for entry in self._asked) < self._batch:
                self._changed.wait_for(lambda: not self._coming or len(self._asked) >= self._batch, self._wait)
            taken: list[_Waiting] = []
            size = 0
            while self._asked and (not taken or size + len(self._asked[0].samples) <= self._batch):
                taken.append(self._asked.popleft())
                size += len(taken[-1].samples)
            return taken

    def _encode_together(self, taken: list[_Waiting]) -> None:
        samples = [sample for entry in taken for sample in entry.samples]
        try:
            parts = [self._features(samples[i : i + self._batch]) for i in range(0, len(samples), self._batch)]
            rows = np.concatenate(parts)
        except BaseException as error:
            self._give_up(taken, error)
            return
        start = 0
        for entry in taken:
            self._done(entry, rows[start : start + len(entry.samples)])
            start += len(entry.samples)

    def _encode_alone(self, entry: _Waiting) -> None:
        try:
            rows = np.concatenate([self._features([sample]) for sample in entry.samples])
        except BaseException as error:
            self._give_up([entry], error)
            return
        self._done(entry, rows)

    def _features(self, samples: Sequence[Any]) -> FeatureRows:
        if self._metrics is not None:
            self._metrics.batch_size.observe(len(samples))
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
        return np.asarray(rows, dtype=np.float32)

    def _done(self, entry: _Waiting, rows: FeatureRows) -> None:
        self._release(entry)
        if entry.result.set_running_or_notify_cancel():  # the caller may have left
            entry.result.set_result(rows)

    def _give_up(self, entries: list[_Waiting], error: BaseException) -> None:
        for entry in entries:
            self._release(entry)
            if entry.result.set_running_or_notify_cancel():
                entry.result.set_exception(error)

    def _release(self, entry: _Waiting) -> None:
        with self._changed:
            self._held -= len(entry.samples)
