"""Depths of a network, read while it runs and pooled at once; nothing else is kept.

Of an image network they are read by hooks. A hook sees exactly what the next layer sees, tuners on the network
included, and the pass itself is the network's own, so that the final vector is the same to the last bit. What hooks
read of timm's transformers agrees with ``forward_intermediates(norm=True)``; that function is not used because it
knows five depths of an EfficientNet that has seven, drops the tokens that some tuners need, and reads no named
submodule. Of a sentence encoder they are the hidden states that its library returns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import nearest
from evergrow.features.recipes import FINAL, Block

_FINAL_BLOCK = Block(FINAL, FINAL)
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
        read[_FINAL_BLOCK] = output.float()
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
        thread = threading.get_ident()
        tokens: list[int] = []  # of an image at the first block, before any tuner appends its own

        def count(part: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor) and args[0].ndim == 3:
                tokens.append(args[0].shape[1])

        def take(name: str, output: Any) -> None:
            if threading.get_ident() != thread:
                return
            rows: Tensor | None = None
            for block in self._wanted[name]:
                if block in read:
                    raise InputError(f"block {str(block)!r} must be computed once in a pass, got a place reached twice")
                if rows is None:
                    rows = self._positions(name, block, output, n, tokens[-1] if tokens else None)
                read[block] = self._pooled(block, rows)

        with ExitStack() as stack:
            if self._depths and self._prefix is not None:
                first = self._module.get_submodule(self._depths[0])
                stack.callback(first.register_forward_pre_hook(count, prepend=True).remove)
            for name in self._wanted:
                site = self._module.get_submodule(name)
                if name in _POOLS:  # what goes into it is the map
                    handle = site.register_forward_pre_hook(lambda part, args, name=name: take(name, args[0]))
                else:
                    handle = site.register_forward_hook(lambda part, args, out, name=name: take(name, out))
                stack.callback(handle.remove)
            yield

    def _positions(self, name: str, block: Block, output: Any, n: int, tokens: int | None) -> Tensor:
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
            if name in self._depths and tokens is not None:
                output = output[:, :tokens]  # a tuner's prompts run behind the tokens of the image
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


# -- sentence encoders ----------------------------------------------------------------------------------------


def _transformer(encoder: nn.Module) -> Any:
    """Return the transformer of a sentence encoder, None where its first part has none."""
    return getattr(next(iter(encoder.children()), None), "auto_model", None)


def hidden_depths(encoder: nn.Module) -> int:
    """Return how many hidden states a sentence encoder has after its embeddings; 0 where that is not known."""
    count = getattr(getattr(_transformer(encoder), "config", None), "num_hidden_layers", None)
    return count if isinstance(count, int) else 0


def default_prompt(encoder: Any) -> str:
    """Return what a sentence encoder puts before every text; empty for most."""
    name = getattr(encoder, "default_prompt_name", None)
    prompt = (getattr(encoder, "prompts", None) or {}).get(name) if name is not None else None
    return prompt or ""


def tokens_of(encoder: Any, texts: list[str], device: torch.device) -> dict[str, Any]:
    """Return a batch of tokens as a sentence encoder makes it by itself, its default prompt included.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Its tokenizer is asked.
    texts : list of str
        At least one.
    device : torch.device
        Where to put them.
    """
    prompt = default_prompt(encoder)
    if hasattr(encoder, "preprocess"):
        tokens = encoder.preprocess(texts, prompt=prompt or None)
    else:  # before version 6 of the library
        tokens = encoder.tokenize([f"{prompt}{text}" for text in texts])
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in tokens.items()}


class HiddenStates:
    """Reads blocks of features from one pass of a sentence encoder; padding never counts.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Tokenizer, transformer and pooling.
    blocks : sequence of Block
        What to read; -1 is the last hidden state as the encoder's own pooling sees it.

    Raises
    ------
    ParameterError
        If the encoder lacks a depth that is asked for; the message says what there is.
    """

    def __init__(self, encoder: nn.Module, blocks: Sequence[Block]) -> None:
        self._encoder: Any = encoder
        self._blocks = tuple(blocks)
        depths = hidden_depths(encoder)
        for block in self._blocks:
            place = -1 if block.place == FINAL else block.place
            if block.pooling != FINAL and (not isinstance(place, int) or -place > depths or block.pooling == "vector"):
                there = f"-1 to -{depths}" if depths else "none that is known"
                raise ParameterError(
                    f"block of a sentence encoder must be cls, mean, max or spread at a hidden state, which here are "
                    f"{there}, got {str(block)!r}"
                )

    def __call__(self, texts: list[str], device: torch.device) -> list[Tensor]:
        """Return the blocks (n, width) of texts, in float32, from one pass."""
        with torch.inference_mode():
            return self.of_tokens(tokens_of(self._encoder, texts, device))

    def of_tokens(self, tokens: dict[str, Any]) -> list[Tensor]:
        """Return the blocks (n, width) of a batch of tokens, in float32, from one pass; gradients as outside."""
        mask = tokens["attention_mask"]
        if any(isinstance(block.place, int) and block.place < -1 for block in self._blocks):
            _transformer(self._encoder).config.output_hidden_states = True
        self._encoder.eval()
        output = self._encoder(tokens)
        width = getattr(self._encoder, "truncate_dim", None)
        final = output["sentence_embedding"][:, :width].float()
        return [final if block.pooling == FINAL else self._pooled(block, output, mask) for block in self._blocks]

    def _pooled(self, block: Block, output: Any, mask: Tensor) -> Tensor:
        """Return one block: a hidden state pooled over the tokens of each text."""
        layers = output.get("all_layer_embeddings") or ()
        last = block.place in (-1, FINAL)
        states = output.get("token_embeddings") if last else layers[block.place] if layers else None
        if not isinstance(states, Tensor) or states.shape[:2] != mask.shape:
            what = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
            raise InputError(f"block {str(block)!r} must be read at states of shape {tuple(mask.shape)}, got {what}")
        states = states.float()
        if block.pooling == "cls":
            first = mask.bool().int().argmax(dim=1)  # not the first position where padding comes before
            return states.gather(1, first.view(-1, 1, 1).expand(-1, 1, states.shape[2])).squeeze(1)
        return pool_positions(block.pooling, states, mask)
