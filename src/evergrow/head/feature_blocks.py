"""Features that are blocks of columns side by side: what is done to them before the layer, fixed by the first task.

Blocks come from several depths and poolings of one pass through a backbone, each of equal energy. A block has a weight,
and where there are more columns than a budget allows it is reduced by an orthogonal projection of its own, so that
blocks stay blocks. Statistics of what comes out are exact ever after; how the blocks weigh in answers is chosen again
from those (:mod:`evergrow.head.linalg.block_weights`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.record import Spec, record, require
from evergrow.core.seeding import generator
from evergrow.core.validation import check_number
from evergrow.head.linalg import LARGEST_BLOCK_WEIGHT, choose_block_weights, symmetric_eigh

MOST_BLOCKS = 1000

MOST_OF_FIRST = 4.0
"""Largest weight that a first task gives to a block, and inverse of the smallest: a few classes are no evidence for
switching off for ever what all units are made of. In answers a block may count for less, and come back."""


ENOUGH_ROWS = 200
"""Rows from which on cross-validation is trusted with the weights of blocks."""


def cautious_weights(blocks: int) -> tuple[float, ...]:
    """Return weights for blocks of which too little is known: the first, a network's own vector, counts most.

    Examples
    --------
    >>> from evergrow.head.feature_blocks import cautious_weights
    >>> [round(weight, 2) for weight in cautious_weights(4)]
    [1.84, 0.46, 0.46, 0.46]
    """
    first = math.sqrt(blocks / (1.0 + (blocks - 1) / MOST_OF_FIRST**2))
    return (first, *(first / MOST_OF_FIRST for _ in range(blocks - 1)))


def check_blocks(blocks: Any) -> None:
    """Raise :class:`ParameterError` unless blocks are None or a sequence of numbers of columns."""
    if blocks is None:
        return
    if isinstance(blocks, (str, bytes)) or not isinstance(blocks, Sequence) or not 0 < len(blocks) <= MOST_BLOCKS:
        raise ParameterError(f"blocks must be None or 1 to {MOST_BLOCKS} numbers of columns, got {blocks!r}")
    for size in blocks:
        check_number("blocks", size, low=1, high=2**31, integer=True)


@record("feature-blocks")
@dataclass(frozen=True, eq=False)
class FeatureBlocks:
    """What is done to every block of columns.

    Parameters
    ----------
    sizes : tuple of int
        Columns of each block as features have them.
    weights : tuple of float
        What the columns of each are multiplied by.
    bases : tuple of Tensor or None
        An orthonormal basis (columns, kept) of each block; None keeps all columns.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.feature_blocks import FeatureBlocks
    >>> FeatureBlocks((2, 1), (1.0, 3.0)).apply(torch.tensor([[1.0, 2.0, 4.0]])).tolist()
    [[1.0, 2.0, 12.0]]
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    bases: tuple[Annotated[Tensor, Spec((None, None))], ...] | None = None

    @classmethod
    def first(
        cls, Z: Tensor, codes: Tensor, sizes: Sequence[int] | None, max_features: int | None, seed: int
    ) -> FeatureBlocks | None:
        """Return what a first task fixes; None where there are neither several blocks nor too many columns.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Its rows.
        codes : Tensor of shape (n,)
            Their classes.
        sizes : sequence of int or None
            Columns of each block; None takes all as one.
        max_features : int or None
            Columns that may remain.
        seed : int
            Of directions in which the first task does not reach.

        Raises
        ------
        InputError
            If the blocks do not add up to the columns.
        """
        width = Z.shape[1]
        if sizes is not None and sum(sizes) != width:
            raise InputError(
                f"X must have {sum(sizes)} columns, the sum of the blocks {tuple(sizes)}, got {width}: blocks "
                "must add up"
            )
        sizes = (width,) if sizes is None else tuple(int(size) for size in sizes)
        wide = max_features is not None and width > max_features
        if len(sizes) == 1 and not wide:
            return None
        rows = Z.to(torch.float64)
        targets = torch.nn.functional.one_hot(codes).to(rows)
        found = cautious_weights(len(sizes)) if len(rows) < ENOUGH_ROWS else _chosen_weights(rows, targets, sizes)
        weights = tuple(min(max(weight, 1.0 / MOST_OF_FIRST), MOST_OF_FIRST) for weight in found)
        made = cls(sizes, weights)
        if max_features is None or not wide:
            return made
        return cls(sizes, weights, reduction(made.apply(rows), codes, sizes, int(max_features), seed))

    @property
    def kept(self) -> tuple[int, ...]:
        """Columns of each block that remain."""
        return self.sizes if self.bases is None else tuple(basis.shape[1] for basis in self.bases)

    @property
    def n_features_in(self) -> int:
        """Columns that features have."""
        return sum(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(basis.nbytes for basis in self.bases or ())

    def apply(self, Z: Tensor) -> Tensor:
        """Return features (n, d) reduced and weighted, (n, k)."""
        if self.bases is None:
            return Z * self.column_weights().to(Z)
        parts = zip(torch.split(Z, list(self.sizes), dim=1), self.bases, self.weights, strict=True)
        return torch.cat([part @ (basis.to(Z) * weight) for part, basis, weight in parts], dim=1)

    def lift(self, weights: Tensor) -> Tensor:
        """Return weights (d, m) of features from weights (k, m) of what they become: the two give the same products."""
        scaled = weights * self.column_weights().to(weights)[:, None]
        if self.bases is None:
            return scaled
        parts = zip(torch.split(scaled, list(self.kept), dim=0), self.bases, strict=True)
        return torch.cat([basis.to(part) @ part for part, basis in parts])

    def lower(self, weights: Tensor) -> Tensor:
        """Return weights (k, m) that :meth:`lift` turned into these ones (d, m)."""
        if self.bases is not None:
            parts = zip(torch.split(weights, list(self.sizes), dim=0), self.bases, strict=True)
            weights = torch.cat([basis.to(part).T @ part for part, basis in parts])
        return weights / self.column_weights().to(weights)[:, None]

    def column_weights(self) -> Tensor:
        """Return the weight (k,) of every column that remains."""
        return torch.repeat_interleave(torch.tensor(self.weights, dtype=torch.float64), torch.tensor(self.kept))

    def to(self, device: torch.device) -> FeatureBlocks:
        """Return the record on a device."""
        bases = None if self.bases is None else tuple(basis.to(device) for basis in self.bases)
        return FeatureBlocks(self.sizes, self.weights, bases)

    def same_map(self, other: FeatureBlocks) -> bool:
        """Return whether both do the same, bit for bit."""
        if (self.sizes, self.weights, self.kept) != (other.sizes, other.weights, other.kept):
            return False
        pairs = zip(self.bases or (), other.bases or (), strict=True)
        return all(torch.equal(mine.cpu(), theirs.cpu()) for mine, theirs in pairs)

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless sizes, weights and bases fit each other."""
        require(0 < len(self.sizes) <= MOST_BLOCKS and min(self.sizes) > 0, "it has no blocks, or too many")
        require(len(self.weights) == len(self.sizes), "it has another number of blocks than weights")
        check_weights(self.weights)
        for size, basis in zip(self.sizes, self.bases or ()):
            require(
                len(basis) == size and 0 < basis.shape[1] <= size, "a block has no directions, or more than columns"
            )
            gap = basis.T @ basis - torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
            require(float(gap.abs().max()) < 1e-6, "directions of a block are not orthogonal")
        require(self.bases is None or len(self.bases) == len(self.sizes), "it has another number of blocks than bases")


def _chosen_weights(rows: Tensor, targets: Tensor, sizes: Sequence[int]) -> tuple[float, ...]:
    counts = targets.sum(dim=0)
    if 2 * len(rows) > rows.shape[1]:
        return choose_block_weights(rows.T @ rows, rows.T @ targets, counts, sizes).weights
    one = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    return choose_block_weights(one, targets, counts, sizes, basis=rows.T).weights


def check_weights(weights: Sequence[float]) -> None:
    """Raise :class:`FileFormatError` unless weights of blocks are positive and within bounds."""
    low, high = 1.0 / LARGEST_BLOCK_WEIGHT, LARGEST_BLOCK_WEIGHT
    within = all(0.999 * low <= weight <= 1.001 * high for weight in weights)
    require(within, f"a block has a weight that is not from {low:g} to {high:g}")


# -- a budget of width ----------------------------------------------------------------------------------------


def reduction(Z: Tensor, codes: Tensor, sizes: Sequence[int], budget: int, seed: int) -> tuple[Tensor, ...]:
    """Return an orthonormal basis for every block, ``budget`` columns in all and at least one of each.

    A direction counts by the variance along it plus that of class means, times the ratio of all variance to all that of
    means, and the directions that count most, of whichever block, are kept. Where the first task has fewer rows than
    that, what remains of the budget goes to directions drawn at random from the rest of each block.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Rows of the first task, their blocks weighted.
    codes : Tensor of shape (n,)
        Their classes.
    sizes : sequence of int
        Columns of each block.
    budget : int
        Columns to keep, at least one for each block.
    seed : int
        Of the random directions.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.feature_blocks import reduction
    >>> Z = torch.randn(50, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> bases = reduction(Z, torch.arange(50) % 5, (6, 3), 4, 0)
    >>> [len(basis) for basis in bases], sum(basis.shape[1] for basis in bases)
    ([6, 3], 4)
    """
    rows = Z.to(torch.float64)
    rows = rows - rows.mean(dim=0)
    targets = torch.nn.functional.one_hot(codes).to(rows)
    means = (targets.T @ rows) / targets.sum(dim=0).clamp_min(1.0).sqrt()[:, None]  # squares add up to their variance
    means = means * (rows.square().sum() / means.square().sum().clamp_min(1e-300)).clamp_max(1e6).sqrt()
    found = [_directions(part) for part in torch.split(torch.cat([rows, means]), list(sizes), dim=1)]
    kept = _allotted([values for values, _ in found], list(sizes), budget)
    bases = []
    for place, ((_, vectors), number, size) in enumerate(zip(found, kept, sizes, strict=True)):
        basis = vectors[:, :number]
        if basis.shape[1] < number:
            source = generator(seed, "reduction", place)
            drawn = torch.randn(size, number - basis.shape[1], generator=source, dtype=torch.float64).to(Z.device)
            basis = torch.linalg.qr(torch.cat([basis, drawn], dim=1))[0]
        bases.append(basis.contiguous())
    return tuple(bases)


def _directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the energies (r,), falling, and the directions (d, r) of a block's rows (n, d)."""
    if 2 * len(rows) > rows.shape[1]:
        rising, columns = symmetric_eigh(rows.T @ rows)
        energies, directions = rising.flip(0).clamp_min(0.0), columns.flip(1)
    else:
        _, lengths, vectors = torch.linalg.svd(rows, full_matrices=False)
        energies, directions = lengths.square(), vectors.T
    known = int((energies > 1e-12 * float(energies[0])).sum()) if float(energies[0]) > 0.0 else 0
    directions = directions[:, :known]
    if known:
        # A direction is as good as its opposite: the largest entry decides, so that every machine takes the same.
        directions = directions * directions.gather(0, directions.abs().argmax(dim=0)[None, :]).sign()
    return energies[:known], directions


def _allotted(values: list[Tensor], sizes: list[int], budget: int) -> list[int]:
    """Return how many directions each block keeps."""
    kept = [1] * len(sizes)
    ranked = sorted(
        ((float(value), place) for place, block in enumerate(values) for value in block[1:].tolist()), reverse=True
    )
    for _, place in ranked[: budget - len(sizes)]:
        kept[place] += 1
    free = [size - number for size, number in zip(sizes, kept, strict=True)]
    missing = budget - sum(kept)
    while missing > 0 and sum(free) > 0:  # the first task does not reach that far
        place = max(range(len(free)), key=lambda block: free[block] / sizes[block])
        kept[place], free[place], missing = kept[place] + 1, free[place] - 1, missing - 1
    return kept
