"""Long run of the service under mixed load, with hostile clients and kills.

Two processes serve one folder. Both receive predictions and changes at the same time;
the second one is killed from time to time and started again. Every change is sent with
one key until it is acknowledged, and after each round the model must have learned each
exactly once. Run it for half an hour with ``python -m tests.serve.soak 1800``.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tests.serve.running import Running, begin
from tests.serve.samples import rows

INTENDED = (503, 507)
"""Allowed server errors: too many requests, and a full disk."""

LESSONS = 60
KILL_SECONDS = 15.0
SETTLE_SECONDS = 120.0
"""Changes per round, time between kills, time until the memory baseline is taken."""

POST = b"POST /api/v1/models/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"


@dataclass
class Figures:
    """Measurements and faults of a run."""

    statuses: Counter[str] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    slow: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    attacks: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    kills: int = 0
    rounds: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the figures for people."""
        latencies = {}
        for kind, found in sorted(self.waits.items()):
            ordered = np.sort(found)
            marks = {
                f"p{p:g}": round(float(np.percentile(ordered, p)), 3)
                for p in (50, 99, 99.9)
            }
            latencies[kind] = {
                "n": len(ordered),
                **marks,
                "worst": round(float(ordered[-1]), 3),
            }
        return {
            "statuses": dict(sorted(self.statuses.items())),
            "seconds": latencies,
            "above 2 s, without the wait for a core": dict(self.slow),
            "faults": self.faults[:10],
            "attacks": dict(self.attacks),
            "kills": self.kills,
            "rounds": self.rounds,
            "memory MiB, from the start to the end": [
                self.memory[i]
                for i in np.linspace(0, len(self.memory) - 1, 12).astype(int)
            ],
        }


