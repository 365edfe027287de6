"""Frozen image networks: encode images, and choose the blocks of a recipe."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import (
    InputError,
    ParameterError,
    WeightsError,
)
from evergrow.core.seeding import generator
from evergrow.core.validation import resolve_device
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.depths import depth_names, has_class_token, read_views
from evergrow.features.preprocess import Preprocessing, view_sheet
from evergrow.features.recipe import (
    FINAL,
    FeatureBlock,
    FeatureRecipe,
    View,
    Views,
    resolve_recipe,
    rich_blocks,
)

RICH_COST = 1.35
BEST_COST = 2.05
"""Cost of a pass at a larger size, in passes at the network's own, that ``rich`` takes where images have the pixels and
that the larger size of ``best`` takes."""

ZOOM = 1.25
"""How much larger images are made for the zoom of ``best``, where a network takes one size."""

SMALL = 2
"""How many times smaller than the network's size images must be for all of them to be seen: such images mostly show one
thing that fills them, and the border that a network's own view cuts off is a part of
it."""

STRIDE = 32
"""What sizes are multiples of."""


class ImageBackbone(Backbone):
    """A frozen image backbone; made by :func:`create_backbone`.

    Parameters
    ----------
    module : torch.nn.Module
        From images (n, 3, height, width) to features (n, d).
    spec : BackboneSpec
        What decides its output.
    device : torch.device
        Where it computes.

    Attributes
    ----------
    module : torch.nn.Module
        The network, for those who tune it; :meth:`encode` runs it in evaluation mode
        and leaves its mode as it was.
    """

    def __init__(
        self, module: nn.Module, spec: BackboneSpec, device: torch.device
    ) -> None:
        self.module = module
        self.spec = spec
        self.own = Preprocessing.from_dict(spec.preprocessing)
        # Convolutional networks run faster with channels last; one convolution is only
        # a transformer's way in.
        convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
        if convolutions > 1:
            self._layout = torch.channels_last
        else:
            self._layout = torch.preserve_format
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
        """What is done to an image: one view, or a sheet of several."""
        return view_sheet(
            self.own,
            tuple(
                part.view for block in self.spec.blocks.parsed for part in block.read_as
            ),
        )

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width)
            From :attr:`transform`; moved to the device if it is elsewhere. A
            surrounding ``torch.autocast`` applies.
        """
        if (
            not isinstance(batch, Tensor)
            or batch.ndim != 4
            or batch.shape[1] != 3
            or not batch.is_floating_point()
        ):
            if isinstance(batch, Tensor):
                what = f"{batch.dtype} of shape {tuple(batch.shape)}"
            else:
                what = type(batch).__name__
            raise InputError(
                f"batch must be a floating-point tensor (n, 3, height, width), got {what}"
            )
        if len(batch) == 0:
            return torch.zeros(0, self.spec.n_features, device=self.device)
        images = batch.to(self.device, torch.float32, memory_format=self._layout)
        read = read_blocks(self.module, self.spec.blocks.parsed, self.transform, images)
        check_widths(
            self.spec.name, [block.shape[1] for block in read], self.spec.blocks.widths
        )
        # Joined out here they are an ordinary tensor, which a probe can later be
        # trained on.
        return torch.cat(read, dim=1)

    def _resolved(self, recipe: Any, side: int | None) -> FeatureRecipe:
        height, width = self.own.size

        def read(blocks: Sequence[FeatureBlock]) -> list[Tensor]:
            transform = view_sheet(
                self.own, tuple(part.view for block in blocks for part in block.read_as)
            )
            noise = torch.rand(2, 3, *transform.size, generator=generator(0, "recipe"))
            images = noise.to(self.device, memory_format=self._layout)
            try:
                with torch.autocast(self.device.type, enabled=False):
                    return read_blocks(self.module, blocks, transform, images)
            except (RuntimeError, AssertionError, ValueError) as error:
                other = next(
                    (
                        block.view
                        for block in blocks
                        if block.view and block.view.size != height
                    ),
                    None,
                )
                if other is None or isinstance(error, InputError):
                    raise
                raise ParameterError(
                    f"view must be of {height} pixels for {self.spec.name}, which takes no other size, got {other}: "
                    f"take a zoom such as {height}of{int(ZOOM * height)}"
                ) from error

        def views(name: str) -> Views:
            best = name == "best"
            if height != width:  # sizes are those of squares
                return Views(side="mirror")
            small, large = (
                View(size, size)
                for size in (_larger(height, RICH_COST), _larger(height, BEST_COST))
            )
            whole = View(height, math.ceil(height * height / min(self.own.resize)))
            first = None
            wide = side is not None and side >= small.size
            if wide:
                first = small
            elif side is not None and side * SMALL <= height and whole.whole < height:
                first = whole
            seen = f"{first.size if first else height} px" + (
                ", the whole image" if first == whole else ""
            )
            found = Views(
                (first,),
                note=""
                if side is None
                else f"{seen}, since images have {side} px on their shorter side (median)",
            )
            if not best and not wide:
                return found
            try:
                if large.size > height:
                    read([FeatureBlock(FINAL, FINAL, large if best else small)])
                    if best:
                        return Views((first, large), "mirror", note=found.note)
                    return found
            except ParameterError:  # a network of one size takes zooms
                pass
            if best:
                return Views((None,), "mirror", (View(height, int(ZOOM * height)),))
            return Views()

        depths = len(depth_names(self.module))
        kind = "maps"
        if depths and isinstance(getattr(self.module, "num_prefix_tokens", None), int):
            # A transformer of one width has blocks of tokens, any other network stages
            # of maps.
            with contextlib.suppress(
                InputError, ParameterError
            ):  # said by name where a recipe asks for it
                last, earlier = read(
                    [FeatureBlock("mean", -1), FeatureBlock("mean", -min(3, depths))]
                )
                kind = "maps"
                if last.shape[1] == earlier.shape[1]:
                    kind = "tokens"
        rich = rich_blocks(kind, depths, has_class_token(self.module))
        own = None
        if height == width:
            own = View(height, height)
        return resolve_recipe(
            recipe, read, rich, name=self.spec.name, views=views, own=own
        )


def _larger(size: int, cost: float) -> int:
    """Return the largest size that costs so much more than the network's own, a multiple of what networks halve."""
    return max(size, int(size * cost**0.5) // STRIDE * STRIDE)


def read_blocks(
    module: nn.Module,
    blocks: Sequence[FeatureBlock],
    transform: Preprocessing,
    images: Tensor,
) -> list[Tensor]:
    """Return blocks of images without gradients, in evaluation mode; the module's mode is left as it was."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        with torch.inference_mode():
            return read_views(module, blocks, transform, images)
    finally:
        for part in training:
            part.training = True


def check_widths(name: str, found: Sequence[int], told: Sequence[int]) -> None:
    """Raise :class:`WeightsError` unless the blocks of features are as wide as a description says."""
    if tuple(found) != tuple(told):
        wide, said = (" + ".join(map(str, widths)) for widths in (found, told))
        raise WeightsError(f"features of {name} must be {wide} wide, got {said}")
