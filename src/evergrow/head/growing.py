"""Growing the first model: from settings and a first task to a frozen layer and empty statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.seeding import generator
from evergrow.head.feature_blocks import FeatureBlocks
from evergrow.head.layers import (
    LAYERS,
    FeatureMap,
    FourierLayer,
    GuidedLayer,
    Layer,
    Scales,
    check_contrast,
    link_only,
    normalize,
    resolve_normalization,
)
from evergrow.head.layers.guided import CONSTRUCTION_ALPHA
from evergrow.head.linalg import PAPER_ALPHAS, choose_by_holdout, create_state
from evergrow.head.moments import ClassMoments
from evergrow.head.ridge_model import RidgeModel
from evergrow.head.shapes import ShapeModel

UNITS = ("activation", "fourier", "orthogonal-fourier")

GCV_FLOOR = 1e-6
"""Smallest ridge of the GCV grid relative to the energy of a row: what the compact form must stay exact for."""


@dataclass(frozen=True)
class LayerSpec:
    """What a layer is to be.

    Parameters
    ----------
    projection : str
        Kind of units.
    n_units : int or None
        Exact width.
    max_units : int
        Cap on the width.
    scales : "paper", "auto" or sequence of float
        Scales of the weights.
    activation : str
        Activation of the units.
    units : {"activation", "fourier", "orthogonal-fourier"}
        Family of the units; the last two are cosines of one bandwidth.
    direct_link : bool
        Put the features beside the units.
    guidance : dict
        Further settings of the guided construction.
    """

    projection: str
    n_units: int | None
    max_units: int
    scales: Scales
    activation: str
    units: str
    direct_link: bool
    guidance: dict[str, Any]

    def layer(self) -> Layer:
        """Return the parameters of the layer."""
        if self.units == "activation":
            return self._by_name()
        orthogonal = self.units == "orthogonal-fourier"
        if self.projection == "gaussian":
            return FourierLayer(self._width, self.direct_link, orthogonal=orthogonal)
        if self.projection == "mgsm":
            return self._guided(scales="spread", activation="cos", bias="phases", orthogonal=orthogonal)
        raise ParameterError(f"units must be 'activation' for the projection {self.projection!r}, got {self.units!r}")

    @property
    def _width(self) -> int:
        return min(10_000 if self.n_units is None else self.n_units, self.max_units)

    def _guided(self, **options: Any) -> Layer:
        return GuidedLayer(self.n_units, self.direct_link, self.max_units, **{**self.guidance, **options})

    def _by_name(self) -> Layer:
        if self.projection == "mgsm":
            return self._guided(scales=self.scales, activation=self.activation)
        kind = LAYERS[self.projection]
        if self.projection == "fourier":
            return FourierLayer(self._width, self.direct_link)
        options: dict[str, Any] = {"activation": self.activation}
        if self.projection == "gaussian":
            options["scales"] = 1.0 if self.scales == "paper" else self.scales
        if self.projection == "scsm":
            options |= {"n_candidates": self.guidance.get("n_candidates", 100), "tol": 0.0}
            options |= {} if isinstance(self.scales, str) else {"scales": tuple(self.scales)}
        return kind(self._width or 1, self.direct_link, **options)


@dataclass(frozen=True)
class Grower:
    """Grows the layer of a learner on its first task.

    Parameters
    ----------
    layer : LayerSpec
        What the layer is to be.
    alpha : float, "holdout" or "gcv"
        The learner's ridge.
    normalization : str
        Rule for the features, possibly ``"auto"``.
    solver : str
        Form of the statistics.
    class_moments : bool
        Keep second moments per class.
    shape_directions : int
        Directions in which the shapes of classes are kept; 0 keeps none.
    seed : int
        Seed of the layer.
    verbose : bool
        Show progress.
    blocks : tuple of int or None
        Columns of each block of features.
    max_features : int or None
        Columns that features may have beside each other before they are reduced.
    """

    layer: LayerSpec
    alpha: float | str
    normalization: str
    solver: str
    class_moments: bool
    shape_directions: int
    seed: int
    verbose: bool
    blocks: tuple[int, ...] | None = None
    max_features: int | None = None

    def first_model(self, Z: Tensor, codes: Tensor) -> tuple[RidgeModel, float | None]:
        """Return a model with a grown layer that has learned nothing yet, and the held-out choice of alpha."""
        rule = resolve_normalization(self.normalization, Z)
        Y = torch.nn.functional.one_hot(codes).to(Z.dtype)
        Z = normalize(Z, rule)
        blocks = FeatureBlocks.first(Z, codes, self.blocks, self.max_features, self.seed)
        Z = Z if blocks is None else blocks.apply(Z)
        chosen = self.choose_by_holdout(Z, Y) if self.alpha == "holdout" else None
        fixed = chosen if isinstance(self.alpha, str) else float(self.alpha)
        layer = self.build(Z, Y, fixed)
        check_contrast(layer, Z)
        floor = fixed or GCV_FLOOR * max(_energy(layer, Z), 1e-12)
        state = create_state(self.solver, layer.n_outputs, 0, alpha=fixed, floor=floor, device=Z.device)
        counts = torch.zeros(0, dtype=torch.int64, device=Z.device)
        moments = ClassMoments() if self.class_moments else None
        shapes = ShapeModel.first(Z, self.shape_directions) if self.shape_directions else None
        return RidgeModel(layer, rule, state, counts, moments, frozenset(), shapes, blocks), chosen

    def build(self, Z: Tensor, Y: Tensor, alpha: float | None) -> FeatureMap:
        """Build the layer."""
        if self.layer.n_units == 0:
            return link_only(Z)
        return self.layer.layer().build(Z, Y, seed=self.seed, alpha=alpha, verbose=self.verbose)

    def choose_by_holdout(self, Z: Tensor, Y: Tensor) -> float:
        """Choose from the paper's grid: a layer grown on nine tenths of the first task, one decomposition."""
        held = max(Z.shape[0] // 10, 1)
        order = torch.randperm(Z.shape[0], generator=generator(self.seed, "holdout")).to(Z.device)
        train, test = order[held:], order[:held]
        if len(train) < 2:
            return CONSTRUCTION_ALPHA
        layer = self.build(Z[train], Y[train], None)
        floor = min(PAPER_ALPHAS)
        state = create_state("auto", layer.n_outputs, Y.shape[1], alpha=None, floor=floor, device=Z.device)
        state = state.accumulate((H, Y[train][rows]) for rows, H in layer.iter_transform(Z[train]))
        return choose_by_holdout(state.reduced(), layer.transform(Z[test]), Y[test]).alpha


def _energy(layer: FeatureMap, Z: Tensor) -> float:
    """Return the mean energy of the layer's rows around their mean."""
    total, squares = Z.new_zeros(layer.n_outputs), 0.0
    for _, H in layer.iter_transform(Z):
        total += H.sum(dim=0)
        squares += float(H.square().sum())
    return (squares - float(total.square().sum()) / Z.shape[0]) / Z.shape[0]
