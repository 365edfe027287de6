"""Pooling over the batches of a stream: what was measured with a younger model counts less."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SUFFICIENT = 200
"""Rows that a pooled number should rest on before those of younger models are set aside."""

AGEING = (8, 6, 4, 3, 2, 1)
"""Powers to try, the strongest discount of young models first."""


def ageing_weights(numbers: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return what one row of each batch counts for: the less, the smaller the model was that scored it.

    Scores of a model that had learned a share q of the samples count ``q**p``, with the largest p that leaves the
    weight of SUFFICIENT rows. With few rows all count, since then chance does more harm than age.

    Parameters
    ----------
    numbers : sequence of int
        Rows of each batch.
    sizes : sequence of int
        Samples that the model had learned when it scored them.

    Examples
    --------
    >>> from evergrow.head.pooling import ageing_weights
    >>> ageing_weights([300, 300], [50, 100]).tolist()
    [0.00390625, 1.0]
    >>> ageing_weights([20, 20], [50, 100]).tolist()
    [1.0, 1.0]
    """
    shares = np.asarray(sizes, dtype=np.float64)
    shares = shares / shares.max()
    counted = np.asarray(numbers, dtype=np.float64)
    powers = (power for power in AGEING if float(counted @ shares**power) >= SUFFICIENT)
    return np.asarray(shares ** next(powers, 0))