class Soak:
    """Everything that runs at once.

    Parameters
    ----------
    folder : Path
        Of the models.
    seconds : float
        How long.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.end = float("inf")
        self.figures = Figures()
        self._guard = threading.Lock()
        self._clients = threading.local()
        self.first = Running(folder)
        self.second = Running(folder)
        self.model = ""

    def over(self) -> bool:
        """Return whether time is up."""
        return time.monotonic() > self.end

    # -- honest callers ----------------------------------------------------------------

    def call(
        self, kind: str, second: bool, method: str, path: str, **sent: Any
    ) -> httpx.Response | None:
        """Send a request and record it. Return None if the service was killed."""
        running = self.second if second else self.first
        clients = self._clients.__dict__  # of this thread
        if running.address not in clients:
            clients[running.address] = running.client()
        started = time.monotonic()
        queued = waited_for_a_core(running)
        try:
            answer = clients[running.address].request(method, path, **sent)
        except httpx.HTTPError as error:
            if not second:
                self.fault(
                    f"{kind}: {type(error).__name__} from the service that runs on"
                )
            return None
        took = time.monotonic() - started
        with self._guard:
            figures = self.figures
            figures.statuses[f"{kind} {answer.status_code}"] += 1
            figures.waits[kind].append(took)
            if took - (waited_for_a_core(running) - queued) > 2:
                figures.slow[f"{kind}, killed one: {second}"] += 1
        if answer.status_code >= 500 and answer.status_code not in INTENDED:
            self.fault(f"{kind}: {answer.status_code} {answer.text[:200]}")
        return answer

    def fault(self, words: str) -> None:
        """Record a fault."""
        with self._guard:
            self.figures.faults.append(words)

    def ask(self, number: int) -> None:
        """Ask one of the services questions of all kinds."""
        second = bool(number % 2)
        for turn in count():
            if self.over():
                return
            path = f"/api/v1/models/{self.model}"
            if turn % 10 == 8:
                self.call("describe", second, "GET", path)
            elif turn % 10 == 9:
                self.call("list", second, "GET", "/api/v1/models")
            elif turn % 50 == 25:
                self.call("download", second, "GET", f"{path}/download")
            elif turn % 50 == 35:
                exam = {
                    "rows": rows(0, 20) + rows(1, 20),
                    "labels": ["0"] * 20 + ["1"] * 20,
                }
                self.call("evaluate", second, "POST", f"{path}/evaluate", json=exam)
            else:
                self.call(
                    "predict",
                    second,
                    "POST",
                    f"{path}/predict",
                    json={"rows": rows(turn % 4, 2)},
                )
            time.sleep(0.05)

    def teach(self) -> None:
        """Send rounds of changes to both services, and compare the learned model."""
        for number in count():
            if self.over():
                return
            name = f"round {number}"
            made = {"name": name, "kind": "features", "options": {"n_units": 100}}
            if self.call("create", False, "POST", "/api/v1/models", json=made) is None:
                return
            for kind in range(2):
                self.lesson(name, -1 - kind, False)
            before = self.model
            self.model = name
            if before:
                self.call("delete", False, "DELETE", f"/api/v1/models/{before}")
            with ThreadPoolExecutor(2) as writers:
                list(
                    writers.map(
                        self.lesson,
                        [name] * LESSONS,
                        range(LESSONS),
                        [False, True] * LESSONS,
                    )
                )
            about = self.call("describe", False, "GET", f"/api/v1/models/{name}")
            if about:
                found = {
                    entry["name"]: entry["samples"] for entry in about.json()["classes"]
                }
            else:
                found = {}
            expected = Counter(str(abs(i) % 4) for i in (-1, -2, *range(LESSONS)))
            if found != {label: 2 * n for label, n in expected.items()}:
                self.fault(f"{name} learned {found}, not twice {dict(expected)}")
            self.figures.rounds += 1

    def lesson(self, name: str, number: int, second: bool) -> None:
        """Teach two samples with one key until that is acknowledged."""
        label = str(abs(number) % 4)
        lesson = {"rows": rows(int(label), 2, seed=number + 10), "label": label}
        for _ in range(600):
            headers = {"Idempotency-Key": f"{name} {number}"}
            answer = self.call(
                "teach",
                second,
                "POST",
                f"/api/v1/models/{name}/teach",
                json=lesson,
                headers=headers,
            )
            if answer is not None and answer.status_code == 200:
                return
            time.sleep(0.1)
        self.fault(f"lesson {number} of {name} was never acknowledged")

    # -- hostile clients ---------------------------------------------------------------

    def attack(self) -> None:
        """Send hostile requests to both services in turn."""
        kinds = self.attacks()
        for number in count():
            if self.over():
                return
            name = list(kinds)[number % len(kinds)]
            running = self.second if number % 2 else self.first
            try:
                with running.connect() as caller:
                    kinds[name](caller)
                    answer = caller.recv(65536)
            except OSError:
                answer = b""
            self.figures.attacks[name] += 1
            status = answer[9:12].decode("latin-1")
            if status.startswith("5") and int(status) not in INTENDED:
                self.fault(f"{name}: {answer[:200]!r}")
            time.sleep(0.5)

    def attacks(self) -> dict[str, Callable[[socket.socket], None]]:
        """Return the hostile requests by name."""
        target = b"m/predict"

        def body(
            data: bytes, kind: bytes = b"application/json", path: bytes = target
        ) -> Callable[[Any], None]:
            head = POST % (path, kind) + b"Content-Length: %d\r\n\r\n" % len(data)
            return lambda caller: caller.sendall(head + data)

        def flood(caller: socket.socket) -> None:
            caller.sendall(
                POST % (target, b"application/json")
                + b"Transfer-Encoding: chunked\r\n\r\n"
            )
            for _ in range(200):
                caller.sendall(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")

        def drip(caller: socket.socket) -> None:
            caller.sendall(
                POST % (target, b"application/json") + b"Content-Length: 1000\r\n\r\n{"
            )
            time.sleep(1)

        fields = (
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 20_000
        )
        return {
            "keys": body(
                b"{" + b",".join(b'"%d":1' % i for i in range(150_000)) + b"}"
            ),
            "short rows": body(b'{"rows":[' + b"[1,2]," * 330_000 + b"[1]]}"),
            "nesting": body(b'{"rows":' + b"[" * 90_000 + b"]" * 90_000 + b"}"),
            "60 MB": body(b'{"rows":[' + b"[1,2]," * 10_000_000 + b"[1]]}"),
            "fields": body(fields + b"--x--\r\n", b"multipart/form-data; boundary=x"),
            "no model": body(
                b"x" * 5_000_000, b"application/octet-stream", b"upload?name=x"
            ),
            "no zip": body(b"PK\3\4" + b"x" * 1_000_000, b"application/zip", b"m/jobs"),
            "noise": lambda caller: caller.sendall(
                np.random.default_rng(0).bytes(5000)
            ),
            "method": lambda caller: caller.sendall(
                b"X" * 15_000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            ),
            "head": lambda caller: caller.sendall(
                b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000
            ),
            "without end": flood,
            "slow": drip,
        }

    def crowd(self) -> None:
        """Hold silent connections, more than one address may have."""
        while not self.over():
            callers: list[socket.socket] = []
            with suppress(OSError):
                for _ in range(100):
                    # Connections before an error count.
                    callers.append(self.second.connect())  # noqa: PERF401
            self.figures.attacks["idle connections"] += len(callers)
            time.sleep(5)
            for caller in callers:
                caller.close()
            time.sleep(10)

    # -- kills and measurements --------------------------------------------------------

    def kill(self) -> None:
        """Kill the second service now and then, and start another."""
        while not self.over():
            time.sleep(min(KILL_SECONDS, max(0.0, self.end - time.monotonic())))
            self.second.kill()
            self.figures.kills += 1
            self.second = Running(self.folder)

    def watch(self) -> None:
        """Take note of the memory of the first service."""
        time.sleep(min(SETTLE_SECONDS, self.seconds / 3))
        while not self.over():
            self.figures.memory.append(round(self.first.memory() / 2**20, 1))
            time.sleep(2)

    def run(self) -> Figures:
        """Run everything and return the measurements."""
        calm = [self.teach, self.attack, self.crowd, self.kill, self.watch]
        try:
            with self.first.client() as client:
                begin(client)  # the model that hostile clients ask
            with ThreadPoolExecutor(len(calm) + 4) as threads:
                teaching = threads.submit(self.teach)
                while not self.model and not teaching.done():
                    time.sleep(0.05)
                self.end = time.monotonic() + self.seconds
                others = [threads.submit(work) for work in calm[1:]] + [
                    threads.submit(self.ask, i) for i in range(4)
                ]
                for work in (teaching, *others):
                    work.result()
        finally:
            self.first.kill()
            self.second.kill()
        return self.figures


def waited_for_a_core(running: Running) -> float:
    """Return how long the event loop was ready to run without a core, 0 if unknown."""
    with suppress(OSError, ValueError):
        return (
            int(Path(f"/proc/{running.process.pid}/schedstat").read_text().split()[1])
            / 1e9
        )
    return 0.0


def main() -> None:
    """Run for the number of seconds in the first argument and print measurements."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Soak(Path(folder) / "models", float(sys.argv[1])).run()
    print(json.dumps(figures.summary(), indent=1, default=float))  # noqa: T201


if __name__ == "__main__":
    main()
