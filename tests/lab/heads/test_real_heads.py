"""A head on real features: known numbers must come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.lab.heads import SimpleCILClassifier


@pytest.fixture(scope="module")
def birds(shared: Path) -> Any:
    with np.load(shared / "features" / "cub200_efficientnet_lite0.npz") as file:
        return {name: file[name] for name in ("X_train", "y_train", "X_test", "y_test")}


class Birds:
    """The first five tasks of B-0 Inc-10 in the field's usual class order, labels by position in it."""

    def __init__(self, data: Any, n_tasks: int = 5) -> None:
        order = np.random.RandomState(1993).permutation(200)
        place = np.argsort(order)
        train, test = place[data["y_train"]], place[data["y_test"]]
        rows = np.random.default_rng(0).permutation(len(train))  # loaders shuffle
        parts = [rows[train[rows] // 10 == task] for task in range(n_tasks)]
        self.tasks = [(data["X_train"][part].astype(float), train[part]) for part in parts]
        self.X, self.y = data["X_test"][test < 10 * n_tasks].astype(float), test[test < 10 * n_tasks]
        self.n_classes = 10 * n_tasks

    def teach(self, learner: Any) -> Any:
        for X, y in self.tasks:
            (learner.partial_fit if hasattr(learner, "partial_fit") else learner.learn)(X, y)
        return learner


def accuracy(scores: Any, y: Any) -> float:
    return float(100 * np.mean(scores.argmax(axis=1) == y))


def test_simplecil_has_the_known_accuracy(birds: Any) -> None:
    stream = Birds(birds, 20)
    assert 100 * stream.teach(SimpleCILClassifier(device="cpu")).score(stream.X, stream.y) == pytest.approx(
        65.6, abs=0.05
    )
