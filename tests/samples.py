"""Made-up samples for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def separated_rows(
    y: ArrayLike, n_features: int, distance: float = 4.0, seed: int = 0
) -> NDArray[Any]:
    """Draw a row per label, normal around `distance` on the axis of its class."""
    labels = np.asarray(y)
    noise = np.random.default_rng(seed).normal(size=(len(labels), n_features))
    return noise + distance * np.eye(n_features)[labels]


def overlapping_classes(
    per_class: int,
    n_classes: int,
    *,
    n_features: int = 16,
    distance: float = 1.5,
    seed: int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw rows of overlapping classes, so that no prediction is certain.

    Rows are normal around random centres, which do not depend on the seed.
    """
    y = np.repeat(np.arange(n_classes), per_class)
    centres = np.random.default_rng(99).normal(size=(n_classes, n_features))
    noise = np.random.default_rng(seed).normal(size=(len(y), n_features))
    return distance * centres[y] + noise, y
