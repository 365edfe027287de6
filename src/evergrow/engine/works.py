"""What workers do: one function per kind of work, from a task to a file of results that any retry writes the same.

A work looks first whether its file is there and whole; then there is nothing to do. A shard that cannot be read leaves
a note in the job's folder, which goes when the shard is done after all.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import EngineError, EvergrowError, FileFormatError
from evergrow.core.files import real_path
from evergrow.core.version import __version__
from evergrow.data import Shard
from evergrow.engine.job import Job, ShardError, known_job
from evergrow.engine.manifest import write_json
from evergrow.engine.runners import Task
from evergrow.engine.shard_features import (
    ShardFeatures,
    backbone_of,
    loaded_model,
    read_features,
    shard_features,
    write_features,
)
from evergrow.learner.learner import Learner
from evergrow.learner.learning import Block
from evergrow.learner.sharded_fit import learn_shard, merge_shards

Work = Callable[[Job, dict[str, Any]], dict[str, Any]]

WORKS: dict[str, Work] = {}
"""Every kind of work by name."""

_MODULES = ("evergrow.engine.asking", "evergrow.engine.tables")
"""Where further works are registered; imported by workers that are asked for one."""


def register_work(name: str) -> Callable[[Work], Work]:
    """Return a decorator that makes a function known as the work of this name."""

    def register(function: Work) -> Work:
        WORKS[name] = function
        return function

    return register


def perform(task: Task) -> dict[str, Any]:
    """Do a task and return what there is to tell of it: plain JSON values.

    Parameters
    ----------
    task : Task
        Its ``about`` names the folder and the key of the job, and what this work needs beside.

    Raises
    ------
    ShardError
        If the shard cannot be read; a note of it is left in the job's folder.
    """
    for module in () if task.work in WORKS else _MODULES:
        importlib.import_module(module)
    if task.work not in WORKS:
        raise EngineError(f"work must be one of {', '.join(sorted(WORKS))}, got {task.work!r}")
    started = time.perf_counter()
    job = known_job(str(task.about["folder"]), str(task.about["key"]))
    note = job.failure(task.work, task.number)
    note.unlink(missing_ok=True)  # of an earlier try, which says nothing about this one
    try:
        told = WORKS[task.work](job, {**task.about, "number": task.number})
    except ShardError as error:
        write_json(note, {"shard": task.number, "work": task.work, "error": str(error), "unreadable": True})
        raise
    return {**told, "seconds": time.perf_counter() - started}


def differences(expected: dict[str, str]) -> list[str]:
    """Return what this process has otherwise than a job expects it, a line each.

    Parameters
    ----------
    expected : dict of str to str
        ``"evergrow"`` and ``"torch"``: versions. ``"folder"``: that of the job, which must be in reach. ``"key"``: the
        job, whose backbone must have the same weights here.

    Examples
    --------
    >>> from evergrow.engine.works import differences
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


@register_work("first")
def first_work(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the features of those samples of a shard that the layer is grown on."""
    target = job.result("first", about["number"])
    found = whole_features(target)
    if found is None:
        found = features_of(job, about, job.manifest.first_of(_shard(job, about)))
        found.required_labels()
        write_features(prepared(target), found)
    return found.told()


@register_work("statistics")
def statistics_work(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write what a shard teaches: a model of its samples alone. Their features stay here."""
    target = job.result("statistics", about["number"])
    there = whole_archive(target)
    if there is not None:
        return dict(there.meta.get("engine", {}))
    found = _all_features(job, about)
    template = loaded_model(str(job.template), job.key, about.get("device", "auto"))
    if not len(found):
        raise ShardError(f"shard {about['number']} has no sample that can be read")
    part = learn_shard(template, Block(found.X, found.required_labels()), int(about["number"]))
    write_part(target, part, found.told())
    return found.told()


def _all_features(job: Job, about: dict[str, Any]) -> ShardFeatures:
    """Return the features of a shard; those of its first samples were computed before and are only read."""
    shard = _shard(job, about)
    first = whole_features(job.result("first", shard.number))
    if first is None:
        return features_of(job, about)
    rest = np.setdiff1d(np.arange(shard.rows), job.manifest.first_of(shard))
    return first.and_more(features_of(job, about, rest)) if len(rest) else first


@register_work("merge")
def merge_work(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the sum of some parts, added in their order, one at a time."""
    target = job.folder / "merged" / Path(about["target"]).name
    there = whole_archive(target)
    if there is not None:
        return {"rows": there.meta.get("engine", {}).get("rows", 0)}
    shards: dict[str, Any] = {}

    def parts() -> Iterator[Learner]:
        for stage, name in about["inputs"]:
            path = job.folder / stage / Path(name).name
            archive = read_archive(path)
            shards.update(_told_shards(archive, path))
            yield part_of(archive, path)

    total = merge_shards(parts())
    told = {"shards": dict(sorted(shards.items())), "rows": sum(entry["rows"] for entry in shards.values())}
    write_part(target, total, told)
    return {"rows": told["rows"]}


def _told_shards(archive: Archive, path: Path) -> dict[str, Any]:
    """Return what a part tells of each shard in it, by number."""
    told = dict(archive.meta.get("engine", {}))
    return dict(told["shards"]) if "shards" in told else {path.stem.rpartition("-")[2]: told}


def part_of(archive: Archive, path: Path) -> Learner:
    """Return the model of a part; it computes on the CPU, where sums are added the same everywhere."""
    return Learner.load(archive, name=str(path), device="cpu", cache=False)


def write_part(path: Path, part: Learner, told: dict[str, Any]) -> None:
    """Write the model of a part, with what there is to tell of it."""
    archive = part.to_archive()
    archive.meta["engine"] = told
    write_archive(prepared(path), archive)


# -- what works share -----------------------------------------------------------------------------------------


def whole_archive(path: Path) -> Archive | None:
    """Return what a file holds, checksum compared; None where it is not there or not whole."""
    try:
        return read_archive(path)
    except (FileNotFoundError, FileFormatError):
        return None


def whole_features(path: Path) -> ShardFeatures | None:
    """Return the features of a file; None where it is not there or not whole."""
    try:
        return read_features(path)
    except (FileNotFoundError, FileFormatError):
        return None


def _shard(job: Job, about: dict[str, Any]) -> Shard:
    return job.manifest.shards[int(about["number"])]


def features_of(job: Job, about: dict[str, Any], rows: NDArray[np.int64] | None = None) -> ShardFeatures:
    """Return the features of the shard that a task is about, or of some rows of it."""
    how = {name: about[name] for name in ("device", "decoders", "weights") if name in about}
    return shard_features(job, _shard(job, about), rows, **how)


def prepared(path: Path) -> Path:
    """Return a path that can be written to: its folder is made, links are followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return real_path(path)
