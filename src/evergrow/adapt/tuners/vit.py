"""Find the places in a vision transformer where tuners sit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from evergrow.adapt.tuners.errors import UnsupportedModelError
from evergrow.core.errors import ParameterError

TARGETS = ("q", "k", "v", "proj", "fc1", "fc2")
"""Linear maps of a block that low-rank tuners can add to."""


@dataclass(frozen=True)
class Block:
    """One transformer block.

    Parameters
    ----------
    index : int
        Its number, from 0.
    name : str
        Its path in the model, for example ``"blocks.3"``.
    module : torch.nn.Module
        The block.
    """

    index: int
    name: str
    module: nn.Module

    def part(self, name: str) -> nn.Module:
        """Return a direct part of the block, or raise :class:`UnsupportedModelError`."""
        found = getattr(self.module, name, None)
        if not isinstance(found, nn.Module):
            raise UnsupportedModelError(
                f"{self.name} must have a part {name!r}, got a {type(self.module).__name__} without one"
            )
        return found

    @property
    def mlp_input(self) -> nn.Linear:
        """The first linear map of the MLP; its width is the block's, its type and device those of the tuner."""
        first = next((part for part in self.part("mlp").modules() if isinstance(part, (nn.Linear, nn.Conv2d))), None)
        if not isinstance(first, nn.Linear):
            raise UnsupportedModelError(
                f"{self.name}.mlp must begin with a linear map of tokens, got {type(first).__name__}"
            )
        return first

    @property
    def like(self) -> Tensor:
        """A weight of the block: new parameters take its device and type."""
        return next(self.module.parameters())


def find_blocks(model: nn.Module, wanted: tuple[int, ...] | None = None) -> list[Block]:
    """Return the blocks of a vision transformer.

    Parameters
    ----------
    model : torch.nn.Module
        A timm model whose blocks lie one after another in ``model.blocks``.
    wanted : tuple of int, optional
        Their numbers; all by default.

    Raises
    ------
    UnsupportedModelError
        If the model has no such blocks.
    ParameterError
        If a number is too large.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners.vit import find_blocks
    >>> find_blocks(nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    evergrow.adapt.tuners.errors.UnsupportedModelError: model must be a vision transformer with its blocks in ...
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, (nn.Sequential, nn.ModuleList)) or len(blocks) == 0:
        raise UnsupportedModelError(
            f"model must be a vision transformer with its blocks in model.blocks, got {type(model).__name__}"
        )
    found = [Block(index, f"blocks.{index}", module) for index, module in enumerate(blocks)]
    if wanted is None:
        return found
    if max(wanted) >= len(found):
        raise ParameterError(f"blocks must be numbers below {len(found)}, the model's depth, got {wanted!r}")
    return [found[index] for index in sorted(wanted)]


@dataclass(frozen=True)
class Slot:
    """A linear map inside a block, possibly some rows of a fused one.

    Parameters
    ----------
    name : str
        Path in the model; rows of a fused projection are named like the separate ones, ``"blocks.0.attn.q"``.
    layer : torch.nn.Linear
        The layer that holds the weights.
    rows : slice
        Which of its outputs.
    attention : torch.nn.Module or None
        The attention layer that holds a fused projection, None otherwise.
    """

    name: str
    layer: nn.Linear
    rows: slice
    attention: nn.Module | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return len(range(*self.rows.indices(self.layer.out_features))), self.layer.in_features


def find_slots(block: Block, targets: tuple[str, ...]) -> Iterator[Slot]:
    """Yield the linear maps of a block that go by these names; see :data:`TARGETS`."""
    for target in targets:
        if target in ("q", "k", "v"):
            yield _projection(block, target)
            continue
        owner, prefix = (block.part("attn"), "attn") if target == "proj" else (block.part("mlp"), "mlp")
        # SwiGLU has two first maps, one for the gate and one for the value.
        names = (target, f"{target}_g", f"{target}_x")
        layers = {name: getattr(owner, name, None) for name in names}
        linear = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
        if not linear:
            raise UnsupportedModelError(f"{block.name}.{prefix} must have a linear map {target!r}, got none")
        for name, layer in linear.items():
            yield Slot(f"{block.name}.{prefix}.{name}", layer, slice(None))


def _projection(block: Block, target: str) -> Slot:
    attention, name = block.part("attn"), f"{block.name}.attn.{target}"
    fused, single = getattr(attention, "qkv", None), getattr(attention, f"{target}_proj", None)
    if isinstance(single, nn.Linear):
        return Slot(name, single, slice(None))
    if not isinstance(fused, nn.Linear) or fused.out_features % 3:
        raise UnsupportedModelError(
            f"{block.name}.attn must have linear maps 'qkv' or '{target}_proj', got {type(attention).__name__}"
        )
    width, place = fused.out_features // 3, "qkv".index(target)
    return Slot(name, fused, slice(place * width, (place + 1) * width), attention)


def attention_width(block: Block) -> int:
    """Return the width of all heads of a block's attention together."""
    projection = getattr(block.part("attn"), "proj", None)
    if not isinstance(projection, nn.Linear):
        raise UnsupportedModelError(f"{block.name}.attn must have a linear map 'proj', got {type(projection).__name__}")
    return projection.in_features
