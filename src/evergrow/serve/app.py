"""The application (routes, page and reference, behind the middleware), and how uvicorn runs it."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergrow.core.errors import EvergrowError, ParameterError
from evergrow.core.version import __version__
from evergrow.head import HEADS
from evergrow.serve import image_store, jobs, label_studio, lan, routes
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.middleware import HEAD_BYTES, ServiceMiddleware
from evergrow.serve.monitoring import collect_warnings, log, set_up_logs
from evergrow.serve.requests import PROBLEMS, Problem, handle_error
from evergrow.serve.schemas import LanRecord, ProblemDocument
from evergrow.serve.service import Service, ServiceDep

PAGE = Path(__file__).parent / "page"
REFERENCE = Path(__file__).parent / "reference"

ABOUT = (
    "Models that keep learning: ask them, teach them, take samples out again exactly. Errors are problem documents "
    "(RFC 9457). Nothing that is sent is kept, and nothing leaves this machine."
)
_LINGER = 2.0  # seconds that a caller who was refused may go on sending


def create_app(config: ServeConfig) -> FastAPI:
    """Return the service as an ASGI application.

    Parameters
    ----------
    config : ServeConfig
        All settings.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fastapi.testclient import TestClient
    >>> from evergrow.serve import ServeConfig, create_app
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with TestClient(create_app(ServeConfig(Path(folder))), base_url="http://localhost") as client:
    ...         made = client.post("/api/v1/models", json={"name": "birds", "kind": "features"})
    ...         made.status_code, client.get("/api/v1/models").json()["models"][0]["state"]
    (201, 'starting')
    """
    service = Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.set_up_threads()
        with collect_warnings():
            yield
            await app.state.jobs.close()
            await service.shut_down()

    app = FastAPI(
        title="evergrow",
        version=__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service, app.state.jobs = service, jobs.Jobs(service)
    for router in (
        *routes.ROUTERS,
        image_store.router,
        label_studio.router,
        jobs.router,
        router_of_service,
    ):
        app.router.routes.extend(router.routes)
    app.mount("/docs", StaticFiles(directory=REFERENCE, html=True), name="reference")
    app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    for kind in (HTTPException, RequestValidationError, EvergrowError):
        app.add_exception_handler(kind, handle_error)
    app.add_middleware(ServiceMiddleware, service=service)
    described = app.openapi()  # routes refer to problems by name
    schemas = described["components"]["schemas"]
    schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
    schemas["NewModel"]["properties"]["method"]["enum"] = HEADS.names()
    return app


router_of_service = APIRouter(tags=["service"], responses=PROBLEMS)


@router_of_service.get("/health")
async def health() -> dict[str, str]:
    """Return 200 as long as requests are taken; no token is asked for."""
    return {"status": "ok"}


@router_of_service.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
async def metrics(service: ServiceDep) -> Response:
    """Return counters and latencies in the text format of Prometheus."""
    return Response(
        generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


@router_of_service.get("/api/v1/lan")
async def show_lan(service: ServiceDep, response: Response) -> LanRecord:
    """Return the address for a phone, with a token that lives an hour, and its QR code."""
    response.headers["Cache-Control"] = "no-store"
    if service.lan is None:
        raise Problem(
            404, "the service was started without --lan: no phone gets in", "NoLan"
        )
    return service.lan.record()


# -- running ---------------------------------------------------------------------------


def run_server(
    config: ServeConfig,
    announce: Callable[[str, str], None],
    *,
    log_level: str = "info",
) -> None:
    """Serve until the process is told to end.

    Parameters
    ----------
    config : ServeConfig
        All settings.
    announce : callable
        Called with the address once it takes connections, and with the QR code for
        phones or an empty text.
    log_level : str
        Least level of what is logged.

    Raises
    ------
    ParameterError
        If the address cannot be bound.
    """
    listener = _bound(config.host, config.port)
    secured = []
    code = ""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    set_up_logs(log_level)
    app = create_app(config)
    log(
        "starting",
        address=address,
        read_only=config.read_only,
        tokens=len(config.tokens.entries),
    )
    if config.lan:
        own = lan.lan_host()
        secured.append((_bound(own, port), lan.tls_context(own)))
        app.state.service.lan = access = lan.LanAccess(own, port)
        code = access.printed()
    threading.Thread(
        target=app.state.service.warm_up, name="warm-up", daemon=True
    ).start()
    announce(
        address, code
    )  # who connects from now on waits until the server takes connections
    with listener:
        Server(app, secured).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ParameterError(
                f"Port {port} is in use. Try --port {port + 1}."
            ) from error
        raise ParameterError(
            f"{host}:{port} cannot be bound: {error.strerror or error}"
        ) from error


class Server(uvicorn.Server):
    """Uvicorn within the limits of the service.

    Parameters
    ----------
    app : FastAPI
        The application of :func:`create_app`.
    secured : iterable of (socket, SSLContext)
        Further addresses, with TLS.
    """

    def __init__(
        self, app: FastAPI, secured: Iterable[tuple[socket.socket, ssl.SSLContext]] = ()
    ) -> None:
        self._secured = secured
        self._limits = limits = app.state.service.limits
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",  # others accept connections without asking the listener
                http=bounded_protocol(limits),
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.connections,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=60,
                h11_max_incomplete_event_size=HEAD_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections, from the addresses with TLS too."""
        await super().startup(sockets)
        own = {
            "config": self.config,
            "server_state": self.server_state,
            "app_state": self.lifespan.state,
        }
        protocol: Any = partial(self.config.http_protocol_class, **own)
        settings: dict[str, Any] = {
            "ssl_handshake_timeout": self._limits.header_seconds
        }
        if sys.version_info >= (3, 11):
            settings["ssl_shutdown_timeout"] = (
                _LINGER  # a phone that is asleep says no farewell
            )
        for listener, context in self._secured:
            create = asyncio.get_running_loop().create_server
            bounded = _SecuredListener(listener, self._limits.connections_per_address)
            self.servers.append(
                await create(protocol, sock=bounded, ssl=context, **settings)
            )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        # Not kept by uvicorn to be raised again: to end as asked is a success.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


