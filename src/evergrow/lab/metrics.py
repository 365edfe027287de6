"""Accuracy matrix, A_last, A_avg and forgetting, in both conventions of the literature.

A session is the learning of one task. A_last is the accuracy over all classes after
the last session. A_avg is the mean of the accuracies after all sessions. The
conventions differ in how they weight tasks; see :func:`session_accuracies`.

The matrix ``a[t, j]`` is the accuracy on the test samples of task j after session t,
both counted from 0. It is NaN for j > t, before task j arrives. Accuracies are
fractions; tables convert them to percent.

Accuracy within tasks (:func:`within_tasks`, also called task-aware or task-incremental
accuracy) is an additional diagnostic: predictions are restricted to the classes of the
sample's own task. Its distance to 1 counts errors within tasks. Its distance to the
usual accuracy counts confusions with classes of other tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evergrow.core.errors import InputError, LabelError
from evergrow.core.validation import check_choice

CONVENTIONS = ("samples", "tasks")
"""``"samples"``: top-1 over all seen test samples. ``"tasks"``: mean over tasks."""


@dataclass(frozen=True)
class Summary:
    """Key figures of one accuracy matrix.

    Parameters
    ----------
    by_samples, by_tasks : ndarray of shape (T,)
        Accuracy after every session in the two conventions.
    a_last, a_avg : float
        Last entry and mean of ``by_samples``, as in the tables of the paper.
    a_last_tasks, a_avg_tasks : float
        Last entry and mean of ``by_tasks``.
    f_avg : float
        Average forgetting. NaN for a single session.
    """

    by_samples: NDArray[np.float64]
    by_tasks: NDArray[np.float64]
    a_last: float
    a_avg: float
    a_last_tasks: float
    a_avg_tasks: float
    f_avg: float


@dataclass(frozen=True)
class WithinTasks:
    """Accuracy of predictions among the classes of the sample's own task.

    Parameters
    ----------
    accuracy : float
        Over all samples. NaN without samples.
    by_task : ndarray of shape (T,)
        Per task. NaN for a task without samples.
    counts : ndarray of int of shape (T,)
        Number of samples per task.
    """

    accuracy: float
    by_task: NDArray[np.float64]
    counts: NDArray[np.int64]


def task_accuracies(
    y_true: ArrayLike, y_pred: ArrayLike, task_ids: ArrayLike, n_tasks: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return one row of the accuracy matrix from one set of predictions.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n,)
        Labels and predictions of the test samples of all tasks seen so far.
    task_ids : array-like of int of shape (n,)
        Task of each sample.
    n_tasks : int
        Length of the row.

    Returns
    -------
    accuracies : ndarray of shape (n_tasks,)
        Accuracy per task. NaN for a task without test samples.
    counts : ndarray of int of shape (n_tasks,)
        Number of test samples per task.

    Examples
    --------
    >>> from evergrow.lab.metrics import task_accuracies
    >>> y_true, y_pred, task_ids = [0, 0, 1, 2], [0, 1, 1, 2], [0, 0, 0, 1]
    >>> row, counts = task_accuracies(y_true, y_pred, task_ids, n_tasks=3)
    >>> [round(float(a), 3) for a in row], counts.tolist()
    ([0.667, 1.0, nan], [3, 1, 0])
    """
    truth = np.asarray(y_true)
    predicted = np.asarray(y_pred)
    tasks = np.asarray(task_ids, dtype=np.int64)
    if truth.ndim != 1 or not truth.shape == predicted.shape == tasks.shape:
        raise InputError(
            "y_true, y_pred and task_ids must be 1-D and of equal length, "
            f"got shapes {truth.shape}, {predicted.shape} and {tasks.shape}"
        )
    if len(tasks) and not 0 <= tasks.min() <= tasks.max() < n_tasks:
        raise InputError(
            f"task_ids must lie in 0..{n_tasks - 1}, got {tasks.min()}..{tasks.max()}"
        )
    counts = np.bincount(tasks, minlength=n_tasks).astype(np.int64)
    hits = np.bincount(tasks, weights=truth == predicted, minlength=n_tasks)
    with np.errstate(invalid="ignore"):
        return hits / counts, counts


