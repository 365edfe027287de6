"""Metrics against independent computations and identities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from evergrow.core.errors import EvergrowError
from evergrow.lab.metrics import (
    accuracy_matrix,
    average_forgetting,
    first_tasks,
    session_accuracies,
    summarize,
    task_accuracies,
    within_tasks,
)

NAN = float("nan")


def random_matrix(T: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).random((T, T))
    a[np.triu_indices(T, 1)] = np.nan
    return a


def forgetting_by_the_printed_formula(a: np.ndarray) -> float:
    T = len(a)
    total = 0.0
    for j in range(1, T):  # the paper counts from 1
        total += max(a[t - 1, j - 1] for t in range(j, T)) - a[T - 1, j - 1]
    return total / (T - 1)


@pytest.mark.parametrize("T", [2, 3, 9])
def test_forgetting_is_the_papers_formula(T: int) -> None:
    a = random_matrix(T)
    assert average_forgetting(a) == pytest.approx(
        forgetting_by_the_printed_formula(a), abs=1e-15
    )


def test_forgetting_leaves_the_last_session_out_of_the_maximum() -> None:
    assert average_forgetting([[0.5, NAN], [0.9, 1.0]]) == pytest.approx(-0.4)


def test_forgetting_of_one_session_is_undefined() -> None:
    assert np.isnan(average_forgetting([[0.7]]))


def test_sample_weighted_equals_accuracy_over_all_seen_samples() -> None:
    rng = np.random.default_rng(1)
    sizes = [7, 2, 30, 11]
    rows = []
    overall = []
    by_task = []
    counts = np.zeros(4, dtype=int)
    for t in range(4):
        ids = np.repeat(np.arange(t + 1), sizes[: t + 1])
        truth = rng.integers(3, size=len(ids))
        guess = rng.integers(3, size=len(ids))
        row, counts[: t + 1] = task_accuracies(truth, guess, ids, t + 1)
        rows.append(row)
        overall.append(accuracy_score(truth, guess))
        by_task.append(
            np.mean(
                [accuracy_score(truth[ids == j], guess[ids == j]) for j in range(t + 1)]
            )
        )
    summary = summarize(accuracy_matrix(rows), counts)
    np.testing.assert_allclose(summary.by_samples, overall, atol=1e-15)
    np.testing.assert_allclose(summary.by_tasks, by_task, atol=1e-15)
    assert summary.a_last == pytest.approx(overall[-1])
    assert summary.a_avg == pytest.approx(np.mean(overall))
    assert summary.a_last_tasks == pytest.approx(by_task[-1])
    assert summary.a_avg_tasks == pytest.approx(np.mean(by_task))


def test_conventions_agree_on_balanced_tasks() -> None:
    a = random_matrix(5)
    np.testing.assert_allclose(
        session_accuracies(a, [8] * 5), session_accuracies(a, convention="tasks")
    )


def test_tasks_without_test_samples_do_not_count() -> None:
    a = np.array([[1.0, NAN, NAN], [0.8, NAN, NAN], [0.6, NAN, 0.4]])
    summary = summarize(a, [10, 0, 30])
    np.testing.assert_allclose(summary.by_samples, [1.0, 0.8, 0.45])
    np.testing.assert_allclose(summary.by_tasks, [1.0, 0.8, 0.5])
    assert summary.f_avg == pytest.approx(0.4)


def test_string_labels_are_accepted() -> None:
    row, _ = task_accuracies(np.array(["a", "b"]), np.array(["a", "a"]), [0, 1], 2)
    assert row.tolist() == [1.0, 0.0]


def within_by_loops(
    scores: np.ndarray, classes: list, y: list, task_of: dict, n_tasks: int
) -> tuple[float, list[float]]:
    hits: list[list[bool]] = [[] for _ in range(n_tasks)]
    for row, label in zip(scores, y):
        best = None
        for score, candidate in zip(row, classes):
            if task_of[candidate] == task_of[label] and (
                best is None or score > best[0]
            ):
                best = score, candidate
        assert best is not None
        hits[task_of[label]].append(best[1] == label)
    every = [hit for task in hits for hit in task]
    return sum(every) / len(every), [
        sum(task) / len(task) if task else NAN for task in hits
    ]


@pytest.mark.parametrize(
    "names", [range(9), [f"class {number}" for number in range(9)]]
)
def test_within_tasks_is_the_loop_over_samples_and_classes(names) -> None:
    rng = np.random.default_rng(2)
    # Columns need not be in order of arrival, task 2 has no class, task 4 no samples.
    classes = rng.permutation(np.array(list(names))).tolist()
    tasks = [0, 0, 0, 1, 3, 3, 4, 4, 4]
    task_of = dict(zip(rng.permutation(np.array(classes)).tolist(), tasks))
    tested = np.array([label for label in classes if task_of[label] != 4])
    y = rng.choice(tested, size=200)
    scores = rng.integers(0, 4, size=(200, 9)).astype(float)  # with ties
    found = within_tasks(scores, classes, y, task_of, n_tasks=6)
    accuracy, by_task = within_by_loops(scores, classes, y.tolist(), task_of, 6)
    assert found.accuracy == pytest.approx(accuracy, abs=1e-15)
    np.testing.assert_allclose(found.by_task, by_task, atol=1e-15)
    assert found.counts.tolist() == [
        sum(task_of[label] == task for label in y.tolist()) for task in range(6)
    ]
    assert found.by_task[1] == 1.0  # with one class there is nothing to confuse


def test_within_one_task_is_plain_accuracy_and_more_tasks_never_hurt() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(300, 8))
    y = rng.integers(8, size=300)
    overall = accuracy_score(y, scores.argmax(axis=1))
    assert within_tasks(
        scores, range(8), y, dict.fromkeys(range(8), 0), 1
    ).accuracy == pytest.approx(overall)
    split = [
        within_tasks(scores, range(8), y, {c: c // size for c in range(8)}, 8).accuracy
        for size in (8, 4, 2, 1)
    ]
    assert split == sorted(split)
    assert split[-1] == 1.0


def test_within_tasks_without_samples_is_undefined() -> None:
    found = within_tasks(
        np.empty((0, 2)), [0, 1], np.empty(0, dtype=int), {0: 0, 1: 1}, 2
    )
    assert np.isnan(found.accuracy)
    assert np.isnan(found.by_task).all()
    assert found.counts.tolist() == [0, 0]


def test_a_class_belongs_to_the_task_it_was_first_seen_in() -> None:
    assert first_tasks([np.array([4, 2]), [], [2, 7, 4], [9, 7]]) == {
        4: 0,
        2: 0,
        7: 2,
        9: 3,
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda: task_accuracies([1, 2], [1], [0, 0], 1),
        lambda: task_accuracies([1], [1], [3], 2),
        lambda: accuracy_matrix([[1.0], [0.5]]),
        lambda: average_forgetting([[1.0, 0.5]]),
        lambda: session_accuracies([[1.0]]),
        lambda: session_accuracies([[1.0]], [1, 2]),
        lambda: session_accuracies([[1.0]], [1], convention="sample"),
        lambda: within_tasks(
            [[1.0, 2.0]], [0, 1], [2], {0: 0, 1: 0, 2: 0}, 1
        ),  # no column for the label
        lambda: within_tasks(
            [[1.0, 2.0]], [0, 1], [0], {0: 0}, 1
        ),  # no task for a column
        lambda: within_tasks([[1.0, NAN]], [0, 1], [0], {0: 0, 1: 0}, 1),
        lambda: within_tasks([[1.0, 2.0]], [0, 1], [0, 1], {0: 0, 1: 0}, 1),
        lambda: within_tasks([[1.0, 2.0]], [0, 1], [1], {0: 0, 1: 1}, n_tasks=1),
    ],
)
def test_wrong_input_is_a_typed_error(call) -> None:
    with pytest.raises(EvergrowError, match="must"):
        call()
