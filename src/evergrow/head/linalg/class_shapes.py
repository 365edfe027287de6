"""Classes differ in shape: second moments per class in a few directions, and what they add to the scores.

A discriminant gives all classes one covariance. With rows p in k fixed directions, the scatter S_c of class c about its
mean (m_c = n_c - 1 degrees of freedom), the pooled covariance C_0 and an inverse Wishart prior of strength nu about it,

    C_c = (S_c + nu C_0) / (m_c + nu)        g_c = m_c / (m_c + nu) min(max((n_c - 10) / 20, 0), 1)
    shape_c(p) = g_c max((d^T (C_0^-1 - C_c^-1) d + ln|C_0| - ln|C_c|) / 2, -20)        d = p - mean_c

is the log-likelihood ratio of the class's own shape to the common one, counted as far as it is credible: a class of ten
rows has none. nu maximises the marginal likelihood of the scatters. Everything is a sum over samples.

The last factor is not the prior's doing. The directions are those in which rows of the first task spread, so that its
classes look larger in them than they are, the more the fewer rows there were; nu takes that for classes that differ.
On held-out training rows of birds, intents and CIFAR-100 shapes cost 1 to 4 points where all classes have six rows,
nothing with twenty, and gain with thirty and more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError, UnlearnError
from evergrow.core.record import Spec, record, require
from evergrow.core.seeding import generator
from evergrow.head.linalg.factor import symmetric_eigh
from evergrow.head.linalg.statistics import sum_columns

LIKELIEST = 16
"""Classes per row whose shape is looked at; the others get the smallest term among these, so none can win by it."""

FLOOR = 20.0
"""Least log-likelihood ratio that counts. Without it a row far from everything is refused by every class that has a
shape and falls to one of a few rows, which has none. On training rows 10 to 40 do alike."""

SHAPELESS, SHAPED = 10, 30
"""Rows up to which a class has no shape of its own, and from which on it has all that the prior leaves it."""

_AT_ONCE = 256
"""Classes that are checked at a time: their bounds take as much memory as they do."""

_FEW_ROWS = 16
"""Rows whose terms are computed all at once, which takes k k numbers for each row and class."""

_COMMON_RIDGE = 0.1
"""Share of the mean variance that is added to the pooled covariance's diagonal."""

_WIDE = 1536
"""Features beyond which only so many directions are worked out as are wanted, and a few more."""

_MORE, _ROUNDS = 64, 5

_STRENGTHS: tuple[float, ...] = tuple(5.0 * 2.0 ** (step / 2) for step in range(22))


def counts_or_one(counts: Tensor) -> Tensor:
    """Return counts to divide by: those of classes without rows are one; sums of weights may well be below it."""
    return torch.where(counts > 0, counts, torch.ones_like(counts))


