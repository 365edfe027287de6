"""Small, fast tasks that can fail as workers do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import InputError
from evergrow.core.files import atomic_path
from evergrow.engine.runners import LocalRunner, UnfitWorkerError, WorkerTask


def perform(task: WorkerTask) -> dict[str, Any]:
    """Do a task of a test."""
    about = {key: value for key, value in task.about.items() if key != "decoders"}
    return globals()[f"_{task.work}"](task.number, **about)


def tasks(folder: Path, n: int, work: str = "sums", **about: Any) -> list[WorkerTask]:
    """Return tasks that each write one file."""
    return [
        WorkerTask(work, number, {"folder": str(folder), **about})
        for number in range(n)
    ]


def begun(folder: Path) -> list[tuple[int, int]]:
    """Return number and process of each started task, in order."""
    log = folder / "begun"
    if log.exists():
        lines = log.read_text().splitlines()
    else:
        lines = []
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def pids(runner: LocalRunner) -> list[int]:
    """Return the process numbers of its workers."""
    if runner._pool is None:
        return []
    return list(runner._pool._processes)


def expected_bytes(number: int, rows: int = 2000) -> bytes:
    """Return what the file of a task must hold."""
    X = np.random.default_rng(number).normal(size=(rows, 8))
    return (X.T @ X).tobytes()


def _sums(
    number: int, folder: str, seconds: float = 0.0, rows: int = 2000
) -> dict[str, Any]:
    with open(Path(folder, "begun"), "a") as log:
        log.write(f"{number} {os.getpid()}\n")
    with (
        atomic_path(Path(folder, f"{number}.bin")) as temporary,
        open(temporary, "wb") as file,
    ):
        data = expected_bytes(number, rows)
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(seconds)  # whoever is killed now leaves half a file
        file.write(data[len(data) // 2 :])
    return {"rows": rows, "pid": os.getpid()}


def _refuse(number: int, folder: str) -> dict[str, Any]:
    if number % 2:
        raise InputError(f"sample {number} must be finite,\ngot NaN")
    raise KeyError(number)


def _die(number: int, folder: str) -> dict[str, Any]:
    with open(Path(folder, "begun"), "a") as log:
        log.write(f"{number} {os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _die_once(number: int, folder: str) -> dict[str, Any]:
    log = Path(folder, "begun")
    if log.exists() and f"{number} " in log.read_text():
        return _sums(number, folder)
    return _die(number, folder)


def _die_if_odd(number: int, folder: str) -> dict[str, Any]:
    if number % 2:
        return _die(number, folder)
    return _sums(number, folder)


def _unfit(number: int, folder: str) -> dict[str, Any]:
    raise UnfitWorkerError("weights must be xyz, got abc")
