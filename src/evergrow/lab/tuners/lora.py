"""Low-rank additions to linear maps: W + scale * B A."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from evergrow.adapt.tuners.tuner import (
    TUNERS,
    Drawer,
    Handle,
    TransformerBlock,
    Tuner,
    TunerConfig,
    UnsupportedModelError,
    find_blocks,
)
from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_integer, check_number

TARGETS = ("q", "k", "v", "proj", "fc1", "fc2")
"""Linear maps of a block that low-rank tuners can add to."""


def check_targets(targets: Any) -> None:
    """Raise :class:`ParameterError` unless all targets are in :data:`TARGETS`.

    Targets must be a non-empty tuple of distinct names.
    """
    if isinstance(targets, tuple):
        wrong = [target for target in targets if target not in TARGETS]
    else:
        wrong = [targets]
    if wrong or not targets or len(set(targets)) != len(targets):
        first = (wrong or [targets])[0]
        raise ParameterError(
            f"targets must be distinct names out of {TARGETS}, got {first!r}"
        )


@dataclass(frozen=True)
class Slot:
    """A linear map in a block, or a range of rows of a fused one.

    Parameters
    ----------
    name : str
        Path in the model. Rows of a fused projection are named like separate ones,
        ``"blocks.0.attn.q"``.
    layer : torch.nn.Linear
        The layer that holds the weights.
    rows : slice
        Outputs of the layer that belong to the map.
    """

    name: str
    layer: nn.Linear
    rows: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Number of outputs and of inputs."""
        n_outputs = len(range(*self.rows.indices(self.layer.out_features)))
        return n_outputs, self.layer.in_features


def find_slots(block: TransformerBlock, targets: tuple[str, ...]) -> Iterator[Slot]:
    """Yield the linear maps of a block with these names; see :data:`TARGETS`."""
    for target in targets:
        if target in ("q", "k", "v"):
            yield _projection(block, target)
            continue
        part = "attn" if target == "proj" else "mlp"
        owner = block.part(part)
        # SwiGLU has two first maps, one for the gate and one for the value.
        names = (target, f"{target}_g", f"{target}_x")
        layers = {name: getattr(owner, name, None) for name in names}
        found = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer, nn.Linear)
        }
        if not found:
            raise UnsupportedModelError(
                f"{block.name}.{part} must have a linear map {target!r}, got none"
            )
        for name, layer in found.items():
            yield Slot(f"{block.name}.{part}.{name}", layer, slice(None))


def _projection(block: TransformerBlock, target: str) -> Slot:
    attention = block.part("attn")
    name = f"{block.name}.attn.{target}"
    fused = getattr(attention, "qkv", None)
    single = getattr(attention, f"{target}_proj", None)
    if isinstance(single, nn.Linear):
        return Slot(name, single, slice(None))
    if not isinstance(fused, nn.Linear) or fused.out_features % 3:
        raise UnsupportedModelError(
            f"{block.name}.attn must have linear maps 'qkv' or '{target}_proj', "
            f"got {type(attention).__name__}"
        )
    width = fused.out_features // 3
    start = "qkv".index(target) * width
    return Slot(name, fused, slice(start, start + width))


class LayerChange:
    """All low-rank additions to one linear layer.

    Parameters
    ----------
    pairs : list of (Slot, torch.nn.Module)
        Slots of the same layer, each with its module from :meth:`LowRankTuner._map`.
    """

    def __init__(self, pairs: list[tuple[Slot, Any]]) -> None:
        self._pairs = sorted(pairs, key=lambda pair: pair[0].rows.start or 0)
        self.layer = pairs[0][0].layer

    def change_output(
        self, layer: nn.Module, args: tuple[Any, ...], output: Tensor
    ) -> Tensor:
        """Add the change of every slot to its rows of the layer's output."""
        pieces = []
        position = 0
        for slot, low_rank in self._pairs:
            start, stop, _ = slot.rows.indices(self.layer.out_features)
            if start > position:
                pieces.append(output[..., position:start])
            change = low_rank.change(args[0]).to(output.dtype)
            pieces.append(output[..., start:stop] + change)
            position = stop
        if position < self.layer.out_features:
            pieces.append(output[..., position:])
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces, dim=-1)


def by_layer(pairs: Iterable[tuple[Slot, Any]]) -> Iterator[LayerChange]:
    """Yield one :class:`LayerChange` per layer."""

    def layer_id(pair: tuple[Slot, Any]) -> int:
        return id(pair[0].layer)

    for _, group in groupby(sorted(pairs, key=layer_id), key=layer_id):
        yield LayerChange(list(group))


class LowRankTuner(Tuner):
    """Base of tuners that add low-rank maps to linear ones.

    Subclasses create the addition of a slot in :meth:`_map`. Their settings have
    ``targets``.
    """

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        """Create the module that is added to a slot.

        Its ``change(x)`` is added to the slot's output for inputs (..., in).
        """
        raise TypeError(f"{type(self).__name__} must override _map")

    def _layers(
        self, model: nn.Module, drawer: Drawer
    ) -> Iterator[tuple[Slot, nn.Module]]:
        for block in find_blocks(model):
            for slot in find_slots(block, self.config.targets):
                yield slot, self._map(slot, drawer)

    def _attach(self) -> Iterator[Handle]:
        for change in by_layer(self._pairs):
            yield change.layer.register_forward_hook(change.change_output)


@dataclass(frozen=True)
class LoRAConfig(TunerConfig):
    """Settings of the ``lora`` tuner.

    Parameters
    ----------
    rank : int
        Rank r of every addition.
    alpha : float, optional
        Multiplies the addition by alpha / r. None multiplies by 1.
    targets : tuple of str
        Maps to change, from ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"`` and
        ``"fc2"``.

    Examples
    --------
    >>> from evergrow.lab.tuners.lora import LoRAConfig
    >>> LoRAConfig(rank=4, alpha=8).scale
    2.0
    """

    rank: int = 10
    alpha: float | None = None
    targets: tuple[str, ...] = ("q", "v")

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid."""
        check_integer("rank", self.rank)
        if self.alpha is not None:
            check_number("alpha", self.alpha, low=-1e6, high=1e6)
        check_targets(self.targets)

    @property
    def scale(self) -> float:
        """Factor of every addition."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class LoRALayer(nn.Module):
    """``scale * B A`` for one slot. A (r, in) is random, B (out, r) starts at zero."""

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


@TUNERS.register("lora")
class LoRATuner(LowRankTuner):
    """Low-rank adaptation: W + (alpha / r) B A.

    By default it changes the queries and values of every block. Works with vision
    transformers with fused or separate projections. See :class:`LoRAConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> tiny = dict(img_size=32, patch_size=8, depth=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny)
    >>> tuner = create_tuner("lora", model, rank=2, targets=("q", "v", "fc1"))
    >>> [name for name in tuner.state_dict() if "blocks.0.mlp.fc1" in name]
    ['layers.blocks.0.mlp.fc1.A', 'layers.blocks.0.mlp.fc1.B']
    """

    name = "lora"
    config_class = LoRAConfig
    adapts = True

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        return LoRALayer(slot, self.config, drawer)
