"""All shards learned and added up: rounds of tasks in which sums are formed as soon as their parts are there.

Floating-point sums depend on their order. Here a tree over the shards fixes it, which only the number of shards
decides: the result is the same to the last bit whatever the number of workers and whoever is done first. A shard that
was left out leaves its place empty and moves nobody else. A part goes once the sum that holds it is written, so that
neither memory nor disk grows with the data.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from evergrow.core.archive import read_archive
from evergrow.core.errors import EngineError
from evergrow.engine.job import Job, digest_of
from evergrow.engine.job_steps import JobReport, RunOptions, run_tasks, shard_tasks
from evergrow.engine.runners import Task, TaskResult
from evergrow.engine.worker_tasks import if_whole, reports_by_shard

FAN_IN = 8
"""Parts that are added at once. Part of the result: another number is another order."""
AT_ONCE = 64
"""Shards of a round; their parts lie in the folder until they are added up."""
_PER_WORKER = 4
"""Shards of a round for each worker, where that is more: at its end workers wait for the last of them."""


@dataclass(frozen=True)
class Node:
    """A place in the tree: a shard at level 0, a sum of shards above.

    Parameters
    ----------
    level : int
        0 for shards, 1 for sums of shards, and so on.
    number : int
        Place in the level, from the left.
    leaves : range
        The shards below it.
    """

    level: int
    number: int
    leaves: range

    def file(self, job: Job, without: Set[int] = frozenset()) -> Path:
        """Return where its file lies; a sum that lacks shards has another name, so that it is never taken for all."""
        if not self.level:
            return job.result("statistics", self.number)
        missing = sorted(without & set(self.leaves))
        name = f"{self.level}-{self.number:06d}"
        return job.result("merged", f"{name}-without-{digest_of(missing)}" if missing else name)


@dataclass(frozen=True)
class Tree:
    """The tree over a number of shards.

    Parameters
    ----------
    n_shards : int
        How many there are.
    fan_in : int
        Children of a node.

    Examples
    --------
    >>> from evergrow.engine.merge import Tree
    >>> tree = Tree(10, fan_in=4)
    >>> [[list(node.leaves) for node in level] for level in tree.levels[1:]]
    [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]]
    """

    n_shards: int
    fan_in: int = FAN_IN

    @cached_property
    def levels(self) -> list[list[Node]]:
        """All nodes, level by level from the shards up."""
        levels, width = list[list[Node]](), 1
        while not levels or len(levels[-1]) > 1:
            starts = range(0, self.n_shards, width)
            leaves = [range(start, min(start + width, self.n_shards)) for start in starts]
            levels.append([Node(len(levels), number, below) for number, below in enumerate(leaves)])
            width *= self.fan_in
        return levels

    @property
    def root(self) -> Node:
        """The sum of everything."""
        return self.levels[-1][0]

    def children(self, node: Node) -> list[Node]:
        """Return what is added up in a node."""
        first = node.number * self.fan_in
        return self.levels[node.level - 1][first : first + self.fan_in] if node.level else []

    def topmost(self, there: Callable[[Node], bool]) -> list[Node]:
        """Return the nodes that are there, without those below them: what a sum holds need not be there."""
        found, wanted = [], [self.root]
        while wanted:
            node = wanted.pop()
            if there(node):
                found.append(node)
            else:
                wanted += self.children(node)
        return found


class ShardMerge:
    """Learns all shards of a job and adds them up.

    Parameters
    ----------
    job : Job
        The job, whose template is there.
    report : JobReport
        Is told of every shard.
    options : RunOptions
        How it is run.
    at_once : int or None
        Shards of a round; by default 64, or four for each worker where that is more.
    """

    def __init__(self, job: Job, report: JobReport, options: RunOptions, at_once: int | None = None) -> None:
        self._job, self._report, self._options = job, report, options
        self._at_once = max(AT_ONCE, _PER_WORKER * options.runner.workers) if at_once is None else at_once
        self._tree = Tree(len(job.manifest.shards))
        self._empty: set[int] = set()  # shards that were left out
        self._learned: set[int] = set()
        self._summed: set[Node] = set()  # sums whose file is there, or was and is in a larger one by now
        for node in self._tree.topmost(self._recovered):
            self._learned.update(node.leaves)
            self._summed.update(sum_ for level in self._tree.levels[1:] for sum_ in level if _below(sum_, node))

    def run(self, tick: Callable[[int, str], None]) -> Path:
        """Learn and add up what is missing, and return the file of the sum of all."""
        root = self._tree.root
        while not self._is_settled(root):
            merges = self._ready()
            tasks = [self._merge(number, node) for number, node in enumerate(merges)]
            tasks += shard_tasks(self._job, "statistics", self.missing()[: self._at_once], self._options)
            run_tasks(self._job, self._options, tasks, partial(self._see, merges, tick))
        if self._is_empty(root):
            raise EngineError(
                f"data must have at least one shard that can be read, got none of "
                f"{len(self._job.manifest.shards)}: " + next(iter(self._report.failed.values()), "")
            )
        return root.file(self._job, self._empty)

    def missing(self) -> list[int]:
        """Return the shards that are still to be learned."""
        return sorted(set(self._tree.root.leaves) - self._learned - self._empty)

    def _recovered(self, node: Node) -> bool:
        """Return whether an earlier run left the file of a node, and count its shards."""
        archive = if_whole(read_archive, node.file(self._job))
        if archive is None:
            return False
        for number, entry in reports_by_shard(archive, node.file(self._job)).items():
            self._report.add(int(number), entry)
        return True

    def _is_empty(self, node: Node) -> bool:
        return self._empty.issuperset(node.leaves)

    def _is_settled(self, node: Node) -> bool:
        done = node in self._summed if node.level else node.number in self._learned
        return done or self._is_empty(node)

    def _ready(self) -> list[Node]:
        """Return the sums that can be formed now."""
        return [
            node
            for level in self._tree.levels[1:]
            for node in level
            if not self._is_settled(node) and all(map(self._is_settled, self._tree.children(node)))
        ]

    def _merge(self, number: int, node: Node) -> Task:
        children = [child for child in self._tree.children(node) if not self._is_empty(child)]
        inputs = [child.file(self._job, self._empty) for child in children]
        about = {
            "folder": str(self._job.folder),
            "key": self._job.key,
            "target": node.file(self._job, self._empty).name,
            "inputs": [[path.parent.name, path.name] for path in inputs],
        }
        return Task("merge", number, about)

    def _see(self, merges: list[Node], tick: Callable[[int, str], None], result: TaskResult) -> None:
        number = result.task.number
        if result.task.work == "merge":
            node = merges[number]
            self._summed.add(node)
            if not self._empty & set(node.leaves):  # a sum that lacks a shard may be formed again with it
                for child in self._tree.children(node):
                    child.file(self._job).unlink(missing_ok=True)
            return
        (self._learned if result.state == "done" else self._empty).add(number)
        self._report.see(result)
        tick(*self._report.progress())


def _below(node: Node, other: Node) -> bool:
    return node.level <= other.level and node.leaves.start in other.leaves
