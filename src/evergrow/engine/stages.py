"""Stages of a job: tasks handed to a runner, failures noted, and a bar that says how far it is.

Nothing here knows what a work does or where it runs. A stage leaves files behind; what it returns is only counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from evergrow.core.errors import EngineError
from evergrow.core.progress import Meter
from evergrow.engine.job import Job
from evergrow.engine.manifest import write_json
from evergrow.engine.running import Outcome, Runner, Task

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
    """

    rows: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, list[list[str]]] = field(default_factory=dict)
    lost: dict[int, list[str]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, shard: int, told: dict[str, Any]) -> None:
        """Count a shard as done, with what its work told."""
        self.failed.pop(shard, None)
        self.rows[shard] = int(told.get("rows", 0))
        if told.get("left_out"):
            self.left_out[shard] = told["left_out"]
        if told.get("lost"):
            self.lost[shard] = told["lost"]

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
        }


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
    return job.failure(task.work, task.number).is_file() and "shard" in task.about


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


def shard_tasks(job: Job, work: str, shards: Iterable[int], running: dict[str, Any]) -> list[Task]:
    """Return one task for each shard.

    Parameters
    ----------
    job : Job
        The job.
    work : str
        What is done with them.
    shards : iterable of int
        Their numbers.
    running : dict
        How it is done: device, decoders.
    """
    about = {"folder": str(job.folder), "key": job.key, "shard": True, **running}
    return [Task(work, number, about) for number in shards]
