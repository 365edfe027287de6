"""Labelled points on disk, and sources that fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evergrow import Learner
from evergrow.core.files import PARTIAL
from evergrow.engine import LocalEngine

OPTIONS = {"n_units": 20}
SMALL = {"shard_rows": 40}


def points(
    seed: int = 0, n: int = 300, classes: int = 6
) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 points around a centre per class, and class numbers."""
    centres = np.random.default_rng(7).normal(size=(12, 10)) * 2
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return (centres[y] + rng.normal(size=(n, 10))).astype(np.float32), y


def write_points(path: Path, **settings: int) -> Path:
    X, y = points(**settings)
    np.savez(
        path,
        X_train=X,
        y_train=y,
        classes=np.array([f"class {code}" for code in range(12)]),
    )
    return path


def write_parts(folder: Path, parts: int = 6, rows: int = 50) -> Path:
    """Write a folder of files, one per shard."""
    folder.mkdir(exist_ok=True)
    for part in range(parts):
        write_points(folder / f"part-{part}.npz", seed=part, n=rows)
    return folder


def learner(**settings: object) -> Learner:
    return Learner(device="cpu", options=OPTIONS, **settings)


def learned(data: Path, **engine: object) -> Learner:
    return learner().fit(str(data), engine=LocalEngine(**{**SMALL, **engine}))


def scores(model: Learner) -> np.ndarray:
    return model.head_.decision_function(points(seed=99, n=60)[0])


def leftovers(folder: Path) -> list[str]:
    """Return what a finished job should not leave in its folder."""
    stages = [
        name for name in ("first", "statistics", "merged") if (folder / name).exists()
    ]
    return [
        *stages,
        *(path.name for path in folder.rglob(f"*{PARTIAL}")),
        *map(str, folder.glob("*template*")),
    ]
