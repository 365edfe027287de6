"""Choose the ridge from the statistics.

**Ridge regression.** Of the statistics, G is the Gram matrix, Q the cross product with
the targets and n the number of rows. With ``G = U diag(d) U^T`` and ``q = U^T Q``, for
any ridge ``a > 0``

    W(a)      = U diag(1 / (d + a)) q
    df(a)     = sum_i d_i / (d_i + a)                        (trace of the hat matrix)
    RSS(a)    = RSS(0) + sum_i |q_i|^2 / d_i (a / (d_i + a))^2
    GCV(a)    = n RSS(a) / (n - df(a))^2
    n - df(a) = n - rank + sum_i a / (d_i + a)

RSS and n - df are computed as sums of positive terms. The textbook forms subtract
nearly equal numbers if there are fewer rows than features and the fit is nearly
perfect. GCV would then prefer the smallest ridge.

**Discriminant.** The ridge is the larger of two: the minimiser of GCV on the centred
total scatter, divided by the square root of ten because means are shrunk too, and the
ridge at which the mean leverage of a row is `MAX_LEVERAGE`. Both follow from one
factorisation of ``A = S_w + alpha I`` with the within-class scatter S_w. With T the
total scatter, N the diagonal matrix of the rows per class, D the class means about the
common mean, and ``E = A^-1 D``,

    T + alpha I           = A + D N D^T
    S                     = (N^-1 + D^T E)^-1
    W                     = (T + alpha I)^-1 D N = E S
    tr (T + alpha I)^-1   = tr A^-1 - tr(S E^T E)

Traces are estimated with the same random signs for every ridge, so that the error of
the estimate does not move the minimum. Compact statistics have coordinates that depend
on the order of the rows, so signs are drawn in feature coordinates and projected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from evergrow.core.seeding import generator
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky, symmetric_eigh
from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
from evergrow.head.linalg.statistics import RidgeStatistics

MAX_LEVERAGE = 0.25
"""Largest mean leverage of a row.

With larger leverage, the spread of new rows is underestimated and GCV is unreliable.
0.25 to 0.33 give the same accuracy on training rows.
"""

PROBES = 32
"""Number of random sign vectors that estimate the trace of an inverse."""

EXACT_TRACE_MAX_FREEDOM = 512
EXACT_TRACE_MIN_WIDTH = 1024
"""Traces are exact for fewer degrees of freedom and wider layers than these.

The error of an estimate is large compared with few degrees of freedom. Such statistics
are compact, so an exact trace is cheap.
"""

SINGLE_PRECISION_ABOVE = 1200
"""Order above which scores are computed in single precision, which halves the time.

If the factorisation needs jitter, it is repeated in double precision.
"""

_STEPS_PER_DECADE = 4
_HALF_DECADE = _STEPS_PER_DECADE // 2
_MIN_STEP = -6 * _STEPS_PER_DECADE
_MAX_STEP = 2 * _STEPS_PER_DECADE
"""Steps of the grid of ridges, ``energy 10^(step / 4)``.

A decade is a factor of ten of the ridge.
"""

_NEAR_BOUND = 0.65
"""Fraction of MAX_LEVERAGE from which the leverage may soon reach its bound."""

GCV_SLACK = 0.01
"""The smallest ridge whose GCV is within this fraction of the minimum is chosen.

GCV measures squared error and prefers larger ridges than accuracy does.
"""

GCV_RISE = 0.05
"""The search from large to small ridges stops if GCV rises by this fraction.

