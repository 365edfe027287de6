"""Class orders: the published fingerprints, and what disjointness promises."""

from __future__ import annotations

import numpy as np
import pytest

from evergrow.core.errors import ParameterError
from evergrow.lab.streams import class_order, disjoint_order

FINGERPRINTS = {
    50: [43, 41, 23, 14, 13, 40],
    100: [68, 56, 78, 8, 23, 84, 90, 65, 74, 76],
    200: [168, 136, 51, 9, 183, 101, 171, 99, 42, 159],
    300: [169, 221, 146, 296, 92, 229, 49, 70, 126, 77],
}


def disjoint_orders(n_classes: int, seeds: list[int], n_initial: int) -> list[np.ndarray]:
    return [disjoint_order(n_classes, seed, seeds[:i], n_initial) for i, seed in enumerate(seeds)]


@pytest.mark.parametrize(("n_classes", "first"), FINGERPRINTS.items())
def test_seed_1993_gives_the_published_order(n_classes: int, first: list[int]) -> None:
    assert class_order(n_classes)[: len(first)].tolist() == first


def test_equals_the_global_legacy_generator_and_leaves_it_alone() -> None:
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(7)  # noqa: NPY002
        expected = np.random.permutation(123)  # noqa: NPY002
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        assert class_order(123, 7).tolist() == expected.tolist()
        assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_natural_order() -> None:
    assert class_order(5, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("n_classes", "m", "seeds"), [(200, 10, [1993, 1994, 1995]), (9, 3, [5, 1, 3]), (6, 3, [0, 1])]
)
def test_first_tasks_are_pairwise_disjoint_permutations(n_classes: int, m: int, seeds: list[int]) -> None:
    orders = disjoint_orders(n_classes, seeds, m)
    firsts = [set(order[:m].tolist()) for order in orders]
    assert sum(map(len, firsts)) == len(set.union(*firsts)) == m * len(seeds)
    for order in orders:
        assert sorted(order.tolist()) == list(range(n_classes))


def test_first_seed_keeps_the_plain_order_and_later_seeds_do_not_matter() -> None:
    orders = disjoint_orders(200, [1993, 1994, 1995], 10)
    assert orders[0].tolist() == class_order(200).tolist()
    assert disjoint_orders(200, [1993, 1994], 10)[1].tolist() == orders[1].tolist()


def test_the_rest_follows_in_plain_order() -> None:
    order, plain = disjoint_order(30, 8, [1, 2], 4).tolist(), class_order(30, 8).tolist()
    assert order[4:] == [c for c in plain if c not in order[:4]]
    assert order[:4] == [c for c in plain if c in order[:4]]


def test_impossible_or_wrong_settings_are_typed_errors() -> None:
    with pytest.raises(ParameterError, match="got 20 classes; use fewer seeds"):
        disjoint_orders(20, [1, 2, 3], 10)
    with pytest.raises(ParameterError, match="different"):
        disjoint_orders(20, [1, 1], 2)
    with pytest.raises(ParameterError, match="seed must be"):
        class_order(10, -1)
    with pytest.raises(ParameterError, match="n_classes must be"):
        class_order(0)
