"""How unlike anything learned something is, from the statistics of the learner.

With the within-class scatter S_w, a ridge a, class means m_c and their mean m, distances are those of the metric
``(S_w + a I)^-1``. What lies between a sample and m has a part in the span of the class means, where classes differ,
and a rest where they do not:

    |h - m|^2 = e + r        e in the span of the m_c - m, r outside of it

    novelty = min_c d_c / (e + r / 10) + max(r / (2 E) - 1, r / (100 E))

d_c is the squared distance to class c within the span, and E what r is expected to be for a new sample of a known
class. The first term finds other things of the same world: they fit no class better than they fit them all. It is a
ratio, so that it hardly depends on the scale of the metric; some of r is in it because a sample that is noisy where it
does not matter is as noisy where it does. The second term finds things of another world, which have energy where
nothing that was learned has any; for such things the ratio says nothing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.core.seeding import generator
from evergrow.head.linalg import CholeskyFactor, ClassGeometry, RidgeState, RidgeStatistics, safe_cholesky

REST_WEIGHT = 0.1
"""Share of the rest in the denominator of the ratio. 0.03 to 0.3 do about as well on image and text features."""

REST_LIMIT = 2.0
"""How many times its expectation the rest may be; 95 % of known samples stay below 1.4 to 2.0."""

RIDGE_FACTOR = 3.0
"""The ridge in units of the oracle-approximating shrinkage. That aims at the covariance; its inverse wants more."""

EXACT_TRACE = 1200
"""Up to this order a trace is computed exactly, above it from PROBES random vectors, to about a percent.

