"""Tasks of workers: one function per kind of task, from a shard to a result file.

``"first"`` writes features of the samples that the layer is grown on, ``"statistics"``
a model that learned one shard, ``"merge"`` the sum of such models, ``"features"``,
``"predict"`` and ``"evaluate"`` a Parquet file. Existing results of the same shard are
not computed again. A process caches the source, backbone and models that it opened;
see :func:`release_opened`.
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
from evergrow.engine.double_labels import has_digests, write_digests
from evergrow.engine.job import EXTRACTION, Job, ShardReport, read_job
from evergrow.engine.parquet_out import read_report, write_features, write_predictions
from evergrow.engine.runners import ShardError, UnfitWorkerError, WorkerTask
from evergrow.features import Features
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.learner.learner import Learner
from evergrow.learner.learning import LabelledRows
from evergrow.learner.sharded_fit import learn_shard, merge_shards
from evergrow.tools.strictness import unsure_predictions

T = TypeVar("T")


def perform(task: WorkerTask) -> ShardReport | None:
    """Run a task unless its result exists. Return the report of its shard.

    Parameters
    ----------
    task : WorkerTask
        The task. Its ``about`` has the keys of
        :meth:`~evergrow.engine.job_steps.EngineRunOptions.task_settings`. For merges it
        also has the keys of :func:`merge`. :class:`~evergrow.engine.runners.RayRunner`
        adds ``decoders``, the number of processes that decode images.

    Returns
    -------
    ShardReport or None
        None for merges.

    Raises
    ------
    ShardError
        If the shard cannot be read.
    UnfitWorkerError
        If this process has other versions or weights than the job, or cannot reach its
        folder.
    """
    work = task.work
    if work not in TASKS:
        known = ", ".join(sorted(TASKS))
        raise EngineError(f"work must be one of {known}, got {work!r}")
    check_versions(task.about["versions"])
    job = _open_job(
        task.about["folder"],
        task.about["key"],
        task.about["device"],
        task.about.get("weights"),
    )
    if work == "merge":
        folder = "merged"
    else:
        folder = work
        report = existing_report(job, work, task.number)
        if report is not None:
            return report
    (job.folder / folder).mkdir(exist_ok=True)
    return TASKS[work](job, task)


def existing_report(job: Job, stage: str, shard: int) -> ShardReport | None:
    """Return the report in the result file of a shard, or None without a valid file.

    A file is not valid if it is damaged or has another fingerprint, because the shard
    changed since.
    """
    if stage == "first":
        features = existing_first_features(job, shard)
        return None if features is None else features.engine
    path = job.result(stage, shard)
    if path.suffix == ".parquet":
        report = read_or_none(read_report, path)
    else:
        report = (read_or_none(read_part_reports, path) or {}).get(str(shard))
    if report is None or report.shard != job.fingerprint(shard):
        return None
    return report


def existing_first_features(job: Job, shard: int) -> ShardFeatures | None:
    """Return the result of :func:`first` for a shard, or None without a valid file."""
    found = read_or_none(
        partial(read_record, ShardFeatures), job.result("first", shard)
    )
    if found is None or found.engine.shard != job.fingerprint(shard):
        return None
    return found


def read_or_none(read: Callable[[Path], T], path: Path) -> T | None:
    """Return the content of a file, or None if it is missing or damaged."""
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
    evergrow.engine.runners.UnfitWorkerError: versions must be {'evergrow': '0.0.1'} ...
    """
    if versions() != expected:
        raise UnfitWorkerError(
            f"versions must be {expected} as where the job was begun, "
            f"got {versions()}: install the same versions on every machine"
        )


# -- learning


def first(job: Job, task: WorkerTask) -> ShardReport:
    """Write the features of a shard's first samples, on which the layer is grown."""
    found = shard_features(
        job, task, job.manifest.first_of(job.manifest.shards[task.number])
    )
    write_record(job.result("first", task.number), found)
    return found.engine


def statistics(job: Job, task: WorkerTask) -> ShardReport:
    """Write the part of a shard: a model that learned this shard only."""
    shard = job.manifest.shards[task.number]
    found = existing_first_features(job, task.number)
    if found is None:
        found = shard_features(job, task)
    else:
        # Only the other rows are encoded. They are learned after the first samples.
        rest = np.setdiff1d(np.arange(shard.rows), job.manifest.first_of(shard))
        if len(rest):
            found = found.extended_by(shard_features(job, task, rest))
    if not len(found):
        raise ShardError(f"shard {task.number} has no sample that can be read")
    template = _open_model(str(job.template_file), job.key, task.about["device"])
    part = learn_shard(template, LabelledRows(found.X, found.labels), task.number)
    source = _open_source(job)
    if has_digests(source):
        path = job.result("digests", task.number)
        path.parent.mkdir(exist_ok=True)
        write_digests(path, source.read(shard))
    write_part(
        job.result("statistics", task.number), part, {str(task.number): found.engine}
    )
    return found.engine


