"""Unguided random layers: Gaussian or uniform weights of a fixed scale, blind to the labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.errors import UnsupportedError
from evergrow.core.seeding import generator
from evergrow.core.validation import LARGEST_WIDTH, check_choice, check_number
from evergrow.head.layers import ACTIVATIONS, LAYERS, FeatureMap, Layer
from evergrow.head.layers.feature_map import DenseMap
from evergrow.head.layers.fourier import FourierMap
from evergrow.head.layers.guided import Scales, UnitSampler, check_scales

UNITS_PER_DRAW = 256
"""Units of a layer that are drawn at once: a wider layer begins with the units of a narrower one."""


def input_weights(units: FeatureMap) -> Tensor:
    """Return the weights (d, L) of units, or those that units of drawn signs stand for."""
    if isinstance(units, DenseMap):
        return units.weights
    if not isinstance(units, FourierMap):
        raise UnsupportedError(
            f"units must be of a layer with weights, got {type(units).__name__}"
        )
    turned = units.rotate(torch.eye(units.features, dtype=torch.float64))
    return torch.cat(
        [part.T * (units.bandwidth / units.order) for _, part in turned], dim=1
    )


@LAYERS.register("gaussian")
@dataclass(frozen=True)
class GaussianLayer(Layer):
    """Random initialisation: ``h = g(z W + b)`` with Gaussian weights.

    Parameters
    ----------
    n_units : int
        Width L.
    direct_link : bool
        Put the features beside the units.
    activation : str
        Activation of the units.
    scales : float, "paper", "auto" or sequence of float
        Standard deviation of weights and biases; a sequence is cycled through block by
        block, ``"auto"`` sets the spread of pre-activations from the first task.
    bias : {"gaussian", "points", "none"}
        Rule of the biases; ``"none"`` has none (RanPAC).

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers import GaussianLayer
    >>> Z = torch.ones(2, 3)
    >>> GaussianLayer(n_units=5, activation="relu").build(Z, torch.eye(2)).transform(Z).shape
    torch.Size([2, 5])
    """

    n_units: int = 10_000
    activation: str = "sigmoid"
    scales: float | Scales = 1.0
    bias: str = "gaussian"

    def __post_init__(self) -> None:
        check_number("n_units", self.n_units, low=1, high=LARGEST_WIDTH, integer=True)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("bias", self.bias, ("gaussian", "points", "none"))
        check_scales(self._scales)

    @property
    def _scales(self) -> Scales:
        if isinstance(self.scales, (int, float)):
            return (float(self.scales),)
        return self.scales

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Draw the units; only their scales and bias points may depend on Z."""
        rule = "gaussian" if self.bias == "none" else self.bias
        sampler = UnitSampler(Z, self._scales, rule, seed, "gaussian")
        weights, bias = sampler.layer(
            self.n_units, UNITS_PER_DRAW, steps=sampler.n_scales
        )
        if self.bias == "none":
            bias = torch.zeros_like(bias)
        else:
            bias = bias
        return DenseMap(weights=weights, bias=bias, activation=self.activation)


@LAYERS.register("uniform")
@dataclass(frozen=True)
class UniformLayer(Layer):
    """Units ``h = g(z W)`` with Kaiming-uniform weights ``U(-1/sqrt(d), 1/sqrt(d))`` and no bias.

    These are the weights of an untrained linear layer, as analytic class-incremental
    learning has them.

    Parameters
    ----------
    n_units : int
        Width L.
    direct_link : bool
        Put the features beside the units.
    activation : str
        Activation of the units.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers import UniformLayer
    >>> Z = torch.ones(2, 4)
    >>> bool(UniformLayer(n_units=300).build(Z, torch.eye(2)).weights.abs().max() <= 0.5)
    True
    """

    n_units: int = 8192
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_number("n_units", self.n_units, low=1, high=LARGEST_WIDTH, integer=True)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Draw the units; nothing but the width of Z is looked at."""
        width = Z.shape[1]
        pieces = [
            torch.rand(
                width, UNITS_PER_DRAW, generator=generator(seed, "uniform", index)
            )
            for index in range(math.ceil(self.n_units / UNITS_PER_DRAW))
        ]
        drawn = torch.cat(pieces, dim=1)[:, : self.n_units]
        weights = ((2.0 * drawn - 1.0) / math.sqrt(width)).contiguous().to(Z.device)
        bias = torch.zeros(self.n_units, device=Z.device)
        return DenseMap(weights=weights, bias=bias, activation=self.activation)
