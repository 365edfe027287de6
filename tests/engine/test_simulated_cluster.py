"""The real plan and the real runner on a cluster in simulated time, whose nodes fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow import Learner
from evergrow.core.errors import EngineError
from evergrow.data import read
from evergrow.engine.job import Job, begin_job
from evergrow.engine.local import LocalRunner
from evergrow.engine.manifest import Division, plan
from evergrow.engine.reduction import Reduction
from evergrow.engine.running import PERFORM, Task
from evergrow.engine.stages import Running, Tally


def costs(**changed: float) -> Any:
    from benchmarks.merge_tree import Costs

    return Costs(**{"shard_s": 30, "shard_bytes": 1, "read_s": 4, "add_s": 1, "write_s": 4, "file_bytes": 1} | changed)


def simulated(plan: Any) -> tuple[Any, Any]:
    """Return a cluster whose tasks take ten seconds, and the runner on it."""
    from benchmarks.simulated_ray import SimulatedRay, simulated_runner

    ray = SimulatedRay(plan, lambda task: 10.0)
    return ray, simulated_runner(ray, "builtins:vars")


def test_every_shard_is_counted_once_whatever_fails() -> None:
    from benchmarks.merge_tree import simulate
    from benchmarks.simulated_ray import ClusterPlan

    quiet = simulate(60, ClusterPlan(3, 2), costs())
    stormy = simulate(60, ClusterPlan(3, 2, hours_between_failures=0.05, repair_s=60.0), costs())
    assert quiet.shards == stormy.shards == tuple(range(60))
    assert quiet.lost_tasks == 0 < stormy.lost_tasks
    assert quiet.image_bytes == 60 < stormy.image_bytes
    assert quiet.written_bytes == stormy.written_bytes == 60 + 8 + 1  # parts, sums of eight, the sum of those
    assert quiet.wall_s < stormy.wall_s
    assert simulate(60, ClusterPlan(3, 2, hours_between_failures=0.05, repair_s=60.0), costs()) == stormy


def test_files_in_the_folder_do_not_grow_with_the_shards() -> None:
    from benchmarks.merge_tree import simulate
    from benchmarks.simulated_ray import ClusterPlan

    few, many = (simulate(n, ClusterPlan(1, 4), costs(), at_once=16).most_files for n in (60, 180))
    assert few <= many < 1.5 * few < 100


def test_rounds_grow_with_the_workers() -> None:
    """Simulated seconds: with one shard for each worker in a round, most of them wait for the sums of the last one."""
    from benchmarks.merge_tree import simulate
    from benchmarks.simulated_ray import ClusterPlan

    wide = ClusterPlan(8, 8)
    assert simulate(256, wide, costs()).wall_s < 0.8 * simulate(256, wide, costs(), at_once=64).wall_s
    narrow = ClusterPlan(1, 8)
    assert simulate(80, narrow, costs()) == simulate(80, narrow, costs(), at_once=64)


def test_statistics_of_failing_nodes_are_those_of_one_process(tmp_path: Path) -> None:
    from benchmarks.merge_tree import simulate_job
    from benchmarks.simulated_ray import ClusterPlan

    draws = np.random.default_rng(0)
    X, y = draws.normal(size=(120, 4)).astype(np.float32), np.array(list("abc") * 40)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    template = Learner(device="cpu", options={"n_units": 8}).fit((X[:30], y[:30])).spawn()
    manifest = plan(read(str(tmp_path / "rows.npz")), Division(rows=10))

    def begun(name: str) -> Job:
        job = begin_job(Job(tmp_path / name, manifest, "fit"))
        template.save(job.template)
        return job

    here, there = begun("here"), begun("there")
    expected = Reduction(here, Tally(), Running(LocalRunner(), "cpu")).run(lambda done, note: None)
    stormy = ClusterPlan(3, 2, hours_between_failures=0.03, repair_s=60.0)
    found = simulate_job(there, stormy, costs(), perform=PERFORM)
    assert found.lost_tasks > 0
    assert found.shards == tuple(range(12))
    assert (there.folder / "merged" / expected.name).read_bytes() == expected.read_bytes()


def test_a_node_that_is_lost_while_its_workers_start_ends_nothing() -> None:
    from benchmarks.simulated_ray import ClusterPlan

    ray, runner = simulated(ClusterPlan(2, 8, repair_s=100.0))
    ray.lose(1, 50.0)
    ray.lose(1, 155.0)  # its eight workers were replaced at 150 and have not answered yet
    outcomes = list(runner.run([Task("statistics", number) for number in range(400)]))
    assert [outcome.state for outcome in outcomes] == ["done"] * 400
    assert ray.lost_nodes == 2


def test_a_node_that_is_lost_before_anybody_has_answered_ends_nothing() -> None:
    from benchmarks.simulated_ray import ClusterPlan

    ray, runner = simulated(ClusterPlan(2, 8, repair_s=100.0))
    ray.lose(1, 5.0)
    outcomes = list(runner.run([Task("statistics", number) for number in range(40)]))
    assert [outcome.state for outcome in outcomes] == ["done"] * 40


def test_workers_none_of_which_can_start_are_said() -> None:
    from benchmarks.simulated_ray import ClusterPlan

    ray, runner = simulated(ClusterPlan(1, 8, repair_s=100.0))
    for at_s in (5.0, 110.0):
        ray.lose(0, at_s)
    with pytest.raises(EngineError, match="workers cannot start"):
        list(runner.run([Task("statistics", number) for number in range(20)]))


def test_a_task_is_not_blamed_for_idle_workers_of_a_lost_node() -> None:
    from benchmarks.simulated_ray import ClusterPlan

    ray, runner = simulated(ClusterPlan(1, 8))
    assert len(list(runner.run([Task("statistics", number) for number in range(8)]))) == 8
    ray.lose(0, at_s=0.0)
    assert [outcome.state for outcome in runner.run([Task("merge", 0)])] == ["done"]
