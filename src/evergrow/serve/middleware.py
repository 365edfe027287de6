"""Checks, limits, headers, metrics and the log of every request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evergrow.serve.bodies import FORM, IMAGES_IN_JSON, JSON_LENGTH
from evergrow.serve.config import Limits, Token, is_loopback
from evergrow.serve.monitoring import log
from evergrow.serve.problems import Problem, problem_of, problem_response
from evergrow.serve.service import Service
from evergrow.serve.sharing import CALLER, MemoryBudget

_GUARDED = ("/api/", "/label-studio/", "/metrics", "/v2/models/")
"""Paths that require a token. The page and its documentation contain no model data."""
_WITH_IMAGES = ("/label-studio/", "/v2/")
"""Paths whose JSON may contain image files."""
_LAN = "/api/v1/lan"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_READING_METHODS = ("GET", "HEAD", "OPTIONS")
_READING_POSTS = (
    "/predict",
    "/explain",
    "/strictness",
    "/evaluate",
    "/setup",
    "/preview",
    "/infer",
)
_MAX_CALLERS = 10_000
"""Number of callers that a rate limit remembers."""
_SUSPICIOUS = ("BadToken", "CrossOrigin", "LongHead", "WrongHost")
"""Refusals that count towards the limit of an address."""
_MIN_BYTES_PER_SECOND = 1024
"""Minimum transfer rate of a body."""
HEAD_BYTES = 16_384
"""Maximum size of the request line and the headers together."""
_MAX_LOGGED_PATH = 300
"""Characters of a path in the log."""

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
RESPONSE_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}


class RateLimit:
    """A rate limit per caller (token bucket).

    Parameters
    ----------
    per_second : float
        Requests per second, and the size of a burst.
    """

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        # Tokens left and time of the last request, in order of the last request.
        self._buckets: dict[str, tuple[float, float]] = {}

    def allows(self, caller: str, now: float | None = None) -> bool:
        """Count a request and return whether it is allowed.

        Parameters
        ----------
        caller : str
            Name of the caller.
        now : float, optional
            Time in seconds. Default: the monotonic clock.

        Examples
        --------
        >>> from evergrow.serve.middleware import RateLimit
        >>> limit = RateLimit(2)
        >>> [limit.allows("anna", now) for now in (0.0, 0.0, 0.1, 0.6)]
        [True, True, False, True]
        """
        if now is None:
            now = time.monotonic()
        left, since = self._buckets.pop(caller, (self._rate, now))
        left = min(self._rate, left + (now - since) * self._rate)
        allowed = left >= 1
        if allowed:
            left -= 1
        self._buckets[caller] = (left, now)
        if len(self._buckets) > _MAX_CALLERS:
            oldest = next(iter(self._buckets))
            del self._buckets[oldest]
        return allowed


def host_name(host: str) -> str:
    """Return the name in a Host header without the port, or "" if it is malformed.

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

    A caller with one IPv6 address usually has 2**64 of them.

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


def _phone_may(method: str, path: str) -> bool:
    """Return whether a phone may do this.

    A phone may do everything that the page needs, except delete, upload and share whole
    models.
    """
    is_model = path.startswith("/api/v1/models/") and path.count("/") == 4
    if method == "DELETE" and is_model:
        return False
    if method == "PUT" or path in (_LAN, "/api/v1/models/upload"):
        return False
    return path.startswith("/api/")


def _reads_only(method: str, path: str) -> bool:
    """Return whether a request changes nothing and needs only the role ``read``."""
    if method in _READING_METHODS:
        # The response contains a token that may teach.
        return path != _LAN
    return method == "POST" and path.endswith(_READING_POSTS)


