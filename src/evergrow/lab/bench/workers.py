"""Runs of a spec on several processes or machines: one task per record, and the record is its result.

A task names the spec and the run; a worker reads the data for itself and writes the
record where the plan looks for it.
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
from evergrow.lab.records import Record, read_record, remove_partial, write_record


def run_on_engine(
    engine: Engine, spec: Spec, folder: Path, steps: Sequence[Step]
) -> Iterator[Step]:
    """Carry out runs on an engine and yield each with its record when it has ended.

    Parameters
    ----------
    engine : Engine
        Where.
    spec : Spec
        What the runs are of; every worker must reach its file by the same path.
    folder : Path
        Where the records go; every worker must reach it by the same path.
    steps : sequence of Step
        What to do.

    Raises
    ------
    EngineError
        If the workers have other versions, or another folder under this path.
    """
    if not steps:
        return  # a cluster need not be there for what is done
    runner = engine.runner(perform)
    try:
        about: dict[str, Any] = {
            "spec": str(spec.path.absolute()),
            "folder": str(folder.absolute()),
        }
        about |= {"device": spec.device, "versions": versions()}
        tasks = [
            WorkerTask(
                "record",
                number,
                {
                    **about,
                    "run": step.run.run_id,
                    "dataset": spec.datasets.index(step.run.data),
                },
            )
            for number, step in enumerate(steps)
        ]
        with closing(runner.run(tasks)) as results:  # type: ignore[type-var]
            for result in results:
                step = steps[result.task.number]
                step.record = _record(folder / step.run.file_name, step.run, result)
                yield step
    finally:
        runner.close()
        remove_partial(folder)  # workers that were killed may have left some


def perform(task: WorkerTask) -> dict[str, Any]:
    """Carry out the run of a task and write its record.

    Parameters
    ----------
    task : WorkerTask
        From :func:`run_on_engine`.
    """
    check_versions(task.about["versions"])
    spec, datasets, runs = _grid(
        task.about["spec"], task.about["device"], task.about["dataset"]
    )
    run = runs.get(task.about["run"])
    if run is None:
        raise EngineError(
            "the spec and the data must be the same on every machine, but the plan's run is none here"
        )
    with compute_threads(spec.threads):
        record = execute(run, datasets)
    write_record(Path(task.about["folder"]) / run.file_name, record)
    release_memory()
    return {"status": record.status}


@lru_cache(maxsize=1)
def _grid(
    path: str, device: str, dataset: int
) -> tuple[Spec, DataSource, dict[str, Run]]:
    """Return the runs of a spec on one data set, and the data: the next run is often on the same."""
    spec = load_spec(path)
    datasets = DataSource(device)
    spec = replace(spec, device=device, datasets=(spec.datasets[dataset],))
    return spec, datasets, {run.run_id: run for run in expand(spec, datasets)}


def _record(path: Path, run: Run, result: TaskResult) -> Record:
    """Return the record that a task wrote; where its worker could not, one that says so is written."""
    if result.state == "done":
        try:
            return read_record(path)
        except (FileNotFoundError, FileFormatError) as error:
            raise EngineError(
                f"a worker wrote {path.name}, but it is not in {path.parent}: every worker must reach that folder by "
                "the same path"
            ) from error
    record = failed_record(run, EngineError(result.error))
    write_record(path, record)
    return record
