"""Data of the checks: a few overlapping classes, small enough for every head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = tuple[NDArray[Any], NDArray[Any]]

N_CLASSES = 6
WIDTH = 8
PER_CLASS = 12


@dataclass(frozen=True)
class CheckData:
    """Three tasks of two classes each, and test rows.

    Parameters
    ----------
    tasks : list of (X, y)
        Training batches. Labels do not arrive in sorted order.
    X, y : ndarray of shapes (m, d) and (m,)
        Test rows and their classes.
    """

    tasks: list[Batch]
    X: NDArray[np.float64]
    y: NDArray[np.int64]

    @property
    def joint(self) -> Batch:
        """All tasks as one batch."""
        X = np.concatenate([X for X, _ in self.tasks])
        y = np.concatenate([y for _, y in self.tasks])
        return X, y


def make_check_data(seed: int = 0) -> CheckData:
    """Draw the data from a seed.

    Examples
    --------
    >>> from evergrow.lab.checks.data import make_check_data
    >>> [sorted(set(y.tolist())) for _, y in make_check_data().tasks]
    [[2, 3], [4, 5], [0, 1]]
    """
    rng = np.random.default_rng(seed)
    means = 2.0 * rng.normal(size=(N_CLASSES, WIDTH))

    def sample(per_class: int) -> Batch:
        y = rng.permutation(np.repeat(np.arange(N_CLASSES), per_class))
        # float16 represents these numbers exactly, so features of any type must give
        # the same learner.
        X = (means[y] + rng.normal(size=(len(y), WIDTH))).astype(np.float16)
        return X.astype(np.float64), y

    X, y = sample(PER_CLASS)
    tasks = []
    for first in (2, 4, 0):
        chosen = (y == first) | (y == first + 1)
        tasks.append((X[chosen], y[chosen]))
    return CheckData(tasks, *sample(4))
