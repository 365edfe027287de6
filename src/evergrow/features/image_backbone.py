"""Image backbones: encode images, choose the views of a recipe and read the depths.

Depths are read with forward hooks. Outputs are pooled in the hook, and only the
result is kept. A hook sees the input of the next layer, with any tuner of the network,
and does not change the network's output.

For timm's transformers the result agrees with ``forward_intermediates(norm=True)``.
That function is not used because it knows five of seven depths of an EfficientNet,
drops tokens that some tuners need, and cannot read named submodules.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError, WeightsError
from evergrow.core.registry import nearest
from evergrow.core.seeding import generator
from evergrow.core.validation import resolve_device
from evergrow.features.backbone import (
    FINAL,
    Backbone,
    BackboneSpec,
    FeatureBlock,
    FeatureRecipe,
    Side,
    View,
    ViewChoice,
    pool_positions,
    resolve_recipe,
    rich_blocks,
)
from evergrow.features.preprocess import Preprocessing, ViewStack, stack_views

_RICH_COST = 1.35
"""Cost of the larger view of ``rich``, relative to the network's own size."""

_BEST_COST = 2.05
"""Cost of the larger view of ``best``, relative to the network's own size."""

_ZOOM = 1.25
"""Enlargement of the zoom of ``best`` for networks that take a single size."""

_SMALL = 2
"""Images this many times smaller than the network's size are shown whole.

They mostly show one object that fills the image, so that its border matters.
"""

_STRIDE = 32
"""View sizes are multiples of this, as the patches and strides of networks need."""

_BATCH_RULE = "batch must be a floating-point tensor (n, 3, height, width)"

# Names of submodules that hold the depths of a network, in timm and torchvision.
_CONTAINERS = ("blocks", "stages", "layers")
_NUMBERED = (("layer1", "layer2", "layer3", "layer4"), ("s1", "s2", "s3", "s4"))
_POOLING_LAYERS = ("global_pool", "head.global_pool")


