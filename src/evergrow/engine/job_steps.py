"""Steps that all jobs share: start a job, run its tasks, finish it."""

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
from evergrow.engine.job import (
    Job,
    JobReport,
    Manifest,
    Work,
    begin_job,
    extraction_settings,
)
from evergrow.engine.runners import Runner, TaskResult, WorkerTask
from evergrow.engine.worker_tasks import read_or_none, release_opened, versions
from evergrow.features.backbone import BackboneSpec
from evergrow.learner.learner import Learner


@dataclass(frozen=True)
class EngineRunOptions:
    """How a job is run. These options do not change the results.

    Parameters
    ----------
    runner : Runner
        Runs the tasks.
    device : str, default="auto"
        Device that workers compute on.
    progress : bool, default=False
        Whether to show a progress bar.
    weights : str, optional
        Path of the backbone's weights on the workers, if it differs from the path in
        the model.
    """

    runner: Runner
    device: str = "auto"
    progress: bool = False
    weights: str | None = None

    @property
    def model_device(self) -> str | None:
        """The device as an argument of `Learner.load`, which takes None for "auto"."""
        if self.device == "auto":
            return None
        return self.device

    def task_settings(self, job: Job) -> dict[str, Any]:
        """Return what every task of a job needs in ``about``.

        Returns
        -------
        dict
            ``folder`` and ``key`` of the job, ``device`` and ``weights`` from
            here, and ``versions``, which the worker must have.
        """
        return {
            "folder": str(job.folder),
            "device": self.device,
            "weights": self.weights,
            "key": job.key,
            "versions": versions(),
        }

    def shard_tasks(
        self, job: Job, work: str, shards: Iterable[int]
    ) -> list[WorkerTask]:
        """Return one task of the kind `work` per shard."""
        settings = self.task_settings(job)
        return [WorkerTask(work, shard, settings) for shard in shards]


def run_tasks(
    job: Job, options: EngineRunOptions, tasks: Sequence[WorkerTask]
) -> Iterator[TaskResult]:
    """Run tasks and yield their results as they finish, in any order.

    Raises
    ------
    EngineError
        If a task failed. Unreadable shards are yielded instead if the job skips them.
    UnfitWorkerError
        If a worker has other versions or weights than the job, or cannot reach its
        folder.
    """
    with closing(options.runner.run(tasks)) as results:  # type: ignore[type-var]
        for result in results:
            is_skipped = result.state == "unreadable" and job.skips
            if result.state != "done" and not is_skipped:
                raise EngineError(
                    f"{_failure(result)}; finished results are kept in {job.folder}, "
                    "and the same command continues from there"
                )
            yield result


def _failure(result: TaskResult) -> str:
    """Describe a failure. Errors about a shard already name it."""
    if result.error.startswith("shard "):
        return result.error
    task = result.task
    if task.work == "merge":
        return f"a merge failed: {result.error}"
    return f"{task.work} of shard {task.number} failed: {result.error}"


def run_shards(
    job: Job, work: str, shards: Iterable[int], options: EngineRunOptions, title: str
) -> JobReport:
    """Run one kind of task on shards, with a progress bar.

    Parameters
    ----------
    job : Job
        The job.
    work : str
        Kind of the tasks.
    shards : iterable of int
        Shard numbers.
    options : EngineRunOptions
        How the job is run.
    title : str
        Title of the progress bar.

    Returns
    -------
    JobReport
        Report of the shards: finished ones, and failed ones if the job skips.
    """
    report = JobReport(job.key, unreadable=dict(job.manifest.unreadable))
    tasks = options.shard_tasks(job, work, shards)
    with meter(title, len(tasks), enabled=options.progress and bool(tasks)) as tick:
        for result in run_tasks(job, options, tasks):
            report.add(result)
            tick(*report.progress())
    return report


def finish_job(job: Job, report: JobReport, folders: Iterable[str] = ()) -> None:
    """Write the final report of a job, then delete files that only the job needed.

    These are the given folders, the template, and temporary files of killed workers.
    """
    write_document(job.report_file, report)
    for folder in folders:
        shutil.rmtree(job.folder / folder, ignore_errors=True)
    job.template_file.unlink(missing_ok=True)
    remove_leftovers(job.folder, "**/.*")


def portable_description(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description from which workers load a backbone, for :class:`Job`.

    Raises
    ------
    ParameterError
        If the backbone is a module of this process, which workers do not have.
    """
    for network in spec.networks:
        if network.weights == "module":
            raise ParameterError(
                "backbone must be one that workers can load by its name with an "
                f"engine, got the module {network.name}"
            )
    return spec.to_dict()


def model_job(
    learner: Learner, manifest: Manifest, folder: Path, work: Work, **settings: Any
) -> Job:
    """Start or resume a job on a model, and write the model to the folder of the job.

    Parameters
    ----------
    learner : Learner
        The model.
    manifest : Manifest
        The data.
    folder : Path
        Folder of the job.
    work : str
        Kind of the job.
    **settings
        Settings that decide the results, besides the model and
        :func:`~evergrow.engine.job.extraction_settings`.
    """
    model = learner.state_.to_archive()
    decisive = {
        "model": archive_digest(model),
        **extraction_settings(learner),
        **settings,
    }
    job = begin_job(Job(folder, manifest, work, decisive))
    if read_or_none(read_archive, job.start_file) is None:
        write_archive(job.start_file, model)
    return job


def all_shards(job: Job, options: EngineRunOptions) -> JobReport:
    """Run the task of a job on all shards, and finish the job.

    Only one process at a time can do so.

    Raises
    ------
    BusyError
        If another process works on the job.
    EngineError
        If a task failed, or no shard can be read.
    """
    try:
        with locked(job.folder):
            shards = range(len(job.manifest.shards))
            report = run_shards(job, job.work, shards, options, job.work)
            if not report.shards:
                reason = next(iter(report.failed.values()))
                raise EngineError(
                    f"data must have a shard that can be read, got none: {reason}"
                )
            finish_job(job, report)
            return report
    finally:
        release_opened()
