"""Visual prompts at the end of the token sequence: per block, or one set for all."""

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
from evergrow.core.validation import check_integer, check_number
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
        Standard deviation of the initial values. With 0, the published setting, all
        prompts of a block stay equal.

    Examples
    --------
    >>> from evergrow.lab.tuners.vpt import VPTConfig
    >>> VPTConfig(tokens=10).std
    0.0
    """

    tokens: int = 5
    std: float = 0.0

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid."""
        check_integer("tokens", self.tokens)
        check_number("std", self.std, low=0)


_WITHOUT_POSITIONS = {
    "ParallelScalingBlock",
    "DiffParallelScalingBlock",
    "ParallelThingsBlock",
    "DiffAttention",
}


class PromptLayer(nn.Module, AttentionEdit):
    """Prompts (tokens, d) without a position, and hooks that append and drop them."""

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
        """Append the prompts to a block's input (B, N, d), without positions."""
        x = args[0]
        if kwargs.get("attn_mask") is not None:
            raise TunerError(
                "attn_mask must be None with prompts in the sequence, got a mask. "
                "Disable the tuner."
            )
        prompts = self.prompts.to(x.dtype).expand(x.shape[0], -1, -1)
        return (torch.cat([x, prompts], dim=1), *args[1:]), kwargs

    def drop(self, block: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Drop the prompts from the end of a block's output."""
        return output[:, : output.shape[1] - self.prompts.shape[0]]


class _PromptTuner(Tuner):
    """Base of deep and shallow prompts."""

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
            _check_accepts_tokens(model, block)
        for block in self._blocks if self.deep else self._blocks[:1]:
            yield block, PromptLayer(block, width, self.config, drawer)

    def _attach(self) -> Iterator[Handle]:
        if self._rotary:
            for index, block in enumerate(self._blocks):
                layer = self._pairs[index if self.deep else 0][1]
                yield AttentionSite.of(block.part("attn")).add(layer)
        for first, layer in self._pairs:
            last = first if self.deep else self._blocks[-1]
            yield first.module.register_forward_pre_hook(layer.append, with_kwargs=True)
            yield last.module.register_forward_hook(layer.drop)


@TUNERS.register("vpt-deep")
class VPTDeepTuner(_PromptTuner):
    """Deep visual prompts: every block gets its own tokens and drops them afterwards.

    Prompts are appended to the sequence without position embedding, also without rotary
    embedding. Works with timm's plain vision transformers (class token, registers or
    neither), not with windows or relative positions. See :class:`VPTConfig` for the
    settings.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> tiny = dict(img_size=32, patch_size=8, depth=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny)
    >>> create_tuner("vpt-deep", model).n_trainable
    1920
    """

    name = "vpt-deep"
    deep = True


@TUNERS.register("vpt-shallow")
class VPTShallowTuner(_PromptTuner):
    """Shallow visual prompts: tokens enter the first block and pass through all.

    They are dropped after the last block, so the final norm and the pooling see only
    tokens of the image. Intermediate features of the model include them at their end.
    Otherwise equal to :class:`VPTDeepTuner`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> tiny = dict(img_size=32, patch_size=8, depth=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny)
    >>> create_tuner("vpt-shallow", model, tokens=10).n_trainable
    1920
    """

    name = "vpt-shallow"
    deep = False


def _check_accepts_tokens(model: nn.Module, block: TransformerBlock) -> None:
    """Raise if a block's attention depends on the number of tokens."""
    attention = getattr(block.module, "attn", None)
    kinds = {type(block.module).__name__, type(attention).__name__}
    relative = getattr(attention, "relative_position_bias_table", None) is not None
    relative = relative or getattr(model, "rel_pos_bias", None) is not None
    if relative or not (is_known_attention(attention) or kinds & _WITHOUT_POSITIONS):
        found = " with ".join(sorted(kinds))
        if relative:
            found += " and relative positions"
        raise UnsupportedModelError(
            f"{block.name} must attend to any number of tokens for prompts, got {found}"
        )
