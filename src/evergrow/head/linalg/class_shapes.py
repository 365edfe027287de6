"""Classes differ in shape: second moments per class in a few directions, and what they add to the scores.

A discriminant gives all classes one covariance. With rows p in k fixed directions, the
scatter S_c of class c about its mean (m_c = n_c - 1 degrees of freedom), the pooled
covariance C_0 and an inverse Wishart prior of strength nu about it,

    C_c = (S_c + nu C_0) / (m_c + nu)        g_c = m_c / (m_c + nu) min(max((n_c - 10) /
    20, 0), 1) shape_c(p) = g_c max((d^T (C_0^-1 - C_c^-1) d + ln|C_0| - ln|C_c|) / 2,
    -20)        d = p - mean_c

is the log-likelihood ratio of the class's own shape to the common one, counted as far
as it is credible: a class of ten rows has none. nu maximises the marginal likelihood of
the scatters. Everything is a sum over samples.

The last factor is not the prior's doing. The directions are those in which rows of the
first task spread, so that its classes look larger in them than they are, the more the
fewer rows there were; nu takes that for classes that differ. On held-out training rows
of birds, intents and CIFAR-100 shapes cost 1 to 4 points where all classes have six
rows, nothing with twenty, and gain with thirty and more.

**What a class costs.** The sum of outer products X^T X of r rows in k directions has
rank r, so for up to k / 2 rows it is held as a factor F of r rows, F^T F = X^T X; for
more rows as a triangle, which is then smaller. F is worked out from entries of the sum
alone (a Cholesky factorisation with pivots), so it tells of the rows what the sum
tells: all X with the same sum, which are those turned by any orthogonal matrix, give
the same F. Sums and differences of factors are factored again, and are as exact as
those of triangles: to rounding of the largest variance that took part.

In coordinates in which C_0 is the identity and S_c = B^T B, terms of classes of few
rows need B alone:

    (m_c + nu) (S_c + nu I)^-1 = (m_c + nu) / nu (I - B^T (nu I + B B^T)^-1 B)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, TypeAlias

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.core.record import Spec, record, require
from evergrow.core.seeding import generator
from evergrow.head.linalg.factor import symmetric_eigh
from evergrow.head.linalg.statistics import sum_columns

LIKELIEST = 16
"""Classes per row whose shape is looked at; the others get the smallest term among these, so none can win by it."""

FLOOR = 20.0
"""Least log-likelihood ratio that counts. Without it a row far from everything is refused by every class that has a
shape and falls to one of a few rows, which has none. On training rows 10 to 40 do
alike."""

SHAPELESS = 10
SHAPED = 30
"""Rows up to which a class has no shape of its own, and from which on it has all that the prior leaves it."""

_AT_ONCE = 256
"""Classes that are worked on at a time."""

_ROUNDING = 64 * torch.finfo(torch.float64).eps
"""Variance that is no more than rounding, in units of the largest variance that took part in a sum."""

_COMMON_RIDGE = 0.1
"""Share of the mean variance that is added to the pooled covariance's diagonal."""

_WIDE = 1536
"""Features beyond which only so many directions are worked out as are wanted, and a few more."""

_MORE = 64
_ROUNDS = 5

_NO_SAMPLES = (
    "sums of products of a class must be those of some samples, got a negative variance"
)

_STRENGTHS: tuple[float, ...] = tuple(5.0 * 2.0 ** (step / 2) for step in range(22))


_Pieces: TypeAlias = list[tuple[Tensor, Tensor | float]]
"""What is added up: rows or a factor (m, k), or a triangle (k (k + 1) / 2,), each with its weight or those of rows."""


def counts_or_one(counts: Tensor) -> Tensor:
    """Return counts to divide by: those of classes without rows are one; sums of weights may well be below it."""
    return torch.where(counts > 0, counts, torch.ones_like(counts))


