"""Folding: a hidden layer that is affine on the domain of the data, and the class weights after it, as one matrix.

How the units are replaced by lines, and what bounds the change of the scores, stands in
:mod:`evergrow.export.straightening`; here is on which domain the bound must hold, and what it is compared
with.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number
from evergrow.export.head_maps import ExportError, LayerMap, Units
from evergrow.export.straightening import Lines, ball_bound, best_lines, ordinary_bound, slopes_at_bias
from evergrow.head.layers import ACTIVATIONS, FeatureMap
from evergrow.head.ridge_model import RidgeModel

FOLD_TOLERANCE = 0.05
"""Largest bound on the change of a score that is accepted, relative to how far a class stands out on average."""

RADIUS_MARGIN = 2.0
"""The domain reaches to so many times the root mean square norm of the features learned."""


class FoldError(ExportError):
    """A head cannot be replaced by one matrix.

    Attributes
    ----------
    bound : float
        The relative bound that was too large; infinite where there is none.
    """

    def __init__(self, message: str, bound: float = math.inf) -> None:
        super().__init__(message)
        self.bound = bound


@dataclass(frozen=True)
class FoldReport:
    """What folding did.

    Parameters
    ----------
    units : int
        Hidden units replaced; 0 where the head was one matrix already.
    shape : tuple of int
        Rows (features and a constant) and columns (classes) of the matrix.
    radius : float
        Norm of features up to which the bound holds; infinite where it holds for all.
    domain : {"all", "ball", "ordinary"}
        All inputs; all within the radius; or those within it that do not single out units, see
        :mod:`evergrow.export.straightening`.
    bound : float
        Largest change of any score on that domain.
    scale : float
        How far the score of a class stands out at its mean, on average.
    tolerance : float
        Largest ``bound / scale`` that was allowed.
    shape_directions : int
        Directions in which the shapes of classes add to the scores, as before; 0 where they do not.
    """

    units: int
    shape: tuple[int, int]
    radius: float
    domain: str
    bound: float
    scale: float
    tolerance: float
    shape_directions: int = 0

    @property
    def relative(self) -> float:
        """The bound in units of the scale."""
        return self.bound / self.scale if self.bound else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values; an infinite radius is None."""
        values = asdict(self) | {"shape": list(self.shape), "relative": self.relative}
        return values | {"radius": self.radius if math.isfinite(self.radius) else None}

    def summary(self) -> str:
        """Return one sentence on what was done."""
        matrix = f"one matrix of {self.shape[0]:,} x {self.shape[1]:,}"
        if self.shape_directions:
            matrix += f" beside the shapes of classes in {self.shape_directions:,} directions"
        if not self.units:
            return f"folded: the head is {matrix} already, nothing was approximated"
        if self.domain == "all":
            where = "for all inputs"
        else:
            where = f"for {'all' if self.domain == 'ball' else 'ordinary'} features of norm up to {self.radius:.4g}"
        return (
            f"folded: {self.units:,} units and their class weights are now {matrix}; scores change by at most "
            f"{self.bound:.2g} ({100 * self.relative:.2g} % of the gap between classes) {where}"
        )


# -- the domain -----------------------------------------------------------------------------------------------


def rms_norm(model: RidgeModel) -> float:
    """Return the root mean square norm of the features that a model has learned, from its statistics.

    With a direct link it is exact, since the features are in the statistics. Without, it follows from the energy of the
    units, ``sum_j E(h_j - g(b_j))^2 = sum_j g'(b_j)^2 E(w_j . z)^2``, for units that are affine on the data and weights
    that prefer no direction. Where units saturate it comes out too small, but such units are far from affine anyway.
    """
    stats, layer = model.state.reduced(), model.layer
    count = max(stats.count, 1)
    means = stats.lift(stats.cross.sum(dim=1, keepdim=True))[:, 0].cpu() / count
    if stats.basis is None:
        squares = stats.gram.diagonal().cpu() / count
    else:
        squares = ((stats.basis @ stats.gram) * stats.basis).sum(dim=1).cpu() / count
    link = layer.link_columns()
    if link is not None and layer.centre is not None:
        centre = layer.centre.cpu().to(means)
        per_column = squares[link] / layer.scale**2 + centre * (2 * means[link] / layer.scale + centre)
        if model.blocks is not None:  # of features as they come
            per_column = per_column / model.blocks.column_weights().to(per_column).square()
        return math.sqrt(max(float(per_column.sum()), 0.0))
    return _norm_from_units(layer, means, squares)


def _norm_from_units(layer: FeatureMap, means: Tensor, squares: Tensor) -> float:
    units, gain = layer.units(), layer.gain
    at_zero = ACTIVATIONS[units.activation](units.bias.to(means))
    energy = float((squares / gain**2 - 2 * at_zero * means / gain + at_zero.square()).sum())
    lengths = units.weights.to(means).square().sum(dim=0)
    per_norm = float(slopes_at_bias(units).square() @ lengths) / units.weights.shape[0]
    return math.sqrt(max(energy, 0.0) / per_norm) if per_norm > 0.0 else math.inf


