"""Straightening units: the line nearest to each, and how far scores can move by it.

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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evergrow.export.head_maps import Units
from evergrow.head.layers import ACTIVATIONS

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
    >>> from evergrow.export.straightening import best_lines
    >>> from evergrow.export.head_maps import Units
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
    >>> from evergrow.export.straightening import ball_bound, tangents
    >>> from evergrow.export.head_maps import Units
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
    >>> from evergrow.export.straightening import ball_bound, best_lines, ordinary_bound
    >>> from evergrow.export.head_maps import Units
    >>> drawn = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    >>> units, readout = Units(0.01 * drawn, torch.zeros(500), "tanh"), drawn[:3].T
    >>> lines = best_lines(units, 2.5)
    >>> ordinary_bound(units, lines, readout, 5.0) < ball_bound(units, lines, readout, 5.0)
    True
    """
    lengths = (readout.to(torch.float64) * units.gain).norm(dim=0)
    return ORDINARY_MARGIN * float(lengths.amax()) * random_bend(units, lines, radius)
