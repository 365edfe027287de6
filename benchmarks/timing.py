"""Timing by repetition: the median of a few runs, in one process, against a baseline measured beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def seconds(work: Callable[[], Any], repeat: int = 3) -> float:
    """Return the median wall-clock time of ``work``."""
    times = []
    for _ in range(repeat):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


@dataclass(frozen=True)
class Row:
    """One line of the benchmark's table.

    Parameters
    ----------
    work : str
        What was measured.
    figure : str
        The result in words.
    bar : str
        What it should reach, empty where there is no bar.
    reached : bool or None
        Whether it did; None where there is no bar or it could not be measured here.
    values : dict
        The raw numbers.
    """

    work: str
    figure: str
    bar: str
    reached: bool | None
    values: dict[str, Any]
