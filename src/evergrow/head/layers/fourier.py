"""Orthogonal random Fourier units, the layer that the recommended classifier uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.validation import check_number
from evergrow.head.layers.base import LAYERS, Layer
from evergrow.head.layers.feature_map import FeatureMap
from evergrow.head.layers.units import Scales, UnitSampler

_BLOCK = 256  # units per draw: a wider layer begins with the units of a narrower one


@LAYERS.register("fourier")
@dataclass(frozen=True)
class FourierLayer(Layer):
    """Random Fourier features ``h = sqrt(2 / L) cos(z W + b)`` of the Gaussian kernel.

    Parameters
    ----------
    n_units : int
        Width L; 0 leaves the features themselves with a constant.
    direct_link : bool
        Put the features beside the units.
    gamma : float or "spread"
        Kernel ``exp(-gamma |z - z'|^2)``: weights are ``N(0, 2 gamma)``. ``"spread"`` sets a bandwidth of twice the
        root mean square distance of first-task rows from their mean.
    orthogonal : bool
        Orthogonal directions within blocks of 256 units, instead of independent ones.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import FourierLayer
    >>> Z = torch.zeros(2, 3, dtype=torch.float64)
    >>> H = FourierLayer(n_units=2000, gamma=1.0, direct_link=False).build(Z, torch.eye(2)).transform(Z)
    >>> bool(abs((H @ H.T)[0, 1] - 1.0) < 0.1)
    True
    """

    n_units: int = 3000
    direct_link: bool = True
    gamma: float | str = "spread"
    orthogonal: bool = True

    def __post_init__(self) -> None:
        check_number("n_units", self.n_units, low=0, integer=True)
        if self.gamma != "spread":
            check_number("gamma", self.gamma, low=0, low_open=True)

    def draw(self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool) -> FeatureMap:
        """Draw frequencies and phases; only the bandwidth may depend on Z."""
        scales: Scales = "spread" if isinstance(self.gamma, str) else (math.sqrt(2.0 * self.gamma),)
        sampler = UnitSampler(Z, scales, "phases", seed, "fourier", orthogonal=self.orthogonal)
        pieces = [sampler.block(index, _BLOCK, 0) for index in range(math.ceil(self.n_units / _BLOCK))]
        weights = torch.cat([piece[0] for piece in pieces], dim=1)[:, : self.n_units].contiguous()
        bias = torch.cat([piece[1] for piece in pieces])[: self.n_units]
        # The gain makes inner products of rows approximate the kernel.
        return FeatureMap(weights=weights, bias=bias, activation="cos", gain=math.sqrt(2.0 / self.n_units))
