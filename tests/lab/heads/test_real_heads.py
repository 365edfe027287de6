"""Heads and their transcriptions on real features: accuracies must agree, and known numbers must come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.lab.heads import ACILClassifier, KLDAClassifier, LoRanPACClassifier, RanPACClassifier, SimpleCILClassifier

N_UNITS = 500


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


def test_acil(birds: Any, arrays: Any) -> None:
    from benchmarks import official

    stream = Birds(birds)
    head = stream.teach(ACILClassifier(n_units=N_UNITS, random_state=0, device="cpu"))
    lift = official.relu_layer(arrays(head.layer_)[0])
    plain = stream.teach(official.RecursiveRidge(lift, N_UNITS, stream.n_classes, 0.1, batch=256))
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)


def test_ranpac(birds: Any, arrays: Any) -> None:
    from benchmarks import official

    stream = Birds(birds)
    head = stream.teach(RanPACClassifier(n_units=N_UNITS, random_state=0, device="cpu"))
    lift = official.relu_layer(arrays(head.layer_)[0])
    plain = stream.teach(official.RanPAC(lift, N_UNITS, stream.n_classes))  # float32, another cut
    ours = 100 * head.score(stream.X, stream.y)
    assert ours == pytest.approx(accuracy(plain.scores(stream.X), stream.y), abs=0.3)


def test_loranpac(birds: Any, arrays: Any) -> None:
    from benchmarks import official

    stream = Birds(birds)
    head = stream.teach(LoRanPACClassifier(n_units=N_UNITS, random_state=0, device="cpu"))
    lift = official.relu_layer(arrays(head._layer)[0])
    plain = stream.teach(official.LoRanPAC(lift, N_UNITS, stream.n_classes, dtype=np.float64))
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)


def test_klda(birds: Any, arrays: Any) -> None:
    from benchmarks import official

    stream = Birds(birds)
    head = stream.teach(KLDAClassifier(n_units=N_UNITS, random_state=0, device="cpu"))
    plain = stream.teach(official.KLDA(*arrays(head._members[0].layer), stream.n_classes))
    ours = 100 * head.score(stream.X, stream.y)
    assert ours == pytest.approx(accuracy(plain.scores(stream.X), stream.y), abs=0.05)
