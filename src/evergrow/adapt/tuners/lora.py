"""Low-rank additions to linear maps: W + scale * B A."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from evergrow.adapt.tuners.base import TUNERS, Drawer, Handle, Tuner, TunerConfig, check_blocks, check_targets
from evergrow.adapt.tuners.vit import TARGETS, AttentionEdit, AttentionSite, Slot, find_blocks, find_slots, fused_bias
from evergrow.core.validation import check_number


class LayerChange(AttentionEdit):
    """All low-rank maps of one linear layer.

    Parameters
    ----------
    pairs : list of (Slot, torch.nn.Module)
        Slots of the same layer, with what :meth:`LowRankTuner._map` makes of them.
    """

    def __init__(self, pairs: list[tuple[Slot, Any]]) -> None:
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

    def merged_weight(self) -> Tensor:
        """Return the layer's weight with the maps added, in float64."""
        weight = self.layer.weight.detach().double().clone()
        for slot, low_rank in self._pairs:
            weight[slot.rows] += low_rank.weight()
        return weight


def by_layer(pairs: Iterable[tuple[Slot, Any]]) -> Iterator[LayerChange]:
    """Yield one :class:`LayerChange` per layer."""
    ordered = sorted(pairs, key=lambda pair: id(pair[0].layer))
    for _, group in groupby(ordered, key=lambda pair: id(pair[0].layer)):
        yield LayerChange(list(group))


class LowRankTuner(Tuner):
    """The base of tuners that add low-rank maps to linear ones; folds into weights.

    Subclasses make the map of a slot in :meth:`_map`; their settings have ``blocks`` and ``targets``.
    """

    mergeable = True

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        """Return the map beside the one in a slot.

        Its ``change(x)`` gives what is added to the slot's output for inputs (..., in), and its ``weight()`` the
        (out, in) matrix that this multiplies by, in float64.
        """
        raise TypeError(f"{type(self).__name__} must override _map")

    def _layers(self, model: nn.Module, drawer: Drawer) -> Iterator[tuple[Slot, nn.Module]]:
        for block in find_blocks(model, self.config.blocks):
            for slot in find_slots(block, self.config.targets):
                yield slot, self._map(slot, drawer)

    def _attach(self) -> Iterator[Handle]:
        for change in by_layer(self._pairs):
            yield change.attach()

    def _fold(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for change in by_layer(self._pairs):
            yield change.layer, "weight", change.merged_weight()

    def _touched(self) -> set[nn.Module]:
        return {slot.layer for slot, _ in self._pairs}


@dataclass(frozen=True)
class LoRAConfig(TunerConfig):
    """Settings of the ``lora`` tuner.

    Parameters
    ----------
    rank : int
        Rank r of every addition.
    alpha : float, optional
        The addition is multiplied by alpha / r; None multiplies by 1.
    targets : tuple of str
        Which maps are added to, out of ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"`` and ``"fc2"``.
    blocks : tuple of int, optional
        In which blocks; all by default.

    Examples
    --------
    >>> from evergrow.adapt.tuners import LoRAConfig
    >>> LoRAConfig(rank=4, alpha=8).scale
    2.0
    """

    rank: int = 10
    alpha: float | None = None
    targets: tuple[str, ...] = ("q", "v")
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("rank", self.rank, low=1, integer=True)
        if self.alpha is not None:
            check_number("alpha", self.alpha, low=-1e6, high=1e6)
        check_targets(self.targets, TARGETS)
        check_blocks(self.blocks)

    @property
    def scale(self) -> float:
        """The factor on every addition."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class LoRALayer(nn.Module):
    """scale * B A for one slot: A (r, in) is drawn, B (out, r) starts at zero."""

    def __init__(self, slot: Slot, config: LoRAConfig, drawer: Drawer) -> None:
        super().__init__()
        outputs, inputs = slot.shape
        like = slot.layer.weight
        self.A = drawer.kaiming((config.rank, inputs), like, slot.name, "A")
        self.B = drawer.zeros((outputs, config.rank), like)
        self.scale = config.scale

    def change(self, x: Tensor) -> Tensor:
        """Return scale * x A^T B^T."""
        return linear(linear(x, self.A), self.B) * self.scale

    def weight(self) -> Tensor:
        """Return scale * B A."""
        return (self.B.detach().double() @ self.A.detach().double()) * self.scale


@TUNERS.register("lora")
class LoRATuner(LowRankTuner):
    """Low-rank adaptation: W + (alpha / r) B A for the queries and values of every block, or other maps.

    Serves vision transformers with fused or separate projections. Folds into weights. See :class:`LoRAConfig`.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2).eval()
    >>> tuner = create_tuner("lora", model, rank=2, targets=("q", "v", "fc1"))
    >>> x = torch.zeros(1, 3, 32, 32)
    >>> tuned = model(x)
    >>> tuner.merge()
    >>> torch.allclose(model(x), tuned, atol=1e-6)
    True
    """

    name = "lora"
    config_class = LoRAConfig
    adapts = True

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        return LoRALayer(slot, self.config, drawer)
