"""Keys and values that the tokens attend to beside those of the image."""

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
from evergrow.core.validation import check_choice, check_number
from evergrow.lab.tuners.attention import (
    AttentionEdit,
    AttentionSite,
    attention_width,
    truncated,
)


@dataclass(frozen=True)
class PrefixConfig(TunerConfig):
    """Settings of the ``prefix`` tuner.

    Parameters
    ----------
    source : {"own", "provider"}
        ``"own"``: keys and values are parameters of the tuner, the same for every
        image. ``"provider"``: the tuner has no parameters and asks a callable in every
        pass, which may answer for every image by itself.
    length : int
        How many keys and values ``"own"`` has per block.
    std : float
        Standard deviation of their initial values, cut off at two of them.
    blocks : tuple of int, optional
        In which blocks; the first five by default, or all of a model that has fewer.

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
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_choice("source", self.source, ("own", "provider"))
        check_number("length", self.length, low=1, integer=True)
        check_number("std", self.std, low=0)
        plain = isinstance(self.blocks, tuple) and all(
            type(index) is int and index >= 0 for index in self.blocks
        )
        if self.blocks is not None and not (
            plain and 0 < len(set(self.blocks)) == len(self.blocks)
        ):
            raise ParameterError(
                f"blocks must be None or distinct block numbers from 0 up, got {self.blocks!r}"
            )


PromptProvider = Callable[[int, Tensor], "tuple[Tensor, Tensor] | None"]
"""Takes a block's number and its attention's input (B, N, C); gives keys and values, each (B, L, d) or (L, d), where d
is all heads together, or None to leave the block alone."""

_DEFAULT_BLOCKS = 5


class PrefixLayer(nn.Module):
    """The parameters of one block: keys and values, each (length, d)."""

    def __init__(
        self, block: TransformerBlock, config: PrefixConfig, drawer: Drawer
    ) -> None:
        super().__init__()
        shape = (config.length, attention_width(block))
        self.keys = truncated(
            drawer,
            shape,
            next(block.module.parameters()),
            config.std,
            block.name,
            "keys",
        )
        self.values = truncated(
            drawer,
            shape,
            next(block.module.parameters()),
            config.std,
            block.name,
            "values",
        )


class _PrefixEdit(AttentionEdit):
    """Adds what the tuner gives for a block."""

    def __init__(self, tuner: PrefixTuner, block: TransformerBlock) -> None:
        self._tuner = tuner
        self._block = block

    def heads(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = self._tuner.prompts_for(self._block.index, x)
        if given is None:
            return q, k, v
        # Attention does not care for the order of keys; at the end they leave the
        # numbering of tokens alone.
        return q, self._extend(k, given[0], "keys"), self._extend(v, given[1], "values")

    def _extend(self, heads: Tensor, prompt: Tensor, what: str) -> Tensor:
        batch, count, _, size = heads.shape
        if (
            prompt.ndim not in (2, 3)
            or prompt.shape[-1] != count * size
            or (prompt.ndim == 3 and len(prompt) != batch)
        ):
            raise InputError(
                f"{what} of the prompt for {self._block.name} must be ({batch}, L, {count * size}) or "
                f"(L, {count * size}), got {tuple(prompt.shape)}"
            )
        split = prompt.reshape(*prompt.shape[:-1], count, size).transpose(-3, -2)
        return torch.cat(
            [heads, split.expand(batch, -1, -1, -1).to(heads.dtype)], dim=2
        )


@TUNERS.register("prefix")
class PrefixTuner(Tuner):
    """Prefix tuning: learned keys and values that every token attends to, in some blocks.

    With ``source="provider"`` they come from outside, for every image by itself if need
    be: set :attr:`provider`, or pass prompts for one pass by :meth:`using`. They are
    added after the projections and norms of keys, and after rotary embeddings. Serves
    timm's attention layers, see :data:`evergrow.lab.tuners.attention.KNOWN_ATTENTION`.
    See :class:`PrefixConfig` for the settings.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=0).eval()
    >>> tuner = create_tuner("prefix", model, source="provider", blocks=(0,))
    >>> images, prompts = torch.zeros(3, 3, 32, 32), torch.ones(3, 8, 192)
    >>> with tuner.disable():
    ...     query = model(images)
    >>> with tuner.using({0: prompts}):  # the first four rows are keys, the last four values
    ...     model(images).shape
    torch.Size([3, 192])
    """

    name = "prefix"
    config_class = PrefixConfig
    provider: PromptProvider | None

    def _build(self, model: nn.Module) -> None:
        self.provider = None
        everything = find_blocks(model)
        wanted = self.config.blocks
        if wanted and max(wanted) >= len(everything):
            raise ParameterError(
                f"blocks must be numbers below {len(everything)}, the model's depth, got {wanted!r}"
            )
        if wanted:
            self._blocks = [everything[index] for index in sorted(wanted)]
        else:
            self._blocks = everything[:_DEFAULT_BLOCKS]
        for block in self._blocks:
            AttentionSite.of(block.part("attn"))
        self._own: dict[int, PrefixLayer] = {}
        if self.config.source == "own":
            drawer = self._drawer()
            self._own = {
                block.index: PrefixLayer(block, self.config, drawer)
                for block in self._blocks
            }
            for block in self._blocks:
                self._plant(block.name, self._own[block.index])

    def _attach(self) -> Iterator[Handle]:
        for block in self._blocks:
            yield AttentionSite.of(block.part("attn")).add(_PrefixEdit(self, block))

    def prompts_for(self, block: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return keys and values for a block whose attention is about to see ``x``."""
        own = self._own.get(block)
        if own is not None:
            return own.keys, own.values
        if self.provider is None:
            raise TunerError(
                "provider must be set while a prefix tuner with source='provider' is enabled, got None; use "
                "tuner.using(prompts), or tuner.disable() for the base model"
            )
        return self.provider(block, x)

    @contextmanager
    def using(
        self, prompts: PromptProvider | Mapping[int, Tensor | tuple[Tensor, Tensor]]
    ) -> Iterator[PrefixTuner]:
        """Take prompts from here until the end of the ``with`` statement.

        Parameters
        ----------
        prompts : callable or mapping
            A :data:`PromptProvider`; or by block number either keys and values, or one
            tensor (B, 2 L, d) or (2 L, d) whose first half of rows are keys and whose
            second half are values. Blocks that are not named are left alone.
        """
        if self.config.source != "provider":
            raise TunerError(
                "prompts must be left to the tuner, got some: create it with source='provider'"
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
