"""A direct link: the features themselves beside the random units."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import NotFittedError
from evergrow.core.fields import Fields
from evergrow.core.validation import check_matrix
from evergrow.head.layers.base import PROJECTIONS, Projection, read_projection
from evergrow.head.layers.guided import GuidedProjection
from evergrow.head.layers.layers import ReadoutParts, Units


def _with_inner(old: Archive) -> Archive:
    """Migrate from version 1, in which the tensors of the inner layer lay beside the centre."""
    units = {name: tensor for name, tensor in old.tensors.items() if name != "mean"}
    inner = Archive(f"{PROJECTIONS.prefix}/{old.meta['inner_kind']}", old.meta["inner"], units)
    return Archive(old.kind, {"scale": old.meta["scale"]}, {"mean": old.tensors["mean"]}, {"inner": inner}, version=2)


@PROJECTIONS.register("linked", version=2, migrations={1: _with_inner})
class LinkedProjection(Projection):
    """Rows ``[g(z W + b), scale (z - mean)]``: random units and a linear path, as in RVFL networks.

    The two parts are scaled to equal energy on the first task: the sum of the variances of the link's columns
    equals that of the units'. A guided inner layer is grown on what the link leaves unexplained.

    Parameters
    ----------
    inner : Projection
        The random units, not yet built.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GaussianProjection, LinkedProjection
    >>> Z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    >>> layer = LinkedProjection(GaussianProjection(n_units=5)).build(Z, torch.eye(8))
    >>> layer.transform(Z).shape
    torch.Size([8, 8])
    """

    selectable: ClassVar[bool] = False

    def __init__(self, inner: Projection) -> None:
        super().__init__("identity", inner.random_state)
        self.inner = inner
        self.mean: Tensor | None = None
        self.scale = 1.0

    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Build the inner layer and fix the link's centre and scale."""
        check_matrix("Z", Z)
        self.mean = Z.to(torch.float64).mean(dim=0)
        if isinstance(self.inner, GuidedProjection):
            self.inner.build(Z, Y, base=_unit_energy(Z.to(torch.float64) - self.mean))
        else:
            self.inner.build(Z, Y)
        units, count = 0.0, max(Z.shape[0] - 1, 1)
        total = torch.zeros(self.inner.n_outputs, dtype=torch.float64, device=Z.device)
        for _, H in self.inner.iter_transform(Z):
            total += H.to(torch.float64).sum(dim=0)
            units += float(H.to(torch.float64).square().sum())
        units -= float(total.square().sum()) / Z.shape[0]
        link = float((Z.to(torch.float64) - self.mean).square().sum())
        self.scale = (units / link) ** 0.5 if units > 1e-12 * count and link > 0.0 else 1.0
        self.weights, self.bias = self.inner._layer()
        return self

    @property
    def n_outputs(self) -> int:
        """Units and features together."""
        return self.inner.n_outputs + self.n_features_in

    def link_columns(self) -> slice | None:
        """Return the columns of the link."""
        return slice(self.inner.n_outputs, self.n_outputs)

    def transform(self, Z: Tensor) -> Tensor:
        """Return units and scaled features side by side."""
        centre = self.centre.to(Z)
        return torch.cat([self.inner.transform(Z), (Z - centre) * self.scale], dim=1)

    def units(self) -> Units:
        """Return the inner layer's units."""
        return self.inner.units()

    def readout_parts(self, weights: Tensor) -> ReadoutParts:
        """Sort class weights by what they weigh.

        ``[units, (z - mean) scale] @ [A; B'] = units @ A + z @ (scale B') - mean @ (scale B')``
        """
        width = self.inner.n_outputs
        inner = self.inner.readout_parts(weights[:width])
        linear = weights[width:] * self.scale
        constant = inner.constant - self.centre.cpu().to(weights) @ linear
        both = linear if inner.linear is None else inner.linear + linear
        return ReadoutParts(inner.units, inner.readout, both, constant)

    @property
    def centre(self) -> Tensor:
        """What is subtracted from features before they are scaled."""
        if self.mean is None:
            raise NotFittedError(f"this {type(self).__name__} must be built before it can transform")
        return self.mean

    def to(self, device: torch.device) -> Self:
        """Move units and centre to a device."""
        self.inner.to(device)
        self.weights, self.bias = self.inner._layer()
        if self.mean is not None:
            self.mean = self.mean.to(device)
        return self

    def to_archive(self) -> Archive:
        """Return the inner layer, the centre and the scale of the link."""
        parts = {"inner": self.inner.to_archive()}
        return PROJECTIONS.kind_of(type(self)).archive({"scale": self.scale}, {"mean": self.centre}, parts)

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the frozen map that :meth:`to_archive` gave."""
        part, name = fields.part("inner"), fields.inside("inner")
        fields.require(PROJECTIONS.class_of(part, name) is not cls, "it holds a link within a link")
        projection = cls(read_projection(part, device, name))
        projection.weights, projection.bias = projection.inner._layer()
        projection.mean = fields.tensor("mean", (projection.n_features_in,)).to(device)
        projection.scale = fields.number("scale", low=0.0)
        return projection

    def same_map(self, other: Projection) -> bool:
        """Whether both maps are the same function, bit for bit."""
        return super().same_map(other) and isinstance(other, LinkedProjection) and self.scale == other.scale


def _unit_energy(centred: Tensor) -> Tensor:
    """Scale centred features so that a row has energy one on average."""
    rms = float(centred.square().sum(dim=1).mean().sqrt())
    return centred / rms if rms > 0.0 else centred
