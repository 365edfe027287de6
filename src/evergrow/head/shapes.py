"""Second moments per class in a few fixed directions: what the shapes of classes are known by, and its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from evergrow.core.record import Spec, record, require
from evergrow.core.seeding import generator
from evergrow.head.linalg import ClassShapes, symmetric_eigh

_WIDE = 1536
"""Features beyond which only so many directions are worked out as are wanted, and a few more."""

_MORE, _ROUNDS = 64, 5


@record("class-shapes")
@dataclass(frozen=True, eq=False)
class ShapeModel:
    """Fixed directions and the moments of every class in them.

    Parameters
    ----------
    centre : Tensor of shape (d,)
        Mean of the first task's normalised features.
    basis : Tensor of shape (d, k)
        The first k principal directions of the first task.
    moments : ClassShapes
        Sums over samples.
    """

    centre: Annotated[Tensor, Spec(("d",))]
    basis: Annotated[Tensor, Spec(("d", "k"))]
    moments: ClassShapes

    @classmethod
    def first(cls, Z: Tensor, directions: int) -> ShapeModel:
        """Return the directions of the first task's rows Z (n, d), with nothing learned in them yet."""
        centre = Z.mean(dim=0)
        centred = Z - centre
        values, vectors = _principal(centred, directions)
        rank = int((values > 1e-10 * float(values.max().clamp_min(1e-300))).sum())
        kept = max(min(directions, rank), 1)
        basis = vectors[:, -kept:].flip(1)
        # A direction is as good as its opposite: the largest entry decides, so that every machine takes the same.
        largest = basis.abs().argmax(dim=0)
        basis = basis * basis.gather(0, largest[None, :]).sign()
        return cls(centre, basis.contiguous(), ClassShapes.empty(kept, Z.device))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.centre.nbytes + self.basis.nbytes + self.moments.nbytes

    def rows(self, Z: Tensor) -> Tensor:
        """Return normalised features Z (n, d) in these directions, (n, k)."""
        return (Z - self.centre) @ self.basis

    def learn(self, Z: Tensor, codes: Tensor, columns: Sequence[int], weights: Tensor | None = None) -> ShapeModel:
        """Return the model with rows learned; ``columns`` places the old classes."""
        return self._with(self.moments.select(columns).add(self.rows(Z), codes, 1.0, weights))

    def unlearn(self, Z: Tensor, codes: Tensor, counts: Tensor, weights: Tensor | None = None) -> ShapeModel:
        """Return the model with rows taken out of classes that have ``counts`` rows."""
        return self._with(self.moments.remove(self.rows(Z), codes, counts, weights))

    def select(self, columns: Sequence[int]) -> ShapeModel:
        """Return the model with classes reordered, left out, or new where -1."""
        return self._with(self.moments.select(columns))

    def group(self, groups: Sequence[Sequence[int]]) -> ShapeModel:
        """Return the model whose classes are each several old ones together."""
        return self._with(self.moments.group(groups))

    def merge(self, other: ShapeModel, sign: float = 1.0) -> ShapeModel:
        """Return the sum of both, or their difference; directions and classes must be the same."""
        return self._with(self.moments.merge(other.moments, sign))

    def same_directions(self, other: ShapeModel) -> bool:
        """Return whether both are known in the same directions, bit for bit."""
        return torch.equal(self.basis.cpu(), other.basis.cpu()) and torch.equal(self.centre.cpu(), other.centre.cpu())

    def _with(self, moments: ClassShapes) -> ShapeModel:
        return dataclasses.replace(self, moments=moments)

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless directions and moments fit each other."""
        width, directions = self.basis.shape
        require(0 < directions <= width, "it has no directions, or more than features")
        gap = self.basis.T @ self.basis - torch.eye(directions, dtype=self.basis.dtype, device=self.basis.device)
        require(float(gap.abs().max()) < 1e-6, "its directions are not orthogonal")
        packed = (self.moments.sums.shape[1], self.moments.squares.shape[1])
        require(packed == (directions, directions * (directions + 1) // 2), "its moments are of other directions")


def _principal(centred: Tensor, directions: int) -> tuple[Tensor, Tensor]:
    """Return energies, rising, and directions (d, k) of centred rows: all, or the first where there are many."""
    rows, width = centred.shape
    if 2 * rows <= width:  # all directions lie in the span of the rows: a small decomposition within it is enough
        span, triangle = torch.linalg.qr(centred.T)
        energies, turned = symmetric_eigh(triangle @ triangle.T)
        return energies, span @ turned
    wanted = directions + _MORE
    if width <= _WIDE or wanted >= min(centred.shape):
        return symmetric_eigh(centred.T @ centred)
    # Subspace iteration: the few directions that are wanted cost a hundredth of a decomposition of that order.
    source = generator(0, "principal directions", width)
    span = torch.randn(width, wanted, generator=source, dtype=torch.float64).to(centred)
    for _ in range(_ROUNDS):
        span = torch.linalg.qr(centred.T @ (centred @ span))[0]
    seen = centred @ span
    energies, turned = symmetric_eigh(seen.T @ seen)
    return energies, span @ turned
