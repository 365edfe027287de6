"""Feature recipes: which depths of a network, pooled how, and which views of an image, make up a feature vector.

A recipe is one text: entries with commas between them, each ``WHAT[@VIEW[+VIEW...]][:mirror]``. WHAT is a name
(``fast``, ``rich``, ``best``), ``final``, or a block ``POOLING@PLACE``; a VIEW is a size in pixels (``320``), or a zoom
(``64of72``: the middle 64 pixels of an image that is resized as for 72). ``rich@224+320:mirror`` reads several depths
at two sizes, each averaged over the image and its mirror image. :func:`resolve_recipe` turns a recipe into the blocks
that one network has, with their widths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
from evergrow.data.items import block_slices, check_widths

if TYPE_CHECKING:
    from torch import Tensor

FINAL = "final"
"""The network's own vector, and the place before its own pooling."""

POOLINGS = ("cls", "mean", "max", "spread")
"""Class (or first) token, mean, maximum and standard deviation over positions; the mean of a vector is the vector."""

RECIPES = ("auto", "fast", "rich", "best")
"""Recipes by name: rich where depths are known, the network's own vector alone, several depths of one pass, and several
depths at two sizes or zooms, mirrored."""

Side = Literal["", "mirror", "flipped"]
"""The image as it is, the mean over it and its mirror image, or its mirror image alone."""

_DEPTH = re.compile(r"-[1-9][0-9]{0,3}")
_VIEW = re.compile(r"([0-9]{1,9})(?:of([0-9]{1,9}))?")
_MOST = 256  # blocks of a recipe
_LARGEST = 4096  # pixels of a view's side
_SAME = 1e-5  # distance of unit vectors below which two blocks say the same


class View(NamedTuple):
    """What is seen of an image: the middle ``size`` pixels of one that is prepared as for ``whole`` pixels."""

    size: int
    whole: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the view that a text such as ``"320"`` or ``"64of72"`` stands for."""
        found = _VIEW.fullmatch(text)
        if found is None or not all(1 <= int(part) <= _LARGEST for part in found.groups() if part):
            raise ParameterError(
                f"view must be a size such as 320 or a zoom such as 64of72, of 1 to {_LARGEST} pixels, got {text!r}"
            )
        size, whole = int(found[1]), int(found[2] or found[1])
        if whole < size:
            raise ParameterError(f"zoom must be at least one, as in 64of72, got {text!r}")
        return cls(size, whole)

    def __str__(self) -> str:
        return str(self.size) if self.size == self.whole else f"{self.size}of{self.whole}"


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
    view : View, optional
        What is seen of an image; by default all, at the network's own size.
    side : {"", "mirror", "flipped"}
        The image as it is, averaged with its mirror image, or that one alone.

    Examples
    --------
    >>> from evergrow.features.recipes import Block
    >>> Block.parse("mean@-2"), str(Block.parse("final@320:mirror"))
    (Block(pooling='mean', place=-2, view=None, side=''), 'final@320:mirror')
    """

    pooling: str
    place: int | str
    view: View | None = None
    side: Side = ""

    @classmethod
    def parse(cls, text: Any) -> Self:
        """Return the block that a text such as ``"final"``, ``"cls@-1"`` or ``"mean@layer3@320:mirror"`` stands for."""
        body, colon, side = text.partition(":") if isinstance(text, str) else ("", "", "")
        pooling, *rest = body.split("@")
        place = FINAL if pooling == FINAL else rest.pop(0) if rest and pooling in POOLINGS else ""
        if not place or place.strip() != place or len(rest) > 1 or (colon and side not in ("mirror", "flipped")):
            raise ParameterError(
                f"block must be 'final' or POOLING@PLACE, with a pooling of {', '.join(POOLINGS)} and a place such as "
                f"-1 for the last depth, final or the name of a submodule, perhaps with @VIEW and :mirror, got {text!r}"
            )
        view = View.parse(rest[0]) if rest else None
        depth = int(place) if _DEPTH.fullmatch(place) else place
        return cls(pooling, depth, view, cast("Side", side))

    @property
    def read_as(self) -> tuple[Self, ...]:
        """The blocks that passes of the network give: one, or of the image and of its mirror image."""
        return (replace(self, side=""), replace(self, side="flipped")) if self.side == "mirror" else (self,)

    def __str__(self) -> str:
        place = FINAL if self.pooling == FINAL else f"{self.pooling}@{self.place}"
        return f"{place}{f'@{self.view}' if self.view else ''}{f':{self.side}' if self.side else ''}"


