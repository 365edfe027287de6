"""Adapters: a bottleneck branch parallel to the MLP of every block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from evergrow.adapt.tuners.tuner import (
    TUNERS,
    Drawer,
    Handle,
    TransformerBlock,
    Tuner,
    TunerConfig,
    TunerError,
    find_blocks,
)
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class AdapterConfig(TunerConfig):
    """Settings of the ``adapter`` tuner; the defaults are AdaptFormer's.

    Parameters
    ----------
    bottleneck : int
        Width of the branch, which takes the residual stream after attention, not
        normalised, and adds to the block's output, past layer scale.
    scale : float
        Factor on the branch's output.
    dropout : float
        Dropout inside the branch, in training mode only.

    Examples
    --------
    >>> from evergrow.adapt.tuners import AdapterConfig
    >>> AdapterConfig(bottleneck=8).scale
    0.1
    """

    bottleneck: int = 64
    scale: float = 0.1
    dropout: float = 0.1

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("bottleneck", self.bottleneck, low=1, integer=True)
        check_number("scale", self.scale)
        check_number("dropout", self.dropout, low=0, high=1, high_open=True)


class AdapterLayer(nn.Module):
    """The branch of one block, scale * up(dropout(relu(down(x)))), and the hooks that put it there.

    Parameters
    ----------
    block : TransformerBlock
        The block.
    config : AdapterConfig
        Settings.
    drawer : Drawer
        Source of the initial ``down``; ``up`` and the biases start at zero, so that the
        branch starts at nothing.
    """

    def __init__(
        self, block: TransformerBlock, config: AdapterConfig, drawer: Drawer
    ) -> None:
        super().__init__()
        like = block.mlp_input.weight
        width = block.mlp_input.in_features
        inner = config.bottleneck
        self.config = config
        self.down_weight = drawer.kaiming((inner, width), like, block.name, "down")
        self.down_bias = drawer.zeros((inner,), like)
        self.up_weight = drawer.zeros((width, inner), like)
        self.up_bias = drawer.zeros((width,), like)
        self._streams: dict[int, Tensor] = {}

    def branch(self, x: Tensor, training: bool) -> Tensor:
        """Return the branch's output for tokens (B, N, d)."""
        h = torch.relu(linear(x, self.down_weight, self.down_bias))
        # Masks come from torch's own generator, as those of every dropout in the
        # backbone do.
        h = dropout(h, self.config.dropout, training and self.training)
        return linear(h, self.up_weight, self.up_bias) * self.config.scale

    def keep_stream(self, part: nn.Module, args: tuple[Any, ...]) -> None:
        """Remember the residual stream: the first input of ``norm2`` or ``mlp``, whichever the block calls first."""
        self._streams.setdefault(get_ident(), args[0])

    def add_to_block(
        self, block: nn.Module, args: Any, output: Tensor | None
    ) -> Tensor | None:
        """Add the branch to the block's output; after a failed block, only forget the stream."""
        stream = self._streams.pop(get_ident(), None)
        if output is None:
            return None
        if stream is None:
            raise TunerError(
                f"block must call its norm2 or mlp for an adapter, got a {type(block).__name__} that did not"
            )
        # Some blocks flatten a grid of tokens before the MLP and restore it after.
        return output + self.branch(stream, block.training).reshape(output.shape)


@TUNERS.register("adapter")
class AdapterTuner(Tuner):
    """Adapters: in every block, beside the MLP, scale * up(dropout(relu(down(x)))).

    Serves vision transformers whose blocks have ``norm2`` and ``mlp``. Post-norm blocks
    have the stream itself as the MLP's input. See :class:`AdapterConfig` for the
    settings.

    Examples
    --------
    One adapter per task, switched for every pass:

    >>> import timm, torch
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=0).eval()
    >>> adapters = [create_tuner("adapter", model, bottleneck=4, seed=task) for task in range(3)]
    >>> for adapter in adapters:
    ...     _ = adapter.requires_grad_(False).disable()
    >>> features = []
    >>> for adapter in adapters:
    ...     with adapter.enable(), torch.no_grad():
    ...         features.append(model(torch.zeros(1, 3, 32, 32)))
    >>> torch.cat(features, dim=1).shape
    torch.Size([1, 576])
    """

    name = "adapter"
    config_class = AdapterConfig
    adapts = True

    def _layers(
        self, model: nn.Module, drawer: Drawer
    ) -> Iterator[tuple[TransformerBlock, AdapterLayer]]:
        for block in find_blocks(model):
            block.part("norm2")
            yield block, AdapterLayer(block, self.config, drawer)

    def _attach(self) -> Iterator[Handle]:
        for block, layer in self._pairs:
            yield block.part("norm2").register_forward_pre_hook(layer.keep_stream)
            yield block.part("mlp").register_forward_pre_hook(layer.keep_stream)
            # First in line: prompts that another tuner appended are dropped by a later
            # hook of the block.
            yield block.module.register_forward_hook(
                layer.add_to_block, prepend=True, always_call=True
            )
