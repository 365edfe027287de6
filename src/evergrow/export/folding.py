"""Folding: a hidden layer that is affine on the domain of the data, and the class weights after it, as one matrix.

A unit with weights w and bias b is a function ``g(b + t)`` of ``t = w . z``. It is replaced by the line ``v + u t``
nearest to it on average over random directions z of the typical norm of features. With ``r(t) = g(b + t) - v - u t``
and class weights A, the score of class c moves by ``sum_j A_jc r_j(w_j . z)``. There are two bounds on that.

For *all* inputs with ``|z| <= R``: the tangent ``g(b) + g'(b) t`` leaves out at most ``kappa t^2`` if ``|t| <= |w| R``,
so that the tangents of all units move a score by at most

    sum_j |A_jc| kappa_j (w_j . z)^2  <=  R^2 lambda_max(W diag(|A_c| kappa) W^T)
    kappa = min(K2 / 2, |g2(b)| / 2 + K3 |w| R / 6)      K2 = sup |g2|, K3 = sup |g3|, derivatives of g

and from tangents to lines it is ``sum_j A_jc (dv_j + du_j w_j . z)``, which a constant and the norm of a vector bound.

That has to allow for an input along the weights of a single unit, which no image is. By Cauchy and Schwarz

    |sum_j A_jc r_j|  <=  |A_c| |r(z)|

and for a random direction of length R, ``q^2 = E |r(z)|^2`` is a sum of one-dimensional integrals. Inputs of norm up to
R with ``|r(z)| <= 2 q`` are called *ordinary*. Weights are drawn at random, so that an input which was not made from
them is a random direction to them: by Chebyshev's inequality it has, at length R and for L nearly affine sigmoid units
with Gaussian weights, a chance of at most 8 / L of not being ordinary, and r falls with the cube of the length.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.export.onnx_graph import ExportError
from evergrow.head.layers import ACTIVATIONS, FeatureMap
from evergrow.head.layers.feature_map import Units
from evergrow.head.maps import LayerMap
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
        All inputs; all within the radius; or those within it that do not single out units, see above.
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


# -- units as lines -------------------------------------------------------------------------------------------

ORDINARY_MARGIN = 2.0
"""Inputs are ordinary if they bend the layer no more than so many times what a random direction does."""

EFFORT = 1e11
"""Operations that the bound for all inputs may cost; classes share an eigenvalue where one each would cost more."""

_ROUNDING = 1.001  # The eigenvalues are computed in float32, whose relative error is far below this.
_NODES = 48  # Points of the quadrature over a normal distribution.


def slopes_at_bias(units: Units) -> Tensor:
    """Return g'(b), one half at the kink of a ReLU."""
    return ACTIVATIONS[units.activation].slope(units.bias.to(torch.float64))


@dataclass(frozen=True)
class Lines:
    """What units are replaced by: ``values + slopes * t``.

    Parameters
    ----------
    values, slopes : Tensor of shape (L,)
        One line per unit.
    """

    values: Tensor
    slopes: Tensor


def tangents(units: Units) -> Lines:
    """Return the tangents of all units at ``t = 0``."""
    return Lines(ACTIVATIONS[units.activation](units.bias.to(torch.float64)), slopes_at_bias(units))


def best_lines(units: Units, norm: float) -> Lines:
    """Return the lines nearest to all units over random directions of a norm, in the mean square.

    Parameters
    ----------
    units : Units
        The hidden layer.
    norm : float
        Typical norm of features.

    Examples
    --------
    >>> import torch
    >>> from evergrow.export.folding import best_lines
    >>> from evergrow.head.layers.feature_map import Units
    >>> lines = best_lines(Units(torch.ones(1, 1), torch.zeros(1), "tanh"), 0.1)
    >>> round(float(lines.slopes[0]), 3)
    0.99
    """
    base, deviations = tangents(units), _deviations(units, norm)
    offset, slope = torch.zeros_like(deviations), torch.zeros_like(deviations)
    for node, share in _normal_nodes():
        rest = bend(units, base, deviations * node)
        offset += share * rest
        slope += share * node * rest
    return Lines(base.values + offset, base.slopes + slope / deviations.clamp_min(1e-300))


def bend(units: Units, lines: Lines, t: Tensor) -> Tensor:
    """Return ``r(t)`` of every unit: how far it is from its line.

    Parameters
    ----------
    units : Units
        The hidden layer.
    lines : Lines
        What its units are replaced by.
    t : Tensor of shape (L,) or (n, L)
        ``w . z`` of every unit.
    """
    activation = ACTIVATIONS[units.activation](units.bias.to(torch.float64) + t)
    rest: Tensor = activation - lines.values - lines.slopes * t
    return rest


def random_bend(units: Units, lines: Lines, norm: float) -> float:
    """Return ``q``, the root of ``E sum_j r_j(w_j . z)^2`` over random directions z of a norm."""
    deviations = _deviations(units, norm)
    nodes = _normal_nodes()
    return math.sqrt(sum(share * float(bend(units, lines, deviations * node).square().sum()) for node, share in nodes))


