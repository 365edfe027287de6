"""One eigendecomposition for every ridge: weights, fit, degrees of freedom and scores along a path of alphas.

With ``G = U diag(d) U^T`` and ``q = U^T Q``, for any ``a > 0``

    W(a)   = U diag(1 / (d + a)) q
    df(a)  = sum_i d_i / (d_i + a)                                     (trace of the hat matrix)
    RSS(a) = RSS(0) + sum_i |q_i|^2 / d_i (a / (d_i + a))^2
    GCV(a) = n RSS(a) / (n - df(a))^2          n - df(a) = n - rank + sum_i a / (d_i + a)

The last two are sums of positive terms. The textbook forms subtract nearly equal numbers when there are fewer rows
than features and the fit is nearly perfect, and GCV then falls for the smallest ridge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.head.linalg.cholesky import safe_cholesky
from evergrow.head.linalg.eigen import symmetric_eigh
from evergrow.head.linalg.state import ReducedStatistics, check_alpha

PAPER_ALPHAS = (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)
"""The grid from which the paper chooses its ridge."""


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
    stats : ReducedStatistics
        What was decomposed.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import DenseState, Spectrum
    >>> H = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> state = DenseState.create(3, 1).update(H, H @ torch.ones(3, 1, dtype=torch.float64))
    >>> path = Spectrum.of(state.reduced())
    >>> bool(torch.allclose(path.weights(0.5), state.solve(0.5).weights))
    True
    """

    values: Tensor
    vectors: Tensor
    cross: Tensor
    stats: ReducedStatistics

    @classmethod
    def of(cls, stats: ReducedStatistics) -> Spectrum:
        """Decompose statistics; the one expensive step."""
        values, vectors = symmetric_eigh(stats.gram)
        return cls(values.clamp_min(0.0), vectors, vectors.T @ stats.cross, stats)

    def weights(self, alpha: float) -> Tensor:
        """Return the ridge weights (L, C)."""
        scaled = self.cross / (self.values + check_alpha(alpha))[:, None]
        return self.stats.lift(self.vectors @ scaled)

    @cached_property
    def _row_space(self) -> tuple[Tensor, Tensor, float]:
        """Nonzero eigenvalues, the squared targets along each, and the squared targets along none."""
        n, k = self.stats.count, len(self.values)
        values, cross = self.values.flip(0)[: min(n, k)], self.cross.flip(0)[: min(n, k)]
        eps = float(torch.finfo(values.dtype).eps)
        kept = values > k * eps * float(values.max()) if len(values) else values > 0
        values = values[kept]
        along = cross[kept].square().sum(dim=1) / values
        outside = max(self.stats.sq_targets - float(along.sum()), 0.0) if len(values) < n else 0.0
        return values, along, outside

    def rss(self, alpha: float) -> float:
        """Return the residual sum of squares on the rows seen."""
        values, along, outside = self._row_space
        alpha = check_alpha(alpha)
        return outside + float((along * (alpha / (values + alpha)).square()).sum())

    def dof(self, alpha: float) -> float:
        """Return the effective degrees of freedom, also called the effective rank at ``alpha``."""
        return float((self.values / (self.values + check_alpha(alpha))).sum())

    def gcv(self, alpha: float) -> float:
        """Return the generalised cross-validation score; infinite where nothing is left to validate."""
        values, _, outside = self._row_space
        # Where the rows explain the targets entirely, rows beyond the rank are repetitions and count for nothing.
        interpolated = outside <= 1e-9 * self.stats.sq_targets
        n = max(len(values) if interpolated else self.stats.count, 1)
        slack = n - len(values) + float((alpha / (values + check_alpha(alpha))).sum())
        return n * self.rss(alpha) / slack**2 if slack > 0.0 else float("inf")

    def condition_number(self, alpha: float) -> float:
        """Return the condition number of ``G + alpha I`` in the full feature space."""
        full = self.stats.basis is None or self.stats.basis.shape[0] == self.values.shape[0]
        smallest = float(self.values.min()) if full else 0.0
        return (float(self.values.max()) + alpha) / (smallest + check_alpha(alpha))


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
    >>> from evergrow.head.linalg import alpha_grid
    >>> len(alpha_grid(1.0)), round(alpha_grid(1.0)[0], 9)
    (33, 1e-06)
    """
    energy = energy if energy > 0.0 else 1.0
    return [energy * 10.0 ** (-6.0 + step / per_decade) for step in range(8 * per_decade + 1)]


def choose_by_gcv(spectrum: Spectrum, grid: Sequence[float]) -> AlphaChoice:
    """Choose the ridge by generalised cross-validation on the accumulated statistics.

    Parameters
    ----------
    spectrum : Spectrum
        The decomposed statistics.
    grid : sequence of float
        Candidates, ascending.
    """
    tried = {alpha: spectrum.gcv(alpha) for alpha in grid}
    place = _first_minimum(range(len(grid) - 1, -1, -1), lambda index: tried[grid[index]])
    bar, floor = tried[grid[place]] * (1.0 + GCV_SLACK), grid[place] / GCV_REACH * (1.0 - 1e-9)
    lowest = place
    while lowest > 0 and grid[lowest - 1] >= floor and tried[grid[lowest - 1]] <= bar:
        lowest -= 1
    return AlphaChoice(grid[lowest], grid[place], tried)


def choose_by_cholesky(
    stats: ReducedStatistics, grid: Sequence[float], start: float | None = None, *, reach: float = GCV_REACH
) -> AlphaChoice:
    """Choose the ridge by GCV without an eigendecomposition, walking downhill on the grid.

    Parameters
    ----------
    stats : ReducedStatistics
        The statistics.
    grid : sequence of float
        Candidates, ascending.
    start : float, optional
        Where to begin, for example the last choice; by default decades are looked at first, from above.
    reach : float
        How far below the minimiser to look for a smaller ridge as good; 1 spares the search.
    """
    if not grid:
        raise ParameterError("the grid of alphas must hold at least one number, got none")
    tried: dict[float, float] = {}

    def score(index: int) -> float:
        alpha = grid[index]
        if alpha not in tried:
            tried[alpha] = gcv_by_cholesky(stats, alpha)
        return tried[alpha]

    if start is None:
        # From a decade below the top: a minimum above it, of features that tell nothing, is walked up to.
        place = _first_minimum(range(max(len(grid) - 5, 0), -1, -4), score)
    else:
        place = min(range(len(grid)), key=lambda index: abs(grid[index] / start - 1.0))
    while True:
        around = [index for index in (place - 1, place, place + 1) if 0 <= index < len(grid)]
        best = min(around, key=score)
        if best == place:
            break
        place = best
    floor = grid[place] / reach * (1.0 - 1e-9)
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
    if best < 0:
        raise ParameterError("the grid of alphas must hold at least one number, got none")
    return best


def choose_by_holdout(spectrum: Spectrum, H: Tensor, Y: Tensor, grid: Sequence[float]) -> AlphaChoice:
    """Choose the ridge with the fewest errors on held-out rows; the squared error breaks ties.

    Parameters
    ----------
    spectrum : Spectrum
        Statistics of the training rows.
    H : Tensor of shape (n, L)
        Held-out rows.
    Y : Tensor of shape (n, C)
        Their one-hot targets.
    grid : sequence of float
        Candidates.
    """
    rows = spectrum.stats.project(H) @ spectrum.vectors
    truth = Y.argmax(dim=1)
    scale = float(Y.square().sum()) + 1.0
    tried = {}
    for alpha in grid:
        fitted = (rows / (spectrum.values + check_alpha(alpha))) @ spectrum.cross
        errors = float((fitted.argmax(dim=1) != truth).double().mean())
        tried[alpha] = errors + 1e-6 * float((fitted - Y).square().sum()) / scale
    if not tried:
        raise ParameterError("the grid of alphas must hold at least one number, got none")
    best = min(tried, key=tried.__getitem__)
    return AlphaChoice(best, best, tried)


def gcv_by_cholesky(stats: ReducedStatistics, alpha: float) -> float:
    """Return the GCV score of one ridge without an eigendecomposition.

    One factorisation and one triangular inverse, ``2 k^3 / 3`` operations, against about ``9 k^3``: the way to
    re-choose alpha among a few neighbours when k is large.
    """
    alpha = check_alpha(alpha)
    factor = safe_cholesky(stats.gram, shift=alpha)
    weights = factor.solve(stats.cross)
    # RSS = |Y|^2 - <W, Q> - alpha |W|^2, from (G + alpha I) W = Q.
    explained = float((weights * stats.cross).sum()) + alpha * float(weights.square().sum())
    rss = stats.sq_targets - explained
    n = max(stats.count, 1)
    slack = n - stats.gram.shape[0] + alpha * factor.trace_inverse()
    # Both are differences of nearly equal numbers where the fit is nearly perfect: there, rather no score.
    if rss <= 1e-10 * stats.sq_targets or slack <= 1e-8 * n:
        return float("inf")
    return n * rss / slack**2
