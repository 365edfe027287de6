"""Feature recipes: which depths of a network, pooled how, make up a feature vector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.core.feature_blocks import check_widths
from evergrow.core.fields import Fields

FINAL = "final"
"""The network's own vector, and the place before its own pooling."""

POOLINGS = ("cls", "mean", "max", "spread", "vector")
"""Class (or first) token, mean, maximum and standard deviation over positions, and what is a vector already."""

RECIPES = ("auto", "final", "rich", "max")
"""Recipes by name: rich where depths are known, the network's own vector alone, what is best at a moderate width, and
all that may help."""

_DEPTH = re.compile(r"-[1-9][0-9]{0,3}")
_MOST = 256  # blocks of a recipe


@dataclass(frozen=True)
class Block:
    """One block of a feature vector.

    Parameters
    ----------
    pooling : str
        ``"final"`` for the network's own vector, otherwise one of :data:`POOLINGS`.
    place : int or str
        Where it is read: -1 for the last depth (block, stage or hidden state), -2 for the one before, the name of a
        submodule, or ``"final"`` for what the network pools by itself.

    Examples
    --------
    >>> from evergrow.features.recipes import Block
    >>> Block.parse("mean@-2"), str(Block.parse("final"))
    (Block(pooling='mean', place=-2), 'final')
    """

    pooling: str
    place: int | str

    @classmethod
    def parse(cls, text: Any) -> Self:
        """Return the block that a text such as ``"final"``, ``"cls@-1"`` or ``"mean@layer3"`` stands for."""
        if text == FINAL:
            return cls(FINAL, FINAL)
        pooling, at, place = text.partition("@") if isinstance(text, str) else ("", "", "")
        if not at or pooling not in POOLINGS or not place or place.strip() != place:
            raise ParameterError(
                f"block must be 'final' or POOLING@PLACE, with a pooling of {', '.join(POOLINGS)} and a place such as "
                f"-1 for the last depth, final or the name of a submodule, got {text!r}"
            )
        return cls(pooling, int(place) if _DEPTH.fullmatch(place) else place)

    def __str__(self) -> str:
        return FINAL if self.pooling == FINAL else f"{self.pooling}@{self.place}"


@dataclass(frozen=True)
class FeatureRecipe:
    """Blocks that a backbone's feature vector is made of, in their order.

    Parameters
    ----------
    blocks : tuple of str
        Each in the notation of :class:`Block`.
    widths : tuple of int
        Columns of each.

    Examples
    --------
    >>> from evergrow.features.recipes import FeatureRecipe
    >>> recipe = FeatureRecipe(("final", "mean@-2"), (384, 384))
    >>> recipe.n_features, str(recipe)
    (768, 'final, mean@-2')
    """

    blocks: tuple[str, ...]
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        parse_blocks(self.blocks)
        if len(self.widths) != len(self.blocks):
            raise ParameterError(f"widths must be one per block ({len(self.blocks)}), got {len(self.widths)}")
        check_widths("widths", list(self.widths), sum(self.widths))

    @property
    def n_features(self) -> int:
        """Columns of all blocks."""
        return sum(self.widths)

    @property
    def is_final(self) -> bool:
        """Whether it is the network's own vector alone."""
        return self.blocks == (FINAL,)

    def columns(self, wanted: FeatureRecipe) -> list[int] | None:
        """Return which of its columns make up another recipe; None where it lacks a block of that.

        Examples
        --------
        >>> from evergrow.features.recipes import FeatureRecipe
        >>> recipe = FeatureRecipe(("final", "mean@-2", "cls@-2"), (2, 1, 2))
        >>> recipe.columns(FeatureRecipe(("cls@-2", "final"), (2, 2)))
        [3, 4, 0, 1]
        """
        starts = {
            (name, width): sum(self.widths[:place])
            for place, (name, width) in enumerate(zip(self.blocks, self.widths, strict=True))
        }
        pairs = list(zip(wanted.blocks, wanted.widths, strict=True))
        if any(pair not in starts for pair in pairs):
            return None
        return [starts[pair] + column for pair in pairs for column in range(pair[1])]

    def __str__(self) -> str:
        return ", ".join(self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"blocks": list(self.blocks), "widths": list(self.widths)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the recipe that :meth:`to_dict` gave, or raise :class:`FileFormatError`."""
        given = Fields(values, {}, {}, "the feature recipe of a backbone")
        blocks, widths = tuple(given.texts("blocks")), tuple(given.integers("widths", low=1))
        try:
            return cls(blocks, widths)
        except (ParameterError, InputError) as error:
            raise FileFormatError(f"the feature recipe of a backbone must be whole: {error}") from error


def parse_blocks(blocks: Any, name: str = "recipe") -> tuple[Block, ...]:
    """Return the blocks of a list of texts, or raise :class:`ParameterError`."""
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= _MOST:
        raise ParameterError(f"{name} must be a list of 1 to {_MOST} blocks, got {blocks!r}")
    parsed = tuple(Block.parse(text) for text in blocks)
    repeated = next((block for place, block in enumerate(parsed) if block in parsed[:place]), None)
    if repeated is not None:
        raise ParameterError(f"blocks of {name} must differ, got {str(repeated)!r} twice")
    return parsed


def recipe_of_text(text: str) -> str | list[str]:
    """Return the recipe that a text stands for: a name, or blocks with commas between them.

    Examples
    --------
    >>> from evergrow.features.recipes import recipe_of_text
    >>> recipe_of_text("rich"), recipe_of_text("final, mean@-2")
    ('rich', ['final', 'mean@-2'])
    """
    if "," not in text and "@" not in text:
        return text
    return [part.strip() for part in text.split(",")]


def check_recipe(recipe: Any, name: str = "recipe") -> None:
    """Raise :class:`ParameterError` unless this is the name of a recipe, or a list of blocks that could be one.

    Parameters
    ----------
    recipe : object
        What was asked for.
    name : str
        What to call it in messages.

    Examples
    --------
    >>> from evergrow.features.recipes import check_recipe
    >>> check_recipe("riche")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: recipe must be 'auto', 'final', 'rich', 'max' or a list of blocks, got 'riche'
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            known = ", ".join(map(repr, RECIPES))
            raise ParameterError(f"{name} must be {known} or a list of blocks, got {recipe!r}")
    elif not isinstance(recipe, FeatureRecipe):
        parse_blocks(recipe, name)
