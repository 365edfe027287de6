"""Several networks side by side, whose feature blocks are joined.

An image is decoded once. The views of all networks lie side by side in one tensor, and
each network reads its own columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import ParameterError
from evergrow.core.validation import resolve_device
from evergrow.features.backbone import (
    FINAL,
    MAX_NETWORKS,
    Backbone,
    BackboneSpec,
    FeatureRecipe,
    parse_recipe,
)
from evergrow.features.image_backbone import ImageBackbone, check_batch
from evergrow.features.networks import SEPARATOR
from evergrow.features.preprocess import Preprocessing, stack_networks
from evergrow.features.text_backbone import TextBackbone

PARTS = "parts"
"""Source of the weights of several networks; each has a source of its own."""


class JoinedBackbone(Backbone):
    """Several networks whose feature blocks are joined.

    The names of blocks end in the number of their network: ``final#1``, ``final#2``.

    Parameters
    ----------
    parts : sequence of Backbone
        Two to nine image networks, or as many text encoders. Their recipes are kept.

    Attributes
    ----------
    parts : tuple of Backbone
        The networks.

    Examples
    --------
    >>> from evergrow.features import JoinedBackbone, create_backbone
    >>> parts = [
    ...     create_backbone(name, weights="random", device="cpu")
    ...     for name in ("test_resnet", "test_vit")
    ... ]
    >>> joined = JoinedBackbone(parts)
    >>> joined.spec.name, str(joined.spec.recipe), joined.n_features
    ('test_resnet+test_vit', 'final#1, final#2', 160)
    """

    def __init__(self, parts: Sequence[Backbone]) -> None:
        _check_parts(parts)
        self.parts = tuple(parts)
        self.device = parts[0].device
        specs = [part.spec for part in parts]
        recipe = _join_recipes([spec.blocks for spec in specs])
        self.spec = BackboneSpec(
            name=SEPARATOR.join(spec.name for spec in specs),
            kind=specs[0].kind,
            n_features=recipe.n_features,
            weights=PARTS,
            weights_hash=_join_hashes([spec.weights_hash for spec in specs]),
            preset=specs[0].preset,
            preprocessing={},
            options={},
            recipe=recipe,
            parts=tuple(part.with_recipe(FINAL).spec for part in parts),
        )

    @property
    def transform(self) -> Preprocessing | None:  # type: ignore[override]
        """Preprocessing of the views of all networks. None for texts."""
        transforms = [part.transform for _, part in self.active_parts()]
        if self.kind == "text":
            return None
        return stack_networks(tuple(transforms))

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may call :meth:`encode` at the same time."""
        return all(part.is_thread_safe for part in self.parts)

    def active_parts(self) -> list[tuple[slice, Backbone]]:
        """Return the networks that the recipe reads, in order.

        Returns
        -------
        list of (slice, Backbone)
            For each network, the columns of its views in a batch of images, and the
            network with its part of the recipe. Text encoders have empty slices,
            because all of them read the same texts.
        """
        active = []
        start = 0
        for number, part in enumerate(self.parts, 1):
            recipe = self.spec.blocks.of_network(number)
            if recipe is None:  # no block of it is needed, or all are in the cache
                continue
            reader = part.with_blocks(recipe)
            width = 0  # of texts
            if isinstance(reader.transform, Preprocessing):
                width = reader.transform.size[1]
            active.append((slice(start, start + width), reader))
            start += width
        return active

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch, network by network.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width), or list of str
            Images from :attr:`transform`, or texts.

        Raises
        ------
        InputError
            If `batch` is of another kind, or images do not have the size of
            :attr:`transform`.
        """
        transform = self.transform
        if transform is not None:
            check_batch(batch, transform)
        features = []
        for columns, part in self.active_parts():
            views = batch
            if isinstance(batch, Tensor):
                assert isinstance(part.transform, Preprocessing)
                views = batch[:, :, : part.transform.size[0], columns]
            features.append(part.encode(views))
        return torch.cat(features, dim=1)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        for part in self.parts:
            part.to(self.device)
        return self

    def _resolve_recipe(self, recipe: Any, side: int | None) -> FeatureRecipe:
        """Resolve the recipe for each network, by entries for all and its own ones."""
        entries = parse_recipe(recipe)
        n_networks = len(self.parts)
        for entry in entries:
            if entry.network > n_networks:
                raise ParameterError(
                    f"block must be of network 1 to {n_networks} of {self.spec.name}, "
                    f"got {str(entry)!r}"
                )
        recipes = []
        for number, part in enumerate(self.parts, 1):
            own = [
                str(replace(entry, network=0))
                for entry in entries
                if entry.network in (0, number)
            ]
            if not own:
                raise ParameterError(
                    f"recipe must have a block of every network, got {recipe!r} "
                    f"without one of network {number}, {part.spec.name}"
                )
            recipes.append(part.with_recipe(", ".join(own), side).spec.blocks)
        return _join_recipes(recipes)


def _check_parts(parts: Sequence[Backbone]) -> None:
    """Raise :class:`ParameterError` if networks cannot be used side by side."""
    _check_count(len(parts))
    for part in parts:
        if not isinstance(part, (ImageBackbone, TextBackbone)):
            raise ParameterError(
                "networks side by side must be image networks or text encoders of "
                f"create_backbone, got {type(part).__name__}"
            )
        if "tuner" in part.spec.options:
            raise ParameterError(
                "networks side by side must not be adapted, since model files hold one "
                f"tuner for one network, got {part.spec.name}"
            )
        check_same_kind(parts[0].spec.name, parts[0].kind, part.spec.name, part.kind)
    seen: dict[str, str] = {}
    for part in parts:
        name = part.spec.name
        if part.spec.weights_hash in seen:
            first = seen[part.spec.weights_hash]
            raise ParameterError(
                f"networks side by side must differ, got {name} with the weights of "
                f"{first}"
            )
        seen[part.spec.weights_hash] = name


def _check_count(n_networks: int) -> None:
    if not 2 <= n_networks <= MAX_NETWORKS:
        raise ParameterError(
            f"backbone must have 2 to {MAX_NETWORKS} networks side by side, got "
            f"{n_networks}"
        )


def check_same_kind(first: str, first_kind: str, other: str, other_kind: str) -> None:
    """Raise :class:`ParameterError` if two networks take different kinds of input."""
    if first_kind != other_kind:
        raise ParameterError(
            f"networks side by side must take the same input, got {first} for "
            f"{first_kind}s and {other} for {other_kind}s"
        )


def _join_recipes(recipes: Sequence[FeatureRecipe]) -> FeatureRecipe:
    """Return the blocks of all networks, with their numbers."""
    blocks: list[str] = []
    widths: list[int] = []
    notes: list[str] = []
    for number, recipe in enumerate(recipes, 1):
        blocks += [str(replace(block, network=number)) for block in recipe.parsed]
        widths += recipe.widths
        if recipe.note:
            notes.append(f"#{number} {recipe.note}")
    return FeatureRecipe(tuple(blocks), tuple(widths), "; ".join(notes))


def _join_hashes(hashes: Sequence[str]) -> str:
    """Return a hash of the weights of all networks, in order."""
    text = SEPARATOR.join(hashes)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def split_names(name: str) -> list[str]:
    """Return the names of several networks. A single network gives one name.

    Raises
    ------
    ParameterError
        If a name is empty or repeated.

    Examples
    --------
    >>> from evergrow.features.joined_backbone import split_names
    >>> split_names("resnet18+resnet34")
    ['resnet18', 'resnet34']
    >>> split_names("resnet18+")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: backbone must have a name on both sides of ...
    """
    if SEPARATOR not in name:
        return [name]
    names = [part.strip() for part in name.split(SEPARATOR)]
    _check_count(len(names))
    if not all(names):
        raise ParameterError(
            f"backbone must have a name on both sides of each '+', got {name!r}"
        )
    for index, part in enumerate(names):
        if part in names[:index]:
            raise ParameterError(
                f"networks side by side must differ, got {part} twice in {name!r}"
            )
    return names
