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