class _Exchange:
    """A request and its response.

    Limits the body of the request, and adds headers to the response.

    Parameters
    ----------
    scope, receive, send
        The request, as ASGI passes it.
    limits : Limits
        Limits of the service.
    bodies : MemoryBudget
        Budget of the bodies of all requests.
    memory : MemoryBudget
        Budget of unpacked samples of all requests and jobs.

    Attributes
    ----------
    id : str
        Identifies the request in the log and in the response.
    started : float
        Time of ``time.perf_counter`` when the request began.
    status : int
        Status of the response. 0 until it begins.
    size : int
        Bytes of the body received so far.
    refused : bool
        Whether a check refused the request. True until all have passed.
    client : str
        Address of the client, or empty.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        limits: Limits,
        bodies: MemoryBudget,
        memory: MemoryBudget,
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = Headers(scope=scope)
        self.id = uuid.uuid4().hex[:16]
        self.started = time.perf_counter()
        self.status = 0
        self.size = 0
        self.refused = True
        client = scope.get("client")
        self.client = str(client[0]) if client else ""
        self._receive = receive
        self._send = send
        self._limits = limits
        self._bodies = bodies
        self._memory = memory
        self._n_held = 0  # bytes of unpacked samples
        self._complete = False  # whether all of the body has arrived
        self._max_size = self._max_body_size()

    def _max_body_size(self) -> int:
        """Return how many bytes the body may have; depends on path and content type."""
        limits = self._limits
        if self.path.endswith(("/jobs", "/api/v1/models/upload")):
            return limits.upload_bytes
        if self.path.startswith("/v2/") and JSON_LENGTH in self.headers:
            return limits.body_bytes
        if self.path.startswith(_WITH_IMAGES):
            return IMAGES_IN_JSON * limits.json_bytes
        if self.headers.get("content-type", "").lower().startswith(FORM):
            return limits.body_bytes
        return limits.json_bytes

    def hold_memory(self, n: int) -> None:
        """Count `n` bytes of unpacked samples until the end of the request.

        Raises the problems of :meth:`MemoryBudget.take`.
        """
        self._memory.take(n)
        self._n_held += n

    def release(self) -> None:
        """Release the body and all unpacked samples. Called at the end."""
        self._bodies.release(self.size)
        self._memory.release(self._n_held)

    def check_size(self, size: int) -> None:
        """Raise a 413 problem if the body is too large."""
        if size > self._max_size:
            raise Problem(
                413, f"the body may have at most {self._max_size:,} bytes", "TooLarge"
            )

    async def receive(self) -> Message:
        """Return the next piece of the body. The ``receive`` of the application.

        Raises
        ------
        Problem
            408 if the body arrives too slowly, 413 if it is too large, 503 if the
            bodies of all requests take too much memory.
        """
        if self._complete:
            return await self._receive()
        seconds = self._limits.body_seconds
        try:
            message = await asyncio.wait_for(self._receive(), seconds)
        except asyncio.TimeoutError:
            raise Problem(
                408, f"no data of the body arrived for {seconds:g} s", "SlowBody"
            ) from None
        if message["type"] == "http.request":
            n = len(message.get("body", b""))
            self._bodies.take(n)
            self.size += n
            self._complete = not message.get("more_body", False)
            self.check_size(self.size)
            self._check_rate()
        return message

    def _check_rate(self) -> None:
        """Raise a 408 problem if the body is being sent too slowly."""
        if self._complete:
            return
        elapsed = time.perf_counter() - self.started
        allowed = self._limits.body_seconds + self.size / _MIN_BYTES_PER_SECOND
        if elapsed > allowed:
            raise Problem(
                408,
                f"the body arrived at less than {_MIN_BYTES_PER_SECOND} bytes per "
                "second",
                "SlowBody",
            )

    async def send(self, message: Message) -> None:
        """Send a piece of the response. Adds headers to its start."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in RESPONSE_HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self.id
            # Do not wait for the rest of a refused body.
            is_refused_body = self.refused and self.method not in ("GET", "HEAD")
            if self.status in (408, 413, 431) or is_refused_body:
                headers["Connection"] = "close"
        await self._send(message)