def score_gap(model: RidgeModel, found: LayerMap, readout: Tensor) -> float:
    """Return how far the score of a class stands out from the average score at its mean, averaged over classes.

    Constants of the scores cancel in that average.
    """
    stats = model.state.reduced()
    means = stats.lift(stats.cross / model.counts.to(stats.cross).clamp_min(1.0)).cpu().to(readout)
    if found.linear is not None and not model.layer.intercept:
        linear = found.linear
        if model.blocks is not None:
            linear = linear / model.blocks.column_weights().to(linear)[:, None]
        readout = torch.cat([readout, linear / model.layer.scale])
    at_means = means.T @ readout
    return float((at_means.diagonal() - at_means.mean(dim=1)).mean())


# -- folding --------------------------------------------------------------------------------------------------


def fold(
    found: LayerMap, tolerance: float = FOLD_TOLERANCE, radius: float | None = None
) -> tuple[LayerMap, FoldReport]:
    """Return a head without hidden units whose scores are the same within a bound, and what was done.

    Normalisation of the features and the terms of class shapes stay as they are.

    Parameters
    ----------
    found : LayerMap
        From :func:`~evergrow.export.head_maps.read_head`.
    tolerance : float
        Largest change of a score, relative to how far a class stands out on average.
    radius : float, optional
        Norm of features up to which that must hold; by default twice the root mean square norm of those learned.
        Features that are normalised have norm 1.

    Raises
    ------
    FoldError
        If the bound exceeds the tolerance, or the head is not a single layer, or it looks at the shapes of only some
        classes of a row: which ones, no bound on the scores can promise.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import RIClassifier
    >>> from evergrow.export.folding import fold
    >>> from evergrow.export.head_maps import read_head
    >>> X, y = load_digits(return_X_y=True)
    >>> fold(read_head(RIClassifier(n_units=200, random_state=0).fit(X, y))[0])
    Traceback (most recent call last):
        ...
    evergrow.export.folding.FoldError: a layer must be affine on the data to be folded, ...
    """
    check_number("fold_tolerance", tolerance, low=0, low_open=True)
    if radius is not None:
        check_number("fold_radius", radius, low=0, low_open=True)
    if found.units is None or found.readout is None:
        if found.linear is None:
            raise ParameterError("a head must have units or linear weights, got neither")
        shape = (found.linear.shape[0] + 1, found.linear.shape[1])
        return found, FoldReport(0, shape, math.inf, "all", 0.0, 1.0, tolerance, _shape_directions(found))
    if found.model is None:
        raise FoldError(
            f"a layer must have class means to judge a bound by, got none beside its {found.units.activation} units"
        )
    if not ACTIVATIONS[found.units.activation].has_tangents:
        raise FoldError(f"an activation must have derivatives to be folded, got {found.units.activation!r} without")
    everything = found.normalization != "none" and radius is None
    if radius is None:
        radius = 1.0 if everything else RADIUS_MARGIN * rms_norm(found.model)
    if not math.isfinite(radius):
        raise FoldError("fold_radius must be given, since the norm of the features does not show in the statistics")
    lines = best_lines(found.units, radius if everything else radius / RADIUS_MARGIN)
    bounds = (("all" if everything else "ball", ball_bound), ("ordinary", ordinary_bound))
    scale = score_gap(found.model, found, found.readout)
    shape, relative = (found.units.weights.shape[0] + 1, found.readout.shape[1]), math.inf
    for domain, bound in bounds if scale > 0.0 else ():
        value = bound(found.units, lines, found.readout, radius)
        relative = min(relative, value / scale)
        if relative <= tolerance:
            _require_all_shapes(found)
            directions = _shape_directions(found)
            report = FoldReport(len(found.units.bias), shape, radius, domain, value, scale, tolerance, directions)
            return _straightened(found, found.units, lines, found.readout), report
    raise FoldError(
        f"a layer must be affine on the data to be folded, its scores changing by at most {tolerance:g} of the gap "
        f"between classes, got a bound of {relative:.3g} for {len(found.units.bias):,} {found.units.activation} units "
        f"and features of norm up to {radius:.4g}; export without folding",
        relative,
    )


def _shape_directions(found: LayerMap) -> int:
    return 0 if found.shape is None else int(found.shape.directions.shape[1])


def _require_all_shapes(found: LayerMap) -> None:
    """Raise :class:`FoldError` if a small change of the linear scores can change whose shape is looked at."""
    if found.shape is not None and found.shape.likeliest < len(found.constant):
        raise FoldError(
            f"a head with units must look at the shapes of all classes to be folded, got {len(found.constant):,} "
            f"classes of which the {found.shape.likeliest} likeliest are looked at"
            f"; learn with shape_directions=0"
        )


def _straightened(found: LayerMap, units: Units, lines: Lines, readout: Tensor) -> LayerMap:
    """Return the map with every unit replaced by its line."""
    readout = readout.to(torch.float64) * units.gain
    linear = units.weights.to(torch.float64) @ (lines.slopes[:, None] * readout)
    if found.linear is not None:
        linear = linear + found.linear
    constant = found.constant + lines.values @ readout
    return replace(found, units=None, readout=None, linear=linear, constant=constant, dtype=torch.float64)
