"""From what was asked for to the recipe of one network: named recipes by its structure, widths by running it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.wording import setting
from evergrow.features.recipes import FINAL, Block, FeatureRecipe, check_recipe, parse_blocks

_SAME = 1e-5  # distance of unit vectors below which two blocks say the same

Read = Callable[[Sequence[Block]], list[Tensor]]
"""From blocks to their values for a few samples, in one pass."""


@dataclass(frozen=True)
class NetworkShape:
    """What a network has to offer to named recipes.

    Parameters
    ----------
    name : str
        Its name, for messages.
    kind : {"tokens", "maps", "texts"}
        A transformer of one width, a network of stages, or a sentence encoder.
    depths : int
        How many depths it has.
    class_token : bool
        Whether it has a class token.
    """

    name: str
    kind: str
    depths: int
    class_token: bool


def resolve_recipe(recipe: Any, shape: NetworkShape, read: Read) -> FeatureRecipe | None:
    """Return the recipe of a network, None for its own vector alone.

    Parameters
    ----------
    recipe : str, sequence of str or FeatureRecipe
        A name (``"auto"`` is rich where depths are known, and final elsewhere), or blocks.
    shape : NetworkShape
        What the network has.
    read : callable
        Runs it.

    Raises
    ------
    ParameterError
        If the network lacks what is asked for.
    """
    if recipe == "auto":
        recipe = "rich" if shape.depths else FINAL
        lenient = True
    else:
        check_recipe(recipe)
        lenient = False
    if isinstance(recipe, str):
        found = _named(recipe, shape, read)
        if found.is_final and recipe != FINAL and not lenient:
            raise ParameterError(
                f"{setting('recipe')} must be 'final' or a list of blocks at named submodules, since no depth of "
                f"{shape.name} can "
                f"be read, got {recipe!r}"
            )
    else:
        given = recipe.blocks if isinstance(recipe, FeatureRecipe) else recipe
        blocks = parse_blocks(given)
        found = _recipe(blocks, _read_vectors(read, blocks))
    return None if found.is_final else found


def _named(recipe: str, shape: NetworkShape, read: Read) -> FeatureRecipe:
    """Return a named recipe without blocks that cannot be read here or that say what another says."""
    wanted = parse_blocks(_BLOCKS[shape.kind](recipe, shape)) if recipe != FINAL else (Block.parse(FINAL),)
    try:
        values = _read_vectors(read, wanted)
    except (InputError, ParameterError):
        wanted = tuple(block for block in wanted if _readable(read, block))
        values = _read_vectors(read, wanted)
    kept: list[int] = []
    for place, value in enumerate(values):
        if not any(_say_the_same(value, values[other]) for other in kept):
            kept.append(place)
    return _recipe([wanted[place] for place in kept], [values[place] for place in kept])


def _readable(read: Read, block: Block) -> bool:
    if block.pooling == FINAL:
        return True
    try:
        _read_vectors(read, [block])
    except (InputError, ParameterError):
        return False
    return True


def _read_vectors(read: Read, blocks: Sequence[Block]) -> list[Tensor]:
    values = read(blocks)
    for block, value in zip(blocks, values, strict=True):
        if value.ndim != 2 or not value.shape[1]:
            raise InputError(f"block {str(block)!r} must be one vector per sample, got shape {tuple(value.shape)}")
    return values


def _say_the_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two blocks point the same way for every sample, so that the second adds nothing."""
    if one.shape != other.shape:
        return False
    gap = normalize(one.double(), dim=1) - normalize(other.double(), dim=1)
    return bool(torch.linalg.vector_norm(gap, dim=1).max() <= _SAME)


def _recipe(blocks: Sequence[Block], values: Sequence[Tensor]) -> FeatureRecipe:
    return FeatureRecipe(tuple(map(str, blocks)), tuple(int(value.shape[1]) for value in values))


# -- named recipes ----------------------------------------------------------------------------------------


def _of_tokens(recipe: str, shape: NetworkShape) -> list[str]:
    """Return class token and mean of patches of the last blocks; they differ, and earlier ones add the most."""
    poolings = ("cls", "mean") if shape.class_token else ("mean",)
    last = [f"{pooling}@-{depth}" for depth in _depths(shape, recipe) for pooling in poolings]
    more = ["max@-1", "spread@-1"] if recipe == "max" else []
    return [FINAL, *last, *more]


def _of_maps(recipe: str, shape: NetworkShape) -> list[str]:
    """Return the final vector and the mean outputs of the last stages."""
    means = [f"mean@-{depth}" for depth in _depths(shape, recipe)]
    more = ["max@final", "spread@final", *(f"spread@-{depth}" for depth in _depths(shape, "rich"))]
    return [FINAL, *means, *(more if recipe == "max" else [])]


def _of_texts(recipe: str, shape: NetworkShape) -> list[str]:
    """Return means of the last hidden states, and of the last one what the mean does not say."""
    means = [f"mean@-{depth}" for depth in _depths(shape, recipe)]
    others = [f"{pooling}@-{depth}" for depth in _depths(shape, recipe, rich=1, most=3) for pooling in _BESIDE_MEAN]
    return [FINAL, *means, *others]


def _depths(shape: NetworkShape, recipe: str, *, rich: int = 3, most: int = 6) -> range:
    return range(1, min(rich if recipe == "rich" else most, shape.depths) + 1)


_BESIDE_MEAN = ("max", "cls", "spread")
_BLOCKS: dict[str, Callable[[str, NetworkShape], list[str]]] = {
    "tokens": _of_tokens,
    "maps": _of_maps,
    "texts": _of_texts,
}
