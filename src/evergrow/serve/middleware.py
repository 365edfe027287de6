"""Middleware around all routes: one logs requests and answers errors, the other decides who may pass."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.serve.access import RateLimit, host_name, needs_token, only_reads
from evergrow.serve.config import Limits, ServeConfig, is_loopback
from evergrow.serve.monitoring import Metrics, log
from evergrow.serve.problems import Problem, problem_of, problem_response

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
_LARGE = ("/jobs", "/api/v1/models/upload")
_SLOWEST = 1024  # bytes of a body in a second


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
            if not status:  # nothing was sent yet
                problem = problem_of(error, self._folder)
                response = problem_response(problem, scope["path"], state["request_id"])
                await response(scope, receive, send_with_headers)
        finally:
            self._record(scope, status, time.perf_counter() - started, failure)

    def _record(self, scope: Scope, status: int, seconds: float, failure: Exception | None) -> None:
        route = getattr(scope.get("route"), "path", "") or "other"
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(scope["method"], route).observe(seconds)
        state = scope["state"]
        bug = failure is not None and problem_of(failure).status_code == 500
        log(
            "request",
            level=logging.ERROR if bug else logging.INFO,
            error=failure if bug else None,
            method=scope["method"],
            path=scope["path"],
            status=status,
            seconds=round(seconds, 4),
            request_id=state["request_id"],
            client=_address(scope),
            **{name: state[name] for name in ("token", "refused") if state.get(name)},
        )


class AccessMiddleware:
    """Lets a request pass by its host, origin, token, rate and size.

    Parameters
    ----------
    app : ASGI application
        The next application.
    config : ServeConfig
        Who may ask, and how much.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self._app, self._config, self._limits = app, config, config.limits
        self._rate = RateLimit(config.limits.requests_per_second)
        self._hosts = {name.casefold() for name in config.allowed_hosts}
        self._hosts |= {config.host.strip("[]").casefold()} - {"0.0.0.0", "::"}
        self._received = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise the :class:`Problem` with it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, headers = _Body(receive, self, scope), Headers(scope=scope)
        try:
            self._check_host(headers)
            self._check_origin(scope, headers)
            caller = self._check_token(scope, headers)
            if not self._rate.allows(caller):
                raise Problem(429, "too many requests in a second: slow down", "TooOften", retry_after=1)
            body.check_length(headers)
        except Problem as problem:
            scope["state"]["refused"] = problem.kind
            raise
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._received -= body.size

    def _check_host(self, headers: Headers) -> None:
        """Refuse foreign names: a page elsewhere can let its own name lead to this machine (DNS rebinding)."""
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if not name or not (is_loopback(name) or name in self._hosts):
            raise Problem(
                421, f"the service does not answer to the host {name[:80]!r}: allow it with --allow-host", "WrongHost"
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse what a page of another site sends, be it to read or to teach."""
        origin = headers.get("origin")
        if origin is not None:
            if urlsplit(origin).netloc.casefold() != headers.get("host", "").casefold():
                raise Problem(403, f"requests from pages of {origin[:80]!r} are not answered", "CrossOrigin")
            return
        site = headers.get("sec-fetch-site", "none")
        followed_link = (
            headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET" and not needs_token(scope["path"])
        )
        if site not in ("none", "same-origin") and not followed_link:
            raise Problem(403, "requests from pages of other sites are not answered", "CrossOrigin")

    def _check_token(self, scope: Scope, headers: Headers) -> str:
        """Return who is asking, or raise the problem 401 or 403."""
        if not self._config.tokens or not needs_token(scope["path"]):
            return _address(scope)
        holder = self._config.tokens.holder(headers.get("authorization", ""))
        if holder is None:
            raise Problem(401, "send 'Authorization: Bearer TOKEN' with a token of this service", "BadToken")
        if holder.role == "read" and not only_reads(scope["method"], scope["path"]):
            raise Problem(403, "this token has the role read; changes need a token with the role teach", "ReadToken")
        scope["state"]["token"] = holder.name
        return holder.name

    def count_received(self, n: int) -> None:
        """Count bytes that were received, or raise the problem 503 if all requests together hold too many."""
        if self._received + n > self._limits.waiting_bytes:
            raise Problem(503, "other requests hold all memory: try again later", "Busy", retry_after=2)
        self._received += n


class _Body:
    """The body of a request, with a limit on its size and on the time between its pieces."""

    def __init__(self, receive: Receive, access: AccessMiddleware, scope: Scope) -> None:
        self._receive, self._access = receive, access
        limits: Limits = access._limits
        self._most = limits.upload_bytes if scope["path"].endswith(_LARGE) else limits.body_bytes
        self._seconds = limits.body_seconds
        self._begun = time.monotonic()
        self._complete = False
        self.size = 0

    def check_length(self, headers: Headers) -> None:
        """Refuse a body by its stated size, before any of it is read."""
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise Problem(400, "Content-Length is not a number", "BadLength")
        if int(length[:20]) > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next piece."""
        if self._complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._seconds)
        except asyncio.TimeoutError:
            raise Problem(408, f"nothing of the body came for {self._seconds:g} s", "SlowBody") from None
        if message["type"] == "http.request":
            n = len(message.get("body", b""))
            self._access.count_received(n)
            self.size += n
            self._complete = not message.get("more_body", False)
            if self.size > self._most:
                raise self._too_large()
            if not self._complete and time.monotonic() - self._begun > self._seconds + self.size / _SLOWEST:
                raise Problem(408, f"the body came slower than {_SLOWEST} bytes a second", "SlowBody")
        return message

    def _too_large(self) -> Problem:
        return Problem(413, f"the body may have at most {self._most:,} bytes", "TooLarge")


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])
