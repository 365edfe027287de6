"""What the service reports: JSON log lines, Prometheus metrics, and warnings of the library in its answers.

Logs and metrics hold nothing of what was sent.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from evergrow.core.errors import EvergrowWarning, InputError
from evergrow.core.escaping import one_line
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.tools.drift_detection import find_drift

if TYPE_CHECKING:
    from evergrow.learner.answers import Answers
    from evergrow.learner.calibration import Calibration

WINDOW = 200
"""Samples that are tested for drift together."""

LOG = logging.getLogger("evergrow.serve")
_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
)
_thread = threading.local()


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON objects, so that names from strangers cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


def set_up_logs(level: str = "info") -> None:
    """Send the logs of the service and of uvicorn to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("evergrow", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())


def log(
    event: str,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **fields: Any,
) -> None:
    """Write one line."""
    LOG.log(level, event, extra={"fields": fields}, exc_info=error)


class Metrics:
    """Counters and latencies for Prometheus, in a registry of their own.

    Examples
    --------
    >>> from evergrow.serve.monitoring import Metrics
    >>> metrics = Metrics()
    >>> metrics.samples.labels("predict").inc(3)
    >>> metrics.registry.get_sample_value("evergrow_samples_total", {"work": "predict"})
    3.0
    """

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "evergrow_requests",
            "Requests answered",
            ["method", "route", "status"],
            registry=own,
        )
        self.seconds = Histogram(
            "evergrow_request_seconds",
            "Time to an answer",
            ["method", "route"],
            buckets=_SECONDS,
            registry=own,
        )
        self.samples = Counter(
            "evergrow_samples",
            "Samples, by what was done with them",
            ["work"],
            registry=own,
        )
        self.commit_seconds = Histogram(
            "evergrow_change_seconds",
            "Time of a change until it is on disk",
            buckets=_SECONDS,
            registry=own,
        )
        self.batch_size = Histogram(
            "evergrow_batch_samples",
            "Samples in a pass through a backbone",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=own,
        )
        self.queue = Gauge(
            "evergrow_queue_samples", "Samples that wait for a backbone", registry=own
        )
        self.jobs = Gauge("evergrow_jobs_open", "Jobs that are not done", registry=own)
        about = "Share of tested classes whose latest samples do not look like what was learned; 0.05 where all do"
        self.drift = Gauge("evergrow_drift_share", about, ["model"], registry=own)
        self._latest: dict[str, deque[tuple[str, float, float]]] = {}

    def note_answers(
        self, model: str, calibration: Calibration, answers: Answers
    ) -> None:
        """Test the latest answers of a model for drift, every WINDOW samples; nothing of the samples is kept."""
        if answers.novelty is None or not calibration.n:
            return
        best = answers.values.argmax(axis=1)
        rows = zip(
            answers.classes[best].tolist(),
            answers.novelty.tolist(),
            answers.values.max(axis=1).tolist(),
        )
        held = self._latest.setdefault(model, deque(maxlen=WINDOW))
        held.extend(rows)
        if len(held) == WINDOW:
            names, novelty, sure = (np.array(column) for column in zip(*held))
            with suppress(InputError):
                found = find_drift(calibration, novelty, names, sure, None, FALSE_ALARM)
                self.drift.labels(model).set(found.share)
            held.clear()

    def forget(self, model: str) -> None:
        """Let go of a model that was deleted: another of its name starts anew."""
        self._latest.pop(model, None)
        with suppress(KeyError):
            self.drift.remove(model)


@contextmanager
def collect_warnings() -> Iterator[None]:
    """Let :func:`thread_warnings` collect warnings of the library while the block lasts.

    Which warnings are shown is a setting of the whole process, so it is changed once,
    for as long as the service runs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvergrowWarning)
        show_otherwise = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            collected: list[str] | None = getattr(_thread, "collected", None)
            if collected is None or not issubclass(category, EvergrowWarning):
                show_otherwise(message, category, *rest)
            elif one_line(str(message)) not in collected:
                collected.append(one_line(str(message)))

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def thread_warnings() -> Iterator[list[str]]:
    """Yield a list that collects the library's warnings in this thread."""
    _thread.collected = collected = list[str]()
    try:
        yield collected
    finally:
        _thread.collected = None