class ImageBackbone(Backbone):
    """A frozen image backbone. Created by :func:`create_backbone`.

    Parameters
    ----------
    module : torch.nn.Module
        From images (n, 3, height, width) to features (n, d).
    spec : BackboneSpec
        Its description.
    device : torch.device
        Device to run on.

    Attributes
    ----------
    module : torch.nn.Module
        The network. :meth:`encode` runs it in evaluation mode and restores its mode.
    """

    def __init__(
        self, module: nn.Module, spec: BackboneSpec, device: torch.device
    ) -> None:
        self.module = module
        self.spec = spec
        self.own = Preprocessing.from_dict(spec.preprocessing)
        # Channels-last is faster for convolutional networks. A transformer has a single
        # convolution, which embeds patches.
        n_convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
        self._layout = torch.preserve_format
        if n_convolutions > 1:
            self._layout = torch.channels_last
        self.to(device)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        self.module.to(self.device)
        if self._layout is not torch.preserve_format:
            self.module.to(memory_format=self._layout)
        return self

    @property
    def transform(self) -> Preprocessing:  # type: ignore[override]
        """Preprocessing of the recipe's views."""
        return self._view_stack(self.spec.blocks.parsed)

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may call :meth:`encode` at the same time."""
        return True

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images.

        A surrounding ``torch.autocast`` applies.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width)
            From :attr:`transform`. It is moved to the device.
        """
        batch = check_batch(batch, self.transform)
        if len(batch) == 0:
            return torch.zeros(0, self.spec.n_features, device=self.device)
        images = batch.to(self.device, torch.float32, memory_format=self._layout)
        recipe = self.spec.blocks
        blocks = read_blocks(self.module, recipe.parsed, self.transform, images)
        check_stored_widths(
            self.spec.name, [block.shape[1] for block in blocks], recipe.widths
        )
        # Outside of inference mode, so that a probe can be trained on the result.
        return torch.cat(blocks, dim=1)

    def _view_stack(self, blocks: Sequence[FeatureBlock]) -> Preprocessing:
        """Return the preprocessing that gives all views of some blocks."""
        views = [part.view for block in blocks for part in block.components]
        return stack_views(self.own, tuple(views))

    def _resolve_recipe(self, recipe: Any, side: int | None) -> FeatureRecipe:
        depths = len(depth_names(self.module))
        height, width = self.own.size
        return resolve_recipe(
            recipe,
            self._read_noise,
            rich_blocks(
                self._kind_of_depths(depths), depths, has_class_token(self.module)
            ),
            name=self.spec.name,
            views=partial(self._choose_views, side=side),
            own=View(height, height) if height == width else None,
        )

    def _read_noise(self, blocks: Sequence[FeatureBlock]) -> list[Tensor]:
        """Read blocks of two images of noise.

        Raises
        ------
        ParameterError
            If the network takes no images of a view's size.
        """
        transform = self._view_stack(blocks)
        noise = torch.rand(2, 3, *transform.size, generator=generator(0, "recipe"))
        images = noise.to(self.device, memory_format=self._layout)
        try:
            with torch.autocast(self.device.type, enabled=False):
                return read_blocks(self.module, blocks, transform, images)
        except (RuntimeError, AssertionError, ValueError) as error:
            own_size = self.own.size[0]
            views = [block.view for block in blocks if block.view]
            resized = [view for view in views if view.size != own_size]
            if not resized or isinstance(error, InputError):
                raise
            raise ParameterError(
                f"view must be of {own_size} pixels for {self.spec.name}, which takes "
                f"no other size, got {resized[0]}: take a zoom such as "
                f"{own_size}of{int(_ZOOM * own_size)}"
            ) from error

    def _kind_of_depths(self, depths: int) -> str:
        """Return the kind of the network for :func:`rich_blocks`.

        It is ``"tokens"`` for a transformer whose last depths have one width, else
        ``"maps"``. `depths` is the number of depths. The network is run once.
        """
        prefix = getattr(self.module, "num_prefix_tokens", None)
        if not depths or not isinstance(prefix, int):
            return "maps"
        blocks = [FeatureBlock("mean", -1), FeatureBlock("mean", -min(3, depths))]
        try:
            last, earlier = self._read_noise(blocks)
        except (InputError, ParameterError):
            return "maps"
        return "tokens" if last.shape[1] == earlier.shape[1] else "maps"

    def _choose_views(self, name: str, side: int | None) -> ViewChoice:
        """Return the views of ``"rich"`` or ``"best"`` that suit network and images.

        ``rich`` reads one view: of another size than the network's own if the images
        suit it. ``best`` reads that view and a larger one, or averages the network's
        own view and a zoom if it takes no other size.

        Parameters
        ----------
        name : {"rich", "best"}
            The recipe.
        side : int or None
            Length of the shorter side of the images, if known.
        """
        height, width = self.own.size
        if height != width:  # there is one view only, since views are squares
            return ViewChoice(side="mirror" if name == "best" else "")
        small = _view_of_cost(height, _RICH_COST)
        large = _view_of_cost(height, _BEST_COST)
        first, note = self._choose_first_view(small, side)
        if name == "best":
            if large.size > height and self._takes_view(large):
                return ViewChoice((first, large), "mirror", note=note)
            zoom = View(height, int(_ZOOM * height))
            return ViewChoice((None,), "mirror", (zoom,))
        if first == small and not (large.size > height and self._takes_view(small)):
            return ViewChoice()
        return ViewChoice((first,), note=note)

    def _choose_first_view(
        self, small: View, side: int | None
    ) -> tuple[View | None, str]:
        """Choose the first view by the size of the images.

        Parameters
        ----------
        small : View
            Larger view of the cost of ``rich``, for images that have the pixels.
        side : int or None
            Length of the shorter side of the images, if known.

        Returns
        -------
        view : View or None
            None is the network's own view.
        note : str
            The reason. Empty if `side` is None.
        """
        if side is None:
            return None, ""
        height = self.own.size[0]
        whole = View(height, math.ceil(height * height / min(self.own.resize)))
        view = None
        seen = f"{height} px"
        if side >= small.size:
            view = small
            seen = f"{small.size} px"
        elif side * _SMALL <= height and whole.whole < height:
            view = whole
            seen = f"{height} px, the whole image"
        note = f"{seen}, since images have {side} px on their shorter side (median)"
        return view, note

    def _takes_view(self, view: View) -> bool:
        """Return whether the network can read a view, by a pass over noise."""
        try:
            self._read_noise([FeatureBlock(FINAL, FINAL, view)])
        except ParameterError:
            return False
        return True


