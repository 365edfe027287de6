"""A service in a separate process that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.serve.samples import rows

from evergrow.serve import Limits, ServeConfig, run_server
from evergrow.serve.server import Server


class Running:
    """The service in a process forked from one that has imported everything.

    It starts quickly, and tests can kill it.

    Parameters
    ----------
    folder : Path
        Folder of the models.
    **settings
        Further settings of the service.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["evergrow.serve.server", "evergrow.head", "sklearn.utils", "scipy.stats"]
        )
        ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(folder, settings, theirs))
        self.process.start()
        assert ours.poll(120)
        self.address = ours.recv().rstrip("/")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(
            base_url=self.address, timeout=60, trust_env=False, **settings
        )

    def connect(self) -> socket.socket:
        """Return a connection without a request."""
        host, port = self.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def stop(self) -> int | None:
        """Terminate the service with SIGTERM and return its exit code."""
        self.process.terminate()
        self.process.join(60)
        return self.process.exitcode

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""
        if not Path("/proc/self/statm").exists():
            pytest.skip("needs Linux: /proc")
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _serve(folder: Path, settings: dict[str, Any], told: Any) -> None:
    torch.set_num_threads(1)
    settings.setdefault("limits", Limits(requests_per_second=100_000))
    settings.setdefault("port", 0)
    config = ServeConfig(folder, device="cpu", **settings)
    run_server(config, lambda address, _: told.send(address), log_level="error")


def begin(client: httpx.Client, n: int = 4) -> None:
    """Create the model ``m`` of features with the classes 0 and 1."""
    made = {"name": "m", "kind": "features", "options": {"n_units": 20}}
    assert client.post("/api/v1/models", json=made).status_code == 201
    for kind in range(2):
        lesson = {"rows": rows(kind, n), "label": str(kind)}
        assert client.post("/api/v1/models/m/teach", json=lesson).status_code == 200


def until(condition: Any, seconds: float = 30) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def in_thread(app: Any) -> Iterator[int]:
    """Yield the port of a real server in this process."""
    server = Server(app)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        until(lambda: server.started)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(30)
