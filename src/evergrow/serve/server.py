"""Run the application with uvicorn, with limits on connections."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from evergrow.core.errors import ParameterError
from evergrow.serve import lan
from evergrow.serve.app import create_app
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.middleware import HEAD_BYTES
from evergrow.serve.monitoring import log, set_up_logs

KEEP_ALIVE_SECONDS = 15
"""How long a connection stays open between two requests."""

SHUTDOWN_SECONDS = 60
"""How long running requests may take to finish once the service is stopped."""

LINGER_SECONDS = 2.0
"""How long a refused client may continue to send before the connection is closed."""


def run_server(
    config: ServeConfig,
    announce: Callable[[str, str], None],
    *,
    log_level: str = "info",
) -> None:
    """Run the service, and return once the process receives SIGINT or SIGTERM.

    Binds the port; with ``lan``, also the same port for TLS on the address in the local
    network. Sets up the logs of the process, and loads libraries and backbones in a
    daemon thread.

    Parameters
    ----------
    config : ServeConfig
        All settings.
    announce : callable
        Called as ``announce(address, qr_code)`` once clients may connect. `qr_code` is
        a text for a terminal, empty without ``lan``.
    log_level : str, default="info"
        Minimum level of log messages.

    Raises
    ------
    ParameterError
        If the address cannot be bound, or ``lan`` is set and the machine is on no
        network.
    PathError
        If the folder of the models cannot be used.
    """
    listener = _bind(config.host, config.port)
    host, port = listener.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{url_host}:{port}/"
    set_up_logs(log_level)
    app = create_app(config)
    log(
        "starting",
        address=address,
        read_only=config.read_only,
        tokens=len(config.tokens.entries),
    )
    tls_listeners = []
    qr_code = ""
    if config.lan:
        lan_host = lan.lan_host()
        tls_listeners.append((_bind(lan_host, port), lan.tls_context(lan_host)))
        app.state.service.lan = lan.LanAccess(lan_host, port)
        qr_code = app.state.service.lan.terminal_text()
    warm_up = app.state.service.warm_up
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    # The port is bound, so clients that connect from now on wait for the server.
    announce(address, qr_code)
    with listener:
        Server(app, tls_listeners).run(sockets=[listener])
    # The warm-up froze all objects. Libraries such as triton report frozen objects as
    # leaks at exit, because nothing collects them.
    gc.unfreeze()


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise :class:`ParameterError` if this fails."""
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
    """Uvicorn with the limits of the service.

    Parameters
    ----------
    app : FastAPI
        Application returned by :func:`create_app`.
    tls_listeners : iterable of (socket, SSLContext)
        Further listening sockets, served over TLS. The server takes them over.
    """

    def __init__(
        self,
        app: FastAPI,
        tls_listeners: Iterable[tuple[socket.socket, ssl.SSLContext]] = (),
    ) -> None:
        self._tls_listeners = tls_listeners
        self._limits: Limits = app.state.service.limits
        protocol: Any = partial(BoundedProtocol, limits=self._limits)
        super().__init__(
            uvicorn.Config(
                app,
                # Other loops do not call _TlsListener.accept, so the limit of
                # connections per address would not apply.
                loop="asyncio",
                http=protocol,
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=self._limits.connections,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                h11_max_incomplete_event_size=HEAD_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on all sockets, including those with TLS."""
        await super().startup(sockets)
        protocol_class: Any = self.config.http_protocol_class
        protocol = partial(
            protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        settings: dict[str, Any] = {
            "ssl_handshake_timeout": self._limits.header_seconds
        }
        if sys.version_info >= (3, 11):
            # A sleeping phone never answers the end of TLS.
            settings["ssl_shutdown_timeout"] = LINGER_SECONDS
        loop = asyncio.get_running_loop()
        for listener, context in self._tls_listeners:
            bounded = _TlsListener(listener, self._limits.connections_per_address)
            server = await loop.create_server(
                protocol, sock=bounded, ssl=context, **settings
            )
            self.servers.append(server)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to shut down.

        Unlike uvicorn's method, it does not raise the signal again afterwards, so that
        the process exits with code 0.
        """
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


class _TlsListener(socket.socket):
    """A listening socket that limits connections per address before the TLS handshake.

    :class:`BoundedProtocol` counts connections only after the handshake.

    Parameters
    ----------
    listener : socket
        The listening socket. It is taken over and cannot be used any more.
    max_per_address : int
        Number of open connections per address.
    """

    def __init__(self, listener: socket.socket, max_per_address: int) -> None:
        super().__init__(fileno=listener.detach())
        self._max_per_address = max_per_address
        self._open: list[tuple[socket.socket, str]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address. Called by asyncio.

        If the address has too many, the connection is closed. asyncio ignores the
        ConnectionAbortedError that is raised then.
        """
        connection, address = super().accept()
        self._open = [entry for entry in self._open if entry[0].fileno() >= 0]
        n_open = sum(host == address[0] for _, host in self._open)
        if n_open >= self._max_per_address:
            connection.close()
            raise ConnectionAbortedError
        self._open.append((connection, address[0]))
        return connection, address


class _LingeringTransport:
    """A transport that reads on for a moment if it is closed during a request.

    An operating system resets a connection that is closed with unread data, and the
    client then loses the response.

    Parameters
    ----------
    transport : Transport
        The transport, which gets all other calls.
    protocol : H11Protocol
        The protocol that uses it.
    max_bytes : int
        Bytes that are read after the end at most.
    """

    def __init__(
        self, transport: asyncio.Transport, protocol: H11Protocol, max_bytes: int
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._bytes_left = max_bytes
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the transport."""
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close now, or after a moment if the client is still sending."""
        is_sending = self._protocol.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if self.is_closing() or not is_sending:
            self._transport.close()
            return
        self._lingers = True
        # The client may be gone, and TLS cannot close one direction.
        with suppress(OSError, NotImplementedError):
            self._transport.write_eof()
        self._transport.resume_reading()
        self._protocol.loop.call_later(LINGER_SECONDS, self._transport.close)

    def discard(self, n: int) -> None:
        """Count discarded bytes. Abort the connection after too many."""
        self._bytes_left -= n
        if self._bytes_left < 0:
            self._transport.abort()


class BoundedProtocol(H11Protocol):
    """Uvicorn's HTTP protocol with limits per address and on the time for a head.

    uvicorn's settings limit the size of a head and the number of all connections. They
    do not limit connections per address or the time until the head is complete, and
    uvicorn resets connections of refused clients that are still sending.

    Parameters
    ----------
    limits : Limits
        Limits of the service.
    *args, **kwargs
        Arguments of uvicorn's protocol.
    """

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, unless its address has too many."""
        self._lingering = _LingeringTransport(transport, self, self._limits.body_bytes)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        if self._n_connections_of_client() > self._limits.connections_per_address:
            transport.close()
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Process data, or discard it if the connection is closing."""
        if self._lingering.is_closing():
            self._lingering.discard(len(data))
            return
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up a closed connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def _n_connections_of_client(self) -> int:
        """Return the number of open connections from this address, with this one."""
        address = self.client[0] if self.client else ""
        clients = [
            other.client
            for other in self.connections
            if isinstance(other, BoundedProtocol)
        ]
        return sum(client is not None and client[0] == address for client in clients)

    def _start_timer(self) -> None:
        """Close the connection unless the head of a request arrives in time.

        Does nothing if the timer runs already.
        """
        if self._timer is None:
            self._timer = self.loop.call_later(
                self._limits.header_seconds, self.transport.close
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
