"""What workers do: one function per kind of task, from a shard to a file of results that any retry writes the same.

A result that is there, whole and of this very shard is not made again. A process opens
source, backbone and models once and keeps them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    EngineError,
    EvergrowError,
    FileFormatError,
    ImageError,
    InputError,
)
from evergrow.core.record import (
    UNWRITTEN,
    Spec,
    from_values,
    read_record,
    record,
    require,
    to_values,
    write_record,
)
from evergrow.core.version import __version__
from evergrow.data import Samples, Source
from evergrow.engine.job import EXTRACTION, Job, ShardReport, read_job
from evergrow.engine.parquet_out import read_report, write_answers, write_features
from evergrow.engine.runners import ShardError, UnfitWorkerError, WorkerTask
from evergrow.features import Features
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.learner.learner import Learner
from evergrow.learner.learning import LabelledRows
from evergrow.learner.sharded_fit import learn_shard, merge_shards

Kept = TypeVar("Kept")


def perform(task: WorkerTask) -> ShardReport | None:
    """Do a task, unless its result is there, and return the report of its shard; a sum has none.

    Parameters
    ----------
    task : WorkerTask
        Its ``about`` names folder, key, device and versions of the job, and what this
        kind of task needs beside.

    Raises
    ------
    ShardError
        If the shard cannot be read.
    UnfitWorkerError
        If this process has other versions or weights than the job, or does not reach
        its folder.
    """
    if task.work not in TASKS:
        raise EngineError(
            f"work must be one of {', '.join(sorted(TASKS))}, got {task.work!r}"
        )
    check_versions(task.about["versions"])
    job = _job(
        task.about["folder"],
        task.about["key"],
        task.about["device"],
        task.about.get("weights"),
    )
    report = None
    if task.work != "merge":
        report = finished(job, task.work, task.number)
    if report is None:
        (job.folder / ("merged" if task.work == "merge" else task.work)).mkdir(
            exist_ok=True
        )
        report = TASKS[task.work](job, task)
    return report


def finished(job: Job, stage: str, shard: int) -> ShardReport | None:
    """Return the report in the result of a shard; None unless the file is there, whole, and that of this shard."""
    if stage == "first":
        found = first_features(job, shard)
        return None if found is None else found.engine
    path = job.result(stage, shard)
    if path.suffix == ".parquet":
        report = if_whole(read_report, path)
    else:
        report = (if_whole(reports_of, path) or {}).get(str(shard))
    if report is None or report.shard != job.fingerprint(shard):
        return None
    return report


def first_features(job: Job, shard: int) -> ShardFeatures | None:
    """Return the features of a shard's first samples; None unless their file is there, whole, and of this shard."""
    found = if_whole(partial(read_record, ShardFeatures), job.result("first", shard))
    if found is None or found.engine.shard != job.fingerprint(shard):
        return None
    return found


def if_whole(read: Callable[[Path], Kept], path: Path) -> Kept | None:
    """Return what a file holds, checksum compared; None where it is not there or not whole."""
    try:
        return read(path)
    except (FileNotFoundError, FileFormatError):
        return None


def versions() -> dict[str, str]:
    """Return the versions that every worker of a job must have."""
    return {"evergrow": __version__, "torch": torch.__version__}


def check_versions(expected: dict[str, str]) -> None:
    """Raise :class:`UnfitWorkerError` unless this process has these versions.

    Examples
    --------
    >>> from evergrow.engine.worker_tasks import check_versions
    >>> check_versions({"evergrow": "0.0.1"})
    Traceback (most recent call last):
        ...
    evergrow.engine.runners.UnfitWorkerError: versions must be {'evergrow': '0.0.1'} as where the job was begun, got ...
    """
    if versions() != expected:
        raise UnfitWorkerError(
            f"versions must be {expected} as where the job was begun, got {versions()}"
        )


# -- learning --------------------------------------------------------------------------


def first(job: Job, task: WorkerTask) -> ShardReport:
    """Write the features of those samples of a shard that the layer is grown on."""
    found = shard_features(
        job, task, job.manifest.first_of(job.manifest.shards[task.number])
    )
    write_record(job.result("first", task.number), found)
    return found.engine


def statistics(job: Job, task: WorkerTask) -> ShardReport:
    """Write what a shard teaches: a model of its samples alone. Their features stay here."""
    rows = np.arange(job.manifest.shards[task.number].rows)
    found = first_features(job, task.number)
    if found is None:
        found = shard_features(job, task, rows)
    else:  # those of the first samples are only read
        rest = np.setdiff1d(
            rows, job.manifest.first_of(job.manifest.shards[task.number])
        )
        if len(rest):
            found = found.and_more(shard_features(job, task, rest))
    if not len(found):
        raise ShardError(f"shard {task.number} has no sample that can be read")
    template = loaded_model(str(job.template), job.key, task.about["device"])
    part = learn_shard(template, LabelledRows(found.X, found.labels), task.number)
    write_part(
        job.result("statistics", task.number), part, {str(task.number): found.engine}
    )
    return found.engine


