"""Depths of an image network, read while it runs: hooks pool what a block or stage returns, and nothing is kept.

A hook sees exactly what the next layer sees, tuners on the network included, and the pass itself is the network's own,
so that the final vector is the same to the last bit. What hooks read of timm's transformers agrees with
``forward_intermediates(norm=True)``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import nearest
from evergrow.features.recipes import FINAL, Block

_CONTAINERS = ("blocks", "stages", "layers")
_NUMBERED = (("layer1", "layer2", "layer3", "layer4"), ("s1", "s2", "s3", "s4"))
_POOLS = ("global_pool", "head.global_pool")


def depth_names(module: nn.Module) -> list[str]:
    """Return the submodules that are a network's depths, in the order of computation; none where that is unknown.

    Examples
    --------
    >>> import timm
    >>> from evergrow.features.depths import depth_names
    >>> depth_names(timm.create_model("test_resnet"))
    ['layer1', 'layer2', 'layer3', 'layer4']
    """
    for name in _CONTAINERS:
        parts = getattr(module, name, None)
        if not isinstance(parts, (nn.Sequential, nn.ModuleList)) or len(parts) < 2:
            continue
        if not any(isinstance(part, nn.ModuleList) for part in parts):  # which are never called themselves
            return [f"{name}.{place}" for place in range(len(parts))]
    for names in _NUMBERED:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
            return list(names)
    known = dict(module.named_modules())
    return [name for name in _stage_widths(module) if name in known and not name.startswith("head")]


def _stage_widths(module: nn.Module) -> dict[str, int]:
    """Return the channels of timm's own list of stages, by the name of their module."""
    info: Any = getattr(module, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return {}
    return {str(entry["module"]): int(entry["num_chs"]) for entry in entries if {"module", "num_chs"} <= set(entry)}


class DepthReader:
    """Reads blocks of features while a network runs.

    Parameters
    ----------
    module : torch.nn.Module
        From images to vectors (n, d).
    blocks : sequence of Block
        What to read.

    Raises
    ------
    ParameterError
        If the network lacks a depth, a submodule or a class token that is asked for; the message says what there is.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.features.depths import DepthReader
    >>> from evergrow.features.recipes import Block
    >>> network = timm.create_model("test_vit", num_classes=0).eval()
    >>> reader = DepthReader(network, [Block.parse("final"), Block.parse("mean@-2")])
    >>> with torch.inference_mode():
    ...     [tuple(block.shape) for block in reader(torch.zeros(2, 3, 160, 160))]
    [(2, 64), (2, 64)]
    """

    def __init__(self, module: nn.Module, blocks: Sequence[Block]) -> None:
        self._module = module
        self._blocks = tuple(blocks)
        self._depths = depth_names(module)
        self._prefix = _prefix_tokens(module)
        self._wanted: dict[str, list[Block]] = {}
        for block in self._blocks:
            if block.pooling != FINAL:
                self._wanted.setdefault(self._site(block), []).append(block)

    def __call__(self, images: Tensor) -> list[Tensor]:
        """Return the blocks (n, width) of a batch, in float32, from one pass of the network."""
        read: dict[Block, Tensor] = {}
        with self._reading(read, images.shape[0]):
            output = self._module(images)
        if not isinstance(output, Tensor):
            raise InputError(f"module must return a tensor (n, d), got {type(output).__name__}")
        read[Block.parse(FINAL)] = output.float()
        missing = next((block for block in self._blocks if block not in read), None)
        if missing is not None:
            raise InputError(f"block {str(missing)!r} must be computed in a pass, but its place was never reached")
        return [read[block] for block in self._blocks]

    # -- places -----------------------------------------------------------------------------------------

    def _site(self, block: Block) -> str:
        """Return the name of the submodule where a block is read, or say what there is."""
        if isinstance(block.place, int):
            if -block.place > len(self._depths):
                raise ParameterError(f"block must be read at a depth of the network, got {str(block)!r}: {self._there}")
            return self._depths[block.place]
        if block.place == FINAL:
            return self._final_site(block)
        known = [name for name, _ in self._module.named_modules() if name]
        if block.place not in known:
            raise ParameterError(
                f"block must be read at a submodule of {type(self._module).__name__}, got {str(block)!r}; nearest: "
                f"{nearest(block.place, known)}"
            )
        return block.place

    def _final_site(self, block: Block) -> str:
        """Return where the network's own pooling begins: its pooling layer, or the last block of a transformer."""
        known = dict(self._module.named_modules())
        site = next((name for name in _POOLS if name in known), None)
        if site is None and self._depths:
            site = self._depths[-1]
        if site is None:
            raise ParameterError(
                f"block must be read at a submodule, since {type(self._module).__name__} has no pooling of its own "
                f"that could be found, got {str(block)!r}"
            )
        return site

    @property
    def _there(self) -> str:
        name = type(self._module).__name__
        if not self._depths:
            return f"{name} has none that is known; name a submodule instead, as in mean@features.3"
        return f"{name} has -1 ({self._depths[-1]}) to -{len(self._depths)} ({self._depths[0]})"

    # -- hooks ------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, read: dict[Block, Tensor], n: int) -> Iterator[None]:
        """Put hooks into the network for the time of a pass; they heed no pass of another thread."""
        thread, tokens = threading.get_ident(), _TokenCount()
        with ExitStack() as stack:
            if self._depths and self._prefix is not None:
                first = self._module.get_submodule(self._depths[0])
                stack.callback(first.register_forward_pre_hook(tokens.note, prepend=True).remove)
            for name, blocks in self._wanted.items():
                site = self._module.get_submodule(name)
                take = self._taker(name, blocks, read, n, thread, tokens)
                if name in _POOLS:  # what goes into it is the map
                    handle = site.register_forward_pre_hook(lambda part, args, take=take: take(args[0]))
                else:
                    handle = site.register_forward_hook(lambda part, args, out, take=take: take(out))
                stack.callback(handle.remove)
            yield

    def _taker(
        self,
        name: str,
        blocks: list[Block],
        read: dict[Block, Tensor],
        n: int,
        thread: int,
        tokens: _TokenCount,
    ) -> Callable[[Any], None]:
        """Return a function that pools what a place gives into its blocks."""

        def take(output: Any) -> None:
            if threading.get_ident() != thread:
                return
            for block in blocks:
                if block in read:
                    raise InputError(f"block {str(block)!r} must be computed once in a pass, got a place reached twice")
            rows = self._positions(name, blocks[0], output, n, tokens)
            for block in blocks:
                read[block] = self._pooled(block, rows)

        return take

    def _positions(self, name: str, block: Block, output: Any, n: int, tokens: _TokenCount) -> Tensor:
        """Return an output as positions (n, p, width), in float32 and as the final norm of the network leaves it."""
        if isinstance(block.place, int) and isinstance(output, (tuple, list)) and output:
            output = output[0]  # of timm's blocks the first is what the next one goes on with
        if not isinstance(output, Tensor):
            raise InputError(
                f"block {str(block)!r} must be read at a submodule that returns a tensor, got "
                f"{type(output).__name__} from {name}"
            )
        if output.ndim not in (2, 3, 4) or output.shape[0] != n:
            raise InputError(
                f"block {str(block)!r} must be read at a submodule that returns ({n}, positions, channels) or "
                f"({n}, channels, height, width), got shape {tuple(output.shape)} from {name}"
            )
        if output.ndim == 4:
            output = self._normed(output, name)
            last = self._channels_last(output, name)
            rows: Tensor = output.flatten(1, 2) if last else output.flatten(2).transpose(1, 2)
            return rows.float()
        if output.ndim == 3:
            if name in self._depths and tokens.n is not None:
                output = output[:, : tokens.n]  # a tuner's prompts run behind the tokens of the image
            return self._normed(output, name).float()
        return output.unsqueeze(1).float()

    def _normed(self, output: Tensor, name: str) -> Tensor:
        """Apply the final norm to what a depth gives, where it is a norm for that: all depths then speak one scale."""
        norm = getattr(self._module, "norm", None)
        weight = getattr(norm, "weight", None)
        if name not in self._depths or not isinstance(norm, nn.Module) or not isinstance(weight, Tensor):
            return output
        of_maps = type(norm).__name__.endswith("2d")
        tokens = output.ndim == 3 or self._channels_last(output, name)
        width = output.shape[-1] if tokens else output.shape[1]
        if weight.shape != (width,) or of_maps == tokens:
            return output
        result: Tensor = norm(output)
        return result

    def _channels_last(self, output: Tensor, name: str) -> bool:
        """Return whether a map (n, ., ., .) has its channels at the end, as windowed transformers have."""
        if str(getattr(self._module, "output_fmt", "")).rpartition(".")[2].upper() == "NHWC":
            return True
        width = _stage_widths(self._module).get(name)
        return width is not None and output.shape[1] != width == output.shape[3]

    # -- pooling ----------------------------------------------------------------------------------------

    def _pooled(self, block: Block, rows: Tensor) -> Tensor:
        prefix = (self._prefix or 0) if self._site(block) in self._depths else 0
        if block.pooling == "cls":
            if not prefix or not has_class_token(self._module):
                raise ParameterError(
                    f"block must be pooled over positions, since {type(self._module).__name__} has no class token, "
                    f"got {str(block)!r}: there are mean, max and spread"
                )
            return rows[:, 0]
        if block.pooling == "vector":
            if rows.shape[1] != 1:
                raise ParameterError(
                    f"block must be pooled over its {rows.shape[1]} positions, got {str(block)!r}: there are mean, max "
                    "and spread"
                )
            return rows[:, 0]
        return pool_positions(block.pooling, rows[:, prefix:])


class _TokenCount:
    """The tokens that an image has when it comes to the first block, before any tuner appends its own."""

    def __init__(self) -> None:
        self.n: int | None = None

    def note(self, part: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].ndim == 3:
            self.n = args[0].shape[1]


def pool_positions(pooling: str, rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean, maximum or standard deviation over positions.

    Parameters
    ----------
    pooling : {"mean", "max", "spread"}
        Which.
    rows : Tensor of shape (n, p, width)
        Positions.
    mask : Tensor of shape (n, p), optional
        Which of them count; all by default. A row without any gives zeros.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.depths import pool_positions
    >>> rows = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> mask = torch.tensor([[1, 1, 0]])
    >>> [pool_positions(name, rows, mask).item() for name in ("mean", "max", "spread")]
    [2.0, 3.0, 1.0]
    """
    if mask is None:
        if pooling == "mean":
            return rows.mean(dim=1)
        return rows.amax(dim=1) if pooling == "max" else rows.var(dim=1, correction=0).sqrt()
    counted = mask.bool().unsqueeze(2)
    total = counted.sum(dim=1).clamp_min(1)
    if pooling == "max":
        empty = ~counted.any(dim=1)
        return rows.masked_fill(~counted, -torch.inf).amax(dim=1).masked_fill(empty, 0.0)
    mean = rows.masked_fill(~counted, 0.0).sum(dim=1) / total
    if pooling == "mean":
        return mean
    gaps = (rows - mean.unsqueeze(1)).masked_fill(~counted, 0.0)
    return (gaps.square().sum(dim=1) / total).sqrt()


def _prefix_tokens(module: nn.Module) -> int | None:
    """Return how many tokens come before those of the image; None where the network is no plain transformer."""
    count = getattr(module, "num_prefix_tokens", None)
    return count if isinstance(count, int) else None


def has_class_token(module: nn.Module) -> bool:
    """Return whether the first token of a plain transformer is a class token."""
    token = getattr(module, "cls_token", None)
    if token is None:  # where it lies among the embeddings
        return bool(getattr(module, "has_class_token", False))
    return True
