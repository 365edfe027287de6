"""Probabilities from scores: the temperature at which rows that were not learned are likeliest.

``softmax(score / T)`` has one number to choose. Its log loss at a fixed grid of temperatures is a mean over rows, so it
can be pooled over the batches of a stream and over sites without keeping a score.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import InputError

STEPS_PER_OCTAVE = 4

TEMPERATURES: tuple[float, ...] = tuple(float(2.0 ** (step / STEPS_PER_OCTAVE)) for step in range(-8, 49))
"""The grid, from 1/4 to 4,096."""

UNCALIBRATED = 0.06
"""Temperature per energy of a true class mean, where no row was ever scored as if not learned. At the ends of streams
of image and text features the calibrated temperature is 0.03 to 0.12 of that energy."""

GUESS_LOSS = 0.05
"""Loss, in nats a batch, of a temperature that is off the guess by a factor of e. It decides only where the rows do
not: on rows that are all recognised without doubt the log loss has no minimum."""

_BLOCK = 2**22


def guessed_temperature(spread: float) -> float:
    """Return a temperature for scores of class means with this energy around their centre."""
    return 1.0 + UNCALIBRATED * spread


def guess_losses(guess: float) -> NDArray[np.float64]:
    """Return the loss of a batch at every temperature of the grid for being off a guess."""
    return np.asarray(GUESS_LOSS * np.log(np.array(TEMPERATURES) / guess) ** 2)


def mean_log_losses(scores: Tensor, codes: Tensor) -> NDArray[np.float64]:
    """Return the mean log loss of rows at every temperature of the grid.

    Parameters
    ----------
    scores : Tensor of shape (n, C)
        Class scores of rows that the scoring model had not learned.
    codes : Tensor of shape (n,)
        Their classes.

    Returns
    -------
    ndarray of shape (57,)

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.temperatures import mean_log_losses
    >>> mean_log_losses(torch.zeros(3, 2), torch.tensor([0, 1, 1])).round(4)[:2].tolist()
    [0.6931, 0.6931]
    """
    total = np.zeros(len(TEMPERATURES))
    block = max(_BLOCK // max(scores.shape[1], 1), 1)
    for start in range(0, len(codes), block):
        part = scores[start : start + block].to(torch.float64)
        right = codes[start : start + block]
        for place, warmth in enumerate(TEMPERATURES):
            total[place] += float(torch.nn.functional.cross_entropy(part / warmth, right, reduction="sum"))
    return np.asarray(total / max(len(codes), 1))


def best_temperature(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the temperature with the smallest loss, between the points of the grid by a parabola.

    Parameters
    ----------
    losses : sequence of 57 floats
        Loss at every temperature of the grid.

    Examples
    --------
    >>> from evergrow.head.temperatures import TEMPERATURES, best_temperature
    >>> import math
    >>> round(best_temperature([math.log(T / 3.0) ** 2 for T in TEMPERATURES]), 6)
    3.0
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (len(TEMPERATURES),):
        raise InputError(f"losses must be {len(TEMPERATURES)} numbers, got shape {values.shape}")
    place = int(values.argmin())
    if 0 < place < len(values) - 1:
        before, here, after = values[place - 1 : place + 2]
        curvature = float(before - 2.0 * here + after)
        if curvature > 0.0:
            step = 0.5 * float(before - after) / curvature
            return TEMPERATURES[place] * float(2.0 ** (step / STEPS_PER_OCTAVE))
    return TEMPERATURES[place]
