"""What a layer is to be, in the settings that all kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evergrow.head.layers.scales import Scales

FIXED_WIDTH = 10_000
"""Width of layers that do not find their own, where none is asked for."""


@dataclass(frozen=True)
class LayerSettings:
    """What a layer is to be; a kind of layer takes what concerns it.

    Parameters
    ----------
    n_units : int or None
        Exact width.
    max_units : int
        Cap on the width.
    scales : "paper", "auto" or sequence of float
        Scales of the weights.
    activation : str
        Activation of the units.
    alpha : float
        Ridge of a construction that has one.
    seed : int
        Seed of the units.
    verbose : bool
        Show progress.
    guidance : mapping
        Further settings of a guided construction.
    """

    n_units: int | None
    max_units: int
    scales: Scales
    activation: str
    alpha: float
    seed: int
    verbose: bool = False
    guidance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The width asked for, or the usual one, within the cap."""
        return min(self.n_units or FIXED_WIDTH, self.max_units)
