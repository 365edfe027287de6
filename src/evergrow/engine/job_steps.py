"""Steps of a job: tasks handed to a runner, failures noted, and a bar that says how far it is.

A step leaves files behind; what it returns is only counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergrow.core.archive import archive_digest, read_archive, write_archive
from evergrow.core.errors import EngineError, ParameterError
from evergrow.core.files import locked, remove_leftovers
from evergrow.core.progress import meter
from evergrow.core.record import write_document
from evergrow.engine.job import Finished, Job, JobReport, Manifest, Work, begin_job, extraction_settings
from evergrow.engine.runners import Runner, Task, TaskResult
from evergrow.engine.worker_tasks import forget_opened, if_whole, versions
from evergrow.features.base import BackboneSpec
from evergrow.learner.learner import Learner


@dataclass(frozen=True)
class RunOptions:
    """How a job is run; none of it changes a result.

    Parameters
    ----------
    runner : Runner
        What runs the tasks.
    device : str
        Where workers compute.
    progress : bool
        Whether to show a bar.
    weights : str or None
        Where workers find the backbone's weights, if not where they were.
    """

    runner: Runner
    device: str = "auto"
    progress: bool = False
    weights: str | None = None

    def about(self, job: Job) -> dict[str, Any]:
        """Return what every task of a job must know."""
        where = {"folder": str(job.folder), "device": self.device, "weights": self.weights}
        return {**where, "key": job.key, "versions": versions()}

    def shard_tasks(self, job: Job, work: str, shards: Iterable[int]) -> list[Task]:
        """Return one task for each of these shards."""
        about = self.about(job)
        return [Task(work, number, about) for number in shards]


def run_tasks(job: Job, options: RunOptions, tasks: Sequence[Task]) -> Iterator[TaskResult]:
    """Run tasks and yield every result; a failure that the job does not go on without ends all.

    Raises
    ------
    EngineError
        If a task failed, unless it was a shard that cannot be read and the job skips such, or a worker has other
        versions or weights than the job, or does not reach its folder.
    """
    with closing(options.runner.run(tasks)) as results:  # type: ignore[type-var]
        for result in results:
            work, number, error = result.task.work, result.task.number, result.error
            if result.state == "failed" or (result.state == "unreadable" and not job.skips):
                what = "a merge" if work == "merge" else f"{work} of shard {number}"
                error = error if error.startswith("shard ") else f"{what} failed: {error}"
                raise EngineError(
                    f"{error}; what is done is kept in {job.folder}, and the same command goes on from there"
                )
            yield result


def run_shards(job: Job, work: str, shards: Iterable[int], options: RunOptions, title: str) -> JobReport:
    """Do one kind of task with shards, and return what was done.

    Parameters
    ----------
    job : Job
        The job.
    work : str
        What is done with them.
    shards : iterable of int
        Their numbers.
    options : RunOptions
        How it is done.
    title : str
        What the bar is called.
    """
    report, tasks = JobReport(unreadable=dict(job.manifest.unreadable)), options.shard_tasks(job, work, shards)
    with meter(title, len(tasks), enabled=options.progress and bool(tasks)) as tick:
        for result in run_tasks(job, options, tasks):
            report.see(result)
            tick(*report.progress())
    return report


def finish(job: Job, report: JobReport, folders: Iterable[str] = ()) -> None:
    """Write that a job is done; remove folders that only led there, and what killed workers left half-written."""
    left_out = tuple((name, why) for name, why in report.samples_left_out())
    failed = tuple(sorted(report.failed.items()))
    write_document(job.finish, Finished(job.key, tuple(sorted(report.rows.items())), failed, left_out))
    for folder in folders:
        shutil.rmtree(job.folder / folder, ignore_errors=True)
    job.template.unlink(missing_ok=True)
    remove_leftovers(job.folder, "**/.*")


def portable(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone that any worker can load, or raise :class:`ParameterError`."""
    if spec.weights == "module":
        raise ParameterError(
            f"backbone must be one that workers can load by its name with engine, got the module {spec.name}"
        )
    return spec.to_dict()


def model_job(learner: Learner, manifest: Manifest, folder: Path, work: Work, **settings: Any) -> Job:
    """Begin a job on a model, or take it up again; ``settings`` is what else decides the result."""
    model = learner.to_archive()
    decisive = {"model": archive_digest(model), **extraction_settings(learner), **settings}
    job = begin_job(Job(folder, manifest, work, decisive))
    if if_whole(read_archive, job.start) is None:
        write_archive(job.start, model)
    return job


def all_shards(job: Job, options: RunOptions) -> JobReport:
    """Do the task of a job with all shards, and return what was done."""
    try:
        with locked(job.folder):
            report = run_shards(job, job.work, range(len(job.manifest.shards)), options, job.work)
            if not report.rows:
                why = next(iter(report.failed.values()))
                raise EngineError(f"data must have a shard that can be read, got none: {why}")
            finish(job, report)
            return report
    finally:
        forget_opened()
