"""Who may ask the service: host names, origins, tokens and their roles, and how much each caller may send."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.serve.config import Limits, ServeConfig, is_loopback
from evergrow.serve.monitoring import caller_address
from evergrow.serve.requests import FORM, Problem

_GUARDED = ("/api/", "/label-studio/", "/metrics")
_READING_METHODS = ("GET", "HEAD", "OPTIONS")
_READING_POSTS = ("/predict", "/evaluate", "/setup")
_CALLERS = 10_000  # that the rate limit remembers
_SLOWEST = 1024  # bytes of a body in a second


def needs_token(path: str) -> bool:
    """Return whether a path is guarded by tokens. The page and its documentation hold nothing of a model."""
    return path.startswith(_GUARDED)


def only_reads(method: str, path: str) -> bool:
    """Return whether a request changes nothing, so that the role ``read`` suffices."""
    return method in _READING_METHODS or (method == "POST" and path.endswith(_READING_POSTS))


def _largest_body(path: str, headers: Headers, limits: Limits) -> int:
    """Return the most bytes that a body may have: JSON is small, unless it may carry image files."""
    if path.endswith(("/jobs", "/api/v1/models/upload")):
        return limits.upload_bytes
    is_form = headers.get("content-type", "").lower().startswith(FORM)
    carries_files = is_form or path.startswith("/label-studio/")
    return limits.body_bytes if carries_files else limits.json_bytes


class RateLimit:
    """Limits how often each caller may come, by a bucket that refills.

    Parameters
    ----------
    per_second : float
        Requests in a second; as many may come at once.
    """

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str, now: float | None = None) -> bool:
        """Count a request and return whether it may pass.

        Examples
        --------
        >>> from evergrow.serve.access import RateLimit
        >>> limit = RateLimit(2)
        >>> [limit.allows("anna", now) for now in (0.0, 0.0, 0.1, 0.6)]
        [True, True, False, True]
        """
        at = time.monotonic() if now is None else now
        left, since = self._buckets.pop(caller, (self._rate, at))
        left = min(self._rate, left + (at - since) * self._rate)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, at)
        while len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        return allowed


def host_name(host: str) -> str:
    """Return the name in a Host header without the port, or an empty string if the header is malformed.

    Examples
    --------
    >>> from evergrow.serve.access import host_name
    >>> host_name("LocalHost:8080"), host_name("[::1]:8080"), host_name("a b")
    ('localhost', '::1', '')
    """
    try:
        parts = urlsplit(f"//{host}")
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        return ""
    plain = parts.netloc == host and not set(host) & set(" @/\\?#") and port_is_number
    return (parts.hostname or "").casefold() if plain else ""


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
        self._app, self._config, self.limits = app, config, config.limits
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
        headers = Headers(scope=scope)
        body = _Body(receive, self, _largest_body(scope["path"], headers, self.limits))
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
            return caller_address(scope)
        holder = self._config.tokens.holder(headers.get("authorization", ""))
        if holder is None:
            raise Problem(401, "send 'Authorization: Bearer TOKEN' with a token of this service", "BadToken")
        if holder.role == "read" and not only_reads(scope["method"], scope["path"]):
            raise Problem(403, "this token has the role read; changes need a token with the role teach", "ReadToken")
        scope["state"]["token"] = holder.name
        return holder.name

    def count_received(self, n: int) -> None:
        """Count bytes that were received, or raise the problem 503 if all requests together hold too many."""
        if self._received + n > self.limits.waiting_bytes:
            raise Problem(503, "other requests hold all memory: try again later", "Busy", retry_after=2)
        self._received += n


class _Body:
    """The body of a request, with a limit on its size and on the time between its pieces."""

    def __init__(self, receive: Receive, access: AccessMiddleware, most: int) -> None:
        self._receive, self._access, self._most = receive, access, most
        self._seconds = access.limits.body_seconds
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
