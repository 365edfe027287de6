"""The blocks of a vision transformer, where tuners sit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from evergrow.adapt.tuners.base import UnsupportedModelError


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


def find_blocks(model: nn.Module) -> list[Block]:
    """Return the blocks of a vision transformer.

    Parameters
    ----------
    model : torch.nn.Module
        A timm model whose blocks lie one after another in ``model.blocks``.

    Raises
    ------
    UnsupportedModelError
        If the model has no such blocks.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners.vit import find_blocks
    >>> find_blocks(nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    evergrow.adapt.tuners.base.UnsupportedModelError: model must be a vision transformer with its blocks in ...
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, (nn.Sequential, nn.ModuleList)) or len(blocks) == 0:
        raise UnsupportedModelError(
            f"model must be a vision transformer with its blocks in model.blocks, got {type(model).__name__}; "
            "'ssf' serves convolutional networks too"
        )
    return [Block(index, f"blocks.{index}", module) for index, module in enumerate(blocks)]
