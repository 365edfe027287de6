"""A real Ray on this machine, for the tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {"object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Return a cluster of two nodes with two cores each, beside a head that does no work."""
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
