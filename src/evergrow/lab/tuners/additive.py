"""k[cls] + p_k and v[cls] + p_v in every block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evergrow.adapt.tuners.base import (
    TUNERS,
    Drawer,
    Handle,
    Tuner,
    TunerConfig,
    UnsupportedModelError,
    check_blocks,
    layer_parameter,
)
from evergrow.adapt.tuners.vit import AttentionEdit, AttentionSite, Block, attention_width, find_blocks
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class AdditiveConfig(TunerConfig):
    """Settings of the ``additive`` tuner.

    Parameters
    ----------
    std : float
        Standard deviation of the initial vectors, cut off at two of them.
    blocks : tuple of int, optional
        In which blocks; all by default.

    Examples
    --------
    >>> from evergrow.lab.tuners.additive import AdditiveConfig
    >>> AdditiveConfig().std
    0.02
    """

    std: float = 0.02
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("std", self.std, low=0)
        check_blocks(self.blocks)


class AdditiveLayer(nn.Module):
    """The two vectors (d,) of one block."""

    def __init__(self, block: Block, config: AdditiveConfig, drawer: Drawer) -> None:
        super().__init__()
        shape = (attention_width(block),)
        self.key = layer_parameter(drawer.truncated(shape, block.like, config.std, block.name, "key"))
        self.value = layer_parameter(drawer.truncated(shape, block.like, config.std, block.name, "value"))


class _AdditiveEdit(AttentionEdit):
    """Adds the vectors of one block, cut into heads."""

    def __init__(self, layer: AdditiveLayer) -> None:
        self._layer = layer

    def heads(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, _to_first(k, self._layer.key), _to_first(v, self._layer.value)


def _to_first(heads: Tensor, vector: Tensor) -> Tensor:
    """Add a vector (d,) to the first token of (B, heads, N, head_dim)."""
    first = heads[:, :, :1] + vector.reshape(heads.shape[1], 1, -1).to(heads.dtype)
    return torch.cat([first, heads[:, :, 1:]], dim=2)


@TUNERS.register("additive")
class AdditiveTuner(Tuner):
    """Additive prompts: in every block a learned vector joins the class token's key, and another its value.

    They are added after the norm of keys, where a model has one. Serves timm's attention layers in models that have a
    class token. See :class:`AdditiveConfig` for the settings.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> create_tuner("additive", model).trainable_counts()
    {'blocks.0': 384, 'blocks.1': 384, 'total': 768}
    """

    name = "additive"
    config_class = AdditiveConfig

    def _build(self, model: nn.Module) -> None:
        blocks = find_blocks(model, self.config.blocks)
        if getattr(model, "cls_token", None) is None:
            raise UnsupportedModelError(f"model must have a class token to add to, got {type(model).__name__} without")
        drawer = self._drawer()
        for block in blocks:
            AttentionSite.of(block.part("attn"))
        self._pairs = [(block, AdditiveLayer(block, self.config, drawer)) for block in blocks]
        for block, layer in self._pairs:
            self._plant(block.name, layer)

    def _attach(self) -> Iterator[Handle]:
        for block, layer in self._pairs:
            yield AttentionSite.of(block.part("attn")).add(_AdditiveEdit(layer))
