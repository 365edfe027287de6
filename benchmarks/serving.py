"""Questions over HTTP against the learner called in a loop in this process, in turns, on the same images."""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row
from benchmarks.weight import BLOCKS

ONE_CLIENT = 0.8
MANY_CLIENTS = 1.0


def against_the_loop(quick: bool) -> Iterator[Row]:
    """Time ``predict`` of the service with one client of 8 images a request, and with 16 clients of one image each."""
    from evergrow.learner.learner import Learner

    rounds, requests = (2, 4) if quick else (5, 12)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _images(folder)
        learner = _model(folder)
        with _serving(folder / "models") as (address, server):
            assert isinstance(learner, Learner)
            paths = [str(path) for path in images]
            files = [path.read_bytes() for path in images]
            yield _compared(
                "predict over HTTP, one client, 8 images a request, against the learner in a loop",
                lambda: _loop(learner, paths, 8, requests),
                lambda: _clients(address, files, 8, requests, 1),
                rounds,
                ONE_CLIENT,
                server,
            )
            yield _compared(
                "predict over HTTP, 16 clients, one image a request, against the learner in a loop",
                lambda: _loop(learner, paths, 1, requests * 4),
                lambda: _clients(address, files, 1, requests, 16),
                rounds,
                MANY_CLIENTS,
                server,
            )


@contextmanager
def _serving(models: Path) -> Iterator[tuple[str, int]]:
    """Yield the address and the process of a service on a folder of models."""
    command = [
        sys.executable,
        "-m",
        "evergrow",
        "serve",
        str(models),
        "--port",
        "0",
        "--log-level",
        "error",
    ]
    server = subprocess.Popen(
        [*command, "--rate", "1000000"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://[^/]+", server.stdout.readline())
        assert found is not None
        yield found.group(), server.pid
    finally:
        server.terminate()
        server.wait(60)


def memory(quick: bool) -> Iterator[Row]:
    """Memory that the service takes for each open model, asked, taught and asked again, against the model's file."""
    yield _held("several depths", 20, 30, BLOCKS, 3 if quick else 9)
    yield _held("dense statistics", 150, 20, (384,), 3 if quick else 6)


def _held(
    kind: str, classes: int, samples: int, blocks: Sequence[int], copies: int
) -> Row:
    from evergrow import Learner

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), samples)
    X = rng.normal(size=(classes, sum(blocks)))[y] + rng.normal(
        size=(len(y), sum(blocks))
    )
    question = {"rows": X[:5].tolist()}
    works = (
        ("predict", question),
        ("teach", {**question, "label": "0"}),
        ("predict", question),
    )
    with tempfile.TemporaryDirectory() as name:
        first = Path(name, "first.evg")
        models = Path(name, "models")
        models.mkdir()
        Learner(None, options={"n_units": 3000, "blocks": blocks}, random_state=0).fit(
            (X, y.astype(str))
        ).save(first)
        with _serving(models) as (address, server):
            held = []
            for copy in range(copies):
                shutil.copy(first, models / f"{copy}.evg")
                for work, body in works:
                    headers = {"Content-Type": "application/json"}
                    target = f"{address}/api/v1/models/{copy}/{work}"
                    urllib.request.urlopen(
                        urllib.request.Request(
                            target, json.dumps(body).encode(), headers
                        )
                    ).close()
                pages = int(Path(f"/proc/{server}/statm").read_text().split()[1])
                held.append(pages * os.sysconf("SC_PAGE_SIZE"))
        size = first.stat().st_size
        each = (held[-1] - held[0]) / (len(held) - 1)
    figure = f"{each / size:.2f} of its file of {size / 1e6:.1f} MB"
    work = f"memory of an open model of {kind} in the service"
    return Row(work, figure, "<= 3", each <= 3 * size, {"bytes": held, "file": size})


_WARM_UP_SECONDS = 20
"""After this time the service has loaded its libraries."""

WIDTH = 1280
"""Columns of the feature vectors in `sizing`, as of the bundled network."""


def sizing(quick: bool) -> Iterator[Row]:
    """Measure processor time per prediction and memory per model, as docs/deploy.md says them.

    Processor time is that of the service alone, so that neither its callers nor other
    processes of the machine change the figure much.
    """
    n_requests = 20 if quick else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [path.read_bytes() for path in _images(folder)]
        _model(folder)
        rows = _feature_model(folder / "models" / "rows.evg", 100)
        question = json.dumps({"rows": rows[:1].tolist()}).encode()
        with _serving(folder / "models") as (address, server):
            works = {
                "one image a request": lambda: _clients(
                    address, files, 1, n_requests // 16 + 1, 16
                ),
                "one feature vector a request": lambda: _questions(
                    address, "rows", question, n_requests
                ),
            }
            for work, ask in works.items():
                ask()
                before = _processor(server)[1]
                spent = ask()
                each = (_processor(server)[1] - before) / spent.images
                figure = f"{1000 * each:.1f} ms of one core, {1 / each:.0f} requests a second per core"
                yield Row(f"predict, {work}", figure, "", None, {"seconds": each})
    for n_classes in (10, 100) if quick else (10, 100, 300):
        yield _model_memory(n_classes)


def _feature_model(path: Path, n_classes: int) -> np.ndarray:
    """Write a model of 20 samples a class, and return its rows."""
    from evergrow import Learner

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(n_classes), 20)
    X = rng.normal(size=(n_classes, WIDTH))[y] + rng.normal(size=(len(y), WIDTH))
    Learner(None, random_state=0).fit((X.astype(np.float32), y.astype(str))).save(path)
    return X


