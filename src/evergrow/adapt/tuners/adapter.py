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
    bottleneck : int, default=64
        Width of the branch. Its input is the residual stream after attention, before
        normalisation. Its output is added to the block's output, after layer scale.
    scale : float, default=0.1
        Factor on the branch's output.
    dropout : float, default=0.1
        Dropout inside the branch during training.

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
        """Raise :class:`~evergrow.core.errors.ParameterError` if out of range."""
        check_number("bottleneck", self.bottleneck, low=1, integer=True)
        check_number("scale", self.scale)
        check_number("dropout", self.dropout, low=0, high=1, high_open=True)


class AdapterLayer(nn.Module):
    """Branch of one block, scale * up(dropout(relu(down(x)))), and its hooks.

    Parameters
    ----------
    block : TransformerBlock
        The block.
    config : AdapterConfig
        Settings.
    drawer : Drawer
        Draws the initial ``down``. ``up`` and the biases start at zero, so that the
        branch has no effect at first.
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
        # By thread, because several threads may run the model at once.
        self._streams: dict[int, Tensor] = {}

    def branch(self, x: Tensor, training: bool) -> Tensor:
        """Return the branch's output for tokens (n, length, d).

        `training` is the mode of the block: dropout needs it and the tuner's own mode.
        """
        h = torch.relu(linear(x, self.down_weight, self.down_bias))
        # Drawn from torch's global generator, as all dropout of the backbone.
        h = dropout(h, self.config.dropout, training and self.training)
        return linear(h, self.up_weight, self.up_bias) * self.config.scale

    def keep_stream(self, part: nn.Module, args: tuple[Any, ...]) -> None:
        """Store the first input of ``norm2`` or ``mlp``. A hook of torch.

        Of the two, the part that the block calls first has the residual stream.
        """
        self._streams.setdefault(get_ident(), args[0])

    def add_to_block(
        self, block: nn.Module, args: Any, output: Tensor | None
    ) -> Tensor | None:
        """Return the block's output plus the branch. A hook of torch.

        A block that raised has no output, and None is returned.
        """
        stream = self._streams.pop(get_ident(), None)
        if output is None:
            return None
        if stream is None:
            raise TunerError(
                "block must call its norm2 or mlp for an adapter, "
                f"got a {type(block).__name__} that did not"
            )
        # Some blocks flatten a grid of tokens for the MLP only.
        return output + self.branch(stream, block.training).reshape(output.shape)


@TUNERS.register("adapter")
class AdapterTuner(Tuner):
    """Adapter branches scale * up(dropout(relu(down(x)))) parallel to the MLPs.

    Supports vision transformers whose blocks have ``norm2`` and ``mlp``. In post-norm
    blocks the stream is the input of the MLP. See :class:`AdapterConfig`.

    Examples
    --------
    One adapter per task, enabled in turn:

    >>> import timm, torch
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model(
    ...     "vit_tiny_patch16_224", img_size=32, depth=2, num_classes=0
    ... ).eval()
    >>> adapters = [
    ...     create_tuner("adapter", model, bottleneck=4, seed=task) for task in range(3)
    ... ]
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
            # First, because another tuner's hook of the block drops appended prompts.
            yield block.module.register_forward_hook(
                layer.add_to_block, prepend=True, always_call=True
            )
