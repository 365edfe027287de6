"""Fit and update of a model, shard by shard: a layer from a sample, statistics of every shard, their sum.

Floating-point sums depend on their order. Here a tree over the shards fixes it, which
only the number of shards decides: the result is the same to the last bit whatever the
number of workers and whoever is done first. A shard that was left out leaves its place
empty and moves nobody else. A part goes once the sum that holds it is written, so that
neither memory nor disk grows with the data.

The steps at the end run the tasks of any job, questions to a model too. A step leaves
files behind; what it returns is only counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.archive import archive_digest, read_archive, write_archive
from evergrow.core.errors import EngineError, InputError, ParameterError
from evergrow.core.files import locked, remove_leftovers
from evergrow.core.progress import meter
from evergrow.core.record import write_document
from evergrow.data import source_from
from evergrow.engine.job import (
    Job,
    JobReport,
    Manifest,
    Work,
    begin_job,
    digest_of,
    extraction_settings,
)
from evergrow.engine.runners import Runner, TaskResult, WorkerTask
from evergrow.engine.worker_tasks import (
    ShardFeatures,
    first_features,
    forget_opened,
    if_whole,
    reports_of,
    versions,
)
from evergrow.features.backbone import BackboneSpec
from evergrow.learner import empty_copy
from evergrow.learner.encoder import Encoder
from evergrow.learner.learner import Learner
from evergrow.learner.learning import LabelledRows
from evergrow.learner.sharded_fit import (
    adopt,
    check_mergeable,
    complete_fit,
    complete_update,
    deciding_settings,
    encoder_for,
    with_layer,
)

FAN_IN = 8
"""Parts that are added at once. Part of the result: another number is another order."""
AT_ONCE = 64
"""Shards of a round; their parts lie in the folder until they are added up."""
_PER_WORKER = 4
"""Shards of a round for each worker, where that is more: at its end workers wait for the last of them."""


def fit(
    learner: Learner, manifest: Manifest, folder: Path, options: EngineRunOptions
) -> JobReport:
    """Let a learner forget everything and learn a data set.

    Parameters
    ----------
    learner : Learner
        What learns.
    manifest : Manifest
        The data.
    folder : Path
        Where results are kept.
    options : EngineRunOptions
        How it is run.

    Returns
    -------
    JobReport
        What was learned.
    """
    check_mergeable(learner, fresh=True)
    encoder = encoder_for(
        learner,
        manifest.kind,
        manifest.widths,
        lambda: source_from(manifest.source).read(manifest.shards[0]),
    )
    if encoder.spec is None:
        decisive = None
    else:
        decisive = encoder.spec.decisive()
    settings = {
        **deciding_settings(learner),
        **extraction_settings(learner),
        "backbone": decisive,
        "fan_in": FAN_IN,
    }
    backbone = None
    if encoder.spec is not None:
        backbone = portable(encoder.spec)
    return _learned(
        learner,
        begin_job(Job(folder, manifest, "fit", settings, backbone)),
        options,
        encoder,
    )


def update(
    learner: Learner, manifest: Manifest, folder: Path, options: EngineRunOptions
) -> JobReport:
    """Let a learner learn a data set beside what it knows; arguments and result are those of :func:`fit`."""
    check_mergeable(learner, fresh=False)
    if learner.state_.spec is not None:
        portable(learner.state_.spec)
    job = model_job(learner, manifest, folder, "update", fan_in=FAN_IN)
    if _done(job) is None and if_whole(read_archive, job.template) is None:
        template = empty_copy(learner)
        template.head_.with_expected_rows(
            sum(learner.state_.label_counts.values()) + manifest.rows
        )
        write_archive(job.template, template.state_.to_archive())
    return _learned(learner, job, options, None)


def _done(job: Job) -> JobReport | None:
    """Return what a job did whose result is there; None where something is left to be done."""
    if if_whole(read_archive, job.model) is None:
        return None
    return job.finished()


def _learned(
    learner: Learner, job: Job, options: EngineRunOptions, encoder: Encoder | None
) -> JobReport:
    """Do what is left of a job, and let the learner know the result."""
    if (done := _done(job)) is not None:
        adopt(learner, _loaded(job.model, options))
        return done
    try:
        with locked(job.folder):
            _make_template(learner, job, options, encoder)
            report = JobReport(job.key, unreadable=dict(job.manifest.unreadable))
            with meter(
                "learning", len(job.manifest.shards), enabled=options.progress
            ) as tick:
                path = ShardMerge(job, report, options).run(tick)
            total = _loaded(path, options)
            _check_counted(job, total, report)
            if job.work == "fit":
                complete = complete_fit
            else:
                complete = complete_update
            sample = _sample(job, skipped=report.failed)
            if strange := sorted({*sample.labels} - {*total.state_.counts}):
                raise EngineError(
                    f"{job.folder / 'first'} was changed: no shard has its class {strange[0]!r:.60}"
                )
            complete(learner, total, sample)
            learner.save(job.model)
            finish(job, report, ("first", "statistics", "merged"))
            return report
    finally:
        forget_opened()


def _loaded(path: Path, options: EngineRunOptions) -> Learner:
    return Learner.load(
        path, device=None if options.device == "auto" else options.device, cache=False
    )


def _make_template(
    learner: Learner, job: Job, options: EngineRunOptions, encoder: Encoder | None
) -> None:
    """Write the features of all first samples, and grow the layer on them unless that is done."""
    missing = [
        number for number in _with_first(job) if first_features(job, number) is None
    ]
    report = run_shards(job, "first", missing, options, "first samples")
    if if_whole(read_archive, job.template) is None:
        assert encoder is not None
        template = with_layer(learner, encoder, _sample(job, skipped=report.failed))
        template.head_.with_expected_rows(job.manifest.rows)
        template.save(job.template)


def _with_first(job: Job) -> list[int]:
    """Return the shards that have some of the first samples."""
    return [
        shard.number
        for shard in job.manifest.shards
        if len(job.manifest.first_of(shard))
    ]


def _sample(job: Job, skipped: Iterable[str]) -> LabelledRows:
    """Return the first samples of all shards but those that were left out."""
    kept: list[tuple[int, ShardFeatures]] = []
    for number in sorted(set(_with_first(job)).difference(map(int, skipped))):
        found = first_features(job, number)
        path = job.result("first", number)
        if found is None and (path.is_file() or not job.skips):
            raise EngineError(
                f"{path} is gone, damaged or of another shard: was the folder changed? Run it again."
            )
        if found is not None and len(found):
            kept.append((number, found))
    if not kept:
        raise InputError(
            "data must have at least one sample that can be read, got none"
        )
    widths = {found.X.shape[1]: number for number, found in reversed(kept)}
    if len(widths) > 1:
        listed = " and ".join(
            f"{width} in shard {number}" for width, number in reversed(widths.items())
        )
        raise EngineError(f"shards must have features of one width, got {listed}")
    labels = np.concatenate([found.labels for _, found in kept])
    return LabelledRows(np.concatenate([found.X for _, found in kept]), labels)


def _check_counted(job: Job, total: Learner, report: JobReport) -> None:
    """Raise unless every sample was counted once, and every class has one that could be read."""
    learned = sum(total.state_.counts.values())
    told = report.rows
    wanted = sum(
        shard.rows
        for shard in job.manifest.shards
        if str(shard.number) not in report.failed
    )
    left_out = len(report.samples_left_out())
    if learned != told or told + left_out != wanted:
        raise EngineError(
            f"every sample must be counted once, but of {wanted} samples {left_out} were left out and "
            f"{learned} learned: delete {job.folder} and begin anew"
        )
    lost = sorted(
        {name for each in report.shards.values() for name in each.lost}
        - set(total.state_.counts)
    )
    if lost:
        raise InputError(
            f"every class must keep a sample that can be read, got none of {lost[0]!r}"
        )


# -- the sum of all shards -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Node:
    """A place in the tree of sums: a shard at level 0, a sum of shards above.

    Parameters
    ----------
    level : int
        0 for shards, 1 for sums of shards, and so on.
    number : int
        Place in the level, from the left.
    leaves : range
        The shards below it.
    children : tuple of Node
        What is added up in it.
    """

    level: int
    number: int
    leaves: range
    children: tuple[Node, ...] = ()

    def file(self, job: Job, without: Set[int] = frozenset()) -> Path:
        """Return where its file lies; a sum that lacks shards has another name, so that it is never taken for all."""
        if not self.level:
            return job.result("statistics", self.number)
        missing = sorted(without & set(self.leaves))
        name = f"{self.level}-{self.number:06d}"
        return job.result(
            "merged", f"{name}-without-{digest_of(missing)}" if missing else name
        )

    def topmost(self, there: Callable[[Node], bool]) -> Iterator[Node]:
        """Yield the nodes that are there, without those below them: what a sum holds need not be there."""
        if there(self):
            yield self
        else:
            for child in self.children:
                yield from child.topmost(there)


def merge_tree(n_shards: int, fan_in: int = FAN_IN) -> list[list[Node]]:
    """Return the tree over a number of shards, level by level from the shards up to the sum of everything.

    Parameters
    ----------
    n_shards : int
        How many there are.
    fan_in : int
        Children of a node.

    Examples
    --------
    >>> from evergrow.engine.fitting import merge_tree
    >>> [[list(node.leaves) for node in level] for level in merge_tree(10, fan_in=4)[1:]]
    [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]]
    """
    levels = [
        [Node(0, number, range(number, number + 1)) for number in range(n_shards)]
    ]
    while len(levels[-1]) > 1:
        groups = [
            tuple(levels[-1][start : start + fan_in])
            for start in range(0, len(levels[-1]), fan_in)
        ]
        spans = [
            range(group[0].leaves.start, group[-1].leaves.stop) for group in groups
        ]
        level = len(levels)
        levels.append(
            [
                Node(level, *numbered)
                for numbered in zip(range(len(groups)), spans, groups, strict=True)
            ]
        )
    return levels


class ShardMerge:
    """Learns all shards of a job and adds them up, in rounds; sums are formed as soon as their parts are there.

    Parameters
    ----------
    job : Job
        The job, whose template is there.
    report : JobReport
        Is told of every shard.
    options : EngineRunOptions
        How it is run.
    at_once : int or None
        Shards of a round; by default 64, or four for each worker where that is more.
    """

    def __init__(
        self,
        job: Job,
        report: JobReport,
        options: EngineRunOptions,
        at_once: int | None = None,
    ) -> None:
        self._job = job
        self._report = report
        self._options = options
        if at_once is None:
            self._at_once = max(AT_ONCE, _PER_WORKER * options.runner.workers)
        else:
            self._at_once = at_once
        self._root = merge_tree(len(job.manifest.shards))[-1][0]
        self._empty: set[int] = set()  # shards that were left out
        self._done = set(
            self._root.topmost(self._recovered)
        )  # what has a file, but is in no larger sum

    def run(self, tick: Callable[[int, str], None]) -> Path:
        """Learn and add up what is missing, and return the file of the sum of all."""
        root = self._root
        while not self._is_settled(root):
            ready = list(self._open(root))
            sums, shards = (
                [node for node in ready if bool(node.level) is level]
                for level in (True, False)
            )
            leaves = {node.number: node for node in shards[: self._at_once]}
            tasks = [self._merge(number, node) for number, node in enumerate(sums)]
            tasks += self._options.shard_tasks(self._job, "statistics", leaves)
            for result in run_tasks(self._job, self._options, tasks):
                if result.task.work == "merge":
                    self._see_sum(sums[result.task.number])
                    continue
                if result.state == "done":
                    self._done.add(leaves[result.task.number])
                else:
                    self._empty.add(result.task.number)
                self._report.see(result)
                tick(*self._report.progress())
        if self._empty.issuperset(root.leaves):
            raise EngineError(
                f"data must have at least one shard that can be read, got none of "
                f"{len(self._job.manifest.shards)}: "
                + next(iter(self._report.failed.values()), "")
            )
        return root.file(self._job, self._empty)

    def _open(self, node: Node) -> Iterator[Node]:
        """Yield the shards that are still to be learned and the sums whose parts are there, from a node down."""
        if not self._is_settled(node):
            if all(map(self._is_settled, node.children)):
                yield node
            for child in node.children:
                yield from self._open(child)

    def _recovered(self, node: Node) -> bool:
        """Return whether an earlier run left the file of a node, and count its shards."""
        reports = if_whole(reports_of, node.file(self._job)) or {}
        found = {number: report.shard for number, report in reports.items()}
        if found != {
            str(leaf): self._job.fingerprint(leaf) for leaf in node.leaves
        }:  # also where there is no file
            return False
        self._report.shards.update(reports)
        return True

    def _is_settled(self, node: Node) -> bool:
        return node in self._done or self._empty.issuperset(node.leaves)

    def _merge(self, number: int, node: Node) -> WorkerTask:
        """Return the task that forms a sum."""
        children = [
            child for child in node.children if not self._empty.issuperset(child.leaves)
        ]
        inputs = [child.file(self._job, self._empty) for child in children]
        target = node.file(self._job, self._empty).name
        about = {
            "target": target,
            "inputs": [[path.parent.name, path.name] for path in inputs],
        }
        return WorkerTask("merge", number, {**self._options.about(self._job), **about})

    def _see_sum(self, node: Node) -> None:
        """Count a sum as formed, and remove its parts."""
        self._done.add(node)
        if not self._empty & set(
            node.leaves
        ):  # a sum that lacks a shard may be formed again with it
            for child in node.children:
                child.file(self._job).unlink(missing_ok=True)


# -- the steps of any job --------------------------------------------------------------


@dataclass(frozen=True)
class EngineRunOptions:
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
        where = {
            "folder": str(job.folder),
            "device": self.device,
            "weights": self.weights,
        }
        return {**where, "key": job.key, "versions": versions()}

    def shard_tasks(
        self, job: Job, work: str, shards: Iterable[int]
    ) -> list[WorkerTask]:
        """Return one task for each of these shards."""
        about = self.about(job)
        return [WorkerTask(work, number, about) for number in shards]


def run_tasks(
    job: Job, options: EngineRunOptions, tasks: Sequence[WorkerTask]
) -> Iterator[TaskResult]:
    """Run tasks and yield every result; a failure that the job does not go on without ends all.

    Raises
    ------
    EngineError
        If a task failed, unless it was a shard that cannot be read and the job skips
        such, or a worker has other versions or weights than the job, or does not reach
        its folder.
    """
    with closing(options.runner.run(tasks)) as results:  # type: ignore[type-var]
        for result in results:
            work = result.task.work
            number = result.task.number
            error = result.error
            if result.state == "failed" or (
                result.state == "unreadable" and not job.skips
            ):
                if work == "merge":
                    what = "a merge"
                else:
                    what = f"{work} of shard {number}"
                if error.startswith("shard "):
                    error = error
                else:
                    error = f"{what} failed: {error}"
                raise EngineError(
                    f"{error}; what is done is kept in {job.folder}, and the same command goes on from there"
                )
            yield result


def run_shards(
    job: Job, work: str, shards: Iterable[int], options: EngineRunOptions, title: str
) -> JobReport:
    """Do one kind of task with shards, and return what was done.

    Parameters
    ----------
    job : Job
        The job.
    work : str
        What is done with them.
    shards : iterable of int
        Their numbers.
    options : EngineRunOptions
        How it is done.
    title : str
        What the bar is called.
    """
    report = JobReport(job.key, unreadable=dict(job.manifest.unreadable))
    tasks = options.shard_tasks(job, work, shards)
    with meter(title, len(tasks), enabled=options.progress and bool(tasks)) as tick:
        for result in run_tasks(job, options, tasks):
            report.see(result)
            tick(*report.progress())
    return report


def finish(job: Job, report: JobReport, folders: Iterable[str] = ()) -> None:
    """Write that a job is done; remove folders that only led there, and what killed workers left half-written."""
    write_document(job.finish, report)
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


def model_job(
    learner: Learner, manifest: Manifest, folder: Path, work: Work, **settings: Any
) -> Job:
    """Begin a job on a model, or take it up again; ``settings`` is what else decides the result."""
    model = learner.state_.to_archive()
    decisive = {
        "model": archive_digest(model),
        **extraction_settings(learner),
        **settings,
    }
    job = begin_job(Job(folder, manifest, work, decisive))
    if if_whole(read_archive, job.start) is None:
        write_archive(job.start, model)
    return job


def all_shards(job: Job, options: EngineRunOptions) -> JobReport:
    """Do the task of a job with all shards, and return what was done."""
    try:
        with locked(job.folder):
            report = run_shards(
                job, job.work, range(len(job.manifest.shards)), options, job.work
            )
            if not report.shards:
                why = next(iter(report.failed.values()))
                raise EngineError(
                    f"data must have a shard that can be read, got none: {why}"
                )
            finish(job, report)
            return report
    finally:
        forget_opened()
