"""Folding: a hidden layer that is affine on the domain of the data, and the class weights after it, as one matrix.

A unit with weights w, bias b and ``t = w . z`` is replaced by its tangent ``g(b) + g'(b) t``. What that leaves out is
``r(t) = g(b + t) - g(b) - g'(b) t``, and the score of class c, with class weights A, moves by ``sum_j A_jc r_j(w_j . z)``.
There are two bounds on that. For *all* inputs with ``|z| <= R``, since ``|r(t)| <= kappa t^2`` for ``|t| <= |w| R``,

    sum_j |A_jc| kappa_j (w_j . z)^2  <=  R^2 lambda_max(W diag(|A_c| kappa) W^T)
    kappa = min(K2 / 2, |g''(b)| / 2 + K3 |w| R / 6)      K2 = sup |g''|, K3 = sup |g'''|

It has to allow for an input along the weights of a single unit, which no picture is. By Cauchy and Schwarz

    |sum_j A_jc r_j|  <=  |A_c| |r(z)|

and for a random direction of length R, ``q^2 = E |r(z)|^2`` is a sum of one-dimensional integrals. Inputs of norm up to R
with ``|r(z)| <= 2 q`` are called *ordinary*. Weights are drawn at random, so that an input which was not made from them is a
random direction to them: for nearly affine sigmoid units Chebyshev's inequality leaves a share of at most 5 / L of inputs of
length R outside, and r falls with the cube of the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number
from evergrow.heads.ridge_model import RidgeModel
from evergrow.methods.head_maps import ContrastMap, ExportError, HeadMap, LayerMap, Units
from evergrow.projections import LinkedProjection, Projection
from evergrow.projections.activations import ACTIVATIONS

FOLD_TOLERANCE = 0.05
"""Largest bound on the change of a score that is accepted, relative to how far a class stands out on average."""

RADIUS_MARGIN = 2.0
"""The domain reaches to so many times the root mean square norm of the features learned."""

ORDINARY_MARGIN = 2.0
"""Inputs are ordinary if they bend the layer no more than so many times what a random direction does."""

EFFORT = 1e11
"""Operations that the bound for all inputs may cost; classes share an eigenvalue where one each would cost more."""

_ROUNDING = 1.001  # The eigenvalues are computed in float32, whose relative error is far below this.
_NODES = 48  # Points of the quadrature over a normal distribution.


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
        All inputs; all within the radius; or those within it that do not single out units (see the module).
    bound : float
        Largest change of any score on that domain.
    scale : float
        How far the score of a class stands out at its mean, on average.
    tolerance : float
        Largest ``bound / scale`` that was allowed.
    """

    units: int
    shape: tuple[int, int]
    radius: float
    domain: str
    bound: float
    scale: float
    tolerance: float

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


# -- activations ----------------------------------------------------------------------------------------------


