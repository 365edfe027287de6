"""What a layer is, how its random units are drawn, and the Fourier layer that the recommended classifier uses.

The same seed gives the same units, however they are batched and wherever they run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.record import to_values
from evergrow.core.registry import Registry
from evergrow.core.seeding import generator
from evergrow.core.validation import check_number, from_mapping
from evergrow.head.layers.feature_map import FeatureMap, link_only, with_link

LAYERS: Registry[type[Layer]] = Registry("layer", plugins=True)
"""Every kind of layer by name; filled by ``@LAYERS.register(name)``."""


@dataclass(frozen=True)
class Layer(ABC):
    """Parameters of a layer. A kind of layer is a frozen dataclass with further parameters and :meth:`draw`.

    Parameters
    ----------
    n_units : int or None
        Random units; 0 leaves the features themselves with a constant, None whatever the kind finds.
    direct_link : bool
        Put the features beside the units.
    """

    n_units: int | None = None
    direct_link: bool = False

    def __post_init__(self) -> None:
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=0, integer=True)

    @abstractmethod
    def draw(self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool) -> FeatureMap:
        """Return the units, without a link; arguments as of :meth:`build`."""

    def build(
        self, Z: Tensor, Y: Tensor, *, seed: int = 0, alpha: float | None = None, verbose: bool = False
    ) -> FeatureMap:
        """Return the frozen map that the first task fixes.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        Y : Tensor of shape (n, C)
            One-hot targets; only guided layers look at them.
        seed : int
            Seed of the units.
        alpha : float or None
            Ridge of a guided construction; None takes the layer's own.
        verbose : bool
            Show progress.
        """
        if self.n_units == 0:
            return link_only(Z)
        units = self.draw(Z, Y, seed=seed, alpha=alpha, verbose=verbose)
        return with_link(units, Z) if self.direct_link else units

    def to_plain(self) -> dict[str, Any]:
        """Return the parameters as plain values, with the name of the kind."""
        kind = next(name for name in LAYERS if LAYERS[name] is type(self))
        values: dict[str, Any] = to_values(self)
        return {"kind": kind, **values}


def layer_from_plain(values: Mapping[str, Any]) -> Layer:
    """Return the layer that :meth:`Layer.to_plain` described.

    Examples
    --------
    >>> from evergrow.head.layers import FourierLayer
    >>> from evergrow.head.layers.base import layer_from_plain
    >>> layer_from_plain({"kind": "fourier", "n_units": 100}) == FourierLayer(n_units=100)
    True
    """
    if "kind" not in values:
        raise ParameterError(f"layer must state its kind, one of {', '.join(LAYERS.names())}")
    rest = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key != "kind"}
    return from_mapping(LAYERS[values["kind"]], rest, "parameter of the layer")


# -- random units -------------------------------------------------------------------------------------------------


BIAS_RULES = ("gaussian", "points", "phases")

PAPER_SCALES = tuple(round(0.0008 + 0.0001 * step, 4) for step in range(33))
"""The paper's grid: from 0.0008 to 0.004 in steps of 0.0001. It belongs to un-normalised ViT-B/16 features."""

AUTO_SPREADS = (0.3, 3.0)
"""Spread of pre-activations between which ``"auto"`` draws: from nearly affine to saturated units."""

FOURIER_BANDWIDTH = 0.5
"""Spread of the pre-activations of cosines for ``"spread"``. On training rows of four sets 0.25 to 0.7 do alike."""

NAMED_SCALES = ("paper", "auto", "spread")

Scales = str | Sequence[float]

UNITS_PER_DRAW = 256
"""Units of a layer that are drawn at once: a wider layer begins with the units of a narrower one."""


def check_scales(scales: Scales) -> None:
    """Raise :class:`ParameterError` unless ``scales`` is a known name or positive numbers."""
    if isinstance(scales, str) and scales in NAMED_SCALES:
        return
    if isinstance(scales, str) or not isinstance(scales, Iterable):
        raise ParameterError(f"scales must be one of {NAMED_SCALES} or a sequence of numbers, got {scales!r}")
    values = list(scales)
    if not values:
        raise ParameterError("scales must hold at least one number, got an empty sequence")
    for value in values:
        check_number("every scale", value, low=0.0, low_open=True)


def centred_rms(Z: Tensor) -> float:
    """Return the root mean square distance of rows from their mean, the spread of unit-variance weights.

    A weight vector of independent unit normals gives pre-activations of exactly this standard deviation
    (in expectation), so ``spread / centred_rms(Z)`` is the scale that gives a wanted spread.
    """
    several = len(Z) > 1
    value = float((Z - Z.mean(dim=0)).square().sum(dim=1).mean().sqrt() if several else Z.norm())
    return value if value > 0.0 else 1.0