def check_batch(batch: Any, transform: Preprocessing) -> Tensor:
    """Return a batch of transformed images.

    A single view may have another size than the preprocessing gives it.

    Raises
    ------
    InputError
        If `batch` is not a batch of images, or several views side by side have another
        size than `transform` gives them.
    """
    if not isinstance(batch, Tensor):
        raise InputError(f"{_BATCH_RULE}, got {type(batch).__name__}")
    is_rgb = batch.ndim == 4 and batch.shape[1] == 3
    if not (is_rgb and batch.is_floating_point()):
        raise InputError(
            f"{_BATCH_RULE}, got {batch.dtype} of shape {tuple(batch.shape)}"
        )
    if isinstance(transform, ViewStack) and tuple(batch.shape[2:]) != transform.size:
        height, width = transform.size
        raise InputError(
            f"batch must have all views of the recipe side by side, {height} x {width} "
            f"pixels from transform, got {batch.shape[2]} x {batch.shape[3]}"
        )
    return batch


def _view_of_cost(size: int, cost: float) -> View:
    """Return the largest square view that costs at most `cost` passes of own size.

    The cost of a pass grows with the number of pixels. The view is at least `size`
    pixels, which is the network's own size.
    """
    larger = max(size, int(size * cost**0.5) // _STRIDE * _STRIDE)
    return View(larger, larger)


def read_blocks(
    module: nn.Module,
    blocks: Sequence[FeatureBlock],
    transform: Preprocessing,
    images: Tensor,
) -> list[Tensor]:
    """Return :func:`read_views` without gradients, in evaluation mode."""
    with evaluation_mode(module), torch.inference_mode():
        return read_views(module, blocks, transform, images)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and restore the mode of every submodule."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def check_stored_widths(name: str, found: Sequence[int], stored: Sequence[int]) -> None:
    """Raise :class:`WeightsError` if blocks of a backbone have other widths than saved.

    `name` is the name of the backbone in the message.
    """
    if tuple(found) != tuple(stored):
        found_text = " + ".join(map(str, found))
        stored_text = " + ".join(map(str, stored))
        raise WeightsError(
            f"features of {name} must be {found_text} wide, got {stored_text}"
        )


def depth_names(module: nn.Module) -> list[str]:
    """Return the submodules that are the depths of a network, in order.

    The list is empty if the architecture is unknown.

    Examples
    --------
    >>> import timm
    >>> from evergrow.features.image_backbone import depth_names
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
    """Return the number of channels of timm's stages by the name of their module.

    The result is empty if the network does not describe its stages as timm does.
    """
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
    """Read those components that are of one view with one pass of the network.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    components : sequence of FeatureBlock
        Blocks of one view and one side each. Blocks of other views are left out.
    view : View or None
        The view. None is the network's own.
    images : Tensor of shape (n, 3, height, width)
        Images of this view.
    """
    wanted = [block for block in components if block.view == view]
    sides = _sides(wanted)
    batches = [images.flip(-1) if side else images for side in sides]
    batch = batches[0] if len(batches) == 1 else torch.cat(batches)
    depths = list(dict.fromkeys(replace(block, view=None, side="") for block in wanted))
    n_images = images.shape[0]  # not len(), which exporters would make a constant
    values = {}
    for depth, read in zip(depths, read_depths(module, depths, batch), strict=True):
        for index, side in enumerate(sides):
            rows = slice(index * n_images, (index + 1) * n_images)
            block = replace(depth, view=view, side=side)
            values[block] = read if len(sides) == 1 else read[rows]
    return values


def _sides(components: Sequence[FeatureBlock]) -> tuple[Side, ...]:
    """Return the sides of an image that some components of one view read, in order."""
    both: tuple[Side, ...] = ("", "flipped")
    return tuple(
        side for side in both if any(block.side == side for block in components)
    )


def sides_of_views(blocks: Sequence[FeatureBlock]) -> list[tuple[Side, ...]]:
    """Return the sides in the batch of each view, in the order of the views.

    Examples
    --------
    >>> from evergrow.features.backbone import FeatureBlock
    >>> from evergrow.features.image_backbone import sides_of_views
    >>> sides_of_views([FeatureBlock.parse("final@64:mirror")])
    [('', 'flipped')]
    """
    components = [part for block in blocks for part in block.components]
    views = dict.fromkeys(part.view for part in components)
    return [
        _sides([part for part in components if part.view == view]) for view in views
    ]


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
    >>> from evergrow.features.image_backbone import read_depths
    >>> from evergrow.features.backbone import FeatureBlock
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
    """Hooks that pool the outputs of submodules during one pass of this thread.

    Results are in `values`, by block, once the pass is done.

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
        """Read the submodule `name` in every pass. Return the handle of the hook.

        Of pooling layers the input is read, of other submodules the output.
        """
        site = self._module.get_submodule(name)
        if name in _POOLING_LAYERS:
            return site.register_forward_pre_hook(
                lambda module, args: self._read(name, args[0])
            )
        return site.register_forward_hook(
            lambda module, args, output: self._read(name, output)
        )

    def _count_tokens(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Count the tokens that enter the first depth, without a tuner's prompts."""
        if threading.get_ident() != self._thread:  # a pass of another thread
            return
        if args and isinstance(args[0], Tensor) and args[0].ndim == 3:
            self._n_tokens = args[0].shape[1]

    def _read(self, name: str, output: Any) -> None:
        """Pool the output of a submodule for all its blocks. A hook of `name`."""
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
    """Return the error for a submodule `name` whose output is of another form."""
    return InputError(
        f"block {str(block)!r} must be read at a submodule that returns a tensor "
        f"(n, positions, channels) or (n, channels, height, width), got {got} from "
        f"{name}"
    )


def _site_of(module: nn.Module, depths: list[str], block: FeatureBlock) -> str:
    """Return the name of the submodule at which a block is read.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    depths : list of str
        From :func:`depth_names`.
    block : FeatureBlock
        The block, which is not the network's output.

    Raises
    ------
    ParameterError
        If the network has no such depth or submodule.
    """
    network = type(module).__name__
    depth = block.depth
    if isinstance(depth, int):
        if -depth <= len(depths):
            return depths[depth]
        available = (
            "none that is known; name a submodule instead, as in mean@features.3"
        )
        if depths:
            available = f"-1 ({depths[-1]}) to -{len(depths)} ({depths[0]})"
        raise ParameterError(
            f"block must be read at a depth of the network, got {str(block)!r}: "
            f"{network} has {available}"
        )
    if depth == FINAL:
        # The input of the pooling layer, or the last block of a transformer.
        found = [name for name in _POOLING_LAYERS if _has_submodule(module, name)]
        found += depths[-1:]
        if not found:
            raise ParameterError(
                f"block must be read at a submodule, since {network} has no pooling of "
                f"its own that could be found, got {str(block)!r}"
            )
        return found[0]
    if not _has_submodule(module, depth):
        known = [name for name, _ in module.named_modules() if name]
        raise ParameterError(
            f"block must be read at a submodule of {network}, got {str(block)!r}; "
            f"nearest: {nearest(depth, known)}"
        )
    return depth


def _positions(
    module: nn.Module, name: str, output: Tensor, *, is_depth: bool
) -> Tensor:
    """Return the output of a submodule as float32 positions (n, p, width).

    The network's final norm is applied to depths that it fits, so that all depths have
    the same scale.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    name : str
        Name of the submodule.
    output : Tensor
        Vectors (n, width), tokens (n, p, width), or a map of channels first or last.
    is_depth : bool
        Whether the submodule is one of the network's depths.
    """
    if output.ndim == 2:
        return output.unsqueeze(1).float()
    channels_last = output.ndim == 3 or is_channels_last_map(module, name, output)
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


def is_channels_last_map(module: nn.Module, name: str, output: Tensor) -> bool:
    """Return whether a map has channels last, as those of some transformers."""
    layout = str(getattr(module, "output_fmt", "")).rpartition(".")[2]
    if layout.upper() == "NHWC":
        return True
    width = _stage_widths(module).get(name)
    return width is not None and output.shape[1] != width == output.shape[3]


def _pool(
    module: nn.Module, block: FeatureBlock, positions: Tensor, n_prefix: int
) -> Tensor:
    """Pool positions (n, p, width) as a block says. Return a tensor (n, width).

    The first `n_prefix` positions are tokens that are not part of the image. They are
    left out, except for ``"cls"``, which is the first of them. Raises
    :class:`ParameterError` if the network has no class token.
    """
    if block.pooling != "cls":
        return pool_positions(block.pooling, positions[:, n_prefix:])
    if not (n_prefix and has_class_token(module)):
        raise ParameterError(
            f"block must be pooled over positions, since {type(module).__name__} has "
            f"no class token, got {str(block)!r}: there are mean, max and spread"
        )
    return positions[:, 0]
