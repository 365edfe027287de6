"""Prefix tuning: additional keys and values that the tokens of an image attend to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    TunerError,
    find_blocks,
)
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_choice, check_integer, check_number
from evergrow.lab.tuners.attention import (
    AttentionEdit,
    AttentionSite,
    attention_width,
    truncated_normal,
)


@dataclass(frozen=True)
class PrefixConfig(TunerConfig):
    """Settings of the ``prefix`` tuner.

    Parameters
    ----------
    source : {"own", "provider"}
        ``"own"``: keys and values are parameters of the tuner, the same for every
        image. ``"provider"``: the tuner has no parameters and calls a function in every
        pass, which may return other prompts per image.
    length : int
        Number of keys and values per block for ``"own"``.
    std : float
        Standard deviation of their initial values, truncated at two deviations.
    blocks : tuple of int, optional
        Block numbers. The default is the first five blocks, or all if there are fewer.

    Examples
    --------
    >>> from evergrow.lab.tuners.prefix import PrefixConfig
    >>> PrefixConfig(source="provider").length
    4
    """

    source: str = "own"
    length: int = 4
    std: float = 0.02
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid."""
        check_choice("source", self.source, ("own", "provider"))
        check_integer("length", self.length)
        check_number("std", self.std, low=0)
        if self.blocks is not None and not _are_block_numbers(self.blocks):
            raise ParameterError(
                "blocks must be None or distinct block numbers from 0 up, "
                f"got {self.blocks!r}"
            )


def _are_block_numbers(blocks: object) -> bool:
    if not isinstance(blocks, tuple) or not blocks:
        return False
    if any(type(index) is not int or index < 0 for index in blocks):
        return False
    return len(set(blocks)) == len(blocks)


PromptProvider = Callable[[int, Tensor], "tuple[Tensor, Tensor] | None"]
"""Function of a block number and the input (B, N, C) of its attention.

It returns keys and values, each (B, L, d) or (L, d) with d the width of all heads, or
None to leave the block unchanged.
"""

_DEFAULT_BLOCKS = 5


class PrefixLayer(nn.Module):
    """Parameters of one block: keys and values, each (length, d)."""

    def __init__(
        self, block: TransformerBlock, config: PrefixConfig, drawer: Drawer
    ) -> None:
        super().__init__()
        shape = (config.length, attention_width(block))
        like = next(block.module.parameters())
        name = block.name
        self.keys = truncated_normal(drawer, shape, like, config.std, name, "keys")
        self.values = truncated_normal(drawer, shape, like, config.std, name, "values")


