"""Terms of class scores from the shapes of classes.

A discriminant uses one covariance for all classes. This module adds the part of the
log-likelihood that depends on each class's own covariance, its *shape*, from the sums
of :class:`~evergrow.head.linalg.class_shapes.ClassShapes`. Rows p are projected to k
fixed directions. Class c has n_c rows, the mean of which is mean_c. With its scatter
S_c about this mean, its degrees of freedom ``m_c = n_c - 1``, the pooled covariance C_0
and an inverse Wishart prior of strength nu around C_0,

    C_c        = (S_c + nu C_0) / (m_c + nu)
    shape_c(p) = g_c max((d^T (C_0^-1 - C_c^-1) d + ln|C_0| - ln|C_c|) / 2, -20)
    d          = p - mean_c
    g_c        = m_c / (m_c + nu) min(max((n_c - 10) / 20, 0), 1)

is the log-likelihood ratio of the class covariance to the pooled one, weighted by its
credibility g_c. nu maximises the marginal likelihood of the scatters.

The last factor of g_c corrects a bias. The directions are the principal directions of
the first task, so its classes look more spread than they are, the more so the fewer
rows there were. Without the factor, shapes cost 1 to 4 points of accuracy if all
classes have six rows. They gain from thirty rows on.

In coordinates in which C_0 is the identity and ``S_c = B^T B``, terms of classes with
few rows need B only:

    (m_c + nu) (S_c + nu I)^-1 = (m_c + nu) / nu (I - B^T (nu I + B B^T)^-1 B)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.head.linalg.class_shapes import (
    NOT_A_SCATTER,
    ClassShapes,
    counts_or_one,
    factor_sums,
    tiles,
)

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

_COMMON_RIDGE = 0.1
"""Fraction of the mean variance that is added to the diagonal of C_0."""

_STRENGTHS: tuple[float, ...] = tuple(5.0 * 2.0 ** (step / 2) for step in range(22))
"""Candidates for the strength nu of the prior."""

_CLASSES_PER_BATCH = 256

_TERM_NUMBERS = 2**23
"""Numbers in the scatters that are factored at once."""

_SMALLEST_REST = 1e-9
"""Lower bound of a determinant's ratio after a row was left out."""


