"""A frozen layer taken apart: random units, and what is linear beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.layers.activations import ACTIVATIONS


@dataclass(frozen=True)
class Units:
    """A layer of random units ``gain * g(z W + b)``.

    Parameters
    ----------
    weights : Tensor of shape (d, L)
        Input weights, in the type they were drawn in.
    bias : Tensor of shape (L,)
        Biases.
    activation : str
        Name of g.
    gain : float
        What all activations are multiplied by.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.layers import Units
    >>> Units(torch.ones(2, 1), torch.zeros(1), "relu", gain=2.0).apply(torch.tensor([[1.0, 2.0]])).tolist()
    [[6.0]]
    """

    weights: Tensor
    bias: Tensor
    activation: str
    gain: float = 1.0

    def apply(self, Z: Tensor) -> Tensor:
        """Return activations (n, L) in the type of Z."""
        pre = torch.addmm(self.bias.to(Z), Z, self.weights.to(Z))
        return ACTIVATIONS[self.activation](pre) * self.gain


@dataclass(frozen=True)
class ReadoutParts:
    """Class weights on a layer's outputs, sorted by what they weigh: ``h(z) @ weights = units A + z B + c``.

    Parameters
    ----------
    units : Units or None
        The random units.
    readout : Tensor of shape (L, C) or None
        A, their class weights.
    linear : Tensor of shape (d, C) or None
        B, class weights of the features themselves.
    constant : Tensor of shape (C,)
        c.
    """

    units: Units | None
    readout: Tensor | None
    linear: Tensor | None
    constant: Tensor