def accuracy_matrix(rows: list[Any]) -> NDArray[np.float64]:
    """Stack rows into a square matrix with NaN above the diagonal.

    Parameters
    ----------
    rows : list of array-like
        Row t holds at least t + 1 accuracies. Entries after index t are ignored.

    Returns
    -------
    ndarray of shape (T, T)

    Examples
    --------
    >>> from evergrow.lab.metrics import accuracy_matrix
    >>> accuracy_matrix([[1.0], [0.9, 0.8]]).tolist()
    [[1.0, nan], [0.9, 0.8]]
    """
    matrix = np.full((len(rows), len(rows)), np.nan)
    for t, row in enumerate(rows):
        values = np.asarray(row, dtype=np.float64)
        if values.ndim != 1 or len(values) <= t:
            raise InputError(
                f"row {t} must hold at least {t + 1} accuracies, "
                f"got shape {values.shape}"
            )
        matrix[t, : t + 1] = values[: t + 1]
    return matrix


def session_accuracies(
    matrix: ArrayLike, counts: ArrayLike | None = None, *, convention: str = "samples"
) -> NDArray[np.float64]:
    """Return the accuracy after every session.

    Parameters
    ----------
    matrix : array-like of shape (T, T)
        Accuracy matrix ``a[t, j]``.
    counts : array-like of int of shape (T,), optional
        Number of test samples per task, required for ``"samples"``.
    convention : {"samples", "tasks"}
        ``"samples"`` weights each task by its number of test samples, which equals
        top-1 accuracy over the test samples of all seen classes (PILOT, the paper's A_i
        on D_{1:i}). ``"tasks"`` is the mean of the accuracies per task (RanPAC's
        "ave_acc", AnaCP). They differ on unbalanced datasets.

    Returns
    -------
    ndarray of shape (T,)
        NaN for sessions without any test sample so far.

    Examples
    --------
    >>> from evergrow.lab.metrics import session_accuracies
    >>> a = [[1.0, float("nan")], [0.5, 0.8]]
    >>> session_accuracies(a, [300, 100]).round(3).tolist()
    [1.0, 0.575]
    >>> session_accuracies(a, convention="tasks").round(3).tolist()
    [1.0, 0.65]
    """
    check_choice("convention", convention, CONVENTIONS)
    a = _square(matrix)
    if convention == "samples":
        if counts is None:
            raise InputError("counts must be given for convention='samples', got None")
        weights = np.asarray(counts, dtype=np.float64)
        if weights.shape != (len(a),) or (weights < 0).any():
            raise InputError(
                f"counts must be {len(a)} numbers >= 0, got shape {weights.shape}"
            )
    else:
        weights = np.ones(len(a))
    # A task without test samples, which repeated classes can cause, has a NaN accuracy
    # and no weight.
    used = np.tril(np.ones_like(a)) * ~np.isnan(a) * weights
    with np.errstate(invalid="ignore"):
        return np.asarray((used * np.nan_to_num(a)).sum(axis=1) / used.sum(axis=1))


def average_forgetting(matrix: ArrayLike) -> float:
    """Return the average forgetting of the paper; lower is better.

    F_avg = 1/(T-1) sum_{j=1}^{T-1} ( max_{t in {j..T-1}} a_{t,j} - a_{T,j} )

    (``scl_mgsm.tex``, appendix "Analysis of Average Forgetting"). The maximum excludes
    the last session, so a task that improves at the end counts as negative. PILOT
    includes it, so its figure is never negative.

    Parameters
    ----------
    matrix : array-like of shape (T, T)
        Accuracy matrix ``a[t, j]``.

    Returns
    -------
    float
        NaN for a single session. Tasks without test samples are ignored.

    Examples
    --------
    >>> from evergrow.lab.metrics import average_forgetting
    >>> nan = float("nan")
    >>> a = [[0.9, nan, nan], [0.95, 0.8, nan], [0.7, 0.85, 0.6]]
    >>> round(average_forgetting(a), 4)
    0.1
    """
    a = _square(matrix)
    has_samples = ~np.isnan(a[-1])
    drops = [a[j:-1, j].max() - a[-1, j] for j in range(len(a) - 1) if has_samples[j]]
    return float(np.mean(drops)) if drops else float("nan")


def summarize(matrix: ArrayLike, counts: ArrayLike) -> Summary:
    """Return A_last, A_avg (mean over sessions) and F_avg in both conventions.

    The paper prints A_avg as 1/(t+1) times a sum of t terms, but its numbers are the
    plain mean.

    Parameters
    ----------
    matrix : array-like of shape (T, T)
        Accuracy matrix ``a[t, j]``.
    counts : array-like of int of shape (T,)
        Number of test samples per task.

    Returns
    -------
    Summary

    Examples
    --------
    >>> from evergrow.lab.metrics import summarize
    >>> s = summarize([[1.0, float("nan")], [0.5, 0.8]], [300, 100])
    >>> round(s.a_last, 4), round(s.a_avg, 4), round(s.a_last_tasks, 4), s.f_avg
    (0.575, 0.7875, 0.65, 0.5)
    """
    by_samples = session_accuracies(matrix, counts)
    by_tasks = session_accuracies(matrix, convention="tasks")
    return Summary(
        by_samples=by_samples,
        by_tasks=by_tasks,
        a_last=float(by_samples[-1]),
        a_avg=_mean(by_samples),
        a_last_tasks=float(by_tasks[-1]),
        a_avg_tasks=_mean(by_tasks),
        f_avg=average_forgetting(matrix),
    )


