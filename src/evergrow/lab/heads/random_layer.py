"""Base of heads with exactly incremental ridge regression on a frozen random layer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_integer, check_number
from evergrow.head.base import IncrementalClassifier, Seed
from evergrow.head.label_set import ClassChange, LabelUpdate
from evergrow.head.layers import FeatureMap, Layer
from evergrow.head.layers.feature_map import check_contrast
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.ridge_model import LayerMap, RidgeModel, layer_map

RIDGE_FLOOR_FRACTION = 1e-4
"""Fraction of the smallest ridge at which compact statistics must still be exact.

At this fraction the terms they drop change the dual coefficients by less than 1e-6.
"""


def one_hot(codes: Tensor, n_classes: int, like: Tensor) -> Tensor:
    """Return one-hot targets (n, C) in the dtype and on the device of ``like``."""
    return torch.nn.functional.one_hot(codes, n_classes).to(like)


def empty_model(layer: FeatureMap, floor: float, rule: str = "none") -> RidgeModel:
    """Create a model without samples on a built layer.

    Parameters
    ----------
    layer : FeatureMap
        The frozen layer.
    floor : float
        The smallest ridge that will be used.
    rule : str
        Normalisation of features before the layer.
    """
    tensors = (value for value in vars(layer).values() if isinstance(value, Tensor))
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    state = RidgeStatistics.create(
        layer.n_outputs, 0, "auto", floor=RIDGE_FLOOR_FRACTION * floor, device=device
    )
    return RidgeModel.start(layer, rule, state)


@dataclass(frozen=True, eq=False)
class Learned:
    """Learned state as stored in files."""

    seed: Seed
    model: RidgeModel


class RandomLayerRidge(IncrementalClassifier):
    """A frozen random layer and recursive ridge regression.

    Subclasses choose the layer and the ridge. The statistics are sums over samples, so
    the classifier after any sequence of batches equals ridge regression on all samples.
    """

    learned_as: ClassVar[type] = Learned

    n_units: int
    alpha: float
    random_state: Any

    @abstractmethod
    def _layer(self) -> Layer:
        """Return the layer's parameters."""

    def _build(self, Z: Tensor, Y: Tensor) -> FeatureMap:
        """Build the layer from the first batch."""
        return self._layer().build(Z, Y, seed=self._seed)

    def _ridge(self) -> float:
        """Return the ridge to solve with."""
        return float(self.alpha)

    def _empty(self, layer: FeatureMap) -> RidgeModel:
        """Create a model without samples on the layer."""
        return empty_model(layer, self._ridge())

    def _check_params(self) -> None:
        check_integer("n_units", self.n_units, high=LARGEST_WIDTH)
        check_number("alpha", self.alpha, low=0, low_open=True)

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        model = self._current(Z, labels.codes, len(labels.classes))
        self._commit(model.learn(Z, labels.codes, labels.groups))

    def _regroup(self, change: ClassChange) -> None:
        self._commit(self._model.group(change.groups))

    def _current(self, Z: Tensor, codes: Tensor, n_classes: int) -> RidgeModel:
        """Return the model so far; draw the layer on the first batch."""
        if "_model" in vars(self):
            return self._model
        self._seed = resolve_seed(self.random_state)
        layer = self._build(Z, one_hot(codes, n_classes, Z))
        check_contrast(layer, Z)
        return self._empty(layer)

    def _commit(self, model: RidgeModel) -> None:
        self._model = model
        self.__dict__.pop("_solution", None)

    def _solved(self) -> Readout:
        if "_solution" not in vars(self):
            self._solution = self._model.state.solve(self._ridge())
        return self._solution

    def _scores(self, Z: Tensor) -> Tensor:
        weights = self._solved().weights
        out = Z.new_empty(Z.shape[0], weights.shape[1])
        for rows, H in self._model.activations(Z):
            out[rows] = H @ weights
        return out

    def _solve_order(self) -> float:
        return self._model.state.order

    def _settle(self) -> None:
        self._solved()

    def linear_map(self) -> LayerMap:
        """Return the head as plain matrices on the CPU."""
        self._require_fitted()
        return layer_map(self._model, self._solved().weights)

    def _contents(self) -> Learned:
        return Learned(self._seed, self._model)

    def _restore(self, learned: Learned) -> None:
        self._seed = learned.seed
        self._commit(self._check_model(learned.model))

    @property
    def model_(self) -> RidgeModel:
        """The layer and its statistics, as an immutable record."""
        self._require_fitted()
        return self._model

    @property
    def layer_(self) -> FeatureMap:
        """The frozen layer."""
        self._require_fitted()
        return self._model.layer

    @property
    def alpha_(self) -> float:
        """Ridge in use."""
        self._require_fitted()
        return self._ridge()
