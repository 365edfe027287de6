"""Pieces of learning at a size that nobody has run whole: statistics of a shard, files, one sum, the last solve.

``python -m benchmarks.parts statistics UNITS CLASSES ROWS [DEVICE]``, or ``solve``
instead, prints one line of JSON. On a CPU the seconds are those of the processor, with
one thread, so that others on the machine count for little; on a GPU those of the clock.
``benchmarks/scale.py`` holds what was measured and reckons with it.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from evergrow import Learner
from evergrow.core.archive import read_archive
from evergrow.engine.job import ShardReport
from evergrow.engine.worker_tasks import write_part
from evergrow.learner import empty_copy
from evergrow.learner.learning import LabelledRows
from evergrow.learner.sharded_fit import complete_fit, learn_shard, merge_shards

WIDTH = 768
"""Features of ViT-B/16."""
FIRST_ROWS = 600
"""Rows that the layer is grown on, a small part of any of these."""

Result = TypeVar("Result")


def statistics(
    units: int, classes: int, rows: int, device: str = "cpu"
) -> dict[str, Any]:
    """Two parts learned, written, read and added."""
    template = _template(units, device)
    block = _rows(2 * rows, classes)
    spent: dict[str, Any] = {
        "units": units,
        "classes": classes,
        "rows": rows,
        "device": device,
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.evg") for number in range(2)]
        for path, half in zip(
            paths, (slice(None, rows), slice(rows, None)), strict=True
        ):
            part, spent["learn_s"] = _timed(
                device,
                learn_shard,
                template,
                LabelledRows(block.X[half], block.labels[half]),
            )
            _, spent["write_s"] = _timed(
                "cpu", write_part, path, part, {"0": ShardReport(rows, "0")}
            )
            del part
        spent["bytes"] = paths[0].stat().st_size
        parts = []
        for path in paths:
            archive, spent["read_s"] = _timed("cpu", read_archive, path)
            part, spent["check_s"] = _timed(
                "cpu", partial(Learner.load, archive, name=str(path), device="cpu")
            )
            parts.append(part)
            del archive, part
        _, spent["add_s"] = _timed("cpu", merge_shards, parts)
    return {**spent, "peak_bytes": _peak()}


def solve(units: int, classes: int, rows: int, device: str = "cpu") -> dict[str, Any]:
    """From the sum of all parts to a model that answers, calibrated on some rows."""
    block = _rows(rows, classes)
    total = learn_shard(_template(units, device), block)
    sample = LabelledRows(block.X[:1000], block.labels[:1000])
    learner = Learner(device=device, options={"n_units": units})
    _, spent = _timed(device, complete_fit, learner, total, sample)
    with tempfile.TemporaryDirectory() as folder:
        _, saved = _timed("cpu", learner.save, Path(folder, "model.evg"))
        size = Path(folder, "model.evg").stat().st_size
    about = {"units": units, "classes": classes, "rows": rows, "device": device}
    return {
        **about,
        "solve_s": spent,
        "save_s": saved,
        "bytes": size,
        "peak_bytes": _peak(),
    }


def _template(units: int, device: str) -> Learner:
    """Return an empty learner with a layer; one that is drawn, since how it came about is no matter here."""
    block = _rows(FIRST_ROWS, 50)
    learner = Learner(device=device, options={"n_units": units})
    return empty_copy(learner.fit((block.X, block.labels)))


def _rows(n: int, classes: int) -> LabelledRows:
    draws = np.random.default_rng(0)
    y = np.arange(n) % classes
    X = draws.normal(size=(classes, WIDTH))[y] + draws.normal(size=(n, WIDTH))
    return LabelledRows(
        X.astype(np.float32), np.array([f"class {label:05d}" for label in y])
    )


def _timed(
    device: str, work: Callable[..., Result], *arguments: Any
) -> tuple[Result, float]:
    if device == "cpu":
        clock = time.process_time
    else:
        clock = time.perf_counter
    started = clock()
    result = work(*arguments)
    if device != "cpu":
        torch.cuda.synchronize()
    return result, round(clock() - started, 3)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    place = "cpu"
    if not numbers[-1].isdigit():
        place = numbers.pop()
    if place == "cpu":
        torch.set_num_threads(1)
    print(
        json.dumps(
            {"statistics": statistics, "solve": solve}[name](
                *map(int, numbers), device=place
            )
        )
    )
