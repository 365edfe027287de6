"""All shards learned and added up: rounds of tasks in which sums are formed as soon as their parts are there.

At most so many parts lie in the folder at a time, whatever the number of shards: a part goes once the sum that holds
it is written, so that neither memory nor disk grows with the data.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from evergrow.core.errors import EngineError
from evergrow.core.progress import Meter
from evergrow.engine.job import Job
from evergrow.engine.runners import Outcome, Task
from evergrow.engine.stages import Pace, Running, Tally, run_tasks, shard_tasks
from evergrow.engine.tree import Node, Tree
from evergrow.engine.works import whole_archive
from evergrow.learner.learner import Learner

AT_ONCE = 64
"""Shards of a round; their parts lie in the folder until they are added up."""
_PER_WORKER = 4
"""Shards of a round for each worker, where that is more: at its end workers wait for the last of them."""


class Reduction:
    """The way from shards to one sum.

    Parameters
    ----------
    job : Job
        The job, whose template is there.
    tally : Tally
        Is told of every shard.
    running : Running
        How it is run.
    at_once : int or None
        Shards of a round; by default 64, or four for each worker where that is more.
    """

    def __init__(self, job: Job, tally: Tally, running: Running, at_once: int | None = None) -> None:
        self._job, self._tally, self._running = job, tally, running
        self._at_once = max(AT_ONCE, _PER_WORKER * running.runner.workers) if at_once is None else at_once
        self._tree = Tree(len(job.manifest.shards))
        self._done: set[Node] = set()  # nodes whose file is there, or was and is in a sum by now
        self._empty: set[int] = set()  # shards that were left out
        self._recover()

    def run(self, tick: Meter) -> Path:
        """Learn and add up what is missing, and return the file of the sum of all."""
        pace = Pace(tick, len(self._job.manifest.shards), self._tally)
        root = self._tree.root
        while not self._is_settled(root):
            leaves = self.missing()[: self._at_once]
            merges = self._ready()
            tasks = [self._merge(number, node) for number, node in enumerate(merges)]
            tasks += shard_tasks(self._job, "statistics", leaves, self._running)
            run_tasks(self._job, self._running.runner, tasks, partial(self._see, merges, pace))
        if self._is_empty(root):
            raise EngineError(
                f"data must have at least one shard that can be read, got none of "
                f"{len(self._job.manifest.shards)}: " + next(iter(self._tally.failed.values()), "")
            )
        return self._file(root)

    def missing(self) -> list[int]:
        """Return the shards that are still to be learned."""
        return [leaf.number for leaf in self._tree.levels[0] if not self._is_settled(leaf)]

    # -- what is there ----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Find what an earlier run left: from the sum of all downwards, since what a sum holds need not be there."""
        wanted = [self._tree.root]
        while wanted:
            node = wanted.pop()
            archive = whole_archive(self._file(node))
            if archive is None:
                wanted += self._tree.children(node)
                continue
            self._done.update(self._tree.below(node))
            told = archive.meta.get("engine", {})
            for number, entry in _told_shards(node, told):
                self._tally.add(number, entry)

    def _file(self, node: Node) -> Path:
        if not node.level:
            return self._job.result("statistics", node.number)
        return self._job.result("merged", node.name(self._empty))

    def _is_empty(self, node: Node) -> bool:
        return all(leaf in self._empty for leaf in node.leaves)

    def _is_settled(self, node: Node) -> bool:
        return node in self._done or self._is_empty(node)

    def _ready(self) -> list[Node]:
        """Return the sums that can be formed now."""
        return [
            node
            for level in self._tree.levels[1:]
            for node in level
            if not self._is_settled(node) and all(map(self._is_settled, self._tree.children(node)))
        ]

    # -- tasks and outcomes -----------------------------------------------------------------------------------

    def _merge(self, number: int, node: Node) -> Task:
        inputs = [self._file(child) for child in self._tree.children(node) if not self._is_empty(child)]
        about = {
            "folder": str(self._job.folder),
            "key": self._job.key,
            "target": self._file(node).name,
            "inputs": [[path.parent.name, path.name] for path in inputs],
        }
        return Task("merge", number, about)

    def _see(self, merges: list[Node], pace: Pace, outcome: Outcome) -> None:
        task = outcome.task
        if task.work == "merge":
            node = merges[task.number]
            self._done.add(node)
            if not self._empty & set(node.leaves):  # a sum that lacks a shard may be formed again with it
                for child in self._tree.children(node):
                    self._file(child).unlink(missing_ok=True)
            return
        if outcome.state == "failed":
            self._empty.add(task.number)
        else:
            self._done.add(self._tree.levels[0][task.number])
        self._tally.see(outcome)
        pace.more(int(outcome.told.get("rows", 0)))


def _told_shards(node: Node, told: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return what a file tells of each shard in it."""
    if not node.level:
        return [(node.number, told)]
    return [(int(number), entry) for number, entry in told.get("shards", {}).items()]


def total_of(path: Path, device: str) -> Learner:
    """Return the sum of all shards as a model."""
    return Learner.load(path, device=None if device == "auto" else device, cache=False)
