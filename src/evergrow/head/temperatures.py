"""The grid of temperatures that probabilities are calibrated on, and the best of them; NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError

STEPS_PER_OCTAVE = 4

TEMPERATURES: tuple[float, ...] = tuple(float(2.0 ** (step / STEPS_PER_OCTAVE)) for step in range(-8, 49))
"""The grid, from 1/4 to 4,096."""

GUESS_LOSS = 0.05
"""Loss, in nats a batch, of a temperature that is off the guess by a factor of e. It decides only where the rows do
not: on rows that are all recognised without doubt the log loss has no minimum."""


def guess_losses(guess: float) -> NDArray[np.float64]:
    """Return the loss of a batch at every temperature of the grid for being off a guess."""
    return np.asarray(GUESS_LOSS * np.log(np.array(TEMPERATURES) / guess) ** 2)


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