If samples occur twice, GCV falls without bound at ridges that are far too small.
"""

GCV_REACH = 10.0**0.5
"""Largest ratio of the minimiser of GCV to the chosen ridge."""


def gcv_scores(stats: RidgeStatistics, alphas: Sequence[float]) -> list[float]:
    """Return the GCV score ``n RSS / (n - df)^2`` of ridge regression for each ridge.

    Parameters
    ----------
    stats : RidgeStatistics
        The statistics.
    alphas : sequence of float
        Ridges.

    Returns
    -------
    list of float
        Scores. Infinite if no degree of freedom is left.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import gcv_scores
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> rng = torch.Generator().manual_seed(0)
    >>> H = torch.randn(50, 4, generator=rng, dtype=torch.float64)
    >>> Y = H.sum(dim=1, keepdim=True)
    >>> stats = RidgeStatistics.create(3, 1).update(H[:, :3], Y)
    >>> small, large = gcv_scores(stats, (1.0, 1000.0))
    >>> small < large
    True
    """
    n = stats.count
    k = len(stats.gram)
    values, vectors = symmetric_eigh(stats.gram)
    # Largest first. The rank is at most the number of rows.
    values = values.flip(0)[:n]
    vectors = vectors.flip(1)[:, :n]
    rounding = k * float(torch.finfo(values.dtype).eps) * float(values[:1].sum())
    kept = values > max(rounding, 0.0)
    values = values[kept]
    # |q_i|^2 / d_i, the energy of the targets along each direction.
    explained = (vectors[:, kept].T @ stats.cross).square().sum(dim=1) / values
    residual = 0.0  # RSS(0). With as many directions as rows, the fit is perfect.
    if len(values) < n:
        residual = max(stats.sq_targets - float(explained.sum()), 0.0)
    # If the rows explain the targets completely, rows beyond the rank are copies and
    # carry no information.
    has_residual = residual > 1e-9 * stats.sq_targets
    n_informative = max(n if has_residual else len(values), 1)
    ridges = values.new_tensor(alphas)[:, None]
    shrunk = ridges / (values + ridges)
    slack = n_informative - len(values) + shrunk.sum(dim=1)  # n - df
    rss = residual + shrunk.square() @ explained
    scores = n_informative * rss / slack.square()
    return torch.where(slack > 0.0, scores, torch.inf).tolist()


def alpha_grid(energy: float) -> list[float]:
    """Return ridges from 1e-6 to 1e2 times `energy`, four per decade.

    Parameters
    ----------
    energy : float
        Mean energy of a centred row.

    Examples
    --------
    >>> from evergrow.head.linalg.ridge_choice import alpha_grid
    >>> len(alpha_grid(1.0)), round(alpha_grid(1.0)[0], 9)
    (33, 1e-06)
    """
    energy = energy if energy > 0.0 else 1.0
    steps = range(_MIN_STEP, _MAX_STEP + 1)
    return [energy * 10.0 ** (step / _STEPS_PER_DECADE) for step in steps]


def choose_by_gcv(stats: RidgeStatistics, energy: float) -> tuple[float, float]:
    """Choose the ridge of ridge regression by generalised cross-validation.

    Parameters
    ----------
    stats : RidgeStatistics
        The statistics.
    energy : float
        Mean energy of a centred row, which sets the grid.

    Returns
    -------
    alpha : float
        Ridge for a classifier: the smallest one whose score is within `GCV_SLACK` of
        the minimum, at most `GCV_REACH` below the minimiser.
    minimiser : float
        Ridge with the smallest score, searched from large to small ridges.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import choose_by_gcv
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> rng = torch.Generator().manual_seed(0)
    >>> H = torch.randn(50, 4, generator=rng, dtype=torch.float64)
    >>> Y = H.sum(dim=1, keepdim=True)
    >>> stats = RidgeStatistics.create(3, 1).update(H[:, :3], Y)
    >>> 0.01 < choose_by_gcv(stats, energy=3.0)[0] < 100.0
    True
    """
    grid = alpha_grid(energy)
    scores = gcv_scores(stats, grid)
    # The minimiser, from large to small ridges, until GCV rises.
    best = len(grid) - 1
    for index in range(len(grid) - 2, -1, -1):
        if scores[index] < scores[best]:
            best = index
        elif scores[index] > (1.0 + GCV_RISE) * scores[best]:
            break
    smallest_alpha = grid[best] / GCV_REACH * (1.0 - 1e-9)
    largest_score = (1.0 + GCV_SLACK) * scores[best]
    # From the minimiser on, ridges get smaller while their scores are as good.
    chosen = best
    while (
        chosen > 0
        and grid[chosen - 1] >= smallest_alpha
        and scores[chosen - 1] <= largest_score
    ):
        chosen -= 1
    return grid[chosen], grid[best]


def choose_ridge(
    geometry: ClassGeometry,
    energy: float,
    start: int | None = None,
    known: SolvedScatter | None = None,
) -> tuple[float, int]:
    """Choose the ridge of ``A = S_w + alpha I`` for a discriminant.

    Parameters
    ----------
    geometry : ClassGeometry
        Means and scatter.
    energy : float
        Mean energy of a centred row, which sets the grid of ridges. It is also the
        ridge if the scatter is unknown, as with one row per class.
    start : int, optional
        Step returned by an earlier search, on fewer rows. The search begins there.
    known : SolvedScatter, optional
        Current solution, with the ridge that the earlier search chose. This ridge is
        kept if it is still within a quarter of a decade of the best one. Ignored
        without `start`.

    Returns
    -------
    alpha : float
        The ridge.
    step : int
        Its step on the grid, in quarters of a decade. 0 is the ridge `energy`.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import choose_ridge
    >>> from evergrow.head.linalg.scatter import ClassGeometry
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> rng = torch.Generator().manual_seed(0)
    >>> codes = torch.arange(60) % 3
    >>> H = torch.randn(60, 5, generator=rng, dtype=torch.float64) + codes[:, None]
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = RidgeStatistics.create(5, 3).update(H, Y)
    >>> choose_ridge(ClassGeometry.of(stats, Y.sum(dim=0)), energy=5.0)[0] > 0
    True
    """
    search = _RidgeSearch(geometry, energy if energy > 0.0 else 1.0)
    within = float(geometry.scatter.diagonal().sum())
    total = float(geometry.stats.gram.diagonal().sum())
    if search.freedom < 1.0 or within <= 1e-10 * total:
        # Each class has one row, or copies of one: the scatter is unknown.
        return search.energy, 0
    minimum = None  # step of the minimum of GCV
    if start is not None:
        if known is not None:
            is_moved = search.move_grid(start, known)
            if is_moved and search.is_near_best(start):
                return known.alpha, start
        bound_step = search.step_at_bound(start)
        if bound_step is not None:
            return search.alpha(bound_step), bound_step
        # `start` is a chosen ridge, which is half a decade below the minimum of GCV.
        start += _HALF_DECADE
        minimum = search.minimum_nearby(start)
    if minimum is None:
        minimum = search.minimum_by_decades(start or 0)
    # Half a decade is the square root of ten of the module docstring.
    step = search.within_leverage(max(minimum - _HALF_DECADE, _MIN_STEP))
    return search.alpha(step), step


class _RidgeSearch:
    """Search for the ridge of a discriminant. Every ridge is evaluated at most once.

    Ridges are given by their steps on the grid of :meth:`alpha`.

    Parameters
    ----------
    geometry : ClassGeometry
        Means and scatter.
    energy : float
        Mean energy of a centred row. Step 0 of the grid is this ridge.

    Attributes
    ----------
    rows : float
        Number of rows n, or the sum of their weights.
    counts : Tensor of shape (C,)
        Diagonal of N: rows per class. Classes without rows are left out.
    freedom : float
        Degrees of freedom of the scatter, ``n - C``.
    means : Tensor of shape (k, C)
        D, class means about the mean of all rows.
    width : int
        Number of columns of the rows.
    signs : Tensor of shape (k, PROBES)
        Random signs, projected to the coordinates of the statistics.
    is_exact : bool
        Whether traces are computed exactly.
    order : float
        Trace of the identity: k, or its estimate.
    """

    def __init__(self, geometry: ClassGeometry, energy: float) -> None:
        self.geometry = geometry
        self.energy = energy
        means = geometry.means
        basis = geometry.stats.basis
        self.rows = float(geometry.counts.sum())
        self.counts = geometry.counts[geometry.counts > 0]
        self.freedom = self.rows - len(self.counts)
        self.means = self._centred(means)
        self.width = len(means) if basis is None else len(basis)
        source = generator(0, "ridge search", self.width)
        bits = torch.randint(0, 2, (self.width, PROBES), generator=source)
        signs = bits.to(means).mul_(2.0).sub_(1.0)
        self.signs = signs if basis is None else basis.T @ signs
        self.is_exact = (
            self.freedom < EXACT_TRACE_MAX_FREEDOM
            and self.width > EXACT_TRACE_MIN_WIDTH
        )
        if self.is_exact:
            self.order = float(len(means))
        else:
            self.order = float(self.signs.square().sum()) / PROBES
        # Mean leverage and GCV score by step, as far as evaluated.
        self._scores: dict[int, tuple[float, float]] = {}
        # S_w in single precision, if that is used.
        self._single: Tensor | None = None
        if len(means) > SINGLE_PRECISION_ABOVE and not self.is_exact:
            self._single = geometry.scatter.to(torch.float32)

    def _centred(self, columns: Tensor) -> Tensor:
        """Subtract the mean over all rows from class columns; drop empty classes."""
        counts = self.geometry.counts
        mean = columns @ counts / max(self.rows, 1.0)
        return columns[:, counts > 0] - mean[:, None]

    # -- the search --------------------------------------------------------------------

    def alpha(self, step: int) -> float:
        """Return the ridge at a step."""
        return float(self.energy * 10.0 ** (step / _STEPS_PER_DECADE))

    def leverage(self, step: int) -> float:
        """Return the mean leverage at a step. It falls as the ridge grows."""
        return self.evaluate(step)[0]

    def gcv(self, step: int) -> float:
        """Return the GCV score at a step."""
        return self.evaluate(step)[1]

    def move_grid(self, step: int, known: SolvedScatter) -> bool:
        """Move the grid so that `step` is the ridge of a solution, if it is close.

        The solution then gives the scores of this step without a factorisation. Must be
        called before any ridge is evaluated.

        Returns
        -------
        bool
            False if the energy of the rows has changed by more than 10 %.
        """
        energy = known.alpha / 10.0 ** (step / _STEPS_PER_DECADE)
        if not 0.9 < energy / self.energy < 1.1:
            return False
        self.energy = energy
        self._scores[step] = self._leverage_and_gcv(known.alpha, known)
        return True

    def is_near_best(self, step: int) -> bool:
        """Return whether a step is within a quarter of a decade of the best one."""
        leverage = self.leverage(step)
        if leverage > MAX_LEVERAGE:
            return False
        below = step - _HALF_DECADE
        if (
            leverage > _NEAR_BOUND * MAX_LEVERAGE
            and self.leverage(below) > MAX_LEVERAGE
        ):
            # The bound excludes smaller ridges. Would GCV prefer them?
            return self.gcv(below) < self.gcv(step)
        # The best step is half a decade below the minimum of GCV.
        above = step + _HALF_DECADE
        return self.gcv(above) <= min(
            self.gcv(step), self.gcv(step + _STEPS_PER_DECADE)
        )

    def step_at_bound(self, start: int) -> int | None:
        """Return the smallest step within the leverage bound, if the bound decides.

        It decides if it lies less than a decade below `start` and GCV still falls
        there. Otherwise returns None.
        """
        if self.leverage(start) < _NEAR_BOUND * MAX_LEVERAGE:
            return None
        for step in range(start, max(start - _STEPS_PER_DECADE, _MIN_STEP), -1):
            if self.leverage(step) > MAX_LEVERAGE:
                return None
            if not self.gcv(step - 1) < self.gcv(step):
                return None
            if self.leverage(step - 1) > MAX_LEVERAGE:
                return step
        return None

    def minimum_nearby(self, start: int) -> int | None:
        """Return the step of a local minimum of GCV within a decade of step `start`.

        None if there is none, or if the leverage bound or the end of the grid is near.
        The caller then has to search the whole grid.
        """
        step = _HALF_DECADE * round(start / _HALF_DECADE)
        for _ in range(2):  # at `start`, then half a decade downhill
            below = step - _HALF_DECADE
            above = step + _HALF_DECADE
            if not _MIN_STEP < step < _MAX_STEP or self.leverage(below) > MAX_LEVERAGE:
                return None
            if self.gcv(step) < min(self.gcv(below), self.gcv(above)):
                return self._parabola_minimum(step)
            step = above if self.gcv(above) < self.gcv(below) else below
        return None

    def minimum_by_decades(self, start: int) -> int:
        """Return the step with the smallest GCV, unless the leverage bound decides.

        If the bound decides, the step may be any one near the bound. Descends in whole
        decades, then refines by half a decade and a parabola. The decades are always
        the same, so that the result hardly depends on `start`.
        """
        step = _STEPS_PER_DECADE * round(start / _STEPS_PER_DECADE)
        step = min(max(step, _MIN_STEP), _MAX_STEP)
        while step < _MAX_STEP and self.leverage(step) > MAX_LEVERAGE:
            step += _STEPS_PER_DECADE
        while step < _MAX_STEP and self.gcv(step + _STEPS_PER_DECADE) < self.gcv(step):
            step += _STEPS_PER_DECADE
        while step > _MIN_STEP and self.gcv(step - _STEPS_PER_DECADE) < self.gcv(step):
            if self.leverage(step - _STEPS_PER_DECADE) > MAX_LEVERAGE:
                return step - _HALF_DECADE  # the bound decides
            step -= _STEPS_PER_DECADE
        if step in (_MIN_STEP, _MAX_STEP):
            return step
        nearby = (step - _HALF_DECADE, step, step + _HALF_DECADE)
        return self._parabola_minimum(min(nearby, key=self.gcv))

    def _parabola_minimum(self, step: int) -> int:
        """Return the minimum of a parabola through log-scores half a decade apart."""
        scores = [self.gcv(step + move) for move in (-_HALF_DECADE, 0, _HALF_DECADE)]
        if not all(map(math.isfinite, scores)):
            return step
        left, middle, right = map(math.log, scores)
        curvature = left - 2.0 * middle + right
        if not curvature > 0.0:
            return step
        return step + round(0.5 * _HALF_DECADE * (left - right) / curvature)

    def within_leverage(self, step: int) -> int:
        """Return `step`, or the first larger step within the leverage bound."""
        # A smaller ridge within the bound answers without another evaluation.
        if any(
            known <= step and leverage <= MAX_LEVERAGE
            for known, (leverage, _) in self._scores.items()
        ):
            return step
        below = step
        while step < _MAX_STEP and self.leverage(step) > MAX_LEVERAGE:
            below = step
            step = min(step + _HALF_DECADE, _MAX_STEP)
        while step - below > 1:
            middle = (step + below) // 2
            if self.leverage(middle) <= MAX_LEVERAGE:
                step = middle
            else:
                below = middle
        return step

    # -- one ridge ---------------------------------------------------------------------

    def evaluate(self, step: int) -> tuple[float, float]:
        """Return mean leverage and GCV score at a step, computed on first use."""
        if step not in self._scores:
            self._scores[step] = self._leverage_and_gcv(self.alpha(step))
        return self._scores[step]

    def _leverage_and_gcv(
        self, alpha: float, known: SolvedScatter | None = None
    ) -> tuple[float, float]:
        """Return mean leverage and GCV score of a ridge.

        The leverage is that of rows about their class means, between 0 and 1. GCV is
        that of centred ridge regression on one-hot targets. It is infinite if the fit
        is perfect up to rounding.

        Parameters
        ----------
        alpha : float
            The ridge.
        known : SolvedScatter or None
            Solution for this ridge, if available.
        """
        # Then factoring T + alpha I is cheaper than C x C matrices.
        use_total = 2 * len(self.counts) > self.width
        if known is None:
            means = self.means[:, :0] if use_total else self.means
            solved, trace = self._solve(self._factor(alpha), means)
        else:
            solved = self._centred(known.solve_means())
            trace = self._trace(known, known.solve(self.signs))
        if use_total:
            explained, total_trace = self._regress_on_total(alpha)
        else:
            explained, total_trace = self._regress_on_means(alpha, solved, trace)
        targets = float(self.counts.sum())
        targets -= float(self.counts.square().sum()) / self.rows
        rss = targets - explained
        slack = self.rows - 1.0 - (self.order - alpha * total_trace)  # n - 1 - df
        # Nearly perfect fits leave only rounding errors.
        score = math.inf
        if rss > 1e-10 * targets and slack > 1e-8 * self.rows:
            score = self.rows * rss / slack**2
        leverage = (self.order - alpha * trace) / self.freedom
        return min(max(leverage, 0.0), 1.0), score

    def _regress_on_means(
        self, alpha: float, solved: Tensor, trace: float
    ) -> tuple[float, float]:
        """Return the explained energy and ``tr (T + alpha I)^-1``, by C x C matrices.

        The explained energy is ``<W, Q> + alpha |W|^2`` with Q = D N. Since
        ``S^-1 = N^-1 + D^T E``, the first term, the trace of ``S D^T E N``, is
        ``tr N - tr S``.

        Parameters
        ----------
        alpha : float
            The ridge.
        solved : Tensor of shape (k, C)
            ``E = A^-1 D``.
        trace : float
            ``tr A^-1``.
        """
        counts = self.counts
        inverse_s = self.means.T @ solved
        inverse_s = 0.5 * (inverse_s + inverse_s.T)
        inverse_s.diagonal().add_(counts.reciprocal())
        identity = torch.eye(len(counts)).to(inverse_s)
        both = torch.linalg.solve(
            inverse_s, torch.cat([identity, solved.T @ solved], dim=1)
        )
        s = both[:, : len(counts)]
        s_squares = both[:, len(counts) :]  # S E^T E
        explained = float(counts.sum()) - float(s.diagonal().sum())
        explained += alpha * float((s_squares * s.T).sum())
        return explained, trace - float(s_squares.diagonal().sum())

    def _regress_on_total(self, alpha: float) -> tuple[float, float]:
        """Return the same as :meth:`_regress_on_means`, by factoring T + alpha I."""
        total, cross = self._total
        weights, trace = self._solve(safe_cholesky(total, shift=alpha), cross)
        explained = float((weights * cross).sum())
        explained += alpha * float(weights.square().sum())
        return explained, trace

    @cached_property
    def _total(self) -> tuple[Tensor, Tensor]:
        """T (k, k), and a matrix R (k, m) with ``R R^T = Q Q^T`` and ``m <= k``."""
        cross = self.means * self.counts
        total = torch.addmm(self.geometry.scatter, cross, self.means.T)
        if cross.shape[1] > len(cross):
            cross = torch.linalg.qr(cross.T, mode="r").R.T
        return total, cross

    def _factor(self, alpha: float) -> CholeskyFactor:
        """Factor ``S_w + alpha I``, in single precision for large orders."""
        if self._single is not None:
            factor = safe_cholesky(self._single, shift=alpha)
            if factor.jitter == 0.0:
                return factor
        return safe_cholesky(self.geometry.scatter, shift=alpha)

    def _solve(self, factor: CholeskyFactor, rhs: Tensor) -> tuple[Tensor, float]:
        """Solve for `rhs` (k, m). Return the solution and the trace of the inverse.

        The random signs are solved together with `rhs`.
        """
        both = torch.cat([rhs, self.signs], dim=1).to(factor.panels[0].dtype)
        solved, probes = torch.split(
            factor.solve(both).to(rhs), [rhs.shape[1], PROBES], dim=1
        )
        return solved, self._trace(factor, probes)

    def _trace(self, solver: CholeskyFactor | SolvedScatter, probes: Tensor) -> float:
        """Return the trace of an inverse from solved signs (k, PROBES), or exactly."""
        if self.is_exact:
            return solver.trace_inverse
        return float((self.signs * probes).sum()) / PROBES
