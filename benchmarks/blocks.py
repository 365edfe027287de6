"""What width costs: one block of 384 features, and six of them."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.answers import CLASSES, FEATURES, FIRST, cholesky, rows_of
from benchmarks.timing import Row, seconds
from evergrow import Classifier
from evergrow.lab.bench.analyses import tensor_bytes

BLOCKS = 6


def deep_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return six blocks side by side: the features of :func:`rows_of` turned and blurred ever more."""
    X, y = rows_of(n, CLASSES, seed)
    rng = np.random.default_rng(5)
    turns = [
        np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
        for _ in range(BLOCKS - 1)
    ]
    noise = np.random.default_rng(seed + 100)
    parts = [X]
    for depth, turn in enumerate(turns, start=1):
        blurred = X @ turn + 0.02 * depth * noise.normal(size=X.shape)
        parts.append(blurred / np.linalg.norm(blurred, axis=1, keepdims=True))
    return np.concatenate(parts, axis=1) / BLOCKS**0.5, y


def width(quick: bool) -> Iterator[Row]:
    """Size of file and statistics, the first fit, and five samples with the next answer, against the width."""
    units = 300 if quick else 3000
    X, y = deep_rows(FIRST, 1)
    more, labels = deep_rows(100, 2)
    sizes = (FEATURES,) * BLOCKS
    cases: list[tuple[str, int, dict[str, Any]]] = [
        ("one block of 384", FEATURES, {"normalize": "none"})
    ]
    cases.append(("six blocks, 2,304 features", X.shape[1], {"blocks": sizes}))
    for name, kept, settings in cases:
        if "blocks" not in settings:
            columns = slice(0, FEATURES)
        else:
            columns = slice(None)
        yield _case(
            name,
            units + kept,
            X[:, columns],
            y,
            more[:, columns],
            labels,
            {"n_units": units, **settings},
        )


def _case(
    name: str,
    order: int,
    X: np.ndarray,
    y: np.ndarray,
    more: np.ndarray,
    labels: np.ndarray,
    settings: dict[str, Any],
) -> Row:
    made = {"random_state": 0, "device": "cpu", **settings}
    unit = cholesky(order, "cpu")
    models: list[Classifier] = []

    def first() -> None:
        models.append(Classifier(**made).fit(X, y))
        models[-1].predict(more[:1])

    whole = seconds(first, repeat=1)
    model = models[-1]
    starts = iter(range(0, 100, 5))

    def step() -> None:
        start = next(starts)
        model.partial_fit(more[start : start + 5], labels[start : start + 5])
        model.predict(more[:1])

    few = statistics.median(seconds(step, repeat=1) for _ in range(7))
    answer = statistics.median(
        seconds(lambda: model.predict(more), repeat=1) for _ in range(5)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path)
        size = path.stat().st_size / 1e6
    state = tensor_bytes(model.model_.state) / 1e6
    figure = (
        f"{size:.0f} MB file, {state:.0f} MB statistics; 5 samples and an answer {few:.3f} s ({few / unit:.2f} of a "
        f"Cholesky), first fit and answer {whole:.1f} s ({whole / unit:.0f}), 100 answers {1000 * answer:.0f} ms"
    )
    raw = {
        "file_mb": size,
        "state_mb": state,
        "few": few,
        "first": whole,
        "answers": answer,
        "cholesky": unit,
    }
    return Row(
        f"width: {name}",
        figure,
        "0.5 and 20",
        few <= 0.5 * unit and whole <= 20.0 * unit,
        raw,
    )