Read = Callable[[Sequence[Block]], "list[Tensor]"]
"""From blocks to their values for a few samples."""


@dataclass(frozen=True)
class FeatureRecipe:
    """Blocks that a backbone's feature vector is made of, in their order.

    Parameters
    ----------
    blocks : tuple of str
        Each in the notation of :class:`Block`.
    widths : tuple of int
        Columns of each.
    note : str
        Why views were chosen, where the images decided; decides nothing.

    Examples
    --------
    >>> from evergrow.features.recipes import FeatureRecipe
    >>> recipe = FeatureRecipe(("final", "mean@-2"), (384, 384))
    >>> recipe.n_features, str(recipe)
    (768, 'final, mean@-2')
    """

    blocks: tuple[str, ...]
    widths: tuple[int, ...]
    note: str = field(default="", compare=False)

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
    def passes(self) -> FeatureRecipe:
        """What is computed and kept: the blocks of an image and of its mirror image apart."""
        widths = {
            str(part): width
            for block, width in zip(map(Block.parse, self.blocks), self.widths, strict=True)
            for part in block.read_as
        }
        return FeatureRecipe(tuple(widths), tuple(widths.values()))

    def without(self, names: Sequence[str]) -> FeatureRecipe | None:
        """Return the other blocks; None where none is left."""
        kept = {name: width for name, width in zip(self.blocks, self.widths, strict=True) if name not in names}
        return FeatureRecipe(tuple(kept), tuple(kept.values())) if kept else None

    def averaged(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return feature vectors out of those of :attr:`passes`: mirrored blocks are means of two."""
        passes = self.passes
        if passes.blocks == self.blocks:
            return features
        columns = dict(zip(passes.blocks, block_slices(passes.widths), strict=True))
        read = [[features[:, columns[str(part)]] for part in Block.parse(name).read_as] for name in self.blocks]
        return np.concatenate([parts[0] if len(parts) == 1 else (parts[0] + parts[1]) / 2 for parts in read], axis=1)

    def __str__(self) -> str:
        return ", ".join(self.blocks)


def parse_blocks(blocks: Any, name: str = "recipe") -> tuple[Block, ...]:
    """Return the blocks of a list of texts, or raise :class:`ParameterError`."""
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= _MOST:
        raise ParameterError(f"{name} must be a list of 1 to {_MOST} blocks, got {blocks!r}")
    return _different([Block.parse(text) for text in blocks], name)


def _different(blocks: Sequence[Block], name: str = "recipe") -> tuple[Block, ...]:
    twice = next((block for place, block in enumerate(blocks) if block in blocks[:place]), None)
    if twice is not None:
        raise ParameterError(f"blocks of {name} must differ, got {str(twice)!r} twice")
    return tuple(blocks)


class _Named(NamedTuple):
    """A name in a recipe, with its views and side."""

    name: str
    views: tuple[View, ...]
    side: Side


def _entries(recipe: Any, name: str) -> list[_Named | Block]:
    """Return the names and blocks of a recipe, or raise :class:`ParameterError`."""
    texts = recipe.blocks if isinstance(recipe, FeatureRecipe) else recipe
    texts = [part.strip() for part in texts.split(",")] if isinstance(texts, str) else texts
    if not isinstance(texts, Sequence) or not 1 <= len(texts) <= _MOST:
        raise ParameterError(f"{name} must be a list of 1 to {_MOST} blocks, got {recipe!r}")
    found: list[_Named | Block] = []
    for text in texts:
        body, colon, side = str(text).partition(":")
        head, *rest = body.split("@")
        if head in RECIPES:
            plain = head not in ("auto", "best")
            if len(rest) > 1 or (colon and side != "mirror") or not (plain or body + colon == head):
                raise ParameterError(
                    f"{name} must say views as in 'rich@224+320:mirror', and none for 'auto' and 'best', got {text!r}"
                )
            found.append(_Named(head, tuple(map(View.parse, rest[0].split("+"))) if rest else (), cast("Side", side)))
        elif head not in (*POOLINGS, FINAL) and isinstance(recipe, str):
            raise ParameterError(
                f"{name} must be {', '.join(map(repr, RECIPES))} or blocks such as 'final,mean@-2', got {recipe!r}"
            )
        else:
            several = rest.pop().split("+") if "+" in body else [None]
            what = "@".join([head, *rest])
            found += [Block.parse(text if view is None else f"{what}@{view}{colon}{side}") for view in several]
    return found


def check_recipe(recipe: Any, name: str = "recipe") -> None:
    """Raise :class:`ParameterError` unless this is a recipe that some network could have.

    Parameters
    ----------
    recipe : object
        What was asked for.
    name : str
        What to call it in messages.

    Examples
    --------
    >>> from evergrow.features.recipes import check_recipe
    >>> check_recipe("rich@224+320:mirror")
    >>> check_recipe("rich@64of56")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: zoom must be at least one, as in 64of72, got '64of56'
    """
    _different([entry for entry in _entries(recipe, name) if isinstance(entry, Block)], name)


# -- the recipe of one network --------------------------------------------------------------------------------


class Views(NamedTuple):
    """What names stand for where images are concerned: the view of ``rich``, those of ``best``, and why."""

    rich: View | None = None
    best: tuple[View | None, ...] = (None,)
    side: Side = ""
    note: str = ""


def resolve_recipe(
    recipe: Any,
    read: Read,
    *,
    name: str,
    kind: str,
    depths: int,
    class_token: bool = False,
    views: Callable[[str], Views] = lambda name: Views(),
    own: View | None = None,
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
    views : callable
        From ``"rich"`` or ``"best"`` to what it looks at; asked only where one of them is named without views.
    own : View, optional
        The network's own size, which need not be said.

    Raises
    ------
    ParameterError
        If the network lacks what is asked for.
    """
    rich, note = _rich_blocks(kind, depths, class_token), ""
    entries = _entries(recipe, "recipe")
    wanted: list[Block] = []
    for entry in entries:
        parts: list[tuple[list[str], Sequence[View | None], Side]] = []
        if isinstance(entry, Block):
            wanted.append(replace(entry, view=None if entry.view == own else entry.view))
        elif entry.name == "fast" or (entry.name == "auto" and not depths):
            parts = [([FINAL], entry.views or (None,), entry.side)]
        elif entry.views:
            parts = [(rich, entry.views, entry.side)]
        else:
            chosen = views("best" if entry.name == "best" else "rich")
            note = chosen.note
            parts = [(rich, (chosen.rich,), entry.side)]
            if entry.name == "best":
                parts = [([FINAL], chosen.best[:-1], chosen.side), (rich, chosen.best[-1:], chosen.side)]
        wanted += [
            replace(Block.parse(text), view=None if view == own else view, side=side)
            for texts, seen, side in parts
            for view in seen
            for text in texts
        ]
    blocks = _different(wanted)

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

    if all(isinstance(entry, Block) for entry in entries):
        kept = dict(zip(blocks, vectors(blocks), strict=True))
    else:
        try:
            values = vectors(blocks)
        except (InputError, ParameterError):  # a block that cannot be read here is left out
            blocks = tuple(block for block in blocks if block.pooling == FINAL or is_readable(block))
            values = vectors(blocks)
        kept = {}
        for block, value in zip(blocks, values, strict=True):
            alike = (kept[other] for other in kept if (other.view, other.side) == (block.view, block.side))
            if not any(_say_the_same(value, other) for other in alike):
                kept[block] = value
        if all(block.pooling == FINAL for block in kept) and recipe not in ("auto", "fast"):
            raise ParameterError(
                f"recipe must be 'fast' or a list of blocks at named submodules, since no depth of {name} can be read, "
                f"got {recipe!r}"
            )
    return FeatureRecipe(tuple(map(str, kept)), tuple(int(value.shape[1]) for value in kept.values()), note)


def _say_the_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two blocks point the same way for every sample, so that the second adds nothing."""
    if one.shape != other.shape:
        return False
    one, other = (value.double() / value.double().norm(dim=1, keepdim=True).clamp_min(1e-12) for value in (one, other))
    return bool((one - other).norm(dim=1).max() <= _SAME)


def _rich_blocks(kind: str, depths: int, class_token: bool) -> list[str]:
    """Return several depths; earlier ones add the most, and class token and mean of patches differ."""
    last = range(1, min(3, depths) + 1)
    if kind == "tokens":
        poolings = ("cls", "mean") if class_token else ("mean",)
        return [FINAL, *(f"{pooling}@-{depth}" for depth in last for pooling in poolings)]
    means = [f"mean@-{depth}" for depth in last]
    return [FINAL, *means, *(["max@-1", "cls@-1", "spread@-1"] if kind == "texts" and depths else [])]