def merge(job: Job, task: WorkerTask) -> None:
    """Write the sum of some parts, added one at a time, in order.

    A part is a model that learned one shard (see :func:`statistics`), or a sum of
    parts. ``task.about`` has ``inputs``, pairs of folder and file name in the job, and
    ``target``, the file name of the sum in the folder ``merged``.
    """
    reports: dict[str, ShardReport] = {}

    def parts() -> Iterator[Learner]:
        for folder, name in task.about["inputs"]:
            path = job.folder / folder / name
            archive = read_archive(path)
            reports.update(_part_reports(path, archive))
            # Sums are computed on the CPU, so that they are the same on every machine.
            yield Learner.load(archive, name=str(path), device="cpu", cache=False)

    # Reading the parts also fills `reports`.
    total = merge_shards(parts())
    write_part(job.folder / "merged" / task.about["target"], total, reports)


@dataclass(frozen=True)
class _PartReport:
    """Value of ``engine`` in the metadata of a part: reports by shard number."""

    shards: dict[str, ShardReport]


def read_part_reports(path: Path) -> dict[str, ShardReport]:
    """Return the reports of all shards in a part or a sum, by shard number."""
    return _part_reports(path, read_archive(path))


def _part_reports(path: Path, archive: Archive) -> dict[str, ShardReport]:
    """Return the reports in the archive of a part. `path` is for messages."""
    values = archive.meta.get("engine")
    return from_values(_PartReport, values, f"the report in {path}").shards


def write_part(path: Path, part: Learner, reports: dict[str, ShardReport]) -> None:
    """Write a part or a sum, with the reports of its shards by shard number."""
    archive = part.state_.to_archive()
    archive.meta["engine"] = to_values(_PartReport(reports))
    write_archive(path, archive)


# -- predictions and features


def features(job: Job, task: WorkerTask) -> ShardReport:
    """Write the features of a shard as a Parquet file."""
    found = shard_features(job, task)
    path = job.result("features", task.number)
    widths = BackboneSpec.from_dict(job.backbone or {}).blocks.widths
    write_features(path, features=found.X, widths=widths, **found.table_columns())
    return found.engine


