"""RI: a random layer that ignores the data, the baseline of guided construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from evergrow.head.base import HEADS
from evergrow.lab.heads.random_layer import RandomLayerRidge
from evergrow.lab.layers import GaussianLayer


@HEADS.register("ri")
@dataclass(eq=False, repr=False)
class RIClassifier(RandomLayerRidge):
    """Sigmoid units with unit normal weights and recursive ridge regression.

    The baseline "RI" in the SCL-MGSM paper's comparison of layer construction. Weights
    and biases do not depend on the data; the rest equals SCL-MGSM.

    Parameters
    ----------
    n_units : int
        Width of the layer. The default, 10,000, is that of the SCL-MGSM paper, "a final
        hidden size of 10,000" for all strategies.
    alpha : float
        Ridge. The default, 0.01, is that of the SCL-MGSM paper for all its experiments
        (appendix on hyperparameters). It is far too small for unit normal weights on
        un-normalised features; the benchmarks have examples.
    random_state : int, numpy generator or None
        Seed of the layer.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    layer_ : FeatureMap
        The frozen layer.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import RIClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = RIClassifier(n_units=500, alpha=1.0, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task] / 16, y[task])
    >>> model.score(X / 16, y) > 0.95
    True
    """

    n_units: int = 10_000
    alpha: float = 0.01
    random_state: Any = None
    device: str | torch.device = "auto"

    def _layer(self) -> GaussianLayer:
        return GaussianLayer(self.n_units)