def _sigmoid(b: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.sigmoid(b)
    slope = value * (1 - value)
    return slope, slope * (1 - 2 * value)


def _tanh(b: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.tanh(b)
    slope = 1 - value.square()
    return slope, -2 * value * slope


def _gelu(b: Tensor) -> tuple[Tensor, Tensor]:
    density = torch.exp(-b.square() / 2) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(b) + b * density, density * (2 - b.square())


def _cos(b: Tensor) -> tuple[Tensor, Tensor]:
    return -torch.sin(b), -torch.cos(b)


def _identity(b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones_like(b), torch.zeros_like(b)


@dataclass(frozen=True)
class Curve:
    """The shape of a smooth activation.

    Parameters
    ----------
    derivatives : callable
        From pre-activations to slope and curvature there.
    second, third : float
        Largest absolute second and third derivative anywhere, rounded up.
    """

    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]
    second: float
    third: float


CURVES = {
    "sigmoid": Curve(_sigmoid, 0.09623, 0.125),
    "tanh": Curve(_tanh, 0.76981, 2.0),
    "gelu": Curve(_gelu, 0.79789, 0.77058),
    "cos": Curve(_cos, 1.0, 1.0),
    "identity": Curve(_identity, 0.0, 0.0),
}
"""Every activation but ReLU, which has a kink instead of a curvature."""


def _slopes(units: Units) -> Tensor:
    """Return g'(b), one half at the kink of a ReLU."""
    bias = units.bias.to(torch.float64)
    if units.activation == "relu":
        return 0.5 * (1.0 + torch.sign(bias))
    return CURVES[units.activation].derivatives(bias)[0]


def bend(units: Units, t: Tensor) -> Tensor:
    """Return ``r(t)`` of every unit: how far it is from its tangent.

    Parameters
    ----------
    units : Units
        The hidden layer.
    t : Tensor of shape (L,) or (n, L)
        ``w . z`` of every unit.
    """
    bias, activation = units.bias.to(torch.float64), ACTIVATIONS[units.activation]
    return activation(bias + t) - activation(bias) - _slopes(units) * t


# -- the domain -----------------------------------------------------------------------------------------------


def rms_norm(model: RidgeModel) -> float:
    """Return the root mean square norm of the features that a model has learned, from its statistics.

    With a direct link it is exact, since the features are in the statistics. Without, it follows from the energy of the
    units, ``sum_j E(h_j - g(b_j))^2 = sum_j g'(b_j)^2 E(w_j . z)^2``, for units that are affine on the data and weights
    that prefer no direction. Where units saturate it comes out too small, but such units are far from affine at any radius.
    """
    stats, layer = model.state.reduced(), model.projection
    count = max(stats.count, 1)
    means = stats.lift(stats.cross.sum(dim=1, keepdim=True))[:, 0].cpu() / count
    if stats.basis is None:
        squares = stats.gram.diagonal().cpu() / count
    else:
        squares = ((stats.basis @ stats.gram) * stats.basis).sum(dim=1).cpu() / count
    if isinstance(layer, LinkedProjection):
        width, centre = layer.inner.n_outputs, layer.tensors()["mean"].cpu().to(means)
        spread = float(squares[width:].sum()) / layer.scale**2
        return math.sqrt(max(spread + float(centre @ (2 * means[width:] / layer.scale + centre)), 0.0))
    return _norm_from_units(layer, means, squares)


def _norm_from_units(layer: Projection, means: Tensor, squares: Tensor) -> float:
    units = Units(layer.tensors()["weights"].cpu(), layer.tensors()["bias"].cpu(), layer.activation)
    gain = math.sqrt(2.0 / layer.n_units) if layer.kind == "fourier" else 1.0
    at_zero = ACTIVATIONS[units.activation](units.bias.to(means))
    energy = float((squares / gain**2 - 2 * at_zero * means / gain + at_zero.square()).sum())
    lengths = units.weights.to(means).square().sum(dim=0)
    per_norm = float(_slopes(units).square() @ lengths) / units.weights.shape[0]
    return math.sqrt(max(energy, 0.0) / per_norm) if per_norm > 0.0 else math.inf


def score_gap(model: RidgeModel, found: LayerMap, readout: Tensor) -> float:
    """Return how far the score of a class stands out from the average score at its mean, averaged over classes.

    Constants of the scores cancel in that average.
    """
    stats = model.state.reduced()
    means = stats.lift(stats.cross / model.counts.to(stats.cross).clamp_min(1.0)).cpu().to(readout)
    if found.linear is not None and isinstance(model.projection, LinkedProjection):
        readout = torch.cat([readout, found.linear / model.projection.scale])
    at_means = means.T @ readout
    return float((at_means.diagonal() - at_means.mean(dim=1)).mean())


# -- the bounds -----------------------------------------------------------------------------------------------


def ball_bound(units: Units, readout: Tensor, radius: float) -> float:
    """Return the largest change of any score, for all inputs up to a norm, if units are replaced by their tangents.

    Parameters
    ----------
    units : Units
        The hidden layer.
    readout : Tensor of shape (L, C)
        Its class weights.
    radius : float
        Norm of features up to which the bound shall hold.

    Examples
    --------
    >>> import torch
    >>> from evergrow.methods.folding import ball_bound
    >>> from evergrow.methods.head_maps import Units
    >>> units = Units(torch.full((1, 1), 0.1), torch.zeros(1), "sigmoid")
    >>> z = torch.tensor(2.0, dtype=torch.float64)
    >>> change = abs(torch.sigmoid(0.1 * z) - 0.5 - 0.25 * 0.1 * z)
    >>> bool(change <= ball_bound(units, torch.ones(1, 1), 2.0) < 1.1 * change)
    True
    """
    size = (readout.to(torch.float64) * units.gain).abs()
    reach = units.weights.to(torch.float64).norm(dim=0) * radius
    bias = units.bias.to(torch.float64)
    if units.activation == "relu":
        # A unit whose kink lies within reach is off by what lies beyond the kink; one that bends at zero, by half.
        beyond = torch.where(bias == 0.0, reach / 2, (reach - bias.abs()).clamp_min(0.0))
        return float((size * beyond[:, None]).sum(dim=0).amax())
    curve = CURVES[units.activation]
    kappa = (curve.derivatives(bias)[1].abs() / 2 + curve.third * reach / 6).clamp_max(curve.second / 2)
    unit_by_unit = float((size * (kappa * reach.square())[:, None]).sum(dim=0).amax())
    if not unit_by_unit:
        return 0.0
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


def ordinary_bound(units: Units, readout: Tensor, radius: float) -> float:
    """Return the largest change of any score for ordinary inputs up to a norm.

    Parameters
    ----------
    units, readout, radius
        As for :func:`ball_bound`.

    Examples
    --------
    >>> import torch
    >>> from evergrow.methods.folding import ball_bound, ordinary_bound
    >>> from evergrow.methods.head_maps import Units
    >>> drawn = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    >>> units, readout = Units(0.01 * drawn, torch.zeros(500), "tanh"), drawn[:3].T
    >>> ordinary_bound(units, readout, 5.0) < ball_bound(units, readout, 5.0)
    True
    """
    lengths = (readout.to(torch.float64) * units.gain).norm(dim=0)
    return ORDINARY_MARGIN * float(lengths.amax()) * random_bend(units, radius)


def random_bend(units: Units, radius: float) -> float:
    """Return ``q``, the root of ``E sum_j r_j(w_j . z)^2`` over random directions z of a length."""
    deviations = units.weights.to(torch.float64).norm(dim=0) * (radius / math.sqrt(units.weights.shape[0]))
    nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
    total = 0.0
    for node, share in zip(nodes.tolist(), (shares / shares.sum()).tolist(), strict=True):
        total += share * float(bend(units, deviations * node).square().sum())
    return math.sqrt(total)


# -- folding --------------------------------------------------------------------------------------------------


def fold(found: HeadMap, tolerance: float = FOLD_TOLERANCE, radius: float | None = None) -> tuple[LayerMap, FoldReport]:
    """Return a head without hidden units whose scores are the same within a bound, and what was done.

    Normalisation of the features stays as it is.

    Parameters
    ----------
    found : LayerMap, VoteMap or ContrastMap
        From :func:`~evergrow.methods.head_maps.read_head`.
    tolerance : float
        Largest change of a score, relative to how far a class stands out on average.
    radius : float, optional
        Norm of features up to which that must hold; by default twice the root mean square norm of those learned. Features
        that are normalised have norm 1.

    Raises
    ------
    FoldError
        If the bound exceeds the tolerance, or the head is not a single layer.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.heads import RIClassifier
    >>> from evergrow.methods.folding import fold
    >>> from evergrow.methods.head_maps import read_head
    >>> X, y = load_digits(return_X_y=True)
    >>> fold(read_head(RIClassifier(n_units=200, random_state=0).fit(X, y))[0])
    Traceback (most recent call last):
        ...
    evergrow.methods.folding.FoldError: a layer must be affine on the data to be folded, ...
    """
    check_number("fold_tolerance", tolerance, low=0, low_open=True)
    if radius is not None:
        check_number("fold_radius", radius, low=0, low_open=True)
    if not isinstance(found, LayerMap):
        what = "two layers one after the other" if isinstance(found, ContrastMap) else "members that vote"
        raise FoldError(f"a head must have a single hidden layer to be folded, got {what}")
    if found.units is None or found.readout is None:
        if found.linear is None:
            raise ParameterError("a head must have units or linear weights, got neither")
        shape = (found.linear.shape[0] + 1, found.linear.shape[1])
        return found, FoldReport(0, shape, math.inf, "all", 0.0, 1.0, tolerance)
    if found.model is None:
        raise FoldError(
            f"a layer must have class means to judge a bound by, got none for the {found.units.activation} units of this head"
        )
    report = _judged(found.units, found.readout, found, tolerance, radius)
    return _tangent(found, found.units, found.readout), report


def _judged(units: Units, readout: Tensor, found: LayerMap, tolerance: float, radius: float | None) -> FoldReport:
    """Return what folding does, or raise :class:`FoldError` if no bound is small enough."""
    model = found.model
    if model is None:
        raise FoldError("a layer must have statistics to be judged by, got none")
    everything = found.normalization != "none" and radius is None
    reach = (1.0 if everything else RADIUS_MARGIN * rms_norm(model)) if radius is None else float(radius)
    scale = score_gap(model, found, readout)
    shape = (units.weights.shape[0] + 1, readout.shape[1])
    relative = math.inf
    bounds = (("all" if everything else "ball", ball_bound), ("ordinary", ordinary_bound))
    for domain, bound in bounds if scale > 0.0 else ():
        value = bound(units, readout, reach)
        relative = min(relative, value / scale)
        if relative <= tolerance:
            return FoldReport(len(units.bias), shape, reach, domain, value, scale, tolerance)
    raise FoldError(
        f"a layer must be affine on the data to be folded, its scores changing by at most {tolerance:g} of the gap between "
        f"classes, got a bound of {relative:.3g} for {len(units.bias):,} {units.activation} units and features of norm up to "
        f"{reach:.4g}; export without folding",
        relative,
    )


def _tangent(found: LayerMap, units: Units, readout: Tensor) -> LayerMap:
    """Return the map with every unit replaced by its tangent at the bias."""
    readout = readout.to(torch.float64) * units.gain
    linear = units.weights.to(torch.float64) @ (_slopes(units)[:, None] * readout)
    if found.linear is not None:
        linear = linear + found.linear
    constant = found.constant + ACTIVATIONS[units.activation](units.bias.to(torch.float64)) @ readout
    return replace(found, units=None, readout=None, linear=linear, constant=constant, dtype=torch.float64)
