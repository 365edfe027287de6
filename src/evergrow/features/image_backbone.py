"""Image backbones: encode images, and choose the layers and views of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError, WeightsError
from evergrow.core.seeding import generator
from evergrow.core.validation import resolve_device
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.depths import depth_names, has_class_token, read_views
from evergrow.features.preprocess import Preprocessing, stack_views
from evergrow.features.recipe import (
    FINAL,
    FeatureBlock,
    FeatureRecipe,
    View,
    ViewChoice,
    resolve_recipe,
    rich_blocks,
)

RICH_COST = 1.35
"""Cost of the larger view of ``rich``, relative to the network's own size."""

BEST_COST = 2.05
"""Cost of the larger view of ``best``, relative to the network's own size."""

ZOOM = 1.25
"""Enlargement of the zoom of ``best`` for networks that take a single size."""

SMALL = 2
"""Images this many times smaller than the network's size are shown whole.

They mostly show one object that fills the image, so that its border matters.
"""

STRIDE = 32
"""View sizes are multiples of this."""


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

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images.

        A surrounding ``torch.autocast`` applies.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width)
            From :attr:`transform`. It is moved to the device.
        """
        if not isinstance(batch, Tensor):
            raise InputError(f"{_BATCH_RULE}, got {type(batch).__name__}")
        is_rgb = batch.ndim == 4 and batch.shape[1] == 3
        if not (is_rgb and batch.is_floating_point()):
            raise InputError(
                f"{_BATCH_RULE}, got {batch.dtype} of shape {tuple(batch.shape)}"
            )
        if len(batch) == 0:
            return torch.zeros(0, self.spec.n_features, device=self.device)
        images = batch.to(self.device, torch.float32, memory_format=self._layout)
        recipe = self.spec.blocks
        blocks = read_blocks(self.module, recipe.parsed, self.transform, images)
        check_widths(
            self.spec.name, [block.shape[1] for block in blocks], recipe.widths
        )
        # Outside of inference mode, so that a probe can be trained on the result.
        return torch.cat(blocks, dim=1)

    def _view_stack(self, blocks: Sequence[FeatureBlock]) -> Preprocessing:
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
        """Read blocks of two images of noise."""
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
                f"{own_size}of{int(ZOOM * own_size)}"
            ) from error

    def _kind_of_depths(self, depths: int) -> str:
        """Return ``"tokens"`` for a transformer of one width, else ``"maps"``."""
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
        """Return the views of ``"rich"`` or ``"best"``.

        Parameters
        ----------
        name : {"rich", "best"}
            The recipe.
        side : int or None
            Length of the shorter side of the images, if known.
        """
        height, width = self.own.size
        if height != width:  # views are squares
            return ViewChoice(side="mirror")
        small = _view_of_cost(height, RICH_COST)
        large = _view_of_cost(height, BEST_COST)
        first, note = self._choose_first_view(small, side)
        if name == "best":
            if large.size > height and self._takes_view(large):
                return ViewChoice((first, large), "mirror", note=note)
            zoom = View(height, int(ZOOM * height))
            return ViewChoice((None,), "mirror", (zoom,))
        if first == small and not (large.size > height and self._takes_view(small)):
            return ViewChoice()
        return ViewChoice((first,), note=note)

    def _choose_first_view(
        self, small: View, side: int | None
    ) -> tuple[View | None, str]:
        """Return a view that suits the size of the images, and the reason.

        None is the network's own view.
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
        elif side * SMALL <= height and whole.whole < height:
            view = whole
            seen = f"{height} px, the whole image"
        note = f"{seen}, since images have {side} px on their shorter side (median)"
        return view, note

    def _takes_view(self, view: View) -> bool:
        try:
            self._read_noise([FeatureBlock(FINAL, FINAL, view)])
        except ParameterError:
            return False
        return True


_BATCH_RULE = "batch must be a floating-point tensor (n, 3, height, width)"


def _view_of_cost(size: int, cost: float) -> View:
    """Return the largest view that costs at most ``cost`` passes at the own size."""
    larger = max(size, int(size * cost**0.5) // STRIDE * STRIDE)
    return View(larger, larger)


def read_blocks(
    module: nn.Module,
    blocks: Sequence[FeatureBlock],
    transform: Preprocessing,
    images: Tensor,
) -> list[Tensor]:
    """Read blocks without gradients, in evaluation mode. The mode is restored."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        with torch.inference_mode():
            return read_views(module, blocks, transform, images)
    finally:
        for part in training:
            part.training = True


def check_widths(name: str, found: Sequence[int], stored: Sequence[int]) -> None:
    """Raise :class:`WeightsError` if blocks have other widths than a description."""
    if tuple(found) != tuple(stored):
        found_text = " + ".join(map(str, found))
        stored_text = " + ".join(map(str, stored))
        raise WeightsError(
            f"features of {name} must be {found_text} wide, got {stored_text}"
        )
