"""Unguided random layers: Gaussian weights of any scale, and random Fourier features."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import ParameterError
from evergrow.core.fields import Fields
from evergrow.core.seeding import generator
from evergrow.core.validation import check_matrix, check_number
from evergrow.head.layers.base import PROJECTIONS, Projection, nothing_new
from evergrow.head.layers.scales import Scales, check_scales
from evergrow.head.layers.settings import LayerSettings
from evergrow.head.layers.units import UnitSampler

_BLOCK = 256  # units per draw: a wider layer begins with the units of a narrower one


@PROJECTIONS.register("gaussian", version=2, migrations={1: nothing_new})
class GaussianProjection(Projection):
    """Random initialisation: ``h = g(z W + b)`` with Gaussian weights, blind to the labels.

    Parameters
    ----------
    n_units : int
        Width L.
    activation : str
        Activation of the units.
    scales : float, "paper", "auto" or sequence of float
        Standard deviation of weights and biases; a sequence is cycled through block by block, ``"auto"`` sets
        the spread of pre-activations from the first task.
    bias : {"gaussian", "points", "none"}
        Rule of the biases; ``"none"`` has none (RanPAC).
    random_state : int
        Seed of the units.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GaussianProjection
    >>> Z = torch.ones(2, 3)
    >>> layer = GaussianProjection(n_units=5, activation="relu").build(Z, torch.eye(2))
    >>> layer.transform(Z).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        n_units: int = 10_000,
        activation: str = "sigmoid",
        scales: float | Scales = 1.0,
        bias: str = "gaussian",
        random_state: int = 0,
    ) -> None:
        super().__init__(activation, random_state)
        check_number("n_units", n_units, low=1, integer=True)
        self.requested = int(n_units)
        self.scales: Scales = (float(scales),) if isinstance(scales, (int, float)) else scales
        check_scales(self.scales)
        self.bias_rule = bias

    @classmethod
    def from_settings(cls, settings: LayerSettings) -> Self:
        """Return the layer of a head; the paper's random initialisation has unit variance, its scales are MGSM's."""
        drawn: float | Scales = 1.0 if settings.scales == "paper" else settings.scales
        return cls(settings.width, settings.activation, drawn, random_state=settings.seed)

    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Draw the units; only their scales and bias points may depend on Z."""
        check_matrix("Z", Z)
        rule = "gaussian" if self.bias_rule == "none" else self.bias_rule
        sampler = UnitSampler(Z, self.scales, rule, self.random_state, self.kind)
        pieces = []
        for index in range(math.ceil(self.requested / _BLOCK)):
            normals = sampler.normals(index, 1, _BLOCK)
            pieces.append(sampler.units(index, normals, index % sampler.n_scales))
        self.weights = torch.cat([piece[0] for piece in pieces], dim=1)[:, : self.requested].contiguous()
        self.bias = torch.cat([piece[1] for piece in pieces])[: self.requested].contiguous()
        if self.bias_rule == "none":
            self.bias = torch.zeros_like(self.bias)
        return self


@PROJECTIONS.register("fourier", version=2, migrations={1: nothing_new})
class FourierProjection(Projection):
    """Random Fourier features ``h = sqrt(2 / L) cos(z W + b)`` of the Gaussian kernel.

    Parameters
    ----------
    n_units : int
        Width L.
    gamma : float, "median" or "spread"
        Kernel ``exp(-gamma |z - z'|^2)``: weights are ``N(0, 2 gamma)``. ``"median"`` takes
        ``0.5 / median squared distance`` of first-task rows; ``"spread"`` a bandwidth of twice the root mean square
        distance from their mean.
    random_state : int
        Seed of the units.
    orthogonal : bool
        Orthogonal directions within blocks of 256 units, instead of independent ones.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import FourierProjection
    >>> Z = torch.zeros(2, 3, dtype=torch.float64)
    >>> layer = FourierProjection(n_units=2000, gamma=1.0).build(Z, torch.eye(2))
    >>> H = layer.transform(Z)
    >>> bool(abs((H @ H.T)[0, 1] - 1.0) < 0.1)
    True
    """

    def __init__(
        self,
        n_units: int = 10_000,
        gamma: float | str = "median",
        random_state: int = 0,
        *,
        orthogonal: bool = False,
    ) -> None:
        super().__init__("cos", random_state)
        check_number("n_units", n_units, low=1, integer=True)
        if gamma not in ("median", "spread"):
            check_number("gamma", gamma, low=0, low_open=True)
        self.requested = int(n_units)
        self.gamma = gamma
        self.orthogonal = bool(orthogonal)

    @classmethod
    def from_settings(cls, settings: LayerSettings) -> Self:
        """Return the layer of a head; its one scale is the bandwidth of the kernel."""
        if settings.scales not in ("paper", "auto"):
            raise ParameterError("scales must be 'paper' or 'auto' for projection='fourier'")
        return cls(settings.width, random_state=settings.seed)

    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Draw frequencies and phases; only the bandwidth may depend on Z."""
        check_matrix("Z", Z)
        if self.gamma == "spread":
            scales: Scales = "spread"
        else:
            gamma = median_gamma(Z, self.random_state) if isinstance(self.gamma, str) else float(self.gamma)
            scales = (math.sqrt(2.0 * gamma),)
        sampler = UnitSampler(Z, scales, "phases", self.random_state, self.kind, orthogonal=self.orthogonal)
        rounds = range(math.ceil(self.requested / _BLOCK))
        pieces = [sampler.block(index, _BLOCK, 0) for index in rounds]
        self.weights = torch.cat([piece[0] for piece in pieces], dim=1)[:, : self.requested].contiguous()
        self.bias = torch.cat([piece[1] for piece in pieces])[: self.requested]
        return self

    @property
    def gain(self) -> float:
        """What all activations are multiplied by, so that their inner products approximate the kernel."""
        return math.sqrt(2.0 / self.n_units)

    def transform(self, Z: Tensor) -> Tensor:
        """Return the features (n, L), scaled so that their inner products approximate the kernel."""
        return super().transform(Z).mul_(self.gain)

    def to_archive(self) -> Archive:
        """Return what a file holds of the map."""
        archive = super().to_archive()
        archive.meta.update(gamma=self.gamma, orthogonal=self.orthogonal)
        return archive

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the frozen map that :meth:`to_archive` gave."""
        projection = super().from_archive(fields, device)
        fields.require(projection.activation == "cos" and projection.n_units > 0, "its units are no cosines")
        projection.gamma = fields.word_or_number("gamma", ("median", "spread"), low=0.0)
        projection.orthogonal = fields.flag("orthogonal", default=False)  # version 0.1 had independent ones only
        return projection


def median_gamma(Z: Tensor, seed: int, rows: int = 1000) -> float:
    """Return ``0.5 / median squared distance`` over pairs of at most ``rows`` rows of Z."""
    if Z.shape[0] > rows:
        Z = Z[torch.randperm(Z.shape[0], generator=generator(seed, "median"))[:rows].to(Z.device)]
    squared = torch.nn.functional.pdist(Z.to(torch.float64)).square()
    median = float(squared.median()) if squared.numel() else 0.0
    return 0.5 / median if median > 0.0 else 1.0
