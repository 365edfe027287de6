"""Runs the application with uvicorn: slow callers are cut off, and a change in flight is finished before the end."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergrow.core.errors import ParameterError
from evergrow.serve.app import create_app
from evergrow.serve.config import ServeConfig
from evergrow.serve.monitoring import log, set_up_logs


def run_server(config: ServeConfig, announce: Callable[[str], None], *, log_level: str = "info") -> None:
    """Serve until the process is told to end.

    Parameters
    ----------
    config : ServeConfig
        All settings.
    announce : callable
        Called with the address once requests are taken.
    log_level : str
        Least level of what is logged.

    Raises
    ------
    ParameterError
        If the address cannot be bound.
    """
    listener = _bound(config)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    set_up_logs(log_level)
    app = create_app(config)
    settings = uvicorn.Config(
        app,
        http=_protocol(config.limits.header_seconds),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=config.limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=60,
        h11_max_incomplete_event_size=65_536,
    )

    def ready() -> None:
        threading.Thread(target=app.state.service.warm_up, name="warm-up", daemon=True).start()
        announce(address)

    server = _Server(settings, ready, app.state.service.closing.set)
    log("starting", address=address, read_only=config.read_only, tokens=len(config.tokens.entries))
    with listener:
        server.run(sockets=[listener])


def _bound(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ParameterError(f"Port {config.port} is in use. Try --port {config.port + 1}.") from error
        raise ParameterError(f"{config.host}:{config.port} cannot be bound: {error.strerror or error}") from error
    return listener


class _Server(uvicorn.Server):
    """Says when it is up, and tells open streams when it is about to end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._end = ready, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end: streams of events close, everything else is answered."""
        self._end()
        # Not kept by uvicorn to be raised again: to end as asked is a success.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def _protocol(seconds: float) -> type[H11Protocol]:
    """Return uvicorn's protocol with an end to the time that the head of a request may take."""

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
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
                self._timer = self.loop.call_later(seconds, self._give_up)

        def _head_came(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.close()

    return Protocol
