"""The order of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergrow.data import Shard
from evergrow.engine.job import Job, Manifest
from evergrow.engine.merge import Tree


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 65, 1000])
def test_every_shard_is_added_once(n: int) -> None:
    tree = Tree(n)
    assert list(tree.root.leaves) == list(range(n))
    for level in tree.levels[1:]:
        for node in level:
            children = tree.children(node)
            assert 1 <= len(children) <= tree.fan_in
            assert [leaf for child in children for leaf in child.leaves] == list(node.leaves)


def test_a_sum_without_a_shard_has_another_name() -> None:
    job = Job(Path("job"), Manifest({}, "features", "", 1, 1, 2, (Shard(0, 1, 0),)), "fit")
    node = Tree(20).levels[1][0]
    files = {node.file(job, without) for without in (frozenset(), {3}, {4}, {3, 4})}
    assert len(files) == 4
    assert node.file(job, {19}) == node.file(job)  # which is not below it
