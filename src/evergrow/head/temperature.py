"""Softmax temperatures: log losses on a fixed grid, and the best temperature.

The temperature is chosen by the log loss of held-out rows. On a fixed grid of
temperatures the loss is a mean over rows, so it can be pooled over batches and sites.

The scores of a model grow with its samples, and so does its best temperature: by the
factor 10 from 5 to 20 samples per class. Temperatures of the grid are therefore in
units of the temperature that the statistics of the scoring model expect. In these units
rows of models of all sizes can be pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

STEPS_PER_OCTAVE = 2

TEMPERATURES: tuple[float, ...] = tuple(
    float(2.0 ** (step / STEPS_PER_OCTAVE)) for step in range(-14, 15)
)
"""The grid, from 1/128 to 128."""

EXPECTED_LOSS = 2.0
"""Loss, in nats, of a temperature that differs from the expected one by a factor of e.
It corresponds to a standard deviation of 0.5 of the logarithm. It decides if rows do
not: if all rows are predicted with certainty, the log loss has no minimum."""

_CHUNK_SCORES = 2**22  # scores whose log losses are computed at once


def log_losses(scores: Tensor, codes: Tensor, unit: float = 1.0) -> NDArray[np.float64]:
    """Return the log loss of each row at every temperature of the grid.

    Parameters
    ----------
    scores : Tensor of shape (n, C)
        Class scores of held-out rows.
    codes : Tensor of shape (n,)
        True classes.
    unit : float, default=1.0
        Factor of the temperatures of the grid.

    Returns
    -------
    ndarray of shape (n, 29)

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.temperature import log_losses
    >>> losses = log_losses(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> losses.round(4)[:, 0].tolist()
    [0.6931, 0.6931, 0.6931]
    """
    import torch

    n_rows = max(_CHUNK_SCORES // max(scores.shape[1], 1), 1)
    scores = scores.to(torch.float64)
    chunks = zip(torch.split(scores, n_rows), torch.split(codes, n_rows), strict=True)
    losses = []
    for chunk, chunk_codes in chunks:
        columns = [
            torch.nn.functional.cross_entropy(
                chunk / (unit * temperature), chunk_codes, reduction="none"
            )
            for temperature in TEMPERATURES
        ]
        losses.append(torch.stack(columns, dim=1))
    return np.asarray(torch.cat(losses).cpu().numpy())


def expected_losses() -> NDArray[np.float64]:
    """Return the loss of every temperature for its distance to the expected one."""
    return np.asarray(EXPECTED_LOSS * np.log(np.array(TEMPERATURES)) ** 2)


def best_temperature(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the temperature of the smallest loss, between grid points by a parabola.

    Parameters
    ----------
    losses : sequence of 29 floats
        Loss at every temperature of the grid.

    Examples
    --------
    >>> import math
    >>> from evergrow.head.temperature import TEMPERATURES, best_temperature
    >>> losses = [math.log(temperature / 3.0) ** 2 for temperature in TEMPERATURES]
    >>> round(best_temperature(losses), 6)
    3.0
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (len(TEMPERATURES),):
        raise InputError(
            f"losses must be {len(TEMPERATURES)} numbers, got shape {values.shape}"
        )
    best = int(values.argmin())
    if 0 < best < len(values) - 1:
        before, here, after = values[best - 1 : best + 2]
        curvature = float(before - 2.0 * here + after)
        if curvature > 0.0:
            step = 0.5 * float(before - after) / curvature
            return TEMPERATURES[best] * float(2.0 ** (step / STEPS_PER_OCTAVE))
    return TEMPERATURES[best]
