"""Streams: published class orders, and samples partitioned under any protocol."""

from __future__ import annotations

import numpy as np
import pytest

from evergrow.core.errors import EvergrowError, InputError, UnknownNameError
from evergrow.data import Dataset
from evergrow.data.items import Texts
from evergrow.lab.streams import (
    Protocol,
    class_order,
    disjoint_order,
    make_stream,
    stream_of,
)

RNG = np.random.default_rng(0)
Y_TRAIN = RNG.permutation(np.repeat(np.arange(23), RNG.integers(3, 15, size=23)))
Y_TEST = RNG.permutation(np.repeat(np.arange(23), RNG.integers(1, 6, size=23)))

PROTOCOLS = [
    Protocol(increment=5),
    Protocol(initial=10, increment=4),
    Protocol(increment=23),
    Protocol(increment=5, shuffle=False),
    Protocol(increment=5, disjoint=True),
    Protocol(increment=5, blur=0.3),
    Protocol(increment=2, blur=1.0, blurry_classes=1.0),
    Protocol(increment=5, repeat=0.4),
    Protocol(increment=5, repeat=1.0),
    Protocol(increment=5, batch_size=7),
]


@pytest.mark.parametrize(
    "protocol", PROTOCOLS, ids=lambda p: p.name + " disjoint" * p.disjoint
)
def test_samples_are_partitioned(protocol: Protocol) -> None:
    stream = make_stream(Y_TRAIN, Y_TEST, protocol, seed=3)
    train = np.concatenate([task.train for task in stream])
    test = np.concatenate([task.test for task in stream])
    assert sorted(train.tolist()) == list(range(len(Y_TRAIN)))
    assert sorted(test.tolist()) == list(range(len(Y_TEST)))
    seen: set[int] = set()
    for index, task in enumerate(stream):
        present = set(Y_TRAIN[task.train].tolist())
        assert task.index == index
        assert present == set(task.classes.tolist())
        assert present - seen == set(task.new_classes.tolist())
        # Every class has test samples here.
        assert set(Y_TEST[task.test].tolist()) == present - seen
        assert len(task.train)
        seen |= present
    assert seen == set(range(23))


@pytest.mark.parametrize(
    "protocol", PROTOCOLS, ids=lambda p: p.name + " disjoint" * p.disjoint
)
def test_same_seed_same_stream_and_other_seed_another(protocol: Protocol) -> None:
    one, two, other = (
        make_stream(Y_TRAIN, Y_TEST, protocol, seed=s) for s in (3, 3, 4)
    )
    np.random.random()  # noqa: NPY002 (the global generator must not matter)
    assert all(
        (a.train == b.train).all() and (a.test == b.test).all()
        for a, b in zip(one, two)
    )
    assert any(
        len(a.train) != len(b.train) or (a.train != b.train).any()
        for a, b in zip(one, other)
    )


def test_class_incremental_follows_the_order_with_a_remainder() -> None:
    stream = make_stream(Y_TRAIN, Y_TEST, Protocol(initial=10, increment=5), seed=1993)
    assert [len(task.classes) for task in stream] == [10, 5, 5, 3]
    assert (
        np.concatenate([task.classes for task in stream]).tolist()
        == class_order(23).tolist()
    )
    assert stream.order.tolist() == class_order(23).tolist()


def test_labels_may_be_strings() -> None:
    names = np.array(["ant", "bee", "cat"])
    stream = make_stream(
        names[[0, 1, 2, 0]], names[[2]], Protocol(increment=2, shuffle=False)
    )
    assert [task.classes.tolist() for task in stream] == [["ant", "bee"], ["cat"]]
    assert [len(task.test) for task in stream] == [0, 1]


def test_blur_moves_the_stated_share_of_the_blurry_classes_only() -> None:
    y = np.repeat(np.arange(40), 50)
    plain = make_stream(y, y, Protocol(increment=10), seed=2)
    blurred = make_stream(
        y, y, Protocol(increment=10, blur=0.2, blurry_classes=0.5), seed=2
    )
    home = {c: task.index for task in plain for c in task.classes.tolist()}
    moved = [
        y[row] for task in blurred for row in task.train if home[y[row]] != task.index
    ]
    assert len(set(moved)) <= 20
    # A quarter of the moved samples draws its own task again.
    assert len(moved) == pytest.approx(0.2 * 1000 * 3 / 4, rel=0.15)


