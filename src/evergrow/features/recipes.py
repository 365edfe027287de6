"""Feature recipes: which depths of a network, pooled how, make up a feature vector.

A recipe is a name or a list of blocks; :func:`resolve_recipe` turns it into the blocks that one network has, with their
widths. Whatever else a feature vector is to be made of (other sizes of an image, its mirror image) belongs to
:class:`Block`, which says what one block is, and to the readers of :mod:`evergrow.features.depths`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
from evergrow.data.items import check_widths

if TYPE_CHECKING:
    from torch import Tensor

FINAL = "final"
"""The network's own vector, and the place before its own pooling."""

POOLINGS = ("cls", "mean", "max", "spread")
"""Class (or first) token, mean, maximum and standard deviation over positions; the mean of a vector is the vector."""

RECIPES = ("auto", "final", "rich", "max")
"""Recipes by name: rich where depths are known, the network's own vector alone, what is best at a moderate width, and
all that may help."""

_DEPTH = re.compile(r"-[1-9][0-9]{0,3}")
_MOST = 256  # blocks of a recipe
_SAME = 1e-5  # distance of unit vectors below which two blocks say the same

Read = Callable[[Sequence["Block"]], "list[Tensor]"]
"""From blocks to their values for a few samples, in one pass."""


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
        pooling, _, place = text.partition("@") if isinstance(text, str) else ("", "", "")
        if pooling not in POOLINGS or not place or place.strip() != place:
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

    def __str__(self) -> str:
        return ", ".join(self.blocks)


def parse_blocks(blocks: Any, name: str = "recipe") -> tuple[Block, ...]:
    """Return the blocks of a list of texts, or raise :class:`ParameterError`."""
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= _MOST:
        raise ParameterError(f"{name} must be a list of 1 to {_MOST} blocks, got {blocks!r}")
    parsed = tuple(Block.parse(text) for text in blocks)
    for place, block in enumerate(parsed):
        if block in parsed[:place]:
            raise ParameterError(f"blocks of {name} must differ, got {str(block)!r} twice")
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
    if not isinstance(recipe, (str, FeatureRecipe)):
        parse_blocks(recipe, name)
    elif isinstance(recipe, str) and recipe not in RECIPES:
        raise ParameterError(f"{name} must be {', '.join(map(repr, RECIPES))} or a list of blocks, got {recipe!r}")


# -- the recipe of one network --------------------------------------------------------------------------------


def resolve_recipe(
    recipe: Any, read: Read, *, name: str, kind: str, depths: int, class_token: bool = False
) -> FeatureRecipe:
    """Return the blocks of a network that a recipe stands for.

    Parameters
    ----------
    recipe : str, sequence of str or FeatureRecipe
        A name (``"auto"`` is rich where depths are known, and final elsewhere), or blocks.
    read : callable
        Runs the network; widths are those of what it gives.
    name : str
        The network's name, for messages.
    kind : {"tokens", "maps", "texts"}
        A transformer of one width, a network of stages, or a sentence encoder.
    depths : int
        How many depths it has.
    class_token : bool
        Whether it has a class token.

    Raises
    ------
    ParameterError
        If the network lacks what is asked for.
    """
    check_recipe(recipe)

    def vectors(blocks: Sequence[Block]) -> list[Tensor]:
        values = read(blocks)
        for block, value in zip(blocks, values, strict=True):
            if value.ndim != 2 or not value.shape[1]:
                raise InputError(f"block {str(block)!r} must be one vector per sample, got shape {tuple(value.shape)}")
        return values

    def is_readable(block: Block) -> bool:
        try:
            return bool(vectors([block]))
        except (InputError, ParameterError):
            return False

    if isinstance(recipe, str):
        wanted = recipe if recipe != "auto" else "rich" if depths else FINAL
        blocks = parse_blocks(_named_blocks(wanted, kind, depths, class_token))
        try:
            values = vectors(blocks)
        except (InputError, ParameterError):  # a block that cannot be read here is left out
            blocks = tuple(block for block in blocks if block.pooling == FINAL or is_readable(block))
            values = vectors(blocks)
        kept: dict[Block, Tensor] = {}
        for block, value in zip(blocks, values, strict=True):
            if not any(_say_the_same(value, other) for other in kept.values()):
                kept[block] = value
    else:
        blocks = parse_blocks(recipe.blocks if isinstance(recipe, FeatureRecipe) else recipe)
        kept = dict(zip(blocks, vectors(blocks), strict=True))
    found = FeatureRecipe(tuple(map(str, kept)), tuple(int(value.shape[1]) for value in kept.values()))
    if found.is_final and recipe in ("rich", "max"):
        raise ParameterError(
            f"recipe must be 'final' or a list of blocks at named submodules, since no depth of {name} can be read, "
            f"got {recipe!r}"
        )
    return found


def _say_the_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two blocks point the same way for every sample, so that the second adds nothing."""
    if one.shape != other.shape:
        return False
    one, other = (value.double() / value.double().norm(dim=1, keepdim=True).clamp_min(1e-12) for value in (one, other))
    return bool((one - other).norm(dim=1).max() <= _SAME)


def _named_blocks(recipe: str, kind: str, depths: int, class_token: bool) -> list[str]:
    """Return the blocks of a named recipe; earlier depths add the most, and class token and mean of patches differ."""
    if recipe == FINAL:
        return [FINAL]
    rich = recipe == "rich"
    last = range(1, min(3 if rich else 6, depths) + 1)
    means = [f"mean@-{depth}" for depth in last]
    if kind == "tokens":
        poolings = ("cls", "mean") if class_token else ("mean",)
        blocks = [f"{pooling}@-{depth}" for depth in last for pooling in poolings]
        return [FINAL, *blocks, *([] if rich else ["max@-1", "spread@-1"])]
    if kind == "maps":
        spreads = [f"spread@-{depth}" for depth in last[:3]]
        return [FINAL, *means, *([] if rich else ["max@final", "spread@final", *spreads])]
    others = [f"{pooling}@-{depth}" for depth in last[: 1 if rich else 3] for pooling in ("max", "cls", "spread")]
    return [FINAL, *means, *others]