def merge(job: Job, task: WorkerTask) -> None:
    """Write the sum of some parts, added in their order, one at a time."""
    reports: dict[str, ShardReport] = {}

    def parts() -> Iterator[Learner]:
        for stage, name in task.about["inputs"]:
            path = job.folder / stage / Path(name).name
            archive = read_archive(path)
            reports.update(reports_of(path, archive))
            # On the CPU, where sums are added the same everywhere.
            yield Learner.load(archive, name=str(path), device="cpu", cache=False)

    total = merge_shards(parts())
    write_part(job.folder / "merged" / Path(task.about["target"]).name, total, reports)


@dataclass(frozen=True)
class _PartReport:
    shards: dict[str, ShardReport]


def reports_of(path: Path, archive: Archive | None = None) -> dict[str, ShardReport]:
    """Return the reports of the shards in the file of a part or a sum, by number."""
    if archive is None:
        archive = read_archive(path)
    else:
        archive = archive
    return from_values(
        _PartReport, archive.meta.get("engine"), f"the report in {path}"
    ).shards


def write_part(path: Path, part: Learner, reports: dict[str, ShardReport]) -> None:
    """Write the model of a part, with the reports of the shards in it."""
    archive = part.state_.to_archive()
    archive.meta["engine"] = to_values(_PartReport(reports))
    write_archive(path, archive)


# -- asking a model, and features as tables --------------------------------------------


def features(job: Job, task: WorkerTask) -> ShardReport:
    """Write the features of a shard as one Parquet file."""
    found = shard_features(job, task)
    path = job.result("features", task.number)
    widths = BackboneSpec.from_dict(job.backbone or {}).blocks.widths
    write_features(path, features=found.X, widths=widths, **found.described())
    return found.engine


def predict(job: Job, task: WorkerTask) -> ShardReport:
    """Write the answers about a shard as one Parquet file; an evaluation calls nothing unknown."""
    found = shard_features(job, task)
    path = job.result(job.work, task.number)
    model = loaded_model(str(job.start), job.key, task.about["device"])
    answers = model.ask(
        Features(found.X, np.arange(len(found))),
        false_alarm=job.settings["false_alarm"],
    )
    if job.work == "evaluate":
        answers = replace(answers, unknown=None)
    write_answers(
        path, answers=answers, top=int(job.settings["top"]), **found.described()
    )
    return found.engine


TASKS: dict[str, Callable[[Job, WorkerTask], ShardReport | None]] = {
    "first": first,
    "statistics": statistics,
    "merge": merge,
    "evaluate": predict,
    "features": features,
    "predict": predict,
}
"""Every kind of task by name."""


# -- from a shard to features ----------------------------------------------------------