def predict(job: Job, task: WorkerTask) -> ShardReport:
    """Write the predictions of a shard as a Parquet file, by the job's start model.

    In an evaluation no sample is called unknown, so that every sample counts as right
    or wrong.
    """
    found = shard_features(job, task)
    path = job.result(job.work, task.number)
    model = _open_model(str(job.start_file), job.key, task.about["device"])
    predictions = model.predictions(
        Features(found.X, np.arange(len(found))),
        false_alarm=job.settings["false_alarm"],
    )
    unsure = None
    if job.work == "evaluate":
        predictions = replace(predictions, unknown=None)
    else:
        strangers = str(job.settings["strangers"])
        unsure = unsure_predictions(model.state_.calibration, predictions, strangers)
    write_predictions(
        path,
        predictions=predictions,
        top=int(job.settings["top"]),
        unsure=unsure,
        **found.table_columns(),
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
"""All kinds of tasks by name."""


# -- features of a shard


@record("engine-features")
@dataclass(frozen=True, eq=False)
class ShardFeatures:
    """Features of the readable samples of a shard, or of some of its rows.

    Files in ``first/`` have this content.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Features.
    classes : tuple of str or None
        Class of every row. None for data without labels.
    engine : ShardReport
        Report of the shard.
    names : tuple of str
        Names of the samples. Not written to the file, so empty after reading.
    """

    X: Annotated[NDArray[np.float32], Spec(("n", None), "float32")]
    classes: tuple[str, ...] | None
    engine: ShardReport
    names: tuple[str, ...] = field(default=(), metadata=UNWRITTEN)

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless rows, report and classes agree."""
        counts = {len(self), self.engine.rows}
        if self.classes is not None:
            counts.add(len(self.classes))
        require(len(counts) == 1, "it has not one class per sample")

    def __len__(self) -> int:
        return len(self.X)

    @property
    def labels(self) -> NDArray[np.str_]:
        """The classes as an array. Empty for data without labels."""
        return np.array(self.classes or (), dtype=np.str_)

    def table_columns(self) -> dict[str, Any]:
        """Return ``names``, ``labels`` and ``report`` for the Parquet writers."""
        labels = None if self.classes is None else self.labels
        return {"names": self.names, "labels": labels, "report": self.engine}

    def extended_by(self, other: ShardFeatures) -> ShardFeatures:
        """Return these labelled samples, followed by others of the same shard.

        The result has no names.
        """
        X = np.concatenate([self.X, other.X])
        classes = (*(self.classes or ()), *(other.classes or ()))
        # A class is lost only if neither part has a readable sample of it.
        lost = {*self.engine.lost, *other.engine.lost}.difference(classes)
        report = ShardReport(
            len(X),
            self.engine.shard,
            (*self.engine.left_out, *other.engine.left_out),
            tuple(sorted(lost)),
        )
        return ShardFeatures(X, classes, report)


def shard_features(
    job: Job, task: WorkerTask, rows: NDArray[np.int64] | None = None
) -> ShardFeatures:
    """Read the shard of a task and return its features.

    Parameters
    ----------
    job : Job
        Data, backbone and settings.
    task : WorkerTask
        The shard and, in ``about``, the device, the number of image decoders and the
        path of the backbone's weights.
    rows : ndarray of int, optional
        Ascending rows of the shard. By default all.

    Raises
    ------
    ShardError
        If the shard cannot be read, or one of its samples unless the job skips
        unreadable samples.
    InputError
        If the job learns or evaluates, and the data has no labels.
    """
    shard = job.manifest.shards[task.number]
    try:
        data = _open_source(job).read(shard)
        # Names may be row numbers of the shard, so they are set before rows are taken.
        data = replace(data, row_names=tuple(data.names()))
        if rows is not None:
            data = data.take(rows)
        if data.features is None:
            encoded = _encode(job, data, task)
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


def _encode(job: Job, data: Samples, task: WorkerTask) -> Features:
    """Return the features of the images or texts of a shard.

    Unreadable ones have no features. They are listed with their errors in
    ``failures``.

    Raises
    ------
    ImageError
        If an image cannot be read and the job does not skip such images.
    """
    from evergrow.features import encode

    backbone = open_backbone(job, task.about["device"], task.about.get("weights"))
    # On the CPU, decoding in further processes would compete with other workers.
    default_decoders: int | str = 0 if backbone.device.type == "cpu" else "auto"
    decoders = task.about.get("decoders", default_decoders)
    # Only settings that change features come from the job.
    settings = {name: job.settings[name] for name in EXTRACTION if name in job.settings}
    try:
        with warnings.catch_warnings():
            # The report of the shard lists unreadable samples.
            warnings.simplefilter("ignore", DataWarning)
            return encode(
                backbone, data.raw_items(), cache=False, workers=decoders, **settings
            )
    except ImageError as error:
        if not job.skips:
            raise
        # encode raises even when it skips, if no sample can be read.
        failures = tuple((name, str(error)) for name in data.row_names)
    return Features(
        X=np.empty((0, backbone.n_features), dtype=np.float32),
        rows=np.empty(0, dtype=np.int64),
        failures=failures,
    )


# -- objects that a process opens once and keeps


@lru_cache(maxsize=4)
def _open_job(folder: str, key: str, device: str, weights: str | None) -> Job:
    """Return the job of a folder, and load its backbone into the cache.

    Raises
    ------
    UnfitWorkerError
        If this process cannot write to the folder, the folder has another job, or the
        backbone cannot be loaded.
    """
    if not os.access(folder, os.R_OK | os.W_OK):
        raise UnfitWorkerError(
            "folder must be one that every worker can write to, "
            f"got {folder}, which this worker cannot"
        )
    try:
        job = read_job(folder)
        if job.key != key:
            raise EngineError(
                f"folder must hold the job {key}, got {job.key}: "
                f"another job was started in {folder}"
            )
        if job.manifest.kind != "features":
            open_backbone(job, device, weights)
    except EvergrowError as error:
        raise UnfitWorkerError(str(error)) from error
    return job


@lru_cache(maxsize=2)
def _open_source(job: Job) -> Source:
    from evergrow.data import source_from

    return source_from(job.manifest.source)


@lru_cache(maxsize=2)
def open_backbone(job: Job, device: str, weights: str | None = None) -> Backbone:
    """Return the backbone of the start model, or else the one of ``job.json``.

    Raises
    ------
    InputError
        If neither has one.
    """
    if job.start_file.is_file():
        found = _open_model(str(job.start_file), job.key, device, weights).backbone_()
        if found is not None:
            return found  # type: ignore[no-any-return]
    if job.backbone is None:
        raise InputError(
            "samples must be feature vectors, because the job has no backbone, "
            "got images or texts"
        )
    from evergrow.features.catalog import backbone_from_spec

    return backbone_from_spec(
        BackboneSpec.from_dict(job.backbone), weights=weights, device=device
    )


@lru_cache(maxsize=4)
def _open_model(
    path: str, key: str, device: str, weights: str | None = None
) -> Learner:
    """Return a model of the job, which is cached and must not be changed.

    `key` is the key of the job. It makes equal paths of different jobs different.
    """
    return Learner.load(
        path, weights=weights, device=None if device == "auto" else device, cache=False
    )


def release_opened() -> None:
    """Drop the cached jobs, sources, backbones and models of this process."""
    for opened in (_open_job, _open_source, open_backbone, _open_model):
        opened.cache_clear()
