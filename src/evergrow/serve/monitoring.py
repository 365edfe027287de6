"""JSON logs, Prometheus metrics, and library warnings for API responses.

Logs and metrics contain no samples, labels or other request content.
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
    from evergrow.learner.calibration import Calibration
    from evergrow.learner.predictions import Predictions

WINDOW = 200
"""Number of predicted samples per drift test."""

LOG = logging.getLogger("evergrow.serve")
_BUCKETS: tuple[float, ...] = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60),
)
"""Limits of the histograms in seconds."""
_thread = threading.local()


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON, so that untrusted names cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log record as one line of JSON."""
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
    """Write the logs of evergrow and uvicorn to standard error as JSON lines.

    Replaces their handlers in this process. `level` is a name of :mod:`logging`, in
    any case.
    """
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
    """Log an event.

    Parameters
    ----------
    event : str
        A fixed text.
    level : int
        Level of :mod:`logging`.
    error : BaseException, optional
        Exception whose traceback is logged.
    **fields
        Members of the line of JSON.
    """
    LOG.log(level, event, extra={"fields": fields}, exc_info=error)


class Metrics:
    """Counters and latencies for Prometheus, in a separate registry.

    Examples
    --------
    >>> from evergrow.serve.monitoring import Metrics
    >>> metrics = Metrics()
    >>> metrics.samples.labels("predict").inc(3)
    >>> metrics.registry.get_sample_value("evergrow_samples_total", {"work": "predict"})
    3.0
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "evergrow_requests",
            "Answered requests",
            ["method", "route", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "evergrow_request_seconds",
            "Time to the response in seconds",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.samples = Counter(
            "evergrow_samples",
            "Samples by operation",
            ["work"],
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "evergrow_change_seconds",
            "Time until a change is on disk in seconds",
            buckets=_BUCKETS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "evergrow_batch_samples",
            "Samples per batch of a backbone",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        self.queue = Gauge(
            "evergrow_queue_samples",
            "Samples waiting for a backbone",
            registry=registry,
        )
        self.jobs = Gauge("evergrow_jobs_open", "Open jobs", registry=registry)
        self.drift = Gauge(
            "evergrow_drift_fraction",
            "Fraction of tested classes whose recent samples no longer look like the "
            "training data; about 0.05 without drift",
            ["model"],
            registry=registry,
        )
        # Class, novelty and probability of the latest predictions of each model.
        self._recent: dict[str, deque[tuple[str, float, float]]] = {}

    def note_predictions(
        self, model: str, calibration: Calibration, predictions: Predictions
    ) -> None:
        """Record predictions, and test a model for drift every WINDOW samples.

        Only predicted classes, novelty scores and probabilities are stored. Does
        nothing without a calibration or novelty scores.

        Parameters
        ----------
        model : str
            Name of the model, a label of the metric.
        calibration : Calibration
            Held-out novelty of its training data.
        predictions : Predictions
            The predictions.
        """
        if predictions.novelty is None or not calibration.n:
            return
        best = predictions.values.argmax(axis=1)
        rows = zip(
            predictions.classes[best].tolist(),
            predictions.novelty.tolist(),
            predictions.values.max(axis=1).tolist(),
            strict=True,
        )
        recent = self._recent.setdefault(model, deque(maxlen=WINDOW))
        recent.extend(rows)
        if len(recent) < WINDOW:
            return
        columns = zip(*recent, strict=True)
        predicted, novelty, probability = (np.array(column) for column in columns)
        # Raised if no class has enough samples. The metric stays as it is then.
        with suppress(InputError):
            drift = find_drift(
                calibration, novelty, predicted, probability, None, FALSE_ALARM
            )
            self.drift.labels(model).set(drift.fraction)
        recent.clear()

    def forget(self, model: str) -> None:
        """Drop the drift data of a deleted model."""
        self._recent.pop(model, None)
        with suppress(KeyError):
            self.drift.remove(model)


@contextmanager
def collect_warnings() -> Iterator[None]:
    """Let :func:`thread_warnings` collect library warnings during the block.

    Warning filters are global to the process, so this is set once while the service
    runs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvergrowWarning)
        show_default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            collected: list[str] | None = getattr(_thread, "collected", None)
            if collected is None or not issubclass(category, EvergrowWarning):
                show_default(message, category, *rest)
                return
            line = one_line(str(message))
            if line not in collected:
                collected.append(line)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def thread_warnings() -> Iterator[list[str]]:
    """Yield a list that collects the library warnings of the current thread."""
    collected: list[str] = []
    _thread.collected = collected
    try:
        yield collected
    finally:
        _thread.collected = None
