"""What workers do: one function per kind of task, from a shard to a file of results that any retry writes the same.

A task looks first whether its file is there and whole; then there is nothing to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import EngineError, EvergrowError, FileFormatError
from evergrow.core.files import real_path
from evergrow.core.record import Spec, read_record, record, require, write_record
from evergrow.core.version import __version__
from evergrow.engine.job import Job, known_job
from evergrow.engine.parquet_out import read_report, write_answers, write_features
from evergrow.engine.runners import ShardError, Task
from evergrow.engine.shard_features import ShardFeatures, backbone_of, loaded_model, shard_features
from evergrow.features import Features
from evergrow.features.base import BackboneSpec
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learner import Learner
from evergrow.learner.learning import Block
from evergrow.learner.sharded_fit import learn_shard, merge_shards

Kept = TypeVar("Kept")


def perform(task: Task) -> dict[str, Any]:
    """Do a task and return its report: plain JSON values.

    Parameters
    ----------
    task : Task
        Its ``about`` names the folder and the key of the job, and what this kind of task needs beside.

    Raises
    ------
    ShardError
        If the shard cannot be read.
    """
    if task.work not in TASKS:
        raise EngineError(f"work must be one of {', '.join(sorted(TASKS))}, got {task.work!r}")
    started = time.perf_counter()
    job = known_job(str(task.about["folder"]), str(task.about["key"]))
    report = TASKS[task.work](job, {**task.about, "number": task.number})
    return {**report, "seconds": time.perf_counter() - started}


def differences(expected: dict[str, str]) -> list[str]:
    """Return in what this process differs from what a job expects, a line each.

    Parameters
    ----------
    expected : dict of str to str
        ``"evergrow"`` and ``"torch"``: versions. ``"folder"``: that of the job, which must be in reach. ``"key"``: the
        job, whose backbone must have the same weights here.

    Examples
    --------
    >>> from evergrow.engine.worker_tasks import differences
    >>> differences({"evergrow": "0.0.1"})
    ['evergrow must be 0.0.1 ..., got ...']
    """
    here = {"evergrow": __version__, "torch": torch.__version__}
    found = [
        f"{name} must be {wanted} as where the job was begun, got {here[name]}"
        for name, wanted in expected.items()
        if name in here and here[name] != wanted
    ]
    if found or "folder" not in expected:
        return found
    folder = expected["folder"]
    if not os.access(folder, os.R_OK | os.W_OK):
        return [f"folder must be one that every worker can write to, got {folder}, which this one cannot"]
    if "key" not in expected:
        return []
    try:
        job = known_job(folder, expected["key"])
        if job.manifest.kind != "features":  # it is kept, for the tasks to come
            backbone_of(folder, job.key, expected.get("device", "auto"), expected.get("weights"))
    except EvergrowError as error:
        return [str(error)]
    return []


# -- learning -------------------------------------------------------------------------------------------------


def first(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the features of those samples of a shard that the layer is grown on."""
    target = job.result("first", about["number"])
    found = if_whole(read_features, target)
    if found is None:
        found = _features(job, about, job.manifest.first_of(job.manifest.shards[about["number"]]))
        found.required_labels()
        write_record(_prepared(target), found)
    return found.report()


