"""Choosing the ridge from the statistics: for ridge regression, and for the discriminant of class means.

**Ridge regression.** With ``G = U diag(d) U^T`` and ``q = U^T Q``, for any ``a > 0``

    W(a)   = U diag(1 / (d + a)) q
    df(a)  = sum_i d_i / (d_i + a)                                     (trace of the hat matrix)
    RSS(a) = RSS(0) + sum_i |q_i|^2 / d_i (a / (d_i + a))^2
    GCV(a) = n RSS(a) / (n - df(a))^2          n - df(a) = n - rank + sum_i a / (d_i + a)

The last two are sums of positive terms. The textbook forms subtract nearly equal numbers when there are fewer rows
than features and the fit is nearly perfect, and GCV then falls for the smallest ridge. Where an eigendecomposition
costs too much, a few Cholesky factorisations say the same.

**Discriminant.** Two bounds decide: the minimiser of generalised cross-validation on the centred total scatter, taken
half a decade down because shrinkage of the means comes on top of it, and the ridge at which the mean leverage of a row
is a quarter. Both follow from one factorisation of ``A = S_w + alpha I``: with counts N, means D about the common mean
and ``E = A^-1 D``

    T + alpha I = A + D N D^T        W = (T + alpha I)^-1 D N = E (N^-1 + D^T E)^-1 =: E S
    tr (T + alpha I)^-1 = tr A^-1 - tr(S E^T E)

Traces are estimated with the same random signs for every ridge, so that their error does not move the minimum. Where
statistics are kept in coordinates of their own, which depend on the order in which rows came, they are worked out: the
choice must not depend on that order, and there are no more coordinates than rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evergrow.core.seeding import generator
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky, symmetric_eigh
from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.linalg.statistics import RidgeStatistics

PAPER_ALPHAS = (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)
"""The grid from which the paper chooses its ridge."""

MAX_LEVERAGE = 0.25
"""Mean leverage that the ridge keeps to. Chosen on training rows (0.25 to 0.33 do alike): beyond it the spread of rows
outside the sample is underestimated, and generalised cross-validation itself fails where rows are few."""

PROBES = 32
"""Random vectors that tell the trace of an inverse. Those of all coordinates are projected where statistics are kept in
fewer, so that a ridge does not depend on the form that the same rows are kept in."""
EXACT_BELOW, EXACT_ABOVE = 512, 1024
"""Degrees of freedom below which the trace is exact instead, on layers wider than that: an error of the estimate would
be much of so few. Such rows are kept in few coordinates, where it costs little."""
SINGLE_ABOVE = 1200
"""Order above which scores are computed in single precision, in half of the time: they choose among quarters of a
decade. A matrix that single precision cannot factor without help is factored in double precision."""
_PER_DECADE = 4
_LOWEST, _HIGHEST = -6 * _PER_DECADE, 2 * _PER_DECADE


@dataclass(frozen=True)
class Spectrum:
    """Eigendecomposed statistics.

    Parameters
    ----------
    values : Tensor of shape (k,)
        Eigenvalues of the Gram matrix, ascending, clipped at zero.
    vectors : Tensor of shape (k, k)
        Eigenvectors in the coordinates of ``stats``.
    cross : Tensor of shape (k, C)
        ``vectors^T Q``.
    stats : RidgeStatistics
        What was decomposed.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import Spectrum
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> state = RidgeStatistics.create(3, 1).update(H, H @ torch.ones(3, 1, dtype=torch.float64))
    >>> path = Spectrum.of(state)
    >>> path.rss(0.1) < path.rss(1.0)
    True
    """

    values: Tensor
    vectors: Tensor
    cross: Tensor
    stats: RidgeStatistics

    @classmethod
    def of(cls, stats: RidgeStatistics) -> Spectrum:
        """Decompose statistics; the one expensive step."""
        values, vectors = symmetric_eigh(stats.gram)
        return cls(values.clamp_min(0.0), vectors, vectors.T @ stats.cross, stats)

    @cached_property
    def _row_space(self) -> tuple[Tensor, Tensor, float]:
        """Nonzero eigenvalues, the squared targets along each, and the squared targets along none."""
        n, k = self.stats.count, len(self.values)
        values, cross = self.values.flip(0)[: min(n, k)], self.cross.flip(0)[: min(n, k)]
        kept = values > k * float(torch.finfo(values.dtype).eps) * values[:1]  # the largest comes first
        values = values[kept]
        along = cross[kept].square().sum(dim=1) / values
        outside = max(self.stats.sq_targets - float(along.sum()), 0.0) if len(values) < n else 0.0
        return values, along, outside

    def rss(self, alpha: float) -> float:
        """Return the residual sum of squares on the rows seen."""
        values, along, outside = self._row_space
        return outside + float((along * (alpha / (values + alpha)).square()).sum())

    def gcv(self, alpha: float) -> float:
        """Return the generalised cross-validation score; infinite where nothing is left to validate."""
        values, _, outside = self._row_space
        # Where the rows explain the targets entirely, rows beyond the rank are repetitions and count for nothing.
        interpolated = outside <= 1e-9 * self.stats.sq_targets
        n = max(len(values) if interpolated else self.stats.count, 1)
        slack = n - len(values) + float((alpha / (values + alpha)).sum())
        return n * self.rss(alpha) / slack**2 if slack > 0.0 else float("inf")


EIGEN_LIMITS = {"cpu": 3500, "cuda": 12_000}
"""Up to this order the ridge is chosen from one decomposition, above it through a few Cholesky factorisations."""

GCV_SLACK = 0.01
"""GCV measures squared error, which prefers a larger ridge than the fewest wrong answers do; the smallest
alpha within this share of the minimum is, measured on real features, nearer to the most accurate one."""

GCV_RISE = 0.05
"""Coming from large ridges, the search ends once the score has risen by this share above its minimum. Samples that
occur twice make GCV fall again, without end, at ridges far too small: leaving one of them out is no test."""

GCV_REACH = 10.0**0.5
"""How far below the minimiser that choice may lie: where GCV is flat, far smaller ridges gain nothing."""


@dataclass(frozen=True)
class AlphaChoice:
    """A ridge chosen from a grid.

    Parameters
    ----------
    alpha : float
        The choice for a ridge classifier.
    minimiser : float
        The ridge with the smallest score; for GCV a little larger than ``alpha``.
    tried : dict of float to float
        Score of every ridge that was looked at, smaller is better.
    """

    alpha: float
    minimiser: float
    tried: dict[float, float]


def alpha_grid(energy: float, per_decade: int = 4) -> list[float]:
    """Return the ridges from 1e-6 to 1e2 times ``energy``, the mean energy of a centred row.

    Examples
    --------
    >>> from evergrow.head.linalg.ridge_choice import alpha_grid
    >>> len(alpha_grid(1.0)), round(alpha_grid(1.0)[0], 9)
    (33, 1e-06)
    """
    energy = energy if energy > 0.0 else 1.0
    return [energy * 10.0 ** (-6.0 + step / per_decade) for step in range(8 * per_decade + 1)]


def choose_by_gcv(stats: RidgeStatistics, energy: float) -> AlphaChoice:
    """Choose the ridge of ridge regression by generalised cross-validation, in the cheaper of two ways.

    One eigendecomposition tells every score of the grid. Where that costs too much, scores are computed one by one,
    walking downhill. The choice depends on the statistics alone, not on earlier ones.

    Parameters
    ----------
    stats : RidgeStatistics
        The statistics.
    energy : float
        Mean energy of a centred row, which sets the grid.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import choose_by_gcv
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> state = RidgeStatistics.create(3, 1).update(H[:, :3], H.sum(dim=1, keepdim=True))
    >>> 0.01 < choose_by_gcv(state, energy=3.0).alpha < 100.0
    True
    """
    grid, tried = alpha_grid(energy), dict[float, float]()
    spectrum = Spectrum.of(stats) if len(stats.gram) <= EIGEN_LIMITS.get(stats.gram.device.type, 0) else None

    def score(index: int) -> float:
        alpha = grid[index]
        if alpha not in tried:
            tried[alpha] = gcv_by_cholesky(stats, alpha) if spectrum is None else spectrum.gcv(alpha)
        return tried[alpha]

    if spectrum is not None:
        place = _first_minimum(range(len(grid) - 1, -1, -1), score)
    else:
        # From a decade below the top: a minimum above it, of features that tell nothing, is reached.
        place, before = _first_minimum(range(len(grid) - 5, -1, -4), score), -1
        while before != place:  # downhill, until both neighbours are higher
            before, around = place, (place - 1, place, place + 1)
            place = min((index for index in around if 0 <= index < len(grid)), key=score)
    floor = grid[place] / GCV_REACH * (1.0 - 1e-9)
    lowest = place
    while lowest > 0 and grid[lowest - 1] >= floor and score(lowest - 1) <= (1.0 + GCV_SLACK) * score(place):
        lowest -= 1
    return AlphaChoice(grid[lowest], grid[place], tried)


def _first_minimum(places: Iterable[int], score: Callable[[int], float]) -> int:
    """Return the place of the first minimum along ``places`` after which the score rises for good measure."""
    best, lowest = -1, float("inf")
    for place in places:
        value = score(place)
        if best < 0 or value < lowest:
            best, lowest = place, value
        elif value > (1.0 + GCV_RISE) * lowest:
            break
    return best


def choose_by_holdout(
    stats: RidgeStatistics, H: Tensor, Y: Tensor, grid: Sequence[float] = PAPER_ALPHAS
) -> AlphaChoice:
    """Choose the ridge with the fewest errors on held-out rows; the squared error breaks ties.

    Parameters
    ----------
    stats : RidgeStatistics
        Statistics of the training rows.
    H : Tensor of shape (n, L)
        Held-out rows.
    Y : Tensor of shape (n, C)
        Their one-hot targets.
    grid : sequence of float
        Candidates.
    """
    spectrum = Spectrum.of(stats)
    rows = stats.project(H) @ spectrum.vectors
    truth = Y.argmax(dim=1)
    scale = float(Y.square().sum()) + 1.0
    tried = {}
    for alpha in grid:
        fitted = (rows / (spectrum.values + alpha)) @ spectrum.cross
        errors = float((fitted.argmax(dim=1) != truth).double().mean())
        tried[alpha] = errors + 1e-6 * float((fitted - Y).square().sum()) / scale
    best = min(tried, key=tried.__getitem__)
    return AlphaChoice(best, best, tried)


def gcv_by_cholesky(stats: RidgeStatistics, alpha: float) -> float:
    """Return the GCV score of one ridge without an eigendecomposition.

    One factorisation and one triangular inverse, ``2 k^3 / 3`` operations, against about ``9 k^3``: the way to
    re-choose alpha among a few neighbours when k is large.
    """
    factor = safe_cholesky(stats.gram, shift=alpha)
    weights = factor.solve(stats.cross)
    # RSS = |Y|^2 - <W, Q> - alpha |W|^2, from (G + alpha I) W = Q.
    explained = float((weights * stats.cross).sum()) + alpha * float(weights.square().sum())
    n = max(stats.count, 1)
    slack = n - len(stats.gram) + alpha * factor.trace_inverse()
    return _gcv(n, stats.sq_targets, explained, slack)


def _gcv(rows: float, targets: float, explained: float, slack: float) -> float:
    """Return ``n RSS / slack^2``; infinite where the fit is so close to perfect that both are rounding."""
    rss = targets - explained
    return rows * rss / slack**2 if rss > 1e-10 * targets and slack > 1e-8 * rows else math.inf


def choose_ridge(geometry: ClassGeometry, energy: float, start: int | None = None) -> tuple[float, int]:
    """Choose the ridge of ``S_w + alpha I``.

    Returns the ridge, and where the search ended on its grid (quarters of a decade of a row's energy), to begin there
    next time.

    Parameters
    ----------
    geometry : ClassGeometry
        Means and scatter.
    energy : float
        Mean energy of a centred row, which sets the scale.
    start : int, optional
        Where an earlier search ended.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import choose_ridge
    >>> from evergrow.head.linalg.scatter import ClassGeometry
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> source = torch.Generator().manual_seed(0)
    >>> codes = torch.arange(60) % 3
    >>> H = torch.randn(60, 5, generator=source, dtype=torch.float64) + codes[:, None]
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = RidgeStatistics.create(5, 3).update(H, Y)
    >>> choose_ridge(ClassGeometry.of(stats, Y.sum(dim=0)), energy=5.0)[0] > 0
    True
    """
    search = _Search(geometry, energy if energy > 0.0 else 1.0)
    within = float(geometry.scatter.diagonal().sum())
    if search.free < 1.0 or within <= 1e-10 * float(geometry.stats.gram.diagonal().sum()):
        return search.energy, 0  # one row of each class, or copies: nothing is known of the spread within classes
    if start is not None and (step := search.at_bound(start)) is not None:
        return search.alpha(step), step
    # The minimiser that an earlier search found lies half a decade above the ridge.
    best = search.minimum(0) if start is None else search.minimum(start + _PER_DECADE // 2, is_near=True)
    step = search.within_leverage(max(best - _PER_DECADE // 2, _LOWEST))
    return search.alpha(step), step


class _Search:
    """Evaluates ridges of a grid, each once."""

    def __init__(self, geometry: ClassGeometry, energy: float) -> None:
        self.geometry, self.energy = geometry, energy
        counts, means, basis = geometry.counts, geometry.means, geometry.stats.basis
        self.rows = float(counts.sum())
        kept = counts > 0
        self.counts = counts[kept]
        self.free = self.rows - len(self.counts)
        self.means = means[:, kept] - (means @ counts / max(self.rows, 1.0))[:, None]
        self.width = len(means) if basis is None else len(basis)
        self.is_exact = self.free < EXACT_BELOW and self.width > EXACT_ABOVE
        source = generator(0, "ridge search", self.width)
        signs = torch.randint(0, 2, (self.width, PROBES), generator=source).to(means).mul_(2.0).sub_(1.0)
        self.signs = signs if basis is None else basis.T @ signs
        self.order = float(len(means)) if self.is_exact else float(self.signs.square().sum()) / PROBES
        self._tried: dict[int, tuple[float, float]] = {}
        is_large = len(means) > SINGLE_ABOVE and not self.is_exact
        self._single = geometry.scatter.to(torch.float32) if is_large else None

    def alpha(self, step: int) -> float:
        return float(self.energy * 10.0 ** (step / _PER_DECADE))

    def leverage(self, step: int) -> float:
        return self.judge(step)[0]

    def gcv(self, step: int) -> float:
        return self.judge(step)[1]

    def at_bound(self, start: int) -> int | None:
        """Return the step at which leverage meets its bound while the score still falls; None if not just below one."""
        if self.leverage(start) < 0.65 * MAX_LEVERAGE:
            return None
        for step in range(start, max(start - _PER_DECADE, _LOWEST), -1):
            if self.leverage(step) > MAX_LEVERAGE or not self.gcv(step - 1) < self.gcv(step):
                return None
            if self.leverage(step - 1) > MAX_LEVERAGE:
                return step
        return None

    def minimum(self, start: int, *, is_near: bool = False) -> int:
        """Return the step of smallest cross-validation, or one near the bound of leverage where that decides.

        Whole decades are tried, always the same ones, then halves, and a parabola through the three lowest gives the
        step between: the choice then depends on the data alone and hardly on where the search began. Near the minimum
        halves are tried at once: one that is lower than both of its neighbours is what the search would end at.
        """
        half = _PER_DECADE // 2
        near = half * round(start / half)
        for _ in range(2 if is_near else 0):
            if not _LOWEST < near < _HIGHEST or self.leverage(near - half) > MAX_LEVERAGE:
                break
            if self.gcv(near) < min(self.gcv(near - half), self.gcv(near + half)):
                return self._between(near)
            near += half if self.gcv(near + half) < self.gcv(near - half) else -half
        place = min(max(_PER_DECADE * round(start / _PER_DECADE), _LOWEST), _HIGHEST)
        while place < _HIGHEST and self.leverage(place) > MAX_LEVERAGE:
            place += _PER_DECADE
        while place < _HIGHEST and self.gcv(place + _PER_DECADE) < self.gcv(place):
            place += _PER_DECADE
        while place > _LOWEST and self.gcv(place - _PER_DECADE) < self.gcv(place):
            if self.leverage(place - _PER_DECADE) > MAX_LEVERAGE:
                return place - _PER_DECADE // 2  # the bound decides: what lies below it need not be known
            place -= _PER_DECADE
        if place in (_LOWEST, _HIGHEST):
            return place
        return self._between(min((place - half, place, place + half), key=self.gcv))

    def _between(self, place: int) -> int:
        """Return the lowest step of a parabola through the scores at a step and half a decade to either side."""
        half = _PER_DECADE // 2
        scores = [self.gcv(place + move) for move in (-half, 0, half)]
        if not all(map(math.isfinite, scores)):
            return place
        left, middle, right = map(math.log, scores)
        bend = left - 2.0 * middle + right
        return place + (round(0.5 * half * (left - right) / bend) if bend > 0.0 else 0)

    def within_leverage(self, step: int) -> int:
        """Return the step, or the first one above it whose leverage is within bounds."""
        if any(known <= step and found[0] <= MAX_LEVERAGE for known, found in self._tried.items()):
            return step  # leverage falls as the ridge grows
        below = step
        while step < _HIGHEST and self.leverage(step) > MAX_LEVERAGE:
            below, step = step, min(step + _PER_DECADE // 2, _HIGHEST)
        while step - below > 1:
            middle = (step + below) // 2
            if self.leverage(middle) <= MAX_LEVERAGE:
                step = middle
            else:
                below = middle
        return step

    def judge(self, step: int) -> tuple[float, float]:
        """Return the mean leverage at a step, and the score of centred ridge regression on one-hot targets."""
        if step in self._tried:
            return self._tried[step]
        alpha, counts, means = self.alpha(step), self.counts, self.means
        if 2 * len(counts) > self.width:
            _, trace = self._solve(self._factor(alpha), means[:, :0])
            explained, total = self._explained_by_total(alpha)
        else:
            solved, trace = self._solve(self._factor(alpha), means)
            inner = means.T @ solved
            inner = 0.5 * (inner + inner.T)
            inner.diagonal().add_(counts.reciprocal())
            gain = torch.linalg.solve(inner, torch.cat([torch.eye(len(counts)).to(inner), solved.T @ solved], dim=1))
            mixing, shrunk = gain[:, : len(counts)], gain[:, len(counts) :]
            # <W, Q> = tr(S D^T E N) = tr(N) - tr(S), since S^-1 = N^-1 + D^T E.
            explained = float(counts.sum()) - float(mixing.diagonal().sum())
            explained += alpha * float((shrunk * mixing.T).sum())
            total = trace - float(shrunk.diagonal().sum())
        targets = float(counts.sum()) - float(counts.square().sum()) / self.rows
        score = _gcv(self.rows, targets, explained, self.rows - 1.0 - (self.order - alpha * total))
        leverage = min(max((self.order - alpha * trace) / self.free, 0.0), 1.0)
        self._tried[step] = leverage, score
        return leverage, score

    def _factor(self, alpha: float) -> CholeskyFactor:
        """Factor ``S_w + alpha I``, in single precision where that is enough."""
        if self._single is not None:
            factor = safe_cholesky(self._single, shift=alpha)
            if factor.jitter == 0.0:
                return factor
        return self.geometry.factor(alpha)

    def _explained_by_total(self, alpha: float) -> tuple[float, float]:
        """Return what the regression explains and ``tr (T + alpha I)^-1``, by factoring T: for many classes."""
        total, cross = self._total
        weights, trace = self._solve(safe_cholesky(total, shift=alpha), cross)
        return float((weights * cross).sum()) + alpha * float(weights.square().sum()), trace

    @cached_property
    def _total(self) -> tuple[Tensor, Tensor]:
        """T, and a matrix R with ``R R^T = Q Q^T`` for the targets' products Q, which has no more columns than rows."""
        cross = self.means * self.counts
        total = torch.addmm(self.geometry.scatter, cross, self.means.T)
        return total, torch.linalg.qr(cross.T, mode="r").R.T if cross.shape[1] > len(cross) else cross

    def _solve(self, factor: CholeskyFactor, rhs: Tensor) -> tuple[Tensor, float]:
        """Return a solution, and the trace of the inverse, which is estimated from the signs where they serve."""
        both = torch.cat([rhs, self.signs], dim=1).to(factor.lower.dtype)
        solved, probes = torch.split(factor.solve(both).to(rhs), [rhs.shape[1], PROBES], dim=1)
        return solved, factor.trace_inverse() if self.is_exact else float((self.signs * probes).sum()) / PROBES
