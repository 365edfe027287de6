"""Random layers that ignore the labels: Gaussian or uniform weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.errors import UnsupportedError
from evergrow.core.seeding import generator
from evergrow.core.validation import check_choice, check_integer
from evergrow.head.layers import ACTIVATIONS, LAYERS, FeatureMap, Layer
from evergrow.head.layers.feature_map import DenseMap
from evergrow.head.layers.fourier import FourierMap
from evergrow.head.layers.guided import Scales, UnitSampler, check_scales

UNITS_PER_DRAW = 256
"""Units per draw. A wider layer starts with the units of a narrower one."""


def input_weights(units: FeatureMap) -> Tensor:
    """Return the weights (d, L) of units; computed for structured Fourier units."""
    if isinstance(units, DenseMap):
        return units.weights
    if not isinstance(units, FourierMap):
        raise UnsupportedError(
            f"`units` must have input weights, got {type(units).__name__}"
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
        Append the features to the outputs.
    activation : str
        Activation of the units.
    scales : float, "paper", "auto" or sequence of float
        Standard deviation of weights and biases. A sequence is cycled through block by
        block. ``"auto"`` sets the spread of pre-activations from the first task.
    bias : {"gaussian", "points", "none"}
        Rule of the biases. ``"none"`` (RanPAC) has no biases.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers import GaussianLayer
    >>> Z = torch.ones(2, 3)
    >>> layer = GaussianLayer(n_units=5, activation="relu").build(Z, torch.eye(2))
    >>> layer.transform(Z).shape
    torch.Size([2, 5])
    """

    n_units: int = 10_000
    activation: str = "sigmoid"
    scales: float | Scales = 1.0
    bias: str = "gaussian"
    largest: ClassVar[int] = LARGEST_WIDTH

    def __post_init__(self) -> None:
        check_integer("n_units", self.n_units, high=self.largest)
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
        """Draw the units. Only their scales and bias points may depend on Z."""
        rule = "gaussian" if self.bias == "none" else self.bias
        sampler = UnitSampler(Z, self._scales, rule, seed, "gaussian")
        weights, bias = sampler.draw_units(
            self.n_units, UNITS_PER_DRAW, n_scales=len(sampler.scales)
        )
        if self.bias == "none":
            bias = torch.zeros_like(bias)
        return DenseMap(weights=weights, bias=bias, activation=self.activation)


@LAYERS.register("uniform")
@dataclass(frozen=True)
class UniformLayer(Layer):
    """Units ``h = g(z W)`` with weights ``U(-1/sqrt(d), 1/sqrt(d))`` and no bias.

    An untrained linear layer has these Kaiming-uniform weights, as in analytic
    class-incremental learning.

    Parameters
    ----------
    n_units : int
        Width L.
    direct_link : bool
        Append the features to the outputs.
    activation : str
        Activation of the units.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers import UniformLayer
    >>> Z = torch.ones(2, 4)
    >>> layer = UniformLayer(n_units=300).build(Z, torch.eye(2))
    >>> bool(layer.weights.abs().max() <= 0.5)
    True
    """

    n_units: int = 8192
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_integer("n_units", self.n_units, high=LARGEST_WIDTH)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Draw the units. Only the width of Z matters."""
        width = Z.shape[1]
        n_draws = math.ceil(self.n_units / UNITS_PER_DRAW)
        pieces = []
        for index in range(n_draws):
            stream = generator(seed, "uniform", index)
            pieces.append(torch.rand(width, UNITS_PER_DRAW, generator=stream))
        drawn = torch.cat(pieces, dim=1)[:, : self.n_units]
        weights = ((2.0 * drawn - 1.0) / math.sqrt(width)).contiguous().to(Z.device)
        bias = torch.zeros(self.n_units, device=Z.device)
        return DenseMap(weights=weights, bias=bias, activation=self.activation)
