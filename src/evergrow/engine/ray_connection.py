"""A connection to Ray: to the cluster at an address, or to a Ray of this machine that is started for the purpose.

Ray itself answers a wrong address after up to two minutes, with a page of log lines, and may end the process. So an
address is first tried from another process, within a bounded time, and what went wrong is one line.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evergrow.core.errors import EngineError, ParameterError
from evergrow.core.optional import require
from evergrow.core.wording import setting

_SECONDS_TO_ANSWER = 5.0
"""How long a port may take to be opened."""
_SECONDS_TO_GREET = 40.0
"""How long a Ray whose port is open may take to accept a driver; a busy machine takes seconds to import Ray."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told that evergrow ran
    "RAY_SCHEDULER_EVENTS": "0",
}
_PROBE = """
import logging, sys
import ray
ray.init(address=sys.argv[1], **({} if "://" in sys.argv[1] else
         {"log_to_driver": False, "logging_level": logging.CRITICAL}))
ray.shutdown()
"""
_OBJECT_STORE = 80 * 1024 * 1024  # the least that Ray takes: results are files, and only small messages go through it


class RayConnection:
    """Ray as this process sees it; one that was started or joined here is left by :meth:`close`, any other stays.

    Parameters
    ----------
    address : str or None
        ``"host:port"`` of a cluster's head, ``"ray://host:port"`` of its client server, ``"auto"`` for the cluster
        that this machine belongs to (or ``RAY_ADDRESS`` names). None or ``"local"`` takes the Ray that this process is
        connected to, and starts one on this machine where there is none.
    cpus : int
        Cores that a Ray started here should offer at least.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    ParameterError
        For an address that is none.
    EngineError
        If nobody answers there, or not a Ray that this process can talk to.
    """

    def __init__(self, address: str | None = None, *, cpus: int = 1) -> None:
        address = None if address == "local" else address
        with _quietly():
            self.ray: Any = require("ray", extra="ray", purpose="work on a cluster")
            self.address = address
            self.owned = not self.ray.is_initialized()
            if self.owned:
                self._join(address, cpus)
            elif address not in (None, "auto"):
                self._check_same(address)

    def __str__(self) -> str:
        return f"the Ray at {self.address}" if self.address else "the Ray of this machine"

    def nodes(self) -> list[dict[str, Any]]:
        """Return what Ray says about the machines that are there now."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Leave Ray, and end it where it was started here."""
        if self.owned:
            self.owned = False
            with _quietly():
                self.ray.shutdown()

    def _join(self, address: str | None, cpus: int) -> None:
        if address is not None:
            _try_address(address)
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if address is None:
            settings |= {
                "num_cpus": max(cpus, os.cpu_count() or 1),
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE,
            }
        elif address.startswith("ray://"):
            settings = {}  # a client has no settings of its own
        try:
            self.ray.init(address="local" if address is None else address, **settings)
        except (SystemExit, Exception) as error:  # Ray ends the process for some reasons that are none of ours
            raise EngineError(f"Ray cannot be started or joined: {_one_line(str(error))}") from error
        # The death of a worker is a paragraph on standard error, which no setting of Ray turns off.
        internals: Any = importlib.import_module("ray._private.worker")
        if hasattr(internals, "_worker_logs_enabled"):
            internals._worker_logs_enabled = False

    def _check_same(self, address: str) -> None:
        """Raise if this process is connected to a cluster that is not the one asked for."""
        here = str(self.ray.get_runtime_context().gcs_address)
        _, port = _host_and_port(address)
        if address.startswith("ray://") or here.rpartition(":")[2] == str(port):
            return  # the port is what can be compared: a host has many names
        raise EngineError(f"{setting('address')} must be {here}, which this process is connected to, got {address!r}")


def _try_address(address: str) -> None:
    """Raise unless a Ray answers at an address that this process can talk to."""
    named = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    nobody = f"{setting('address')} must be that of a running Ray, but nobody answers at {named}"
    if named != "auto":
        host, port = _host_and_port(named)
        try:
            socket.create_connection((host, port), _SECONDS_TO_ANSWER).close()
        except OSError as error:
            raise EngineError(f"{nobody}: {error.strerror or error}") from error
    command = [sys.executable, "-c", _PROBE, address]
    try:
        tried = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS_TO_GREET,
            env={**os.environ, **_QUIET},
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{nobody}: something is there, but no Ray within {_SECONDS_TO_GREET:.0f} s") from error
    if tried.returncode:
        raise EngineError(f"{nobody}: {_reason(tried.stderr)}")


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the two halves of an address.

    Examples
    --------
    >>> from evergrow.engine.ray_connection import _host_and_port
    >>> _host_and_port("ray://head.example:10001")
    ('head.example', 10001)
    >>> _host_and_port("head.example")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: address must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', got ...
    """
    host, _, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ParameterError(
            f"{setting('address')} must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', got {address!r}"
        )
    return host.strip("[]"), int(port)


def _reason(stderr: str) -> str:
    """Return what Python said last: the error from its name on, without the lines of log around it."""
    lines = stderr.splitlines()
    starts = [n for n, line in enumerate(lines) if line[:1].isalpha() and "Error" in line.partition(":")[0]]
    if not starts:
        return "it is no Ray, or one of another version"
    said = " ".join(line for line in lines[starts[-1] :] if not line.startswith("["))
    return _one_line(said.partition(":")[2] or said)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep Ray from writing to standard error and from reporting its use, and put everything back."""
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update({name: value for name, value in _QUIET.items() if before[name] is None})
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
