"""Learned vectors added to the key and value of the class token in every block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
from evergrow.core.validation import check_number
from evergrow.lab.tuners.attention import (
    AttentionEdit,
    AttentionSite,
    attention_width,
    truncated_normal,
)


@dataclass(frozen=True)
class AdditiveConfig(TunerConfig):
    """Settings of the ``additive`` tuner.

    Parameters
    ----------
    std : float
        Standard deviation of the initial vectors, truncated at two deviations.

    Examples
    --------
    >>> from evergrow.lab.tuners.additive import AdditiveConfig
    >>> AdditiveConfig().std
    0.02
    """

    std: float = 0.02

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid."""
        check_number("std", self.std, low=0)


class AdditiveLayer(nn.Module, AttentionEdit):
    """The two vectors (d,) of one block, split into heads and added in attention."""

    def __init__(
        self, block: TransformerBlock, config: AdditiveConfig, drawer: Drawer
    ) -> None:
        super().__init__()
        shape = (attention_width(block),)
        like = next(block.module.parameters())
        name = block.name
        self.key = truncated_normal(drawer, shape, like, config.std, name, "key")
        self.value = truncated_normal(drawer, shape, like, config.std, name, "value")

    def heads(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the vectors to the key and value of the class token."""
        return q, _add_to_first(k, self.key), _add_to_first(v, self.value)


def _add_to_first(heads: Tensor, vector: Tensor) -> Tensor:
    """Add a vector (d,) to the first token of (B, heads, N, head_dim)."""
    first = heads[:, :, :1] + vector.reshape(heads.shape[1], 1, -1).to(heads.dtype)
    return torch.cat([first, heads[:, :, 1:]], dim=2)


@TUNERS.register("additive")
class AdditiveTuner(Tuner):
    """Additive prompts: ``k[cls] + p_k`` and ``v[cls] + p_v`` in every block.

    The learned vectors p_k and p_v are added after the normalisation of keys, if the
    model has one. Requires timm's attention layers and a class token. See
    :class:`AdditiveConfig` for the settings.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> tiny = dict(img_size=32, patch_size=8, depth=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny)
    >>> create_tuner("additive", model).n_trainable
    768
    """

    name = "additive"
    config_class = AdditiveConfig

    def _layers(
        self, model: nn.Module, drawer: Drawer
    ) -> Iterator[tuple[TransformerBlock, AdditiveLayer]]:
        blocks = find_blocks(model)
        if getattr(model, "cls_token", None) is None:
            raise UnsupportedModelError(
                f"model must have a class token, got {type(model).__name__} without one"
            )
        for block in blocks:
            AttentionSite.of(block.part("attn"))
            yield block, AdditiveLayer(block, self.config, drawer)

    def _attach(self) -> Iterator[Handle]:
        for block, layer in self._pairs:
            yield AttentionSite.of(block.part("attn")).add(layer)
