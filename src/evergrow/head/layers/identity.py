"""No random layer at all: the features themselves, with or without a constant beside them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.fields import Fields
from evergrow.core.validation import check_matrix
from evergrow.head.layers.base import PROJECTIONS, Projection, nothing_new
from evergrow.head.layers.layers import ReadoutParts


@PROJECTIONS.register("identity", version=2, migrations={1: nothing_new})
class IdentityProjection(Projection):
    """The map ``h = z`` or, with an intercept, ``h = [z, 1]``.

    Parameters
    ----------
    intercept : bool
        Append a column of ones.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.identity import IdentityProjection
    >>> Z = torch.tensor([[2.0, 3.0]])
    >>> IdentityProjection(intercept=True).build(Z, Z).transform(Z).tolist()
    [[2.0, 3.0, 1.0]]
    """

    selectable: ClassVar[bool] = False

    def __init__(self, intercept: bool = False) -> None:
        super().__init__("identity")
        self.intercept = bool(intercept)

    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Remember the width; there is nothing to draw."""
        check_matrix("Z", Z)
        self.weights = torch.zeros(Z.shape[1], 0, device=Z.device)
        self.bias = torch.zeros(0, device=Z.device)
        return self

    @property
    def n_outputs(self) -> int:
        """Width of the transformed rows."""
        return self.n_features_in + int(self.intercept)

    def link_columns(self) -> slice | None:
        """Return the columns of the features, without the intercept."""
        return slice(0, self.n_features_in)

    def transform(self, Z: Tensor) -> Tensor:
        """Return the rows, with a one appended where there is an intercept."""
        check_matrix("Z", Z, columns=self.n_features_in)
        return torch.cat([Z, Z.new_ones(Z.shape[0], 1)], dim=1) if self.intercept else Z

    def readout_parts(self, weights: Tensor) -> ReadoutParts:
        """Sort class weights by what they weigh; there are no units, and an intercept is a constant."""
        width = self.n_features_in
        constant = weights[width] if self.intercept else weights.new_zeros(weights.shape[1])
        return ReadoutParts(None, None, weights[:width], constant)

    def to_archive(self) -> Archive:
        """Return what a file holds of the map."""
        archive = super().to_archive()
        archive.meta["intercept"] = self.intercept
        return archive

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the map that :meth:`to_archive` gave."""
        projection = super().from_archive(fields, device)
        fields.require(projection.n_units == 0, "it has units, which the map of features to themselves has not")
        projection.intercept = fields.flag("intercept")
        return projection
