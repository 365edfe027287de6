"""Layers as settings: what to build on the first task."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergrow.head.layers.base import PROJECTIONS, Projection
from evergrow.head.layers.gaussian import FourierProjection
from evergrow.head.layers.identity import IdentityProjection
from evergrow.head.layers.linked import LinkedProjection
from evergrow.head.layers.scales import Scales, check_scales
from evergrow.head.layers.settings import LayerSettings


@dataclass(frozen=True)
class FourierLayer:
    n_units: int = 3000
    orthogonal: bool = True
    direct_link: bool = True

    def build(
        self, Z: Tensor, Y: Tensor, *, seed: int = 0, alpha: float | None = None, verbose: bool = False
    ) -> Projection:
        if self.n_units == 0:
            return IdentityProjection(intercept=True).build(Z, Y)
        layer: Projection = FourierProjection(self.n_units, "spread", seed, orthogonal=self.orthogonal)
        return (LinkedProjection(layer) if self.direct_link else layer).build(Z, Y)

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "fourier", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class GuidedLayer:
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
        check_scales(self.scales)

    @property
    def construction_alpha(self) -> float:
        return 1.0 if isinstance(self.scales, str) and self.scales == "auto" else 0.01

    def build(
        self, Z: Tensor, Y: Tensor, *, seed: int = 0, alpha: float | None = None, verbose: bool = False
    ) -> Projection:
        if self.n_units == 0:
            return IdentityProjection(intercept=True).build(Z, Y)
        guidance = {
            name: getattr(self, name) for name in ("block_size", "n_candidates", "contraction", "tol", "criterion")
        }
        wanted = LayerSettings(
            self.n_units,
            self.max_units,
            self.scales,
            self.activation,
            alpha or self.construction_alpha,
            seed,
            verbose,
            guidance,
        )
        layer = PROJECTIONS["mgsm"].from_settings(wanted)
        return (LinkedProjection(layer) if self.direct_link else layer).build(Z, Y)

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "guided", **dataclasses.asdict(self)}


Layer = FourierLayer | GuidedLayer
LAYERS = {"fourier": FourierLayer, "guided": GuidedLayer}


def layer_from_plain(values: dict[str, Any]) -> Layer:
    rest = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key != "kind"}
    layer: Layer = LAYERS[values["kind"]](**rest)
    return layer
