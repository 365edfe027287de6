"""Frozen backbones: feature recipes, the description in model files, the interface.

A recipe says which layers and views of a network make up a feature vector. It is a
comma-separated list of entries ``WHAT[@VIEW[+VIEW...]][:mirror]``.

- WHAT: a name (``fast``, ``rich``, ``best``), ``final``, or a block
  ``POOLING@DEPTH``.
- VIEW: a size in pixels (``320``) or a zoom (``64of72``: the central 64 pixels of an
  image that is resized as for 72).
- Views joined by ``+`` are separate blocks. Views joined by ``~`` are averaged.
- ``:mirror`` averages the image and its mirror image.
- ``#2`` at the end of an entry reads the second of several networks only.

For example, ``rich@224+320:mirror`` reads several depths at two sizes, and averages
each over the image and its mirror image. :func:`resolve_recipe` turns a recipe into the
blocks of one network.
"""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
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

FINAL = "final"
"""As a pooling: the network's output. As a depth: the input of its pooling layer."""

POOLINGS = ("cls", "mean", "max", "spread")
"""Class (or first) token, mean, maximum and standard deviation over positions."""

RECIPES = ("auto", "fast", "rich", "best")
"""Names of recipes.

``fast`` is the network's output alone. ``rich`` adds several depths of the same pass.
``best`` reads them at two sizes or zooms, with mirror images. ``auto`` is ``rich`` if
the depths of the network are known, else ``fast``.
"""

Side = Literal["", "mirror", "flipped"]
"""The image as it is, the mean of image and mirror image, or the mirror image alone."""

_DEPTH = re.compile(r"-[1-9][0-9]{0,3}")
_VIEW = re.compile(r"([0-9]{1,9})(?:of([0-9]{1,9}))?")
_NETWORK = re.compile(r"(.*)#([1-9])")
MAX_NETWORKS = 9
"""Largest number of networks side by side."""

_MAX_BLOCKS = 256  # far more than a network has; limits the work for a bad file
_MAX_PIXELS = 4096  # per side of a view
_SAME_DIRECTION = 1e-5  # largest distance of unit vectors of two equal blocks


class View(NamedTuple):
    """The central ``size`` pixels of an image that is resized as for ``whole``."""

    size: int
    whole: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text such as ``"320"`` or ``"64of72"``.

        Raises
        ------
        ParameterError
            If it is not a view, or a number is not within 1 and 4096.
        """
        match = _VIEW.fullmatch(text)
        numbers = [int(part) for part in match.groups() if part] if match else []
        if not numbers or not all(1 <= number <= _MAX_PIXELS for number in numbers):
            raise ParameterError(
                "view must be a size such as 320 or a zoom such as 64of72, of 1 to "
                f"{_MAX_PIXELS} pixels, got {text!r}"
            )
        return cls(numbers[0], numbers[-1])

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
        ``"final"`` for the network's output, or one of :data:`POOLINGS`. A name of
        :data:`RECIPES` stands for several blocks until :func:`resolve_recipe` replaces
        it.
    depth : int or str
        The layer. -1 is the last depth (block, stage or hidden state), -2 the one
        before. A text is the name of a submodule, or ``"final"`` for the input of the
        network's own pooling layer.
    view : View, optional
        Part of the image. None is the network's own view.
    side : {"", "mirror", "flipped"}
        The image, the mean of image and mirror image, or the mirror image.
    also : tuple of View
        Further views to average over.
    network : int
        Number of the network, from 1. 0 if there is one network, or for all.

    Examples
    --------
    >>> from evergrow.features.backbone import FeatureBlock
    >>> FeatureBlock.parse("mean@-2#1")
    FeatureBlock(pooling='mean', depth=-2, view=None, side='', also=(), network=1)
    >>> str(FeatureBlock.parse("final@320:mirror"))
    'final@320:mirror'
    >>> [str(part) for part in FeatureBlock.parse("final@64~64of80").components]
    ['final@64', 'final@64of80']
    """

    pooling: str
    depth: int | str
    view: View | None = None
    side: Side = ""
    also: tuple[View, ...] = ()
    network: int = 0

    @classmethod
    def parse(cls, text: Any) -> Self:
        """Parse a text such as ``"cls@-1"`` or ``"mean@layer3@320:mirror#2"``.

        Raises
        ------
        ParameterError
            If it is not one block. Names of recipes and views joined by ``+`` are not.
        """
        if not isinstance(text, str):
            raise _not_a_block(text)
        entry, network = _split_network(text)
        body, colon, side = entry.partition(":")
        pooling, *rest = body.split("@")
        depth = ""
        if pooling == FINAL:
            depth = FINAL
        elif rest and pooling in POOLINGS:
            depth = rest.pop(0)
        has_bad_depth = not depth or depth.strip() != depth
        has_bad_side = bool(colon) and side not in ("mirror", "flipped")
        if has_bad_depth or has_bad_side or len(rest) > 1:
            raise _not_a_block(text)
        block = cls(
            pooling,
            int(depth) if _DEPTH.fullmatch(depth) else depth,
            side=cast("Side", side),
            network=network,
        )
        return block.with_views(*rest)

    def with_views(self, text: str = "") -> Self:
        """Return the block averaged over views such as ``"320"`` or ``"64~64of80"``.

        An empty first view is the network's own.
        """
        first, *more = text.split("~")
        return replace(
            self,
            view=View.parse(first) if first else None,
            also=tuple(map(View.parse, more)),
        )

    @property
    def components(self) -> tuple[Self, ...]:
        """The blocks of one view and one side, of which this block is the mean.

        Networks compute them, and the cache stores them.
        """
        sides: tuple[Side, ...] = (self.side,)
        if self.side == "mirror":
            sides = ("", "flipped")
        return tuple(
            replace(self, view=view, side=side, also=())
            for view in (self.view, *self.also)
            for side in sides
        )

    def __str__(self) -> str:
        text = self.pooling
        if self.pooling not in (FINAL, *RECIPES):
            text += f"@{self.depth}"
        views = "~".join([str(self.view or ""), *map(str, self.also)])
        if views:
            text += f"@{views}"
        if self.side:
            text += f":{self.side}"
        if self.network:
            text += f"#{self.network}"
        return text


