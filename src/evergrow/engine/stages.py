"""Stages of a job: tasks handed to a runner, failures noted, and a bar that says how far it is.

Nothing here knows what a work does or where it runs. A stage leaves files behind; what it returns is only counted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from evergrow.core.archive import parse_json
from evergrow.core.errors import EngineError
from evergrow.core.files import PARTIAL
from evergrow.core.progress import Meter, meter
from evergrow.core.version import __version__
from evergrow.engine.job import Job
from evergrow.engine.manifest import write_json
from evergrow.engine.runners import Outcome, Runner, Task

NAMED = 5
"""Failures that a message names."""


@dataclass
class Tally:
    """What a job has done so far; told by the bar, and summed up in the end.

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

    def add(self, shard: int, told: dict[str, Any]) -> None:
        """Count a shard as done, with what its work told."""
        self.failed.pop(shard, None)
        self.rows[shard] = int(told.get("rows", 0))
        if told.get("left_out"):
            self.left_out[shard] = told["left_out"]
        if told.get("lost"):
            self.lost[shard] = told["lost"]

    def see(self, outcome: Outcome) -> None:
        """Count the shard of an outcome, as done or as failed."""
        if outcome.state == "failed":
            self.rows.pop(outcome.task.number, None)
            self.failed[outcome.task.number] = outcome.error
        else:
            self.add(outcome.task.number, outcome.told)

    @property
    def n_left_out(self) -> int:
        """Samples that could not be read, in shards that could."""
        return sum(map(len, self.left_out.values()))

    def names_left_out(self) -> list[str]:
        """Return the names of samples that could not be read, in the order of the shards."""
        return [name for shard in sorted(self.left_out) for name, _ in self.left_out[shard]]

    def summary(self) -> list[str]:
        """Return what was left out, in lines for people; none where nothing was."""
        lines = []
        if self.unreadable:
            named = "; ".join(list(self.unreadable.values())[:NAMED])
            more = f"; and {len(self.unreadable) - NAMED} more" if len(self.unreadable) > NAMED else ""
            lines.append(f"{len(self.unreadable)} files could not be read and were left out: {named}{more}")
        if self.failed:
            named = "; ".join(self.failed[shard] for shard in sorted(self.failed)[:NAMED])
            more = f"; and {len(self.failed) - NAMED} more" if len(self.failed) > NAMED else ""
            lines.append(f"{len(self.failed)} shards were left out: {named}{more}")
        if self.n_left_out:
            pairs = [pair for shard in sorted(self.left_out) for pair in self.left_out[shard]]
            named = "; ".join(f"{name}: {why}" for name, why in pairs[:NAMED])
            more = f"; and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
            lines.append(f"{len(pairs)} samples could not be read and were left out: {named}{more}")
        return lines

    def to_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": sum(self.rows.values()),
            "shards": len(self.rows),
            "failed": {str(shard): why for shard, why in sorted(self.failed.items())},
            "left_out": [pair for shard in sorted(self.left_out) for pair in self.left_out[shard]],
            "unreadable": self.unreadable,
        }


def finished_tally(job: Job) -> Tally:
    """Return what a finished job has done, out of its folder."""
    values = job.finished() or {}
    tally = Tally({int(shard): int(rows) for shard, rows in dict(values.get("shard_rows", {})).items()})
    tally.failed = {int(shard): str(why) for shard, why in dict(values.get("failed", {})).items()}
    pairs = [[str(name), str(why)] for name, why in values.get("left_out", [])]
    tally.left_out = {0: pairs} if pairs else {}
    tally.unreadable = dict(job.manifest.unreadable)
    return tally


class Pace:
    """How fast samples are done, for the note beside a bar.

    Parameters
    ----------
    tick : Meter
        The bar, which counts shards.
    total : int
        Shards in all.
    tally : Tally
        What is done.
    """

    def __init__(self, tick: Meter, total: int, tally: Tally) -> None:
        self._tick, self._total, self._tally = tick, total, tally
        self._started, self._rows = time.perf_counter(), 0

    def more(self, rows: int) -> None:
        """Move the bar after a shard of so many samples."""
        self._rows += rows
        settled = len(self._tally.rows) + len(self._tally.failed)
        rate = self._rows / max(time.perf_counter() - self._started, 1e-9)
        failed = f", {len(self._tally.failed)} failed" if self._tally.failed else ""
        self._tick(settled, f"{rate:,.0f} samples/s, {self._total - settled} shards left{failed}")


