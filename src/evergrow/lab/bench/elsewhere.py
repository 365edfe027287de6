"""Runs of a spec on several processes or machines: one task per record, and the record is its result.

A task says in plain values which run is meant; a worker reads the data for itself, checks that they are those of the
plan, and writes the record where the plan looks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from evergrow.core.errors import EngineError, FileFormatError
from evergrow.core.version import __version__
from evergrow.engine import Engine
from evergrow.engine.runners import Outcome, Task
from evergrow.lab.bench.data import BackboneEntry, DataEntry, DataSource
from evergrow.lab.bench.execute import execute
from evergrow.lab.bench.grid import Run, resolved_run
from evergrow.lab.bench.resumable import Step, compute_threads, release_memory
from evergrow.lab.bench.spec import MethodEntry
from evergrow.lab.methods import method_needs
from evergrow.lab.records import RunRecord, plain, read_record, remove_partial, write_record
from evergrow.lab.streams import Protocol

PERFORM = "evergrow.lab.bench.elsewhere:perform"


def run_steps(
    engine: Engine, folder: Path, steps: Sequence[Step[Run, RunRecord]], threads: int | None
) -> Iterator[Step[Run, RunRecord]]:
    """Carry out runs on an engine and yield each with its record when it has ended.

    Parameters
    ----------
    engine : Engine
        Where.
    folder : Path
        Where the records go; every worker must reach it by this path.
    steps : sequence of Step
        What to do.
    threads : int or None
        Threads that a run computes with; None leaves it to the worker.

    Raises
    ------
    EngineError
        If the workers have other versions, or another folder under this path.
    """
    if not steps:
        return  # a cluster need not be there for what is done
    runner = engine.runner(PERFORM)
    try:
        runner.check({"evergrow": __version__, "torch": torch.__version__})
        about = {"folder": str(folder.absolute()), "threads": threads}
        tasks = [Task("record", number, {**about, "run": run_values(step.run)}) for number, step in enumerate(steps)]
        with closing(runner.run(tasks)) as outcomes:  # type: ignore[type-var]
            for outcome in outcomes:
                step = steps[outcome.task.number]
                step.record = _record(folder / step.run.file_name, step.run, outcome)
                yield step
    finally:
        runner.close()
        remove_partial(folder)  # workers that were killed may have left some


def perform(task: Task) -> dict[str, Any]:
    """Carry out the run of a task and write its record.

    Parameters
    ----------
    task : Task
        From :func:`run_steps`.
    """
    run, folder = run_of_values(task.about["run"]), Path(task.about["folder"])
    datasets = _datasets(run.device)
    with compute_threads(task.about["threads"]):
        record = execute_run(run, datasets)
    write_record(folder / run.file_name, record)
    release_memory()
    return {"status": record.status}


def execute_run(run: Run, datasets: DataSource, tick: Any = None) -> RunRecord:
    """Carry out a run with the data that it names, and return its record, whatever happens."""
    fetch = datasets.images if method_needs(run.method.name) == "images" else datasets.get
    return execute(run, lambda: fetch(run.data), tick, gflops=datasets.gflops(run.data))


def run_values(run: Run) -> dict[str, Any]:
    """Return a run as plain values, from which :func:`run_of_values` makes it again on any machine."""
    backbone, data = run.data.backbone, run.data
    if backbone is not None and backbone.weights is not None:
        backbone = replace(backbone, weights=_absolute(backbone.weights))
    data = replace(data, source=_absolute(data.source), backbone=backbone)
    values = {
        "method": asdict(run.method),
        "data": asdict(data),
        "dataset": run.dataset,
        "protocol": run.protocol.to_dict(),
        "seed": run.seed,
        "earlier_seeds": run.earlier_seeds,
        "device": run.device,
        "confusion": run.confusion,
    }
    return {"id": run.run_id, **plain(values)}


def run_of_values(values: dict[str, Any]) -> Run:
    """Return the run that :func:`run_values` described.

    Raises
    ------
    EngineError
        If it would be another one here.
    """
    data = dict(values["data"])
    backbone = data.pop("backbone")
    run = resolved_run(
        MethodEntry(**values["method"]),
        DataEntry(**data, backbone=None if backbone is None else BackboneEntry(**backbone)),
        values["dataset"],
        Protocol.from_dict(values["protocol"]),
        values["seed"],
        tuple(values["earlier_seeds"]),
        values["device"],
        confusion=values["confusion"],
    )
    if run.run_id != values["id"]:
        raise EngineError(f"the settings of a run must be the same on every machine, got another run for {run.title}")
    return run


def _absolute(place: str) -> str:
    """Return a path that means the same in every folder; names and addresses are left as they are."""
    return os.path.abspath(place) if os.sep in place and "://" not in place else place


def _record(path: Path, run: Run, outcome: Outcome) -> RunRecord:
    """Return the record that a task wrote; where its worker could not, one that says so is written."""
    if outcome.state == "done":
        try:
            return read_record(path)
        except (FileNotFoundError, FileFormatError) as error:
            raise EngineError(
                f"folder must be one that every worker reaches by the same path, but a worker wrote {path.name} and it "
                f"is not in {path.parent}"
            ) from error

    def fail() -> Any:
        raise EngineError(outcome.error)

    record = execute(run, fail)
    write_record(path, record)
    return record


@lru_cache(maxsize=1)
def _datasets(device: str) -> DataSource:
    """Return where this process keeps the data of the last run: the next is often on the same."""
    return DataSource(device)
