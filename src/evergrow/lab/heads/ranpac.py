"""RanPAC: ridge regression on a wide random ReLU layer, with a ridge per task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.record import require
from evergrow.core.seeding import generator
from evergrow.core.validation import check_choice, check_integer, check_number
from evergrow.head.base import HEADS
from evergrow.head.label_set import LabelUpdate
from evergrow.head.layers import FeatureMap
from evergrow.head.layers.feature_map import link_only
from evergrow.head.linalg.factor import symmetric_eigh
from evergrow.head.ridge_model import RidgeModel
from evergrow.lab.heads.random_layer import (
    Learned,
    RandomLayerRidge,
    empty_model,
    one_hot,
)
from evergrow.lab.layers import GaussianLayer

RANPAC_ALPHAS = tuple(10.0**power for power in range(-8, 9))
"""Grid of the official code: every power of ten from 1e-8 to 1e8."""

TRAIN_FRACTION = 0.8
"""Fraction of a task's samples to fit the candidates; the rest validates them."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Learned(Learned):
    alphas: list[float]


@HEADS.register("ranpac")
@dataclasses.dataclass(eq=False, repr=False)
class RanPACClassifier(RandomLayerRidge):
    """Second phase of RanPAC (McDonnell et al., NeurIPS 2023).

    Random projections ``h = ReLU(z W)`` with unit normal weights, and class scores by
    ridge regression on all samples so far. As in the authors' repository (RanPAC),
    every batch passed to ``fit`` or ``partial_fit`` chooses the ridge again: its
    samples are shuffled and split 80/20, each ridge of the grid is fitted on the first
    part, and the ridge with the smallest squared error on the second part is used with
    the statistics of all samples. The whole grid costs one eigendecomposition of the
    smaller Gram matrix, of the samples or of the units; the repository needs 17 solves
    of layer size. Batches too small to split keep the previous ridge.

    Parameters
    ----------
    n_units : int
        M, width of the layer. The default, 10,000, is that of the repository (5,000 for
        CDDB). 0 is the variant without random layer: ridge regression on the features.
    alpha : "task" or float
        The ridge. ``"task"``: chosen on every task from 1e-8, 1e-7, ..., 1e8 as in the
        repository. A number fixes it, as in LoRanPAC's copy of RanPAC.
    random_state : int, numpy generator or None
        Seed of the layer and of the splits. (The repository always seeds torch with 1.)
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    alpha_ : float
        Ridge in use: the choice of the last task.
    alphas_ : list of float
        Ridge chosen at every batch.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import RanPACClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = RanPACClassifier(n_units=500, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task] / 16, y[task])
    >>> model.score(X / 16, y) > 0.97, len(model.alphas_)
    (True, 2)
    """

    learned_as: ClassVar[type] = _Learned

    n_units: int = 10_000
    alpha: float | str = "task"  # type: ignore[assignment]
    random_state: Any = None
    device: str | torch.device = "auto"

    def _check_params(self) -> None:
        check_integer("n_units", self.n_units, low=0, high=LARGEST_WIDTH)
        if isinstance(self.alpha, str):
            check_choice("alpha", self.alpha, ("task",))
        else:
            check_number("alpha", self.alpha, low=0, low_open=True)

    def _layer(self) -> GaussianLayer:
        return GaussianLayer(self.n_units, activation="relu", bias="none")

    def _build(self, Z: Tensor, Y: Tensor) -> FeatureMap:
        if self.n_units == 0:
            return dataclasses.replace(link_only(Z), intercept=False)
        return super()._build(Z, Y)

    def _empty(self, layer: FeatureMap) -> RidgeModel:
        smallest = min(RANPAC_ALPHAS) if isinstance(self.alpha, str) else self.alpha
        return empty_model(layer, float(smallest))

    def _ridge(self) -> float:
        return float(self._alphas[-1])

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = labels.codes
        model = self._current(Z, codes, len(labels.classes))
        earlier = vars(self).get("_alphas", [])
        alpha = self._choose(model.layer, Z, codes, earlier)
        learned = model.learn(Z, codes, labels.groups)
        self._alphas: list[float] = [*earlier, alpha]
        self._commit(learned)

    def _choose(
        self, layer: FeatureMap, Z: Tensor, codes: Tensor, earlier: list[float]
    ) -> float:
        """Choose the ridge after this batch, given the earlier choices."""
        if not isinstance(self.alpha, str):
            return float(self.alpha)
        stream = generator(self._seed, "ranpac", "cut", len(earlier))
        order = torch.randperm(Z.shape[0], generator=stream).to(Z.device)
        # Classes outside the batch have zero targets and weights, so they add no error.
        _, local = torch.unique(codes, return_inverse=True)
        targets = one_hot(local, int(local.max()) + 1, Z)
        errors = validation_errors(layer, Z[order], targets[order])
        if not errors:
            return earlier[-1] if earlier else 1.0
        return min(errors, key=errors.__getitem__)

    def _contents(self) -> _Learned:
        return _Learned(self._seed, self._model, self._alphas)

    def _restore(self, learned: _Learned) -> None:  # type: ignore[override]
        require(
            bool(learned.alphas) and min(learned.alphas) > 0.0,
            "its ridges are not all positive",
        )
        self._alphas = learned.alphas
        super()._restore(learned)

    @property
    def alphas_(self) -> list[float]:
        """Ridge chosen at every batch."""
        self._require_fitted()
        return list(self._alphas)


def validation_errors(
    layer: FeatureMap, Z: Tensor, Y: Tensor, grid: Sequence[float] = RANPAC_ALPHAS
) -> dict[float, float]:
    """Fit every ridge on 80 % of the rows and return its squared error on the rest.

    With the thin decomposition ``H H^T = U diag(d) U^T`` of the n training rows, or
    ``H^T H = V diag(d) V^T``,

        predictions for h = (h H^T U) (d + a)^-1 (U^T Y) = (h V) (d + a)^-1 (V^T H^T Y)

    so one eigendecomposition of size min(n, M) serves the whole grid.

    Parameters
    ----------
    layer : FeatureMap
        The frozen layer with M outputs.
    Z : Tensor of shape (n, d)
        Features in shuffled order.
    Y : Tensor of shape (n, C)
        One-hot targets.
    grid : sequence of float
        Candidates, ascending.

    Returns
    -------
    dict of float to float
        Mean squared error by ridge; empty if either part has no rows.
    """
    cut = int(TRAIN_FRACTION * Z.shape[0])
    if cut < 1 or cut == Z.shape[0]:
        return {}
    if cut < layer.n_outputs:
        H = torch.cat([part for _, part in layer.iter_transform(Z[:cut])])
        values, vectors = symmetric_eigh(H @ H.T)
        cross = vectors.T @ Y[:cut]
        projection = H.T @ vectors
    else:
        gram = Z.new_zeros(layer.n_outputs, layer.n_outputs)
        moment = Z.new_zeros(layer.n_outputs, Y.shape[1])
        for rows, H in layer.iter_transform(Z[:cut]):
            gram.addmm_(H.T, H)
            moment.addmm_(H.T, Y[:cut][rows])
        values, projection = symmetric_eigh(gram)
        cross = projection.T @ moment
    errors = dict.fromkeys(grid, 0.0)
    for rows, H in layer.iter_transform(Z[cut:]):
        coordinates = H @ projection
        targets = Y[cut:][rows]
        for alpha in grid:
            fitted = (coordinates / (values.clamp_min(0.0) + alpha)) @ cross
            errors[alpha] += float((fitted - targets).square().sum()) / Y[cut:].numel()
    return errors
