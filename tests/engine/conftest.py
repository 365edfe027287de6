"""A real Ray on this machine, for the tests that need one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.engine.clouds import write_points

ROOT = Path(__file__).parents[2]
SMALL = {"object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}


def wait_until(true: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def _stat(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def descendants(ancestor: int) -> set[int]:
    """Return the processes that a process started, directly or not."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int(_stat(entry.name)[1])
    family = {ancestor}
    grown = 0
    while len(family) > grown:
        grown = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return family - {ancestor}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a file of 300 labelled points."""
    return write_points(tmp_path / "points.npz")


@contextmanager
def killing(
    workers: Callable[[], Sequence[int]],
    moments: Sequence[float],
    progress: Callable[[], object] = object,
) -> Iterator[list[int]]:
    """Kill a worker after each of some times. Yield the list of killed ones.

    Between two kills there is progress, so that no task meets all of them.
    """
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        seen = None
        for number, moment in enumerate(moments):
            wait_until(
                lambda seen=seen: (
                    over.is_set() or (bool(workers()) and progress() != seen)
                )
            )
            if over.wait(moment):
                return
            for pid in workers()[number % 2 :][:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            seen = progress()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join(10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster of two nodes with two cores each and a head without cores."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # Workers import the works of these tests, and the evergrow that is tested.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
        for _ in range(2):
            cluster.add_node(num_cpus=2, **SMALL)
        cluster.wait_for_nodes()
        yield cluster
        ray.shutdown()
        cluster.shutdown()
