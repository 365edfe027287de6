"""Runs of a spec on several processes or machines, with one task per record.

A task names the spec and the run. A worker reads the data itself and writes the record
where the plan expects it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from evergrow.core.errors import EngineError, FileFormatError
from evergrow.engine import Engine
from evergrow.engine.runners import TaskResult, WorkerTask
from evergrow.engine.worker_tasks import check_versions, versions
from evergrow.lab.bench.data import DataSource
from evergrow.lab.bench.execute import execute, failed_record
from evergrow.lab.bench.grid import Step, compute_threads, expand, release_memory
from evergrow.lab.bench.run import Run
from evergrow.lab.bench.spec import Spec, load_spec
from evergrow.lab.records import Record, load_record, remove_partial, save_record


def run_on_engine(
    engine: Engine, spec: Spec, folder: Path, steps: Sequence[Step]
) -> Iterator[Step]:
    """Execute runs on an engine; yield each with its record when it has ended.

    Parameters
    ----------
    engine : Engine
        The engine.
    spec : Spec
        Spec of the runs. Every worker must find its file under the same path.
    folder : Path
        Folder of the records. Every worker must find it under the same path.
    steps : sequence of Step
        Runs to execute.

    Raises
    ------
    EngineError
        If the workers have other versions, or another folder under this path.
    """
    if not steps:
        return  # without connecting to a cluster
    runner = engine.runner(perform)
    try:
        shared: dict[str, Any] = {
            "spec": str(spec.path.absolute()),
            "folder": str(folder.absolute()),
            "device": spec.device,
            "versions": versions(),
        }
        tasks = []
        for number, step in enumerate(steps):
            dataset = spec.datasets.index(step.run.data)
            about = {**shared, "run": step.run.run_id, "dataset": dataset}
            tasks.append(WorkerTask("record", number, about))
        with closing(runner.run(tasks)) as results:  # type: ignore[type-var]
            for result in results:
                step = steps[result.task.number]
                step.record = _record(folder / step.run.file_name, step.run, result)
                yield step
    finally:
        runner.close()
        remove_partial(folder)  # of killed workers


def perform(task: WorkerTask) -> dict[str, Any]:
    """Execute the run of a task and write its record.

    Parameters
    ----------
    task : WorkerTask
        WorkerTask of :func:`run_on_engine`.
    """
    about = task.about
    check_versions(about["versions"])
    spec, datasets, runs = _grid(about["spec"], about["device"], about["dataset"])
    run = runs.get(about["run"])
    if run is None:
        raise EngineError(
            "The spec and the data must be the same on every machine, but this one has "
            "no such run."
        )
    with compute_threads(spec.threads):
        record = execute(run, datasets)
    save_record(Path(about["folder"]) / run.file_name, record)
    release_memory()
    return {"status": record.status}


@lru_cache(maxsize=1)
def _grid(
    path: str, device: str, dataset: int
) -> tuple[Spec, DataSource, dict[str, Run]]:
    """Return spec, data and runs of one dataset, cached for the next run on it."""
    spec = load_spec(path)
    datasets = DataSource(device)
    spec = replace(spec, device=device, datasets=(spec.datasets[dataset],))
    return spec, datasets, {run.run_id: run for run in expand(spec, datasets)}


def _record(path: Path, run: Run, result: TaskResult) -> Record:
    """Return the record that a task wrote, or write one about the worker's failure."""
    if result.state == "done":
        try:
            return load_record(path)
        except (FileNotFoundError, FileFormatError) as error:
            raise EngineError(
                f"A worker wrote {path.name}, but it is not in {path.parent}: every "
                "worker must reach that folder by the same path."
            ) from error
    record = failed_record(run, EngineError(result.error))
    save_record(path, record)
    return record
