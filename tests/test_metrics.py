"""Metrics against independent computations and by the identities they must satisfy."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from evergrow.core.errors import EvergrowError
from evergrow.metrics import (
    accuracy_matrix,
    average_forgetting,
    session_accuracies,
    summarize,
    task_accuracies,
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
    assert average_forgetting(a) == pytest.approx(forgetting_by_the_printed_formula(a), abs=1e-15)


def test_forgetting_leaves_the_last_session_out_of_the_maximum() -> None:
    assert average_forgetting([[0.5, NAN], [0.9, 1.0]]) == pytest.approx(-0.4)


def test_forgetting_of_one_session_is_undefined() -> None:
    assert np.isnan(average_forgetting([[0.7]]))


def test_sample_weighted_equals_accuracy_over_all_seen_samples() -> None:
    rng = np.random.default_rng(1)
    sizes = [7, 2, 30, 11]
    rows, overall, by_task, counts = [], [], [], np.zeros(4, dtype=int)
    for t in range(4):
        ids = np.repeat(np.arange(t + 1), sizes[: t + 1])
        truth, guess = rng.integers(3, size=len(ids)), rng.integers(3, size=len(ids))
        row, counts[: t + 1] = task_accuracies(truth, guess, ids, t + 1)
        rows.append(row)
        overall.append(accuracy_score(truth, guess))
        by_task.append(np.mean([accuracy_score(truth[ids == j], guess[ids == j]) for j in range(t + 1)]))
    summary = summarize(accuracy_matrix(rows), counts)
    np.testing.assert_allclose(summary.by_samples, overall, atol=1e-15)
    np.testing.assert_allclose(summary.by_tasks, by_task, atol=1e-15)
    assert summary.a_last == pytest.approx(overall[-1])
    assert summary.a_avg == pytest.approx(np.mean(overall))
    assert summary.a_last_tasks == pytest.approx(by_task[-1])
    assert summary.a_avg_tasks == pytest.approx(np.mean(by_task))


def test_conventions_agree_on_balanced_tasks() -> None:
    a = random_matrix(5)
    np.testing.assert_allclose(session_accuracies(a, [8] * 5), session_accuracies(a, convention="tasks"))


def test_tasks_without_test_samples_do_not_count() -> None:
    a = np.array([[1.0, NAN, NAN], [0.8, NAN, NAN], [0.6, NAN, 0.4]])
    summary = summarize(a, [10, 0, 30])
    np.testing.assert_allclose(summary.by_samples, [1.0, 0.8, 0.45])
    np.testing.assert_allclose(summary.by_tasks, [1.0, 0.8, 0.5])
    assert summary.f_avg == pytest.approx(0.4)


def test_string_labels_are_fine() -> None:
    row, _ = task_accuracies(np.array(["a", "b"]), np.array(["a", "a"]), [0, 1], 2)
    assert row.tolist() == [1.0, 0.0]


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
    ],
)
def test_wrong_input_is_a_typed_error(call) -> None:
    with pytest.raises(EvergrowError, match="must"):
        call()
