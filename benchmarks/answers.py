"""An answer in the time of the change: learning and the next answer, against one Cholesky factorisation."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Row, seconds
from evergrow import Classifier

FEATURES = 384
CLASSES = 150
FIRST = 2400


def rows_of(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features like those of a sentence encoder: unit length, classes apart by about their spread."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, FEATURES)) * np.geomspace(1.0, 0.05, FEATURES)
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % classes)
    X = centres[y] + 0.9 * rng.normal(size=(n, FEATURES)) * np.geomspace(
        1.0, 0.1, FEATURES
    )
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def cholesky(order: int, device: str) -> float:
    """Return the seconds of one float64 factorisation."""
    matrix = torch.randn(
        order, order, dtype=torch.float64, device=device, generator=_source(device)
    )
    matrix = matrix @ matrix.T
    matrix.diagonal().add_(order)
    return seconds(lambda: torch.linalg.cholesky(matrix), repeat=5)


def _source(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def change_and_answer(quick: bool) -> list[Row]:
    """Five samples, a hundred, those that bring the next choice, and the first fit, each with the next answer."""
    units = 300 if quick else 3000
    X, y = rows_of(FIRST, CLASSES, 1)
    more, labels = rows_of(600, CLASSES, 2)
    settings: dict[str, Any] = {"n_units": units, "random_state": 0, "device": "cpu"}
    unit = cholesky(units + FEATURES, "cpu")

    def first() -> None:
        Classifier(**settings).fit(X, y).predict(more[:1])

    model = Classifier(**settings).fit(X, y)
    model.predict(more[:1])

    def learn(n: int) -> Callable[[], None]:
        starts = iter(range(0, 600 - n + 1, n))

        def step() -> None:
            start = next(starts)
            model.partial_fit(more[start : start + n], labels[start : start + n])
            model.predict(more[:1])

        return step

    few = [seconds(step, repeat=1) for step in [learn(5)] for _ in range(11)]
    many = [seconds(step, repeat=1) for step in [learn(100)] for _ in range(3)]
    whole = seconds(first, repeat=1 if quick else 3)
    near = Classifier(**settings).fit(X, y)
    near.predict(more[:1])
    near.partial_fit(more[:595], labels[:595]).predict(
        more[:1]
    )  # a choice holds for a quarter more rows, not beyond

    def past() -> None:
        near.branch().partial_fit(more[590:], labels[590:]).predict(more[:1])

    choice = seconds(past)
    return [
        _row(
            "5 samples learned and the next answer",
            statistics.median(few),
            unit,
            0.5,
            units,
        ),
        _row(
            "100 samples learned and the next answer",
            statistics.median(many),
            unit,
            2.0,
            units,
        ),
        _row(
            "10 samples that bring the next choice of ridge, and the next answer",
            choice,
            unit,
            4.0,
            units,
        ),
        _row(
            f"first fit of {FIRST} samples and the first answer",
            whole,
            unit,
            25.0,
            units,
        ),
        *on_gpu(quick),
    ]


def on_gpu(quick: bool) -> list[Row]:
    """Five samples and an answer at 10,000 units, in milliseconds."""
    if not torch.cuda.is_available():
        return []
    units = 1000 if quick else 10_000
    X, y = rows_of(FIRST, CLASSES, 1)
    more, labels = rows_of(600, CLASSES, 2)
    model = Classifier(n_units=units, random_state=0, device="cuda").fit(X, y)
    model.predict(more[:1])
    starts = iter(range(0, 600, 5))

    def step() -> None:
        start = next(starts)
        model.partial_fit(more[start : start + 5], labels[start : start + 5])
        model.predict(more[:1])

    times = [seconds(step, repeat=1) for _ in range(21)]
    taken = statistics.median(times) * 1000
    figure = (
        f"{taken:.1f} ms at {units:,} units (slowest of 21: {max(times) * 1000:.0f} ms)"
    )
    return [
        Row(
            "5 samples and an answer on the GPU",
            figure,
            "20 ms",
            taken <= 20.0,
            {"ms": [1000 * t for t in times]},
        )
    ]


def _row(work: str, taken: float, unit: float, bar: float, units: int) -> Row:
    ratio = taken / unit
    figure = f"{ratio:.2f} of a Cholesky factorisation ({taken:.3f} s against {unit:.3f} s, {units:,} units)"
    return Row(
        work, figure, f"{bar:g}", ratio <= bar, {"seconds": taken, "cholesky": unit}
    )
