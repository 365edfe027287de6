"""What a layer is: parameters from which a frozen map is built on the first task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.record import to_values
from evergrow.core.registry import Registry
from evergrow.core.validation import check_matrix, check_number, from_mapping
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
        check_matrix("Z", Z)
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
    >>> from evergrow.head.layers import FourierLayer, layer_from_plain
    >>> layer_from_plain({"kind": "fourier", "n_units": 100}) == FourierLayer(n_units=100)
    True
    """
    if "kind" not in values:
        raise ParameterError(f"layer must state its kind, one of {', '.join(LAYERS.names())}")
    rest = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key != "kind"}
    return from_mapping(LAYERS[values["kind"]], rest, "parameter of the layer")
