"""Synthetic records of runs and analyses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evergrow.lab.records import Record

EXPERIMENTS = Path(__file__).parents[3] / "experiments"

Write = Callable[..., Path]


def run(method: str = "ranpac", seed: int = 0, a_last: float = 0.7, **changes: Any) -> Record:
    """Return a finished run of two sessions; ``changes`` replace fields, and ``options`` are added to."""
    options = {"n_units": 10, "random_state": seed, "device": "cpu", **changes.pop("options", {})}
    results = {
        "matrix": [[0.9, None], [0.8, a_last]],
        "counts": [10, 10],
        "by_samples": [0.9, a_last],
        "by_tasks": [0.9, a_last],
        "a_last": a_last,
        "a_avg": (0.9 + a_last) / 2,
        "f_avg": 0.1,
    }
    values = {
        "run_id": "",
        "method": method,
        "label": method.upper(),
        "options": options,
        "dataset": {"name": "toy", "label": "Toy", "fingerprint": "f"},
        "protocol": {"name": "B-0 Inc-5", "increment": 5},
        "seed": seed,
        "status": "ok",
        "started": "2026-01-01",
        "ended": "2026-01-02",
        "versions": {"evergrow": "0.1"},
        "environment": {"device": "cpu", "threads": 1},
        "results": {**results, **changes.pop("results", {})},
        "times": {"fit": 1.0, "update": [2.0], "predict": [0.5]},
        "memory": {"peak_rss_bytes": 2**21, "rss_scope": "run", "peak_cuda_bytes": None},
        **changes,
    }
    if not values["run_id"]:
        values["run_id"] = f"{method}-{seed}-{values['label']}-{values['dataset']}-{values['protocol']}-{options}"
    return Record(**values)


def analysis(kind: str, results: dict[str, Any], method: str = "scl-mgsm", seed: int = 0, **changes: Any) -> Record:
    """Return a finished analysis."""
    options = {"n_units": None, "random_state": seed, "scales": "auto", **changes.pop("options", {})}
    values = {
        "run_id": "",
        "analysis": kind,
        "settings": {},
        "method": method,
        "label": "MGSM",
        "options": options,
        "dataset": {"name": "toy", "label": "Toy", "fingerprint": "f"},
        "protocol": {"name": "B-0 Inc-5", "increment": 5},
        "seed": seed,
        "status": "ok",
        "started": "2026-01-01",
        "ended": "2026-01-02",
        "versions": {"evergrow": "0.1"},
        "environment": {},
        "results": results,
        **changes,
    }
    if not values["run_id"]:
        values["run_id"] = f"{kind}-{method}-{seed}-{values['label']}-{options}"
    return Record(**values)
