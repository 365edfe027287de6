"""How far a job is, as its folder tells it: nothing has to run, and nothing is changed by looking."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from evergrow.core.archive import read_header
from evergrow.core.errors import FileFormatError
from evergrow.engine.fitting import Node, merge_tree
from evergrow.engine.job import Job, read_job


@dataclass(frozen=True)
class Status:
    """How far a job is.

    Parameters
    ----------
    work : str
        What is done.
    finished : bool
        Whether all of it is done.
    shards, samples : int
        What there is in all.
    done : int
        Shards that are done.
    failed : dict of int to str
        Shards that could not be done, and why.
    first : tuple of int or None
        Shards whose first samples are computed, and shards that have some; None where the layer is there, or none is
        grown.
    left_out : int
        Samples that could not be read, where the job is finished.
    unreadable : tuple of str
        Files that have no shards, since not even their contents could be listed.
    """

    work: str
    finished: bool
    shards: int
    samples: int
    done: int
    failed: dict[int, str]
    first: tuple[int, int] | None = None
    left_out: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """Shards that are neither done nor failed."""
        return self.shards - self.done - len(self.failed)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        failed = {str(shard): why for shard, why in self.failed.items()}
        return {**vars(self), "failed": failed, "left": self.left, "unreadable": list(self.unreadable)}


def status(folder: str | os.PathLike[str]) -> Status:
    """Return how far the job of a folder is.

    Parameters
    ----------
    folder : path-like
        Where its manifest and its results are.

    Raises
    ------
    EngineError
        If there is no job.
    FileFormatError
        If its files are damaged.
    """
    job = read_job(folder)
    shards, samples = len(job.manifest.shards), job.manifest.rows
    finished, gone = job.finished(), tuple(job.manifest.unreadable)
    if finished is not None:
        failed = {int(shard): str(why) for shard, why in dict(finished.get("failed", {})).items()}
        left_out = len(finished.get("left_out", []))
        return Status(job.work, True, shards, samples, shards - len(failed), failed, None, left_out, gone)
    done = _learned(job) if job.work in ("fit", "update") else _written(job)
    failed = {shard: why for shard, why in job.failures().items() if shard not in done}
    return Status(job.work, False, shards, samples, len(done), failed, _first(job), unreadable=gone)


def _first(job: Job) -> tuple[int, int] | None:
    if job.work != "fit" or job.template.is_file():
        return None
    wanted = [shard.number for shard in job.manifest.shards if len(job.manifest.first_of(shard))]
    return sum(job.result("first", number).is_file() for number in wanted), len(wanted)


def _written(job: Job) -> set[int]:
    """Return the shards that have a file of results."""
    names = {path.name for path in (job.folder / job.work).glob(f"{job.key}-*")}
    return {shard.number for shard in job.manifest.shards if job.result(job.work, shard.number).name in names}


def _learned(job: Job) -> set[int]:
    """Return the shards that are learned: those with a file of their own, and those in a sum."""

    def is_there(node: Node) -> bool:
        try:
            read_header(node.file(job))
        except (OSError, FileFormatError):
            return False
        return True

    return {shard for node in merge_tree(len(job.manifest.shards))[-1][0].topmost(is_there) for shard in node.leaves}
