"""Second moments per class, and the terms they add to class scores.

A discriminant uses one covariance for all classes. This module adds the part of the
log-likelihood that depends on each class's own covariance, its *shape*. Rows p are
projected to k fixed directions. Class c has n_c rows, the mean of which is mean_c. With
its scatter S_c about this mean, its degrees of freedom ``m_c = n_c - 1``, the pooled
covariance C_0 and an inverse Wishart prior of strength nu around C_0,

    C_c        = (S_c + nu C_0) / (m_c + nu)
    shape_c(p) = g_c max((d^T (C_0^-1 - C_c^-1) d + ln|C_0| - ln|C_c|) / 2, -20)
    d          = p - mean_c
    g_c        = m_c / (m_c + nu) min(max((n_c - 10) / 20, 0), 1)

is the log-likelihood ratio of the class covariance to the pooled one, weighted by its
credibility g_c. nu maximises the marginal likelihood of the scatters. All statistics
are sums over samples.

The last factor of g_c corrects a bias. The directions are the principal directions of
the first task, so its classes look more spread than they are, the more so the fewer
rows there were. Without the factor, shapes cost 1 to 4 points of accuracy if all
classes have six rows. They gain from thirty rows on.

**Memory.** The *moments* of a class are the sum of outer products X^T X of its r rows,
of rank r. For up to k / 2 rows they are stored as a factor F of r rows with
F^T F = X^T X, for more rows as the upper triangle, which is then smaller. F is computed
from entries of the sum alone, by a Cholesky factorisation with pivots. All X with the
same sum (equal up to an orthogonal matrix) therefore give the same F, so F reveals no
more about the rows than the sum does. Sums and differences of factors are factored
again, and are exact to rounding of the largest variance involved, like sums of
triangles.

In coordinates in which C_0 is the identity and ``S_c = B^T B``, terms of classes with
few rows need B only:

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
"""Number of top-scoring classes per row whose shape terms are computed.

All other classes get the smallest of these terms, so that they cannot gain rank.
"""

FLOOR = 20.0
"""Bound on negative log-likelihood ratios.

Without it, a row far from all classes would be assigned to a class of few rows, which
has no shape. Values from 10 to 40 give the same accuracy on training rows.
"""

MIN_SHAPE_ROWS = 10
"""A class with at most this many rows has no shape term."""

FULL_SHAPE_ROWS = 30
"""A class with at least this many rows has the full shape term."""

_CLASSES_PER_BATCH = 256

_ROUNDING = 64 * torch.finfo(torch.float64).eps
"""Variances below this fraction of the largest one are rounding errors."""

_COMMON_RIDGE = 0.1
"""Fraction of the mean variance that is added to the diagonal of C_0."""

_WIDE = 1536
"""Largest feature width for which all principal directions are computed."""

_N_EXTRA_DIRECTIONS = 64
_N_ITERATIONS = 5
"""Extra directions and iterations of the subspace iteration for wider features.

Both make the leading directions more accurate.
"""

_TINY = 1e-300
"""Smallest divisor, in place of zero."""

_NOT_A_SCATTER = (
    "The second moments of a class are not those of any samples: a variance is "
    "negative."
)

_STRENGTHS: tuple[float, ...] = tuple(5.0 * 2.0 ** (step / 2) for step in range(22))
"""Candidates for the strength nu of the prior."""

_Summands: TypeAlias = list[tuple[Tensor, Tensor | float]]
"""Summands of the moments of one class, each with its weight.

