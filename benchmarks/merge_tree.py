"""The tree of sums on a simulated cluster: the real plan and the real runner, with seconds and failures made up.

:class:`~evergrow.engine.reduction.Reduction` decides what is learned and added and which files go, and
:class:`~evergrow.engine.ray_runner.RayRunner` who does it and what is done again. A file holds the numbers of the
shards that are in it instead of their statistics, so that it can be seen that each is there once, and in its order.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulated_ray import ClusterPlan, SimulatedRay, simulated_runner
from evergrow.data import Shard
from evergrow.engine.job import Job
from evergrow.engine.manifest import Division, Manifest
from evergrow.engine.reduction import Reduction
from evergrow.engine.running import Task
from evergrow.engine.stages import Running, Tally


@dataclass(frozen=True)
class Costs:
    """What tasks take.

    Parameters
    ----------
    shard_s : float
        Seconds from the images of a shard to its file.
    shard_bytes : float
        Bytes of its images.
    read_s, add_s, write_s : float
        Seconds to read a file of statistics, to add it to another, and to write one.
    file_bytes : float
        Bytes of such a file.
    """

    shard_s: float
    shard_bytes: float
    read_s: float
    add_s: float
    write_s: float
    file_bytes: float

    def seconds(self, task: Task) -> float:
        """Return the seconds of a task."""
        if task.work != "merge":
            return self.shard_s
        inputs = len(task.about["inputs"])
        return inputs * self.read_s + (inputs - 1) * self.add_s + self.write_s


@dataclass(frozen=True)
class Simulated:
    """What a simulated job came to.

    Parameters
    ----------
    shards : tuple of int
        Those in the sum of all, in its order.
    wall_s : float
        Seconds from the start to the sum of all.
    tail_s : float
        Seconds of it after the last shard was learned.
    idle : float
        Share of the workers' time in which they did no task that counted.
    lost_nodes, lost_tasks : int
        Nodes that failed, and tasks that were begun on them and done again elsewhere.
    image_bytes, written_bytes, read_bytes : float
        Of images read, and of files of statistics; what lost tasks had read is in, what they would have written is not.
    most_files : int
        Files of statistics that lay in the folder at once.
    """

    shards: tuple[int, ...]
    wall_s: float
    tail_s: float
    idle: float
    lost_nodes: int
    lost_tasks: int
    image_bytes: float
    written_bytes: float
    read_bytes: float
    most_files: int


def simulate(n_shards: int, plan: ClusterPlan, costs: Costs, *, at_once: int | None = None) -> Simulated:
    """Learn and add up shards on a simulated cluster.

    Parameters
    ----------
    n_shards : int
        How many there are.
    plan : ClusterPlan
        The cluster.
    costs : Costs
        What tasks take.
    at_once : int or None
        Shards of a round; None leaves it to the engine.
    """
    with tempfile.TemporaryDirectory() as place:
        shards = tuple(Shard(number, 1, 0) for number in range(n_shards))
        job = Job(Path(place), Manifest({}, "features", "simulated", Division(), shards), "fit")
        return simulate_job(job, plan, costs, at_once=at_once, perform=f"{__name__}:note_shards")


def simulate_job(job: Job, plan: ClusterPlan, costs: Costs, *, at_once: int | None = None, perform: str) -> Simulated:
    """Learn and add up the shards of a job that is there by ``perform``, a ``"module:function"``."""
    begun = {"merge": 0, "statistics": 0, "inputs": 0}

    def seconds(task: Task) -> float:
        begun[task.work] += 1
        begun["inputs"] += len(task.about.get("inputs", ()))
        return costs.seconds(task)

    ray = SimulatedRay(plan, seconds)
    watch = _Watch(job, ray)
    ray.on_end = watch.see
    runner = simulated_runner(ray, perform)
    root = Reduction(job, Tally(), Running(runner, "cpu"), at_once=at_once).run(lambda done, note: None)
    wall, workers = ray.now, plan.nodes * plan.workers_per_node
    return Simulated(
        _shards_in(root),
        wall,
        wall - watch.last_shard_s,
        1.0 - ray.busy_s / (workers * wall),
        ray.lost_nodes,
        ray.lost_tasks,
        begun["statistics"] * costs.shard_bytes,
        watch.written * costs.file_bytes,
        begun["inputs"] * costs.file_bytes,
        watch.most_files,
    )


class _Watch:
    """Sees every task end, and what lies in the folder then."""

    def __init__(self, job: Job, ray: SimulatedRay) -> None:
        self._folders, self._ray = (job.folder / "statistics", job.folder / "merged"), ray
        self.last_shard_s, self.written, self.most_files = 0.0, 0, 0

    def see(self, task: Task) -> None:
        self.written += 1
        if task.work == "statistics":
            self.last_shard_s = self._ray.now
        files = sum(len(os.listdir(place)) for place in self._folders if place.is_dir())
        self.most_files = max(self.most_files, files)


def note_shards(task: Task) -> dict[str, Any]:
    """Do a task in name only: write a file with the numbers of its shards."""
    folder = Path(task.about["folder"])
    if task.work == "merge":
        parts = [folder / stage / name for stage, name in task.about["inputs"]]
        shards = [shard for part in parts for shard in json.loads(part.read_text(encoding="utf-8"))]
        target = folder / "merged" / task.about["target"]
    else:
        shards, target = [task.number], folder / "statistics" / f"{task.about['key']}-{task.number:06d}.evg"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(shards), encoding="utf-8")
    return {"rows": len(shards)}


def _shards_in(root: Path) -> tuple[int, ...]:
    """Return the shards that a sum holds: noted in the file, or told by its archive where it is one."""
    from evergrow.engine.works import whole_archive

    archive = whole_archive(root)
    if archive is not None:
        return tuple(sorted(int(number) for number in archive.meta["engine"]["shards"]))
    return tuple(json.loads(root.read_text(encoding="utf-8")))
