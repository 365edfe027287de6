"""Growing the first model: from settings and a first task to a frozen layer and empty statistics."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.seeding import generator
from evergrow.head.feature_blocks import FeatureBlocks
from evergrow.head.layers import PROJECTIONS, FourierProjection, LinkedProjection, Projection
from evergrow.head.layers.contrast import check_contrast
from evergrow.head.layers.identity import IdentityProjection
from evergrow.head.layers.normalize import normalize, resolve_normalization
from evergrow.head.layers.scales import Scales
from evergrow.head.layers.settings import LayerSettings
from evergrow.head.linalg import PAPER_ALPHAS, choose_by_holdout, create_state
from evergrow.head.moments import ClassMoments
from evergrow.head.ridge_model import RidgeModel
from evergrow.head.shapes import ShapeModel

UNITS = ("activation", "fourier", "orthogonal-fourier")

CONSTRUCTION_ALPHA = 0.01
"""The paper's ridge, used to grow the layer where alpha is chosen afterwards."""

AUTO_CONSTRUCTION_ALPHA = 1.0
"""The same for ``scales="auto"``: with the paper's, a direct link alone fits a first task and nothing is left to
guide by. Anything from 0.1 to 10 gives, measured, the same accuracy."""

GCV_FLOOR = 1e-6
"""Smallest ridge of the GCV grid relative to the energy of a row: what the compact form must stay exact for."""


@dataclass(frozen=True)
class LayerSpec:
    """What a layer is to be.

    Parameters
    ----------
    projection : str or Projection
        Kind of units, or a layer to take as it is.
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

    projection: str | Projection
    n_units: int | None
    max_units: int
    scales: Scales
    activation: str
    units: str
    direct_link: bool
    guidance: dict[str, Any]

    @property
    def construction_alpha(self) -> float:
        """The ridge to grow by where none is given."""
        auto = isinstance(self.scales, str) and self.scales == "auto"
        return AUTO_CONSTRUCTION_ALPHA if auto else CONSTRUCTION_ALPHA

    def create(self, alpha: float, seed: int, verbose: bool) -> Projection:
        """Return the layer, not yet built unless one was given that is."""
        if self.n_units == 0:
            return IdentityProjection(intercept=True)
        layer = self._units(alpha, seed, verbose)
        linked = isinstance(layer, LinkedProjection)
        return LinkedProjection(layer) if self.direct_link and not linked else layer

    def _units(self, alpha: float, seed: int, verbose: bool) -> Projection:
        if isinstance(self.projection, Projection):
            return copy.deepcopy(self.projection)
        wanted = LayerSettings(
            self.n_units, self.max_units, self.scales, self.activation, alpha, seed, verbose, self.guidance
        )
        if self.units == "activation":
            return PROJECTIONS[self.projection].from_settings(wanted)
        orthogonal = self.units == "orthogonal-fourier"
        if self.projection == "gaussian":
            return FourierProjection(wanted.width, "spread", seed, orthogonal=orthogonal)
        if self.projection == "mgsm":
            cosines = {**self.guidance, "bias": "phases", "orthogonal": orthogonal}
            wanted = dataclasses.replace(wanted, scales="spread", activation="cos", guidance=cosines)
            return PROJECTIONS[self.projection].from_settings(wanted)
        raise ParameterError(f"units must be 'activation' for the projection {self.projection!r}, got {self.units!r}")


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
        layer = self.build(Z, Y, fixed or self.layer.construction_alpha)
        check_contrast(layer, Z)
        floor = fixed or GCV_FLOOR * max(_energy(layer, Z), 1e-12)
        state = create_state(self.solver, layer.n_outputs, 0, alpha=fixed, floor=floor, device=Z.device)
        counts = torch.zeros(0, dtype=torch.int64, device=Z.device)
        moments = ClassMoments() if self.class_moments else None
        shapes = ShapeModel.first(Z, self.shape_directions) if self.shape_directions else None
        return RidgeModel(layer, rule, state, counts, moments, frozenset(), shapes, blocks), chosen

    def build(self, Z: Tensor, Y: Tensor, alpha: float) -> Projection:
        """Build the layer, or take the one that was given."""
        layer = self.layer.create(alpha, self.seed, self.verbose)
        if not layer.is_built:
            return layer.build(Z, Y)
        if layer.n_features_in != Z.shape[1]:
            raise InputError(f"X must have {layer.n_features_in} columns as the layer has, got {Z.shape[1]}")
        return layer.to(Z.device)

    def choose_by_holdout(self, Z: Tensor, Y: Tensor) -> float:
        """Choose from the paper's grid: a layer grown on nine tenths of the first task, one decomposition."""
        alpha = self.layer.construction_alpha
        held = max(Z.shape[0] // 10, 1)
        order = torch.randperm(Z.shape[0], generator=generator(self.seed, "holdout")).to(Z.device)
        train, test = order[held:], order[:held]
        if len(train) < 2:
            return alpha
        layer = self.build(Z[train], Y[train], alpha)
        floor = min(PAPER_ALPHAS)
        state = create_state("auto", layer.n_outputs, Y.shape[1], alpha=None, floor=floor, device=Z.device)
        state = state.accumulate((H, Y[train][rows]) for rows, H in layer.iter_transform(Z[train]))
        return choose_by_holdout(state.reduced(), layer.transform(Z[test]), Y[test]).alpha


def _energy(layer: Projection, Z: Tensor) -> float:
    """Return the mean energy of the layer's rows around their mean."""
    total, squares = Z.new_zeros(layer.n_outputs), 0.0
    for _, H in layer.iter_transform(Z):
        total += H.sum(dim=0)
        squares += float(H.square().sum())
    return (squares - float(total.square().sum()) / Z.shape[0]) / Z.shape[0]
