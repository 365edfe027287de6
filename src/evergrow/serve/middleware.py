"""What every request passes: who may ask, under which name and how much; headers, counters, the log, problems."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.serve.budget import MemoryBudget
from evergrow.serve.config import Limits, is_loopback
from evergrow.serve.monitoring import log
from evergrow.serve.requests import FORM, Problem, problem_of, problem_response
from evergrow.serve.service import Service
from evergrow.serve.turns import CALLER

_GUARDED = (
    "/api/",
    "/label-studio/",
    "/metrics",
)  # by tokens; the page and its documentation hold nothing of a model
_LAN = "/api/v1/lan"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_READING_METHODS = ("GET", "HEAD", "OPTIONS")
_READING_POSTS = ("/predict", "/evaluate", "/setup", "/preview")
_CALLERS = 10_000  # that the rate limit remembers
_STRANGE = ("BadToken", "CrossOrigin", "LongHead", "WrongHost")
"""Refusals that count for the limit of an address: none of a caller with a token."""
_SLOWEST = 1024  # bytes of a body in a second
HEAD_BYTES = 16_384  # of the request line and the headers together
_LOGGED = 300  # characters of a path in the log
_WITH_IMAGES = (
    8  # times the size of other JSON that JSON with image files in it may have
)

_Count = Callable[[int], None]

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


class RateLimit:
    """Limits how often each caller may come, by a bucket that refills.

    Parameters
    ----------
    per_second : float
        Requests in a second; as many may come at once.
    """

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._buckets: dict[str, tuple[float, float]] = {}  # who came last is last

    def allows(self, caller: str, now: float | None = None) -> bool:
        """Count a request and return whether it may pass.

        Examples
        --------
        >>> from evergrow.serve.middleware import RateLimit
        >>> limit = RateLimit(2)
        >>> [limit.allows("anna", now) for now in (0.0, 0.0, 0.1, 0.6)]
        [True, True, False, True]
        """
        if now is None:
            at = time.monotonic()
        else:
            at = now
        left, since = self._buckets.pop(caller, (self._rate, at))
        left = min(self._rate, left + (at - since) * self._rate)
        allowed = left >= 1
        self._buckets[caller] = (left - 1 if allowed else left, at)
        if len(self._buckets) > _CALLERS:
            del self._buckets[next(iter(self._buckets))]
        return allowed


def host_name(host: str) -> str:
    """Return the name in a Host header without the port, or an empty string if the header is malformed.

    Examples
    --------
    >>> from evergrow.serve.middleware import host_name
    >>> host_name("LocalHost:8080"), host_name("[::1]:8080"), host_name("a b")
    ('localhost', '::1', '')
    """
    found = re.fullmatch(
        r"(\[[0-9a-f:.]+\]|[\w.-]+)(:\d{1,5})?", host.casefold(), re.ASCII
    )
    if found:
        return found[1].strip("[]")
    return ""


def address_group(client: str) -> str:
    """Return the addresses that count as one caller: an IPv4 address or an IPv6 /64.

    Whoever has one IPv6 address usually has 2**64 of them.

    Examples
    --------
    >>> from evergrow.serve.middleware import address_group
    >>> address_group("192.0.2.7"), address_group("2001:db8::1:2:3:4")
    ('192.0.2.7', '2001:db8::/64')
    >>> address_group("::ffff:192.0.2.7"), address_group("fe80::1%eth0")
    ('192.0.2.7', 'fe80::/64')
    """
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _is_for_phones(method: str, path: str) -> bool:
    """Return whether the page needs this on a phone: all but removing, bringing and sharing whole models."""
    removes = (
        method == "DELETE"
        and path.startswith("/api/v1/models/")
        and path.count("/") == 4
    )
    return (
        path.startswith("/api/")
        and method != "PUT"
        and not removes
        and path not in (_LAN, "/api/v1/models/upload")
    )


class _Exchange:
    """A request and its answer: the body comes within limits, and the answer goes with security headers."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: Limits, count: _Count
    ) -> None:
        self.scope, self.headers, self.id = (
            scope,
            Headers(scope=scope),
            uuid.uuid4().hex[:16],
        )
        self._receive = receive
        self._send = send
        self._limits = limits
        self._count = count
        self.started = time.perf_counter()
        self.status = 0
        self.size = 0
        self.client = str((scope.get("client") or ("",))[0])
        self.refused = True
        self._complete = False
        self.held = 0  # bytes of the memory budget
        path = scope["path"]
        if path.endswith(("/jobs", "/api/v1/models/upload")):
            self._largest = limits.upload_bytes
        elif path.startswith("/label-studio/"):
            self._largest = _WITH_IMAGES * limits.json_bytes
        elif self.headers.get("content-type", "").lower().startswith(FORM):
            self._largest = limits.body_bytes
        else:
            self._largest = limits.json_bytes

    def hold_memory(self, budget: MemoryBudget, n: int) -> None:
        """Take bytes of the memory budget until the end of the request."""
        budget.take(n)
        self.held += n

    def check_size(self, size: int) -> None:
        """Raise the problem 413 if the body is larger than it may be."""
        if size > self._largest:
            raise Problem(
                413, f"the body may have at most {self._largest:,} bytes", "TooLarge"
            )

    async def receive(self) -> Message:
        """Return the next piece of the body."""
        if self._complete:
            return await self._receive()
        seconds = self._limits.body_seconds
        try:
            message = await asyncio.wait_for(self._receive(), seconds)
        except asyncio.TimeoutError:
            raise Problem(
                408, f"nothing of the body came for {seconds:g} s", "SlowBody"
            ) from None
        if message["type"] == "http.request":
            n = len(message.get("body", b""))
            self._count(n)
            self.size += n
            self._complete = not message.get("more_body", False)
            self.check_size(self.size)
            if (
                not self._complete
                and time.perf_counter() - self.started > seconds + self.size / _SLOWEST
            ):
                raise Problem(
                    408,
                    f"the body came slower than {_SLOWEST} bytes a second",
                    "SlowBody",
                )
        return message

    async def send(self, message: Message) -> None:
        """Send a piece of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in {
                **SECURITY_HEADERS,
                "Cache-Control": "no-cache",
            }.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self.id
            # The rest of a body that is refused is not waited for.
            if self.status in (408, 413, 431) or (
                self.refused and self.scope["method"] not in ("GET", "HEAD")
            ):
                headers["Connection"] = "close"
        await self._send(message)


class ServiceMiddleware:
    """Lets a request pass by its host, origin, token, rate and size, and answers with a problem where it fails.

    Every request is counted and logged.

    Parameters
    ----------
    app : ASGI application
        The next application.
    service : Service
        Who may ask and how much, and where requests are counted.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._config = service.config
        self._metrics = service.metrics
        config = service.config
        self._rate = RateLimit(config.limits.requests_per_second)
        self._refusals = RateLimit(config.limits.refusals_per_second)
        self._hosts = {name.casefold() for name in config.allowed_hosts}
        self._hosts |= {config.host.strip("[]").casefold()} - {"0.0.0.0", "::"}
        self._received = 0  # bytes of all bodies that are being received or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and see how it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._config.limits, self._count)
        failure = None
        memory = self._service.memory
        state = scope.setdefault("state", {})
        state["request_id"] = exchange.id
        state["hold_memory"] = partial(exchange.hold_memory, memory)
        try:
            self._admit(exchange)
            exchange.refused = False
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            failure = error
            if (
                exchange.status
            ):  # the answer has begun: the server must close the connection
                raise
            response = problem_response(
                problem_of(error, self._service.store.without_paths), exchange.id
            )
            await response(scope, receive, exchange.send)
        finally:
            self._received -= exchange.size
            memory.release(exchange.held)
            self._record(exchange, failure)

    def _count(self, n: int) -> None:
        """Count bytes of a body, or raise the problem 503 if all requests together hold too many."""
        if self._received + n > self._config.limits.waiting_bytes:
            raise Problem(
                503,
                "other requests hold all memory: try again later",
                "Busy",
                retry_after=2,
            )
        self._received += n

    def _admit(self, exchange: _Exchange) -> None:
        """Raise a problem unless the request may pass.

        An address that was refused too often gets 429 instead of the reason. Requests
        that may pass are never affected, so nobody is locked out by a stranger who
        shares the address.
        """
        try:
            self._check(exchange)
        except Problem as problem:
            if problem.kind not in _STRANGE:
                raise
            if self._refusals.allows(address_group(exchange.client)):
                raise
            raise Problem(
                429,
                "too many requests from this address were refused: slow down",
                "TooOften",
                retry_after=1,
            ) from problem

    def _check(self, exchange: _Exchange) -> None:
        """Raise a problem unless the request may pass."""
        scope = exchange.scope
        headers = exchange.headers
        lan = self._service.lan
        path = scope["path"]
        method = scope["method"]
        head = (
            method,
            scope.get("raw_path") or path,
            scope["query_string"],
            *(part for pair in headers.raw for part in pair),
        )
        if (
            sum(map(len, head)) > HEAD_BYTES
        ):  # the server notices only those that come in several pieces
            raise Problem(
                431,
                f"the request line and the headers may have at most {HEAD_BYTES:,} bytes",
                "LongHead",
            )
        # A page elsewhere can let its own name lead to this machine (DNS rebinding), so
        # foreign names are refused.
        hosts = headers.getlist("host")
        name = ""
        if len(hosts) == 1:
            name = host_name(hosts[0])
        if not name or not (
            is_loopback(name) or name in self._hosts or (lan and name == lan.host)
        ):
            detail = f"the service does not answer to the host {name[:80]!r}: allow it with --allow-host"
            raise Problem(421, detail, "WrongHost")
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        guarded = path.startswith(_GUARDED)
        followed_link = (
            method == "GET"
            and not guarded
            and headers.get("sec-fetch-mode") == "navigate"
        )
        if origin is not None:
            if urlsplit(origin).netloc.casefold() != hosts[0].casefold():
                raise Problem(
                    403,
                    f"requests from pages of {origin[:80]!r} are not answered",
                    "CrossOrigin",
                )
        elif site not in ("none", "same-origin") and not followed_link:
            raise Problem(
                403,
                "requests from pages of other sites are not answered",
                "CrossOrigin",
            )
        caller = exchange.client
        from_lan = lan is not None and scope["scheme"] == "https"
        if guarded and (from_lan or self._config.tokens.entries):
            given = headers.get("authorization", "")
            holder = self._config.tokens.holder(given) or (
                lan.tokens.holder(given) if lan else None
            )
            if holder is None:
                again = "send 'Authorization: Bearer TOKEN'"
                if from_lan:
                    again = "scan the code on the computer again"
                raise Problem(
                    401,
                    f"{again}: a token of this service is needed, and those of codes expire",
                    "BadToken",
                )
            if holder.role == "page" and not _is_for_phones(method, path):
                raise Problem(
                    403,
                    "a phone may not do this: do it on the computer that serves the models",
                    "PageToken",
                )
            reads = (
                method in _READING_METHODS and path != _LAN
            )  # whose answer holds a token that may teach
            reads |= method == "POST" and path.endswith(_READING_POSTS)
            if holder.role == "read" and not reads:
                detail = "this token has the role read; changes need a token with the role teach"
                raise Problem(403, detail, "ReadToken")
            scope["state"]["token"] = caller = holder.name
            if holder.role == "page":  # each phone by itself
                caller = f"{holder.name} {exchange.client}"
        CALLER.set(caller)
        if not self._rate.allows(caller):
            raise Problem(
                429,
                "too many requests in a second: slow down",
                "TooOften",
                retry_after=1,
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(
                415,
                "send the body as it is: nothing is unpacked here (Content-Encoding)",
                "Encoded",
            )
        if (
            "content-length" in headers and "transfer-encoding" in headers
        ):  # two programs could read two requests
            raise Problem(
                400, "send Content-Length or Transfer-Encoding, not both", "BadLength"
            )
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise Problem(400, "Content-Length is not a number", "BadLength")
        exchange.check_size(int(length[:20]))

    def _record(self, exchange: _Exchange, failure: Exception | None) -> None:
        """Count and log a request; the labels of metrics come from fixed sets, not from callers."""
        scope = exchange.scope
        seconds = time.perf_counter() - exchange.started
        route = getattr(scope.get("route"), "path", "") or "other"
        method = "other"
        if scope["method"] in _METHODS:
            method = scope["method"]
        self._metrics.requests.labels(method, route, str(exchange.status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        problem = None
        if failure is not None:
            problem = problem_of(failure)
        bug = problem is not None and problem.status_code == 500
        log(
            "request",
            level=logging.ERROR if bug else logging.INFO,
            error=failure if bug else None,
            method=method,
            path=scope["path"][:_LOGGED],
            status=exchange.status,
            seconds=round(seconds, 4),
            request_id=exchange.id,
            client=exchange.client,
            **({"token": scope["state"]["token"]} if "token" in scope["state"] else {}),
            **({"refused": problem.kind} if problem and exchange.refused else {}),
        )