def _split_network(text: str) -> tuple[str, int]:
    """Split ``"final@320#2"`` into ``"final@320"`` and 2, which is 0 without number."""
    match = _NETWORK.fullmatch(text)
    if match is None:
        return text, 0
    return match[1], int(match[2])


def _not_a_block(text: Any) -> ParameterError:
    return ParameterError(
        f"block must be 'final' or POOLING@DEPTH, with a pooling of "
        f"{', '.join(POOLINGS)} and a depth such as -1 for the last one, final or "
        f"the name of a submodule, perhaps with @VIEW and :mirror, got {text!r}"
    )


def pool_positions(
    pooling: str, positions: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the mean, maximum or standard deviation (n, width) over positions.

    Parameters
    ----------
    pooling : {"mean", "max", "spread"}
        Statistic. ``"spread"`` is the standard deviation.
    positions : Tensor of shape (n, p, width)
        Positions.
    mask : Tensor of shape (n, p), optional
        Nonzero for positions that count, for example tokens that are not padding. By
        default all. Rows without any give zeros.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.backbone import pool_positions
    >>> positions = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> mask = torch.tensor([[1, 1, 0]])
    >>> poolings = ("mean", "max", "spread")
    >>> [pool_positions(name, positions, mask).item() for name in poolings]
    [2.0, 3.0, 1.0]
    """
    if mask is None:
        if pooling == "mean":
            return positions.mean(dim=1)
        if pooling == "max":
            return positions.amax(dim=1)
        return _root(positions.var(dim=1, correction=0))
    counted = mask.bool().unsqueeze(2)
    if pooling == "max":
        is_empty = ~counted.any(dim=1)
        largest = positions.masked_fill(~counted, -math.inf).amax(dim=1)
        return largest.masked_fill(is_empty, 0.0)
    count = counted.sum(dim=1).clamp_min(1)
    mean = positions.masked_fill(~counted, 0.0).sum(dim=1) / count
    if pooling == "mean":
        return mean
    deviations = (positions - mean.unsqueeze(1)).masked_fill(~counted, 0.0)
    return _root(deviations.square().sum(dim=1) / count)


def _root(variances: Tensor) -> Tensor:
    """Return square roots whose gradient is 0 instead of NaN at 0."""
    is_zero = variances == 0.0
    return variances.masked_fill(is_zero, 1.0).sqrt().masked_fill(is_zero, 0.0)


def join_equally(blocks: Sequence[Tensor]) -> Tensor:
    """Concatenate blocks at equal energy.

    Computes the same as
    :func:`evergrow.data.feature_blocks.join_blocks`, with operators that
    can be traced.

    Parameters
    ----------
    blocks : sequence of Tensor of shape (n, width)
        Feature blocks. A single block is returned unchanged.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.backbone import join_equally
    >>> first, second = torch.tensor([[3.0, -4.0]]), torch.tensor([[9.0, 16.0]])
    >>> joined = join_equally([first, second])
    >>> (joined * 2**0.5).round(decimals=6)
    tensor([[ 0.6000, -0.8000,  0.6000,  0.8000]])
    """
    import torch

    if len(blocks) == 1:
        return blocks[0]
    joined = []
    for block in blocks:
        # The result does not depend on this scale, so its gradient does not either.
        largest = block.detach().abs().amax(dim=1, keepdim=True)
        block = block / torch.where(largest > 0, largest, torch.ones_like(largest))
        # Rows without negative values are replaced by their square roots. Then every
        # row is scaled to unit length.
        is_nonnegative = block.amin(dim=1, keepdim=True) >= 0
        block = torch.where(is_nonnegative, block.abs().sqrt(), block)
        norms = block.square().sum(dim=1, keepdim=True).sqrt()
        unit = block / torch.where(norms > 0, norms, torch.ones_like(norms))
        joined.append(len(blocks) ** -0.5 * unit)
    return torch.cat(joined, dim=1)


BlockReader = Callable[[Sequence[FeatureBlock]], "list[Tensor]"]
"""Runs a network on a few samples, and returns one tensor (n, width) per block.

It raises :class:`InputError` or :class:`ParameterError` for a block that the network
lacks.
"""


@dataclass(frozen=True)
class FeatureRecipe:
    """The blocks of a backbone's feature vector, in order.

    Parameters
    ----------
    blocks : tuple of str
        Blocks in the notation of :class:`FeatureBlock`.
    widths : tuple of int
        Number of columns of each block.
    note : str
        Why views were chosen. For people only: it does not change the features.

    Examples
    --------
    >>> from evergrow.features.backbone import FeatureRecipe
    >>> recipe = FeatureRecipe(("final", "mean@-2"), (384, 384))
    >>> recipe.n_features, str(recipe)
    (768, 'final, mean@-2')
    """

    blocks: tuple[str, ...]
    widths: tuple[int, ...]
    note: str = field(default="", compare=False)

    def check(self) -> None:
        """Raise an error if the recipe is invalid. Called when it is read from a file.

        Raises
        ------
        FileFormatError
            If the number of blocks or of widths is wrong.
        ParameterError
            If a block cannot be parsed or is repeated.
        """
        require(
            1 <= len(self.blocks) <= _MAX_BLOCKS,
            f"it has {len(self.blocks)} blocks instead of 1 to {_MAX_BLOCKS}",
        )
        _check_distinct(self.parsed, "recipe")
        require(
            len(self.widths) == len(self.blocks) and all(self.widths),
            "its blocks have no widths",
        )

    @cached_property
    def parsed(self) -> tuple[FeatureBlock, ...]:
        """The blocks as :class:`FeatureBlock`."""
        return tuple(map(FeatureBlock.parse, self.blocks))

    @property
    def n_features(self) -> int:
        """Number of columns of all blocks."""
        return sum(self.widths)

    @property
    def components(self) -> FeatureRecipe:
        """The blocks that are computed and cached, with one view and one side each."""
        widths = {
            str(part): width
            for block, width in zip(self.parsed, self.widths, strict=True)
            for part in block.components
        }
        return FeatureRecipe(tuple(widths), tuple(widths.values()))

    def without(self, names: Collection[str]) -> FeatureRecipe | None:
        """Return the recipe without some blocks, or None if no block is left."""
        kept = {
            name: width
            for name, width in zip(self.blocks, self.widths, strict=True)
            if name not in names
        }
        if kept:
            return FeatureRecipe(tuple(kept), tuple(kept.values()))
        return None

    def vectors(self, blocks: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Build feature vectors (n, :attr:`n_features`) by concatenating all blocks.

        Several views or sides of a block are averaged.

        Parameters
        ----------
        blocks : mapping of str to ndarray of shape (n, width)
            Values of all :attr:`components` by the name of the block.
        """
        averaged = []
        for block in self.parsed:
            parts = [blocks[str(part)] for part in block.components]
            averaged.append(parts[0] if len(parts) == 1 else sum(parts) / len(parts))
        return np.concatenate(averaged, axis=1)

    def of_network(self, number: int) -> FeatureRecipe | None:
        """Return the blocks of one of several networks, or None if it has none.

        Their names are without the number of the network.
        """
        widths = {
            str(replace(block, network=0)): width
            for block, width in zip(self.parsed, self.widths, strict=True)
            if block.network == number
        }
        if widths:
            return FeatureRecipe(tuple(widths), tuple(widths.values()))
        return None

    def __str__(self) -> str:
        return ", ".join(self.blocks)


def _check_distinct(blocks: Sequence[FeatureBlock], name: str) -> None:
    """Raise :class:`ParameterError` if a block is repeated. `name` is for messages."""
    for index, block in enumerate(blocks):
        if block in blocks[:index]:
            raise ParameterError(
                f"blocks of {name} must differ, got {str(block)!r} twice"
            )


def parse_recipe(recipe: Any, name: str = "recipe") -> list[FeatureBlock]:
    """Return the entries of a recipe, one per view, or raise :class:`ParameterError`.

    The pooling of an entry may be the name of a recipe. `name` is the name of the
    argument in messages.
    """
    entries = recipe.blocks if isinstance(recipe, FeatureRecipe) else recipe
    if isinstance(entries, str):
        entries = [part.strip() for part in entries.split(",")]
    if not isinstance(entries, Sequence) or not 1 <= len(entries) <= _MAX_BLOCKS:
        raise ParameterError(
            f"{name} must be a list of 1 to {_MAX_BLOCKS} blocks, got {recipe!r}"
        )
    blocks: list[FeatureBlock] = []
    for entry in entries:
        text, network = _split_network(str(entry))
        what = text.partition(":")[0].partition("@")[0]
        if what in RECIPES:
            named = [_parse_named(part, name) for part in _split_views(text)]
            blocks += [replace(block, network=network) for block in named]
        elif what not in (*POOLINGS, FINAL) and isinstance(recipe, str):
            raise ParameterError(
                f"{name} must be {', '.join(map(repr, RECIPES))} or blocks such as "
                f"'final,mean@-2', got {recipe!r}"
            )
        else:
            blocks += map(FeatureBlock.parse, _split_views(entry))
    _check_distinct(blocks, name)
    return blocks


def _split_views(entry: Any) -> list[Any]:
    """Split an entry such as ``"final@224+320"`` into one entry per view.

    Other values than texts are returned as the only entry.
    """
    if not isinstance(entry, str):
        return [entry]
    text, network = _split_network(entry)
    body, colon, side = text.partition(":")
    what, at, views = body.rpartition("@")
    if not at:
        return [entry]
    if network:
        side += f"#{network}"
    return [f"{what}@{view}{colon}{side}" for view in views.split("+")]


def _parse_named(entry: str, name: str) -> FeatureBlock:
    """Parse an entry such as ``"rich@320:mirror"``.

    The pooling of the result is the name of the recipe. `name` is the name of the
    argument in messages.
    """
    body, colon, side = entry.partition(":")
    recipe, *views = body.split("@")
    has_bad_side = bool(colon) and side != "mirror"
    takes_no_views = recipe in ("auto", "best") and entry != recipe
    if len(views) > 1 or has_bad_side or takes_no_views:
        raise ParameterError(
            f"{name} must say views as in 'rich@224+320:mirror', and none for 'auto' "
            f"and 'best', got {entry!r}"
        )
    return FeatureBlock(recipe, FINAL, side=cast("Side", side)).with_views(*views)


def check_recipe(recipe: Any, name: str = "recipe") -> None:
    """Raise :class:`ParameterError` if a recipe is invalid for every network.

    Parameters
    ----------
    recipe : str, sequence of str or FeatureRecipe
        The recipe.
    name : str
        Name of the argument in messages.

    Examples
    --------
    >>> from evergrow.features.backbone import check_recipe
    >>> check_recipe("rich@224+320:mirror")
    >>> check_recipe("rich@0")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: view must be a size such as 320 or a zoom ...
    """
    parse_recipe(recipe, name)


class ViewChoice(NamedTuple):
    """The views that a named recipe reads.

    Parameters
    ----------
    views : tuple of View or None
        Views that become separate blocks. None is the network's own view.
    side : {"", "mirror", "flipped"}
        Side of the image.
    also : tuple of View
        Further views to average over.
    note : str
        Why these views were chosen.
    """

    views: tuple[View | None, ...] = (None,)
    side: Side = ""
    also: tuple[View, ...] = ()
    note: str = ""


def resolve_recipe(
    recipe: Any,
    read: BlockReader,
    rich: Sequence[FeatureBlock],
    *,
    name: str,
    views: Callable[[str], ViewChoice] = lambda name: ViewChoice(),
    own: View | None = None,
) -> FeatureRecipe:
    """Return the blocks of one network for a recipe, with their widths.

    Blocks of named recipes are left out if the network cannot compute them, or if they
    repeat another block. Blocks that are written out must all be available.

    Parameters
    ----------
    recipe : str, sequence of str or FeatureRecipe
        A name or blocks. ``"auto"`` is ``"rich"`` if the network has known depths, else
        ``"fast"``.
    read : callable
        Runs the network; see :data:`BlockReader`. Its outputs give the widths of the
        blocks.
    rich : sequence of FeatureBlock
        Blocks of ``"rich"``, from :func:`rich_blocks`.
    name : str
        Name of the network in messages.
    views : callable
        From ``"rich"`` or ``"best"`` to a :class:`ViewChoice`. Called only if one of
        them is named without views.
    own : View, optional
        The network's own view. Blocks of this view are written without a view.

    Raises
    ------
    ParameterError
        If the recipe is invalid or the network lacks a block.
    InputError
        If a block is not one vector per sample.
    """
    entries = parse_recipe(recipe)
    for entry in entries:
        if entry.network:
            raise ParameterError(
                f"block must not have the number of a network, since {name} is one "
                f"network, got {str(entry)!r}"
            )
    wanted, note = _replace_names(entries, rich, views, own)
    if any(entry.pooling in RECIPES for entry in entries):
        blocks = _drop_repeated(_read_available(wanted, read))
        has_depths = any(block.pooling != FINAL for block in blocks)
        if not has_depths and recipe not in ("auto", "fast"):
            raise ParameterError(
                "recipe must be 'fast' or a list of blocks at named submodules, since "
                f"no depth of {name} can be read, got {recipe!r}"
            )
    else:
        blocks = _read_checked(wanted, read)
    return FeatureRecipe(
        tuple(map(str, blocks)),
        tuple(int(value.shape[1]) for value in blocks.values()),
        note,
    )


def _replace_names(
    entries: Sequence[FeatureBlock],
    rich: Sequence[FeatureBlock],
    views: Callable[[str], ViewChoice],
    own: View | None,
) -> tuple[list[FeatureBlock], str]:
    """Replace names of recipes by blocks.

    Returns
    -------
    blocks : list of FeatureBlock
        Blocks to read.
    note : str
        Why views were chosen. Empty if the recipe names its views.
    """
    note = ""
    wanted: list[FeatureBlock] = []
    for entry in entries:
        blocks: Sequence[FeatureBlock] = [entry]
        choice = ViewChoice((entry.view,), entry.side, entry.also)
        if entry.pooling == "fast" or (entry.pooling == "auto" and len(rich) == 1):
            blocks = [FeatureBlock(FINAL, FINAL)]
        elif entry.pooling in RECIPES:
            blocks = rich
            if entry.view is None and not entry.also:
                choice = views("best" if entry.pooling == "best" else "rich")
                note = choice.note
        for view in choice.views:
            wanted += [
                replace(
                    block,
                    view=None if view == own else view,
                    also=choice.also,
                    side=entry.side or choice.side,
                )
                for block in blocks
            ]
    _check_distinct(wanted, "recipe")
    return wanted, note


def _read_checked(
    blocks: Sequence[FeatureBlock], read: BlockReader
) -> dict[FeatureBlock, Tensor]:
    """Read blocks. Raise :class:`InputError` if one is not a vector per sample."""
    values = read(blocks)
    for block, value in zip(blocks, values, strict=True):
        if value.ndim != 2 or not value.shape[1]:
            raise InputError(
                f"block {str(block)!r} must be one vector per sample, got shape "
                f"{tuple(value.shape)}"
            )
    return dict(zip(blocks, values, strict=True))


def _read_available(
    blocks: Sequence[FeatureBlock], read: BlockReader
) -> dict[FeatureBlock, Tensor]:
    """Read blocks in one pass, and leave out blocks that the network lacks.

    If reading all blocks fails, each block is tried alone. The network's output is
    always read, so that its errors are raised.
    """
    try:
        return _read_checked(blocks, read)
    except (InputError, ParameterError):
        available = [
            block
            for block in blocks
            if block.pooling == FINAL or _is_available(block, read)
        ]
        return _read_checked(available, read)


def _is_available(block: FeatureBlock, read: BlockReader) -> bool:
    try:
        _read_checked([block], read)
    except (InputError, ParameterError):
        return False
    return True


def _drop_repeated(
    values: Mapping[FeatureBlock, Tensor],
) -> dict[FeatureBlock, Tensor]:
    """Return the values without blocks that repeat an earlier block of the same view.

    A block that is proportional to another one adds nothing once rows are scaled.
    """
    kept: dict[FeatureBlock, Tensor] = {}
    for block, value in values.items():
        view = replace(block, pooling=FINAL, depth=FINAL)
        is_repeated = any(
            _has_same_direction(value, other_value)
            for other, other_value in kept.items()
            if replace(other, pooling=FINAL, depth=FINAL) == view
        )
        if not is_repeated:
            kept[block] = value
    return kept


def _has_same_direction(one: Tensor, other: Tensor) -> bool:
    """Return whether two blocks are proportional for every sample."""
    if one.shape != other.shape:
        return False
    gap = _unit_rows(one) - _unit_rows(other)
    return bool(gap.norm(dim=1).max() <= _SAME_DIRECTION)


def _unit_rows(values: Tensor) -> Tensor:
    values = values.double()
    lengths: Tensor = values.norm(dim=1, keepdim=True)
    return values / lengths.clamp_min(1e-12)


def rich_blocks(
    kind: str, depths: int, class_token: bool = False
) -> list[FeatureBlock]:
    """Return the blocks of ``"rich"``: the output and up to three of the last depths.

    Parameters
    ----------
    kind : {"tokens", "maps", "texts"}
        A transformer of one width, a network of stages, or a sentence encoder.
    depths : int
        Number of depths.
    class_token : bool
        Whether the network has a class token. If so, it is read as well as the mean
        of the patches.
    """
    blocks = [FeatureBlock(FINAL, FINAL)]
    for depth in range(1, min(3, depths) + 1):
        if kind == "tokens" and class_token:
            blocks.append(FeatureBlock("cls", -depth))
        blocks.append(FeatureBlock("mean", -depth))
    if kind == "texts" and depths:
        blocks += [FeatureBlock(pooling, -1) for pooling in ("max", "cls", "spread")]
    return blocks


# -- backbones -------------------------------------------------------------------------


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
    parts : tuple of BackboneSpec
        Descriptions of several networks side by side, without recipes. Blocks of
        `recipe` have the number of their network. Empty if there is one network.
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
    parts: tuple[BackboneSpec, ...] = ()
    extra: Extra = field(default=NOTHING, compare=False)

    @property
    def networks(self) -> tuple[BackboneSpec, ...]:
        """Descriptions of all networks: the `parts`, or this one."""
        return self.parts or (self,)

    @property
    def is_plain(self) -> bool:
        """Whether the features are the outputs of the networks alone."""
        output = FeatureBlock(FINAL, FINAL)
        return all(replace(block, network=0) == output for block in self.blocks.parsed)

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
        values = {
            name: value
            for name, value in plain.to_dict().items()
            if name not in ("weights", *self.extra.values)
        }
        if self.parts:
            values["parts"] = [part.decisive() for part in self.parts]
        return values

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
        numbers = [block.network for block in self.blocks.parsed]
        if not self.parts:
            require(not any(numbers), "its recipe has numbers of networks")
            return
        require(
            2 <= len(self.parts) <= MAX_NETWORKS,
            f"it has {len(self.parts)} networks instead of 2 to {MAX_NETWORKS}",
        )
        for part in self.parts:
            require(
                part.kind == self.kind and part.recipe is None and not part.parts,
                "its networks are not plain ones of its kind",
            )
        require(
            numbers == sorted(numbers)
            and set(numbers) == set(range(1, len(self.parts) + 1)),
            "its recipe does not list the blocks of its networks in order",
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
            "mean@-2"]``; see :mod:`evergrow.features.backbone`.
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
    def is_thread_safe(self) -> bool:
        """Whether several threads may call :meth:`encode` at the same time."""
        return False

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
