"""The engine: what shards and processes cost beside the plain loop, and what adding up statistics costs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row, seconds
from evergrow import Learner
from evergrow.data import read
from evergrow.engine import LocalEngine
from evergrow.engine.job import Job, JobReport, begin_job, plan
from evergrow.engine.job_steps import EngineRunOptions
from evergrow.engine.runners import LocalRunner, TaskResult, WorkerTask
from evergrow.engine.shard_merge import FAN_IN, ShardMerge
from evergrow.engine.worker_tasks import perform
from evergrow.learner import empty_copy

SEED = 0
BUNDLED = "tf_efficientnet_lite0"
SHARDS = (1, 4, 16, 64)


def overhead(quick: bool) -> Iterator[Row]:
    """Images to a model, shard by shard with two workers, against the plain fit with as many threads."""
    n = 48 if quick else 20_000
    with tempfile.TemporaryDirectory() as folder:
        data = _images(Path(folder, "images"), n)
        shard = max(1, n // 20)
        engine = LocalEngine(workers=2, shard_rows=shard)

        def learn(**how: Any) -> None:
            settings = {
                "backbone": BUNDLED,
                "weights": "bundled",
                "device": "cpu",
                "cache": False,
            }
            Learner(**settings, options={"n_units": 500}).fit(str(data), **how)

        plain, plain_cpu = _spent(learn)
        shards, shards_cpu = _spent(partial(learn, engine=engine))
    ratio = shards / plain
    cpu = shards_cpu / plain_cpu
    values = {
        "plain_s": plain,
        "engine_s": shards,
        "ratio": ratio,
        "images": n,
        "cores": os.cpu_count(),
    }
    values |= {"plain_cpu_s": plain_cpu, "engine_cpu_s": shards_cpu, "cpu_ratio": cpu}
    figure = (
        f"{ratio:.2f}x ({shards:.1f} s against {plain:.1f} s; {n / shards:.0f} images a second), "
        f"{cpu:.2f}x by processor time"
    )
    bar = "<= 1.10x"
    if quick:
        bar = ""
    yield Row(
        f"fit of {n:,} images by two workers",
        figure,
        bar,
        None if quick else ratio <= 1.10,
        values,
    )


def reduction(quick: bool) -> Iterator[Row]:
    """Adding up shards at 3,000 and 10,000 units and 1,000 classes, in seconds and in memory of the largest process."""
    for units in (300, 600) if quick else (3_000, 10_000):
        classes = 50 if quick else 1_000
        few, many = (_apart("reduce", units, classes, count) for count in (FAN_IN, 64))
        ratio = many["peak"] / few["peak"]
        figure = (
            f"{many['seconds']:.1f} s of a core for 64 parts of {many['part'] / 1e6:,.0f} MB, {few['seconds']:.1f} s "
            f"for {FAN_IN}; peak {many['peak'] / 1e6:,.0f} MB against {few['peak'] / 1e6:,.0f} MB ({ratio:.2f}x); "
            f"{many['all_s']:.0f} s with learning, two workers"
        )
        work = f"sum of 64 shards at L={units:,}, C={classes:,}"
        yield Row(
            work,
            figure,
            "memory <= 1.1x that of 8",
            ratio <= 1.1,
            {"few": few, "many": many},
        )


def growth(quick: bool) -> Iterator[Row]:
    """Learn the same rows in 1 to 64 shards, in one process: what a shard costs."""
    n, units, classes = (1_280, 100, 10) if quick else (65_536, 1_000, 100)
    with tempfile.TemporaryDirectory() as folder:
        data = _vectors(Path(folder), n, 384, classes)
        spent = {}
        for shards in SHARDS:
            sizes = {
                "shard_rows": -(-n // shards),
                "shard_mib": 1 << 20,
                "first_rows": n // 64,
            }
            options = {"n_units": units}

            def learn(
                sizes: dict[str, int] = sizes, options: dict[str, Any] = options
            ) -> None:
                Learner(device="cpu", options=options).fit(
                    str(data), engine=LocalEngine(**sizes)
                )

            spent[shards] = seconds(learn, repeat=1)
    each = (spent[64] - spent[1]) / 63
    listed = ", ".join(f"{spent[shards]:.1f}" for shards in SHARDS)
    figure = f"{listed} s in {', '.join(map(str, SHARDS))} shards: {1e3 * each:.0f} ms a shard"
    values = {
        "seconds": {str(shards): value for shards, value in spent.items()},
        "rows": n,
    }
    yield Row(
        f"fit of {n:,} rows at L={units:,}, C={classes}", figure, "", None, values
    )


def _spent(work: Callable[[], None]) -> tuple[float, float]:
    """Return seconds by the clock, and of processors: of this process and of those that it started and that ended."""
    before = os.times()
    started = time.perf_counter()
    work()
    after = os.times()
    return time.perf_counter() - started, sum(after[:4]) - sum(before[:4])


# -- data ------------------------------------------------------------------------------


def _images(folder: Path, n: int, classes: int = 10) -> Path:
    """Write images of 224 x 224, smooth enough to compress like photographs, each class of its own shade."""
    from PIL import Image

    draws = np.random.default_rng(SEED)
    for number in range(n):
        label = number % classes
        coarse = draws.integers(0, 156, size=(14, 14, 3), dtype=np.uint8) + np.uint8(
            10 * label
        )
        place = folder / f"class {label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse.repeat(16, axis=0).repeat(16, axis=1)).save(
            place / f"{number:06d}.jpg"
        )
    return folder


def _vectors(folder: Path, n: int, width: int, classes: int) -> Path:
    draws = np.random.default_rng(SEED)
    y = np.arange(n) % classes
    X = draws.normal(size=(classes, width))[y] + draws.normal(size=(n, width))
    path = folder / "vectors.npz"
    np.savez(
        path, X=X.astype(np.float32), y=np.array([f"class {label}" for label in y])
    )
    return path


# -- the sum, in a process of its own --------------------------------------------------


def _apart(*arguments: Any) -> dict[str, float]:
    """Run a part of this module in a fresh process, whose peak of memory is its own and that of its workers."""
    command = [sys.executable, "-m", "benchmarks.engine", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def reduce(units: int, classes: int, shards: int) -> dict[str, float]:
    """Learn and add up so many shards with two workers; the seconds are those of the sums alone.

    A round has 16 shards, so that a disk need not hold 64 files of a gigabyte.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = _vectors(folder, shards * classes, 64, classes)
        manifest = plan(read(str(data)), shard_rows=classes, shard_mib=1 << 20)
        job = begin_job(Job(folder, manifest, "fit"))
        with np.load(data) as arrays:
            X = arrays["X"][: 2 * classes]
            y = arrays["y"][: 2 * classes]
        learner = Learner(device="cpu", options={"n_units": units})
        empty_copy(learner.fit((X, y))).save(job.template_file)
        runner = _Timed(perform, 2)
        started = time.perf_counter()
        options = EngineRunOptions(runner, "cpu")
        merge = ShardMerge(job, JobReport(job.key), options, round_size=16)
        root = merge.run(lambda done, note: None)
        spent = time.perf_counter() - started
        size = root.stat().st_size
        runner.close()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {
        "seconds": runner.merging,
        "all_s": spent,
        "peak": float(peak),
        "size": float(size),
        "part": runner.largest,
    }


class _Timed(LocalRunner):
    """Processes that keep the time of sums, and the size of the largest part."""

    merging = largest = 0.0

    def run(self, tasks: Sequence[WorkerTask]) -> Iterator[TaskResult]:
        for outcome in super().run(tasks):
            task = outcome.task
            if task.work == "merge":
                self.merging += outcome.report.get("seconds", 0.0)
            else:
                parts = Path(task.about["folder"], "statistics").glob("*.evg")
                self.largest = max(
                    self.largest, *(float(part.stat().st_size) for part in parts)
                )
            yield outcome


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
