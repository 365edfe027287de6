"""From a classifier's settings to the projection it will grow."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from evergrow.core.errors import ParameterError
from evergrow.projections import (
    FourierProjection,
    GaussianProjection,
    GuidedProjection,
    LinkedProjection,
    Projection,
    SCSMProjection,
)
from evergrow.projections.scales import Scales
from evergrow.projections.scsm import SCN_SCALES

KINDS = ("mgsm", "scsm", "gaussian", "fourier")
FIXED_WIDTH = 10_000
"""Width of layers that do not find their own, where none is asked for."""


@dataclass(frozen=True)
class LayerSpec:
    """What a layer is to be.

    Parameters
    ----------
    projection : str or Projection
        Kind of units, or a layer to take as it is.
    alpha : float
        Ridge of a guided construction.
    n_units : int or None
        Exact width.
    max_units : int
        Cap on the width.
    scales : "paper", "auto" or sequence of float
        Scales of the weights.
    activation : str
        Activation of the units.
    direct_link : bool
        Put the features beside the units.
    guidance : dict
        Further settings of the guided construction.
    """

    projection: str | Projection
    alpha: float
    n_units: int | None
    max_units: int
    scales: Scales
    activation: str
    direct_link: bool
    guidance: dict[str, Any]

    def create(self, seed: int, verbose: bool) -> Projection:
        """Return the layer, not yet built unless one was given that is."""
        layer = self._units(seed, verbose)
        if self.direct_link and not isinstance(layer, LinkedProjection):
            return LinkedProjection(layer)
        return layer

    def _units(self, seed: int, verbose: bool) -> Projection:
        if isinstance(self.projection, Projection):
            return copy.deepcopy(self.projection)
        width = min(self.n_units or FIXED_WIDTH, self.max_units)
        auto = isinstance(self.scales, str) and self.scales == "auto"
        if self.projection == "mgsm":
            return GuidedProjection(
                random_state=seed,
                verbose=verbose,
                scales=self.scales,
                activation=self.activation,
                alpha=self.alpha,
                max_units=self.max_units,
                n_units=None if self.n_units is None else width,
                **self.guidance,
            )
        if self.projection == "scsm":
            scales = SCN_SCALES if isinstance(self.scales, str) else tuple(self.scales)
            return SCSMProjection(
                n_units=width,
                n_candidates=self.guidance["n_candidates"],
                tol=0.0,
                alpha=self.alpha,
                activation=self.activation,
                random_state=seed,
                verbose=verbose,
                scales=scales,
            )
        if self.projection == "gaussian":
            # The paper's random initialisation has unit variance; its grid of scales belongs to MGSM.
            drawn: float | Scales = 1.0 if self.scales == "paper" else self.scales
            return GaussianProjection(width, self.activation, drawn, random_state=seed)
        if self.projection == "fourier":
            if not isinstance(self.scales, str) or not (auto or self.scales == "paper"):
                raise ParameterError("scales must be 'paper' or 'auto' for projection='fourier'")
            return FourierProjection(width, random_state=seed)
        raise ParameterError(f"projection must be one of {KINDS} or a Projection, got {self.projection!r}")