def test_repeat_shares_samples_evenly_and_never_before_the_first_visit() -> None:
    y = np.repeat(np.arange(12), 30)
    stream = make_stream(y, y, Protocol(increment=3, repeat=1.0), seed=2)
    for task in stream:
        visits = np.unique(y[task.train], return_counts=True)[1]
        assert len(visits) == 3 * (task.index + 1)
    first = stream.tasks[0]
    counts = [int((y[task.train] == first.classes[0]).sum()) for task in stream]
    assert counts == [8, 8, 7, 7]


def test_online_batches_are_the_task_cut_in_pieces() -> None:
    stream = make_stream(Y_TRAIN, Y_TEST, Protocol(increment=5, batch_size=7))
    offline = make_stream(Y_TRAIN, Y_TEST, Protocol(increment=5))
    for task, whole in zip(stream, offline):
        batches = list(stream.batches(task))
        assert {len(batch) for batch in batches[:-1]} <= {7}
        assert np.concatenate(batches).tolist() == whole.train.tolist()
        assert [len(batch) for batch in offline.batches(whole)] == [len(whole.train)]


def test_rows_within_a_task_are_shuffled() -> None:
    y = np.repeat(np.arange(4), 100)
    task = make_stream(y, y, Protocol(increment=4)).tasks[0]
    held_out = y[task.train[-80:]]
    assert len(np.unique(held_out)) == 4


def test_seen_test_returns_the_task_of_every_row() -> None:
    stream = make_stream(Y_TRAIN, Y_TEST, Protocol(increment=5))
    rows, ids = stream.seen_test(2)
    for task in stream.tasks[:3]:
        assert rows[ids == task.index].tolist() == task.test.tolist()
    assert len(rows) == sum(len(task.test) for task in stream.tasks[:3])


@pytest.mark.parametrize(
    "call",
    [
        lambda: Protocol(increment=0),
        lambda: Protocol(initial=-1),
        lambda: Protocol(blur=1.5),
        lambda: Protocol(blur=0.1, repeat=0.1),
        lambda: Protocol(shuffle=False, disjoint=True),
        lambda: Protocol(shuffle="no"),  # type: ignore[arg-type]
        lambda: make_stream(Y_TRAIN, Y_TEST, Protocol(initial=24)),
        lambda: make_stream([0, 1], [2]),
        lambda: make_stream([], []),
        lambda: make_stream([0.5, 1.5], [0.5]),
        lambda: make_stream([[0], [1]], [0]),
        lambda: disjoint_order(20, 1, [1], 2),
        lambda: class_order(10, -1),
        lambda: class_order(0),
    ],
)
def test_wrong_input_is_a_typed_error(call) -> None:
    with pytest.raises(EvergrowError, match="must"):
        call()


def test_a_stream_requires_a_test_set() -> None:
    X = np.eye(4)
    y = np.array([0, 0, 1, 1])
    features = Dataset.of(X, y)
    for data in (features, Dataset.of(Texts(("a", "b")), ["x", "y"])):
        with pytest.raises(InputError, match="needs a test set"):
            stream_of(data)


def test_unknown_protocol_setting_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'increment'"):
        Protocol.from_dict({"incremnt": 3})


# -- class orders ----------------------------------------------------------------------


FINGERPRINTS = {
    50: [43, 41, 23, 14, 13, 40],
    100: [68, 56, 78, 8, 23, 84, 90, 65, 74, 76],
    200: [168, 136, 51, 9, 183, 101, 171, 99, 42, 159],
    300: [169, 221, 146, 296, 92, 229, 49, 70, 126, 77],
}


def disjoint_orders(
    n_classes: int, seeds: list[int], n_initial: int
) -> list[np.ndarray]:
    return [
        disjoint_order(n_classes, seed, seeds[:i], n_initial)
        for i, seed in enumerate(seeds)
    ]


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


@pytest.mark.parametrize(
    ("n_classes", "m", "seeds"),
    [(200, 10, [1993, 1994, 1995]), (9, 3, [5, 1, 3]), (6, 3, [0, 1])],
)
def test_first_tasks_are_pairwise_disjoint_permutations(
    n_classes: int, m: int, seeds: list[int]
) -> None:
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
    order = disjoint_order(30, 8, [1, 2], 4).tolist()
    plain = class_order(30, 8).tolist()
    assert order[4:] == [c for c in plain if c not in order[:4]]
    assert order[:4] == [c for c in plain if c in order[:4]]