class LeftOutRows(NamedTuple):
    """Learned rows, each of which is left out of the shape of its class.

    Parameters
    ----------
    rows : Tensor of shape (n, k)
        Projected rows.
    codes : Tensor of shape (n,)
        Their classes, each of which keeps other rows.
    weights : Tensor of shape (n,)
        The weights they were learned with.
    """

    rows: Tensor
    codes: Tensor
    weights: Tensor


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
    >>> from evergrow.head.linalg.class_shapes import ClassShapes
    >>> from evergrow.head.linalg.shape_scores import ShapeScores
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
        self._freedom = (self.counts - 1.0).clamp_min(0.0)
        size_factor = _size_factor(self.counts)
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
        self._terms = _Terms(shapes)

    def add(
        self, P: Tensor, scores: Tensor, left_out: LeftOutRows | None = None
    ) -> Tensor:
        """Add shape terms to linear scores.

        Parameters
        ----------
        P : Tensor of shape (n, k)
            Projected rows.
        scores : Tensor of shape (n, C)
            Linear class scores.
        left_out : LeftOutRows, optional
            For each row of P, a learned row whose class has its shape without it. The
            covariance C_0 stays.

        Returns
        -------
        Tensor of shape (n, C)
            Scores plus shape terms. `scores` itself if there are no terms.
        """
        if not self.has_terms or not scores.numel():
            return scores
        n_likeliest = min(LIKELIEST, scores.shape[1])
        likeliest = scores.topk(n_likeliest, dim=1).indices
        pairs = (self._credibility[likeliest] > 0.0).nonzero()
        pair_rows, ranks = pairs.unbind(dim=1)
        pair_classes = likeliest[pair_rows, ranks]
        terms = torch.zeros_like(likeliest, dtype=scores.dtype)
        terms[pair_rows, ranks] = self._pair_terms(P, pair_rows, pair_classes)
        if left_out is not None:
            is_own = likeliest == left_out.codes[:, None]
            own_terms = self._terms_without(P, left_out)[:, None].expand_as(terms)
            terms = torch.where(is_own, own_terms, terms)
        # All other classes get the lowest term, see LIKELIEST.
        lowest = terms.min(dim=1, keepdim=True).values.clamp_max(0.0)
        return scores + lowest.expand_as(scores).scatter(1, likeliest, terms)

    def _pair_terms(self, P: Tensor, rows: Tensor, classes: Tensor) -> Tensor:
        """Return the terms (m,) of pairs of a row of P (n, k) and a class."""
        self._compute_terms(torch.unique(classes))
        values = self._pair_values(self._whiten(P), rows, classes)
        return torch.maximum(values, self.floors[classes])

    def _pair_values(self, white: Tensor, rows: Tensor, classes: Tensor) -> Tensor:
        """Return the terms (m,) without their floors, from whitened rows (n, k).

        The terms of the classes must be computed.
        """
        values = white.new_empty(len(classes))
        n_classes = len(self.counts)
        for group in self._terms.groups:
            n_rows, k = group.roots.shape[1:]
            for tile in tiles(classes, n_classes, 2 * k, n_rows, group.has):
                means = self._whitened_means[tile.classes][:, None]
                deviations = white[rows[tile.rows]] - means
                found = self._terms.values(group, tile.classes, deviations)
                values[tile.rows[tile.inside]] = found[tile.inside]
        return values

    def _terms_without(self, P: Tensor, left_out: LeftOutRows) -> Tensor:
        """Return the term (n,) of each row and the class that loses a learned row.

        Let d be the deviation of the learned row from the class mean, whitened, and w
        its weight. Without it, with ``g = n_c w / (n_c - w)``, the class has the mean
        ``mean_c - w d / (n_c - w)`` and the scatter ``S_c - g d d^T``. The inverse and
        the determinant of ``E = S_c + nu I`` change by the formulas for rank one.
        """
        terms = torch.zeros_like(left_out.weights)
        has_term = self._credibility[left_out.codes] > 0.0
        pairs = has_term.nonzero().ravel()
        if not len(pairs):
            return terms
        classes = left_out.codes[pairs]
        self._compute_terms(torch.unique(classes))
        counts = self.counts[classes]
        weights = left_out.weights[pairs]
        rest = counts - weights
        means = self._whitened_means[classes]
        removed = self._whiten(left_out.rows[pairs]) - means
        factor = counts * weights / rest
        own = self._inverse_squares(removed, classes)
        remaining = (1.0 - factor * own).clamp_min(_SMALLEST_REST)
        if P is left_out.rows:  # the deviation from the moved mean is parallel to d
            scale = counts / rest
            moved = scale[:, None] * removed
            across = scale * own
            square = scale.square() * own
        else:
            moved = self._whiten(P[pairs]) - means
            moved = moved + (weights / rest)[:, None] * removed
            # The product of both, from the squares of their sum and their difference.
            across = self._inverse_squares(moved + removed, classes)
            across = 0.25 * (across - self._inverse_squares(moved - removed, classes))
            square = self._inverse_squares(moved, classes)
        square = square + factor * across.square() / remaining
        k = self.shapes.directions
        total = self._freedom[classes] + self.strength
        log_det = k * total.log() - self._terms.constants[classes] / (
            0.5 * self._credibility[classes]
        )
        log_det = log_det + remaining.log()
        freedom = (rest - 1.0).clamp_min(0.0)
        new_total = freedom + self.strength
        ratio = moved.square().sum(dim=1) - new_total * square
        ratio = 0.5 * (ratio + k * new_total.log() - log_det)
        credibility = freedom / new_total * _size_factor(rest)
        terms[pairs] = credibility * ratio.clamp_min(-FLOOR)
        return terms

    def add_without(self, p: Tensor, scores: Tensor, left_out: LeftOutRows) -> Tensor:
        """Add shape terms of one row, each without a learned row.

        Unlike with :meth:`add`, the covariance C_0 is that of the other rows too.

        Parameters
        ----------
        p : Tensor of shape (k,)
            The projected row.
        scores : Tensor of shape (n, C)
            Its linear class scores, each without a learned row.
        left_out : LeftOutRows
            The n learned rows.

        Returns
        -------
        Tensor of shape (n, C)
        """
        if not self.has_terms or not scores.numel():
            return scores
        likeliest = scores.topk(min(LIKELIEST, scores.shape[1]), dim=1).indices
        classes, places = torch.unique(likeliest, return_inverse=True)
        scatters = self.shapes.scatters(classes, self.counts)
        pooled = self.shapes.pooled(self.counts)
        terms = torch.empty_like(likeliest, dtype=scores.dtype)
        size = max(_TERM_NUMBERS // (likeliest.shape[1] * pooled.numel()), 1)
        for start in range(0, len(scores), size):
            part = slice(start, start + size)
            terms[part] = self._exact_terms(
                p,
                likeliest[part],
                scatters[places[part]],
                pooled,
                LeftOutRows(*(column[part] for column in left_out)),
            )
        lowest = terms.min(dim=1, keepdim=True).values.clamp_max(0.0)
        return scores + lowest.expand_as(scores).scatter(1, likeliest, terms)

    def _exact_terms(
        self,
        p: Tensor,
        classes: Tensor,
        scatters: Tensor,
        pooled: Tensor,
        left_out: LeftOutRows,
    ) -> Tensor:
        """Return the terms (m, c) of a row and classes, without one learned row each.

        Parameters
        ----------
        p : Tensor of shape (k,)
            The row.
        classes : Tensor of shape (m, c)
            The classes.
        scatters : Tensor of shape (m, c, k, k)
            Their scatters with all rows. Changed in place.
        pooled : Tensor of shape (k, k)
            Sum of the scatters of all classes.
        left_out : LeftOutRows
            The m learned rows.
        """
        k = self.shapes.directions
        weights = left_out.weights
        before = self.counts[left_out.codes]
        rest = before - weights
        removed = left_out.rows - self.means[left_out.codes]
        outer = removed[:, :, None] * removed[:, None, :]
        outer = outer * (before * weights / rest)[:, None, None]
        is_own = classes == left_out.codes[:, None]
        counts = torch.where(is_own, rest[:, None], self.counts[classes])
        step = (weights / rest)[:, None] * removed
        moved = p - self.means[classes] + is_own[:, :, None] * step[:, None]
        freedom = (counts - 1.0).clamp_min(0.0)
        total_freedom = self._freedom.sum() - torch.minimum(weights, before - 1.0)
        common = (pooled - outer) / total_freedom[:, None, None]
        ridge = _COMMON_RIDGE * common.diagonal(dim1=1, dim2=2).mean(dim=1)
        common.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
        scatters -= is_own[:, :, None, None] * outer[:, None]
        scatters += self.strength * common[:, None]
        total = freedom + self.strength
        common_square, common_det = _square_and_log_det(common[:, None], moved)
        own_square, own_det = _square_and_log_det(scatters, moved)
        ratio = common_square + common_det - total * own_square
        ratio = 0.5 * (ratio - own_det + k * total.log())
        credibility = freedom / total * _size_factor(counts)
        return credibility * ratio.clamp_min(-FLOOR)

    def _inverse_squares(self, deviations: Tensor, classes: Tensor) -> Tensor:
        """Return ``d^T (S_c + nu I)^-1 d`` (m,) of whitened deviations d (m, k)."""
        pairs = torch.arange(len(classes), device=classes.device)
        white = self._whitened_means[classes] + deviations
        values = self._pair_values(white, pairs, classes)
        values = values - self._terms.constants[classes]
        total = self._freedom[classes] + self.strength
        half = 0.5 * self._credibility[classes]
        return (deviations.square().sum(dim=1) - values / half) / total

    def quadratics(self, classes: Sequence[int]) -> list[tuple[Tensor, float]]:
        """Return (matrix (k, k), constant) of the given classes.

        The shape term of a class is ``max(d^T matrix d + constant, floor)``. There must
        be terms (`has_terms`).
        """
        k = self.shapes.directions
        self._compute_terms(torch.tensor(list(classes), device=self.means.device))
        whitening = self._whiten(torch.eye(k).to(self.means))
        pairs = []
        for code in classes:
            matrix = self._terms.matrix(code)
            constant = float(self._terms.constants[code])
            pairs.append((whitening @ matrix @ whitening.T, constant))
        return pairs

    def _whiten(self, P: Tensor) -> Tensor:
        """Map rows (..., k) to coordinates in which C_0 is the identity."""
        rows = P.reshape(-1, P.shape[-1])
        white: Tensor = torch.linalg.solve_triangular(self._lower, rows.T, upper=False)
        return white.T.contiguous().view(P.shape)

    def _whitened_scatters(
        self, classes: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Yield batches of scatters in whitened coordinates, in any order of classes.

        Yields
        ------
        classes : Tensor of shape (c,)
            The classes of the batch.
        scatters : Tensor of shape (c, r, k) or (c, k, k)
            Factors B with ``S_c = B^T B``, or the scatters.
        is_full : bool
            Whether `scatters` are full matrices.
        """
        shapes = self.shapes
        is_wanted = torch.zeros_like(shapes.has_triangle)
        is_wanted[classes] = True
        # S_c = F^T F - n_c mean_c mean_c^T
        rows = torch.cat([shapes.factors, self.means])
        weights = torch.cat(
            [shapes.factors.new_ones(len(shapes.factors)), -self.counts]
        )
        every = torch.arange(len(self.counts), device=rows.device)
        row_classes = torch.cat([shapes.factor_classes, every])
        has_factor = is_wanted & ~shapes.has_triangle
        width = 3 * shapes.directions  # rows, weighted rows and factors
        for tile in tiles(row_classes, len(self.counts), width, wanted=has_factor):
            white = self._whiten(rows[tile.rows])
            yield tile.classes, factor_sums(white, tile.pad(weights)), False
        with_triangle = (is_wanted & shapes.has_triangle).nonzero().ravel()
        for batch in torch.split(with_triangle, _CLASSES_PER_BATCH):
            half = torch.linalg.solve_triangular(
                self._lower, shapes.scatters(batch, self.counts), upper=False
            )
            white = torch.linalg.solve_triangular(
                self._lower, half.mT.contiguous(), upper=False
            )
            yield batch, 0.5 * (white + white.mT), True

    def _likeliest_strength(self) -> float:
        """Return the candidate nu with the largest marginal likelihood.

        With the prior's ``p = nu + k + 1`` degrees of freedom, the scatters have the
        log-likelihood, up to a constant,

            sum_c ln Gamma_k((p + m_c) / 2) - ln Gamma_k(p / 2) + p / 2 k ln nu
                  - (p + m_c) / 2 ln|S_c + nu I|
        """
        k = self.shapes.directions
        with_scatter = torch.nonzero(self.counts > 1).ravel()
        strengths = self.counts.new_tensor(_STRENGTHS)[:, None]
        log_strengths = strengths.log()
        prior = strengths + k + 1.0  # p, one row per candidate
        # Many classes have equal counts: compute each gamma function once.
        freedom, times = torch.unique(self._freedom[with_scatter], return_counts=True)
        log_gammas = torch.mvlgamma((prior + freedom) / 2, k)
        constants = log_gammas - torch.mvlgamma(prior / 2, k)
        constants = constants + prior / 2 * k * log_strengths
        total = constants @ times.to(constants)
        for classes, scatters, is_full in self._whitened_scatters(with_scatter):
            matrices = scatters if is_full else scatters @ scatters.mT
            log_dets = _log_dets(matrices, strengths[:, 0])
            n_zeros = k - matrices.shape[1]  # eigenvalues of B^T B beyond B B^T
            log_dets = log_dets + n_zeros * log_strengths
            factors = (prior + self._freedom[classes]) / 2
            total -= (factors * log_dets).sum(dim=1)
        return _STRENGTHS[int(total.argmax())]

    def _compute_terms(self, classes: Tensor) -> None:
        """Compute the terms of some classes that are not computed yet."""
        missing = classes[~self._terms.is_computed[classes]]
        if not len(missing):
            return
        for batch, scatters, is_full in self._whitened_scatters(missing):
            self._solve_terms(batch, scatters, is_full)
        self._terms.is_computed[missing] = True

    def _solve_terms(self, classes: Tensor, scatters: Tensor, is_full: bool) -> None:
        """Compute the terms of one batch of :meth:`_whitened_scatters`.

        In ``d^T C_c^-1 d = (m_c + nu) d^T (S_c + nu I)^-1 d``, the last product is the
        squared length of ``L^-1 d`` with the Cholesky factor L of ``S_c + nu I``. With
        factors B, L is that of ``nu I + B B^T`` and the product follows from
        ``L^-1 B d``, by the last formula of the module docstring.
        """
        k = self.shapes.directions
        nu = self.strength
        half = 0.5 * self._credibility[classes]
        total = self._freedom[classes] + nu
        if is_full:
            matrices = scatters.clone()
            sides = torch.eye(k).to(matrices).expand_as(matrices)
            scale = half * total
            length = half
        else:
            matrices = scatters @ scatters.mT
            sides = scatters
            scale = half * total / nu
            length = half - scale
        matrices.diagonal(dim1=1, dim2=2).add_(nu)
        lower = _lower_factor(matrices)
        roots = torch.linalg.solve_triangular(
            lower, scale.sqrt()[:, None, None] * sides, upper=False
        )
        log_dets = 2.0 * lower.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        log_dets = log_dets + (k - matrices.shape[1]) * math.log(nu)
        self._terms.groups[int(is_full)].set(classes, roots)
        self._terms.lengths[classes] = length
        self._terms.constants[classes] = half * (k * total.log() - log_dets)


class _Terms:
    """Terms ``sign |root d|^2 + length |d|^2 + constant`` of all classes.

    d is the deviation of a row from the class mean, whitened: C_0 is the identity.

    Parameters
    ----------
    shapes : ClassShapes
        The moments.

    Attributes
    ----------
    groups : tuple of _Roots
        The roots of classes with factors and of classes with triangles.
    lengths, constants : Tensor of shape (C,)
        Factor of ``|d|^2``, and difference of the log-determinants.
    is_computed : Tensor of shape (C,)
        Whether the term of a class is computed.
    """

    def __init__(self, shapes: ClassShapes) -> None:
        k = shapes.directions
        has_factor = ~shapes.has_triangle
        largest_rank = 0
        if bool(has_factor.any()):
            largest_rank = int(shapes.ranks[has_factor].amax())
        self.groups = (
            _Roots(has_factor, largest_rank, k, 1.0, like=shapes.sums),
            _Roots(shapes.has_triangle, k, k, -1.0, like=shapes.sums),
        )
        self.lengths = shapes.sums.new_zeros(len(shapes.ranks))
        self.constants = shapes.sums.new_zeros(len(shapes.ranks))
        self.is_computed = torch.zeros_like(shapes.has_triangle)

    def values(self, group: _Roots, classes: Tensor, deviations: Tensor) -> Tensor:
        """Return the terms (c, m) of deviations (c, m, k) from classes (c,)."""
        roots = group.roots[group.places[classes]]
        projected = deviations @ roots.mT
        squares = group.sign * projected.square().sum(dim=2)
        lengths = deviations.square().sum(dim=2)
        factors = self.lengths[classes][:, None]
        return squares + lengths * factors + self.constants[classes][:, None]

    def matrix(self, code: int) -> Tensor:
        """Return the quadratic form of a class as a matrix (k, k)."""
        group = self.groups[0]
        if not bool(group.has[code]):
            group = self.groups[1]
        root = group.roots[int(group.places[code])]
        matrix = group.sign * root.T @ root
        matrix.diagonal().add_(self.lengths[code])
        return matrix


class _Roots:
    """Roots of the quadratic forms of classes, padded to one number of rows.

    Parameters
    ----------
    has : Tensor of shape (C,)
        Whether a class is in this group.
    n_rows, k : int
        Shape of a root.
    sign : float
        Sign of the squares.
    like : Tensor
        Tensor with the type and device of the roots.
    """

    def __init__(
        self, has: Tensor, n_rows: int, k: int, sign: float, *, like: Tensor
    ) -> None:
        self.has = has
        self.sign = sign
        self.places = has.cumsum(0) - 1
        self.roots = like.new_empty(int(has.sum()), n_rows, k)

    def set(self, classes: Tensor, roots: Tensor) -> None:
        """Store the roots (c, r, k) of some classes."""
        places = self.places[classes]
        n_rows = roots.shape[1]
        self.roots[places, :n_rows] = roots
        self.roots[places, n_rows:] = 0.0


def _size_factor(counts: Tensor) -> Tensor:
    """Return the last factor of the credibility g_c, from the rows per class."""
    span = FULL_SHAPE_ROWS - MIN_SHAPE_ROWS
    return ((counts - MIN_SHAPE_ROWS) / span).clamp(0.0, 1.0)


def _log_dets(matrices: Tensor, strengths: Tensor) -> Tensor:
    """Return ``ln|S + nu I|`` (m, c) of scatters S (c, r, r) for each strength (m,)."""
    if not matrices.is_cuda:
        values = torch.linalg.eigvalsh(matrices).clamp_min(0.0)
        log_dets: Tensor = (strengths[:, None, None] + values).log().sum(dim=2)
        return log_dets
    # A GPU decomposes small matrices one by one, but factors them side by side.
    found = []
    for strength in strengths:
        shifted = matrices.clone()
        shifted.diagonal(dim1=1, dim2=2).add_(strength)
        diagonals = _lower_factor(shifted).diagonal(dim1=1, dim2=2)
        found.append(2.0 * diagonals.log().sum(dim=1))
    return torch.stack(found)


def _square_and_log_det(matrices: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``d^T A^-1 d`` and ``ln|A|``, both (m, c).

    Parameters
    ----------
    matrices : Tensor of shape (m, c, k, k) or (m, 1, k, k)
        A.
    rows : Tensor of shape (m, c, k)
        d.
    """
    lower = _lower_factor(matrices)
    if lower.shape[1] == 1:  # one matrix for all rows
        white = torch.linalg.solve_triangular(lower[:, 0], rows.mT, upper=False)
        squares = white.square().sum(dim=1)
    else:
        white = torch.linalg.solve_triangular(lower, rows[..., None], upper=False)
        squares = white[..., 0].square().sum(dim=2)
    log_dets = 2.0 * lower.diagonal(dim1=2, dim2=3).log().sum(dim=2)
    return squares, log_dets.expand_as(squares)


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
        raise NumericalError(NOT_A_SCATTER)
    return factors