def first_tasks(task_classes: Iterable[ArrayLike]) -> dict[Any, int]:
    """Return the first task of every class.

    A recurring class stays with its first task, like its test samples in a stream.

    Parameters
    ----------
    task_classes : iterable of array-like
        Classes of task 0, 1, ...

    Returns
    -------
    dict
        First task by class.

    Examples
    --------
    >>> from evergrow.lab.metrics import first_tasks
    >>> first_tasks([["cat", "dog"], ["dog", "owl"]])
    {'cat': 0, 'dog': 0, 'owl': 1}
    """
    first: dict[Any, int] = {}
    for task, labels in enumerate(task_classes):
        for label in np.asarray(labels).tolist():
            first.setdefault(label, task)
    return first


def within_tasks(
    scores: ArrayLike,
    classes: ArrayLike,
    y_true: ArrayLike,
    class_tasks: Mapping[Any, int],
    n_tasks: int,
) -> WithinTasks:
    """Return the accuracy of predictions among the classes of the sample's own task.

    Parameters
    ----------
    scores : array-like of shape (n, C)
        Larger means more likely. Ties go to the first column, as in argmax.
    classes : array-like of shape (C,)
        Class of every column.
    y_true : array-like of shape (n,)
        Labels, each in ``classes``.
    class_tasks : mapping
        Task of every class, counted from 0; see :func:`first_tasks` for recurring
        classes. Additional classes are ignored.
    n_tasks : int
        Number of tasks.

    Returns
    -------
    WithinTasks

    Raises
    ------
    LabelError
        If a label has no column, or a column has no task.
    InputError
        If shapes do not fit, or a score is NaN.

    Examples
    --------
    >>> from evergrow.lab.metrics import within_tasks
    >>> scores = [[0.1, 0.3, 0.6], [0.2, 0.1, 0.7], [0.5, 0.4, 0.1]]  # all wrong
    >>> within = within_tasks(scores, [5, 6, 7], [6, 6, 7], {5: 0, 6: 0, 7: 1}, 2)
    >>> round(within.accuracy, 3), within.by_task.tolist(), within.counts.tolist()
    (0.667, [0.5, 1.0], [2, 1])
    """
    values = np.asarray(scores, dtype=np.float64)
    columns = np.asarray(classes)
    truth = np.asarray(y_true)
    if values.shape != (*truth.shape, *columns.shape) or values.ndim != 2:
        raise InputError(
            "scores must have a row per entry of y_true and a column per entry of "
            f"classes, both 1-D, got shapes {values.shape}, {truth.shape} and "
            f"{columns.shape}"
        )
    if np.isnan(values).any():
        raise InputError("scores must be numbers, got NaN")
    indices = {label: index for index, label in enumerate(columns.tolist())}
    without_column = set(truth.tolist()) - indices.keys()
    without_task = indices.keys() - class_tasks.keys()
    unknown = sorted(without_column | without_task, key=str)
    if unknown:
        raise LabelError(
            "labels must have a column and columns a task, "
            f"got neither for {unknown[:5]}"
        )
    column_tasks = np.array([class_tasks[label] for label in indices], dtype=np.int64)
    true_columns = np.array(
        [indices[label] for label in truth.tolist()], dtype=np.int64
    )
    tasks = column_tasks[true_columns]
    predicted = np.zeros_like(true_columns)
    for task in np.unique(tasks):
        rows = np.flatnonzero(tasks == task)
        allowed = np.flatnonzero(column_tasks == task)
        predicted[rows] = allowed[values[np.ix_(rows, allowed)].argmax(axis=1)]
    by_task, counts = task_accuracies(true_columns, predicted, tasks, n_tasks)
    accuracy = float("nan")
    if len(truth):
        accuracy = float(np.mean(predicted == true_columns))
    return WithinTasks(accuracy, by_task, counts)


def _square(matrix: ArrayLike) -> NDArray[np.float64]:
    a = np.asarray(matrix, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or len(a) == 0:
        raise InputError(
            f"matrix must be square with at least one session, got shape {a.shape}"
        )
    return a


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
