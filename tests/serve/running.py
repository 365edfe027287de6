"""A service in a process of its own, which can be killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests.serve.samples import rows


class Running:
    """``evergrow serve`` on a folder; to be used in a ``with`` statement."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        self._log = folder.parent / f"{folder.name}.log"
        command = [sys.executable, "-m", "evergrow", "serve", str(folder), "--port", str(port), *options]
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[^/]+", line)
        assert found, f"{line}{self._log.read_text()[-2000:]}"
        self.address = found.group()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60, trust_env=False, **settings)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> tuple[int, str]:
        """End it as a service manager does; return its exit code and what it printed last."""
        self.process.terminate()
        code = self.process.wait(60)
        assert self.process.stdout is not None
        return code, self.process.stdout.read()

    def memory(self) -> int:
        """Return the memory that the process holds, in bytes."""
        if not Path("/proc/self/statm").exists():
            pytest.skip("needs Linux: /proc")
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def begin(client: httpx.Client, n: int = 4) -> None:
    """Make the model ``m`` of features, which knows the classes 0 and 1."""
    made = {"name": "m", "kind": "features", "options": {"n_units": 20}}
    assert client.post("/api/v1/models", json=made).status_code == 201
    for kind in range(2):
        lesson = {"rows": rows(kind, n), "label": str(kind)}
        assert client.post("/api/v1/models/m/teach", json=lesson).status_code == 200


def until(condition: Any, seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def in_thread(app: Any) -> Iterator[int]:
    """Yield the port of a real server in this process, with the limits that the service has by default."""
    from evergrow.serve.app import bounded_protocol
    from evergrow.serve.config import Limits

    protocol = bounded_protocol(Limits())
    settings = uvicorn.Config(app, port=0, http=protocol, limit_concurrency=Limits().connections, log_config=None)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


class Forked:
    """The service in a process forked from one that has imported everything: up at once, and killed for good."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["evergrow.serve.app", "evergrow.head", "sklearn.utils", "scipy.stats"])
        ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(str(folder), theirs))
        self.process.start()
        assert ours.poll(120)
        self.address = ours.recv().rstrip("/")

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def stop(self) -> int | None:
        """End it as a service manager does and return its exit code."""
        self.process.terminate()
        self.process.join(60)
        return self.process.exitcode


def _serve(folder: str, told: Any) -> None:
    import torch

    from evergrow.serve import Limits, ServeConfig, run_server

    torch.set_num_threads(1)
    limits = Limits(requests_per_second=100_000)
    run_server(ServeConfig(Path(folder), port=0, device="cpu", limits=limits), told.send, log_level="error")