class ServiceMiddleware:
    """Checks every request, and counts and logs it.

    The checks are the size of the head, host, origin, token, rate and body length. A
    request that fails one gets a problem document.

    Parameters
    ----------
    app : ASGI application
        The next application.
    service : Service
        Settings, metrics and the memory budget.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._config = service.config
        self._metrics = service.metrics
        limits = self._config.limits
        self._rate = RateLimit(limits.requests_per_second)
        self._refusals = RateLimit(limits.refusals_per_second)
        self._hosts = {name.casefold() for name in self._config.allowed_hosts}
        own_host = self._config.host.strip("[]").casefold()
        if own_host not in ("0.0.0.0", "::"):
            self._hosts.add(own_host)
        self._bodies = MemoryBudget(limits.waiting_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: check it, pass it on, answer errors, count and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(
            scope,
            receive,
            send,
            self._config.limits,
            self._bodies,
            self._service.memory,
        )
        failure = None
        state = scope.setdefault("state", {})
        state["request_id"] = exchange.id
        state["hold_memory"] = exchange.hold_memory
        try:
            self._admit(exchange)
            exchange.refused = False
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            failure = error
            if exchange.status:
                # The response has begun, so the server must close the connection.
                raise
            problem = problem_of(error, self._service.store.without_paths)
            response = problem_response(problem, exchange.id, exchange.path)
            await response(scope, receive, exchange.send)
        finally:
            exchange.release()
            self._record(exchange, failure)

    # -- checks ------------------------------------------------------------------------

    def _admit(self, exchange: _Exchange) -> None:
        """Raise a problem unless the request passes all checks.

        An address with too many refused requests gets 429 instead of the reason. Valid
        requests are not affected, so a stranger who shares the address cannot lock
        anybody out.
        """
        try:
            self._check(exchange)
        except Problem as problem:
            if problem.kind not in _SUSPICIOUS:
                raise
            if self._refusals.allows(address_group(exchange.client)):
                raise
            raise Problem(
                429,
                "too many requests from this address were refused: wait a moment",
                "TooOften",
            ) from problem

    def _check(self, exchange: _Exchange) -> None:
        """Make all checks, and set the caller for threads that take turns."""
        self._check_head(exchange)
        host = self._check_host(exchange)
        self._check_origin(exchange, host)
        caller = self._check_token(exchange)
        CALLER.set(caller)
        if not self._rate.allows(caller):
            raise Problem(
                429,
                "too many requests per second: wait a moment",
                "TooOften",
            )
        self._check_length(exchange)

    def _check_head(self, exchange: _Exchange) -> None:
        """Check the size of the head.

        uvicorn checks only heads that arrive in several pieces.
        """
        scope = exchange.scope
        parts = [
            exchange.method,
            scope.get("raw_path") or exchange.path,
            scope["query_string"],
        ]
        for name, value in exchange.headers.raw:
            parts += [name, value]
        if sum(map(len, parts)) > HEAD_BYTES:
            raise Problem(
                431,
                "the request line and the headers may have at most "
                f"{HEAD_BYTES:,} bytes",
                "LongHead",
            )

    def _check_host(self, exchange: _Exchange) -> str:
        """Return the Host header with its port, if its name is allowed.

        Other names are refused, because a foreign page can point its own name to this
        machine (DNS rebinding).
        """
        hosts = exchange.headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        lan = self._service.lan
        is_lan = lan is not None and name == lan.host
        if not name or not (is_loopback(name) or name in self._hosts or is_lan):
            raise Problem(
                421,
                f"the host name {name[:80]!r} is not allowed: start the service with "
                "--allow-host NAME",
                "WrongHost",
            )
        return hosts[0]

    def _check_origin(self, exchange: _Exchange, host: str) -> None:
        """Refuse requests from pages of other sites, except links to the page."""
        origin = exchange.headers.get("origin")
        if origin is not None:
            if urlsplit(origin).netloc.casefold() != host.casefold():
                raise Problem(
                    403,
                    f"requests from pages of {origin[:80]!r} are not allowed",
                    "CrossOrigin",
                )
            return
        site = exchange.headers.get("sec-fetch-site", "none")
        followed_link = (
            exchange.method == "GET"
            and not exchange.path.startswith(_GUARDED)
            and exchange.headers.get("sec-fetch-mode") == "navigate"
        )
        if site not in ("none", "same-origin") and not followed_link:
            raise Problem(
                403, "requests from pages of other sites are not allowed", "CrossOrigin"
            )

    def _check_token(self, exchange: _Exchange) -> str:
        """Return the name of the caller. Check the token if one is required.

        The caller is the name of the token, or the address of the client without one.
        """
        lan = self._service.lan
        from_lan = lan is not None and exchange.scope["scheme"] == "https"
        required = from_lan or self._config.tokens.entries
        if not required or not exchange.path.startswith(_GUARDED):
            return exchange.client
        authorization = exchange.headers.get("authorization", "")
        token = self._config.tokens.find(authorization)
        if token is None and lan is not None:
            token = lan.tokens.find(authorization)
        if token is None:
            detail = "a valid token is required: send 'Authorization: Bearer TOKEN'"
            if from_lan:
                detail = (
                    "a valid token is required, and codes expire: "
                    "scan the code on the computer again"
                )
            raise Problem(401, detail, "BadToken")
        _check_role(token, exchange)
        exchange.scope["state"]["token"] = token.name
        if token.role == "page":
            # Phones share a token, and each has its own rate limit.
            return f"{token.name} {exchange.client}"
        return token.name

    def _check_length(self, exchange: _Exchange) -> None:
        """Check the headers that describe the body."""
        headers = exchange.headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(
                415,
                "compressed bodies are not supported: leave out Content-Encoding",
                "Encoded",
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy and the service could disagree where the request ends.
            raise Problem(
                400, "send Content-Length or Transfer-Encoding, not both", "BadLength"
            )
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise Problem(400, "Content-Length must be a number", "BadLength")
        exchange.check_size(int(length[:20]))

    # -- metrics and log ---------------------------------------------------------------

    def _record(self, exchange: _Exchange, failure: Exception | None) -> None:
        """Count and log a request.

        Labels of metrics come from fixed sets and never from callers.
        """
        seconds = time.perf_counter() - exchange.started
        route = getattr(exchange.scope.get("route"), "path", "") or "other"
        method = exchange.method if exchange.method in _METHODS else "other"
        self._metrics.requests.labels(method, route, str(exchange.status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        fields: dict[str, Any] = {}
        if "token" in exchange.scope["state"]:
            fields["token"] = exchange.scope["state"]["token"]
        is_bug = False
        if failure is not None:
            problem = problem_of(failure)
            is_bug = problem.status_code == 500
            if exchange.refused:
                fields["refused"] = problem.kind
        log(
            "request",
            level=logging.ERROR if is_bug else logging.INFO,
            error=failure if is_bug else None,
            method=method,
            path=exchange.path[:_MAX_LOGGED_PATH],
            status=exchange.status,
            seconds=round(seconds, 4),
            request_id=exchange.id,
            client=exchange.client,
            **fields,
        )


def _check_role(token: Token, exchange: _Exchange) -> None:
    """Raise a 403 problem unless the role of a token allows the request."""
    if token.role == "page" and not _phone_may(exchange.method, exchange.path):
        raise Problem(
            403,
            "a phone may not do this: use the computer that runs the service",
            "PageToken",
        )
    if token.role == "read" and not _reads_only(exchange.method, exchange.path):
        raise Problem(
            403,
            "this token has the role read: use a token with the role teach",
            "ReadToken",
        )
