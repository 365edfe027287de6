"""The order in which parts are added: a tree over the shards that only the manifest decides.

Floating-point sums depend on their order. Here the order is fixed by the number of shards, so that the result is the
same to the last bit whatever the number of workers and whoever is done first. A shard that was left out leaves its
place empty and moves nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from evergrow.engine.manifest import digest_of

FAN_IN = 8
"""Parts that are added at once. Part of the result: another number is another order."""


@dataclass(frozen=True)
class Node:
    """A place in the tree.

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

    def name(self, without: Set[int] = frozenset()) -> str:
        """Return the name of its sum; a sum that lacks shards has another name, so that it is never taken for all."""
        missing = sorted(without & set(self.leaves))
        name = f"{self.level}-{self.number:06d}"
        return f"{name}-without-{digest_of(missing)}" if missing else name


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
    >>> from evergrow.engine.tree import Tree
    >>> tree = Tree(10, fan_in=4)
    >>> [[list(node.leaves) for node in level] for level in tree.levels[1:]]
    [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]]
    """

    n_shards: int
    fan_in: int = FAN_IN

    @cached_property
    def levels(self) -> list[list[Node]]:
        """All nodes, level by level from the shards up."""
        levels, width = [[Node(0, number, range(number, number + 1)) for number in range(self.n_shards)]], 1
        while len(levels[-1]) > 1:
            width *= self.fan_in
            starts = range(0, self.n_shards, width)
            level = [
                Node(len(levels), number, range(start, min(start + width, self.n_shards)))
                for number, start in enumerate(starts)
            ]
            levels.append(level)
        return levels

    @property
    def root(self) -> Node:
        """The sum of everything."""
        return self.levels[-1][0]

    def children(self, node: Node) -> list[Node]:
        """Return what is added up in a node."""
        first = node.number * self.fan_in
        return self.levels[node.level - 1][first : first + self.fan_in] if node.level else []

    def below(self, node: Node) -> Iterator[Node]:
        """Yield a node and all nodes below it."""
        yield node
        for child in self.children(node):
            yield from self.below(child)
