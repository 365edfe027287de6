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
from evergrow.core.validation import check_number

TARGETS = ("q", "k", "v", "proj", "fc1", "fc2")
"""Linear maps of a block that low-rank tuners can add to."""


def check_targets(targets: Any) -> None:
    """Raise :class:`ParameterError` unless ``targets`` is a tuple of distinct names out of :data:`TARGETS`."""
    if isinstance(targets, tuple):
        wrong = [target for target in targets if target not in TARGETS]
    else:
        wrong = [targets]
    if wrong or not targets or len(set(targets)) != len(targets):
        raise ParameterError(
            f"targets must be distinct names out of {TARGETS}, got {(wrong or [targets])[0]!r}"
        )


@dataclass(frozen=True)
class Slot:
    """A linear map inside a block, possibly some rows of a fused one.

    Parameters
    ----------
    name : str
        Path in the model; rows of a fused projection are named like the separate ones,
        ``"blocks.0.attn.q"``.
    layer : torch.nn.Linear
        The layer that holds the weights.
    rows : slice
        Which of its outputs.
    """

    name: str
    layer: nn.Linear
    rows: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return len(
            range(*self.rows.indices(self.layer.out_features))
        ), self.layer.in_features


def find_slots(block: TransformerBlock, targets: tuple[str, ...]) -> Iterator[Slot]:
    """Yield the linear maps of a block that go by these names; see :data:`TARGETS`."""
    for target in targets:
        if target in ("q", "k", "v"):
            yield _projection(block, target)
            continue
        owner, prefix = (
            (block.part("attn"), "attn")
            if target == "proj"
            else (block.part("mlp"), "mlp")
        )
        # SwiGLU has two first maps, one for the gate and one for the value.
        names = (target, f"{target}_g", f"{target}_x")
        layers = {name: getattr(owner, name, None) for name in names}
        linear = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer, nn.Linear)
        }
        if not linear:
            raise UnsupportedModelError(
                f"{block.name}.{prefix} must have a linear map {target!r}, got none"
            )
        for name, layer in linear.items():
            yield Slot(f"{block.name}.{prefix}.{name}", layer, slice(None))


def _projection(block: TransformerBlock, target: str) -> Slot:
    attention = block.part("attn")
    name = f"{block.name}.attn.{target}"
    fused = getattr(attention, "qkv", None)
    single = getattr(attention, f"{target}_proj", None)
    if isinstance(single, nn.Linear):
        return Slot(name, single, slice(None))
    if not isinstance(fused, nn.Linear) or fused.out_features % 3:
        raise UnsupportedModelError(
            f"{block.name}.attn must have linear maps 'qkv' or '{target}_proj', got {type(attention).__name__}"
        )
    width = fused.out_features // 3
    place = "qkv".index(target)
    return Slot(name, fused, slice(place * width, (place + 1) * width))


class LayerChange:
    """All low-rank maps of one linear layer.

    Parameters
    ----------
    pairs : list of (Slot, torch.nn.Module)
        Slots of the same layer, with what :meth:`LowRankTuner._map` makes of them.
    """

    def __init__(self, pairs: list[tuple[Slot, Any]]) -> None:
        self._pairs = sorted(pairs, key=lambda pair: pair[0].rows.start or 0)
        self.layer = pairs[0][0].layer

    def change_output(
        self, layer: nn.Module, args: tuple[Any, ...], output: Tensor
    ) -> Tensor:
        """Add to what the layer gives, in the rows of every slot."""
        pieces = []
        position = 0
        for slot, low_rank in self._pairs:
            start, stop, _ = slot.rows.indices(self.layer.out_features)
            if start > position:
                pieces.append(output[..., position:start])
            pieces.append(
                output[..., start:stop] + low_rank.change(args[0]).to(output.dtype)
            )
            position = stop
        if position < self.layer.out_features:
            pieces.append(output[..., position:])
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces, dim=-1)


def by_layer(pairs: Iterable[tuple[Slot, Any]]) -> Iterator[LayerChange]:
    """Yield one :class:`LayerChange` per layer."""
    ordered = sorted(pairs, key=lambda pair: id(pair[0].layer))
    for _, group in groupby(ordered, key=lambda pair: id(pair[0].layer)):
        yield LayerChange(list(group))


class LowRankTuner(Tuner):
    """The base of tuners that add low-rank maps to linear ones.

    Subclasses make the map of a slot in :meth:`_map`; their settings have ``targets``.
    """

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        """Return the map beside the one in a slot.

        Its ``change(x)`` gives what is added to the slot's output for inputs (..., in).
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
        The addition is multiplied by alpha / r; None multiplies by 1.
    targets : tuple of str
        Which maps are added to, out of ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"``
        and ``"fc2"``.

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
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("rank", self.rank, low=1, integer=True)
        if self.alpha is not None:
            check_number("alpha", self.alpha, low=-1e6, high=1e6)
        check_targets(self.targets)

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


@TUNERS.register("lora")
class LoRATuner(LowRankTuner):
    """Low-rank adaptation: W + (alpha / r) B A for the queries and values of every block, or other maps.

    Serves vision transformers with fused or separate projections. See
    :class:`LoRAConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> tuner = create_tuner("lora", model, rank=2, targets=("q", "v", "fc1"))
    >>> [name for name in tuner.state_dict() if "fc1" in name]
    ['layers.blocks.0.mlp.fc1.A', 'layers.blocks.0.mlp.fc1.B', 'layers.blocks.1.mlp.fc1.A', 'layers.blocks.1.mlp.fc1.B']
    """

    name = "lora"
    config_class = LoRAConfig
    adapts = True

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        return LoRALayer(slot, self.config, drawer)
