"""Many classes of few samples: file, first answer and novelty, against one Cholesky factorisation."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.answers import FEATURES, cholesky
from benchmarks.timing import Row, seconds
from evergrow import Classifier

EACH = 10


def many(quick: bool) -> list[Row]:
    """4,000 classes of ten samples, and half as many: what the second half costs."""
    sizes, units, order = ((50, 100), 100, 200) if quick else ((2000, 4000), 1000, 2000)
    unit = cholesky(order, "cpu")
    half, whole = (_measured(classes, units) for classes in sizes)
    bars = {
        "file, MB": 100.0,
        "first answer": 5.0,
        "novelty of 200 rows": 0.4,
        "novelty of 200 rows again": None,
    }
    return [
        _row(
            f"{sizes[1]:,} classes: {name}", half[name], whole[name], (order, unit), bar
        )
        for name, bar in bars.items()
    ]


def _measured(classes: int, units: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, FEATURES))
    y = np.repeat(np.arange(classes), EACH)
    X = centres[y] + 1.5 * rng.normal(size=(len(y), FEATURES))
    queries = centres[rng.integers(classes, size=200)] + 1.5 * rng.normal(
        size=(200, FEATURES)
    )
    model = Classifier(n_units=units, random_state=0, device="cpu").fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.evg")
        megabytes = (Path(folder) / "model.evg").stat().st_size / 1e6
    # Each is worked out once and then kept, so that it cannot be repeated on the same
    # model.
    return {
        "file, MB": megabytes,
        "first answer": seconds(lambda: model.predict(queries[:1]), repeat=1),
        "novelty of 200 rows": seconds(lambda: model.novelty_score(queries), repeat=1),
        "novelty of 200 rows again": seconds(
            lambda: model.novelty_score(queries), repeat=5
        ),
    }


def _row(
    work: str, half: float, whole: float, unit: tuple[int, float], bar: float | None
) -> Row:
    growth = f"{whole / half:.2f} times that of half the classes"
    figure = f"{whole:.1f}, {growth}"
    if "MB" not in work:
        figure = f"{whole:.2f} s, {whole / unit[1]:.1f} Cholesky factorisations of order {unit[0]:,}, {growth}"
    values = {"value": whole, "half": half, "cholesky": unit[1]}
    return Row(
        work,
        figure,
        "" if bar is None else f"{bar:g}",
        None if bar is None else whole <= bar,
        values,
    )
