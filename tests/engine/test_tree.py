"""The order of sums."""

from __future__ import annotations

import pytest

from evergrow.engine.tree import Tree


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
    node = Tree(20).levels[1][0]
    names = {node.name(), node.name({3}), node.name({4}), node.name({3, 4})}
    assert len(names) == 4
    assert node.name({19}) == node.name()  # which is not below it
