"""Scales of random weights: the paper's grid, or one set from the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number

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


def paper_or_given(scales: Scales) -> torch.Tensor:
    """Return the grid of scales for any choice but "auto"."""
    values = PAPER_SCALES if isinstance(scales, str) else tuple(float(value) for value in scales)
    return torch.tensor(values, dtype=torch.float64)
