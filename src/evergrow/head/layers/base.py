"""What a projection is: a frozen map from d features to L units, computed in bounded memory."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import NotFittedError, ParameterError
from evergrow.core.families import Family
from evergrow.core.fields import Fields
from evergrow.core.seeding import SEEDS
from evergrow.core.validation import check_matrix
from evergrow.head.layers.activations import ACTIVATIONS
from evergrow.head.layers.layers import ReadoutParts, Units
from evergrow.head.layers.settings import LayerSettings

CHUNK_BYTES = 256 * 2**20
"""The largest matrix of activations that is ever held at once, unless a caller states another bound."""

PROJECTIONS: Family[Projection] = Family("projection", "projection")
"""Every kind of layer by name; filled by ``@PROJECTIONS.register(name)``."""


def nothing_new(old: Archive) -> Archive:
    """Migrate from version 1, which had the same fields."""
    return dataclasses.replace(old, version=2)


class Projection(ABC):
    """A random feature map ``h = g(z W + b)`` that is built once and then frozen.

    Attributes
    ----------
    weights : Tensor of shape (d, L) or None
        Input weights; float32, since that is how they are drawn, and exact in any wider type.
    bias : Tensor of shape (L,) or None
        Biases, float64 where they depend on the data.
    """

    selectable: ClassVar[bool] = True
    """Whether heads may be told to use this kind by its name."""

    def __init__(self, activation: str = "sigmoid", random_state: int = 0) -> None:
        ACTIVATIONS[activation]  # raises for unknown names
        self.activation = activation
        self.random_state = int(random_state)
        self.weights: Tensor | None = None
        self.bias: Tensor | None = None

    @classmethod
    def from_settings(cls, settings: LayerSettings) -> Self:
        """Return a layer, not yet built, as the settings of a head want it.

        By default ``cls(n_units=..., activation=..., random_state=...)``; kinds with other arguments override it.
        """
        make: Callable[..., Self] = cls
        return make(n_units=settings.width, activation=settings.activation, random_state=settings.seed)

    @abstractmethod
    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Draw the units, looking at features Z (n, d) and one-hot targets Y (n, C) where the kind does."""

    @property
    def kind(self) -> str:
        """Name of the kind of layer."""
        return PROJECTIONS.name_of(type(self))

    @property
    def is_built(self) -> bool:
        """Whether the units have been drawn."""
        return self.weights is not None

    def _layer(self) -> tuple[Tensor, Tensor]:
        if self.weights is None or self.bias is None:
            raise NotFittedError(f"this {type(self).__name__} must be built before it can transform")
        return self.weights, self.bias

    @property
    def device(self) -> torch.device:
        """Where the units are."""
        return self._layer()[0].device

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

    def link_columns(self) -> slice | None:
        """Return which columns of the transformed rows are the features themselves, up to centre and scale."""
        return None

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

    def same_map(self, other: Projection) -> bool:
        """Whether both maps are the same function, bit for bit."""
        if type(self) is not type(other) or self.activation != other.activation:
            return False
        mine, theirs = list(self.to_archive().walk()), list(other.to_archive().walk())
        return len(mine) == len(theirs) and all(map(_same_tensors, mine, theirs))

    @property
    def nbytes(self) -> int:
        """Bytes of the units, and of what else the map consists of."""
        return sum(tensor.nbytes for part in self.to_archive().walk() for tensor in part.tensors.values())

    # -- files ----------------------------------------------------------------------------------------------

    def to_archive(self) -> Archive:
        """Return what a file holds of the map; kinds that have more than units override it."""
        weights, bias = self._layer()
        meta = {"activation": self.activation, "random_state": self.random_state}
        return PROJECTIONS.kind_of(type(self)).archive(meta, {"weights": weights, "bias": bias})

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the frozen map that :meth:`to_archive` gave, or raise :class:`FileFormatError`."""
        activation = fields.text("activation", choices=ACTIVATIONS.names())
        projection = cls.__new__(cls)
        Projection.__init__(projection, activation, fields.integer("random_state", **SEEDS))
        weights = fields.tensor("weights", (None, None), dtype=None)
        bias = fields.tensor("bias", (weights.shape[1],), dtype=None)
        for tensor in (weights, bias):
            fields.require(tensor.dtype in (torch.float32, torch.float64), "units are not floating-point numbers")
        fields.require(weights.shape[0] > 0, "units have no inputs")
        projection.weights, projection.bias = weights.to(device), bias.to(device)
        return projection


def selectable_projections() -> list[str]:
    """Return the kinds of layer that heads may be told to use by name."""
    return [name for name in PROJECTIONS.names() if PROJECTIONS[name].selectable]


def read_projection(archive: Archive, device: torch.device, name: str = "the layer") -> Projection:
    """Return the layer of any kind that an archive holds, or raise :class:`FileFormatError`."""
    kind = PROJECTIONS.class_of(archive, name)
    return kind.from_archive(archive.open(PROJECTIONS.kind_of(kind).name, name=name), device)


def _same_tensors(mine: Archive, theirs: Archive) -> bool:
    return mine.tensors.keys() == theirs.tensors.keys() and all(
        tensor.shape == theirs.tensors[name].shape and bool((tensor == theirs.tensors[name].to(tensor.device)).all())
        for name, tensor in mine.tensors.items()
    )


def chunk_rows(columns: int, itemsize: int, chunk_bytes: int) -> int:
    """Return how many rows of ``columns`` numbers fit in ``chunk_bytes`` (at least one)."""
    if chunk_bytes < 1:
        raise ParameterError(f"chunk_bytes must be >= 1, got {chunk_bytes}")
    return max(1, chunk_bytes // max(1, columns * itemsize))
