"""Steps of a job: tasks handed to a runner, failures noted, and a bar that says how far it is.

A step leaves files behind; what it returns is only counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evergrow.core.archive import archive_digest, read_archive, write_archive
from evergrow.core.errors import EngineError, ParameterError
from evergrow.core.files import locked, remove_leftovers
from evergrow.core.progress import meter
from evergrow.core.record import to_values
from evergrow.engine.job import Finished, Job, Manifest, Work, begin_job, extraction_settings, write_json
from evergrow.engine.runners import Runner, Task, TaskResult
from evergrow.engine.worker_tasks import forget_opened, if_whole, versions
from evergrow.features.base import BackboneSpec
from evergrow.learner.learner import Learner

NAMED = 5
"""Failures that a message names."""


@dataclass
class JobReport:
    """What a job has done so far.

    Parameters
    ----------
    rows : dict of int to int
        Samples of every shard that is done.
    left_out : dict of int to list
        Names and reasons of samples that could not be read, by shard.
    lost : dict of int to list
        Classes all of whose samples in a shard could not be read.
    failed : dict of int to str
        Shards that could not be done, and why.
    unreadable : dict of str to str
        Files that have no shards, since not even their contents could be listed, and why.
    """

    rows: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, list[list[str]]] = field(default_factory=dict)
    lost: dict[int, list[str]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def add(self, shard: int, report: dict[str, Any]) -> None:
        """Count a shard as done, with what its task reported."""
        self.failed.pop(shard, None)
        self.rows[shard] = int(report.get("rows", 0))
        if report.get("left_out"):
            self.left_out[shard] = report["left_out"]
        if report.get("lost"):
            self.lost[shard] = report["lost"]

    def see(self, result: TaskResult) -> None:
        """Count the shard of a task, as done or as failed."""
        if result.state == "done":
            self.add(result.task.number, result.report)
        else:
            self.failed[result.task.number] = result.error

    def progress(self) -> tuple[int, str]:
        """Return the shards that are done or failed, and a note for the bar."""
        failed = f", {len(self.failed)} shards failed" if self.failed else ""
        return len(self.rows) + len(self.failed), f"{sum(self.rows.values()):,} samples{failed}"

    def samples_left_out(self) -> list[list[str]]:
        """Return name and reason of samples that could not be read, in the order of the shards."""
        return [pair for shard in sorted(self.left_out) for pair in self.left_out[shard]]

    def summary(self) -> list[str]:
        """Return what was left out, in lines for people; none where nothing was."""
        samples = [f"{name}: {why}" for name, why in self.samples_left_out()]
        found = {
            "files could not be read and": list(self.unreadable.values()),
            "shards": [self.failed[shard] for shard in sorted(self.failed)],
            "samples could not be read and": samples,
        }
        lines = []
        for what, reasons in found.items():
            if reasons:
                more = [f"and {len(reasons) - NAMED} more"] if len(reasons) > NAMED else []
                lines.append(f"{len(reasons)} {what} were left out: {'; '.join([*reasons[:NAMED], *more])}")
        return lines

    def to_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": sum(self.rows.values()),
            "shards": len(self.rows),
            "failed": {str(shard): why for shard, why in sorted(self.failed.items())},
            "left_out": self.samples_left_out(),
            "unreadable": self.unreadable,
        }


def finished_report(job: Job) -> JobReport:
    """Return what a finished job has done, out of its folder."""
    found = job.finished()
    assert found is not None
    return JobReport(
        rows={int(shard): rows for shard, rows in found.shard_rows.items()},
        left_out={0: [list(pair) for pair in found.left_out]} if found.left_out else {},
        failed={int(shard): why for shard, why in found.failed.items()},
        unreadable=dict(job.manifest.unreadable),
    )


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
    rows = {str(shard): rows for shard, rows in sorted(report.rows.items())}
    failed = {str(shard): why for shard, why in sorted(report.failed.items())}
    left_out = tuple((name, why) for name, why in report.samples_left_out())
    write_json(job.finish, to_values(Finished(job.key, rows, failed, left_out)))
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
