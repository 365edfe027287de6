"""Synthetic records of runs and analyses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evergrow.lab.records import Record
from evergrow.lab.report.contents import RecordSet

EXPERIMENTS = Path(__file__).parents[3] / "experiments"

Write = Callable[..., Path]


def collected(runs: list[Record], analyses: list[Record] | None = None) -> RecordSet:
    """Return records as a report sees them, all runs in one folder."""
    return RecordSet({"mine": runs} if runs else {}, analyses or [])


def _record(given: dict[str, Any], **values: Any) -> Record:
    """Return a finished record with changes; ``options`` and ``results`` are merged."""
    values["options"] = {**values["options"], **given.pop("options", {})}
    values["results"] = {**values["results"], **given.pop("results", {})}
    fixed = {
        "status": "ok",
        "started": "2026-01-01",
        "ended": "2026-01-02",
        "versions": {"evergrow": "0.1"},
    }
    dataset = {"name": "toy", "label": "Toy", "fingerprint": "f"}
    protocol = {"name": "B-0 Inc-5", "increment": 5}
    found = {
        "dataset": dataset,
        "protocol": protocol,
        "run_id": "",
        **fixed,
        **values,
        **given,
    }
    said = ("analysis", "method", "seed", "label", "dataset", "protocol", "options")
    found["run_id"] = found["run_id"] or "-".join(str(found.get(key)) for key in said)
    return Record(**found)


def run(
    method: str = "ranpac", seed: int = 0, a_last: float = 0.7, **changes: Any
) -> Record:
    """Return a finished run of two sessions; ``options`` and ``results`` are merged."""
    results = {
        "matrix": [[0.9, None], [0.8, a_last]],
        "counts": [10, 10],
        "by_samples": [0.9, a_last],
        "by_tasks": [0.9, a_last],
        "a_last": a_last,
        "a_avg": (0.9 + a_last) / 2,
        "f_avg": 0.1,
    }
    return _record(
        changes,
        method=method,
        label=method.upper(),
        options={"n_units": 10, "random_state": seed, "device": "cpu"},
        seed=seed,
        environment={"device": "cpu", "threads": 1},
        results=results,
        times={"fit": 1.0, "update": [2.0], "predict": [0.5]},
        memory={"peak_rss_bytes": 2**21, "rss_scope": "run", "peak_cuda_bytes": None},
    )


def analysis(
    kind: str,
    results: dict[str, Any],
    method: str = "scl-mgsm",
    seed: int = 0,
    **changes: Any,
) -> Record:
    """Return a finished analysis."""
    options = {"n_units": None, "random_state": seed, "scales": "auto"}
    values = {
        "settings": {},
        "label": "MGSM",
        "options": options,
        "environment": {},
        "results": results,
    }
    return _record(changes, analysis=kind, method=method, seed=seed, **values)
