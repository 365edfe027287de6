"""Elementwise activations of random units, with what is known of their shape.

Another one is added under a name::

    ACTIVATIONS["softplus"] = Activation(torch.nn.functional.softplus)

With its derivatives, layers that use it can be folded; with the name of an ONNX operator, they can be exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError


@dataclass(frozen=True)
class Activation:
    """A function g of every pre-activation, and how far it is from its tangents.

    Parameters
    ----------
    function : callable
        g, from tensors to tensors of the same shape.
    derivatives : callable, optional
        From pre-activations to slope and curvature there. Without, nothing is known of tangents.
    second, third : float
        Largest absolute second and third derivative anywhere, rounded up.
    gap : callable, optional
        For a g with a kink, which no curvature bounds: from b and t >= 0 to the largest distance of
        ``g(b + s)`` from the tangent at b for ``|s| <= t``.
    operator : str
        Name of the ONNX operator that computes g, where there is one.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import ACTIVATIONS
    >>> tanh = ACTIVATIONS["tanh"]
    >>> float(tanh(torch.tensor(0.0))), float(tanh.slope(torch.tensor(0.0)))
    (0.0, 1.0)
    """

    function: Callable[[Tensor], Tensor]
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    second: float = math.inf
    third: float = math.inf
    gap: Callable[[Tensor, Tensor], Tensor] | None = None
    operator: str = ""

    def __call__(self, x: Tensor) -> Tensor:
        """Return g of every entry."""
        return self.function(x)

    @property
    def has_tangents(self) -> bool:
        """Whether slopes, and how far tangents are off, are known."""
        return self.derivatives is not None

    def slope(self, b: Tensor) -> Tensor:
        """Return g'(b)."""
        return self._derivatives(b)[0]

    def bending(self, b: Tensor, reach: Tensor) -> Tensor | None:
        """Return kappa with ``|g(b + t) - g(b) - g'(b) t| <= kappa t^2`` for ``|t| <= reach``; None at a kink."""
        if self.gap is not None:
            return None
        return (self._derivatives(b)[1].abs() / 2 + self.third * reach / 6).clamp_max(self.second / 2)

    def tangent_error(self, b: Tensor, reach: Tensor) -> Tensor:
        """Return how far g may be from its tangent at b, at most, for ``|t| <= reach``."""
        if self.gap is not None:
            return self.gap(b, reach)
        bending = self.bending(b, reach)
        return torch.zeros_like(b) if bending is None else bending * reach.square()

    def _derivatives(self, b: Tensor) -> tuple[Tensor, Tensor]:
        if self.derivatives is None:
            raise ParameterError("activation must be one whose derivatives are known, got one without")
        return self.derivatives(b)


def _sigmoid(b: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.sigmoid(b)
    slope = value * (1 - value)
    return slope, slope * (1 - 2 * value)


def _tanh(b: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.tanh(b)
    slope = 1 - value.square()
    return slope, -2 * value * slope


def _relu(b: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * (1.0 + torch.sign(b)), torch.zeros_like(b)  # one half at the kink


def _relu_gap(b: Tensor, reach: Tensor) -> Tensor:
    # A unit whose kink lies within reach is off by what lies beyond the kink; one that bends at zero, by half.
    return torch.where(b == 0.0, reach / 2, (reach - b.abs()).clamp_min(0.0))


def _gelu(b: Tensor) -> tuple[Tensor, Tensor]:
    density = torch.exp(-b.square() / 2) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(b) + b * density, density * (2 - b.square())


def _cos(b: Tensor) -> tuple[Tensor, Tensor]:
    return -torch.sin(b), -torch.cos(b)


def _identity(b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones_like(b), torch.zeros_like(b)


ACTIVATIONS = {
    "sigmoid": Activation(torch.sigmoid, _sigmoid, 0.09623, 0.125, operator="Sigmoid"),
    "tanh": Activation(torch.tanh, _tanh, 0.76981, 2.0, operator="Tanh"),
    "relu": Activation(torch.relu, _relu, gap=_relu_gap, operator="Relu"),
    "gelu": Activation(torch.nn.functional.gelu, _gelu, 0.79789, 0.77878),
    "cos": Activation(torch.cos, _cos, 1.0, 1.0),
    "identity": Activation(lambda x: x, _identity, 0.0, 0.0),
}
"""Every activation by name."""
