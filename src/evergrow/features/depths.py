"""Read the depths of image networks with forward hooks.

Outputs are pooled in the hook, and nothing else is kept. A hook sees what the next
layer sees, with any tuner of the network, and does not change the network's output.

For timm's transformers the result agrees with ``forward_intermediates(norm=True)``.
That function is not used because it knows five of seven depths of an EfficientNet,
drops tokens that some tuners need, and cannot read named submodules.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import nearest
from evergrow.features.preprocess import Preprocessing
from evergrow.features.recipe import FINAL, FeatureBlock, Side, View

_CONTAINERS = ("blocks", "stages", "layers")
_NUMBERED = (("layer1", "layer2", "layer3", "layer4"), ("s1", "s2", "s3", "s4"))
_POOLING_LAYERS = ("global_pool", "head.global_pool")


def depth_names(module: nn.Module) -> list[str]:
    """Return the submodules that are the depths of a network, in order.

    The list is empty if the architecture is unknown.

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
        # Lists of modules are never called, so that hooks on them do not run.
        if not any(isinstance(part, nn.ModuleList) for part in parts):
            return [f"{name}.{index}" for index in range(len(parts))]
    for names in _NUMBERED:
        if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
            return list(names)
    return [
        name
        for name in _stage_widths(module)
        if not name.startswith("head") and _has_submodule(module, name)
    ]


def _stage_widths(module: nn.Module) -> dict[str, int]:
    """Return the number of channels of timm's stages by the name of their module."""
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
    """Return whether the first token of a transformer is a class token."""
    # Some architectures keep the token among the embeddings, and set a flag.
    has_flag = bool(getattr(module, "has_class_token", False))
    return getattr(module, "cls_token", None) is not None or has_flag


def read_views(
    module: nn.Module,
    blocks: Sequence[FeatureBlock],
    transform: Preprocessing,
    images: Tensor,
) -> list[Tensor]:
    """Return float32 blocks (n, width) of a batch. Each view takes one pass.

    An image and its mirror image go through the network in one batch.

    Parameters
    ----------
    module : torch.nn.Module
        From images to vectors (n, d).
    blocks : sequence of FeatureBlock
        Blocks to read.
    transform : Preprocessing
        Preprocessing of the images. It locates the views, in the order in which blocks
        first name them.
    images : Tensor of shape (n, 3, height, width)
        Prepared images.
    """
    components = [part for block in blocks for part in block.components]
    views = list(dict.fromkeys(part.view for part in components))
    values: dict[FeatureBlock, Tensor] = {}
    for view, (part, columns) in zip(views, transform.cuts(), strict=True):
        view_images = images
        if len(views) > 1:
            view_images = images[:, :, : part.size[0], columns]
        values.update(_read_view(module, components, view, view_images))
    return [_average([values[part] for part in block.components]) for block in blocks]


def _read_view(
    module: nn.Module,
    components: Sequence[FeatureBlock],
    view: View | None,
    images: Tensor,
) -> dict[FeatureBlock, Tensor]:
    """Read the components of one view with one pass."""
    wanted = [block for block in components if block.view == view]
    sides: list[Side] = []
    batches = []
    if any(block.side == "" for block in wanted):
        sides.append("")
        batches.append(images)
    if any(block.side == "flipped" for block in wanted):
        sides.append("flipped")
        batches.append(images.flip(-1))
    batch = batches[0] if len(batches) == 1 else torch.cat(batches)
    depths = list(dict.fromkeys(replace(block, view=None, side="") for block in wanted))
    n_images = images.shape[0]  # not len(), which exporters would make a constant
    values = {}
    for depth, both in zip(depths, read_depths(module, depths, batch), strict=True):
        for index, side in enumerate(sides):
            rows = slice(index * n_images, (index + 1) * n_images)
            block = replace(depth, view=view, side=side)
            values[block] = both if len(sides) == 1 else both[rows]
    return values


