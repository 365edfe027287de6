"""What the service reports: JSON log lines, Prometheus metrics, and warnings of the library in its answers.

Logs and metrics hold nothing of what was sent.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.core.errors import EvergrowWarning
from evergrow.core.escaping import one_line
from evergrow.serve.requests import problem_of, problem_response

LOG = logging.getLogger("evergrow.serve")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_LOGGED = 300  # characters of a path in the log
_thread = threading.local()

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
_UNREAD_BODY = (408, 413)  # the rest of the body is not waited for


class JsonFormatter(logging.Formatter):
    """Formats log records as JSON objects, so that names from strangers cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            values["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(values, default=str)


def set_up_logs(level: str = "info") -> None:
    """Send the logs of the service and of uvicorn to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("evergrow", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level.upper())


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write one line."""
    LOG.log(level, event, extra={"fields": fields}, exc_info=error)


class Metrics:
    """Counters and latencies for Prometheus, in a registry of their own.

    Examples
    --------
    >>> from evergrow.serve.monitoring import Metrics
    >>> metrics = Metrics()
    >>> metrics.samples.labels("predict").inc(3)
    >>> b'evergrow_samples_total{work="predict"} 3.0' in metrics.exposition()
    True
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter("evergrow_requests", "Requests answered", ["method", "route", "status"], registry=own)
        self.seconds = Histogram(
            "evergrow_request_seconds", "Time to an answer", ["method", "route"], buckets=_SECONDS, registry=own
        )
        self.samples = Counter("evergrow_samples", "Samples, by what was done with them", ["work"], registry=own)
        self.commit_seconds = Histogram(
            "evergrow_change_seconds", "Time of a change until it is on disk", buckets=_SECONDS, registry=own
        )
        self.batch_size = Histogram(
            "evergrow_batch_samples",
            "Samples in a pass through a backbone",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=own,
        )
        self.queue = Gauge("evergrow_queue_samples", "Samples that wait for a backbone", registry=own)
        self.jobs = Gauge("evergrow_jobs_open", "Jobs that are not done", registry=own)

    def exposition(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self.registry)


@contextmanager
def collect_warnings() -> Iterator[None]:
    """Let :func:`thread_warnings` collect warnings of the library while the block lasts.

    Which warnings are shown is a setting of the whole process, so it is changed once, for as long as the service runs.
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


# -- requests ---------------------------------------------------------------------------------------------------


class RequestMiddleware:
    """Counts and logs requests, adds security headers, and answers with a problem where a request fails.

    Parameters
    ----------
    app : ASGI application
        The next application.
    metrics : Metrics
        Where requests are counted.
    folder : str
        The folder of the models, which is removed from messages.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, folder: str) -> None:
        self._app, self._metrics, self._folder = app, metrics, folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and see how it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = uuid.uuid4().hex[:16]
        started, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache")
                headers["X-Request-Id"] = state["request_id"]
                if status in _UNREAD_BODY or (state.get("refused") and scope["method"] not in ("GET", "HEAD")):
                    headers["Connection"] = "close"
            await send(message)

        failure: Exception | None = None
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            failure = error
            if status:  # the answer has begun: the server closes the connection, so that nobody takes it for whole
                raise
            response = problem_response(problem_of(error, self._folder), state["request_id"])
            await response(scope, receive, send_with_headers)
        finally:
            self._record(scope, status, time.perf_counter() - started, failure)

    def _record(self, scope: Scope, status: int, seconds: float, failure: Exception | None) -> None:
        route = getattr(scope.get("route"), "path", "") or "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"  # callers must not add labels
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        state = scope["state"]
        bug = failure is not None and problem_of(failure).status_code == 500
        log(
            "request",
            level=logging.ERROR if bug else logging.INFO,
            error=failure if bug else None,
            method=method,
            path=scope["path"][:_LOGGED],
            status=status,
            seconds=round(seconds, 4),
            request_id=state["request_id"],
            client=caller_address(scope),
            **{name: state[name] for name in ("token", "refused") if state.get(name)},
        )


def caller_address(scope: Scope) -> str:
    """Return the address that a request came from."""
    return str((scope.get("client") or ("",))[0])