def _questions(address: str, model: str, body: bytes, requests: int) -> Spent:
    """Ask about feature vectors over one connection."""
    connection = http.client.HTTPConnection(
        address.removeprefix("http://"), timeout=120
    )
    started = time.perf_counter()
    for _ in range(requests):
        target = f"/api/v1/models/{model}/predict"
        connection.request("POST", target, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        assert answer.status == 200, told
    connection.close()
    return Spent(requests, time.perf_counter() - started, [])


def _model_memory(n_classes: int) -> Row:
    """Measure file and memory of one model of feature vectors, after a prediction."""
    with tempfile.TemporaryDirectory() as name:
        models = Path(name, "models")
        models.mkdir()
        rows = _feature_model(models / "0.evg", n_classes)
        question = json.dumps({"rows": rows[:1].tolist()}).encode()
        copies = range(6)
        for copy in copies[1:]:
            shutil.copy(models / "0.evg", models / f"{copy}.evg")
        size = (models / "0.evg").stat().st_size
        with _serving(models) as (address, server):
            _questions(address, "0", question, 1)
            time.sleep(_WARM_UP_SECONDS)
            held = []
            for copy in copies:
                _questions(address, str(copy), question, 3)
                pages = int(Path(f"/proc/{server}/statm").read_text().split()[1])
                held.append(pages * os.sysconf("SC_PAGE_SIZE"))
    return Row(
        f"models of {n_classes} classes, 20 samples each, {WIDTH} features",
        f"file {size / 1e6:.0f} MB, service with one {held[0] / 1e6:.0f} MB, "
        f"with {len(held)} {held[-1] / 1e6:.0f} MB",
        "",
        None,
        {"file": size, "held": held},
    )


def _compared(
    work: str,
    loop: Callable[[], Spent],
    served: Callable[[], Spent],
    rounds: int,
    bar: float,
    server: int,
) -> Row:
    loop(), served()  # backbones are loaded
    pairs = []
    waits = []
    work_inside = []
    work_outside = []
    for _ in range(rounds):  # in turns, so that both meet the same machine
        before = _processor(server)
        alone = loop()
        between = _processor(server)
        asked = served()
        after = _processor(server)
        pairs.append((alone.speed, asked.speed))
        waits += asked.times
        work_inside.append((between[0] - before[0]) / alone.images)
        work_outside.append((sum(after) - sum(between)) / asked.images)
    ratio = statistics.median(outside / inside for inside, outside in pairs)
    inside, outside = (statistics.median(column) for column in zip(*pairs, strict=True))
    inside_work = statistics.median(work_inside)
    outside_work = statistics.median(work_outside)
    p50, p99 = (float(np.percentile(waits, share)) for share in (50, 99))
    return Row(
        work=work,
        figure=f"{ratio:.2f}: {outside:.1f} against {inside:.1f} images/s; "
        f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms; processor time of an image, callers included, "
        f"{1000 * outside_work:.0f} against {1000 * inside_work:.0f} ms",
        bar=f"{bar:g}",
        reached=ratio >= bar,
        values={
            "ratio": ratio,
            "served": outside,
            "loop": inside,
            "p50": p50,
            "p99": p99,
            "rounds": rounds,
            "processor_served": outside_work,
            "processor_loop": inside_work,
        },
    )


@dataclass(frozen=True)
class Spent:
    """Images that were answered, in how many seconds, and the seconds of each call."""

    images: int
    seconds: float
    times: list[float]

    @property
    def speed(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def _processor(server: int) -> tuple[float, float]:
    """Return the processor seconds of this process and of the service so far: what a busy machine does not stretch."""
    own = os.times()
    try:
        told = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no such file system: nothing is known of the service
        return own.user + own.system, math.nan
    return own.user + own.system, (int(told[11]) + int(told[12])) / os.sysconf(
        "SC_CLK_TCK"
    )


def _loop(learner: Any, paths: Sequence[str], size: int, requests: int) -> Spent:
    """Ask the learner in this process."""
    times = []
    started = time.perf_counter()
    for number in range(requests):
        begun = time.perf_counter()
        learner.predictions(
            [paths[(number * size + i) % len(paths)] for i in range(size)],
            false_alarm=0.05,
        )
        times.append(time.perf_counter() - begun)
    return Spent(requests * size, time.perf_counter() - started, times)


def _clients(
    address: str, files: Sequence[bytes], size: int, requests: int, clients: int
) -> Spent:
    """Ask the service.

    Callers have one connection each and their forms ready: they share the cores with
    the service, and a library that makes a form and a connection for every call would
    take a fifth of them.
    """
    times: list[float] = []

    def ask(who: int) -> None:
        connection = http.client.HTTPConnection(
            address.removeprefix("http://"), timeout=120
        )
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
    return Spent(clients * requests * size, time.perf_counter() - started, times)


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
        Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(
            buffer, "JPEG", quality=90
        )
        path.write_bytes(buffer.getvalue())
        made.append(path)
    return made


def _model(folder: Path) -> Any:
    """Return a learner with the bundled backbone and write it where the service finds it."""
    from evergrow.learner.learner import Learner
    from evergrow.learner.modelfile import commit

    learner = Learner(
        "auto", cache=False, extract={"progress": False, "workers": 0}
    ).fit(str(folder / "images"))
    (folder / "models").mkdir()
    commit(folder / "models" / "photos.evg", learner)
    return learner
