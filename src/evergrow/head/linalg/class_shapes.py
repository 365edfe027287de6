"""Second moments per class, in a few fixed directions.

Rows p are projected to k fixed directions. The *moments* of a class are the sum of
outer products X^T X of its r projected rows, of rank r. Together with the sums of rows
they give the scatter of every class, from which
:class:`~evergrow.head.linalg.shape_scores.ShapeScores` computes terms of class scores.
All statistics are sums over samples.

**Memory.** For up to k / 2 rows the moments are stored as a factor F of r rows with
F^T F = X^T X, for more rows as the upper triangle, which is then smaller. F is computed
from entries of the sum alone, by a Cholesky factorisation with pivots. All X with the
same sum (equal up to an orthogonal matrix) therefore give the same F, so F reveals no
more about the rows than the sum does. Sums and differences of factors are factored
again, and are exact to rounding of the largest variance involved, like sums of
triangles.

**Speed.** No operation loops over classes. Classes with similar numbers of rows are
padded to one length and computed together, see :func:`tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.core.record import Spec, record, require
from evergrow.core.seeding import generator
from evergrow.head.linalg.factor import symmetric_eigh
from evergrow.head.linalg.statistics import sum_columns

NOT_A_SCATTER = (
    "The second moments of a class are not those of any samples: a variance is "
    "negative."
)

TINY = 1e-300
"""Smallest divisor, in place of zero."""

_TILE_NUMBERS = 2**22
"""Numbers in the matrices of a tile on a CPU: 32 MiB."""

_GPU_TILE_NUMBERS = 2**26
"""Numbers in the matrices of a tile on a GPU: 512 MiB."""

_ROUNDING = 64 * torch.finfo(torch.float64).eps
"""Variances below this fraction of the largest one are rounding errors."""

_WIDE = 1536
"""Largest feature width for which all principal directions are computed."""

_N_EXTRA_DIRECTIONS = 64
_N_ITERATIONS = 5
"""Extra directions and iterations of the subspace iteration for wider features.