With fewer degrees of freedom than coordinates it is always exact, since little is then left of them and a percent of
the trace may be much of that."""

PROBES = 128

TOO_LARGE = 1e50
"""Activations beyond this may have a square, in the metric of what was learned, that overflows."""


def shrinkage_ridge(scatter: Tensor, freedom: float, width: int) -> float:
    """Return the ridge on a scatter matrix that oracle-approximating shrinkage (OAS) of the covariance comes to.

    Parameters
    ----------
    scatter : Tensor of shape (k, k)
        Sum of outer products of centred rows, in the coordinates where it does not vanish.
    freedom : float
        Its degrees of freedom n.
    width : int
        Width L of the rows.

    Returns
    -------
    float
        ``n rho mu / (1 - rho)``, with mu the mean variance of a coordinate and rho from Chen, Wiesel, Eldar and Hero,
        Shrinkage algorithms for MMSE covariance estimation (2010), at most 0.9.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.novelty import shrinkage_ridge
    >>> round(shrinkage_ridge(torch.diag(torch.tensor([90.0, 10.0])), 10, 2), 2)
    22.73
    """
    size = float(scatter.diagonal().sum())
    if size > 0.0 and not 1e-100 < size < 1e100:  # squares of it would overflow or vanish
        return size * shrinkage_ridge(scatter / size, freedom, width)
    trace = size / freedom
    squares = float(scatter.square().sum()) / freedom**2
    spread = squares - trace**2 / width
    rho = ((1.0 - 2.0 / width) * squares + trace**2) / max((freedom + 1.0 - 2.0 / width) * spread, 1e-300)
    rho = min(rho, 0.9)
    return freedom * rho * (trace / width) / (1.0 - rho)


@dataclass(frozen=True)
class Whitening:
    """The metric ``(S_w + ridge I)^-1``, or the same with some samples taken out, as coordinates.

    Parameters
    ----------
    stats : RidgeStatistics
        Where S_w came from.
    factor : CholeskyFactor
        Factor of ``S_w + ridge I``.
    ridge : float
        The ridge.
    freedom : float
        Degrees of freedom of S_w.
    used : float
        How many of them the ridge leaves: ``trace(S_w (S_w + ridge I)^-1)``.
    removed : Tensor of shape (m, k) or None
        Coordinates to add for what was taken out.
    """

    stats: RidgeStatistics
    factor: CholeskyFactor
    ridge: float
    freedom: float
    used: float
    removed: Tensor | None = None

    @classmethod
    def of(cls, geometry: ClassGeometry) -> Whitening:
        """Choose the ridge from the scatter alone and factor."""
        stats, scatter = geometry.stats, geometry.scatter
        width = scatter.shape[0] if stats.basis is None else stats.basis.shape[0]
        freedom = float(max(stats.count - len(geometry.counts), 1))
        energy = max(float(stats.gram.diagonal().sum()), 1e-300)
        if float(scatter.diagonal().sum()) > 1e-10 * energy:
            ridge = RIDGE_FACTOR * shrinkage_ridge(scatter, freedom, width)
            factor = safe_cholesky(scatter, shift=ridge)
            return cls(stats, factor, ridge, freedom, scatter.shape[0] - ridge * _trace_inverse(factor, freedom))
        # One sample of each class, or copies of it: all that is known of spread is that of everything.
        ridge = energy / width
        expected = width / max(stats.count, 1)
        return cls(stats, safe_cholesky(scatter, shift=ridge), ridge, freedom, freedom * expected / (1.0 + expected))

    @property
    def expected(self) -> float:
        """Expected squared distance of a new sample from its class: the mean leverage, as if each had been left out."""
        leverage = min(max(self.used / self.freedom, 1e-9), 1.0 - 1e-6)
        return leverage / (1.0 - leverage)

    def half(self, reduced: Tensor) -> Tensor:
        """Map reduced coordinates (k, n) to ones whose squared length is the distance."""
        return self.extended(self.factor.half_solve(reduced))

    def extended(self, half: Tensor) -> Tensor:
        """Add the coordinates for what was taken out."""
        return half if self.removed is None else torch.cat([half, self.removed @ half])

    def without(self, vectors: Tensor, samples: int) -> Whitening:
        """Return the metric of ``S_w - V V^T`` for whitened columns V, m of them from so many samples.

        Parameters
        ----------
        vectors : Tensor of shape (k, m)
            ``factor^-1`` times the columns to take out.
        samples : int
            How many degrees of freedom go with them.
        """
        # (A - V V^T)^-1 = A^-1 + A^-1 V (I - V^T A^-1 V)^-1 V^T A^-1: a metric with m more coordinates.
        core = safe_cholesky(-(vectors.T @ vectors), shift=1.0)
        solved = torch.linalg.solve_triangular(self.factor.lower.T, vectors, upper=True)
        lost = self.ridge * float(core.half_solve(solved.T).square().sum())
        return dataclasses.replace(
            self,
            freedom=max(self.freedom - samples, 1.0),
            used=max(self.used - lost, 0.0),
            removed=core.half_solve(vectors.T),
        )


@dataclass(frozen=True)
class NoveltyScorer:
    """Scores novelty; see the module.

    Parameters
    ----------
    whitening : Whitening
        The metric.
    half : Tensor of shape (k, C)
        ``factor^-1`` times the class means.
    counts : Tensor of shape (C,)
        Samples per class, in floating point.
    centre : Tensor of shape (k + m, 1)
        Whitened mean of all samples.
    means : Tensor of shape (k + m, C)
        Whitened class means, less the centre.
    span : CholeskyFactor
        Factor of the inner products of ``means``.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import SCLClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(200, 8)) + np.repeat(6 * np.eye(8)[:4], 50, axis=0), np.repeat(range(4), 50)
    >>> model = SCLClassifier.recommended(n_units=20, random_state=0).fit(X, y)
    >>> new = rng.normal(size=(50, 8)) + 6 * np.eye(8)[5]
    >>> bool(model.novelty_score(new).min() > np.median(model.novelty_score(X)))
    True
    """

    whitening: Whitening
    half: Tensor
    counts: Tensor
    centre: Tensor
    means: Tensor
    span: CholeskyFactor

    @classmethod
    def of(cls, state: RidgeState, counts: Tensor) -> NoveltyScorer:
        """Prepare from statistics: one factorisation."""
        geometry = ClassGeometry.of(state.reduced(), counts)
        whitening = Whitening.of(geometry)
        return cls._with(whitening, whitening.factor.half_solve(geometry.means), geometry.counts)

    @classmethod
    def _with(cls, whitening: Whitening, half: Tensor, counts: Tensor) -> NoveltyScorer:
        means = whitening.extended(half)
        centre = (means * counts).sum(dim=1, keepdim=True) / counts.sum().clamp_min(1.0)
        centred = means - centre
        gram = centred.T @ centred
        # The class means, less their mean, are linearly dependent; a shift this small leaves their span as it is. What
        # a single class has of it is rounding, which must not become a direction.
        shift = 1e-10 * float(gram.diagonal().mean()) + 1e-24 * float(centre.square().sum()) + 1e-30
        return cls(whitening, half, counts, centre, centred, safe_cholesky(gram, shift=shift))

    def score(self, H: Tensor) -> Tensor:
        """Return the novelty (n,) of rows H (n, L); of rows too large to be squared the largest number there is.

        Raises
        ------
        NumericalError
            If a row of ordinary size has no finite score: the statistics are not those of samples.
        """
        scores = self._score(self.whitening.factor.half_solve(self._reduced(H)), self._outside(H))
        return bounded(scores, H)

    def without(self, H: Tensor, codes: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the novelty (n,) of learned rows H (n, L) as if none of them, or of their fold, had been learned.

        The ridge stays; means, scatter and degrees of freedom are those of the rest, exactly.

        Parameters
        ----------
        H : Tensor of shape (n, L)
            Rows that were learned; of each class at least one learned row must not be among those taken out.
        codes : Tensor of shape (n,)
            Their classes.
        folds : Tensor of shape (n,), optional
            The fold of each; by default all are in one.
        """
        rows, outside = self.whitening.factor.half_solve(self._reduced(H)), self._outside(H)
        if folds is None:
            return self._rest(rows, codes)._score(rows, outside)
        scores = rows.new_empty(H.shape[0])
        for fold in sorted(set(folds.tolist())):
            mine = torch.nonzero(folds == fold).ravel()
            scores[mine] = self._rest(rows[:, mine], codes[mine])._score(rows[:, mine], outside[mine])
        return scores

    def _rest(self, rows: Tensor, codes: Tensor) -> NoveltyScorer:
        """Return the scorer of what remains without whitened rows (k, n) of these classes."""
        classes = len(self.counts)
        targets = torch.nn.functional.one_hot(codes, classes).to(rows.dtype)
        taken, sums = targets.sum(dim=0), rows @ targets
        left = (self.counts - taken).clamp_min(1.0)
        means = sums / taken.clamp_min(1.0)
        # Without k rows of mean b, the scatter of a class of n rows of mean m loses
        # sum (h - b)(h - b)^T + k n / (n - k) (b - m)(b - m)^T.
        shifts = (taken * self.counts / left).sqrt() * (means - self.half)
        vectors = torch.cat([rows - means[:, codes], shifts[:, taken > 0]], dim=1)
        whitening = self.whitening.without(vectors, rows.shape[1])
        return NoveltyScorer._with(whitening, (self.counts * self.half - sums) / left, self.counts - taken)

    def _reduced(self, H: Tensor) -> Tensor:
        return self.whitening.stats.project(H).T

    def _outside(self, H: Tensor) -> Tensor:
        """Return how far (n,) rows are from the coordinates of the statistics, where nothing was learned."""
        stats = self.whitening.stats
        if stats.basis is None:
            return H.new_zeros(H.shape[0])
        lost = H.square().sum(dim=1) - stats.project(H).square().sum(dim=1)
        return lost.clamp_min(0.0) / self.whitening.ridge

    def _score(self, half: Tensor, outside: Tensor) -> Tensor:
        rows = self.whitening.extended(half) - self.centre
        inner = self.means.T @ rows
        inside = self.span.half_solve(inner).square().sum(dim=0)
        rest = (rows.square().sum(dim=0) - inside).clamp_min(0.0) + outside
        distances = inside - 2.0 * inner + self.means.square().sum(dim=0)[:, None]
        # The mean of few samples is off by a share of the spread itself.
        nearest = (distances.clamp_min(0.0) / (1.0 + 1.0 / self.counts.clamp_min(1.0))[:, None]).amin(dim=0)
        excess = rest / self.whitening.expected
        ratio = nearest / (inside + REST_WEIGHT * rest).clamp_min(1e-300)
        return ratio + torch.maximum(excess / REST_LIMIT - 1.0, excess / 100.0)


def bounded(found: Tensor, H: Tensor) -> Tensor:
    """Return scores (n,) or terms (n, k) with the largest number there is for rows too large to be squared.

    Raises
    ------
    NumericalError
        If those of a row of ordinary size are not finite: the statistics are not those of samples.
    """
    finite = torch.isfinite(found) if found.dim() == 1 else torch.isfinite(found).all(dim=1)
    if bool(finite.all()):
        return found
    if not bool((finite | (H.abs().amax(dim=1) > TOO_LARGE)).all()):
        raise NumericalError("novelty must be finite, but the statistics are not those of samples")
    kept = finite if found.dim() == 1 else finite[:, None]
    return torch.where(kept, found, torch.finfo(found.dtype).max)


def _trace_inverse(factor: CholeskyFactor, freedom: float) -> float:
    """Return the trace of the inverse, exactly where that is cheap or needed."""
    order = factor.lower.shape[0]
    if order <= EXACT_TRACE or freedom < order:
        return factor.trace_inverse()
    signs = torch.randint(0, 2, (order, PROBES), generator=generator(0, "novelty", "probes"), dtype=torch.int64)
    probes = (2 * signs - 1).to(factor.lower)
    return float(factor.half_solve(probes).square().sum()) / PROBES
