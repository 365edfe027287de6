"""The interface of a frozen backbone, and its description."""

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

if TYPE_CHECKING:
    import torch
    from torch import Tensor

from evergrow.features.recipe import FINAL, FeatureRecipe

Precision = Literal["float32", "float16"]
"""Precision at which a backbone runs."""


@dataclass(frozen=True)
class BackboneSpec:
    """Everything that decides a backbone's features, in plain values that a model file holds.

    Parameters
    ----------
    name : str
        The name it was created by, for example ``"vit_base_patch16_224.augreg_in21k"``.
    kind : {"image", "text"}
        What it takes.
    n_features : int
        Width of its feature vectors.
    weights : str
        Where the weights came from: ``"bundled"``, ``"hub"``, ``"file:/its/path"``,
        ``"random"``, ``"module"``. Says where to look for them again; what they are is
        said by the hash.
    weights_hash : str
        Hash of all parameters and buffers.
    preset : str
        Name of the preprocessing, for example ``"timm"`` or ``"pilot"``; empty for
        texts.
    preprocessing : dict
        Its settings in full; empty for texts.
    options : dict
        What else the backbone was created with (a random seed, arguments of the
        architecture).
    recipe : FeatureRecipe, optional
        The blocks that its feature vectors are made of; None for the network's own
        vector alone.
    extra : Extra
        Optional fields that a later evergrow wrote, kept to be written again; they
        decide nothing.
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
        """The blocks of a feature vector, be it a single one."""
        if self.recipe is None:
            return FeatureRecipe((FINAL,), (self.n_features,))
        return self.recipe

    def decisive(self) -> dict[str, Any]:
        """Return all fields that decide the features, as plain values; the source of the weights is not among them."""
        if self.recipe is None:
            plain = self
        else:
            plain = replace(self, recipe=replace(self.recipe, note=""))
        return {
            name: value
            for name, value in plain.to_dict().items()
            if name not in ("weights", *self.extra.values)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain values."""
        return dict(to_values(self))

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the description that :meth:`to_dict` gave, or raise :class:`FileFormatError`."""
        return from_values(cls, values, "the description of a backbone")

    def check(self) -> None:
        """Raise :class:`FileFormatError` where the description contradicts itself."""
        require(
            self.recipe is None or self.recipe.n_features == self.n_features,
            "its recipe has another width",
        )


class Backbone(ABC):
    """A frozen feature extractor.

    Attributes
    ----------
    spec : BackboneSpec
        What decides its output.
    transform : callable or None
        From a decoded image (a PIL image in RGB) to a float32 tensor (3, height,
        width); cheap to send to worker processes. None for texts, which go to
        :meth:`encode` as they are.
    device : torch.device
        Where it computes.
    """

    spec: BackboneSpec
    transform: Callable[[Any], Tensor] | None
    device: torch.device

    @abstractmethod
    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images or of texts, without gradients.

        Where the recipe has several blocks they lie side by side, as the network gives
        them.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width), or list of str
            Moved to the device if it is elsewhere.
        """

    @abstractmethod
    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""

    def with_recipe(self, recipe: Any, side: int | None = None) -> Self:
        """Return this backbone with feature vectors of another recipe; the network is shared.

        Parameters
        ----------
        recipe : {"auto", "fast", "rich", "best"}, str, sequence of str or FeatureRecipe
            A name, ``"rich@224+320:mirror"``, or blocks such as ``["final",
            "mean@-2"]``; see :mod:`evergrow.features.recipe`.
        side : int, optional
            Pixels that the shorter side of the images has, by which ``rich`` and
            ``best`` choose their sizes.

        Raises
        ------
        ParameterError
            If the network lacks what is asked for; the message says what there is.
        """
        if recipe in (FINAL, "fast") and self.spec.recipe is None:
            return self
        return self.reading(self._resolved(recipe, side))

    def reading(self, recipe: FeatureRecipe) -> Self:
        """Return this backbone with feature vectors of blocks that it is known to have; the network is shared."""
        if recipe == self.spec.blocks and recipe.note in ("", self.spec.blocks.note):
            return self
        twin = copy.copy(self)
        own = recipe.blocks == (FINAL,) and not recipe.note
        twin.spec = replace(
            self.spec, recipe=None if own else recipe, n_features=recipe.n_features
        )
        return twin

    def _resolved(self, recipe: Any, side: int | None) -> FeatureRecipe:
        """Return the blocks that a recipe stands for, here where the network's own vector is all there is."""
        if recipe != "auto" and recipe != self.spec.recipe:
            raise ParameterError(
                f"recipe must be 'fast' for {type(self).__name__}, which has no depths, got {recipe!r}"
            )
        return self.spec.blocks

    @property
    def kind(self) -> Kind:
        """What it takes: ``"image"`` or ``"text"``."""
        return self.spec.kind

    @property
    def n_features(self) -> int:
        """Width of its feature vectors."""
        return self.spec.n_features


class LazyBackbone(NamedTuple):
    """A backbone that is loaded when something has to go through it, and not when everything is in the cache.

    Parameters
    ----------
    spec : BackboneSpec
        Its description, which the cache goes by.
    load : callable
        Returns the backbone.
    device : torch.device
        Where it will compute.
    """

    spec: BackboneSpec
    load: Callable[[], Backbone]
    device: torch.device
