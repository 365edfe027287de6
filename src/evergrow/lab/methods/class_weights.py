"""Weights of a linear classifier, one row per class, of which a task trains those of its own classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize


@dataclass(frozen=True, eq=False)
class ClassWeights:
    """A linear classifier with one row of weights per class; never changed in place.

    Parameters
    ----------
    weight : Tensor of shape (C, d)
        The rows.
    bias : Tensor of shape (C,)
        Their biases; zero and not trained where a method has none.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.class_weights import ClassWeights
    >>> weights = ClassWeights.empty(3).extended(2, torch.Generator().manual_seed(0))
    >>> later = weights.extended(5, torch.Generator().manual_seed(1))
    >>> bool((later.weight[:2] == weights.weight).all())
    True
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def empty(cls, width: int, device: torch.device | str = "cpu") -> ClassWeights:
        """Return a classifier of no classes."""
        return cls(torch.zeros(0, width, device=device), torch.zeros(0, device=device))

    def extended(self, classes: int, source: torch.Generator) -> ClassWeights:
        """Return the classifier of more classes; new rows and biases are drawn from U(-b, b), b = 1/sqrt(d).

        Parameters
        ----------
        classes : int
            How many there are from now on; the new ones come last.
        source : torch.Generator
            Where the draws come from.
        """
        known, width = self.weight.shape
        drawn = (2 * torch.rand(classes - known, width + 1, generator=source) - 1) / width**0.5
        drawn = drawn.to(self.weight)
        return ClassWeights(torch.cat([self.weight, drawn[:, :-1]]), torch.cat([self.bias, drawn[:, -1]]))

    def of_classes(self, codes: Tensor) -> ClassWeights:
        """Return the classifier of some classes only, given by their numbers."""
        codes = codes.to(self.weight.device)
        return ClassWeights(self.weight[codes], self.bias[codes])

    def with_classes(self, codes: Tensor, part: ClassWeights) -> ClassWeights:
        """Return the classifier with the weights of some classes replaced."""
        codes, weight, bias = codes.to(self.weight.device), self.weight.clone(), self.bias.clone()
        weight[codes], bias[codes] = part.weight.to(weight), part.bias.to(bias)
        return ClassWeights(weight, bias)

    def to(self, device: torch.device | str) -> ClassWeights:
        """Return the classifier on another device."""
        return ClassWeights(self.weight.to(device), self.bias.to(device))


class TrainableWeights(nn.Module):
    """Class weights in training: a linear map with bias, or the product of rows of length 1 with standard features.

    Standardising is layer normalisation without a learned scale and shift. Logits are computed in float32 whatever the
    features came in.

    Parameters
    ----------
    weights : ClassWeights
        Where to start.
    normalized : bool
        Which of the two; the second has no bias.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.class_weights import ClassWeights, TrainableWeights
    >>> head = TrainableWeights(ClassWeights(torch.tensor([[3.0, 0.0]]), torch.zeros(1)), normalized=True)
    >>> round(head(torch.tensor([[5.0, 1.0]])).item(), 3)
    1.0
    """

    def __init__(self, weights: ClassWeights, *, normalized: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weights.weight.clone())
        self.bias = None if normalized else nn.Parameter(weights.bias.clone())
        self.normalized = normalized

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) of features (n, d)."""
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.weight.dtype)
            if self.normalized:
                return linear(layer_norm(features, features.shape[-1:]), normalize(self.weight, dim=1))
            return linear(features, self.weight, self.bias)

    def learned(self) -> ClassWeights:
        """Return a copy of the weights."""
        weight = self.weight.detach().clone()
        return ClassWeights(weight, weight.new_zeros(len(weight)) if self.bias is None else self.bias.detach().clone())