class _SecuredListener(socket.socket):
    """A listening socket that bounds the connections of an address before TLS begins: protocols see them only after."""

    def __init__(self, listener: socket.socket, most: int) -> None:
        super().__init__(fileno=listener.detach())
        self._most = most
        self._open = list[tuple[socket.socket, str]]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection, or close it and raise if its address has too many."""
        connection, address = super().accept()
        self._open = [entry for entry in self._open if entry[0].fileno() >= 0]
        if sum(host == address[0] for _, host in self._open) >= self._most:
            connection.close()
            raise ConnectionAbortedError
        self._open.append((connection, address[0]))
        return connection, address


class _Lingering:
    """A transport that, closed in the midst of a request, still takes in the rest of it for a moment.

    A system that closes a connection with data that nobody read resets it, and the
    answer is lost on the way.
    """

    def __init__(
        self, transport: asyncio.Transport, protocol: H11Protocol, most: int
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._left = most
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more is sent."""
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close at once, or soon after the last word if the caller is still sending."""
        if self.is_closing() or self._protocol.conn.their_state not in (
            h11.SEND_BODY,
            h11.ERROR,
        ):
            self._transport.close()
            return
        self._lingers = True
        with suppress(
            OSError, NotImplementedError
        ):  # the caller left, or TLS, which cannot
            self._transport.write_eof()
        self._transport.resume_reading()
        self._protocol.loop.call_later(_LINGER, self._transport.close)

    def discard(self, n: int) -> None:
        """Take note of bytes that nobody reads; too many of them end it."""
        self._left -= n
        if self._left < 0:
            self._transport.abort()


def bounded_protocol(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's protocol with limits on the connections of an address, and on the time for a request's head."""

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self._lingering = _Lingering(transport, self, limits.body_bytes)
            super().connection_made(self._lingering)  # type: ignore[arg-type]
            address = (self.client or ("",))[0]
            others = [
                other.client
                for other in self.connections
                if isinstance(other, Protocol)
            ]
            if (
                sum(client is not None and client[0] == address for client in others)
                > limits.connections_per_address
            ):
                transport.close()
            self._await_head()

        def data_received(self, data: bytes) -> None:
            if self._lingering.is_closing():
                self._lingering.discard(len(data))
                return
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._await_head()
            else:
                self._head_came()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_came()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(
                    limits.header_seconds, self.transport.close
                )

        def _head_came(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Protocol
