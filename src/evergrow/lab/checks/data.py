"""The data that checks are run on: a few overlapping classes, small enough for every head at once."""

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
    """Three tasks of two classes each, and rows to be asked about.

    Parameters
    ----------
    tasks : list of (X, y)
        Training batches; labels do not arrive in their order.
    X, y : ndarray of shapes (m, d) and (m,)
        Test rows and their classes.
    """

    tasks: list[Batch]
    X: NDArray[np.float64]
    y: NDArray[np.int64]

    @property
    def joint(self) -> Batch:
        """All tasks as one batch."""
        return np.concatenate([X for X, _ in self.tasks]), np.concatenate(
            [y for _, y in self.tasks]
        )


def make_check_data(seed: int = 0) -> CheckData:
    """Return the data of a seed.

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
        # Numbers that float16 holds exactly: the same features in any type must give
        # the same learner.
        X = (means[y] + rng.normal(size=(len(y), WIDTH))).astype(np.float16)
        return X.astype(np.float64), y

    X, y = sample(PER_CLASS)
    tasks = [
        (X[(y == first) | (y == first + 1)], y[(y == first) | (y == first + 1)])
        for first in (2, 4, 0)
    ]
    return CheckData(tasks, *sample(4))