def statistics(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write what a shard teaches: a model of its samples alone. Their features stay here."""
    number = int(about["number"])
    target = job.result("statistics", number)
    there = if_whole(read_archive, target)
    if there is not None:
        return dict(there.meta.get("engine", {}))
    shard = job.manifest.shards[number]
    found = if_whole(read_features, job.result("first", number))
    if found is None:
        found = _features(job, about)
    else:  # those of the first samples are only read
        rest = np.setdiff1d(np.arange(shard.rows), job.manifest.first_of(shard))
        found = found.and_more(_features(job, about, rest)) if len(rest) else found
    if not len(found):
        raise ShardError(f"shard {number} has no sample that can be read")
    template = loaded_model(str(job.template), job.key, about.get("device", "auto"))
    part = learn_shard(template, Block(found.X, found.required_labels()), number)
    write_part(target, part, found.report())
    return found.report()


def merge(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the sum of some parts, added in their order, one at a time."""
    target = job.folder / "merged" / Path(about["target"]).name
    there = if_whole(read_archive, target)
    if there is not None:
        return {"rows": there.meta.get("engine", {}).get("rows", 0)}
    shards: dict[str, Any] = {}

    def parts() -> Iterator[Learner]:
        for stage, name in about["inputs"]:
            path = job.folder / stage / Path(name).name
            archive = read_archive(path)
            shards.update(reports_by_shard(archive, path))
            yield part_of(archive, path)

    total = merge_shards(parts())
    rows = sum(entry["rows"] for entry in shards.values())
    write_part(target, total, {"shards": dict(sorted(shards.items())), "rows": rows})
    return {"rows": rows}


def reports_by_shard(archive: Archive, path: Path) -> dict[str, dict[str, Any]]:
    """Return what the file of a part or a sum reports of each shard in it, by number."""
    report = dict(archive.meta.get("engine", {}))
    return dict(report["shards"]) if "shards" in report else {path.stem.rpartition("-")[2]: report}


def part_of(archive: Archive, path: Path) -> Learner:
    """Return the model of a part; it computes on the CPU, where sums are added the same everywhere."""
    return Learner.load(archive, name=str(path), device="cpu", cache=False)


def write_part(path: Path, part: Learner, report: dict[str, Any]) -> None:
    """Write the model of a part, with what there is to report of it."""
    archive = part.to_archive()
    archive.meta["engine"] = report
    write_archive(_prepared(path), archive)


# -- asking a model, and features as tables -------------------------------------------------------------------


@record("engine-compared")
@dataclass(frozen=True, eq=False)
class Compared:
    """Labels and answers of a shard, by their place among the names."""

    names: tuple[str, ...]
    codes: Annotated[NDArray[np.int64], Spec((2, "n"), "int64")]
    engine: dict[str, Any]
    novelty: Annotated[NDArray[np.float64], Spec(("n",))] | None = None

    def check(self) -> None:
        """Raise :class:`FileFormatError` where a class of a file has no name."""
        require(bool(((self.codes >= 0) & (self.codes < len(self.names))).all()), "a class has no name")


def evaluate(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write labels and answers of a shard, and the novelty of its samples where the model knows that."""
    target = job.result("evaluate", about["number"])
    there = if_whole(read_archive, target)
    if there is not None:
        return dict(there.meta.get("engine", {}))
    model, found = _model(job, about), _features(job, about)
    labels, opens = found.required_labels(), model.info()["novelty"] is not None
    answered = model.ask(Features(found.X, np.arange(len(found))), false_alarm=FALSE_ALARM if opens else None)
    answers = answered.classes[answered.ranked(1)[:, 0]]
    names, codes = np.unique(np.concatenate([labels, answers]), return_inverse=True)
    novelty = None if answered.novelty is None else np.asarray(answered.novelty, dtype=np.float64)
    held = Compared(tuple(names.tolist()), codes.astype(np.int64).reshape(2, -1), found.report(), novelty)
    write_record(_prepared(target), held)
    return found.report()


def features(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the features of a shard as one Parquet file."""
    widths = BackboneSpec.from_dict(job.backbone or {}).blocks.widths

    def write(target: Path, found: ShardFeatures) -> None:
        write_features(
            target.parent,
            target.name,
            names=found.names,
            features=found.X,
            labels=found.labels,
            widths=widths,
            report=found.report(),
        )

    return _table(job, about, write)


def predict(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the answers about a shard as one Parquet file."""

    def write(target: Path, found: ShardFeatures) -> None:
        asked = Features(found.X, np.arange(len(found)))
        write_answers(
            target.parent,
            target.name,
            names=found.names,
            answers=_model(job, about).ask(asked, false_alarm=job.settings["false_alarm"]),
            labels=found.labels,
            top=int(job.settings["top"]),
            report=found.report(),
        )

    return _table(job, about, write)


def _table(job: Job, about: dict[str, Any], write: Callable[[Path, ShardFeatures], None]) -> dict[str, Any]:
    """Write the table of a shard unless it is there and whole."""
    target = _prepared(job.result(job.work, about["number"], ".parquet"))
    report = if_whole(read_report, target)
    if report is not None:
        return report
    found = _features(job, about)
    write(target, found)
    return found.report()


TASKS: dict[str, Callable[[Job, dict[str, Any]], dict[str, Any]]] = {
    "first": first,
    "statistics": statistics,
    "merge": merge,
    "evaluate": evaluate,
    "features": features,
    "predict": predict,
}
"""Every kind of task by name."""


# -- what tasks share -----------------------------------------------------------------------------------------


def if_whole(read: Callable[[Path], Kept], path: Path) -> Kept | None:
    """Return what a file holds, checksum compared; None where it is not there or not whole."""
    try:
        return read(path)
    except (FileNotFoundError, FileFormatError):
        return None


def read_features(path: Path) -> ShardFeatures:
    """Return the features of a file, or raise :class:`FileFormatError`."""
    return read_record(ShardFeatures, path)


def _features(job: Job, about: dict[str, Any], rows: NDArray[np.int64] | None = None) -> ShardFeatures:
    """Return the features of the shard that a task is about, or of some rows of it."""
    settings = {name: about[name] for name in ("device", "decoders", "weights") if name in about}
    return shard_features(job, job.manifest.shards[int(about["number"])], rows, **settings)


def _model(job: Job, about: dict[str, Any]) -> Learner:
    """Return the model that a task asks."""
    return loaded_model(str(job.start), job.key, about.get("device", "auto"))


def _prepared(path: Path) -> Path:
    """Return a path that can be written to: its folder is made, links are followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return real_path(path)
