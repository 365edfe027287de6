"""Around everything: requests are counted and logged, errors become problem documents, answers get safe headers."""

from __future__ import annotations

import inspect
import logging
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.core.wording import FieldWords, speaking
from evergrow.head import HEADS
from evergrow.serve.logs import log
from evergrow.serve.problems import Problem, answer_to, problem_of
from evergrow.serve.schemas import request_schemas
from evergrow.serve.service import Service

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
WORDS = FieldWords(
    {name for kind in request_schemas() for name in kind.model_fields}
    | {name for head in HEADS.names() for name in inspect.signature(HEADS[head].__init__).parameters}
)
"""What errors call a setting: the field of a request that gives it, or its name among the options of a method."""

_CLOSING = (408, 413)  # a body that nobody reads is not waited for


class Watch:
    """Counts, logs and catches.

    Parameters
    ----------
    app : ASGI application
        What comes after.
    service : Service
        Where requests are counted; the folder of its models is left out of messages.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self.service = app, service
        self._metrics, self._folder = service.metrics, str(service.store.folder)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and see how it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = uuid.uuid4().hex[:16]
        started, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache")
                headers["X-Request-Id"] = state["request_id"]
                if status in _CLOSING or (state.get("refused") and scope["method"] not in ("GET", "HEAD")):
                    headers["Connection"] = "close"
            await send(message)

        failed: BaseException | None = None
        try:
            with speaking(WORDS):
                await self._app(scope, receive, sending)
        except Exception as error:
            failed = error
            problem = problem_of(error, self._folder)
            if not status:  # nothing was sent yet
                await answer_to(problem, _id(scope), scope["path"])(scope, receive, sending)
        finally:
            self._note(scope, status, time.perf_counter() - started, failed)

    def _note(self, scope: Scope, status: int, seconds: float, failed: BaseException | None) -> None:
        route = getattr(scope.get("route"), "path", "") or "other"
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(scope["method"], route).observe(seconds)
        state = scope.get("state", {})
        bug = failed is not None and problem_of(failed).status == 500
        log(
            "request",
            level=logging.ERROR if bug else logging.INFO,
            error=failed if bug else None,
            method=scope["method"],
            path=scope["path"],
            status=status,
            seconds=round(seconds, 4),
            request_id=_id(scope),
            client=(scope.get("client") or ("",))[0],
            **{name: state[name] for name in ("token", "refused") if state.get(name)},
            **({"problem": type(failed).__name__} if failed is not None and not isinstance(failed, Problem) else {}),
        )


def _id(scope: Scope) -> str:
    return str(scope.get("state", {}).get("request_id", ""))
