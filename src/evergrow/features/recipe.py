"""What decides a feature vector: the recipe of its blocks, the description of a backbone, and its interface.

A recipe is one text: entries with commas between them, each
``WHAT[@VIEW[+VIEW...]][:mirror]``. WHAT is a name (``fast``, ``rich``, ``best``),
``final``, or a block ``POOLING@PLACE``; a VIEW is a size in pixels (``320``), or a zoom
(``64of72``: the middle 64 pixels of an image that is resized as for 72). Views with
``+`` between them are blocks of their own, those with ``~`` are averaged:
``rich@224+320:mirror`` reads several depths at two sizes, each averaged over the image
and its mirror image. :func:`resolve_recipe` turns a recipe into the blocks that one
network has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.record import (
    require,
)

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
        if found is None or not all(
            1 <= int(part) <= _LARGEST for part in found.groups() if part
        ):
            raise ParameterError(
                f"view must be a size such as 320 or a zoom such as 64of72, of 1 to {_LARGEST} pixels, got {text!r}"
            )
        return cls(int(found[1]), int(found[2] or found[1]))

    def __str__(self) -> str:
        if self.size == self.whole:
            return str(self.size)
        return f"{self.size}of{self.whole}"


@dataclass(frozen=True)
class FeatureBlock:
    """One block of a feature vector.

    Parameters
    ----------
    pooling : str
        ``"final"`` for the network's own vector, one of :data:`POOLINGS`, or a name of
        :data:`RECIPES` that stands for several blocks until :func:`resolve_recipe` has
        put them in its place.
    place : int or str
        Where it is read: -1 for the last depth (block, stage or hidden state), -2 for
        the one before, the name of a submodule, or ``"final"`` for what the network
        pools by itself.
    view : View, optional
        What is seen of an image; by default all, at the network's own size.
    side : {"", "mirror", "flipped"}
        The image as it is, averaged with its mirror image, or that one alone.
    also : tuple of View
        Further views that it is averaged over.

    Examples
    --------
    >>> from evergrow.features.recipe import FeatureBlock
    >>> FeatureBlock.parse("mean@-2"), str(FeatureBlock.parse("final@320:mirror"))
    (FeatureBlock(pooling='mean', place=-2, view=None, side='', also=()), 'final@320:mirror')
    >>> [str(part) for part in FeatureBlock.parse("final@64~64of80").read_as]
    ['final@64', 'final@64of80']
    """

    pooling: str
    place: int | str
    view: View | None = None
    side: Side = ""
    also: tuple[View, ...] = ()

    @classmethod
    def parse(cls, text: Any) -> Self:
        """Return the block that a text such as ``"final"``, ``"cls@-1"`` or ``"mean@layer3@320:mirror"`` stands for."""
        body, colon, side = (
            text.partition(":") if isinstance(text, str) else ("", "", "")
        )
        pooling, *rest = body.split("@")
        if pooling == FINAL:
            place = FINAL
        elif rest and pooling in POOLINGS:
            place = rest.pop(0)
        else:
            place = ""
        if (
            not place
            or place.strip() != place
            or len(rest) > 1
            or (colon and side not in ("mirror", "flipped"))
        ):
            raise ParameterError(
                f"block must be 'final' or POOLING@PLACE, with a pooling of {', '.join(POOLINGS)} and a place such as "
                f"-1 for the last depth, final or the name of a submodule, perhaps with @VIEW and :mirror, got {text!r}"
            )
        if _DEPTH.fullmatch(place):
            depth = int(place)
        else:
            depth = place
        return cls(pooling, depth, side=cast("Side", side)).seen(*rest)

    def seen(self, text: str = "") -> Self:
        """Return the block at views such as ``"320"`` or ``"64~64of80"``; the first may be left out for the own one."""
        first, *more = text.split("~")
        return replace(
            self,
            view=View.parse(first) if first else None,
            also=tuple(map(View.parse, more)),
        )

    @property
    def read_as(self) -> tuple[Self, ...]:
        """The blocks that passes of the network give: one for each view, of the image and of its mirror image."""
        sides: tuple[Side, ...]
        if self.side == "mirror":
            sides = ("", "flipped")
        else:
            sides = (self.side,)
        return tuple(
            replace(self, view=view, side=side, also=())
            for view in (self.view, *self.also)
            for side in sides
        )

    def __str__(self) -> str:
        if self.pooling in (FINAL, *RECIPES):
            place = self.pooling
        else:
            place = f"{self.pooling}@{self.place}"
        views = "~".join([str(self.view or ""), *map(str, self.also)])
        return f"{place}{f'@{views}' if views else ''}{f':{self.side}' if self.side else ''}"


Read = Callable[[Sequence[FeatureBlock]], "list[Tensor]"]
"""From blocks to their values for a few samples."""


@dataclass(frozen=True)
class FeatureRecipe:
    """Blocks that a backbone's feature vector is made of, in their order.

    Parameters
    ----------
    blocks : tuple of str
        Each in the notation of :class:`FeatureBlock`.
    widths : tuple of int
        Columns of each.
    note : str
        Why views were chosen, where the images decided; decides nothing.

    Examples
    --------
    >>> from evergrow.features.recipe import FeatureRecipe
    >>> recipe = FeatureRecipe(("final", "mean@-2"), (384, 384))
    >>> recipe.n_features, str(recipe)
    (768, 'final, mean@-2')
    """

    blocks: tuple[str, ...]
    widths: tuple[int, ...]
    note: str = field(default="", compare=False)

    def check(self) -> None:
        """Raise unless a recipe out of a file is one."""
        require(
            1 <= len(self.blocks) <= _MOST,
            f"it has {len(self.blocks)} blocks instead of 1 to {_MOST}",
        )
        _check_different(self.parsed, "recipe")
        require(
            len(self.widths) == len(self.blocks) and all(self.widths),
            "its blocks have no widths",
        )

    @cached_property
    def parsed(self) -> tuple[FeatureBlock, ...]:
        """The blocks themselves."""
        return tuple(map(FeatureBlock.parse, self.blocks))

    @property
    def n_features(self) -> int:
        """Columns of all blocks."""
        return sum(self.widths)

    @property
    def passes(self) -> FeatureRecipe:
        """What is computed and kept: the blocks of an image and of its mirror image apart."""
        widths = {
            str(part): width
            for block, width in zip(self.parsed, self.widths, strict=True)
            for part in block.read_as
        }
        return FeatureRecipe(tuple(widths), tuple(widths.values()))

    def without(self, names: Sequence[str]) -> FeatureRecipe | None:
        """Return the other blocks; None where none is left."""
        kept = {
            name: width
            for name, width in zip(self.blocks, self.widths, strict=True)
            if name not in names
        }
        if kept:
            return FeatureRecipe(tuple(kept), tuple(kept.values()))
        return None

    def vectors(self, blocks: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return feature vectors out of the blocks of :attr:`passes`; several views or sides are averaged."""
        read = [[blocks[str(part)] for part in block.read_as] for block in self.parsed]
        return np.concatenate(
            [
                parts[0] if len(parts) == 1 else sum(parts) / len(parts)
                for parts in read
            ],
            axis=1,
        )

    def __str__(self) -> str:
        return ", ".join(self.blocks)