@record("engine-features")
@dataclass(frozen=True, eq=False)
class ShardFeatures:
    """Features of the samples of a shard that could be read; what the files in ``first/`` hold.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The features.
    classes : tuple of str or None
        Their classes.
    engine : ShardReport
        The shard, and what of it could not be read.
    names : tuple of str
        Names of the samples; no part of the file.
    """

    X: Annotated[NDArray[np.float32], Spec(("n", None), "float32")]
    classes: tuple[str, ...] | None
    engine: ShardReport
    names: tuple[str, ...] = field(default=(), metadata=UNWRITTEN)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where a file has not one class for every row."""
        counts = {
            len(self),
            self.engine.rows,
            len(self if self.classes is None else self.classes),
        }
        require(len(counts) == 1, "its samples are not as many as their classes")

    def __len__(self) -> int:
        return len(self.X)

    @property
    def labels(self) -> NDArray[np.str_]:
        """Their classes as an array."""
        return np.array(self.classes or (), dtype=np.str_)

    def described(self) -> dict[str, Any]:
        """Return what a table says of the samples beside features or answers."""
        labels = None if self.classes is None else self.labels
        return {"names": self.names, "labels": labels, "report": self.engine}

    def and_more(self, other: ShardFeatures) -> ShardFeatures:
        """Return these labelled samples with others of the same shard after them."""
        classes = (*(self.classes or ()), *(other.classes or ()))
        lost = tuple(
            sorted({*self.engine.lost, *other.engine.lost}.difference(classes))
        )
        left_out = (*self.engine.left_out, *other.engine.left_out)
        report = ShardReport(len(self) + len(other), self.engine.shard, left_out, lost)
        return ShardFeatures(np.concatenate([self.X, other.X]), classes, report)


def shard_features(
    job: Job, task: WorkerTask, rows: NDArray[np.int64] | None = None
) -> ShardFeatures:
    """Return the features of the shard of a task, or of some rows of it.

    Parameters
    ----------
    job : Job
        Data, backbone and settings.
    task : WorkerTask
        Which shard, where to compute, how many processes decode images, and where the
        backbone's weights are.
    rows : ndarray of int, optional
        Rows of it, ascending; all by default.

    Raises
    ------
    ShardError
        If the shard cannot be read, or, unless the job skips such, an item of it.
    """
    shard = job.manifest.shards[task.number]
    try:
        data = _source(job).read(shard)
        data = replace(data, row_names=tuple(data.names()))
        if rows is not None:
            data = data.take(rows)
        if data.features is None:
            encoded = _encoded(job, data, task)
        else:
            encoded = Features(data.features, np.arange(len(data)))
    except (InputError, FileFormatError, DatasetNotFoundError) as error:
        file = shard.where.get("file")
        place = f" ({file})" if isinstance(file, str) else ""
        raise ShardError(
            f"shard {shard.number}{place} cannot be read: {error}"
        ) from error
    if data.labels is None and job.work not in ("features", "predict"):
        raise InputError("data must have labels, got none")
    classes = None
    lost = set[str]()
    if data.labels is not None:
        classes = tuple(map(str, data.labels[encoded.rows].tolist()))
        lost = set(map(str, data.labels.tolist())).difference(classes)
    names = tuple(data.row_names[row] for row in encoded.rows)
    X = np.ascontiguousarray(encoded.X, dtype=np.float32)
    report = ShardReport(
        len(X), job.fingerprint(shard.number), encoded.failures, tuple(sorted(lost))
    )
    return ShardFeatures(X, classes, report, names)


def _encoded(job: Job, data: Samples, task: WorkerTask) -> Features:
    from evergrow.features import encode

    backbone = backbone_of(job, task.about["device"], task.about.get("weights"))
    decoders = task.about.get(
        "decoders", 0 if backbone.device.type == "cpu" else "auto"
    )
    settings = {name: job.settings[name] for name in EXTRACTION if name in job.settings}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DataWarning
            )  # the job names in the end what was left out
            return encode(
                backbone, data.raw_items(), cache=False, workers=decoders, **settings
            )
    except ImageError as error:
        if not job.skips:
            raise
        failures = tuple(
            (name, str(error)) for name in data.row_names
        )  # none can be read
    return Features(
        np.empty((0, backbone.n_features), dtype=np.float32),
        np.empty(0, dtype=np.int64),
        failures,
    )


# -- what a process opens once ---------------------------------------------------------


@lru_cache(maxsize=4)
def _job(folder: str, key: str, device: str, weights: str | None) -> Job:
    """Return the job of a folder, or raise :class:`UnfitWorkerError` where this process cannot work on it."""
    if not os.access(folder, os.R_OK | os.W_OK):
        raise UnfitWorkerError(
            f"folder must be one that every worker can write to, got {folder}, which this cannot"
        )
    try:
        job = read_job(folder)
        if job.key != key:
            raise EngineError(
                f"folder must hold the job {key}, got {job.key}: another job was begun in {folder}"
            )
        if job.manifest.kind != "features":  # it is kept, for the tasks to come
            backbone_of(job, device, weights)
    except EvergrowError as error:
        raise UnfitWorkerError(str(error)) from error
    return job


@lru_cache(maxsize=2)
def _source(job: Job) -> Source:
    from evergrow.data import source_from

    return source_from(job.manifest.source)


@lru_cache(maxsize=2)
def backbone_of(job: Job, device: str, weights: str | None = None) -> Backbone:
    """Return the start model's backbone, or else the one described in job.json."""
    if job.start.is_file():
        found = loaded_model(str(job.start), job.key, device, weights).backbone_()
        if found is not None:
            return found  # type: ignore[no-any-return]
    if job.backbone is None:
        raise InputError(
            "samples must be feature vectors, since the job has no backbone, got images or texts"
        )
    from evergrow.features.catalog import backbone_from_spec

    return backbone_from_spec(
        BackboneSpec.from_dict(job.backbone), weights=weights, device=device
    )


@lru_cache(maxsize=4)
def loaded_model(
    path: str, key: str, device: str, weights: str | None = None
) -> Learner:
    """Return a model of a job; it is not to be changed."""
    return Learner.load(
        path, weights=weights, device=None if device == "auto" else device, cache=False
    )


def forget_opened() -> None:
    """Let go of sources, backbones and models, for a process that goes on to something else."""
    for opened in (_job, _source, backbone_of, loaded_model):
        opened.cache_clear()
