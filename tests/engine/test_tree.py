"""The order of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergrow.data import Shard
from evergrow.engine.fitting import FAN_IN, merge_tree
from evergrow.engine.job import Job, Manifest


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 65, 1000])
def test_every_shard_is_added_once(n: int) -> None:
    levels = merge_tree(n)
    (root,) = levels[-1]
    assert list(root.leaves) == list(range(n))
    for level in levels[1:]:
        for number, node in enumerate(level):
            assert node.number == number
            assert 1 <= len(node.children) <= FAN_IN
            assert [leaf for child in node.children for leaf in child.leaves] == list(node.leaves)


def test_a_sum_without_a_shard_has_another_name() -> None:
    job = Job(Path("job"), Manifest({}, "features", "", 1, 1, 2, (Shard(0, 1, 0),)), "fit")
    node = merge_tree(20)[1][0]
    files = {node.file(job, without) for without in (frozenset(), {3}, {4}, {3, 4})}
    assert len(files) == 4
    assert node.file(job, {19}) == node.file(job)  # which is not below it
