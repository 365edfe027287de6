"""The interface of frozen backbones, and the description that model files hold."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from typing_extensions import Self

from evergrow.core.errors import ParameterError
from evergrow.core.record import (
    NOTHING,
    Between,
    Extra,
    from_values,
    require,
    to_values,
)
from evergrow.data.items import Kind
from evergrow.features.recipe import FINAL, FeatureRecipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Precision = Literal["float32", "float16"]
"""Precision at which a backbone runs."""


@dataclass(frozen=True)
class BackboneSpec:
    """The settings and the weights hash that determine a backbone's features.

    Model files hold it as plain values.

    Parameters
    ----------
    name : str
        Name given to :func:`create_backbone`, for example
        ``"vit_base_patch16_224.augreg_in21k"``.
    kind : {"image", "text"}
        Kind of the input.
    n_features : int
        Length of the feature vectors.
    weights : str
        Source of the weights: ``"bundled"``, ``"hub"``, ``"file:/its/path"``,
        ``"random"`` or ``"module"``. Used to load them again; `weights_hash` identifies
        them.
    weights_hash : str
        Hash of all parameters and buffers.
    preset : str
        Name of the preprocessing, for example ``"timm"`` or ``"pilot"``. Empty for
        texts.
    preprocessing : dict
        All settings of the preprocessing. Empty for texts.
    options : dict
        Further arguments of :func:`create_backbone`: a random seed, arguments of the
        architecture.
    recipe : FeatureRecipe, optional
        Blocks of the feature vectors. None is the network's output alone.
    extra : Extra
        Optional fields written by a later version. They are kept, and do not change the
        features.
    """

    name: str
    kind: Kind
    n_features: Annotated[int, Between(1)]
    weights: str
    weights_hash: str
    preset: str
    preprocessing: dict[str, Any]
    options: dict[str, Any]
    recipe: FeatureRecipe | None = None
    extra: Extra = field(default=NOTHING, compare=False)

    @property
    def blocks(self) -> FeatureRecipe:
        """The recipe; a recipe of one block if `recipe` is None."""
        if self.recipe is None:
            return FeatureRecipe((FINAL,), (self.n_features,))
        return self.recipe

    def decisive(self) -> dict[str, Any]:
        """Return the fields that determine the features, as plain values.

        The source of the weights and the note of the recipe are left out.
        """
        plain = self
        if self.recipe is not None:
            plain = replace(self, recipe=replace(self.recipe, note=""))
        return {
            name: value
            for name, value in plain.to_dict().items()
            if name not in ("weights", *self.extra.values)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return dict(to_values(self))

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Read the values that :meth:`to_dict` returned.

        Raises
        ------
        FileFormatError
            If they are invalid.
        """
        return from_values(cls, values, "the description of a backbone")

    def check(self) -> None:
        """Raise :class:`FileFormatError` if the fields contradict each other."""
        require(
            self.recipe is None or self.recipe.n_features == self.n_features,
            "its recipe has another width",
        )


class Backbone(ABC):
    """A frozen feature extractor.

    Attributes
    ----------
    spec : BackboneSpec
        Description of the backbone.
    transform : callable or None
        From a decoded image (a PIL image in RGB) to a float32 tensor (3, height,
        width). It is sent to worker processes. None for texts, which are passed to
        :meth:`encode` unchanged.
    device : torch.device
        Device that it runs on.
    """

    spec: BackboneSpec
    transform: Callable[[Any], Tensor] | None
    device: torch.device

    @abstractmethod
    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch, without gradients.

        The blocks of the recipe are concatenated without scaling.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width), or list of str
            Transformed images or texts. Images are moved to the device.
        """

    @abstractmethod
    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""

    def with_recipe(self, recipe: Any, side: int | None = None) -> Self:
        """Return a backbone with another recipe. It shares the network.

        This backbone does not change. It is returned itself if it has that recipe.

        Parameters
        ----------
        recipe : {"auto", "fast", "rich", "best"}, str, sequence of str or FeatureRecipe
            A name, ``"rich@224+320:mirror"``, or blocks such as ``["final",
            "mean@-2"]``; see :mod:`evergrow.features.recipe`.
        side : int, optional
            Length in pixels of the shorter side of the images. ``rich`` and ``best``
            choose their views by it.

        Raises
        ------
        ParameterError
            If the network lacks a block. The message lists the available ones.
        """
        if recipe in (FINAL, "fast") and self.spec.recipe is None:
            return self
        return self.with_blocks(self._resolve_recipe(recipe, side))

    def with_blocks(self, recipe: FeatureRecipe) -> Self:
        """Return a backbone with a recipe of resolved blocks and widths.

        It shares the network. Whether the network has the blocks is not checked.
        """
        if recipe == self.spec.blocks and recipe.note in ("", self.spec.blocks.note):
            return self
        twin = copy.copy(self)
        is_default = recipe.blocks == (FINAL,) and not recipe.note
        twin.spec = replace(
            self.spec,
            recipe=None if is_default else recipe,
            n_features=recipe.n_features,
        )
        return twin

    def _resolve_recipe(self, recipe: Any, side: int | None) -> FeatureRecipe:
        """Return the blocks of a recipe; see :meth:`with_recipe` for the parameters.

        This default is for backbones that have no other blocks than their output.
        """
        if recipe != "auto" and recipe != self.spec.recipe:
            raise ParameterError(
                f"recipe must be 'fast' for {type(self).__name__}, which has no "
                f"depths, got {recipe!r}"
            )
        return self.spec.blocks

    @property
    def kind(self) -> Kind:
        """Kind of the input: ``"image"`` or ``"text"``."""
        return self.spec.kind

    @property
    def n_features(self) -> int:
        """Length of the feature vectors."""
        return self.spec.n_features


class LazyBackbone(NamedTuple):
    """A backbone that is loaded only if some features are not in the cache.

    Parameters
    ----------
    spec : BackboneSpec
        Its description, which determines the cache key.
    load : callable
        Returns the backbone.
    device : torch.device
        Device that it will run on.
    """

    spec: BackboneSpec
    load: Callable[[], Backbone]
    device: torch.device
