"""Choosing the ridge from the statistics: for ridge regression, and for the discriminant of class means.

**Ridge regression.** With ``G = U diag(d) U^T`` and ``q = U^T Q``, for any ``a > 0``

    W(a)   = U diag(1 / (d + a)) q df(a)  = sum_i d_i / (d_i + a)
    (trace of the hat matrix) RSS(a) = RSS(0) + sum_i |q_i|^2 / d_i (a / (d_i + a))^2
    GCV(a) = n RSS(a) / (n - df(a))^2          n - df(a) = n - rank + sum_i a / (d_i +
    a)

The last two are sums of positive terms. The textbook forms subtract nearly equal
numbers when there are fewer rows than features and the fit is nearly perfect, and GCV
then falls for the smallest ridge.

**Discriminant.** Two bounds decide: the minimiser of generalised cross-validation on
the centred total scatter, taken half a decade down because shrinkage of the means comes
on top of it, and the ridge at which the mean leverage of a row is a quarter. Both
follow from one factorisation of ``A = S_w + alpha I``: with counts N, means D about the
common mean and ``E = A^-1 D``

    T + alpha I = A + D N D^T        W = (T + alpha I)^-1 D N = E (N^-1 + D^T E)^-1 =: E
    S tr (T + alpha I)^-1 = tr A^-1 - tr(S E^T E)

Traces are estimated with the same random signs for every ridge, so that their error
does not move the minimum. Where statistics are kept in coordinates of their own, which
depend on the order in which rows came, they are worked out: the choice must not depend
on that order, and there are no more coordinates than rows.
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
"""Mean leverage that the ridge keeps to. Chosen on training rows (0.25 to 0.33 do alike): beyond it the spread of rows
outside the sample is underestimated, and generalised cross-validation itself fails
where rows are few."""

PROBES = 32
"""Random vectors that tell the trace of an inverse. Those of all coordinates are projected where statistics are kept in
fewer, so that a ridge does not depend on the form that the same rows are kept in."""
EXACT_BELOW = 512
EXACT_ABOVE = 1024
"""Degrees of freedom below which the trace is exact instead, on layers wider than that: an error of the estimate would
be much of so few. Such rows are kept in few coordinates, where it costs little."""
SINGLE_ABOVE = 1200
"""Order above which scores are computed in single precision, in half of the time: they choose among quarters of a
decade. A matrix that single precision cannot factor without help is factored in double
precision."""
_PER_DECADE = 4
_LOWEST = -6 * _PER_DECADE
_HIGHEST = 2 * _PER_DECADE


def gcv_scores(stats: RidgeStatistics, alphas: Sequence[float]) -> list[float]:
    """Return the generalised cross-validation score of each ridge; infinite where nothing is left to validate.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.ridge_choice import gcv_scores
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> state = RidgeStatistics.create(3, 1).update(H[:, :3], H.sum(dim=1, keepdim=True))
    >>> small, large = gcv_scores(state, (1.0, 1000.0))
    >>> small < large
    True
    """
    n = stats.count
    k = len(stats.gram)
    values, vectors = symmetric_eigh(stats.gram)
    values = values.flip(0)[:n]
    vectors = vectors.flip(1)[:, :n]
    kept = values > max(
        k * float(torch.finfo(values.dtype).eps) * float(values[:1].sum()), 0.0
    )  # the first is largest
    values = values[kept]
    along = (vectors[:, kept].T @ stats.cross).square().sum(dim=1) / values
    outside = 0.0
    if len(values) < n:
        outside = max(stats.sq_targets - float(along.sum()), 0.0)
    # Where the rows explain the targets entirely, rows beyond the rank are repetitions
    # and count for nothing.
    rows = max(len(values) if outside <= 1e-9 * stats.sq_targets else n, 1)
    ridges = values.new_tensor(alphas)[:, None]
    shrunk = ridges / (values + ridges)
    slack = rows - len(values) + shrunk.sum(dim=1)
    scores = rows * (outside + shrunk.square() @ along) / slack.square()
    return torch.where(slack > 0.0, scores, torch.inf).tolist()


GCV_SLACK = 0.01
"""GCV measures squared error, which prefers a larger ridge than the fewest wrong answers do; the smallest
alpha within this share of the minimum is, measured on real features, nearer to the most
accurate one."""

GCV_RISE = 0.05
"""Coming from large ridges, the search ends once the score has risen by this share above its minimum. Samples that
occur twice make GCV fall again, without end, at ridges far too small: leaving one of
them out is no test."""

GCV_REACH = 10.0**0.5
"""How far below the minimiser that choice may lie: where GCV is flat, far smaller ridges gain nothing."""


def alpha_grid(energy: float) -> list[float]:
    """Return the ridges from 1e-6 to 1e2 times ``energy``, the mean energy of a centred row.

    Examples
    --------
    >>> from evergrow.head.linalg.ridge_choice import alpha_grid
    >>> len(alpha_grid(1.0)), round(alpha_grid(1.0)[0], 9)
    (33, 1e-06)
    """
    energy = energy if energy > 0.0 else 1.0
    return [
        energy * 10.0 ** (step / _PER_DECADE) for step in range(_LOWEST, _HIGHEST + 1)
    ]


def choose_by_gcv(stats: RidgeStatistics, energy: float) -> tuple[float, float]:
    """Choose the ridge of ridge regression by generalised cross-validation.

    Returns the ridge for a classifier, and the one with the smallest score, which is a
    little larger.

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
    >>> 0.01 < choose_by_gcv(state, energy=3.0)[0] < 100.0
    True
    """
    grid = alpha_grid(energy)
    scores = gcv_scores(stats, grid)
    best = len(grid) - 1
    for place in range(len(grid) - 2, -1, -1):
        if scores[place] < scores[best]:
            best = place
        elif scores[place] > (1.0 + GCV_RISE) * scores[best]:
            break
    floor = grid[best] / GCV_REACH * (1.0 - 1e-9)
    lowest = best
    while (
        lowest > 0
        and grid[lowest - 1] >= floor
        and scores[lowest - 1] <= (1.0 + GCV_SLACK) * scores[best]
    ):
        lowest -= 1
    return grid[lowest], grid[best]


def choose_ridge(
    geometry: ClassGeometry,
    energy: float,
    start: int | None = None,
    known: SolvedScatter | None = None,
) -> tuple[float, int]:
    """Choose the ridge of ``S_w + alpha I``.

    Returns the ridge, and where the search ended on its grid (quarters of a decade of a
    row's energy), to begin there next time.

    Parameters
    ----------
    geometry : ClassGeometry
        Means and scatter.
    energy : float
        Mean energy of a centred row, which sets the scale.
    start : int, optional
        Where an earlier search ended.
    known : SolvedScatter, optional
        Solved at the ridge chosen then, which stays while the best is no more than a
        quarter of a decade away.

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
    search = _RidgeSearch(geometry, energy if energy > 0.0 else 1.0)
    within = float(geometry.scatter.diagonal().sum())
    if search.free < 1.0 or within <= 1e-10 * float(
        geometry.stats.gram.diagonal().sum()
    ):
        return (
            search.energy,
            0,
        )  # one row of each class, or copies: nothing is known of the spread within classes
    if start is not None and known is not None and search.keeps(start, known):
        return known.alpha, start
    if start is not None and (step := search.at_bound(start)) is not None:
        return search.alpha(step), step
    # The minimiser that an earlier search found lies half a decade above the ridge.
    if start is None:
        best = search.minimum(0)
    else:
        best = search.minimum(start + _PER_DECADE // 2, is_near=True)
    step = search.within_leverage(max(best - _PER_DECADE // 2, _LOWEST))
    return search.alpha(step), step


class _RidgeSearch:
    """Evaluates ridges of a grid, each once."""

    def __init__(self, geometry: ClassGeometry, energy: float) -> None:
        self.geometry = geometry
        self.energy = energy
        means = geometry.means
        basis = geometry.stats.basis
        self.rows = float(geometry.counts.sum())
        self.counts = geometry.counts[geometry.counts > 0]
        self.free = self.rows - len(self.counts)
        self.means = self._centred(means)
        if basis is None:
            self.width = len(means)
        else:
            self.width = len(basis)
        self.is_exact = self.free < EXACT_BELOW and self.width > EXACT_ABOVE
        source = generator(0, "ridge search", self.width)
        signs = (
            torch.randint(0, 2, (self.width, PROBES), generator=source)
            .to(means)
            .mul_(2.0)
            .sub_(1.0)
        )
        self.signs = signs if basis is None else basis.T @ signs
        if self.is_exact:
            self.order = float(len(means))
        else:
            self.order = float(self.signs.square().sum()) / PROBES
        self._tried: dict[int, tuple[float, float]] = {}
        is_large = len(means) > SINGLE_ABOVE and not self.is_exact
        if is_large:
            self._single = geometry.scatter.to(torch.float32)
        else:
            self._single = None

    def _centred(self, columns: Tensor) -> Tensor:
        """Return columns (k, C) of the classes that have rows, less the mean of all rows."""
        counts = self.geometry.counts
        return (
            columns[:, counts > 0] - (columns @ counts / max(self.rows, 1.0))[:, None]
        )

    def alpha(self, step: int) -> float:
        return float(self.energy * 10.0 ** (step / _PER_DECADE))

    def leverage(self, step: int) -> float:
        return self.judge(step)[0]

    def gcv(self, step: int) -> float:
        return self.judge(step)[1]

    def keeps(self, start: int, known: SolvedScatter) -> bool:
        """Return whether the ridge of a solution is within a quarter of a decade of the best: no more is judged."""
        energy = known.alpha / 10.0 ** (start / _PER_DECADE)
        half = _PER_DECADE // 2
        if not 0.9 < energy / self.energy < 1.1:
            return False
        self.energy = energy  # the grid goes through that ridge
        self._tried[start] = self._judged(known.alpha, known)
        if self.leverage(start) > MAX_LEVERAGE:
            return False
        if (
            self.leverage(start)
            > 0.65 * MAX_LEVERAGE
            < 0.65 * self.leverage(start - half)
        ):
            return self.gcv(start - half) < self.gcv(start)
        return self.gcv(start + half) <= min(
            self.gcv(start), self.gcv(start + 2 * half)
        )

    def at_bound(self, start: int) -> int | None:
        """Return the step at which leverage meets its bound while the score still falls; None if not just below one."""
        if self.leverage(start) < 0.65 * MAX_LEVERAGE:
            return None
        for step in range(start, max(start - _PER_DECADE, _LOWEST), -1):
            if self.leverage(step) > MAX_LEVERAGE or not self.gcv(step - 1) < self.gcv(
                step
            ):
                return None
            if self.leverage(step - 1) > MAX_LEVERAGE:
                return step
        return None

    def minimum(self, start: int, *, is_near: bool = False) -> int:
        """Return the step of smallest cross-validation, or one near the bound of leverage where that decides.

        Whole decades are tried, always the same ones, then halves, and a parabola
        through the three lowest gives the step between: the choice then depends on the
        data alone and hardly on where the search began. Near the minimum halves are
        tried at once: one that is lower than both of its neighbours is what the search
        would end at.
        """
        half = _PER_DECADE // 2
        near = half * round(start / half)
        for _ in range(2 if is_near else 0):
            if (
                not _LOWEST < near < _HIGHEST
                or self.leverage(near - half) > MAX_LEVERAGE
            ):
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
                return (
                    place - _PER_DECADE // 2
                )  # the bound decides: what lies below it need not be known
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
        if any(
            known <= step and found[0] <= MAX_LEVERAGE
            for known, found in self._tried.items()
        ):
            return step  # leverage falls as the ridge grows
        below = step
        while step < _HIGHEST and self.leverage(step) > MAX_LEVERAGE:
            below = step
            step = min(step + _PER_DECADE // 2, _HIGHEST)
        while step - below > 1:
            middle = (step + below) // 2
            if self.leverage(middle) <= MAX_LEVERAGE:
                step = middle
            else:
                below = middle
        return step

    def judge(self, step: int) -> tuple[float, float]:
        """Return the mean leverage at a step, and the score of centred ridge regression on one-hot targets."""
        if step not in self._tried:
            self._tried[step] = self._judged(self.alpha(step))
        return self._tried[step]

    def _judged(
        self, alpha: float, known: SolvedScatter | None = None
    ) -> tuple[float, float]:
        counts, means, are_many = (
            self.counts,
            self.means,
            2 * len(self.counts) > self.width,
        )
        if known is None:
            solved, trace = self._solve(
                self._factor(alpha), means[:, :0] if are_many else means
            )
        else:
            solved = self._centred(known.solve_means())
            trace = self._trace(known, known.solve(self.signs))
        if are_many:
            whole, cross = self._total
            weights, total = self._solve(safe_cholesky(whole, shift=alpha), cross)
            explained = float((weights * cross).sum()) + alpha * float(
                weights.square().sum()
            )
        else:
            inner = means.T @ solved
            inner = 0.5 * (inner + inner.T)
            inner.diagonal().add_(counts.reciprocal())
            gain = torch.linalg.solve(
                inner,
                torch.cat([torch.eye(len(counts)).to(inner), solved.T @ solved], dim=1),
            )
            mixing = gain[:, : len(counts)]
            shrunk = gain[:, len(counts) :]
            # <W, Q> = tr(S D^T E N) = tr(N) - tr(S), since S^-1 = N^-1 + D^T E.
            explained = float(counts.sum()) - float(mixing.diagonal().sum())
            explained += alpha * float((shrunk * mixing.T).sum())
            total = trace - float(shrunk.diagonal().sum())
        targets = float(counts.sum()) - float(counts.square().sum()) / self.rows
        rss = targets - explained
        slack = self.rows - 1.0 - (self.order - alpha * total)
        # Where the fit is so close to perfect that both are rounding there is no score.
        is_known = rss > 1e-10 * targets and slack > 1e-8 * self.rows
        score = self.rows * rss / slack**2 if is_known else math.inf
        leverage = min(max((self.order - alpha * trace) / self.free, 0.0), 1.0)
        return leverage, score

    def _factor(self, alpha: float) -> CholeskyFactor:
        """Factor ``S_w + alpha I``, in single precision where that is enough."""
        if self._single is not None:
            factor = safe_cholesky(self._single, shift=alpha)
            if factor.jitter == 0.0:
                return factor
        return safe_cholesky(self.geometry.scatter, shift=alpha)

    @cached_property
    def _total(self) -> tuple[Tensor, Tensor]:
        """T, and a matrix R with ``R R^T = Q Q^T`` for the targets' products Q, which has no more columns than rows."""
        cross = self.means * self.counts
        total = torch.addmm(self.geometry.scatter, cross, self.means.T)
        return total, torch.linalg.qr(cross.T, mode="r").R.T if cross.shape[1] > len(
            cross
        ) else cross

    def _solve(self, factor: CholeskyFactor, rhs: Tensor) -> tuple[Tensor, float]:
        """Return a solution, and the trace of the inverse, which is estimated from the signs where they serve."""
        both = torch.cat([rhs, self.signs], dim=1).to(factor.panels[0].dtype)
        solved, probes = torch.split(
            factor.solve(both).to(rhs), [rhs.shape[1], PROBES], dim=1
        )
        return solved, self._trace(factor, probes)

    def _trace(self, solver: CholeskyFactor | SolvedScatter, probes: Tensor) -> float:
        if self.is_exact:
            return solver.trace_inverse
        return float((self.signs * probes).sum()) / PROBES