class _PrefixEdit(AttentionEdit):
    """Appends the tuner's keys and values of a block."""

    def __init__(self, tuner: PrefixTuner, block: TransformerBlock) -> None:
        self._tuner = tuner
        self._block = block

    def heads(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        prompts = self._tuner.prompts_for(self._block.index, x)
        if prompts is None:
            return q, k, v
        # The order of keys does not matter to attention. At the end they do not change
        # the index of any token.
        keys, values = prompts
        return q, self._extend(k, keys, "keys"), self._extend(v, values, "values")

    def _extend(self, heads: Tensor, prompt: Tensor, kind: str) -> Tensor:
        batch, count, _, size = heads.shape
        width = count * size
        if (
            prompt.ndim not in (2, 3)
            or prompt.shape[-1] != width
            or (prompt.ndim == 3 and len(prompt) != batch)
        ):
            raise InputError(
                f"{kind} of the prompt for {self._block.name} must be "
                f"({batch}, L, {width}) or (L, {width}), got {tuple(prompt.shape)}"
            )
        split = prompt.reshape(*prompt.shape[:-1], count, size).transpose(-3, -2)
        appended = split.expand(batch, -1, -1, -1).to(heads.dtype)
        return torch.cat([heads, appended], dim=2)


@TUNERS.register("prefix")
class PrefixTuner(Tuner):
    """Prefix tuning: learned keys and values that every token of a block attends to.

    With ``source="provider"`` the prompts come from a function and may differ per
    image: set :attr:`provider`, or pass prompts temporarily with :meth:`using`. They
    are appended after projection, normalisation and rotary embedding of the keys. Works
    with timm's attention layers in
    :data:`evergrow.lab.tuners.attention.KNOWN_ATTENTION`. See :class:`PrefixConfig` for
    the settings.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.adapt.tuners import create_tuner
    >>> tiny = dict(img_size=32, patch_size=8, depth=2, num_classes=0)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny).eval()
    >>> tuner = create_tuner("prefix", model, source="provider", blocks=(0,))
    >>> images = torch.zeros(3, 3, 32, 32)
    >>> prompts = torch.ones(3, 8, 192)  # four keys, then four values
    >>> with tuner.disable():
    ...     query = model(images)
    >>> with tuner.using({0: prompts}):
    ...     model(images).shape
    torch.Size([3, 192])
    """

    name = "prefix"
    config_class = PrefixConfig
    provider: PromptProvider | None

    def _build(self, model: nn.Module) -> None:
        self.provider = None
        all_blocks = find_blocks(model)
        numbers = self.config.blocks
        if numbers and max(numbers) >= len(all_blocks):
            raise ParameterError(
                f"blocks must be numbers below {len(all_blocks)}, the model's depth, "
                f"got {numbers!r}"
            )
        if numbers:
            self._blocks = [all_blocks[index] for index in sorted(numbers)]
        else:
            self._blocks = all_blocks[:_DEFAULT_BLOCKS]
        for block in self._blocks:
            AttentionSite.of(block.part("attn"))
        self._own: dict[int, PrefixLayer] = {}
        if self.config.source == "own":
            drawer = self._drawer()
            for block in self._blocks:
                layer = PrefixLayer(block, self.config, drawer)
                self._own[block.index] = layer
                self._plant(block.name, layer)

    def _attach(self) -> Iterator[Handle]:
        for block in self._blocks:
            yield AttentionSite.of(block.part("attn")).add(_PrefixEdit(self, block))

    def prompts_for(self, block: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return keys and values for a block with attention input ``x``."""
        own = self._own.get(block)
        if own is not None:
            return own.keys, own.values
        if self.provider is None:
            raise TunerError(
                "provider must be set while a prefix tuner with source='provider' is "
                "enabled, got None. Use tuner.using(prompts), or tuner.disable() for "
                "the base model."
            )
        return self.provider(block, x)

    @contextmanager
    def using(
        self, prompts: PromptProvider | Mapping[int, Tensor | tuple[Tensor, Tensor]]
    ) -> Iterator[PrefixTuner]:
        """Use these prompts until the end of the ``with`` statement.

        Parameters
        ----------
        prompts : callable or mapping
            A :data:`PromptProvider`, or a mapping from block numbers to prompts. A
            prompt is a pair of keys and values, or one tensor (B, 2 L, d) or (2 L, d)
            with keys in the first half of rows and values in the second. Blocks not in
            the mapping are unchanged.
        """
        if self.config.source != "provider":
            raise TunerError(
                "This tuner has its own prompts, so none can be passed. Create it with "
                "source='provider'."
            )
        before = self.provider
        if callable(prompts):
            self.provider = prompts
        else:
            self.provider = _lookup(dict(prompts))
        try:
            yield self
        finally:
            self.provider = before


def _lookup(prompts: dict[int, Tensor | tuple[Tensor, Tensor]]) -> PromptProvider:
    """Return a provider that takes prompts from a dict by block number."""

    def provide(block: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        found = prompts.get(block)
        if not isinstance(found, Tensor):
            return found
        rows = found.shape[-2] if found.ndim >= 2 else 1
        if rows % 2:
            raise InputError(
                f"prompt for block {block} must have an even number of rows, got {rows}"
            )
        keys, values = found.chunk(2, dim=-2)
        return keys, values

    return provide
