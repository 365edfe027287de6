"""Drawing random units: the same seed gives the same units, however they are batched and wherever they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.seeding import generator
from evergrow.core.validation import check_number

BIAS_RULES = ("gaussian", "points", "phases")

PAPER_SCALES = tuple(round(0.0008 + 0.0001 * step, 4) for step in range(33))
"""The paper's grid: from 0.0008 to 0.004 in steps of 0.0001. It belongs to un-normalised ViT-B/16 features."""

AUTO_SPREADS = (0.3, 3.0)
"""Spread of pre-activations between which ``"auto"`` draws: from nearly affine to saturated units."""

FOURIER_BANDWIDTH = 0.5
"""Spread of the pre-activations of cosines for ``"spread"``. On training rows of four sets 0.25 to 0.7 do alike."""

NAMED_SCALES = ("paper", "auto", "spread")

Scales = str | Sequence[float]


def check_scales(scales: Scales) -> None:
    """Raise :class:`ParameterError` unless ``scales`` is a known name or positive numbers."""
    if isinstance(scales, str):
        if scales not in NAMED_SCALES:
            raise ParameterError(f"scales must be one of {NAMED_SCALES} or a sequence of numbers, got {scales!r}")
        return
    try:
        values = list(scales)
    except TypeError:
        raise ParameterError(f"scales must be one of {NAMED_SCALES} or a sequence of numbers, got {scales!r}") from None
    if not values:
        raise ParameterError("scales must hold at least one number, got an empty sequence")
    for value in values:
        check_number("every scale", value, low=0.0, low_open=True)


def centred_rms(Z: Tensor) -> float:
    """Return the root mean square distance of rows from their mean, the spread of unit-variance weights.

    A weight vector of independent unit normals gives pre-activations of exactly this standard deviation
    (in expectation), so ``spread / centred_rms(Z)`` is the scale that gives a wanted spread.
    """
    if Z.shape[0] < 2:
        value = float(Z.norm())
    else:
        value = float((Z - Z.mean(dim=0)).square().sum(dim=1).mean().sqrt())
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
        self.Z = Z
        self.bias = bias
        self.seed = seed
        self.purpose = purpose
        self.orthogonal = orthogonal
        self.auto = isinstance(scales, str) and scales == "auto"
        if self.auto:
            self.scales = torch.tensor(AUTO_SPREADS, dtype=torch.float64) / centred_rms(Z)
        elif isinstance(scales, str) and scales == "spread":
            self.scales = torch.tensor([FOURIER_BANDWIDTH / centred_rms(Z)], dtype=torch.float64)
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
        return _fill(out, self.seed, self.purpose, round_)

    def units(self, round_: int, normals: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Turn the normals of a round into weights (d, m) and biases (m,) at one step of the schedule."""
        if self.orthogonal:
            normals = torch.stack([_orthogonal(piece) for piece in normals])
        return self._scaled(round_, normals, step)

    def block(self, round_: int, block: int, step: int) -> tuple[Tensor, Tensor]:
        """Return the first block of a round at one step of the schedule: weights (d, block) and biases (block,)."""
        directions = _directions(self.seed, self.purpose, round_, self.Z.shape[1], block, self.orthogonal)
        return self._scaled(round_, directions, step)

    def _scaled(self, round_: int, normals: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the units of directions that are settled."""
        device, count = self.Z.device, normals.shape[0] * normals.shape[2]
        scale = self._unit_scales(round_, count, step)
        normals = normals.to(device, non_blocking=True).transpose(0, 1).reshape(normals.shape[1], count)
        weights = normals[:-1] * scale
        if self.bias == "gaussian":
            return weights, (normals[-1] * scale).to(torch.float64)
        if self.bias == "phases":
            stream = generator(self.seed, self.purpose, round_, "phases")
            turns = torch.rand(count, generator=stream, dtype=torch.float64)
            return weights, (turns * (2.0 * math.pi)).to(device)
        stream = generator(self.seed, self.purpose, round_, "points")
        points = torch.randint(self.Z.shape[0], (count,), generator=stream).to(device)
        chosen = self.Z[points].to(torch.float64)
        return weights, -(chosen * weights.T.to(torch.float64)).sum(dim=1)

    def _unit_scales(self, round_: int, count: int, step: int) -> float | Tensor:
        """Return one scale, or one per unit; a plain number spares the device a transfer."""
        if not self.auto:
            return float(self.scales[step].to(torch.float32))
        stream = generator(self.seed, self.purpose, round_, "scales")
        low, high = self.scales
        share = torch.rand(count, generator=stream, dtype=torch.float64)
        drawn: Tensor = low * (high / low) ** share
        return drawn.to(self.Z.device, torch.float32)

    def step_scale(self, step: int) -> float:
        """Return the scale of a step, for the log; with ``"auto"`` the middle of the range."""
        return float(self.scales.log().mean().exp()) if self.auto else float(self.scales[step])


def _fill(out: Tensor, seed: int, purpose: str, round_: int) -> Tensor:
    """Fill blocks one after the other, so that the first do not depend on how many follow."""
    stream = generator(seed, purpose, round_)
    for piece in out:
        piece.normal_(generator=stream)
    return out


@lru_cache(maxsize=12)  # 3,000 units: a process that begins many models with one backbone draws them once
def _directions(seed: int, purpose: str, round_: int, width: int, block: int, orthogonal: bool) -> Tensor:
    """Return the normals (1, width + 1, block) of a round, which nobody may change in place."""
    normals = _fill(torch.empty(1, width + 1, block), seed, purpose, round_)
    return _orthogonal(normals[0])[None] if orthogonal else normals


def _orthogonal(normals: Tensor) -> Tensor:
    """Turn the columns of a block (d + 1, m), whose last row are biases, into orthogonal ones of the same lengths.

    Lengths and directions of normal vectors are independent, so that each column alone is as it was.
    """
    turned = normals.clone()
    width = normals.shape[0] - 1
    for start in range(0, normals.shape[1], width):
        columns = normals[:-1, start : start + width].to(torch.float64)
        basis, triangle = torch.linalg.qr(columns)
        signs = torch.where(triangle.diagonal() < 0.0, -1.0, 1.0)
        turned[:-1, start : start + width] = (basis * signs * columns.norm(dim=0)).to(normals.dtype)
    return turned