@dataclass(frozen=True)
class Running:
    """How a job is run; none of it changes a result.

    Parameters
    ----------
    runner : Runner
        What runs the tasks.
    device : str
        Where workers compute.
    decoders : int, "auto" or None
        Processes beside each worker that decode images; None leaves it to the runner.
    progress : bool
        Whether to show a bar.
    share : tuple of int or None
        ``(i, n)``: only the shards whose number is i modulo n, for a batch system that starts n such commands.
    weights : str or None
        Where workers find the backbone's weights, if not where they were.
    """

    runner: Runner
    device: str = "auto"
    decoders: Any = None
    progress: bool = False
    share: tuple[int, int] | None = None
    weights: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """What a task is told."""
        beside = {"decoders": self.decoders, "weights": self.weights}
        return {"device": self.device, **{name: value for name, value in beside.items() if value is not None}}

    def mine(self, numbers: Iterable[int]) -> list[int]:
        """Return those shards that are done here."""
        if self.share is None:
            return list(numbers)
        place, total = self.share
        return [number for number in numbers if number % total == place]


def run_tasks(job: Job, runner: Runner, tasks: Sequence[Task], seen: Callable[[Outcome], None]) -> None:
    """Run tasks and show every outcome to ``seen``; a failure that the job does not go on without ends all.

    Parameters
    ----------
    job : Job
        The job.
    runner : Runner
        What runs them.
    tasks : sequence of Task
        The tasks.
    seen : callable
        Told each outcome that the job goes on with.

    Raises
    ------
    EngineError
        If a task failed, unless it was a shard that cannot be read and the job skips such.
    """
    if not tasks:
        return
    with closing(runner.run(tasks)) as outcomes:  # type: ignore[type-var]
        for outcome in outcomes:
            if outcome.state == "failed" and not (job.skips and is_unreadable(job, outcome.task)):
                _note(job, outcome)
                raise EngineError(_told(job, outcome))
            seen(outcome)


def is_unreadable(job: Job, task: Task) -> bool:
    """Return whether a work left a note that its shard cannot be read; other failures have other causes."""
    note = job.failure(task.work, task.number)
    if "shard" not in task.about or not note.is_file():
        return False
    values = parse_json(note.read_bytes(), str(note))
    return isinstance(values, dict) and values.get("unreadable") is True


def _note(job: Job, outcome: Outcome) -> None:
    """Leave a note of a failure that its worker could not leave itself."""
    path = job.failure(outcome.task.work, outcome.task.number)
    if not path.exists() and "shard" in outcome.task.about:
        values = {"shard": outcome.task.number, "work": outcome.task.work, "error": outcome.error, "unreadable": False}
        with suppress(OSError):  # the disk may be what failed, and the failure itself matters more than its note
            write_json(path, values)


def _told(job: Job, outcome: Outcome) -> str:
    what = f"{outcome.task.work} of shard {outcome.task.number}" if "shard" in outcome.task.about else "a merge"
    error = outcome.error if outcome.error.startswith("shard ") else f"{what} failed: {outcome.error}"
    return f"{error}; what is done is kept in {job.folder}, and the same command goes on from there"


def shard_tasks(job: Job, work: str, shards: Iterable[int], running: Running) -> list[Task]:
    """Return one task for each shard.

    Parameters
    ----------
    job : Job
        The job.
    work : str
        What is done with them.
    shards : iterable of int
        Their numbers.
    running : Running
        How it is done.
    """
    about = {"folder": str(job.folder), "key": job.key, "shard": True, **running.values}
    return [Task(work, number, about) for number in shards]


def run_shards(job: Job, work: str, shards: Sequence[int], running: Running, title: str) -> Tally:
    """Do one work with shards, and return what was done; a share of the work leaves the others alone.

    Parameters
    ----------
    job : Job
        The job.
    work : str
        What is done with them.
    shards : sequence of int
        Their numbers.
    running : Running
        How it is done.
    title : str
        What the bar is called.
    """
    tally, wanted = Tally(unreadable=dict(job.manifest.unreadable)), running.mine(shards)
    with meter(title, len(wanted), enabled=running.progress and bool(wanted)) as tick:
        pace = Pace(tick, len(wanted), tally)

        def see(outcome: Outcome) -> None:
            tally.see(outcome)
            pace.more(int(outcome.told.get("rows", 0)))

        run_tasks(job, running.runner, shard_tasks(job, work, wanted, running), see)
    return tally


def check_workers(job: Job, running: Running) -> None:
    """Raise :class:`EngineError` unless every worker has the versions, weights and folder that the job needs."""
    running.runner.check(
        {
            "evergrow": __version__,
            "torch": torch.__version__,
            "folder": str(job.folder),
            "key": job.key,
            "device": running.device,
            **({} if running.weights is None else {"weights": running.weights}),
        }
    )


def finish(job: Job, tally: Tally, stages: Iterable[str] = ()) -> None:
    """Write that a job is done; remove stages that only led there, and what killed workers left half-written."""
    rows = {str(shard): rows for shard, rows in sorted(tally.rows.items())}
    write_json(job.finish, {"key": job.key, **tally.to_values(), "shard_rows": rows})
    for stage in stages:
        shutil.rmtree(job.folder / stage, ignore_errors=True)
    job.template.unlink(missing_ok=True)
    for path in job.folder.rglob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)