@record("class-shapes")
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
    squares : Tensor of shape (C, k (k + 1) / 2)
        Upper triangle of the sum of outer products, row by row.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import ClassShapes
    >>> P = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    >>> shapes = ClassShapes.first(P, directions=2).group([[]])
    >>> shapes.add(shapes.rows(P), torch.tensor([0, 0])).squares.round(decimals=9).tolist()
    [[4.0]]
    """

    centre: Annotated[Tensor, Spec(("d",))]
    basis: Annotated[Tensor, Spec(("d", "k"))]
    sums: Annotated[Tensor, Spec(("C", "k"))]
    squares: Annotated[Tensor, Spec(("C", None))]

    @classmethod
    def first(cls, Z: Tensor, directions: int) -> ClassShapes:
        """Return the directions of the first task's rows Z (n, d), with nothing learned in them yet."""
        centre = Z.mean(dim=0)
        centred = Z - centre
        values, vectors = _principal(centred, directions)
        rank = int((values > 1e-10 * float(values.max().clamp_min(1e-300))).sum())
        kept = max(min(directions, rank), 1)
        basis = vectors[:, -kept:].flip(1)
        # A direction is as good as its opposite: the largest entry decides, so that every machine takes the same.
        largest = basis.abs().argmax(dim=0)
        basis = basis * basis.gather(0, largest[None, :]).sign()
        sums, squares = basis.new_zeros(0, kept), basis.new_zeros(0, kept * (kept + 1) // 2)
        return cls(centre, basis.contiguous(), sums, squares)

    @property
    def directions(self) -> int:
        """Number k of directions."""
        return int(self.basis.shape[1])

    def rows(self, Z: Tensor) -> Tensor:
        """Return features Z (n, d), as the layer sees them, in these directions, (n, k)."""
        return (Z - self.centre) @ self.basis

    def group(self, groups: Sequence[Sequence[int]]) -> ClassShapes:
        """Return the sums of classes each of which is several old ones together; of none, a new one without rows."""
        sums, squares = (sum_columns(part, groups, dim=0) for part in (self.sums, self.squares))
        return replace(self, sums=sums, squares=squares)

    def add(self, P: Tensor, codes: Tensor, sign: float = 1.0, weights: Tensor | None = None) -> ClassShapes:
        """Return the sums with rows P (n, k) of classes ``codes`` added, or with ``sign=-1`` taken out."""
        sums, squares = self.sums.clone(), self.squares.clone()
        upper = _upper(self.directions, P.device)
        order = codes.argsort(stable=True)  # a class's rows lie together: no search through all of them for each
        P, weights = P.to(torch.float64)[order], None if weights is None else weights[order]
        present, lengths = torch.unique_consecutive(codes[order], return_counts=True)
        stop = 0
        for code, length in zip(present.tolist(), lengths.tolist()):
            own = slice(stop, stop := stop + length)
            rows = P[own]
            heavy = rows if weights is None else rows * weights[own, None]
            sums[code] += sign * heavy.sum(dim=0)
            squares[code] += sign * (heavy.T @ rows)[upper[0], upper[1]]
        return replace(self, sums=sums, squares=squares)

    def remove(self, P: Tensor, codes: Tensor, counts: Tensor, weights: Tensor | None = None) -> ClassShapes:
        """Return the sums without rows; raise :class:`UnlearnError` if they cannot have been among ``counts`` rows."""
        after = self.add(P, codes, -1.0, weights)
        touched = torch.unique(codes)
        diagonal = _diagonal(self.directions, P.device)
        gone = torch.bincount(codes, weights, minlength=len(counts))
        left = (counts[touched] - gone[touched]).to(after.sums)
        before = self.squares[touched][:, diagonal]
        spread = after.squares[touched][:, diagonal] - after.sums[touched].square() / counts_or_one(left)[:, None]
        if bool((spread < -1e-8 * before - 1e-12).any()):
            raise UnlearnError("samples to unlearn must have been learned before, but some were not")
        return after

    def is_plausible(self, counts: Tensor) -> bool:
        """Return whether samples with these sums can exist: no class has less than no spread in any direction."""
        diagonal = self.squares[:, _diagonal(self.directions, self.squares.device)]
        spread = diagonal - self.sums.square() / counts_or_one(counts.to(self.sums))[:, None]
        if not bool((spread >= -1e-6 * diagonal.abs() - 1e-9).all()):
            return False
        upper, roots = _upper(self.directions, self.squares.device), diagonal.clamp_min(0.0).sqrt()
        for some, lengths in zip(torch.split(self.squares, _AT_ONCE), torch.split(roots, _AT_ONCE)):
            bounds = lengths[:, upper[0]] * lengths[:, upper[1]]
            if not bool((some.abs() <= bounds * (1.0 + 1e-6) + 1e-9).all()):
                return False
        return True

    def merge(self, other: ClassShapes, sign: int = 1) -> ClassShapes:
        """Return both sums together, or their difference; directions and classes must be the same."""
        sums, squares = other.sums.to(self.sums.device), other.squares.to(self.sums.device)
        return replace(self, sums=self.sums + sign * sums, squares=self.squares + sign * squares)

    def same_directions(self, other: ClassShapes) -> bool:
        """Return whether both are known in the same directions, bit for bit."""
        return torch.equal(self.basis.cpu(), other.basis.cpu()) and torch.equal(self.centre.cpu(), other.centre.cpu())

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless directions and sums fit each other."""
        width, directions = self.basis.shape
        require(0 < directions <= width, "it has no directions, or more than features")
        gap = self.basis.T @ self.basis - torch.eye(directions, dtype=self.basis.dtype, device=self.basis.device)
        require(float(gap.abs().max()) < 1e-6, "its directions are not orthogonal")
        require(self.squares.shape[1] == directions * (directions + 1) // 2, "its moments are of other directions")

    def scatters(self, classes: Sequence[int], counts: Tensor) -> Tensor:
        """Return the scatter of some classes about their means, (c, k, k)."""
        sums = self.sums[list(classes)]
        inside = sums / counts_or_one(counts[list(classes)].to(sums))[:, None]
        return self._unpacked(self.squares[list(classes)]) - sums[:, :, None] * inside[:, None, :]

    def pooled(self, counts: Tensor) -> Tensor:
        """Return the sum of all scatters, (k, k)."""
        scaled = self.sums / counts_or_one(counts.to(self.sums)).sqrt()[:, None]
        return self._unpacked(self.squares.sum(dim=0)) - scaled.T @ scaled

    def _unpacked(self, packed: Tensor) -> Tensor:
        """Return symmetric matrices (..., k, k) of their upper triangles."""
        rows, columns = _upper(self.directions, packed.device)
        full = packed.new_zeros(*packed.shape[:-1], self.directions, self.directions)
        full[..., rows, columns] = packed
        full[..., columns, rows] = packed
        return full


class ShapeScores:
    """What the shapes of classes add to linear scores; a class's own covariance is factored when it is first asked for.

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
        Whether any class has two different rows, so that there is something to add.
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

    def __init__(self, shapes: ClassShapes, counts: Tensor, strength: float | None = None) -> None:
        self.shapes, self.counts, self.strength = shapes, counts.to(shapes.sums), 1.0
        self.means = shapes.sums / counts_or_one(self.counts)[:, None]
        self._own: dict[int, tuple[Tensor, float]] = {}
        self._free = (self.counts - 1.0).clamp_min(0.0)
        pooled, free = shapes.pooled(self.counts), float(self._free.sum())
        total = float(shapes.squares[:, _diagonal(shapes.directions, pooled.device)].sum())
        self.has_terms = free >= 1.0 and float(pooled.diagonal().sum()) > 1e-10 * total
        if not self.has_terms:
            return
        self._common = pooled / free
        self._common.diagonal().add_(_COMMON_RIDGE * float(self._common.diagonal().mean()))
        self._lower = _lower(self._common)
        self.strength = self._likeliest_strength() if strength is None else strength
        shaped = ((self.counts - SHAPELESS) / (SHAPED - SHAPELESS)).clamp(0.0, 1.0)
        self._credibility = self._free / (self._free + self.strength) * shaped
        self.floors = -FLOOR * self._credibility

    def _likeliest_strength(self, block: int = 256) -> float:
        k, several = self.shapes.directions, torch.nonzero(self.counts > 1).ravel()
        total = [0.0] * len(_STRENGTHS)
        for part in torch.split(several, block):
            free = self._free[part]
            half = torch.linalg.solve_triangular(
                self._lower, self.shapes.scatters(part.tolist(), self.counts), upper=False
            )
            whitened = torch.linalg.solve_triangular(self._lower, half.mT.contiguous(), upper=False)
            # A GPU decomposes many small matrices one after the other.
            values = torch.linalg.eigvalsh((0.5 * (whitened + whitened.mT)).cpu()).clamp_min(0.0).to(free)
            for index, strength in enumerate(_STRENGTHS):
                prior = strength + k + 1.0
                gammas = torch.mvlgamma((prior + free) / 2, k) - torch.mvlgamma(free.new_tensor(prior / 2), k)
                logs = torch.log(strength + values).sum(dim=1)
                total[index] += float((gammas + prior / 2 * k * math.log(strength) - (prior + free) / 2 * logs).sum())
        return _STRENGTHS[total.index(max(total))]

    def add(self, P: Tensor, scores: Tensor) -> Tensor:
        """Return linear scores (n, C) with the shape terms of rows P (n, k) added."""
        if not self.has_terms or not scores.numel():
            return scores
        likeliest = scores.topk(min(LIKELIEST, scores.shape[1]), dim=1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, likeliest, True)
        terms = torch.full_like(scores, math.inf)
        if len(P) <= _FEW_ROWS:
            matrices, constants = zip(*self.quadratics(likeliest.flatten().tolist()), strict=True)
            centred = P[:, None, :] - self.means[likeliest]
            stacked = torch.stack(matrices).view(*likeliest.shape, *matrices[0].shape)
            found = torch.einsum("nci,ncij,ncj->nc", centred, stacked, centred)
            found = found + P.new_tensor(constants).view(likeliest.shape)
            terms.scatter_(1, likeliest, torch.maximum(found, self.floors[likeliest]))
        else:
            classes = torch.nonzero(chosen.any(dim=0)).ravel().tolist()
            for code, (matrix, constant) in zip(classes, self.quadratics(classes), strict=True):
                rows = torch.nonzero(chosen[:, code]).ravel()
                centred = P[rows] - self.means[code]
                term = ((centred @ matrix) * centred).sum(dim=1) + constant
                terms[rows, code] = torch.maximum(term, self.floors[code])
        lowest = terms.min(dim=1, keepdim=True).values.clamp_max(0.0)
        return scores + torch.where(chosen, terms, lowest)

    def quadratics(self, classes: Sequence[int]) -> list[tuple[Tensor, float]]:
        """Return matrix and constant of classes: the term of each is ``d^T matrix d + constant``, or the floor."""
        missing = sorted({code for code in classes if code not in self._own})
        if missing:
            own = self.shapes.scatters(missing, self.counts) + self.strength * self._common
            lowers = _lower(own / (self._free[missing] + self.strength)[:, None, None])
            volume = 2.0 * float(self._lower.diagonal().log().sum())
            volumes = 2.0 * lowers.diagonal(dim1=1, dim2=2).log().sum(dim=1)
            credibility = 0.5 * self._credibility[missing]
            precision = torch.cholesky_inverse(self._lower)
            matrices = credibility[:, None, None] * (precision - torch.cholesky_inverse(lowers))
            constants = (credibility * (volume - volumes)).tolist()
            self._own.update(zip(missing, zip(matrices, constants, strict=True), strict=True))
        return [self._own[code] for code in classes]


def _lower(covariances: Tensor) -> Tensor:
    """Return lower triangular factors; sums that no samples have, as a damaged file may, are refused."""
    factors: Tensor
    factors, failed = torch.linalg.cholesky_ex(covariances)
    if bool(failed.any()):
        raise NumericalError("sums of products of a class must be those of some samples, got a negative variance")
    return factors


def _upper(k: int, device: torch.device) -> Tensor:
    return torch.triu_indices(k, k, device=device)


def _diagonal(k: int, device: torch.device) -> Tensor:
    rows = torch.arange(k, device=device)
    return rows * k - rows * (rows - 1) // 2


def _principal(centred: Tensor, directions: int) -> tuple[Tensor, Tensor]:
    """Return energies, rising, and directions (d, k) of centred rows: all, or the first where there are many."""
    rows, width = centred.shape
    if 2 * rows <= width:  # all directions lie in the span of the rows: a small decomposition within it is enough
        span, triangle = torch.linalg.qr(centred.T)
        energies, turned = symmetric_eigh(triangle @ triangle.T)
        return energies, span @ turned
    wanted = directions + _MORE
    if width <= _WIDE or wanted >= min(centred.shape):
        return symmetric_eigh(centred.T @ centred)
    # Subspace iteration: the few directions that are wanted cost a hundredth of a decomposition of that order.
    source = generator(0, "principal directions", width)
    span = torch.randn(width, wanted, generator=source, dtype=torch.float64).to(centred)
    for _ in range(_ROUNDS):
        span = torch.linalg.qr(centred.T @ (centred @ span))[0]
    seen = centred @ span
    energies, turned = symmetric_eigh(seen.T @ seen)
    return energies, span @ turned
