"""Blocks of one pass of a network: depths of image networks, read by hooks, and hidden states of sentence encoders.

What is read is pooled at once; nothing else is kept. A hook sees exactly what the next
layer sees, tuners on the network included, and the pass itself is the network's own, so
that the final vector is the same to the last bit. What hooks read of timm's
transformers agrees with ``forward_intermediates(norm=True)``; that function is not used
because it knows five depths of an EfficientNet that has seven, drops the tokens that
some tuners need, and reads no named submodule.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import nearest
from evergrow.features.preprocess import Preprocessing
from evergrow.features.recipe import FINAL, FeatureBlock

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
        if not any(
            isinstance(part, nn.ModuleList) for part in parts
        ):  # which are never called themselves
            return [f"{name}.{place}" for place in range(len(parts))]
    for names in _NUMBERED:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
            return list(names)
    return [
        name
        for name in _stage_widths(module)
        if not name.startswith("head") and _has_submodule(module, name)
    ]


def _stage_widths(module: nn.Module) -> dict[str, int]:
    """Return the channels of timm's own list of stages, by the name of their module."""
    info: Any = getattr(module, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) for entry in entries
    ):
        return {}
    return {
        str(entry["module"]): int(entry["num_chs"])
        for entry in entries
        if {"module", "num_chs"} <= set(entry)
    }


def _has_submodule(module: nn.Module, name: str) -> bool:
    try:
        return bool(name and module.get_submodule(name))
    except AttributeError:
        return False


def has_class_token(module: nn.Module) -> bool:
    """Return whether the first token of a plain transformer is a class token."""
    # Where the token lies among the embeddings, a flag tells.
    return getattr(module, "cls_token", None) is not None or bool(
        getattr(module, "has_class_token", False)
    )


def read_views(
    module: nn.Module,
    blocks: Sequence[FeatureBlock],
    transform: Preprocessing,
    images: Tensor,
) -> list[Tensor]:
    """Return blocks (n, width) of a batch, in float32, from one pass of the network for each view.

    Parameters
    ----------
    module : torch.nn.Module
        From images to vectors (n, d).
    blocks : sequence of FeatureBlock
        What to read. An image and its mirror image, where both are needed, go through
        the network in one batch.
    transform : Preprocessing
        What prepared the images; it says where the views lie, in the order in which
        blocks first name them.
    images : Tensor of shape (n, 3, height, width)
        Prepared images.
    """
    read: dict[FeatureBlock, Tensor] = {}
    halves = [half for block in blocks for half in block.components]
    views = list(dict.fromkeys(half.view for half in halves))
    for view, (part, columns) in zip(views, transform.cuts(), strict=True):
        mine = [half for half in halves if half.view == view]
        if len(views) == 1:
            seen = images
        else:
            seen = images[:, :, : part.size[0], columns]
        sides = [
            side for side in ("", "flipped") if any(half.side == side for half in mine)
        ]
        turned = [seen.flip(-1) if side else seen for side in sides]
        if len(turned) == 1:
            batch = turned[0]
        else:
            batch = torch.cat(turned)
        depths = list(dict.fromkeys(replace(half, view=None, side="") for half in mine))
        for depth, values in zip(
            depths, read_depths(module, depths, batch), strict=True
        ):
            for place, side in enumerate(sides):
                rows = slice(
                    place * seen.shape[0], (place + 1) * seen.shape[0]
                )  # not len(): exporters keep it open
                half = values if len(sides) == 1 else values[rows]
                read[replace(depth, view=view, side=side)] = half  # type: ignore[arg-type]
    parts = [[read[half] for half in block.components] for block in blocks]
    return [
        part[0] if len(part) == 1 else torch.stack(part).sum(dim=0) / len(part)
        for part in parts
    ]


