"""Sum the statistics of all shards, in an order that only their number decides.

Floating-point sums depend on their order. A fixed tree over the shards gives the same
result to the last bit, for any number of workers. A shard that was left out does not
change the order of the others. Partial sums are deleted once a larger sum is written,
so that memory and disk use do not grow with the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from evergrow.core.errors import EngineError
from evergrow.engine.job import Job, JobReport, digest_of
from evergrow.engine.job_steps import EngineRunOptions, run_tasks
from evergrow.engine.runners import WorkerTask
from evergrow.engine.worker_tasks import read_or_none, read_part_reports

FAN_IN = 8
"""Number of parts per sum. Another number is another order and changes the result."""

MIN_ROUND = 64
"""Shards per round. Their parts stay in the folder until they are summed."""

_SHARDS_PER_WORKER = 4
"""Minimum shards per worker and round, since workers wait at the end of a round."""


@dataclass(frozen=True, eq=False)
class Node:
    """A node of the merge tree: a shard at level 0, a sum of shards above.

    Parameters
    ----------
    level : int
        0 for shards, 1 for sums of shards, and so on.
    number : int
        Index in the level, from the left.
    leaves : range
        The shards below the node.
    children : tuple of Node
        The nodes that are summed.
    """

    level: int
    number: int
    leaves: range
    children: tuple[Node, ...] = ()

    def file(self, job: Job, without: Set[int] = frozenset()) -> Path:
        """Return the path of the node's file.

        Parameters
        ----------
        job : Job
            The job.
        without : set of int
            Shards that were left out. A sum that lacks one of them has another name, so
            that a later run does not take it for complete.
        """
        if self.level == 0:
            return job.result("statistics", self.number)
        name = f"{self.level}-{self.number:06d}"
        missing = sorted(without & set(self.leaves))
        if missing:
            name += f"-without-{digest_of(missing)}"
        return job.result("merged", name)


def merge_tree(n_shards: int, fan_in: int = FAN_IN) -> list[list[Node]]:
    """Return the merge tree by level, from the shards to the total.

    Parameters
    ----------
    n_shards : int
        Number of shards.
    fan_in : int, default=8
        Maximum number of children of a node.

    Examples
    --------
    >>> from evergrow.engine.shard_merge import merge_tree
    >>> _, sums, total = merge_tree(10, fan_in=4)
    >>> [list(node.leaves) for node in sums]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """
    levels = [
        [Node(0, number, range(number, number + 1)) for number in range(n_shards)]
    ]
    while len(levels[-1]) > 1:
        below = levels[-1]
        nodes = []
        for number, start in enumerate(range(0, len(below), fan_in)):
            children = tuple(below[start : start + fan_in])
            leaves = range(children[0].leaves.start, children[-1].leaves.stop)
            nodes.append(Node(len(levels), number, leaves, children))
        levels.append(nodes)
    return levels


class ShardMerge:
    """Learns and sums all shards of a job in rounds, resuming from existing files.

    Parameters
    ----------
    job : Job
        The job. Its template exists.
    report : JobReport
        Receives the report of every shard: at once if its file exists, else when it is
        learned.
    options : EngineRunOptions
        How the job is run.
    """

    def __init__(self, job: Job, report: JobReport, options: EngineRunOptions) -> None:
        self._job = job
        self._report = report
        self._options = options
        self._round_size = max(MIN_ROUND, _SHARDS_PER_WORKER * options.runner.workers)
        self._root = merge_tree(len(job.manifest.shards))[-1][0]
        self._left_out: set[int] = set()
        # Nodes whose file is written, as far as they are not part of a larger sum.
        self._done = set(self._recover(self._root))

    def run(self, tick: Callable[[int, str], None]) -> Path:
        """Learn and sum all missing nodes. Return the file of the total.

        Parameters
        ----------
        tick : callable
            Called after every shard with the number of finished shards and a note.

        Raises
        ------
        EngineError
            If no shard can be read, or a task failed.
        """
        while not self._is_settled(self._root):
            self._run_round(tick)
        if self._is_left_out(self._root):
            reason = next(iter(self._report.failed.values()), "")
            raise EngineError(
                "data must have at least one shard that can be read, "
                f"got none of {len(self._job.manifest.shards)}: {reason}"
            )
        return self._file(self._root)

    def _run_round(self, tick: Callable[[int, str], None]) -> None:
        """Form all sums whose parts are written, and learn the next shards.

        Sums of parts that this round writes are left to the next round.
        """
        ready = list(self._ready(self._root))
        sums = [node for node in ready if node.level > 0]
        shards = [node for node in ready if node.level == 0][: self._round_size]
        leaves = {node.number: node for node in shards}
        tasks = [self._merge_task(index, node) for index, node in enumerate(sums)]
        tasks += self._options.shard_tasks(self._job, "statistics", leaves)
        for result in run_tasks(self._job, self._options, tasks):
            number = result.task.number
            if result.task.work == "merge":
                self._complete_sum(sums[number])
                continue
            if result.state == "done":
                self._done.add(leaves[number])
            else:
                self._left_out.add(number)
            self._report.add(result)
            tick(*self._report.progress())

    def _ready(self, node: Node) -> Iterator[Node]:
        """Yield shards to learn and sums whose parts are written, from a node down."""
        if self._is_settled(node):
            return
        if all(map(self._is_settled, node.children)):
            yield node
        for child in node.children:
            yield from self._ready(child)

    def _recover(self, node: Node) -> list[Node]:
        """Return the highest nodes whose files an earlier run of this job completed.

        A file counts if it holds exactly the node's shards, with their fingerprints.
        Nodes below it are not checked. Adds the reports of its shards to the job's
        report.
        """
        reports = read_or_none(read_part_reports, node.file(self._job)) or {}
        found = {number: report.shard for number, report in reports.items()}
        expected = {str(leaf): self._job.fingerprint(leaf) for leaf in node.leaves}
        if found == expected:
            self._report.shards.update(reports)
            return [node]
        return [found for child in node.children for found in self._recover(child)]

    def _file(self, node: Node) -> Path:
        return node.file(self._job, self._left_out)

    def _is_left_out(self, node: Node) -> bool:
        """Return whether none of the node's shards could be read."""
        return self._left_out.issuperset(node.leaves)

    def _is_settled(self, node: Node) -> bool:
        """Return whether nothing is left to do for the node and those below it."""
        return node in self._done or self._is_left_out(node)

    def _merge_task(self, index: int, node: Node) -> WorkerTask:
        """Return the task, with the number `index`, that sums the node's children."""
        inputs = [
            self._file(child) for child in node.children if not self._is_left_out(child)
        ]
        about = {
            **self._options.task_settings(self._job),
            "target": self._file(node).name,
            "inputs": [[path.parent.name, path.name] for path in inputs],
        }
        return WorkerTask("merge", index, about)

    def _complete_sum(self, node: Node) -> None:
        """Record a sum as written, and delete its parts.

        The parts of an incomplete sum are kept, because a later run may complete it.
        """
        self._done.add(node)
        if self._left_out.isdisjoint(node.leaves):
            for child in node.children:
                child.file(self._job).unlink(missing_ok=True)
