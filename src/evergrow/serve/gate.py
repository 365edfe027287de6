"""What every request passes before a route sees it: host, origin, token, rate and size."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.serve.config import Limits, ServeConfig, is_loopback
from evergrow.serve.problems import Problem
from evergrow.serve.tokens import Token

GUARDED = ("/api/", "/v2/models", "/label-studio/", "/metrics")
"""Where a token is asked for; the page itself and its documentation hold nothing of a model."""
LARGE = ("/jobs", "/api/v1/models/upload")
_SLOWEST = 1024
_READING = ("GET", "HEAD", "OPTIONS")
_ASKING = ("/predict", "/evaluate", "/infer", "/health", "/setup")
"""Ends of routes that are asked by POST and change nothing."""


class Gate:
    """Lets requests through that may pass.

    Parameters
    ----------
    app : ASGI application
        What comes after.
    config : ServeConfig
        Who may ask what, and how much.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self._app, self._config, self._limits = app, config, config.limits
        self._rates = Rates(config.limits.requests_per_second)
        self._hosts = {name.casefold() for name in config.allowed_hosts}
        self._hosts |= {config.host.strip("[]").casefold()} - {"0.0.0.0", "::"}
        self._received = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise the :class:`Problem` with it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        body, headers = _Body(receive, self, scope), Headers(scope=scope)
        try:
            self._check_host(headers)
            self._check_origin(scope, headers)
            self._check_rate(self._check_token(scope, headers))
            body.check_length(headers)
        except Problem as problem:
            scope["state"]["refused"] = problem.kind
            raise
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._received -= body.size

    # -- who ----------------------------------------------------------------------------------------------------

    def _check_host(self, headers: Headers) -> None:
        """Refuse names that are not ours: a page elsewhere can make its own name lead to this machine."""
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if not name or not (is_loopback(name) or name in self._hosts):
            raise Problem(421, f"Host must be one that this service was given, got {name[:80]!r}", "WrongHost")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse what a page of another site sends, be it to read or to teach."""
        origin = headers.get("origin")
        if origin is not None:
            if urlsplit(origin).netloc.casefold() != headers.get("host", "").casefold():
                raise Problem(403, f"Origin must be this service itself, got {origin[:80]!r}", "CrossOrigin")
            return
        site = headers.get("sec-fetch-site", "none")
        opened = (
            headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET" and not _guarded(scope["path"])
        )
        if site not in ("none", "same-origin") and not opened:
            raise Problem(403, "requests must not come from a page of another site", "CrossOrigin")

    def _check_token(self, scope: Scope, headers: Headers) -> str:
        """Return whose request it is, or raise the problem 401 or 403."""
        if not self._config.tokens or not _guarded(scope["path"]):
            return str((scope.get("client") or ("",))[0])
        holder = self._holder(headers.get("authorization", ""))
        if holder is None:
            raise Problem(401, "Authorization must be 'Bearer' and a token of this service", "BadToken")
        if holder.role == "read" and not _only_reads(scope):
            raise Problem(403, "the token must have the role teach for this, got one with the role read", "ReadToken")
        scope["state"]["token"] = holder.name
        return holder.name

    def _holder(self, header: str) -> Token | None:
        scheme, _, value = header.partition(" ")
        secret = value.strip()
        if scheme.casefold() == "basic":  # labelling tools know nothing else; the name does not matter
            try:
                secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return None
        elif scheme.casefold() != "bearer":
            return None
        return self._config.tokens.holder(secret)

    def _check_rate(self, who: str) -> None:
        if not self._rates.allows(who):
            raise Problem(429, "requests must be fewer in a second", "TooOften", retry_after=1)

    # -- how much -----------------------------------------------------------------------------------------------

    def take(self, n: int) -> None:
        """Count bytes that were received, or raise the problem 503 where all requests together hold too many."""
        if self._received + n > self._limits.waiting_bytes:
            raise Problem(
                503, "the service must have memory for the request, but others hold it", "Busy", retry_after=2
            )
        self._received += n


class _Body:
    """The body of a request, with an end to its size and to the time between its pieces."""

    def __init__(self, receive: Receive, gate: Gate, scope: Scope) -> None:
        self._receive, self._gate = receive, gate
        limits: Limits = gate._limits
        self._most = limits.upload_bytes if scope["path"].endswith(LARGE) else limits.body_bytes
        self._seconds = limits.body_seconds
        self._begun = time.monotonic()
        self._whole = False
        self.size = 0

    def check_length(self, headers: Headers) -> None:
        """Refuse a body by what it says of its size, before any of it is read."""
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise Problem(400, "Content-Length must be a number", "BadLength")
        if int(length[:20]) > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next piece."""
        if self._whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._seconds)
        except asyncio.TimeoutError:
            raise Problem(408, f"the body must go on within {self._seconds:g} s", "SlowBody") from None
        if message["type"] == "http.request":
            n = len(message.get("body", b""))
            self._gate.take(n)
            self.size += n
            self._whole = not message.get("more_body", False)
            if self.size > self._most:
                raise self._too_large()
            if not self._whole and time.monotonic() - self._begun > self._seconds + self.size / _SLOWEST:
                raise Problem(408, f"the body must come at {_SLOWEST} bytes a second or faster", "SlowBody")
        return message

    def _too_large(self) -> Problem:
        return Problem(413, f"the body must have at most {self._most:,} bytes", "TooLarge")


class Rates:
    """How often each caller came, as a bucket that fills up again.

    Parameters
    ----------
    per_second : float
        Requests in a second; as many may come at once.
    """

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, who: str, now: float | None = None) -> bool:
        """Return whether a caller may come now, and count it.

        Examples
        --------
        >>> from evergrow.serve.gate import Rates
        >>> rates = Rates(2)
        >>> [rates.allows("anna", now) for now in (0.0, 0.0, 0.1, 0.6)]
        [True, True, False, True]
        """
        at = time.monotonic() if now is None else now
        left, since = self._buckets.pop(who, (self._rate, at))
        left = min(self._rate, left + (at - since) * self._rate)
        allowed = left >= 1
        self._buckets[who] = (left - 1 if allowed else left, at)
        while len(self._buckets) > 10_000:  # of many addresses the oldest are forgotten
            self._buckets.popitem(last=False)
        return allowed


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port.

    Examples
    --------
    >>> from evergrow.serve.gate import host_name
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


def _guarded(path: str) -> bool:
    return path.startswith(GUARDED)


def _only_reads(scope: Scope) -> bool:
    return scope["method"] in _READING or (scope["method"] == "POST" and scope["path"].endswith(_ASKING))