def read_depths(
    module: nn.Module, blocks: Sequence[FeatureBlock], images: Tensor
) -> list[Tensor]:
    """Return blocks (n, width) of a batch, in float32, from one pass of the network.

    Parameters
    ----------
    module : torch.nn.Module
        From images to vectors (n, d).
    blocks : sequence of FeatureBlock
        What to read.
    images : Tensor of shape (n, 3, height, width)
        What the network takes.

    Raises
    ------
    ParameterError
        If the network lacks a depth, a submodule or a class token that is asked for;
        the message says what there is.
    InputError
        If what a submodule returns cannot be pooled.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.features.depths import read_depths
    >>> from evergrow.features.recipe import FeatureBlock
    >>> network = timm.create_model("test_vit", num_classes=0).eval()
    >>> blocks = [FeatureBlock.parse("final"), FeatureBlock.parse("mean@-2")]
    >>> with torch.inference_mode():
    ...     [tuple(block.shape) for block in read_depths(network, blocks, torch.zeros(2, 3, 160, 160))]
    [(2, 64), (2, 64)]
    """
    depths = depth_names(module)
    prefix = getattr(module, "num_prefix_tokens", 0)
    prefix = prefix if isinstance(prefix, int) else 0
    sites: dict[str, list[FeatureBlock]] = {}
    for block in blocks:
        if block.pooling != FINAL:
            sites.setdefault(_site(module, depths, block), []).append(block)
    read: dict[FeatureBlock, Tensor] = {}
    tokens: list[
        int
    ] = []  # of an image at the first block, before any tuner appends its own
    thread = threading.get_ident()

    def count(part: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].ndim == 3:
            tokens.append(args[0].shape[1])

    def take(name: str, output: Any) -> None:
        if threading.get_ident() != thread:  # another thread's pass
            return
        first = sites[name][0]
        if first in read:
            raise InputError(
                f"block {str(first)!r} must be computed once in a pass, got a place reached twice"
            )
        if name in depths and isinstance(output, (tuple, list)) and output:
            output = output[
                0
            ]  # of timm's blocks the first is what the next one goes on with
        if (
            not isinstance(output, Tensor)
            or output.ndim not in (2, 3, 4)
            or output.shape[0] != images.shape[0]
        ):
            if isinstance(output, Tensor):
                what = f"shape {tuple(output.shape)}"
            else:
                what = type(output).__name__
            raise InputError(
                f"block {str(first)!r} must be read at a submodule that returns a tensor (n, positions, channels) or "
                f"(n, channels, height, width), got {what} from {name}"
            )
        if name in depths and output.ndim == 3 and tokens:
            output = output[
                :, : tokens[-1]
            ]  # a tuner's prompts run behind the tokens of the image
        rows = _positions(module, name, output, normed=name in depths)
        for block in sites[name]:
            read[block] = _pooled(module, block, rows, prefix if name in depths else 0)

    handles = []
    try:
        if sites and depths and isinstance(prefix, int):
            handles.append(
                module.get_submodule(depths[0]).register_forward_pre_hook(
                    count, prepend=True
                )
            )
        for name in sites:
            site = module.get_submodule(name)
            if name in _POOLS:  # what goes into it is the map
                handles.append(
                    site.register_forward_pre_hook(
                        lambda part, args, name=name: take(name, args[0])
                    )
                )
            else:
                handles.append(
                    site.register_forward_hook(
                        lambda part, args, output, name=name: take(name, output)
                    )
                )
        output = module(images)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(output, Tensor):
        raise InputError(
            f"module must return a tensor (n, d), got {type(output).__name__}"
        )
    read[FeatureBlock(FINAL, FINAL)] = output.float()
    missing = next((block for block in blocks if block not in read), None)
    if missing is not None:
        raise InputError(
            f"block {str(missing)!r} must be computed in a pass, but its place was never reached"
        )
    return [read[block] for block in blocks]


def _site(module: nn.Module, depths: list[str], block: FeatureBlock) -> str:
    """Return the name of the submodule where a block is read, or say what there is."""
    network = type(module).__name__
    place = block.place
    if isinstance(place, int):
        if -place <= len(depths):
            return depths[place]
        there = f"{network} has none that is known; name a submodule instead, as in mean@features.3"
        if depths:
            there = f"{network} has -1 ({depths[-1]}) to -{len(depths)} ({depths[0]})"
        raise ParameterError(
            f"block must be read at a depth of the network, got {str(block)!r}: {there}"
        )
    if place == FINAL:  # its own pooling layer, or the last block of a transformer
        found = [name for name in _POOLS if _has_submodule(module, name)] + depths[-1:]
        if not found:
            raise ParameterError(
                f"block must be read at a submodule, since {network} has no pooling of its own that could be found, "
                f"got {str(block)!r}"
            )
        return found[0]
    if not _has_submodule(module, place):
        known = [name for name, _ in module.named_modules() if name]
        raise ParameterError(
            f"block must be read at a submodule of {network}, got {str(block)!r}; nearest: {nearest(place, known)}"
        )
    return place


def _positions(module: nn.Module, name: str, output: Tensor, *, normed: bool) -> Tensor:
    """Return an output as positions (n, p, width), in float32.

    The final norm is applied to what a depth gives, where it is a norm for that: all
    depths then speak one scale.
    """
    if output.ndim == 2:
        return output.unsqueeze(1).float()
    last = (
        output.ndim == 3
    )  # whether channels come last, as in tokens and in the maps of windowed transformers
    if not last:
        width = _stage_widths(module).get(name)
        last = (
            str(getattr(module, "output_fmt", "")).rpartition(".")[2].upper() == "NHWC"
        )
        last = last or (
            width is not None and output.shape[1] != width == output.shape[3]
        )
    norm = getattr(module, "norm", None)
    weight = getattr(norm, "weight", None)
    if normed and isinstance(norm, nn.Module) and isinstance(weight, Tensor):
        of_maps = type(norm).__name__.endswith("2d")
        if weight.shape == (output.shape[-1 if last else 1],) and of_maps != last:
            output = norm(output)
    if output.ndim == 4:
        if last:
            output = output.flatten(1, 2)
        else:
            output = output.flatten(2).transpose(1, 2)
    return output.float()


def _pooled(
    module: nn.Module, block: FeatureBlock, rows: Tensor, prefix: int
) -> Tensor:
    """Return a block of positions, of which the first ``prefix`` are no part of the image."""
    if block.pooling != "cls":
        return pool_positions(block.pooling, rows[:, prefix:])
    if not (prefix and has_class_token(module)):
        raise ParameterError(
            f"block must be pooled over positions, since {type(module).__name__} has no class token, got "
            f"{str(block)!r}: there are mean, max and spread"
        )
    return rows[:, 0]


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
        if pooling == "max":
            return rows.amax(dim=1)
        return rows.var(dim=1, correction=0).sqrt()
    counted = mask.bool().unsqueeze(2)
    total = counted.sum(dim=1).clamp_min(1)
    if pooling == "max":
        empty = ~counted.any(dim=1)
        return (
            rows.masked_fill(~counted, -torch.inf).amax(dim=1).masked_fill(empty, 0.0)
        )
    mean = rows.masked_fill(~counted, 0.0).sum(dim=1) / total
    if pooling == "mean":
        return mean
    gaps = (rows - mean.unsqueeze(1)).masked_fill(~counted, 0.0)
    return (gaps.square().sum(dim=1) / total).sqrt()
