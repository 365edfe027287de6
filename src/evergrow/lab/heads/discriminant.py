"""The head that evergrow 0.1 recommended: guided units and a linear discriminant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_integer
from evergrow.head.base import HEADS
from evergrow.head.layers import GuidedLayer, Layer
from evergrow.head.layers.feature_map import (
    check_contrast,
    normalize,
    resolve_normalization,
)
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.ridge_choice import choose_by_gcv
from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.linalg.statistics import Readout
from evergrow.head.ridge_model import LayerMap, RidgeModel, layer_map
from evergrow.lab.heads.random_layer import RandomLayerRidge, empty_model, one_hot

RIDGE_FLOOR = 1e-2
"""Smallest ridge that cross-validation may choose, as a multiple of the row energy."""


@HEADS.register("scl-discriminant")
class SCLDiscriminantClassifier(RandomLayerRidge):
    """Guided sigmoid units, a direct link and a shrunk linear discriminant.

    MGSM guides the units, at scales chosen from the data. With class means m_c and the
    within-class scatter S the score of class c is ``f (h^T B m_c - m_c^T B m_c / 2)``,
    ``B = (S + alpha I)^-1``, with f degrees of freedom. Generalised cross-validation on
    the accumulated statistics chooses alpha. It serves as a baseline in tables.

    Parameters
    ----------
    n_units : int
        Units of the layer.
    random_state : int, numpy generator or None
        Seed of the layer.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import SCLDiscriminantClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = SCLDiscriminantClassifier(n_units=200, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task], y[task])
    >>> model.score(X, y) > 0.97
    True
    """

    def __init__(
        self,
        n_units: int = 3000,
        random_state: Any = None,
        device: str | torch.device = "auto",
    ) -> None:
        self.n_units = n_units
        self.random_state = random_state
        self.device = device

    def _check_params(self) -> None:
        check_integer("n_units", self.n_units, high=LARGEST_WIDTH)

    def _layer(self) -> Layer:
        return GuidedLayer(n_units=self.n_units, scales="auto", direct_link=True)

    def _current(self, Z: Tensor, codes: Tensor, n_classes: int) -> RidgeModel:
        if "_model" in vars(self):
            return self._model
        self._seed = resolve_seed(self.random_state)
        rule = resolve_normalization("auto", Z)
        Z = normalize(Z, rule)
        layer = self._build(Z, one_hot(codes, n_classes, Z))
        check_contrast(layer, Z)
        H = torch.cat([part for _, part in layer.iter_transform(Z)])
        energy = float((H - H.mean(dim=0)).square().sum()) / Z.shape[0]
        return empty_model(layer, RIDGE_FLOOR * max(energy, 1e-12), rule)

    def _readout(self) -> Readout:
        if "_solution" not in vars(self):
            model = self._model
            geometry = ClassGeometry.of(model.state, model.masses)
            alpha = choose_by_gcv(geometry.stats, model.row_energy)[1]
            factor = safe_cholesky(geometry.scatter, shift=alpha)
            solved = factor.solve(geometry.means)
            # The scatter is a sum. Multiplied by the degrees of freedom, scores are
            # log-likelihoods up to a constant.
            scale = float(max(geometry.stats.count - len(model.counts), 1))
            offset = -0.5 * scale * (geometry.means * solved).sum(dim=0)
            weights = scale * geometry.stats.lift(solved)
            self._solution: Any = Readout(
                weights.contiguous(), offset, alpha, factor.jitter
            )
        found: Readout = self._solution
        return found

    def _ridge(self) -> float:
        return self._readout().alpha

    def _settle(self) -> None:
        self._readout()

    def _scores(self, Z: Tensor) -> Tensor:
        readout = self._readout()
        parts = [
            torch.addmm(readout.offset, H, readout.weights)
            for _, H in self._model.activations(Z)
        ]
        return torch.cat(parts)

    def linear_map(self) -> LayerMap:
        """Return the head as plain matrices on the CPU."""
        self._require_fitted()
        readout = self._readout()
        return layer_map(self._model, readout.weights, readout.offset)