@record("class-shapes", version=2)
@dataclass(frozen=True, eq=False)
class ClassShapes:
    """Fixed directions, and sums of rows and of their outer products in them, by class.

    Parameters
    ----------
    centre : Tensor of shape (d,)
        Mean of the first task's features, as the layer sees them.
    basis : Tensor of shape (d, k)
        The first k principal directions of the first task.
    sums : Tensor of shape (C, k)
        Sum of the rows of each class.
    ranks : Tensor of shape (C,)
        Rows of each class's factor, at most k / 2, or k where the sum of its outer
        products is held as a triangle.
    moments : Tensor of shape (n,)
        Factors and upper triangles, row by row, one class after the other.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import ClassShapes
    >>> P = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    >>> shapes = ClassShapes.first(P, directions=2).group([[]])
    >>> shapes.add(shapes.rows(P), torch.tensor([0, 0])).squares([0]).round(decimals=9).tolist()
    [[[4.0]]]
    """

    centre: Annotated[Tensor, Spec(("d",))]
    basis: Annotated[Tensor, Spec(("d", "k"))]
    sums: Annotated[Tensor, Spec(("C", "k"))]
    ranks: Annotated[Tensor, Spec(("C",), dtype="int64")]
    moments: Annotated[Tensor, Spec((None,))]

    @classmethod
    def first(cls, Z: Tensor, directions: int) -> ClassShapes:
        """Return the directions of the first task's rows Z (n, d), with nothing learned in them yet."""
        centre = Z.mean(dim=0)
        values, vectors = _principal(Z - centre, directions)
        rank = int((values > 1e-10 * float(values.max().clamp_min(1e-300))).sum())
        kept = max(min(directions, rank), 1)
        basis = vectors[:, -kept:].flip(1)
        # A direction is as good as its opposite: the largest entry decides, so that
        # every machine takes the same.
        largest = basis.abs().argmax(dim=0)
        basis = basis * basis.gather(0, largest[None, :]).sign()
        ranks = torch.zeros(0, dtype=torch.int64, device=basis.device)
        return cls(
            centre,
            basis.contiguous(),
            basis.new_zeros(0, kept),
            ranks,
            basis.new_zeros(0),
        )

    @property
    def directions(self) -> int:
        """Number k of directions."""
        return int(self.basis.shape[1])

    @cached_property
    def _parts(self) -> list[Tensor]:
        """Factor (r, k) or triangle (k (k + 1) / 2,) of every class."""
        k = self.directions
        ranks = self.ranks.tolist()
        parts = torch.split(self.moments, [_size(rank, k) for rank in ranks])
        return [
            part if rank == k else part.view(rank, k)
            for rank, part in zip(ranks, parts, strict=True)
        ]

    def rows(self, Z: Tensor) -> Tensor:
        """Return features Z (n, d), as the layer sees them, in these directions, (n, k)."""
        return (Z - self.centre) @ self.basis

    # -- sums and differences ----------------------------------------------------------

    def group(self, groups: Sequence[Sequence[int]]) -> ClassShapes:
        """Return the sums of classes each of which is several old ones together; of none, a new one without rows."""
        sums = sum_columns(self.sums, groups, dim=0)
        if sums is self.sums:
            return self
        none = self.sums.new_zeros(0, self.directions)
        parts = self._parts
        contents: list[Tensor | _Pieces] = [
            [(parts[old], 1.0) for old in group]
            if len(group) > 1
            else parts[group[0]]
            if group
            else none
            for group in groups
        ]
        return self._with(sums, contents)

    def add(
        self, P: Tensor, codes: Tensor, sign: float = 1.0, weights: Tensor | None = None
    ) -> ClassShapes:
        """Return the sums with rows P (n, k) of classes ``codes`` added, or with ``sign=-1`` taken out."""
        sums = self.sums.clone()
        contents = list[Tensor | _Pieces](self._parts)
        order = codes.argsort(
            stable=True
        )  # a class's rows lie together: no search through all of them for each
        P = P.to(torch.float64)[order]
        weights = sign * (
            P.new_ones(len(P)) if weights is None else weights[order].to(P)
        )
        present, lengths = torch.unique_consecutive(codes[order], return_counts=True)
        stop = 0
        for code, length in zip(present.tolist(), lengths.tolist()):
            own = slice(stop, stop := stop + length)
            sums[code] += weights[own] @ P[own]
            contents[code] = [(self._parts[code], 1.0), (P[own], weights[own])]
        return self._with(sums, contents)

    def merge(self, other: ClassShapes, sign: int = 1) -> ClassShapes:
        """Return both sums together, or their difference; directions and classes must be the same."""
        device = self.sums.device
        contents: list[Tensor | _Pieces] = [
            [(mine, 1.0), (theirs.to(device), float(sign))] if theirs.numel() else mine
            for mine, theirs in zip(self._parts, other._parts, strict=True)
        ]
        return self._with(self.sums + sign * other.sums.to(device), contents)

    def faded(self, factor: float) -> ClassShapes:
        """Return the sums as if every row had been learned with its weight times a factor."""
        parts = [
            part * (factor if part.dim() == 1 else math.sqrt(factor))
            for part in self._parts
        ]
        return self._with(factor * self.sums, parts)

    def _with(self, sums: Tensor, contents: Sequence[Tensor | _Pieces]) -> ClassShapes:
        """Return these sums with, of every class, a factor or triangle as it is, or pieces to add up."""
        k = self.directions
        made = dict(enumerate(contents))
        few = {
            code: part
            for code, part in made.items()
            if isinstance(part, list) and _has_few_rows(part, k)
        }
        for codes, rows, weights in _batches(few):
            factors = _factored(rows, weights)
            ranks = factors.any(dim=2).sum(dim=1).tolist()
            made.update(
                (code, factor[:rank])
                for code, factor, rank in zip(codes, factors, ranks, strict=True)
            )
        ranks = [
            len(part) if isinstance(part, Tensor) and part.dim() == 2 else k
            for part in made.values()
        ]
        moments = sums.new_empty(sum(_size(rank, k) for rank in ranks))
        for place, part in zip(
            torch.split(moments, [_size(rank, k) for rank in ranks]),
            made.values(),
            strict=True,
        ):
            place.copy_(
                part.flatten() if isinstance(part, Tensor) else _triangle(part, k)
            )
        return replace(
            self,
            sums=sums,
            ranks=torch.tensor(ranks, dtype=torch.int64).to(sums.device),
            moments=moments,
        )

    def same_directions(self, other: ClassShapes) -> bool:
        """Return whether both are known in the same directions, bit for bit."""
        return torch.equal(self.basis.cpu(), other.basis.cpu()) and torch.equal(
            self.centre.cpu(), other.centre.cpu()
        )

    # -- what they say -----------------------------------------------------------------

    def squares(self, classes: Sequence[int]) -> Tensor:
        """Return the sums of outer products of some classes, (c, k, k)."""
        parts = [self._parts[code] for code in classes]
        found = [
            part.T @ part if part.dim() == 2 else _unpacked(part, self.directions)
            for part in parts
        ]
        return torch.stack(found)

    def scatters(self, classes: Sequence[int], counts: Tensor) -> Tensor:
        """Return the scatter of some classes about their means, (c, k, k)."""
        sums = self.sums[list(classes)]
        inside = sums / counts_or_one(counts[list(classes)].to(sums))[:, None]
        return self.squares(classes) - sums[:, :, None] * inside[:, None, :]

    @cached_property
    def whole(self) -> Tensor:
        """Sum of the outer products of all rows, (k, k)."""
        none = self.sums.new_zeros(0, self.directions)
        factors = torch.cat([none, *(part for part in self._parts if part.dim() == 2)])
        rest: _Pieces = [(part, 1.0) for part in self._parts if part.dim() == 1]
        return _unpacked(
            _triangle([(factors, 1.0), *rest], self.directions), self.directions
        )

    def pooled(self, counts: Tensor) -> Tensor:
        """Return the sum of all scatters, (k, k)."""
        scaled = self.sums / counts_or_one(counts.to(self.sums)).sqrt()[:, None]
        return self.whole - scaled.T @ scaled

    # -- files -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless directions and sums fit each other."""
        width, k = self.basis.shape
        require(0 < k <= width, "it has no directions, or more than features")
        gap = self.basis.T @ self.basis - torch.eye(
            k, dtype=self.basis.dtype, device=self.basis.device
        )
        require(float(gap.abs().max()) < 1e-6, "its directions are not orthogonal")
        possible = ((self.ranks >= 0) & (self.ranks <= k // 2)) | (self.ranks == k)
        require(
            bool(possible.all()), "a class has a moment of a rank that none can have"
        )
        size = sum(_size(rank, k) for rank in self.ranks.tolist())
        require(
            len(self.moments) == size,
            "its moments are of other directions or of other classes",
        )

    def is_plausible(self, counts: Tensor) -> bool:
        """Return whether samples with these sums can exist: no class has less than no spread in any direction."""
        upper = torch.triu_indices(
            self.directions, self.directions, device=self.sums.device
        )
        diagonal = upper[0] == upper[1]
        found = [
            part.square().sum(dim=0) if part.dim() == 2 else part[diagonal]
            for part in self._parts
        ]
        if found:
            squares = torch.stack(found)
        else:
            squares = torch.zeros_like(self.sums)
        spread = (
            squares - self.sums.square() / counts_or_one(counts.to(self.sums))[:, None]
        )
        if not bool(
            (torch.isfinite(squares) & (spread >= -1e-6 * squares.abs() - 1e-9)).all()
        ):
            return False
        for part, lengths in zip(
            self._parts, squares.clamp_min(0.0).sqrt(), strict=True
        ):
            if part.dim() == 1:  # a factor cannot break these bounds
                bounds = lengths[upper[0]] * lengths[upper[1]]
                if not bool((part.abs() <= bounds * (1.0 + 1e-6) + 1e-9).all()):
                    return False
        return True


class ShapeScores:
    """What the shapes of classes add to linear scores; a class's own shape is worked out when it is first asked for.

    Parameters
    ----------
    shapes : ClassShapes
        The sums.
    counts : Tensor of shape (C,)
        Rows per class.
    strength : float, optional
        nu; by default the one under which the classes' scatters are likeliest.

    Attributes
    ----------
    has_terms : bool
        Whether any class has so many different rows that there is something to add.
    means : Tensor of shape (C, k)
        Class means in these directions.
    floors : Tensor of shape (C,)
        The least term of every class.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import ClassShapes, ShapeScores
    >>> source = torch.Generator().manual_seed(0)
    >>> P = torch.randn(40, 2, generator=source, dtype=torch.float64) * torch.tensor([1.0, 5.0])
    >>> codes = torch.arange(40) % 2
    >>> P[codes == 0] = P[codes == 0].flip(1)
    >>> shapes = ClassShapes.first(P, directions=2).group([[], []])
    >>> scores = ShapeScores(shapes.add(shapes.rows(P), codes), torch.tensor([20, 20]))
    >>> new = shapes.rows(torch.tensor([[0.0, 9.0]], dtype=torch.float64))
    >>> scores.add(new, torch.zeros(1, 2).double()).argmax().item()
    1
    """

    def __init__(
        self, shapes: ClassShapes, counts: Tensor, strength: float | None = None
    ) -> None:
        self.shapes, self.counts = shapes, counts.to(shapes.sums)
        self.strength = 1.0 if strength is None else strength
        self.has_terms = False
        self.means = shapes.sums / counts_or_one(self.counts)[:, None]
        self._own: dict[int, _OwnShape] = {}
        self._free = (self.counts - 1.0).clamp_min(0.0)
        shaped = ((self.counts - SHAPELESS) / (SHAPED - SHAPELESS)).clamp(0.0, 1.0)
        if strength is not None and not bool(shaped.any()):
            return
        pooled = shapes.pooled(self.counts)
        free = float(self._free.sum())
        if free < 1.0 or float(pooled.diagonal().sum()) <= 1e-10 * float(
            shapes.whole.diagonal().sum()
        ):
            return
        common = pooled / free
        common.diagonal().add_(_COMMON_RIDGE * float(common.diagonal().mean()))
        self._lower = _lower(common)
        self._white_means = self._white(self.means)
        if strength is None:
            self.strength = self._likeliest_strength()
        else:
            self.strength = strength
        self._credibility = self._free / (self._free + self.strength) * shaped
        self.floors = -FLOOR * self._credibility
        self.has_terms = bool(shaped.any())

    def _white(self, P: Tensor) -> Tensor:
        """Return rows (n, k) in coordinates in which the common covariance is the identity."""
        white: Tensor = torch.linalg.solve_triangular(self._lower, P.T, upper=False)
        return white.T.contiguous()

    def _white_scatters(
        self, classes: Sequence[int]
    ) -> Iterator[tuple[list[int], Tensor, bool]]:
        """Yield classes and their scatters in these coordinates: factors (c, r, k), or whole (c, k, k) and True."""
        k = self.shapes.directions
        parts = self.shapes._parts
        few: dict[int, _Pieces] = {
            code: [
                (parts[code], 1.0),
                (self.means[code : code + 1], -self.counts[code : code + 1]),
            ]
            for code in classes
            if parts[code].dim() == 2
        }
        for codes, rows, weights in _batches(few):
            yield (
                codes,
                _factored(self._white(rows.view(-1, k)).view(rows.shape), weights),
                False,
            )
        many = [code for code in classes if code not in few]
        for codes in (
            many[start : start + _AT_ONCE] for start in range(0, len(many), _AT_ONCE)
        ):
            half = torch.linalg.solve_triangular(
                self._lower, self.shapes.scatters(codes, self.counts), upper=False
            )
            whitened = torch.linalg.solve_triangular(
                self._lower, half.mT.contiguous(), upper=False
            )
            yield codes, 0.5 * (whitened + whitened.mT), True

    def _likeliest_strength(self) -> float:
        k = self.shapes.directions
        several = torch.nonzero(self.counts > 1).ravel().tolist()
        strengths = self.counts.new_tensor(_STRENGTHS)[:, None]
        prior = strengths + k + 1.0
        # Many classes have as many rows as others: the gamma functions of each number
        # are worked out once.
        free, times = torch.unique(self._free[several], return_counts=True)
        gammas = torch.mvlgamma((prior + free) / 2, k) - torch.mvlgamma(prior / 2, k)
        total = (gammas + prior / 2 * k * strengths.log()) @ times.to(gammas)
        for codes, scatters, is_whole in self._white_scatters(several):
            matrices = scatters if is_whole else scatters @ scatters.mT
            # A GPU decomposes many small matrices one after the other.
            values = torch.linalg.eigvalsh(matrices.cpu()).clamp_min(0.0).to(total)
            logs = (strengths[:, :, None] + values).log().sum(dim=2) + (
                k - values.shape[1]
            ) * strengths.log()
            total -= ((prior + self._free[codes]) / 2 * logs).sum(dim=1)
        return _STRENGTHS[int(total.argmax())]

    def add(self, P: Tensor, scores: Tensor) -> Tensor:
        """Return linear scores (n, C) with the shape terms of rows P (n, k) added."""
        if not self.has_terms or not scores.numel():
            return scores
        likeliest = scores.topk(min(LIKELIEST, scores.shape[1]), dim=1).indices
        asked, order = likeliest.flatten().sort(stable=True)
        kept = self._credibility[asked] > 0.0  # without it the term is zero
        asked = asked[kept]
        order = order[kept]
        rows = self._white(P)[order // likeliest.shape[1]] - self._white_means[asked]
        codes, lengths = (
            found.tolist()
            for found in torch.unique_consecutive(asked, return_counts=True)
        )
        found = [
            own.terms(part)
            for own, part in zip(
                self._shapes_of(codes), torch.split(rows, lengths), strict=True
            )
        ]
        terms = torch.zeros_like(likeliest, dtype=scores.dtype).flatten()
        if found:
            terms[order] = torch.maximum(torch.cat(found), self.floors[asked])
        terms = terms.view(likeliest.shape)
        lowest = terms.min(dim=1, keepdim=True).values.clamp_max(0.0)
        return scores + lowest.expand_as(scores).scatter(1, likeliest, terms)

    def _shapes_of(self, classes: Sequence[int]) -> list[_OwnShape]:
        k = self.shapes.directions
        nu = self.strength
        for codes, scatters, is_whole in self._white_scatters(
            [code for code in classes if code not in self._own]
        ):
            if is_whole:
                core = scatters.clone()
            else:
                core = scatters @ scatters.mT
            core.diagonal(dim1=1, dim2=2).add_(nu)
            lowers = _lower(core)
            half = 0.5 * self._credibility[codes]
            total = self._free[codes] + nu
            if is_whole:
                sides = torch.eye(k).to(core).expand_as(core)
            else:
                sides = scatters
            scale = half * total if is_whole else half * total / nu
            turned = torch.linalg.solve_triangular(
                lowers, scale.sqrt()[:, None, None] * sides, upper=False
            )
            volumes = 2.0 * lowers.diagonal(dim1=1, dim2=2).log().sum(dim=1) + (
                k - core.shape[1]
            ) * math.log(nu)
            constants = (half * (k * total.log() - volumes)).tolist()
            lengths = (half if is_whole else half - scale).tolist()
            for place, code in enumerate(codes):
                sign = -1.0 if is_whole else 1.0
                self._own[code] = _OwnShape(
                    turned[place], sign, lengths[place], constants[place]
                )
        return [self._own[code] for code in classes]

    def quadratics(self, classes: Sequence[int]) -> list[tuple[Tensor, float]]:
        """Return matrix and constant of classes: the term of each is ``d^T matrix d + constant``, or the floor."""
        whitening = self._white(torch.eye(self.shapes.directions).to(self.means))
        return [
            (whitening @ own.matrix() @ whitening.T, own.constant)
            for own in self._shapes_of(classes)
        ]


@dataclass(frozen=True, eq=False)
class _OwnShape:
    """The term of a class: ``sign |turned d|^2 + length |d|^2 + constant`` of rows d less its mean, whitened."""

    turned: Tensor
    sign: float
    length: float
    constant: float

    def terms(self, rows: Tensor) -> Tensor:
        squares = (rows @ self.turned.T).square().sum(dim=1)
        return (
            self.sign * squares + self.length * rows.square().sum(dim=1) + self.constant
        )

    def matrix(self) -> Tensor:
        matrix = self.sign * self.turned.T @ self.turned
        matrix.diagonal().add_(self.length)
        return matrix


# -- factors and triangles -------------------------------------------------------------


def _size(rank: int, k: int) -> int:
    return k * (k + 1) // 2 if rank == k else rank * k


def _has_few_rows(pieces: _Pieces, k: int) -> bool:
    """Return whether a factor of the sum of pieces is smaller than a triangle, however many rows are taken out."""
    if any(part.dim() == 1 for part, _ in pieces):
        return False
    if sum(len(part) for part, _ in pieces) <= k // 2:
        return True
    return (
        sum(
            len(part)
            for part, weight in pieces
            if bool(torch.as_tensor(weight).amax() > 0.0)
        )
        <= k // 2
    )


def _triangle(pieces: _Pieces, k: int) -> Tensor:
    """Return the upper triangle of the sum of pieces."""
    upper = torch.triu_indices(k, k, device=pieces[0][0].device)
    total = pieces[0][0].new_zeros(k * (k + 1) // 2)
    for part, weight in pieces:
        if part.dim() == 1:
            total += weight * part
        else:
            heavy = part * (weight[:, None] if isinstance(weight, Tensor) else weight)
            total += (heavy.T @ part)[upper[0], upper[1]]
    return total


def _batches(pieces: dict[int, _Pieces]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield keys, rows (c, m, k) and weights (c, m) of pieces with about as many rows; zeros fill up."""
    lengths = {
        key: sum(len(part) for part, _ in several) for key, several in pieces.items()
    }
    order = sorted(pieces, key=lengths.__getitem__)
    for some in (
        order[start : start + _AT_ONCE] for start in range(0, len(order), _AT_ONCE)
    ):
        first = pieces[some[0]][0][0]
        rows = first.new_zeros(len(some), lengths[some[-1]], first.shape[1])
        weights = first.new_zeros(rows.shape[:2])
        for line, key in enumerate(some):
            stop = 0
            for part, weight in pieces[key]:
                own = slice(stop, stop := stop + len(part))
                rows[line, own], weights[line, own] = part, weight
        yield some, rows, weights


def _factored(rows: Tensor, weights: Tensor) -> Tensor:
    """Return factors F (c, r, k) with F^T F = X^T diag(w) X of rows (c, m, k) and weights (c, m).

    Cholesky with pivots, of which a matrix of rank r needs r steps; rows of F beyond
    the rank are zero. There is no such F where what is left on a diagonal, in units of
    the largest variance that took part, is far below zero.
    """
    heavy = rows * weights[:, :, None]
    left = (heavy * rows).sum(dim=1)
    largest = (heavy * rows).abs().sum(dim=1).amax(dim=1, keepdim=True)
    factors = rows.new_zeros(
        len(rows), int((weights > 0.0).sum(dim=1).amax()), rows.shape[2]
    )
    for step in range(factors.shape[1]):
        pivots = left.argmax(dim=1, keepdim=True)
        values = left.gather(1, pivots)
        there = pivots[:, None, :].expand(-1, rows.shape[1], 1)
        line = (rows.gather(2, there).mT @ heavy)[:, 0]
        if step:
            before = factors[:, :step]
            line = (
                line
                - (before.gather(2, there[:, :1].expand(-1, step, 1)).mT @ before)[:, 0]
            )
        line = torch.where(
            values > _ROUNDING * largest, line / values.clamp_min(1e-300).sqrt(), 0.0
        )
        factors[:, step] = line
        left = (left - line.square()).scatter(
            1, pivots, torch.where(line.any(dim=1, keepdim=True), 0.0, values)
        )
    if bool((left / largest.clamp_min(1e-300) < -1e-6).any()):
        raise NumericalError(_NO_SAMPLES)
    return factors


def _lower(covariances: Tensor) -> Tensor:
    """Return lower triangular factors; sums that no samples have, as a damaged file may, are refused."""
    factors: Tensor
    factors, failed = torch.linalg.cholesky_ex(covariances)
    if bool(failed.any()):
        raise NumericalError(_NO_SAMPLES)
    return factors


def _unpacked(packed: Tensor, k: int) -> Tensor:
    """Return the symmetric matrix (k, k) of an upper triangle."""
    rows, columns = torch.triu_indices(k, k, device=packed.device)
    full = packed.new_zeros(k, k)
    full[rows, columns] = packed
    full[columns, rows] = packed
    return full


def _principal(centred: Tensor, directions: int) -> tuple[Tensor, Tensor]:
    """Return energies, rising, and directions (d, k) of centred rows: all, or the first where there are many."""
    rows, width = centred.shape
    if (
        2 * rows <= width
    ):  # all directions lie in the span of the rows: a small decomposition within it is enough
        span, triangle = torch.linalg.qr(centred.T)
        energies, turned = symmetric_eigh(triangle @ triangle.T)
        return energies, span @ turned
    wanted = directions + _MORE
    if width <= _WIDE or wanted >= min(centred.shape):
        return symmetric_eigh(centred.T @ centred)
    # Subspace iteration: the few directions that are wanted cost a hundredth of a
    # decomposition of that order.
    source = generator(0, "principal directions", width)
    span = torch.randn(width, wanted, generator=source, dtype=torch.float64).to(centred)
    for _ in range(_ROUNDS):
        span = torch.linalg.qr(centred.T @ (centred @ span))[0]
    seen = centred @ span
    energies, turned = symmetric_eigh(seen.T @ seen)
    return energies, span @ turned
