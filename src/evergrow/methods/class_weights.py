"""A linear classifier that grows by rows, of which a task trains only those of its own classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize


@dataclass(frozen=True, eq=False)
class ClassRows:
    """One row of weights per class; never changed in place.

    Parameters
    ----------
    weight : Tensor of shape (C, d)
        The rows.
    bias : Tensor of shape (C,)
        Their biases; zero and not trained where a method has none.

    Examples
    --------
    >>> import torch
    >>> from evergrow.methods.class_rows import ClassRows
    >>> rows = ClassRows.empty(3).extended(2, torch.Generator().manual_seed(0))
    >>> later = rows.extended(5, torch.Generator().manual_seed(1))
    >>> bool((later.weight[:2] == rows.weight).all())
    True
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def empty(cls, width: int, device: torch.device | str = "cpu") -> ClassRows:
        """Return a classifier of no classes."""
        return cls(torch.zeros(0, width, device=device), torch.zeros(0, device=device))

    def extended(self, classes: int, source: torch.Generator) -> ClassRows:
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
        return ClassRows(torch.cat([self.weight, drawn[:, :-1]]), torch.cat([self.bias, drawn[:, -1]]))

    def of(self, rows: Tensor) -> ClassRows:
        """Return the classifier of some classes only."""
        rows = rows.to(self.weight.device)
        return ClassRows(self.weight[rows], self.bias[rows])

    def replaced(self, rows: Tensor, part: ClassRows) -> ClassRows:
        """Return the classifier with some rows replaced."""
        rows, weight, bias = rows.to(self.weight.device), self.weight.clone(), self.bias.clone()
        weight[rows], bias[rows] = part.weight.to(weight), part.bias.to(bias)
        return ClassRows(weight, bias)

    def to(self, device: torch.device | str) -> ClassRows:
        """Return the classifier on another device."""
        return ClassRows(self.weight.to(device), self.bias.to(device))


class RowHead(nn.Module):
    """Trainable rows: a linear map with bias, or the product of rows of length 1 with standardised features.

    Standardising is layer normalisation without a learned scale and shift. Logits are computed in float32 whatever the
    features came in.

    Parameters
    ----------
    rows : ClassRows
        Where to start.
    normalized : bool
        Which of the two; the second has no bias.

    Examples
    --------
    >>> import torch
    >>> from evergrow.methods.class_rows import ClassRows, RowHead
    >>> head = RowHead(ClassRows(torch.tensor([[3.0, 0.0]]), torch.zeros(1)), normalized=True)
    >>> round(head(torch.tensor([[5.0, 1.0]])).item(), 3)
    1.0
    """

    def __init__(self, rows: ClassRows, *, normalized: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows.weight.clone())
        self.bias = None if normalized else nn.Parameter(rows.bias.clone())
        self.normalized = normalized

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) of features (n, d)."""
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.weight.dtype)
            if self.normalized:
                return linear(layer_norm(features, features.shape[-1:]), normalize(self.weight, dim=1))
            return linear(features, self.weight, self.bias)

    def rows(self) -> ClassRows:
        """Return what was learned."""
        weight = self.weight.detach().clone()
        return ClassRows(weight, weight.new_zeros(len(weight)) if self.bias is None else self.bias.detach().clone())