def _average(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.stack(list(parts)).sum(dim=0) / len(parts)


def read_depths(
    module: nn.Module, blocks: Sequence[FeatureBlock], images: Tensor
) -> list[Tensor]:
    """Return float32 blocks (n, width) of a batch from one pass of the network.

    Parameters
    ----------
    module : torch.nn.Module
        From images to vectors (n, d).
    blocks : sequence of FeatureBlock
        Blocks without view and side.
    images : Tensor of shape (n, 3, height, width)
        Input of the network.

    Raises
    ------
    ParameterError
        If the network lacks a depth, a submodule or a class token. The message lists
        the available ones.
    InputError
        If the output of a submodule cannot be pooled.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.features.depths import read_depths
    >>> from evergrow.features.recipe import FeatureBlock
    >>> network = timm.create_model("test_vit", num_classes=0).eval()
    >>> blocks = [FeatureBlock.parse("final"), FeatureBlock.parse("mean@-2")]
    >>> images = torch.zeros(2, 3, 160, 160)
    >>> with torch.inference_mode():
    ...     [tuple(block.shape) for block in read_depths(network, blocks, images)]
    [(2, 64), (2, 64)]
    """
    reader = _DepthReader(module, blocks, images.shape[0])
    with reader.hooks():
        output = module(images)
    if not isinstance(output, Tensor):
        raise InputError(
            f"module must return a tensor (n, d), got {type(output).__name__}"
        )
    values = {**reader.values, FeatureBlock(FINAL, FINAL): output.float()}
    for block in blocks:
        if block not in values:
            raise InputError(
                f"block {str(block)!r} must be computed in a pass, but its place was "
                "never reached"
            )
    return [values[block] for block in blocks]


class _DepthReader:
    """Hooks that pool the outputs of submodules during one pass.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    blocks : sequence of FeatureBlock
        Blocks to read.
    n_images : int
        Number of images in the batch.
    """

    def __init__(
        self, module: nn.Module, blocks: Sequence[FeatureBlock], n_images: int
    ) -> None:
        self.values: dict[FeatureBlock, Tensor] = {}
        self._module = module
        self._n_images = n_images
        self._depths = depth_names(module)
        prefix = getattr(module, "num_prefix_tokens", 0)
        self._n_prefix = prefix if isinstance(prefix, int) else 0
        self._n_tokens: int | None = None
        self._thread = threading.get_ident()
        self._sites: dict[str, list[FeatureBlock]] = {}
        for block in blocks:
            if block.pooling != FINAL:
                site = _site_of(module, self._depths, block)
                self._sites.setdefault(site, []).append(block)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Add the hooks, and remove them at the end."""
        handles: list[Any] = []
        try:
            if self._sites and self._depths:
                first = self._module.get_submodule(self._depths[0])
                handles.append(
                    first.register_forward_pre_hook(self._count_tokens, prepend=True)
                )
            handles.extend(map(self._add_hook, self._sites))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add_hook(self, name: str) -> Any:
        site = self._module.get_submodule(name)
        if name in _POOLING_LAYERS:
            return site.register_forward_pre_hook(
                lambda module, args: self._read(name, args[0])
            )
        return site.register_forward_hook(
            lambda module, args, output: self._read(name, output)
        )

    def _count_tokens(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Store the number of tokens before a tuner appends prompts."""
        if threading.get_ident() != self._thread:  # a pass of another thread
            return
        if args and isinstance(args[0], Tensor) and args[0].ndim == 3:
            self._n_tokens = args[0].shape[1]

    def _read(self, name: str, output: Any) -> None:
        """Pool the output of a submodule."""
        if threading.get_ident() != self._thread:  # a pass of another thread
            return
        is_depth = name in self._depths
        first = self._sites[name][0]
        if first in self.values:
            raise InputError(
                f"block {str(first)!r} must be computed once in a pass, got a place "
                "reached twice"
            )
        if is_depth and isinstance(output, (tuple, list)) and output:
            output = output[0]  # timm passes the first element to the next block
        if not isinstance(output, Tensor):
            raise _cannot_pool(first, name, type(output).__name__)
        if output.ndim not in (2, 3, 4) or output.shape[0] != self._n_images:
            raise _cannot_pool(first, name, f"shape {tuple(output.shape)}")
        if is_depth and output.ndim == 3 and self._n_tokens is not None:
            output = output[:, : self._n_tokens]  # without the prompts of a tuner
        positions = _positions(self._module, name, output, is_depth=is_depth)
        n_prefix = self._n_prefix if is_depth else 0
        for block in self._sites[name]:
            self.values[block] = _pool(self._module, block, positions, n_prefix)


def _cannot_pool(block: FeatureBlock, name: str, got: str) -> InputError:
    return InputError(
        f"block {str(block)!r} must be read at a submodule that returns a tensor "
        f"(n, positions, channels) or (n, channels, height, width), got {got} from "
        f"{name}"
    )


def _site_of(module: nn.Module, depths: list[str], block: FeatureBlock) -> str:
    """Return the name of the submodule of a block, or raise :class:`ParameterError`."""
    network = type(module).__name__
    place = block.place
    if isinstance(place, int):
        if -place <= len(depths):
            return depths[place]
        available = (
            f"{network} has none that is known; name a submodule instead, as in "
            "mean@features.3"
        )
        if depths:
            available = (
                f"{network} has -1 ({depths[-1]}) to -{len(depths)} ({depths[0]})"
            )
        raise ParameterError(
            f"block must be read at a depth of the network, got {str(block)!r}: "
            f"{available}"
        )
    if place == FINAL:
        # The input of the pooling layer, or the last block of a transformer.
        found = [name for name in _POOLING_LAYERS if _has_submodule(module, name)]
        found += depths[-1:]
        if not found:
            raise ParameterError(
                f"block must be read at a submodule, since {network} has no pooling of "
                f"its own that could be found, got {str(block)!r}"
            )
        return found[0]
    if not _has_submodule(module, place):
        known = [name for name, _ in module.named_modules() if name]
        raise ParameterError(
            f"block must be read at a submodule of {network}, got {str(block)!r}; "
            f"nearest: {nearest(place, known)}"
        )
    return place


def _positions(
    module: nn.Module, name: str, output: Tensor, *, is_depth: bool
) -> Tensor:
    """Return an output as float32 positions (n, p, width).

    The network's final norm is applied to depths that it fits, so that all depths have
    the same scale.
    """
    if output.ndim == 2:
        return output.unsqueeze(1).float()
    channels_last = output.ndim == 3 or _is_channels_last_map(module, name, output)
    norm = getattr(module, "norm", None)
    weight = getattr(norm, "weight", None)
    if is_depth and isinstance(norm, nn.Module) and isinstance(weight, Tensor):
        n_channels = output.shape[-1 if channels_last else 1]
        is_map_norm = type(norm).__name__.endswith("2d")
        if weight.shape == (n_channels,) and is_map_norm != channels_last:
            output = norm(output)
    if output.ndim == 4:
        if channels_last:
            output = output.flatten(1, 2)
        else:
            output = output.flatten(2).transpose(1, 2)
    return output.float()


def _is_channels_last_map(module: nn.Module, name: str, output: Tensor) -> bool:
    """Return whether a map is (n, height, width, channels), as of some transformers."""
    layout = str(getattr(module, "output_fmt", "")).rpartition(".")[2]
    if layout.upper() == "NHWC":
        return True
    width = _stage_widths(module).get(name)
    return width is not None and output.shape[1] != width == output.shape[3]


def _pool(
    module: nn.Module, block: FeatureBlock, positions: Tensor, n_prefix: int
) -> Tensor:
    """Pool positions. The first `n_prefix` are not part of the image."""
    if block.pooling != "cls":
        return pool_positions(block.pooling, positions[:, n_prefix:])
    if not (n_prefix and has_class_token(module)):
        raise ParameterError(
            f"block must be pooled over positions, since {type(module).__name__} has "
            f"no class token, got {str(block)!r}: there are mean, max and spread"
        )
    return positions[:, 0]


def pool_positions(
    pooling: str, positions: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the mean, maximum or standard deviation over positions.

    Parameters
    ----------
    pooling : {"mean", "max", "spread"}
        Statistic. ``"spread"`` is the standard deviation.
    positions : Tensor of shape (n, p, width)
        Positions.
    mask : Tensor of shape (n, p), optional
        Nonzero for positions that count. By default all. Rows without any give zeros.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.depths import pool_positions
    >>> positions = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> mask = torch.tensor([[1, 1, 0]])
    >>> poolings = ("mean", "max", "spread")
    >>> [pool_positions(name, positions, mask).item() for name in poolings]
    [2.0, 3.0, 1.0]
    """
    if mask is None:
        if pooling == "mean":
            return positions.mean(dim=1)
        if pooling == "max":
            return positions.amax(dim=1)
        return positions.var(dim=1, correction=0).sqrt()
    counted = mask.bool().unsqueeze(2)
    if pooling == "max":
        is_empty = ~counted.any(dim=1)
        largest = positions.masked_fill(~counted, -torch.inf).amax(dim=1)
        return largest.masked_fill(is_empty, 0.0)
    count = counted.sum(dim=1).clamp_min(1)
    mean = positions.masked_fill(~counted, 0.0).sum(dim=1) / count
    if pooling == "mean":
        return mean
    deviations = (positions - mean.unsqueeze(1)).masked_fill(~counted, 0.0)
    return (deviations.square().sum(dim=1) / count).sqrt()
