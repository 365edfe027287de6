"""Random layers with the weights of an untrained linear layer, as analytic class-incremental learning has them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.seeding import generator
from evergrow.core.validation import check_matrix, check_number
from evergrow.head.layers.base import PROJECTIONS, Projection, nothing_new

_BLOCK = 256  # units per draw: a wider layer begins with the units of a narrower one


@PROJECTIONS.register("uniform", version=2, migrations={1: nothing_new})
class UniformProjection(Projection):
    """Units ``h = g(z W)`` with Kaiming-uniform weights ``U(-1/sqrt(d), 1/sqrt(d))`` and no bias.

    Parameters
    ----------
    n_units : int
        Width L.
    activation : str
        Activation of the units.
    random_state : int
        Seed of the units.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers.uniform import UniformProjection
    >>> Z = torch.ones(2, 4)
    >>> layer = UniformProjection(n_units=300).build(Z, torch.eye(2))
    >>> bool(layer.weights.abs().max() <= 0.5)
    True
    """

    def __init__(self, n_units: int = 8192, activation: str = "relu", random_state: int = 0) -> None:
        super().__init__(activation, random_state)
        check_number("n_units", n_units, low=1, integer=True)
        self.requested = int(n_units)

    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Draw the units; nothing but the width of Z is looked at."""
        check_matrix("Z", Z)
        width = Z.shape[1]
        pieces = [
            torch.rand(width, _BLOCK, generator=generator(self.random_state, self.kind, index))
            for index in range(math.ceil(self.requested / _BLOCK))
        ]
        drawn = torch.cat(pieces, dim=1)[:, : self.requested]
        self.weights = ((2.0 * drawn - 1.0) / math.sqrt(width)).contiguous().to(Z.device)
        self.bias = torch.zeros(self.requested, device=Z.device)
        return self
