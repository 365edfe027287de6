"""What a layer is, and how random units with weights of their own are drawn.

The same seed gives the same units, however they are batched and wherever they run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

NAMED_SCALES = ("paper", "auto")

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
    scales : "paper", "auto" or sequence of float
        Scales of the weights. ``"auto"`` draws a spread of pre-activations for every unit.
    bias : {"gaussian", "points", "phases"}
        ``"gaussian"``: ``b ~ N(0, scale^2)`` as in the paper. ``"points"``: ``b = -w . z_i`` for a random
        first-task sample, so that every unit bends where there is data. ``"phases"``: uniform on a full turn, for
        cosines.
    seed : int
        Seed of the streams.
    purpose : str
        Name of the streams.
    """

    def __init__(self, Z: Tensor, scales: Scales, bias: str, seed: int, purpose: str) -> None:
        if bias not in BIAS_RULES:
            raise ParameterError(f"bias must be one of {BIAS_RULES}, got {bias!r}")
        self.Z, self.bias, self.seed, self.purpose = Z, bias, seed, purpose
        self.auto = isinstance(scales, str) and scales == "auto"
        if self.auto:
            self.scales = torch.tensor(AUTO_SPREADS, dtype=torch.float64) / centred_rms(Z)
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
        stream = generator(self.seed, self.purpose, round_)
        for piece in out:  # one after the other, so that the first do not depend on how many follow
            piece.normal_(generator=stream)
        return out

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
        rounds = range(first, first + math.ceil(count / block))
        pieces = [self.units(each, self.normals(each, 1, block), (each - first) % steps) for each in rounds]
        weights, biases = zip(*pieces, strict=True)
        return torch.cat(weights, dim=1)[:, :count].contiguous(), torch.cat(biases)[:count].contiguous()

    def _stream(self, round_: int, what: str) -> torch.Generator:
        return generator(self.seed, self.purpose, round_, what)

    def step_scale(self, step: int) -> float:
        """Return the scale of a step, for the log; with ``"auto"`` the middle of the range."""
        return float(self.scales.log().mean().exp()) if self.auto else float(self.scales[step])
