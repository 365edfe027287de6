"""EASE's class means and estimates against loops over classes and blocks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evergrow.lab.methods.block_means import BlockMeans

WIDTH = 5


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def stream(
    sizes: list[int], *, recalculate: bool = True, seed: int = 0
) -> tuple[BlockMeans, dict[tuple[int, int], Tensor]]:
    """Learn tasks of new classes; return the state and true means of seen classes."""
    source = torch.Generator().manual_seed(seed)
    means = BlockMeans.empty(WIDTH)
    seen = {}
    first = 0
    for block, size in enumerate(sizes):
        codes = torch.arange(first, first + size).repeat_interleave(3)
        features = torch.randn(block + 1, len(codes), WIDTH, generator=source) + 1
        means = (
            means.extended(first + size, blocks=block + 1)
            .added(features, codes)
            .completed(recalculate=recalculate)
        )
        for code in codes.unique().tolist():
            for b in range(block + 1):
                seen[b, code] = features[b, codes == code].double().mean(dim=0)
        first += size
    return means, seen


def composed(
    seen: dict[tuple[int, int], Tensor],
    home: int,
    block: int,
    old: int,
    sources: list[int],
) -> Tensor:
    """The complement of one class, written out."""
    scores = [math.exp(cosine(seen[home, old], seen[home, j])) for j in sources]
    result = torch.zeros(WIDTH, dtype=torch.float64)
    for j, score in zip(sources, scores, strict=True):
        result += score / sum(scores) * seen[block, j]
    return result


SIZES = [2, 3, 1, 2]
TASK = [task for task, size in enumerate(SIZES) for _ in range(size)]


def test_seen_classes_have_their_plain_means() -> None:
    means, seen = stream(SIZES)
    assert len(seen) == sum(block + 1 for block in TASK)
    for (block, code), mean in seen.items():
        torch.testing.assert_close(means.prototypes[block, code], mean)


@pytest.mark.parametrize("recalculate", [True, False])
def test_unseen_classes_are_composed_of_classes_that_the_block_saw(
    recalculate: bool,
) -> None:
    """Without recalculation, only the classes of the block's own task count."""
    means, seen = stream(SIZES, recalculate=recalculate)
    for old, home in enumerate(TASK):
        for block in range(home + 1, len(SIZES)):
            sources = [
                code
                for code, task in enumerate(TASK)
                if task == block or (recalculate and task > block)
            ]
            torch.testing.assert_close(
                means.prototypes[block, old], composed(seen, home, block, old, sources)
            )


def test_a_class_that_comes_again_has_the_mean_of_all_its_images() -> None:
    source = torch.Generator().manual_seed(1)
    first = torch.randn(1, 4, WIDTH, generator=source)
    second = torch.randn(2, 6, WIDTH, generator=source)
    means = (
        BlockMeans.empty(WIDTH)
        .extended(2, blocks=1)
        .added(first, torch.tensor([0, 0, 1, 1]))
        .completed()
    )
    codes = torch.tensor([0, 0, 2, 2, 2, 2])
    means = means.extended(3, blocks=2).added(second, codes).completed()
    both = torch.cat([first[0, :2], second[0, :2]]).double().mean(dim=0)
    torch.testing.assert_close(means.prototypes[0, 0], both)
    torch.testing.assert_close(
        means.prototypes[1, 0], second[1, :2].double().mean(dim=0)
    )
    assert means.home.tolist() == [0, 0, 1]
