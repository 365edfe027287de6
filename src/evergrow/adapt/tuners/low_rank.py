"""Add low-rank maps to linear layers, and to some rows of a fused one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.tuners.attention import AttentionEdit, AttentionSite, fused_bias
from evergrow.adapt.tuners.folding import Fold
from evergrow.adapt.tuners.host import Handle
from evergrow.adapt.tuners.vit import Slot


class LowRankMap(nn.Module):
    """A linear map of low rank beside the one in a slot; subclasses say how it is made up."""

    def change(self, x: Tensor) -> Tensor:
        """Return what is added to the slot's output for inputs (..., in)."""
        raise TypeError(f"{type(self).__name__} must override change")

    def weight(self) -> Tensor:
        """Return the (out, in) matrix that :meth:`change` multiplies by, in float64."""
        raise TypeError(f"{type(self).__name__} must override weight")


class LayerChange(AttentionEdit):
    """All low-rank maps of one linear layer.

    Parameters
    ----------
    pairs : list of (Slot, LowRankMap)
        Slots of the same layer.
    """

    def __init__(self, pairs: list[tuple[Slot, LowRankMap]]) -> None:
        self._pairs = sorted(pairs, key=lambda pair: pair[0].rows.start or 0)
        self.layer = pairs[0][0].layer

    def attach(self) -> Handle:
        """Put the maps to work, in the attention where that does not call its projection."""
        attention = self._pairs[0][0].attention
        if attention is not None and fused_bias(attention) is not None:
            return AttentionSite.of(attention).add(self)
        return self.layer.register_forward_hook(self.change_output)

    def change_output(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Add to what the layer gives."""
        return self.projected(args[0], output)

    def projected(self, x: Tensor, qkv: Tensor) -> Tensor:
        """Return the layer's output for ``x``, changed in the rows of every slot."""
        pieces, position = [], 0
        for slot, low_rank in self._pairs:
            start, stop, _ = slot.rows.indices(self.layer.out_features)
            if start > position:
                pieces.append(qkv[..., position:start])
            pieces.append(qkv[..., start:stop] + low_rank.change(x).to(qkv.dtype))
            position = stop
        if position < self.layer.out_features:
            pieces.append(qkv[..., position:])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)

    def plan(self, fold: Fold) -> None:
        """Plan weights that have the maps added."""
        weight = fold.current(self.layer, "weight")
        if weight is not None:
            weight = weight.clone()
            for slot, low_rank in self._pairs:
                weight[slot.rows] += low_rank.weight()
            fold.plan(self.layer, "weight", weight)


def by_layer(pairs: Iterable[tuple[Slot, LowRankMap]]) -> Iterator[LayerChange]:
    """Yield one :class:`LayerChange` per layer."""
    ordered = sorted(pairs, key=lambda pair: id(pair[0].layer))
    for _, group in groupby(ordered, key=lambda pair: id(pair[0].layer)):
        yield LayerChange(list(group))
