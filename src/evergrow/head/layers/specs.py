"""Layers as settings: what to build on the first task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergrow.core.validation import check_number
from evergrow.head.layers.base import Projection
from evergrow.head.layers.gaussian import FourierProjection
from evergrow.head.layers.guided import GuidedProjection
from evergrow.head.layers.identity import IdentityProjection
from evergrow.head.layers.linked import LinkedProjection
from evergrow.head.layers.scales import Scales
from evergrow.head.layers.search import GuidedConfig


@dataclass(frozen=True)
class FourierLayer:
    """Random Fourier units of a bandwidth that the spread of the first task sets, beside the features themselves.

    Parameters
    ----------
    n_units : int
        Units; 0 leaves the features alone.
    orthogonal : bool
        Orthogonal directions within blocks of units, instead of independent ones.
    direct_link : bool
        Put the features beside the units.
    """

    n_units: int = 3000
    orthogonal: bool = True
    direct_link: bool = True

    def build(
        self, Z: Tensor, Y: Tensor, *, seed: int = 0, alpha: float | None = None, verbose: bool = False
    ) -> Projection:
        """Draw the units on the first task's features."""
        if self.n_units == 0:
            return IdentityProjection(intercept=True).build(Z, Y)
        layer: Projection = FourierProjection(self.n_units, "spread", seed, orthogonal=self.orthogonal)
        return (LinkedProjection(layer) if self.direct_link else layer).build(Z, Y)

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {"kind": "fourier", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class GuidedLayer:
    """The paper's construction; parameters as of :class:`~evergrow.head.layers.GuidedConfig`.

    ``direct_link`` puts the features beside the units, which are then grown on what these leave unexplained.
    """

    n_units: int | None = None
    max_units: int = 20_000
    block_size: int = 50
    n_candidates: int = 10
    contraction: float = 0.99
    tol: float = 0.01
    scales: Scales = "paper"
    activation: str = "sigmoid"
    criterion: str = "exact"
    direct_link: bool = False

    def __post_init__(self) -> None:
        GuidedConfig(**self._values())
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=0, high=self.max_units, integer=True)

    def _values(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        del values["direct_link"]
        return {**values, "n_units": values["n_units"] or None}

    def build(
        self, Z: Tensor, Y: Tensor, *, seed: int = 0, alpha: float | None = None, verbose: bool = False
    ) -> Projection:
        """Grow the units on the first task's features and one-hot targets."""
        if self.n_units == 0:
            return IdentityProjection(intercept=True).build(Z, Y)
        auto = isinstance(self.scales, str) and self.scales == "auto"
        # With the paper's ridge a direct link alone fits a first task, and nothing is left to guide by.
        ridge = alpha or (1.0 if auto else 0.01)
        layer: Projection = GuidedProjection(seed, verbose, **{**self._values(), "alpha": ridge})
        return (LinkedProjection(layer) if self.direct_link else layer).build(Z, Y)

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {"kind": "guided", **dataclasses.asdict(self)}


Layer = FourierLayer | GuidedLayer
LAYERS = {"fourier": FourierLayer, "guided": GuidedLayer}


def layer_from_plain(values: Mapping[str, Any]) -> Layer:
    """Return the layer that ``to_plain`` described."""
    rest = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key != "kind"}
    layer: Layer = LAYERS[values["kind"]](**rest)
    return layer
