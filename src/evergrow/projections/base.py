"""What a projection is: a frozen map from d features to L units, computed in bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import NotFittedError, ParameterError
from evergrow.core.registry import Registry
from evergrow.core.validation import check_matrix
from evergrow.projections.activations import ACTIVATIONS
from evergrow.projections.layers import ReadoutParts, Units

CHUNK_BYTES = 256 * 2**20
"""The largest matrix of activations that is ever held at once, unless a caller states another bound."""

PROJECTIONS: Registry[type[Projection]] = Registry("projection")


class Projection(ABC):
    """A random feature map ``h = g(z W + b)`` that is built once and then frozen.

    Attributes
    ----------
    weights : Tensor of shape (d, L) or None
        Input weights; float32, since that is how they are drawn, and exact in any wider type.
    bias : Tensor of shape (L,) or None
        Biases, float64 where they depend on the data.
    """

    kind: ClassVar[str]

    def __init__(self, activation: str = "sigmoid", random_state: int = 0) -> None:
        ACTIVATIONS[activation]  # raises for unknown names
        self.activation = activation
        self.random_state = int(random_state)
        self.weights: Tensor | None = None
        self.bias: Tensor | None = None

    @abstractmethod
    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Draw the units, looking at features Z (n, d) and one-hot targets Y (n, C) where the kind does."""

    @property
    def is_built(self) -> bool:
        """Whether the units have been drawn."""
        return self.weights is not None

    def _layer(self) -> tuple[Tensor, Tensor]:
        if self.weights is None or self.bias is None:
            raise NotFittedError(f"this {type(self).__name__} must be built before it can transform")
        return self.weights, self.bias

    @property
    def n_features_in(self) -> int:
        """Width d of the input."""
        return int(self._layer()[0].shape[0])

    @property
    def n_units(self) -> int:
        """Width L of the output."""
        return int(self._layer()[0].shape[1])

    @property
    def n_outputs(self) -> int:
        """Width of the transformed rows."""
        return self.n_units

    def transform(self, Z: Tensor) -> Tensor:
        """Return activations (n, L) in the floating type of ``Z``."""
        weights, bias = self._layer()
        check_matrix("Z", Z, columns=weights.shape[0])
        pre = torch.addmm(bias.to(Z), Z, weights.to(Z))
        return ACTIVATIONS[self.activation](pre)

    def iter_transform(self, Z: Tensor, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, activations) so that no yielded matrix exceeds ``chunk_bytes``."""
        step = chunk_rows(self.n_outputs, Z.element_size(), chunk_bytes)
        for start in range(0, Z.shape[0], step):
            rows = slice(start, min(start + step, Z.shape[0]))
            yield rows, self.transform(Z[rows])

    @property
    def gain(self) -> float:
        """What all activations are multiplied by."""
        return 1.0

    def units(self) -> Units:
        """Return the random units as matrices, on the CPU."""
        weights, bias = self._layer()
        return Units(weights.cpu(), bias.cpu(), self.activation, self.gain)

    def readout_parts(self, weights: Tensor) -> ReadoutParts:
        """Sort class weights (n_outputs, C), on the CPU, by what they weigh: random units, features, a constant."""
        return ReadoutParts(self.units(), weights, None, weights.new_zeros(weights.shape[1]))

    def to(self, device: torch.device) -> Self:
        """Move the units to a device."""
        weights, bias = self._layer()
        self.weights, self.bias = weights.to(device), bias.to(device)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the map, for saving."""
        weights, bias = self._layer()
        return {"weights": weights, "bias": bias}

    def settings(self) -> dict[str, Any]:
        """Return the JSON-serialisable rest, for saving."""
        return {"activation": self.activation, "random_state": self.random_state}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        """Rebuild a frozen map from :meth:`tensors` and :meth:`settings`."""
        projection = cls.__new__(cls)
        Projection.__init__(projection, settings["activation"], settings["random_state"])
        projection.weights, projection.bias = tensors["weights"], tensors["bias"]
        return projection

    def same_map(self, other: Projection) -> bool:
        """Whether both maps are the same function, bit for bit."""
        if type(self) is not type(other) or self.activation != other.activation:
            return False
        mine, theirs = self.tensors(), other.tensors()
        return mine.keys() == theirs.keys() and all(
            mine[name].shape == theirs[name].shape and bool((mine[name] == theirs[name].to(mine[name].device)).all())
            for name in mine
        )


def chunk_rows(columns: int, itemsize: int, chunk_bytes: int) -> int:
    """Return how many rows of ``columns`` numbers fit in ``chunk_bytes`` (at least one)."""
    if chunk_bytes < 1:
        raise ParameterError(f"chunk_bytes must be >= 1, got {chunk_bytes}")
    return max(1, chunk_bytes // max(1, columns * itemsize))
