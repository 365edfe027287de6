"""SCSM: a layer grown unit by unit under the stochastic configuration inequality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.bounds import MOST_ROUNDS
from evergrow.core.errors import LabelError
from evergrow.core.validation import check_integer, check_number
from evergrow.head.base import HEADS
from evergrow.head.label_set import LabelUpdate
from evergrow.head.layers.feature_map import BlockRecord
from evergrow.lab.heads.random_layer import RandomLayerRidge
from evergrow.lab.layers import SCSMLayer


@HEADS.register("scsm")
@dataclass(eq=False, repr=False)
class SCSMClassifier(RandomLayerRidge):
    """Stochastic configuration on the first task, then recursive ridge regression.

    The layer is grown on the first task by the supervisory mechanism of Wang and Li's
    stochastic configuration networks (SC-III), as in the SCL-MGSM paper's comparison of
    layer construction. It is then frozen; later batches only update ridge statistics.

    Parameters
    ----------
    n_units : int
        Width at which the construction stops. The default, 10,000, is that of the
        SCL-MGSM paper, equal for all strategies.
    alpha : float
        Ridge, of the construction and of the classifier. The default, 0.01, is that of
        the SCL-MGSM paper.
    n_candidates : int
        T_max, candidates per scale. The default, 10, is the middle of the paper's 5, 10
        and 20 (with s = 1); the published SCN code has 100. Scales and contraction
        rates are those of the SCN code.
    tol : float
        RMSE on the first task at which the construction stops early. 0 disables early
        stopping, because the paper compares at equal width (the SCN code stops at
        1e-4).
    random_state : int, numpy generator or None
        Seed of the candidates.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    n_units_ : int
        Number of units. It is below ``n_units`` unless ``status_`` is ``"capped"``.
    status_ : str
        ``"capped"`` at ``n_units``, ``"converged"`` at ``tol``, or ``"exhausted"`` if
        no scale had an admissible unit.
    construction_log_ : list of BlockRecord
        One entry per unit.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import SCSMClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = SCSMClassifier(n_units=200, alpha=1.0, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task] / 16, y[task])
    >>> model.score(X / 16, y) > 0.9
    True
    """

    n_units: int = 10_000
    alpha: float = 0.01
    n_candidates: int = 10
    tol: float = 0.0
    random_state: Any = None
    device: str | torch.device = "auto"

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        if len(labels.classes) < 2 and not self._is_fitted():
            raise LabelError("SCSM needs at least 2 classes in the first batch, got 1.")
        super()._learn(Z, labels)

    def _check_params(self) -> None:
        super()._check_params()
        check_integer("n_candidates", self.n_candidates, high=MOST_ROUNDS)
        check_number("tol", self.tol, low=0)

    def _layer(self) -> SCSMLayer:
        return SCSMLayer(
            n_units=self.n_units,
            n_candidates=self.n_candidates,
            tol=self.tol,
            alpha=self.alpha,
        )

    @property
    def n_units_(self) -> int:
        """Number of units."""
        return self.layer_.n_units

    @property
    def status_(self) -> str:
        """Why the construction ended."""
        return self.layer_.status

    @property
    def construction_log_(self) -> list[BlockRecord]:
        """Log of the construction, one entry per unit."""
        return list(self.layer_.log)
