"""A small stream of overlapping classes, learned by heads and reference code."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

# The reference code is in benchmarks/.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@dataclass(frozen=True)
class SmallStream:
    """Tasks of two classes each, in shuffled order of samples, and a test set."""

    tasks: list[tuple[NDArray[Any], NDArray[Any]]]
    X: NDArray[Any]
    y: NDArray[Any]
    n_classes: int

    def teach(self, learner: Any) -> Any:
        """Teach a head or reference code every task."""
        for X, y in self.tasks:
            if hasattr(learner, "partial_fit"):
                learner.partial_fit(X, y)
            else:
                learner.learn(X, y)
        return learner


@pytest.fixture
def stream() -> SmallStream:
    rng = np.random.default_rng(7)
    n_classes = 6
    width = 12
    means = rng.normal(size=(n_classes, width))

    def sample(per_class: int) -> tuple[NDArray[Any], NDArray[Any]]:
        y = np.repeat(np.arange(n_classes), per_class)
        return means[y] + rng.normal(size=(len(y), width)), y

    X, y = sample(25)
    tasks = []
    for first in (4, 0, 2):  # labels do not arrive in their order
        rows = rng.permutation(np.flatnonzero((y == first) | (y == first + 1)))
        tasks.append((X[rows], y[rows]))
    return SmallStream(tasks, *sample(10), n_classes)


def layer_arrays(layer: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return weights and biases of a frozen layer as float64 arrays."""
    units = layer.units()
    return units.weights.double().numpy(), units.bias.double().numpy()


@pytest.fixture(name="arrays")
def arrays_fixture() -> Any:
    return layer_arrays
