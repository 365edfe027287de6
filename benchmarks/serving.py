"""Questions over HTTP against the learner called in a loop in this process, in turns, on the same images."""

from __future__ import annotations

import http.client
import io
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row

ONE_CLIENT, MANY_CLIENTS = 0.8, 1.0


def against_the_loop(quick: bool) -> Iterator[Row]:
    """Time ``predict`` of the service with one client of 8 images a request, and with 16 clients of one image each."""
    from evergrow.learner.learner import Learner

    rounds, requests = (2, 4) if quick else (5, 12)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _images(folder)
        learner = _model(folder)
        command = [
            sys.executable,
            "-m",
            "evergrow",
            "serve",
            str(folder / "models"),
            "--port",
            "0",
            "--log-level",
            "error",
        ]
        server = subprocess.Popen([*command, "--rate", "1000000"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://[^/]+", server.stdout.readline())
            assert found is not None
            address = found.group()
            assert isinstance(learner, Learner)
            paths = [str(path) for path in images]
            files = [path.read_bytes() for path in images]
            yield _compared(
                "predict over HTTP, one client, 8 images a request, against the learner in a loop",
                lambda: _loop(learner, paths, 8, requests),
                lambda: _clients(address, files, 8, requests, 1),
                rounds,
                ONE_CLIENT,
            )
            yield _compared(
                "predict over HTTP, 16 clients, one image a request, against the learner in a loop",
                lambda: _loop(learner, paths, 1, requests * 4),
                lambda: _clients(address, files, 1, requests, 16),
                rounds,
                MANY_CLIENTS,
            )
        finally:
            server.terminate()
            server.wait(60)


def _compared(
    work: str,
    loop: Callable[[], tuple[float, list[float]]],
    served: Callable[[], tuple[float, list[float]]],
    rounds: int,
    bar: float,
) -> Row:
    loop(), served()  # backbones are loaded
    pairs, waits = [], []
    for _ in range(rounds):  # in turns, so that both meet the same machine
        inside, _ = loop()
        outside, times = served()
        pairs.append((inside, outside))
        waits += times
    ratio = statistics.median(outside / inside for inside, outside in pairs)
    inside, outside = (statistics.median(column) for column in zip(*pairs, strict=True))
    p50, p99 = (float(np.percentile(waits, share)) for share in (50, 99))
    return Row(
        work=work,
        figure=f"{ratio:.2f}: {outside:.1f} against {inside:.1f} images/s; "
        f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms",
        bar=f"{bar:g}",
        reached=ratio >= bar,
        values={"ratio": ratio, "served": outside, "loop": inside, "p50": p50, "p99": p99, "rounds": rounds},
    )


def _loop(learner: Any, paths: Sequence[str], size: int, requests: int) -> tuple[float, list[float]]:
    """Return images a second of the learner, and the seconds of each call."""
    times = []
    started = time.perf_counter()
    for number in range(requests):
        begun = time.perf_counter()
        learner.ask([paths[(number * size + i) % len(paths)] for i in range(size)], false_alarm=0.05)
        times.append(time.perf_counter() - begun)
    return requests * size / (time.perf_counter() - started), times


def _clients(address: str, files: Sequence[bytes], size: int, requests: int, clients: int) -> tuple[float, list[float]]:
    """Return images a second of the service, and the seconds of each request.

    Callers have one connection each and their forms ready: they share the cores with the service, and a library that
    makes a form and a connection for every call would take a fifth of them.
    """
    times: list[float] = []

    def ask(who: int) -> None:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
        for number in range(requests):
            first = (who * 7 + number * size) % len(files)
            body = _form([files[(first + i) % len(files)] for i in range(size)])
            begun = time.perf_counter()
            connection.request("POST", "/api/v1/models/photos/predict", body, _FORM)
            answer = connection.getresponse()
            told = answer.read()
            times.append(time.perf_counter() - begun)
            assert answer.status == 200, told
        connection.close()

    callers = [threading.Thread(target=ask, args=(who,)) for who in range(clients)]
    started = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(times) == clients * requests, "a caller got no answer"
    return clients * requests * size / (time.perf_counter() - started), times


_FORM = {"Content-Type": "multipart/form-data; boundary=images"}


def _form(images: Sequence[bytes]) -> bytes:
    """Return images as a form."""
    head = b'--images\r\nContent-Disposition: form-data; name="images"; filename="i.jpg"\r\n\r\n'
    return b"".join(head + image + b"\r\n" for image in images) + b"--images--\r\n"


def _images(folder: Path) -> list[Path]:
    """Write photographs' worth of noise: 32 images of 320 x 240 as JPEG."""
    from PIL import Image

    rng = np.random.default_rng(0)
    made = []
    for number in range(32):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        path = folder / "images" / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        path.write_bytes(buffer.getvalue())
        made.append(path)
    return made


def _model(folder: Path) -> Any:
    """Return a learner with the bundled backbone and write it where the service finds it."""
    from evergrow.learner.learner import Learner
    from evergrow.learner.modelfile import commit

    learner = Learner("auto", cache=False, extract={"progress": False, "workers": 0}).fit(str(folder / "images"))
    (folder / "models").mkdir()
    commit(folder / "models" / "photos.evg", learner)
    return learner
