"""Choosing the ridge of the discriminant in a handful of factorisations.

Two bounds decide: the minimiser of generalised cross-validation on the centred total scatter, taken half a decade down
because shrinkage of the means comes on top of it, and the ridge at which the mean leverage of a row is a quarter. Both
follow from one factorisation of ``A = S_w + alpha I``: with counts N, means D about the common mean and ``E = A^-1 D``

    T + alpha I = A + D N D^T        W = (T + alpha I)^-1 D N = E (N^-1 + D^T E)^-1 =: E S
    tr (T + alpha I)^-1 = tr A^-1 - tr(S E^T E)

Traces are estimated with the same random signs for every ridge, so that their error does not move the minimum. Where
statistics are kept in coordinates of their own, which depend on the order in which rows came, they are worked out: the
choice must not depend on that order, and there are no more coordinates than rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evergrow.core.seeding import generator
from evergrow.head.linalg.cholesky import CholeskyFactor, safe_cholesky
from evergrow.head.linalg.discriminant import ClassGeometry

MAX_LEVERAGE = 0.25
"""Mean leverage that the ridge keeps to. Chosen on training rows (0.25 to 0.33 do alike): beyond it the spread of rows
outside the sample is underestimated, and generalised cross-validation itself fails where rows are few."""

BELOW_GCV = 10.0**0.5
"""How far below the minimiser of cross-validation the ridge lies; on training rows of four sets, half a decade."""

PROBES = 32
"""Random vectors that tell the trace of an inverse. Those of all coordinates are projected where statistics are kept in
fewer, so that a ridge does not depend on the form that the same rows are kept in."""
EXACT_BELOW, EXACT_ABOVE = 512, 1024
"""Degrees of freedom below which the trace is exact instead, on layers wider than that: an error of the estimate would
be much of so few. Such rows are kept in few coordinates, where it costs little."""
_PER_DECADE = 4
_LOWEST, _HIGHEST = -6 * _PER_DECADE, 2 * _PER_DECADE


@dataclass(frozen=True)
class RidgeChoice:
    """A ridge and how it came about.

    Parameters
    ----------
    alpha : float
        The ridge.
    step : int
        Where the search ended on the grid, to start from next time: quarters of a decade of a row's energy.
    reason : {"gcv", "leverage", "degenerate"}
        What decided.
    factorisations : int
        How many it took.
    """

    alpha: float
    step: int
    reason: str
    factorisations: int


def choose_ridge(geometry: ClassGeometry, energy: float, start: int | None = None) -> RidgeChoice:
    """Choose the ridge of ``S_w + alpha I``.

    Parameters
    ----------
    geometry : ClassGeometry
        Means and scatter.
    energy : float
        Mean energy of a centred row, which sets the scale.
    start : int, optional
        ``RidgeChoice.step`` of an earlier choice, to begin there.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg import ClassGeometry, DenseState, choose_ridge
    >>> source = torch.Generator().manual_seed(0)
    >>> codes = torch.arange(60) % 3
    >>> H = torch.randn(60, 5, generator=source, dtype=torch.float64) + codes[:, None]
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = DenseState.create(5, 3).update(H, Y).reduced()
    >>> choose_ridge(ClassGeometry.of(stats, Y.sum(dim=0)), energy=5.0).alpha > 0
    True
    """
    search = _Search(geometry, energy if energy > 0.0 else 1.0)
    if search.is_degenerate():
        return RidgeChoice(search.energy, 0, "degenerate", 0)
    best = search.minimum(0 if start is None else start)
    wanted = max(best - _PER_DECADE // 2, _LOWEST)
    step = search.within_leverage(wanted)
    return RidgeChoice(search.alpha(step), step, "gcv" if step == wanted else "leverage", len(search.tried))


@dataclass
class _Search:
    """Evaluates ridges of a grid, each once."""

    geometry: ClassGeometry
    energy: float
    tried: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts, means = self.geometry.counts, self.geometry.means
        self.rows = float(counts.sum())
        self.free = self.rows - float((counts > 0).sum())
        self.centred = means - (means @ counts / max(self.rows, 1.0))[:, None]
        basis = self.geometry.stats.basis
        self.width = means.shape[0] if basis is None else basis.shape[0]
        self.is_exact = self.free < EXACT_BELOW and self.width > EXACT_ABOVE
        source = generator(0, "ridge search", self.width)
        signs = torch.randint(0, 2, (self.width, PROBES), generator=source).to(means)
        signs = signs.mul_(2.0).sub_(1.0)
        self.signs = signs if basis is None else basis.T @ signs
        self.order = float(means.shape[0]) if self.is_exact else float(self.signs.square().sum()) / PROBES

    def alpha(self, step: int) -> float:
        return float(self.energy * 10.0 ** (step / _PER_DECADE))

    def is_degenerate(self) -> bool:
        """Whether rows tell nothing of the spread within classes: one row each, or copies."""
        within = float(self.geometry.scatter.diagonal().sum())
        return self.free < 1.0 or within <= 1e-10 * float(self.geometry.stats.gram.diagonal().sum())

    def leverage(self, step: int) -> float:
        return self._at(step)[0]

    def gcv(self, step: int) -> float:
        return self._at(step)[1]

    def minimum(self, start: int) -> int:
        """Return the step of smallest cross-validation, or one near the bound of leverage where that decides.

        Whole decades are tried, always the same ones, then halves, and a parabola through the three lowest gives the
        step between: the choice then depends on the data alone and hardly on where the search began.
        """
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
        half = _PER_DECADE // 2
        place = min((place - half, place, place + half), key=self.gcv)
        scores = [self.gcv(place + move) for move in (-half, 0, half)]
        if not all(map(math.isfinite, scores)):
            return place
        left, middle, right = map(math.log, scores)
        bend = left - 2.0 * middle + right
        return place + (round(0.5 * half * (left - right) / bend) if bend > 0.0 else 0)

    def within_leverage(self, step: int) -> int:
        """Return the step, or the first one above it whose leverage is within bounds."""
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

    def _at(self, step: int) -> tuple[float, float]:
        if step not in self.tried:
            self.tried[step] = self._evaluate(self.alpha(step))
        return self.tried[step]

    def _evaluate(self, alpha: float) -> tuple[float, float]:
        """Return the mean leverage and the score of cross-validation at a ridge."""
        factor = self.geometry.factor(alpha)
        solved = factor.solve(torch.cat([self.centred, self.signs], dim=1))
        means, probes = solved[:, : self.centred.shape[1]], solved[:, self.centred.shape[1] :]
        trace = self._trace(factor, probes)
        leverage = min(max((self.order - alpha * trace) / self.free, 0.0), 1.0)
        return leverage, self._score(alpha, means, trace)

    def _score(self, alpha: float, solved: Tensor, trace: float) -> float:
        """Return ``n RSS / (n - df)^2`` of centred ridge regression on one-hot targets."""
        counts = self.geometry.counts
        kept = counts > 0
        counts, means, solved = counts[kept], self.centred[:, kept], solved[:, kept]
        if 2 * len(counts) > self.width:
            return self._score_of_many(alpha, counts, means)
        inner = means.T @ solved
        inner = 0.5 * (inner + inner.T)
        inner.diagonal().add_(counts.reciprocal())
        squares = solved.T @ solved
        gain = torch.linalg.solve(inner, torch.cat([torch.eye(len(counts)).to(inner), squares], dim=1))
        mixing, shrunk = gain[:, : len(counts)], gain[:, len(counts) :]
        # <W, Q> = tr(S D^T E N) = tr(N) - tr(S), since S^-1 = N^-1 + D^T E.
        explained = float(counts.sum()) - float(mixing.diagonal().sum())
        norm = float((shrunk * mixing.T).sum())
        freedom = self.order - alpha * (trace - float(shrunk.diagonal().sum()))
        return self._ratio(counts, explained + alpha * norm, freedom)

    def _score_of_many(self, alpha: float, counts: Tensor, means: Tensor) -> float:
        """Return the same by factoring the total scatter, which is cheaper where there are many classes."""
        cross = means * counts
        factor = safe_cholesky(torch.addmm(self.geometry.scatter, cross, means.T), shift=alpha)
        solved = factor.solve(torch.cat([cross, self.signs], dim=1))
        weights, probes = solved[:, : len(counts)], solved[:, len(counts) :]
        explained = float((weights * cross).sum()) + alpha * float(weights.square().sum())
        trace = self._trace(factor, probes)
        return self._ratio(counts, explained, self.order - alpha * trace)

    def _trace(self, factor: CholeskyFactor, probes: Tensor) -> float:
        """Return the trace of an inverse, estimated from the solutions for the signs where they serve."""
        if self.is_exact:
            return factor.trace_inverse()
        return float((self.signs * probes).sum()) / PROBES

    def _ratio(self, counts: Tensor, explained: float, freedom: float) -> float:
        targets = float(counts.sum()) - float(counts.square().sum()) / self.rows
        rss, slack = targets - explained, self.rows - 1.0 - freedom
        # Both are differences of nearly equal numbers where the fit is nearly perfect: there, rather no score.
        if rss <= 1e-10 * targets or slack <= 1e-8 * self.rows:
            return math.inf
        return self.rows * rss / slack**2