def _check_different(blocks: Sequence[FeatureBlock], name: str) -> None:
    twice = next(
        (block for place, block in enumerate(blocks) if block in blocks[:place]), None
    )
    if twice is not None:
        raise ParameterError(f"blocks of {name} must differ, got {str(twice)!r} twice")


def _entries(recipe: Any, name: str) -> list[FeatureBlock]:
    """Return the blocks of a recipe, names among them, or raise :class:`ParameterError`."""
    if isinstance(recipe, FeatureRecipe):
        texts = recipe.blocks
    else:
        texts = recipe
    if isinstance(texts, str):
        texts = [part.strip() for part in texts.split(",")]
    else:
        texts = texts
    if not isinstance(texts, Sequence) or not 1 <= len(texts) <= _MOST:
        raise ParameterError(
            f"{name} must be a list of 1 to {_MOST} blocks, got {recipe!r}"
        )
    found: list[FeatureBlock] = []
    for text in texts:
        body, colon, side = str(text).partition(":")
        head, *rest = body.split("@")
        if head in RECIPES:
            plain = head not in ("auto", "best")
            if (
                len(rest) > 1
                or (colon and side != "mirror")
                or not (plain or body + colon == head)
            ):
                raise ParameterError(
                    f"{name} must say views as in 'rich@224+320:mirror', and none for 'auto' and 'best', got {text!r}"
                )
            name_at = FeatureBlock(head, FINAL, side=cast("Side", side))
            found += [
                name_at.seen(views) for views in (rest[0].split("+") if rest else [""])
            ]
        elif head not in (*POOLINGS, FINAL) and isinstance(recipe, str):
            raise ParameterError(
                f"{name} must be {', '.join(map(repr, RECIPES))} or blocks such as 'final,mean@-2', got {recipe!r}"
            )
        else:
            if "+" in body:
                several = rest.pop().split("+")
            else:
                several = [None]
            what = "@".join([head, *rest])
            found += [
                FeatureBlock.parse(
                    text if view is None else f"{what}@{view}{colon}{side}"
                )
                for view in several
            ]
    _check_different(found, name)
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
    >>> from evergrow.features.recipe import check_recipe
    >>> check_recipe("rich@224+320:mirror")
    >>> check_recipe("rich@0")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: view must be a size such as 320 or a zoom such as 64of72, ...
    """
    _entries(recipe, name)


# -- the recipe of one network ---------------------------------------------------------


class Views(NamedTuple):
    """What a name looks at: views that are blocks of their own, others to average over, its sides; and why."""

    seen: tuple[View | None, ...] = (None,)
    side: Side = ""
    also: tuple[View, ...] = ()
    note: str = ""


def resolve_recipe(
    recipe: Any,
    read: Read,
    rich: Sequence[FeatureBlock],
    *,
    name: str,
    views: Callable[[str], Views] = lambda name: Views(),
    own: View | None = None,
) -> FeatureRecipe:
    """Return the blocks of a network that a recipe stands for.

    Parameters
    ----------
    recipe : str, sequence of str or FeatureRecipe
        A name (``"auto"`` is rich where depths are known, and final elsewhere), or
        blocks.
    read : callable
        Runs the network; widths are those of what it gives.
    rich : sequence of FeatureBlock
        What ``rich`` stands for, from :func:`rich_blocks`.
    name : str
        The network's name, for messages.
    views : callable
        From ``"rich"`` or ``"best"`` to what it looks at; asked only where one of them
        is named without views.
    own : View, optional
        The network's own size, which need not be said.

    Raises
    ------
    ParameterError
        If the network lacks what is asked for.
    """
    note = ""
    entries = _entries(recipe, "recipe")
    wanted: list[FeatureBlock] = []
    for entry in entries:
        names = [entry]
        chosen = Views((entry.view,), entry.side, entry.also)
        if entry.pooling == "fast" or (entry.pooling == "auto" and len(rich) == 1):
            names = [FeatureBlock(FINAL, FINAL)]
        elif entry.pooling in RECIPES:
            names = list(rich)
            if entry.view is None and not entry.also:
                chosen = views("best" if entry.pooling == "best" else "rich")
                note = chosen.note
        side = chosen.side if entry.pooling == "best" else entry.side
        for view in chosen.seen:
            at = replace(
                names[0],
                view=None if view == own else view,
                also=chosen.also,
                side=side,
            )
            wanted += [
                replace(at, pooling=block.pooling, place=block.place) for block in names
            ]
    _check_different(wanted, "recipe")
    blocks = tuple(wanted)

    def vectors(blocks: Sequence[FeatureBlock]) -> list[Tensor]:
        values = read(blocks)
        for block, value in zip(blocks, values, strict=True):
            if value.ndim != 2 or not value.shape[1]:
                raise InputError(
                    f"block {str(block)!r} must be one vector per sample, got shape {tuple(value.shape)}"
                )
        return values

    def is_readable(block: FeatureBlock) -> bool:
        try:
            return bool(vectors([block]))
        except (InputError, ParameterError):
            return False

    if not any(entry.pooling in RECIPES for entry in entries):
        kept = dict(zip(blocks, vectors(blocks), strict=True))
    else:
        try:
            values = vectors(blocks)
        except (
            InputError,
            ParameterError,
        ):  # a block that cannot be read here is left out
            blocks = tuple(
                block
                for block in blocks
                if block.pooling == FINAL or is_readable(block)
            )
            values = vectors(blocks)
        kept = {}
        for block, value in zip(blocks, values, strict=True):
            place = replace(block, pooling=FINAL, place=FINAL)
            alike = (
                kept[other]
                for other in kept
                if replace(other, pooling=FINAL, place=FINAL) == place
            )
            if not any(_say_the_same(value, other) for other in alike):
                kept[block] = value
        if all(block.pooling == FINAL for block in kept) and recipe not in (
            "auto",
            "fast",
        ):
            raise ParameterError(
                f"recipe must be 'fast' or a list of blocks at named submodules, since no depth of {name} can be read, "
                f"got {recipe!r}"
            )
    return FeatureRecipe(
        tuple(map(str, kept)),
        tuple(int(value.shape[1]) for value in kept.values()),
        note,
    )


def _say_the_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two blocks point the same way for every sample, so that the second adds nothing."""
    if one.shape != other.shape:
        return False
    one, other = (
        value.double() / value.double().norm(dim=1, keepdim=True).clamp_min(1e-12)
        for value in (one, other)
    )
    return bool((one - other).norm(dim=1).max() <= _SAME)


def rich_blocks(
    kind: str, depths: int, class_token: bool = False
) -> list[FeatureBlock]:
    """Return several depths; earlier ones add the most, and class token and mean of patches differ.

    Parameters
    ----------
    kind : {"tokens", "maps", "texts"}
        A transformer of one width, a network of stages, or a sentence encoder.
    depths : int
        How many depths it has.
    class_token : bool
        Whether it has a class token.
    """
    if kind == "tokens" and class_token:
        poolings = ("cls", "mean")
    else:
        poolings = ("mean",)
    last = [
        FeatureBlock(pooling, -depth)
        for depth in range(1, min(3, depths) + 1)
        for pooling in poolings
    ]
    if kind == "texts" and depths:
        more = ("max", "cls", "spread")
    else:
        more = ()
    return [
        FeatureBlock(FINAL, FINAL),
        *last,
        *(FeatureBlock(pooling, -1) for pooling in more),
    ]