class UnitSampler:
    """A source of random units ``(w, b)``, addressed by round.

    Round r always yields the same numbers. Within a round block after block is drawn, so the first blocks
    do not depend on how many follow; weights are drawn in float32 on the CPU and moved.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        First-task features; ``"auto"`` scales and ``"points"`` biases look at them.
    scales : "paper", "auto", "spread" or sequence of float
        Scales of the weights. ``"auto"`` draws a spread of pre-activations for every unit, ``"spread"`` has the same
        one for all, as cosines want.
    bias : {"gaussian", "points", "phases"}
        ``"gaussian"``: ``b ~ N(0, scale^2)`` as in the paper. ``"points"``: ``b = -w . z_i`` for a random
        first-task sample, so that every unit bends where there is data. ``"phases"``: uniform on a full turn, for
        cosines.
    seed : int
        Seed of the streams.
    purpose : str
        Name of the streams.
    orthogonal : bool
        Turn the weights of a block so that they are orthogonal, as far as there are dimensions; lengths stay.
    """

    def __init__(
        self, Z: Tensor, scales: Scales, bias: str, seed: int, purpose: str, *, orthogonal: bool = False
    ) -> None:
        if bias not in BIAS_RULES:
            raise ParameterError(f"bias must be one of {BIAS_RULES}, got {bias!r}")
        self.Z, self.bias, self.seed, self.purpose, self.orthogonal = Z, bias, seed, purpose, orthogonal
        named = scales if isinstance(scales, str) else ""
        self.auto = named == "auto"
        spreads = {"auto": AUTO_SPREADS, "spread": (FOURIER_BANDWIDTH,)}
        if named in spreads:
            self.scales = torch.tensor(spreads[named], dtype=torch.float64) / centred_rms(Z)
        else:
            values = PAPER_SCALES if isinstance(scales, str) else tuple(float(value) for value in scales)
            self.scales = torch.tensor(values, dtype=torch.float64)

    @property
    def n_scales(self) -> int:
        """Steps of the schedule; drawing a scale per unit leaves nothing to step through."""
        return 1 if self.auto else len(self.scales)

    def normals(self, round_: int, n_blocks: int, block: int, out: Tensor | None = None) -> Tensor:
        """Return unit normals (n_blocks, d + 1, block), float32, on the CPU; ``out`` is filled where it is given."""
        if out is None:
            out = torch.empty(n_blocks, self.Z.shape[1] + 1, block)
        return _fill(out, self.seed, self.purpose, round_, self.orthogonal)

    def units(self, round_: int, normals: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Turn the normals of a round into weights (d, m) and biases (m,) at one step of the schedule."""
        device, count = self.Z.device, normals.shape[0] * normals.shape[2]
        scale: float | Tensor = float(self.scales[step].to(torch.float32))  # a number spares the device a transfer
        if self.auto:
            low, high = self.scales
            share = torch.rand(count, generator=self._stream(round_, "scales"), dtype=torch.float64)
            scale = (low * (high / low) ** share).to(device, torch.float32)
        normals = normals.to(device, non_blocking=True).transpose(0, 1).reshape(normals.shape[1], count)
        weights = normals[:-1] * scale
        if self.bias == "gaussian":
            return weights, (normals[-1] * scale).to(torch.float64)
        if self.bias == "phases":
            turns = torch.rand(count, generator=self._stream(round_, "phases"), dtype=torch.float64)
            return weights, (turns * (2.0 * math.pi)).to(device)
        points = torch.randint(len(self.Z), (count,), generator=self._stream(round_, "points")).to(device)
        chosen = self.Z[points].to(torch.float64)
        return weights, -(chosen * weights.T.to(torch.float64)).sum(dim=1)

    def layer(self, count: int, block: int, first: int = 0, steps: int = 1) -> tuple[Tensor, Tensor]:
        """Return weights (d, count) and biases (count,): one block a round, cycling through steps of the schedule."""
        pieces = []
        for index in range(math.ceil(count / block)):
            normals = _normals(self.seed, self.purpose, first + index, self.Z.shape[1], block, self.orthogonal)
            pieces.append(self.units(first + index, normals, index % steps))
        weights, biases = zip(*pieces, strict=True)
        return torch.cat(weights, dim=1)[:, :count].contiguous(), torch.cat(biases)[:count].contiguous()

    def _stream(self, round_: int, what: str) -> torch.Generator:
        return generator(self.seed, self.purpose, round_, what)

    def step_scale(self, step: int) -> float:
        """Return the scale of a step, for the log; with ``"auto"`` the middle of the range."""
        return float(self.scales.log().mean().exp()) if self.auto else float(self.scales[step])


def _fill(out: Tensor, seed: int, purpose: str, round_: int, orthogonal: bool) -> Tensor:
    """Fill blocks one after the other, so that the first do not depend on how many follow.

    Orthogonal columns keep their lengths. Lengths and directions of normal vectors are independent, so that each column
    alone is distributed as before. The last row is for biases and stays.
    """
    stream = generator(seed, purpose, round_)
    for piece in out:
        piece.normal_(generator=stream)
        if orthogonal:
            for columns in torch.split(piece[:-1], len(piece) - 1, dim=1):
                normals = columns.to(torch.float64)
                basis, triangle = torch.linalg.qr(normals)
                signs = torch.where(triangle.diagonal() < 0.0, -1.0, 1.0)
                columns.copy_(basis * signs * normals.norm(dim=0))
    return out


@lru_cache(maxsize=12)  # 3,000 units: a process that begins many models with one backbone draws them once
def _normals(seed: int, purpose: str, round_: int, width: int, block: int, orthogonal: bool) -> Tensor:
    """Return the normals (1, width + 1, block) of a round, which nobody may change in place."""
    return _fill(torch.empty(1, width + 1, block), seed, purpose, round_, orthogonal)


# -- Fourier units ------------------------------------------------------------------------------------------------


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
        weights, bias = sampler.layer(self.n_units, UNITS_PER_DRAW)
        # The gain makes inner products of rows approximate the kernel.
        return FeatureMap(weights=weights, bias=bias, activation="cos", gain=math.sqrt(2.0 / self.n_units))
