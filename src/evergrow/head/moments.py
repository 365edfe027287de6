"""Second moments per class, so that a class can be taken out as if it had never been seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import UnlearnError
from evergrow.core.fields import Fields
from evergrow.head.linalg import LARGEST, symmetric_eigh

MOMENTS = register_kind("class-moments")


@dataclass(frozen=True)
class ClassMoments:
    """A factor ``F_c`` with ``F_c^T F_c = sum h h^T`` over the samples of each class.

    A factor has at most min(n_c, L) rows of L numbers, so that all of them take up to
    ``8 L sum_c min(n_c, L)`` bytes: about as much as keeping the activations. No row of it is a sample.

    Parameters
    ----------
    factors : tuple of Tensor of shape (r_c, L)
        One per class.
    """

    factors: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(factor.nbytes for factor in self.factors)

    def to_archive(self) -> Archive:
        """Return what a file holds: the factors, numbered as the classes are."""
        return MOMENTS.archive({}, {str(index): factor for index, factor in enumerate(self.factors)})

    @classmethod
    def from_archive(cls, fields: Fields, n_classes: int, width: int, device: torch.device) -> ClassMoments:
        """Return the moments that :meth:`to_archive` gave, or raise :class:`FileFormatError`."""
        fields.require(len(fields.tensor_names()) == n_classes, "there are not as many moments as classes")
        factors = (fields.tensor(str(index), (None, width), largest=LARGEST) for index in range(n_classes))
        return cls(tuple(factor.to(device) for factor in factors))

    def select(self, columns: Sequence[int], width: int, like: Tensor) -> ClassMoments:
        """Reorder classes; -1 is a new one without samples."""
        empty = like.new_zeros(0, width, dtype=torch.float64)
        return ClassMoments(tuple(self.factors[c] if c >= 0 else empty for c in columns))

    def group(self, groups: Sequence[Sequence[int]]) -> ClassMoments:
        """Return the moments of classes each of which is several old ones together."""
        return ClassMoments(tuple(_stacked([self.factors[column] for column in group]) for group in groups))

    def add(self, H: Tensor, codes: Tensor) -> ClassMoments:
        """Return moments with rows H (n, L) of classes ``codes`` added."""
        factors = list(self.factors)
        for code in torch.unique(codes).tolist():
            factors[code] = _triangle(torch.cat([factors[code], H[codes == code]]))
        return ClassMoments(tuple(factors))

    def remove(self, H: Tensor, codes: Tensor) -> ClassMoments:
        """Return moments with rows H taken out; raise :class:`UnlearnError` if they were never in."""
        factors = list(self.factors)
        for code in torch.unique(codes).tolist():
            factors[code] = _subtract(factors[code], H[codes == code])
        return ClassMoments(tuple(factors))


def _triangle(rows: Tensor) -> Tensor:
    """Return the triangular factor of rows, which has the same second moments and no longer is the rows."""
    triangle: Tensor = torch.linalg.qr(rows, mode="r").R
    return triangle


def _stacked(factors: Sequence[Tensor]) -> Tensor:
    """Return one factor whose second moments are the sums of those of several."""
    return factors[0] if len(factors) == 1 else _triangle(torch.cat(list(factors)))


def _subtract(factor: Tensor, H: Tensor) -> Tensor:
    """Return F' with ``F'^T F' = F^T F - H^T H``."""
    basis, triangle = torch.linalg.qr(factor.T)
    rows = H @ basis
    outside = float(H.square().sum() - rows.square().sum())
    if outside > 1e-6 * float(H.square().sum()):
        raise UnlearnError("samples to unlearn must have been learned before, but some were not")
    values, vectors = symmetric_eigh(triangle @ triangle.T - rows.T @ rows)
    scale = float(triangle.square().sum())
    if float(values.min()) < -1e-9 * scale:
        raise UnlearnError("samples to unlearn must have been learned before, but some were not")
    keep = values > 1e-13 * scale
    left: Tensor = (values[keep].sqrt() * vectors[:, keep]).T @ basis.T
    return left
