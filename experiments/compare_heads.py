"""Measurements on features for compare.py: all methods that learn from vectors."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import linear_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import SVC

from evergrow import Classifier, SCLClassifier
from evergrow.core.seeding import generator
from evergrow.lab.heads import RanPACClassifier

ORDERS = (1993, 1994)
"""Seeds of the class orders."""

FEW_CLASSES = 30
"""Up to this number, classes arrive in two halves; above it ten at a time."""

FOLDS = 5
"""Parts of the training rows, of which each takes the place of test rows once."""

MOST_TRAINING_ROWS = 20
"""Training rows per class that are read from a file of features."""

STEPWISE: dict[str, Callable[[int, tuple[int, ...] | None], Any]] = {
    "evergrow": lambda seed, blocks: Classifier(
        blocks=blocks, random_state=seed, device="cpu"
    ),
    "RanPAC": lambda seed, blocks: RanPACClassifier(random_state=seed, device="cpu"),
    "SCL-MGSM": lambda seed, blocks: SCLClassifier(random_state=seed, device="cpu"),
    "SCL-MGSM, scales auto": lambda seed, blocks: SCLClassifier(
        scales="auto", random_state=seed, device="cpu"
    ),
}
"""Methods that learn step by step: from a seed and block widths to a learner."""

AT_ONCE = ("logistic regression", "linear SVM", "RBF SVM")

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """One measurement on features.

    Parameters
    ----------
    data, method, features : str
        Names of the set, the method and the features.
    rows : {"train", "test"}
        Whether test images are read.
    order : int
        Seed of the class order and of the method.
    adapted : str
        How the network was adapted; empty if it is frozen.
    fold : int
        Which fifth of the training rows takes the place of test rows.
    """

    data: str
    method: str
    features: str
    rows: str
    order: int
    adapted: str = ""
    fold: int = 0


# -- rows ------------------------------------------------------------------------------


def hold_out(y: Rows, fold: int = 0) -> NDArray[np.bool_]:
    """Return a mask of a stratified fifth of the rows."""
    held = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        order = torch.randperm(len(rows), generator=generator(0, "held", int(label)))
        first = round(fold / FOLDS * len(rows))
        end = round((fold + 1) / FOLDS * len(rows))
        held[rows[order.numpy()[first:end]]] = True
    return held


def split_rows(
    y: Rows, is_train: NDArray[np.bool_], rows: str, fold: int = 0
) -> tuple[Rows, Rows]:
    """Return the indices of training rows and of rows to measure on."""
    train = np.flatnonzero(is_train)
    if rows == "test":
        return train, np.flatnonzero(~is_train)
    held = hold_out(y[train], fold)
    return train[~held], train[held]


def first_rows(y: Rows, most: int) -> Rows:
    """Return the indices of the first rows of every class."""
    rows = [np.flatnonzero(y == label)[:most] for label in np.unique(y)]
    return np.sort(np.concatenate(rows))


def class_steps(y: Rows, seed: int) -> list[Rows]:
    """Return the classes of every step."""
    order = np.random.RandomState(seed).permutation(len(np.unique(y)))
    size = 10
    if len(order) <= FEW_CLASSES:
        size = -(-len(order) // 2)
    return [order[start : start + size] for start in range(0, len(order), size)]


# -- measurements on features ----------------------------------------------------------


def measure(task: Task, file: Path) -> dict[str, Any]:
    """Return the record of one measurement on a file of features."""
    torch.set_num_threads(1)
    with np.load(file) as data:
        X = data["X"].astype(np.float32)
        y = data["y"].astype(np.int64)
        is_train = data["is_train"]
        widths = tuple(int(width) for width in data["widths"]) or None
    train, test = split_rows(y, is_train, task.rows, task.fold)
    if task.method in STEPWISE:
        found = measure_stepwise(task, X, y, (train, test), widths)
    else:
        found = measure_at_once(task.method, X, y, (train, test))
    return asdict(task) | {"n_train": len(train), "n_test": len(test)} | found


def measure_stepwise(
    task: Task,
    X: NDArray[np.float32],
    y: Rows,
    parts: tuple[Rows, Rows],
    widths: tuple[int, ...] | None,
) -> dict[str, Any]:
    """Learn classes step by step, predict, and add one class more."""
    train, test = parts
    steps = class_steps(y, task.order)
    started = time.process_time()
    model = STEPWISE[task.method](task.order, widths)
    for classes in steps:
        rows = train[np.isin(y[train], classes)]
        model.partial_fit(X[rows], y[rows])
    model.predict(X[test[:1]])
    seconds = time.process_time() - started
    is_right = model.predict(X[test]) == y[test]
    first = np.isin(y[test], np.concatenate(steps[: -(-len(steps) // 2)]))
    rows = train[y[train] == steps[-1][-1]]
    grown = copy.deepcopy(model)
    started = time.process_time()
    grown.partial_fit(X[rows], np.full(len(rows), y.max() + 1))
    grown.predict(X[test[:1]])
    return {
        "accuracy": percent(is_right),
        "first_half": percent(is_right[first]),
        "second_half": percent(is_right[~first]),
        "seconds": round(seconds, 2),
        "seconds_add": round(time.process_time() - started, 2),
        "units": int(getattr(model, "n_units_", model.n_units)),
    }


def measure_at_once(
    method: str, X: NDArray[np.float32], y: Rows, parts: tuple[Rows, Rows]
) -> dict[str, Any]:
    """Choose settings on a fifth of the training rows, then fit on all of them."""
    train, test = parts
    held = hold_out(y[train])
    fit, check = train[~held], train[held]
    started = time.process_time()
    scores = []
    for setting in settings_of(method):
        model = build_model(method, setting).fit(X[fit], y[fit])
        scores.append((float(np.mean(model.predict(X[check]) == y[check])), setting))
    setting = max(scores, key=lambda pair: pair[0])[1]
    refit = time.process_time()
    model = build_model(method, setting).fit(X[train], y[train])
    model.predict(X[test[:1]])
    done = time.process_time()
    is_right = model.predict(X[test]) == y[test]
    return {
        "accuracy": percent(is_right),
        "seconds": round(done - started, 2),
        "seconds_add": round(done - refit, 2),
        "setting": setting,
    }


def settings_of(method: str) -> Iterator[dict[str, Any]]:
    """Yield the settings to choose from."""
    for scaled in (False, True):
        if method == "RBF SVM":
            for gamma in (0.1, 0.3, 1.0, 3.0):
                for C in (1.0, 10.0, 100.0):
                    yield {"scaled": scaled, "C": C, "gamma": gamma}
            continue
        lowest = -6 if scaled else -1
        for power in range(lowest, lowest + 6):
            yield {"scaled": scaled, "C": 10.0**power}


def build_model(method: str, setting: Mapping[str, Any]) -> Any:
    """Return a pipeline of scikit-learn.

    Rows have unit length, or every feature has unit variance.
    """
    C = setting["C"]
    model: Any
    if method == "logistic regression":
        model = LogisticRegression(C=C, max_iter=300)
    elif method == "linear SVM":
        model = SVC(C=C, kernel=linear_kernel)
    else:
        model = SVC(C=C, kernel=partial(rbf_kernel, gamma=setting["gamma"]))
    return make_pipeline(StandardScaler() if setting["scaled"] else Normalizer(), model)


def rbf_kernel(
    A: NDArray[np.float32], B: NDArray[np.float32], gamma: float
) -> NDArray[np.float32]:
    """Return exp(-gamma d^2 / v), with v the total variance of the rows of B."""
    squares = np.square(A).sum(axis=1)[:, None] + np.square(B).sum(axis=1)
    distances = squares - 2 * A @ B.T
    kernel: NDArray[np.float32] = np.exp(-gamma / (B.shape[1] * B.var()) * distances)
    return kernel


def percent(is_right: NDArray[np.bool_]) -> float:
    """Return the share of true values in percent."""
    return round(100 * float(np.mean(is_right)), 2)