A summand is a matrix of rows or a factor (m, k), whose weight may be one number per
row, or a triangle (k (k + 1) / 2,), whose weight is a number.
"""


def counts_or_one(counts: Tensor) -> Tensor:
    """Return counts (C,) as divisors: zeros become one.

    Sums of sample weights may be smaller than one and stay as they are.
    """
    return torch.where(counts > 0, counts, torch.ones_like(counts))


@record("class-shapes", version=2)
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
    moments : Tensor of shape (n,)
        Factors and upper triangles of all classes, flattened and concatenated.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import ClassShapes
    >>> Z = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    >>> shapes = ClassShapes.first(Z, directions=2).group([[]])
    >>> shapes = shapes.add(shapes.rows(Z), torch.tensor([0, 0]))
    >>> shapes.squares([0]).round(decimals=9).tolist()
    [[[4.0]]]
    """

    centre: Annotated[Tensor, Spec(("d",))]
    basis: Annotated[Tensor, Spec(("d", "k"))]
    sums: Annotated[Tensor, Spec(("C", "k"))]
    ranks: Annotated[Tensor, Spec(("C",), dtype="int64")]
    moments: Annotated[Tensor, Spec((None,))]

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
        rank = int((values > 1e-10 * float(values.max().clamp_min(_TINY))).sum())
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
            moments=basis.new_zeros(0),
        )

    @property
    def directions(self) -> int:
        """Number k of directions."""
        return int(self.basis.shape[1])

    @cached_property
    def parts(self) -> list[Tensor]:
        """Moments of every class: a factor (r, k) or a triangle (k (k + 1) / 2,)."""
        k = self.directions
        ranks = self.ranks.tolist()
        flat = torch.split(self.moments, [_n_numbers(rank, k) for rank in ranks])
        return [
            part if rank == k else part.view(rank, k)
            for rank, part in zip(ranks, flat, strict=True)
        ]

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
        moments: list[Tensor | _Summands] = []
        for group in groups:
            if len(group) == 1:
                moments.append(self.parts[group[0]])
            elif group:
                moments.append([(self.parts[old], 1.0) for old in group])
            else:
                moments.append(self.sums.new_zeros(0, self.directions))
        return self._with_moments(sums, moments)

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
        # Sorting makes the rows of each class contiguous.
        order = codes.argsort(stable=True)
        P = P.to(torch.float64)[order]
        weights = P.new_ones(len(P)) if weights is None else weights[order].to(P)
        weights = sign * weights
        present, lengths = torch.unique_consecutive(codes[order], return_counts=True)
        sizes = lengths.tolist()
        sums = self.sums.clone()
        moments = list[Tensor | _Summands](self.parts)
        for code, rows, w in zip(
            present.tolist(),
            torch.split(P, sizes),
            torch.split(weights, sizes),
            strict=True,
        ):
            sums[code] += w @ rows
            moments[code] = [(self.parts[code], 1.0), (rows, w)]
        return self._with_moments(sums, moments)

    def merge(self, other: ClassShapes, sign: int = 1) -> ClassShapes:
        """Return the sums of both, or the difference with ``sign=-1``.

        Both must have the same directions and the same classes.
        """
        device = self.sums.device
        moments = list[Tensor | _Summands](self.parts)
        for code, (mine, theirs) in enumerate(
            zip(self.parts, other.parts, strict=True)
        ):
            if theirs.numel():
                moments[code] = [(mine, 1.0), (theirs.to(device), float(sign))]
        return self._with_moments(self.sums + sign * other.sums.to(device), moments)

    def faded(self, factor: float) -> ClassShapes:
        """Return the sums with the weights of all rows multiplied by `factor`."""
        root = math.sqrt(factor)
        parts = [part * (factor if part.dim() == 1 else root) for part in self.parts]
        return self._with_moments(factor * self.sums, parts)

    def _with_moments(
        self, sums: Tensor, moments: Sequence[Tensor | _Summands]
    ) -> ClassShapes:
        """Return a copy with other sums and moments.

        Parameters
        ----------
        sums : Tensor of shape (C, k)
            The sums of rows.
        moments : sequence of length C
            Per class a factor or triangle, or summands to be added up.
        """
        k = self.directions
        parts = _factor_small_sums(moments, k)
        ranks = [
            len(part) if isinstance(part, Tensor) and part.dim() == 2 else k
            for part in parts
        ]
        sizes = [_n_numbers(rank, k) for rank in ranks]
        flat = sums.new_empty(sum(sizes))
        for target, part in zip(torch.split(flat, sizes), parts, strict=True):
            if isinstance(part, Tensor):
                target.copy_(part.flatten())
            else:
                target.copy_(_sum_triangle(part, k))
        return replace(
            self,
            sums=sums,
            ranks=torch.tensor(ranks, dtype=torch.int64).to(sums.device),
            moments=flat,
        )

    def same_directions(self, other: ClassShapes) -> bool:
        """Return whether both have bitwise equal directions and centre."""
        return torch.equal(self.basis.cpu(), other.basis.cpu()) and torch.equal(
            self.centre.cpu(), other.centre.cpu()
        )

    # -- moments -----------------------------------------------------------------------

    def squares(self, classes: Sequence[int]) -> Tensor:
        """Return the moments X^T X of some classes as matrices (c, k, k)."""
        found = []
        for code in classes:
            part = self.parts[code]
            if part.dim() == 2:
                found.append(part.T @ part)
            else:
                found.append(_unpack_triangle(part, self.directions))
        return torch.stack(found)

    def scatters(self, classes: Sequence[int], counts: Tensor) -> Tensor:
        """Return the scatters S_c of some classes, of shape (c, k, k).

        Parameters
        ----------
        classes : sequence of int
            The c classes.
        counts : Tensor of shape (C,)
            Rows per class, for all classes.
        """
        sums = self.sums[list(classes)]
        means = sums / counts_or_one(counts[list(classes)].to(sums))[:, None]
        return self.squares(classes) - sums[:, :, None] * means[:, None, :]

    @cached_property
    def whole(self) -> Tensor:
        """Sum of the moments of all classes, of shape (k, k)."""
        k = self.directions
        empty = self.sums.new_zeros(0, k)
        factors = torch.cat([empty, *(part for part in self.parts if part.dim() == 2)])
        triangles: _Summands = [(part, 1.0) for part in self.parts if part.dim() == 1]
        return _unpack_triangle(_sum_triangle([(factors, 1.0), *triangles], k), k)

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
        possible = ((self.ranks >= 0) & (self.ranks <= k // 2)) | (self.ranks == k)
        require(bool(possible.all()), "the moments of a class have an impossible rank")
        size = sum(_n_numbers(rank, k) for rank in self.ranks.tolist())
        require(
            len(self.moments) == size,
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
        upper = torch.triu_indices(k, k, device=self.sums.device)
        diagonal = upper[0] == upper[1]
        squares = torch.zeros_like(self.sums)
        if self.parts:
            squares = torch.stack(
                [
                    part.square().sum(dim=0) if part.dim() == 2 else part[diagonal]
                    for part in self.parts
                ]
            )
        divisors = counts_or_one(counts.to(self.sums))[:, None]
        variances = squares - self.sums.square() / divisors
        is_valid = variances >= -1e-6 * squares.abs() - 1e-9
        if not bool((torch.isfinite(squares) & is_valid).all()):
            return False
        all_lengths = squares.clamp_min(0.0).sqrt()
        for part, lengths in zip(self.parts, all_lengths, strict=True):
            if part.dim() == 2:  # factors satisfy the bound by construction
                continue
            bounds = lengths[upper[0]] * lengths[upper[1]]
            if not bool((part.abs() <= bounds * (1.0 + 1e-6) + 1e-9).all()):
                return False
        return True


class ShapeScores:
    """Shape terms of class scores, as defined in the module docstring.

    The term of a class is computed when it is first needed.

    Parameters
    ----------
    shapes : ClassShapes
        The moments.
    counts : Tensor of shape (C,)
        Rows per class, or sums of their weights.
    strength : float, optional
        nu. By default the value that maximises the marginal likelihood of the scatters.

    Attributes
    ----------
    has_terms : bool
        False if all terms are zero, because no class has enough distinct rows.
    strength : float
        nu. 1 if the scatters give no estimate.
    means : Tensor of shape (C, k)
        Class means in the k directions.
    floors : Tensor of shape (C,)
        Lower bound of each class's term.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.class_shapes import ClassShapes, ShapeScores
    >>> rng = torch.Generator().manual_seed(0)
    >>> Z = torch.randn(40, 2, generator=rng, dtype=torch.float64)
    >>> Z = Z * torch.tensor([1.0, 5.0])
    >>> codes = torch.arange(40) % 2
    >>> Z[codes == 0] = Z[codes == 0].flip(1)
    >>> shapes = ClassShapes.first(Z, directions=2).group([[], []])
    >>> shapes = shapes.add(shapes.rows(Z), codes)
    >>> scores = ShapeScores(shapes, torch.tensor([20, 20]))
    >>> new = shapes.rows(torch.tensor([[0.0, 9.0]], dtype=torch.float64))
    >>> scores.add(new, torch.zeros(1, 2).double()).argmax().item()
    1
    """

    def __init__(
        self, shapes: ClassShapes, counts: Tensor, strength: float | None = None
    ) -> None:
        self.shapes = shapes
        self.counts = counts.to(shapes.sums)
        self.means = shapes.sums / counts_or_one(self.counts)[:, None]
        self.strength = 1.0 if strength is None else strength
        self.has_terms = False
        self.floors = torch.zeros_like(self.counts)
        self._terms: dict[int, _ShapeTerm] = {}  # by class, as far as computed
        self._freedom = (self.counts - 1.0).clamp_min(0.0)
        span = FULL_SHAPE_ROWS - MIN_SHAPE_ROWS
        size_factor = ((self.counts - MIN_SHAPE_ROWS) / span).clamp(0.0, 1.0)
        has_shapes = bool(size_factor.any())
        # Without terms, the rest is only needed to find the strength.
        if strength is not None and not has_shapes:
            return
        pooled = shapes.pooled(self.counts)
        freedom = float(self._freedom.sum())
        energy = float(shapes.whole.diagonal().sum())
        # Each class has one row, or copies of one: the covariance is unknown.
        if freedom < 1.0 or float(pooled.diagonal().sum()) <= 1e-10 * energy:
            return
        common = pooled / freedom
        common.diagonal().add_(_COMMON_RIDGE * float(common.diagonal().mean()))
        self._lower = _lower_factor(common)  # of C_0
        if strength is None:
            self.strength = self._likeliest_strength()
        self._whitened_means = self._whiten(self.means)
        shrinkage = self._freedom / (self._freedom + self.strength)
        self._credibility = shrinkage * size_factor  # g_c
        self.floors = -FLOOR * self._credibility
        self.has_terms = has_shapes

    def add(self, P: Tensor, scores: Tensor) -> Tensor:
        """Add shape terms to linear scores.

        Parameters
        ----------
        P : Tensor of shape (n, k)
            Projected rows.
        scores : Tensor of shape (n, C)
            Linear class scores.

        Returns
        -------
        Tensor of shape (n, C)
            Scores plus shape terms. `scores` itself if there are no terms.
        """
        if not self.has_terms or not scores.numel():
            return scores
        likeliest = scores.topk(min(LIKELIEST, scores.shape[1]), dim=1).indices
        # Pairs of row and class, sorted by class.
        pair_classes, order = likeliest.flatten().sort(stable=True)
        has_term = self._credibility[pair_classes] > 0.0
        pair_classes = pair_classes[has_term]
        order = order[has_term]
        pair_rows = order // likeliest.shape[1]
        deviations = self._whiten(P)[pair_rows] - self._whitened_means[pair_classes]
        classes, lengths = torch.unique_consecutive(pair_classes, return_counts=True)
        values = [
            term.values(part)
            for term, part in zip(
                self._class_terms(classes.tolist()),
                torch.split(deviations, lengths.tolist()),
                strict=True,
            )
        ]
        terms = torch.zeros_like(likeliest, dtype=scores.dtype).flatten()
        if values:
            terms[order] = torch.maximum(torch.cat(values), self.floors[pair_classes])
        terms = terms.view(likeliest.shape)
        # All other classes get the lowest term, see LIKELIEST.
        lowest = terms.min(dim=1, keepdim=True).values.clamp_max(0.0)
        return scores + lowest.expand_as(scores).scatter(1, likeliest, terms)

    def quadratics(self, classes: Sequence[int]) -> list[tuple[Tensor, float]]:
        """Return (matrix (k, k), constant) of the given classes.

        The shape term of a class is ``max(d^T matrix d + constant, floor)``. There must
        be terms (`has_terms`).
        """
        whitening = self._whiten(torch.eye(self.shapes.directions).to(self.means))
        return [
            (whitening @ term.matrix() @ whitening.T, term.constant)
            for term in self._class_terms(classes)
        ]

    def _whiten(self, P: Tensor) -> Tensor:
        """Map rows (n, k) to coordinates in which C_0 is the identity."""
        white: Tensor = torch.linalg.solve_triangular(self._lower, P.T, upper=False)
        return white.T.contiguous()

    def _whitened_scatters(
        self, classes: Sequence[int]
    ) -> Iterator[tuple[list[int], Tensor, bool]]:
        """Yield batches of scatters in whitened coordinates, in any order of classes.

        Yields
        ------
        codes : list of int
            The c classes of the batch.
        scatters : Tensor of shape (c, r, k) or (c, k, k)
            Factors B with ``S_c = B^T B``, or the scatters.
        is_full : bool
            Whether `scatters` are full matrices.
        """
        k = self.shapes.directions
        parts = self.shapes.parts
        with_factors: dict[int, _Summands] = {}
        with_triangles = []
        for code in classes:
            if parts[code].dim() == 2:
                mean = self.means[code : code + 1]
                count = self.counts[code : code + 1]
                # S_c = F^T F - n_c mean_c mean_c^T
                with_factors[code] = [(parts[code], 1.0), (mean, -count)]
            else:
                with_triangles.append(code)
        for codes, rows, weights in _padded_batches(with_factors):
            white = self._whiten(rows.view(-1, k)).view(rows.shape)
            yield codes, _factor_sums(white, weights), False
        for codes in _chunks(with_triangles):
            half = torch.linalg.solve_triangular(
                self._lower, self.shapes.scatters(codes, self.counts), upper=False
            )
            white = torch.linalg.solve_triangular(
                self._lower, half.mT.contiguous(), upper=False
            )
            yield codes, 0.5 * (white + white.mT), True

    def _likeliest_strength(self) -> float:
        """Return the candidate nu with the largest marginal likelihood.

        With the prior's ``p = nu + k + 1`` degrees of freedom, the scatters have the
        log-likelihood, up to a constant,

            sum_c ln Gamma_k((p + m_c) / 2) - ln Gamma_k(p / 2) + p / 2 k ln nu
                  - (p + m_c) / 2 ln|S_c + nu I|
        """
        k = self.shapes.directions
        with_scatter = torch.nonzero(self.counts > 1).ravel().tolist()
        strengths = self.counts.new_tensor(_STRENGTHS)[:, None]
        prior = strengths + k + 1.0
        # Many classes have equal counts: compute each gamma function once.
        freedom, times = torch.unique(self._freedom[with_scatter], return_counts=True)
        gammas = torch.mvlgamma((prior + freedom) / 2, k) - torch.mvlgamma(prior / 2, k)
        total = (gammas + prior / 2 * k * strengths.log()) @ times.to(gammas)
        for codes, scatters, is_full in self._whitened_scatters(with_scatter):
            matrices = scatters if is_full else scatters @ scatters.mT
            # On the CPU: a GPU would decompose the small matrices one by one.
            values = torch.linalg.eigvalsh(matrices.cpu()).clamp_min(0.0).to(total)
            n_zeros = k - values.shape[1]  # eigenvalues of B^T B beyond those of B B^T
            log_dets = (strengths[:, :, None] + values).log().sum(
                dim=2
            ) + n_zeros * strengths.log()
            total -= ((prior + self._freedom[codes]) / 2 * log_dets).sum(dim=1)
        return _STRENGTHS[int(total.argmax())]

    def _class_terms(self, classes: Sequence[int]) -> list[_ShapeTerm]:
        """Return the terms of some classes, computing those not known yet."""
        missing = [code for code in classes if code not in self._terms]
        for codes, scatters, is_full in self._whitened_scatters(missing):
            self._terms.update(self._compute_terms(codes, scatters, is_full))
        return [self._terms[code] for code in classes]

    def _compute_terms(
        self, codes: list[int], scatters: Tensor, is_full: bool
    ) -> dict[int, _ShapeTerm]:
        """Compute terms from one batch of :meth:`_whitened_scatters`.

        In ``d^T C_c^-1 d = (m_c + nu) d^T (S_c + nu I)^-1 d``, the last product is the
        squared length of ``L^-1 d`` with the Cholesky factor L of ``S_c + nu I``. With
        factors B, L is that of ``nu I + B B^T`` and the product follows from
        ``L^-1 B d``, by the last formula of the module docstring.
        """
        k = self.shapes.directions
        nu = self.strength
        half = 0.5 * self._credibility[codes]
        total = self._freedom[codes] + nu
        if is_full:
            matrices = scatters.clone()
            sides = torch.eye(k).to(matrices).expand_as(matrices)
            scale = half * total
            length = half
            sign = -1.0
        else:
            matrices = scatters @ scatters.mT
            sides = scatters
            scale = half * total / nu
            length = half - scale
            sign = 1.0
        matrices.diagonal(dim1=1, dim2=2).add_(nu)
        lower = _lower_factor(matrices)
        roots = torch.linalg.solve_triangular(
            lower, scale.sqrt()[:, None, None] * sides, upper=False
        )
        log_dets = 2.0 * lower.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        log_dets = log_dets + (k - matrices.shape[1]) * math.log(nu)
        constants = half * (k * total.log() - log_dets)
        numbers = zip(length.tolist(), constants.tolist(), strict=True)
        return {
            code: _ShapeTerm(root, sign, *pair)
            for code, root, pair in zip(codes, roots, numbers, strict=True)
        }


@dataclass(frozen=True, eq=False)
class _ShapeTerm:
    """The term ``sign |root d|^2 + length |d|^2 + constant`` of a class.

    d is the deviation of a row from the class mean, whitened: C_0 is the identity.

    Parameters
    ----------
    root : Tensor of shape (r, k)
        Factor of the quadratic form.
    sign : float
        1 or -1.
    length : float
        Factor of ``|d|^2``.
    constant : float
        Difference of the log-determinants.
    """

    root: Tensor
    sign: float
    length: float
    constant: float

    def values(self, deviations: Tensor) -> Tensor:
        """Return the terms (n,) of deviations (n, k)."""
        squares = (deviations @ self.root.T).square().sum(dim=1)
        lengths = self.length * deviations.square().sum(dim=1)
        return self.sign * squares + lengths + self.constant

    def matrix(self) -> Tensor:
        """Return the quadratic form as a matrix (k, k)."""
        matrix = self.sign * self.root.T @ self.root
        matrix.diagonal().add_(self.length)
        return matrix


# -- factors and triangles -------------------------------------------------------------


def _n_numbers(rank: int, k: int) -> int:
    """Return how many numbers a factor, or for ``rank == k`` a triangle, has."""
    return k * (k + 1) // 2 if rank == k else rank * k


def _chunks(codes: Sequence[int]) -> Iterator[list[int]]:
    """Split classes into batches."""
    for start in range(0, len(codes), _CLASSES_PER_BATCH):
        yield list(codes[start : start + _CLASSES_PER_BATCH])


def _factor_small_sums(
    moments: Sequence[Tensor | _Summands], k: int
) -> list[Tensor | _Summands]:
    """Replace summands of few rows by factors. All other entries stay unchanged."""
    result = list(moments)
    small = {
        code: entry
        for code, entry in enumerate(moments)
        if isinstance(entry, list) and _has_few_rows(entry, k)
    }
    for codes, rows, weights in _padded_batches(small):
        factors = _factor_sums(rows, weights)
        ranks = factors.any(dim=2).sum(dim=1).tolist()
        for code, factor, rank in zip(codes, factors, ranks, strict=True):
            result[code] = factor[:rank]
    return result


def _has_few_rows(summands: _Summands, k: int) -> bool:
    """Return whether the number of rows bounds the rank of a sum by k / 2.

    False if there is a triangle. Summands with negative weights do not increase the
    rank.
    """
    if any(part.dim() == 1 for part, _ in summands):
        return False
    if sum(len(part) for part, _ in summands) <= k // 2:
        return True
    positive = [
        len(part)
        for part, weight in summands
        if bool(torch.as_tensor(weight).amax() > 0.0)
    ]
    return sum(positive) <= k // 2


def _sum_triangle(summands: _Summands, k: int) -> Tensor:
    """Return the upper triangle (k (k + 1) / 2,) of a weighted sum."""
    first = summands[0][0]
    upper = torch.triu_indices(k, k, device=first.device)
    total = first.new_zeros(k * (k + 1) // 2)
    for part, weight in summands:
        if part.dim() == 1:
            total += weight * part
        else:
            factor = weight[:, None] if isinstance(weight, Tensor) else weight
            total += ((part * factor).T @ part)[upper[0], upper[1]]
    return total


def _padded_batches(
    sums: dict[int, _Summands],
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield batches of classes with similar numbers of rows.

    Parameters
    ----------
    sums : dict of int to summands
        Rows and factors of each class. There are no triangles.

    Yields
    ------
    codes : list of int
        The c classes of the batch.
    rows : Tensor of shape (c, m, k)
        Their rows, padded with zeros.
    weights : Tensor of shape (c, m)
        Weights of the rows.
    """
    lengths = {
        code: sum(len(part) for part, _ in summands) for code, summands in sums.items()
    }
    for codes in _chunks(sorted(sums, key=lengths.__getitem__)):
        first = sums[codes[0]][0][0]
        rows = first.new_zeros(len(codes), lengths[codes[-1]], first.shape[1])
        weights = first.new_zeros(rows.shape[:2])
        for index, code in enumerate(codes):
            start = 0
            for part, weight in sums[code]:
                stop = start + len(part)
                rows[index, start:stop] = part
                weights[index, start:stop] = weight
                start = stop
        yield codes, rows, weights


def _factor_sums(rows: Tensor, weights: Tensor) -> Tensor:
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
            values > _ROUNDING * largest, line / values.clamp_min(_TINY).sqrt(), 0.0
        )
        factors[:, step] = line
        # The pivot is eliminated exactly, unless it was only rounding.
        pivot_rest = torch.where(line.any(dim=1, keepdim=True), 0.0, values)
        variances = (variances - line.square()).scatter(1, pivots, pivot_rest)
    if bool((variances / largest.clamp_min(_TINY) < -1e-6).any()):
        raise NumericalError(_NOT_A_SCATTER)
    return factors


def _lower_factor(covariances: Tensor) -> Tensor:
    """Return lower Cholesky factors of covariances (..., k, k).

    Raises
    ------
    NumericalError
        If a matrix is not positive definite, for example from a damaged file.
    """
    factors: Tensor
    factors, failed = torch.linalg.cholesky_ex(covariances)
    if bool(failed.any()):
        raise NumericalError(_NOT_A_SCATTER)
    return factors


def _unpack_triangle(packed: Tensor, k: int) -> Tensor:
    """Return the symmetric matrix (k, k) of an upper triangle (k (k + 1) / 2,)."""
    rows, columns = torch.triu_indices(k, k, device=packed.device)
    full = packed.new_zeros(k, k)
    full[rows, columns] = packed
    full[columns, rows] = packed
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