Both make the leading directions more accurate.
"""


def counts_or_one(counts: Tensor) -> Tensor:
    """Return counts (C,) as divisors: zeros become one.

    Sums of sample weights may be smaller than one and stay as they are.
    """
    return torch.where(counts > 0, counts, torch.ones_like(counts))


@record("class-shapes", version=3)
@dataclass(frozen=True, eq=False)
class ClassShapes:
    """Sums of rows and of their outer products per class, in k fixed directions.

    Parameters
    ----------
    centre : Tensor of shape (d,)
        Mean of the first task's layer inputs.
    basis : Tensor of shape (d, k)
        First k principal directions of the first task, orthonormal.
    sums : Tensor of shape (C, k)
        Sum of the projected rows of each class.
    ranks : Tensor of shape (C,)
        Number of rows of each class's factor, at most k / 2. The value k means that the
        class has a triangle.
    factors : Tensor of shape (r, k)
        Rows of the factors of all classes, in the order of classes.
    triangles : Tensor of shape (t, k (k + 1) / 2)
        Upper triangles of the moments of the other classes, in the order of classes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import ClassShapes
    >>> Z = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    >>> shapes = ClassShapes.first(Z, directions=2).group([[]])
    >>> shapes = shapes.add(shapes.rows(Z), torch.tensor([0, 0]))
    >>> shapes.squares(torch.tensor([0])).round(decimals=9).tolist()
    [[[4.0]]]
    """

    centre: Annotated[Tensor, Spec(("d",))]
    basis: Annotated[Tensor, Spec(("d", "k"))]
    sums: Annotated[Tensor, Spec(("C", "k"))]
    ranks: Annotated[Tensor, Spec(("C",), dtype="int64")]
    factors: Annotated[Tensor, Spec((None, "k"))]
    triangles: Annotated[Tensor, Spec((None, None))]

    @classmethod
    def first(cls, Z: Tensor, directions: int) -> ClassShapes:
        """Return empty sums in the principal directions of the first task.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Layer inputs of the first task.
        directions : int
            Largest number of directions.
        """
        centre = Z.mean(dim=0)
        values, vectors = _principal_directions(Z - centre, directions)
        # Directions without variance are left out.
        rank = int((values > 1e-10 * float(values.max().clamp_min(TINY))).sum())
        k = max(min(directions, rank), 1)
        basis = vectors[:, -k:].flip(1)
        # The sign of a direction is arbitrary. Make the largest entry positive, so that
        # every machine chooses the same sign.
        largest = basis.abs().argmax(dim=0)
        basis = basis * basis.gather(0, largest[None, :]).sign()
        return cls(
            centre=centre,
            basis=basis.contiguous(),
            sums=basis.new_zeros(0, k),
            ranks=torch.zeros(0, dtype=torch.int64, device=basis.device),
            factors=basis.new_zeros(0, k),
            triangles=basis.new_zeros(0, k * (k + 1) // 2),
        )

    @property
    def directions(self) -> int:
        """Number k of directions."""
        return int(self.basis.shape[1])

    @property
    def has_triangle(self) -> Tensor:
        """Whether each class has a triangle, of shape (C,)."""
        return self.ranks == self.directions

    @cached_property
    def factor_classes(self) -> Tensor:
        """Class of each row of `factors`, of shape (r,)."""
        classes = torch.arange(len(self.ranks), device=self.ranks.device)
        return classes.repeat_interleave(self.ranks.where(~self.has_triangle, 0))

    @cached_property
    def triangle_classes(self) -> Tensor:
        """Class of each triangle, of shape (t,)."""
        return self.has_triangle.nonzero().ravel()

    def rows(self, Z: Tensor) -> Tensor:
        """Project layer inputs Z (n, d) to the directions, giving (n, k)."""
        return (Z - self.centre) @ self.basis

    # -- sums and differences ----------------------------------------------------------

    def group(self, groups: Sequence[Sequence[int]]) -> ClassShapes:
        """Return the sums with classes merged, reordered, added and dropped.

        Parameters
        ----------
        groups : sequence of sequences of int
            Old classes that each new class consists of. Empty for a class without rows.
        """
        sums = sum_columns(self.sums, groups, dim=0)
        if sums is self.sums:
            return self
        pairs = [(new, old) for new, group in enumerate(groups) for old in group]
        new, old = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
        is_changed = new.bincount(minlength=len(groups)) > 1
        device = self.ranks.device
        moments = self._summands().regrouped(new.to(device), old.to(device))
        is_changed = is_changed.to(device)
        return self._with_moments(sums, moments, is_changed, moments.of(is_changed))

    def add(
        self, P: Tensor, codes: Tensor, sign: float = 1.0, weights: Tensor | None = None
    ) -> ClassShapes:
        """Return the sums with rows added, or removed with ``sign=-1``.

        Parameters
        ----------
        P : Tensor of shape (n, k)
            Projected rows.
        codes : Tensor of shape (n,)
            Class of each row.
        sign : float, default=1.0
            -1 removes the rows.
        weights : Tensor of shape (n,) or None
            Sample weights. None means 1.

        Raises
        ------
        NumericalError
            If removed rows were not learned and a class with few rows shows this. For
            the other classes, see :meth:`is_plausible`.
        """
        P = P.to(torch.float64)
        weights = P.new_ones(len(P)) if weights is None else weights.to(P)
        weights = sign * weights
        sums = self.sums.clone()
        for tile in tiles(codes, len(sums), width=self.directions):
            padded = tile.pad(weights)[:, None] @ P[tile.rows]
            sums[tile.classes] += padded[:, 0]
        is_changed = torch.zeros_like(self.has_triangle)
        is_changed[codes] = True
        own = self._summands()
        summands = own.of(is_changed).with_rows(P, codes, weights)
        return self._with_moments(sums, own, is_changed, summands)

    def merge(self, other: ClassShapes, sign: int = 1) -> ClassShapes:
        """Return the sums of both, or the difference with ``sign=-1``.

        Both must have the same directions and the same classes.
        """
        theirs = other._summands(float(sign)).to(self.sums.device)
        is_changed = other.ranks.to(self.ranks.device) > 0
        sums = self.sums + sign * other.sums.to(self.sums.device)
        own = self._summands()
        return self._with_moments(
            sums, own, is_changed, own.of(is_changed).joined(theirs)
        )

    def faded(self, factor: float) -> ClassShapes:
        """Return the sums with the weights of all rows multiplied by `factor`."""
        return replace(
            self,
            sums=factor * self.sums,
            factors=math.sqrt(factor) * self.factors,
            triangles=factor * self.triangles,
        )

    def _summands(self, weight: float = 1.0) -> _Summands:
        """Return the moments of all classes as summands of one weight."""
        return _Summands(
            rows=self.factors,
            row_classes=self.factor_classes,
            row_weights=self.factors.new_full((len(self.factors),), weight),
            triangles=self.triangles,
            triangle_classes=self.triangle_classes,
            triangle_weights=self.triangles.new_full((len(self.triangles),), weight),
        )

    def _with_moments(
        self,
        sums: Tensor,
        own: _Summands,
        is_changed: Tensor,
        summands: _Summands,
    ) -> ClassShapes:
        """Return a copy with other sums and moments.

        A class has a factor if this bounds its rank by k / 2: it has no triangle and
        few rows with positive weights.

        Parameters
        ----------
        sums : Tensor of shape (C, k)
            The sums of rows.
        own : _Summands
            Moments of all classes, in order. Unchanged classes keep theirs.
        is_changed : Tensor of shape (C,)
            Whether a class changes.
        summands : _Summands
            Summands of the moments of the classes that change, to be added up.
        """
        k = self.directions
        n_classes = len(sums)
        is_positive = summands.row_weights > 0.0
        n_positive = summands.row_classes[is_positive].bincount(minlength=n_classes)
        is_full = n_positive > k // 2
        is_full[summands.triangle_classes] = True
        factors, factor_classes = _replace_rows(
            own.rows, own.row_classes, is_changed, _add_factors(summands, ~is_full)
        )
        triangles, triangle_classes = _replace_rows(
            own.triangles,
            own.triangle_classes,
            is_changed,
            _add_triangles(summands, is_full),
        )
        ranks = factor_classes.bincount(minlength=n_classes)
        ranks[triangle_classes] = k
        return replace(
            self, sums=sums, ranks=ranks, factors=factors, triangles=triangles
        )

    def same_directions(self, other: ClassShapes) -> bool:
        """Return whether both have bitwise equal directions and centre."""
        return torch.equal(self.basis.cpu(), other.basis.cpu()) and torch.equal(
            self.centre.cpu(), other.centre.cpu()
        )

    # -- moments -----------------------------------------------------------------------

    def squares(self, classes: Tensor) -> Tensor:
        """Return the moments X^T X of some classes (c,) as matrices (c, k, k)."""
        k = self.directions
        places = torch.full_like(self.ranks, -1)
        places[classes] = torch.arange(len(classes), device=classes.device)
        squares = self.sums.new_zeros(len(classes), k, k)
        is_wanted = places[self.triangle_classes] >= 0
        triangle_places = places[self.triangle_classes[is_wanted]]
        squares[triangle_places] = unpack_triangles(self.triangles[is_wanted], k)
        for tile in tiles(self.factor_classes, len(self.ranks), k, k, places >= 0):
            rows = self.factors[tile.rows] * tile.inside[:, :, None]
            squares[places[tile.classes]] = rows.mT @ rows
        return squares

    def scatters(self, classes: Tensor, counts: Tensor) -> Tensor:
        """Return the scatters S_c of some classes, of shape (c, k, k).

        Parameters
        ----------
        classes : Tensor of shape (c,)
            The classes.
        counts : Tensor of shape (C,)
            Rows per class, for all classes.
        """
        sums = self.sums[classes]
        means = sums / counts_or_one(counts[classes].to(sums))[:, None]
        return self.squares(classes) - sums[:, :, None] * means[:, None, :]

    @cached_property
    def whole(self) -> Tensor:
        """Sum of the moments of all classes, of shape (k, k)."""
        triangle = self.triangles.sum(dim=0, keepdim=True)
        full = unpack_triangles(triangle, self.directions)[0]
        return full + self.factors.T @ self.factors

    def pooled(self, counts: Tensor) -> Tensor:
        """Return the sum of all scatters (k, k), from the rows per class (C,)."""
        scaled = self.sums / counts_or_one(counts.to(self.sums)).sqrt()[:, None]
        return self.whole - scaled.T @ scaled

    # -- files -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless directions and moments agree."""
        width, k = self.basis.shape
        require(0 < k <= width, "it has no directions, or more than features")
        identity = torch.eye(k, dtype=self.basis.dtype, device=self.basis.device)
        gap = self.basis.T @ self.basis - identity
        require(float(gap.abs().max()) < 1e-6, "its directions are not orthogonal")
        is_factor = (self.ranks >= 0) & (self.ranks <= k // 2)
        is_possible = bool((is_factor | self.has_triangle).all())
        require(is_possible, "the moments of a class have an impossible rank")
        n_rows = int(self.ranks[is_factor & ~self.has_triangle].sum())
        n_triangles = int(self.has_triangle.sum())
        require(
            len(self.factors) == n_rows
            and self.triangles.shape == (n_triangles, k * (k + 1) // 2),
            "the size of its moments does not match its classes and directions",
        )

    def is_plausible(self, counts: Tensor) -> bool:
        """Return whether samples with these sums and moments can exist.

        Every class must have finite, non-negative variances, and covariances within the
        Cauchy-Schwarz bound. Both up to rounding, which is larger after unlearning.

        Parameters
        ----------
        counts : Tensor of shape (C,)
            Rows per class, or sums of their weights.
        """
        k = self.directions
        first, second = torch.triu_indices(k, k, device=self.sums.device)
        squares = torch.zeros_like(self.sums)
        squares.index_add_(0, self.factor_classes, self.factors.square())
        squares[self.triangle_classes] = self.triangles[:, first == second]
        divisors = counts_or_one(counts.to(self.sums))[:, None]
        variances = squares - self.sums.square() / divisors
        is_valid = variances >= -1e-6 * squares.abs() - 1e-9
        if not bool((torch.isfinite(squares) & is_valid).all()):
            return False
        # Factors satisfy the Cauchy-Schwarz bound by construction.
        lengths = squares[self.triangle_classes].clamp_min(0.0).sqrt()
        per_tile = _tile_size(self.triangles.device, 2 * self.triangles.shape[1])
        for triangles, of_rows in zip(
            torch.split(self.triangles, per_tile),
            torch.split(lengths, per_tile),
            strict=True,
        ):
            bounds = of_rows[:, first] * of_rows[:, second]
            if not bool((triangles.abs() <= bounds * (1.0 + 1e-6) + 1e-9).all()):
                return False
        return True


# -- classes side by side --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tile:
    """Classes with similar numbers of rows, padded to the longest.

    Parameters
    ----------
    classes : Tensor of shape (c,)
        The classes, each once.
    rows : Tensor of shape (c, m)
        Indices of their rows. Padding repeats other rows.
    inside : Tensor of shape (c, m)
        False for padding.
    """

    classes: Tensor
    rows: Tensor
    inside: Tensor

    def pad(self, values: Tensor) -> Tensor:
        """Return the values (n,) of all rows as (c, m), with zeros as padding."""
        return values[self.rows].where(self.inside, 0.0)


def tiles(
    row_classes: Tensor,
    n_classes: int,
    width: int,
    n_fixed: int = 0,
    wanted: Tensor | None = None,
) -> Iterator[Tile]:
    """Yield classes together with their rows, in any order of classes.

    Every class with rows is in one tile. At most a fifth of a tile is padding, and its
    matrices are bounded in size. The order of the rows of a class is kept.

    Parameters
    ----------
    row_classes : Tensor of shape (n,)
        Class of each row.
    n_classes : int
        Number of classes C.
    width : int
        Number of columns of a row.
    n_fixed : int, default=0
        Further rows of this width that a class needs.
    wanted : Tensor of shape (C,), optional
        Whether to yield a class. By default all classes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import tiles
    >>> for tile in tiles(torch.tensor([0, 2, 0, 0]), 3, width=1):
    ...     print(tile.classes.tolist(), tile.rows.tolist())
    [2] [[1]]
    [0] [[0, 2, 3]]
    """
    counts = row_classes.bincount(minlength=n_classes)
    starts = counts.cumsum(0) - counts
    order = row_classes.argsort(stable=True)
    is_wanted = counts > 0
    if wanted is not None:
        is_wanted = is_wanted & wanted
    # Lengths in a bucket differ by less than the factor 2^(1/4).
    buckets = (4.0 * counts.clamp_min(1).log2()).floor().where(is_wanted, -1.0)
    for bucket in torch.unique(buckets).tolist():
        if bucket < 0:
            continue
        members = (buckets == bucket).nonzero().ravel()
        length = int(counts[members].amax())
        places = torch.arange(length, device=counts.device)
        per_tile = _tile_size(counts.device, (length + n_fixed) * width)
        for classes in torch.split(members, per_tile):
            inside = places < counts[classes][:, None]
            sources = (starts[classes][:, None] + places).clamp_max(len(order) - 1)
            yield Tile(classes, order[sources], inside)


def _tile_size(device: torch.device, n_numbers: int) -> int:
    """Return how many classes of `n_numbers` numbers each make a tile."""
    total = _GPU_TILE_NUMBERS if device.type == "cuda" else _TILE_NUMBERS
    return max(total // max(n_numbers, 1), 1)


@dataclass(frozen=True, eq=False)
class _Summands:
    """Weighted summands of the moments of all classes.

    Parameters
    ----------
    rows : Tensor of shape (n, k)
        Rows, whose outer products are the summands.
    row_classes, row_weights : Tensor of shape (n,)
        Class and weight of each row. Negative weights remove rows.
    triangles : Tensor of shape (t, k (k + 1) / 2)
        Upper triangles.
    triangle_classes, triangle_weights : Tensor of shape (t,)
        Class and weight of each triangle.
    """

    rows: Tensor
    row_classes: Tensor
    row_weights: Tensor
    triangles: Tensor
    triangle_classes: Tensor
    triangle_weights: Tensor

    def to(self, device: torch.device) -> _Summands:
        """Return the summands on another device."""
        return _Summands(*(part.to(device) for part in vars(self).values()))

    def joined(self, other: _Summands) -> _Summands:
        """Return the summands of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Summands(*(torch.cat(pair) for pair in pairs))

    def with_rows(self, rows: Tensor, classes: Tensor, weights: Tensor) -> _Summands:
        """Return the summands with further rows."""
        return replace(
            self,
            rows=torch.cat([self.rows, rows]),
            row_classes=torch.cat([self.row_classes, classes]),
            row_weights=torch.cat([self.row_weights, weights]),
        )

    def of(self, wanted: Tensor) -> _Summands:
        """Return the summands of the wanted classes (C,)."""
        rows = wanted[self.row_classes]
        triangles = wanted[self.triangle_classes]
        return _Summands(
            rows=self.rows[rows],
            row_classes=self.row_classes[rows],
            row_weights=self.row_weights[rows],
            triangles=self.triangles[triangles],
            triangle_classes=self.triangle_classes[triangles],
            triangle_weights=self.triangle_weights[triangles],
        )

    def regrouped(self, new: Tensor, old: Tensor) -> _Summands:
        """Return the summands of old classes (m,) as summands of new classes (m,).

        The summands must be in the order of classes.
        """
        rows, row_pairs = _entries_of(self.row_classes, old)
        triangles, triangle_pairs = _entries_of(self.triangle_classes, old)
        return _Summands(
            rows=_take(self.rows, rows),
            row_classes=new[row_pairs],
            row_weights=self.row_weights[rows],
            triangles=_take(self.triangles, triangles),
            triangle_classes=new[triangle_pairs],
            triangle_weights=self.triangle_weights[triangles],
        )


def _take(values: Tensor, entries: Tensor) -> Tensor:
    """Return ``values[entries]``, without a copy if these are all values in order."""
    everything = torch.arange(len(values), device=values.device)
    if torch.equal(entries, everything):
        return values
    return values[entries]


def _entries_of(classes: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entries of sorted `classes` that equal each class of `wanted`.

    Returns
    -------
    entries : Tensor of shape (e,)
        Indices of `classes`.
    wanted_index : Tensor of shape (e,)
        Index of `wanted` for each entry.
    """
    starts = torch.searchsorted(classes, wanted)
    ends = torch.searchsorted(classes, wanted, right=True)
    lengths = ends - starts
    indices = torch.arange(len(wanted), device=wanted.device)
    wanted_index = indices.repeat_interleave(lengths)
    # Number of each entry among those of its class.
    first_entries = lengths.cumsum(0) - lengths
    numbers = torch.arange(len(wanted_index), device=wanted.device)
    numbers = numbers - first_entries[wanted_index]
    return starts[wanted_index] + numbers, wanted_index


def _replace_rows(
    rows: Tensor,
    classes: Tensor,
    is_changed: Tensor,
    new: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Replace the rows of changed classes, and keep rows sorted by class.

    Parameters
    ----------
    rows : Tensor of shape (n, m)
        The rows.
    classes : Tensor of shape (n,)
        Class of each row, in order.
    is_changed : Tensor of shape (C,)
        Whether the rows of a class are replaced.
    new : tuple of Tensor
        The rows (r, m) of changed classes, and their classes (r,).

    Returns
    -------
    rows, classes : Tensor
        `rows` itself if nothing is replaced.
    """
    new_classes, order = new[1].sort(stable=True)
    new_rows = new[0][order]
    is_old = is_changed[classes]
    if torch.equal(classes[is_old], new_classes):
        if not len(new_rows):
            return rows, classes
        result = rows.clone()
        result[is_old] = new_rows
        return result, classes
    joined, order = torch.cat([classes[~is_old], new_classes]).sort(stable=True)
    return torch.cat([rows[~is_old], new_rows])[order], joined


def _add_factors(moments: _Summands, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors (r, k) of the wanted classes (C,), and their classes (r,)."""
    width = moments.rows.shape[1]
    factors = [moments.rows[:0]]
    classes = [moments.row_classes[:0]]
    # Rows, weighted rows and factors have the same number of rows.
    for tile in tiles(moments.row_classes, len(wanted), 3 * width, wanted=wanted):
        weights = tile.pad(moments.row_weights)
        found = factor_sums(moments.rows[tile.rows], weights)
        is_used = found.any(dim=2)
        factors.append(found[is_used])
        classes.append(tile.classes[:, None].expand_as(is_used)[is_used])
    return torch.cat(factors), torch.cat(classes)


def _add_triangles(moments: _Summands, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the triangles (t, k (k + 1) / 2) of the wanted classes (C,), and these."""
    n_classes = len(wanted)
    k = moments.rows.shape[1]
    classes = wanted.nonzero().ravel()
    places = wanted.cumsum(0) - 1
    width = moments.triangles.shape[1]
    triangles = moments.triangles.new_zeros(len(classes), width)
    for tile in tiles(moments.triangle_classes, n_classes, width, 1):
        weights = tile.pad(moments.triangle_weights)
        total = weights[:, None] @ moments.triangles[tile.rows]
        triangles[places[tile.classes]] = total[:, 0]
    first, second = torch.triu_indices(k, k, device=triangles.device)
    for tile in tiles(moments.row_classes, n_classes, k, 2 * k, wanted):
        rows = moments.rows[tile.rows]
        heavy = rows * tile.pad(moments.row_weights)[:, :, None]
        triangles[places[tile.classes]] += (heavy.mT @ rows)[:, first, second]
    return triangles, classes


def factor_sums(rows: Tensor, weights: Tensor) -> Tensor:
    """Return factors F with ``F^T F = X^T diag(w) X``.

    A Cholesky factorisation that always eliminates the largest remaining variance. It
    needs r steps for rank r and never forms a matrix (k, k).

    Parameters
    ----------
    rows : Tensor of shape (c, m, k)
        X of c classes.
    weights : Tensor of shape (c, m)
        w, negative for removed rows.

    Returns
    -------
    Tensor of shape (c, r, k)
        F. Rows beyond the rank of a class are zero.

    Raises
    ------
    NumericalError
        If a remaining variance is negative beyond rounding.
    """
    heavy = rows * weights[:, :, None]
    variances = (heavy * rows).sum(dim=1)  # not yet explained by F
    largest = (heavy * rows).abs().sum(dim=1).amax(dim=1, keepdim=True)
    max_rank = int((weights > 0.0).sum(dim=1).amax())
    factors = rows.new_zeros(len(rows), max_rank, rows.shape[2])
    for step in range(max_rank):
        pivots = variances.argmax(dim=1, keepdim=True)
        values = variances.gather(1, pivots)
        # The row of X^T diag(w) X - F^T F that belongs to the pivot.
        columns = pivots[:, None, :].expand(-1, rows.shape[1], 1)
        line = (rows.gather(2, columns).mT @ heavy)[:, 0]
        if step:
            before = factors[:, :step]
            pivot_column = before.gather(2, columns[:, :1].expand(-1, step, 1))
            line = line - (pivot_column.mT @ before)[:, 0]
        line = torch.where(
            values > _ROUNDING * largest, line / values.clamp_min(TINY).sqrt(), 0.0
        )
        factors[:, step] = line
        # The pivot is eliminated exactly, unless it was only rounding.
        pivot_rest = torch.where(line.any(dim=1, keepdim=True), 0.0, values)
        variances = (variances - line.square()).scatter(1, pivots, pivot_rest)
    if bool((variances / largest.clamp_min(TINY) < -1e-6).any()):
        raise NumericalError(NOT_A_SCATTER)
    return factors


def unpack_triangles(packed: Tensor, k: int) -> Tensor:
    """Return the symmetric matrices (c, k, k) of upper triangles (c, k (k + 1) / 2)."""
    rows, columns = torch.triu_indices(k, k, device=packed.device)
    full = packed.new_zeros(len(packed), k, k)
    full[:, rows, columns] = packed
    full[:, columns, rows] = packed
    return full


def _principal_directions(centred: Tensor, directions: int) -> tuple[Tensor, Tensor]:
    """Return the leading eigenvalues and eigenvectors of ``X^T X``, ascending.

    The decomposition is exact, except for wide features with many rows.

    Parameters
    ----------
    centred : Tensor of shape (n, d)
        X, centred rows.
    directions : int
        Number of eigenvectors needed. More may be returned.

    Returns
    -------
    values : Tensor of shape (m,)
        Eigenvalues.
    vectors : Tensor of shape (d, m)
        Eigenvectors.
    """
    n, width = centred.shape
    if 2 * n <= width:  # decompose within the span of the rows
        span, triangle = torch.linalg.qr(centred.T)
        values, vectors = symmetric_eigh(triangle @ triangle.T)
        return values, span @ vectors
    n_wanted = directions + _N_EXTRA_DIRECTIONS
    if width <= _WIDE or n_wanted >= min(centred.shape):
        return symmetric_eigh(centred.T @ centred)
    # Subspace iteration costs about a hundredth of a full decomposition.
    stream = generator(0, "principal directions", width)
    span = torch.randn(width, n_wanted, generator=stream, dtype=torch.float64)
    span = span.to(centred)
    for _ in range(_N_ITERATIONS):
        span = torch.linalg.qr(centred.T @ (centred @ span))[0]
    projected = centred @ span
    values, vectors = symmetric_eigh(projected.T @ projected)
    return values, span @ vectors
