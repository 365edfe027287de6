"""The interface of backbones: frozen maps from images or texts to feature vectors, with their preprocessing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.core.fields import Fields
from evergrow.core.items import Kind
from evergrow.features.recipes import FINAL, FeatureRecipe


@dataclass(frozen=True)
class BackboneSpec:
    """Everything that decides what a backbone computes; plain values, so that it can be saved with a model.

    Parameters
    ----------
    name : str
        The name it was created by, for example ``"vit_base_patch16_224.augreg_in21k"``.
    kind : {"image", "text"}
        What it takes.
    n_features : int
        Width of its feature vectors.
    weights : str
        Where the weights came from: ``"bundled"``, ``"hub"``, ``"file:/its/path"``, ``"random"``, ``"module"``. Says
        where to look for them again; what they are is said by the hash.
    weights_hash : str
        Hash of all parameters and buffers.
    preset : str
        Name of the preprocessing, for example ``"timm"`` or ``"pilot"``; empty for texts.
    preprocessing : dict
        Its settings in full; empty for texts.
    options : dict
        What else the backbone was created with (a random seed, arguments of the architecture).
    recipe : FeatureRecipe, optional
        The blocks that its feature vectors are made of; None for the network's own vector alone.
    unknown : dict
        Optional fields that a later evergrow wrote, kept to be written again; they decide nothing.
    """

    name: str
    kind: Kind
    n_features: int
    weights: str
    weights_hash: str
    preset: str
    preprocessing: dict[str, Any]
    options: dict[str, Any]
    recipe: FeatureRecipe | None = None
    unknown: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def blocks(self) -> FeatureRecipe:
        """The blocks of a feature vector, be it a single one."""
        return FeatureRecipe((FINAL,), (self.n_features,)) if self.recipe is None else self.recipe

    def decisive(self) -> dict[str, Any]:
        """Return what decides the features, as plain values: all but where the weights came from."""
        return {name: value for name, value in self._plain().items() if name != "weights"}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return self._plain() | self.unknown

    def _plain(self) -> dict[str, Any]:
        """Return the fields; a recipe only where there is one, so that what has none is called as it always was."""
        values = {name: value for name, value in asdict(self).items() if name not in ("recipe", "unknown")}
        return values if self.recipe is None else {**values, "recipe": self.recipe.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that :meth:`to_dict` gave.

        Raises
        ------
        FileFormatError
            If one is missing or is not what it should be.
        """
        if not isinstance(values, Mapping):
            raise FileFormatError(f"a backbone must be described by an object, got {type(values).__name__}")
        given = Fields(values, {}, {}, "the description of a backbone")
        kind: Kind = "text" if given.text("kind", choices=get_args(Kind)) == "text" else "image"
        recipe = FeatureRecipe.from_dict(given.mapping("recipe")) if given.has("recipe") else None
        n_features = given.integer("n_features", low=1)
        given.require(recipe is None or recipe.n_features == n_features, "its recipe has another width than it says")
        return cls(
            name=given.text("name"),
            kind=kind,
            n_features=n_features,
            weights=given.text("weights"),
            weights_hash=given.text("weights_hash"),
            preset=given.text("preset"),
            preprocessing=given.mapping("preprocessing"),
            options=given.mapping("options"),
            recipe=recipe,
            unknown=given.unknown(),
        )


class Backbone(ABC):
    """A frozen feature extractor.

    Attributes
    ----------
    spec : BackboneSpec
        What decides its output.
    transform : callable or None
        From a decoded image (a PIL image in RGB) to a float32 tensor (3, height, width); cheap to send to worker
        processes. None for texts, which go to :meth:`encode` as they are.
    device : torch.device
        Where it computes.
    """

    spec: BackboneSpec
    transform: Callable[[Any], Tensor] | None
    device: torch.device

    @abstractmethod
    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images or of texts, without gradients.

        Where the recipe has several blocks they lie side by side, as the network gives them.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width), or list of str
            Moved to the device if it is elsewhere.
        """

    @abstractmethod
    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""

    def with_recipe(self, recipe: Any) -> Self:
        """Return this backbone with feature vectors of another recipe; the network is shared.

        Parameters
        ----------
        recipe : {"auto", "final", "rich", "max"}, sequence of str or FeatureRecipe
            A name, or blocks such as ``["final", "mean@-2", "cls@-2"]``; see :mod:`evergrow.features.recipes`.

        Raises
        ------
        ParameterError
            If the network lacks what is asked for; the message says what there is.
        """
        if recipe not in ("auto", FINAL) and recipe != self.spec.recipe:
            raise ParameterError(
                f"recipe must be 'final' for {type(self).__name__}, which has no depths, got {recipe!r}"
            )
        return self

    @property
    def kind(self) -> Kind:
        """What it takes: ``"image"`` or ``"text"``."""
        return self.spec.kind

    @property
    def n_features(self) -> int:
        """Width of its feature vectors."""
        return self.spec.n_features