def _deviations(units: Units, norm: float) -> Tensor:
    """Return the standard deviation of every ``w . z`` over random directions of a norm."""
    lengths: Tensor = units.weights.to(torch.float64).norm(dim=0)
    return lengths * (norm / math.sqrt(units.weights.shape[0]))


def _normal_nodes() -> list[tuple[float, float]]:
    """Return points and their shares that integrate over a standard normal distribution."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
    return list(zip(nodes.tolist(), (shares / shares.sum()).tolist(), strict=True))


# -- the bounds -----------------------------------------------------------------------------------------------


def ball_bound(units: Units, lines: Lines, readout: Tensor, radius: float) -> float:
    """Return the largest change of any score, for all inputs up to a norm, if units are replaced by lines.

    Parameters
    ----------
    units : Units
        The hidden layer.
    lines : Lines
        What its units are replaced by.
    readout : Tensor of shape (L, C)
        Its class weights.
    radius : float
        Norm of features up to which the bound shall hold.

    Examples
    --------
    >>> import torch
    >>> from evergrow.export.folding import ball_bound, tangents
    >>> from evergrow.head.layers.feature_map import Units
    >>> units = Units(torch.full((1, 1), 0.1), torch.zeros(1), "sigmoid")
    >>> z = torch.tensor(2.0, dtype=torch.float64)
    >>> change = abs(torch.sigmoid(0.1 * z) - 0.5 - 0.25 * 0.1 * z)
    >>> bool(change <= ball_bound(units, tangents(units), torch.ones(1, 1), 2.0) < 1.1 * change)
    True
    """
    readout, base = readout.to(torch.float64) * units.gain, tangents(units)
    constant = (readout.T @ (lines.values - base.values)).abs()
    slope = units.weights.to(torch.float64) @ ((lines.slopes - base.slopes)[:, None] * readout)
    return _tangent_bound(units, readout.abs(), radius) + float((constant + radius * slope.norm(dim=0)).amax())


def _tangent_bound(units: Units, size: Tensor, radius: float) -> float:
    """Return the bound for tangents; ``size`` (L, C) are absolute class weights."""
    reach, bias = units.weights.to(torch.float64).norm(dim=0) * radius, units.bias.to(torch.float64)
    activation = ACTIVATIONS[units.activation]
    unit_by_unit = float((size * activation.tangent_error(bias, reach)[:, None]).sum(dim=0).amax())
    kappa = activation.bending(bias, reach)
    if not unit_by_unit or kappa is None:
        return unit_by_unit
    return min(unit_by_unit, radius**2 * _largest_eigenvalue(units.weights, size * kappa[:, None]))


def _largest_eigenvalue(weights: Tensor, size: Tensor) -> float:
    """Return an upper bound of ``lambda_max(W diag(size_c) W^T)`` over columns c.

    Columns in a group share the eigenvalue of their largest entries, so that few decompositions serve many classes.
    """
    width, n_units = weights.shape
    side = min(width, n_units)
    groups = max(1, min(size.shape[1], int(EFFORT / (2.0 * side * width * n_units + 10.0 * side**3))))
    order = torch.argsort(size.sum(dim=0))
    narrow, largest = weights.to(torch.float32), 0.0
    for columns in torch.tensor_split(order, groups):
        shared = size[:, columns].amax(dim=1)
        top = float(shared.amax())
        if top > 0.0:
            scaled = narrow * (shared / top).sqrt().to(torch.float32)
            gram = scaled @ scaled.T if width <= n_units else scaled.T @ scaled
            largest = max(largest, top * float(torch.linalg.eigvalsh(gram.to(torch.float64))[-1]))
    return _ROUNDING * largest


def ordinary_bound(units: Units, lines: Lines, readout: Tensor, radius: float) -> float:
    """Return the largest change of any score for ordinary inputs up to a norm.

    Parameters
    ----------
    units, lines, readout, radius
        As for :func:`ball_bound`.

    Examples
    --------
    >>> import torch
    >>> from evergrow.export.folding import ball_bound, best_lines, ordinary_bound
    >>> from evergrow.head.layers.feature_map import Units
    >>> drawn = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    >>> units, readout = Units(0.01 * drawn, torch.zeros(500), "tanh"), drawn[:3].T
    >>> lines = best_lines(units, 2.5)
    >>> ordinary_bound(units, lines, readout, 5.0) < ball_bound(units, lines, readout, 5.0)
    True
    """
    lengths = (readout.to(torch.float64) * units.gain).norm(dim=0)
    return ORDINARY_MARGIN * float(lengths.amax()) * random_bend(units, lines, radius)


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
        From :func:`~evergrow.export.onnx_graph.read_head`.
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
    >>> from evergrow.export.onnx_graph import read_head
    >>> X, y = load_digits(return_X_y=True)
    >>> fold(read_head(RIClassifier(n_units=200, random_state=0).fit(X, y))[0])
    Traceback (most recent call last):
        ...
    evergrow.export.folding.FoldError: a layer must be affine on the data to be folded, ...
    """
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
