"""Prompts at the end of the sequence: new ones in every block, or one set that runs through all blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from evergrow.adapt.tuners.tuner import (
    TUNERS,
    Drawer,
    Handle,
    TransformerBlock,
    Tuner,
    TunerConfig,
    TunerError,
    UnsupportedModelError,
    find_blocks,
)
from evergrow.core.validation import check_number
from evergrow.lab.tuners.attention import (
    AttentionEdit,
    AttentionSite,
    is_known_attention,
)


@dataclass(frozen=True)
class VPTConfig(TunerConfig):
    """Settings of the ``vpt-deep`` and ``vpt-shallow`` tuners.

    Parameters
    ----------
    tokens : int
        Prompts per block, or at the input.
    std : float
        Standard deviation of their initial values. With 0, the published setting, the
        prompts of a block start equal and stay equal.

    Examples
    --------
    >>> from evergrow.lab.tuners.vpt import VPTConfig
    >>> VPTConfig(tokens=10).std
    0.0
    """

    tokens: int = 5
    std: float = 0.0

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("tokens", self.tokens, low=1, integer=True)
        check_number("std", self.std, low=0)


_WITHOUT_POSITIONS = {
    "ParallelScalingBlock",
    "DiffParallelScalingBlock",
    "ParallelThingsBlock",
    "DiffAttention",
}


class PromptLayer(nn.Module, AttentionEdit):
    """Prompts (tokens, d), and the hooks that append and drop them; they have no place in the image."""

    def __init__(
        self, block: TransformerBlock, width: int, config: VPTConfig, drawer: Drawer
    ) -> None:
        super().__init__()
        self.tail = config.tokens
        like = next(block.module.parameters())
        self.prompts = drawer.normal(
            (config.tokens, width), like, 0.0, config.std, block.name
        )

    def append(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Append the prompts to a block's input (B, N, d); no position is added to them."""
        x = args[0]
        if kwargs.get("attn_mask") is not None:
            raise TunerError(
                "attn_mask must be None with prompts in the sequence, got a mask; disable the tuner"
            )
        prompts = self.prompts.to(x.dtype).expand(x.shape[0], -1, -1)
        return (torch.cat([x, prompts], dim=1), *args[1:]), kwargs

    def drop(self, block: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Drop as many tokens from the end of a block's output."""
        return output[:, : output.shape[1] - self.prompts.shape[0]]


class _PromptTuner(Tuner):
    """The base of deep and shallow prompts."""

    config_class = VPTConfig
    adapts = True
    deep: ClassVar[bool]

    def _layers(
        self, model: nn.Module, drawer: Drawer
    ) -> Iterator[tuple[TransformerBlock, PromptLayer]]:
        self._blocks = find_blocks(model)
        self._rotary = getattr(model, "rope", None) is not None
        width = getattr(model, "embed_dim", None)
        if not isinstance(width, int):
            raise UnsupportedModelError(
                f"model must have one embed_dim for all blocks, got {width!r}"
            )
        for block in self._blocks:
            _require_tokens_welcome(model, block)
        for block in self._blocks if self.deep else self._blocks[:1]:
            yield block, PromptLayer(block, width, self.config, drawer)

    def _attach(self) -> Iterator[Handle]:
        for number, block in enumerate(self._blocks if self._rotary else ()):
            yield AttentionSite.of(block.part("attn")).add(
                self._pairs[number if self.deep else 0][1]
            )
        for first, layer in self._pairs:
            last = first if self.deep else self._blocks[-1]
            yield first.module.register_forward_pre_hook(layer.append, with_kwargs=True)
            yield last.module.register_forward_hook(layer.drop)


@TUNERS.register("vpt-deep")
class VPTDeepTuner(_PromptTuner):
    """Deep visual prompts: every block sees its own learned tokens, which are dropped after it.

    Prompts are appended at the end of the sequence, have no position embedding, and
    rotary embeddings leave them alone. Serves timm's plain vision transformers (class
    token, registers or neither), not attention with relative positions or windows. See
    :class:`VPTConfig` for the settings.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> create_tuner("vpt-deep", model).n_trainable
    1920
    """

    name = "vpt-deep"
    deep = True


@TUNERS.register("vpt-shallow")
class VPTShallowTuner(_PromptTuner):
    """Shallow visual prompts: learned tokens enter the first block, run through all and are dropped after the last.

    The final norm and the pooling see the image's tokens only. Intermediate features of
    the model, where asked for, have the prompts at their end. Otherwise as
    :class:`VPTDeepTuner`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> create_tuner("vpt-shallow", model, tokens=10).n_trainable
    1920
    """

    name = "vpt-shallow"
    deep = False


def _require_tokens_welcome(model: nn.Module, block: TransformerBlock) -> None:
    """Refuse attention that counts on the number of tokens."""
    attention = getattr(block.module, "attn", None)
    kinds = {type(block.module).__name__, type(attention).__name__}
    relative = getattr(attention, "relative_position_bias_table", None) is not None
    relative = relative or getattr(model, "rel_pos_bias", None) is not None
    if relative or not (is_known_attention(attention) or kinds & _WITHOUT_POSITIONS):
        raise UnsupportedModelError(
            f"{block.name} must attend to any number of tokens for prompts, got {' with '.join(sorted(kinds))}"
            f"{' and relative positions' if relative else ''}"
        )
