"""From statistics to answers: the choice of the ridge, class scores and probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from evergrow.head.linalg import (
    ClassGeometry,
    RidgeState,
    RidgeStatistics,
    choose_by_gcv,
    safe_cholesky,
)


@dataclass(frozen=True)
class Readout:
    """Linear class scores ``h @ weights + offset``.

    Parameters
    ----------
    weights : Tensor of shape (L, C)
        Weights.
    offset : Tensor of shape (C,)
        Added to every row.
    alpha : float
        The ridge used.
    minimiser : float
        The ridge with the smallest GCV score where one was chosen, else ``alpha``.
    jitter : float
        What the factorisation needed beyond ``alpha``.
    """

    weights: Tensor
    offset: Tensor
    alpha: float
    minimiser: float
    jitter: float

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.weights.nbytes + self.offset.nbytes


def row_energy(stats: RidgeStatistics, counts: Tensor, rows: float | None = None) -> float:
    """Return the mean energy of a row around the mean of all rows; ``rows`` is their number, where weights make it."""
    n = max(stats.count, 1) if rows is None else rows
    mean_part = float(stats.cross.sum(dim=1).square().sum()) / max(float(counts.sum()), 1e-12)
    return max(float(stats.gram.diagonal().sum()) - mean_part, 0.0) / n


def solve_readout(
    state: RidgeState, counts: Tensor, alpha: float | None, kind: str, last: float | None = None
) -> Readout:
    """Solve for the class scores.

    Parameters
    ----------
    state : RidgeState
        The statistics.
    counts : Tensor of shape (C,)
        Samples per class.
    alpha : float or None
        The ridge; None chooses it by generalised cross-validation.
    kind : {"ridge", "discriminant"}
        Which readout.
    last : float, optional
        The previous choice, where to begin looking for the next.
    """
    if alpha is not None:
        if kind == "discriminant":
            return _discriminant(state.reduced(), counts, alpha)
        solution = state.solve(alpha)
        return _readout(solution.weights, _zero(solution.weights), alpha, alpha, solution.jitter)
    stats = state.reduced()
    choice = choose_by_gcv(stats, row_energy(stats, counts), last)
    if kind == "discriminant":
        # It needs the plain minimiser: its errors do not fall with a smaller ridge.
        return _discriminant(stats, counts, choice.minimiser)
    factor = safe_cholesky(stats.gram, shift=choice.alpha)
    weights = stats.lift(factor.solve(stats.cross))
    return _readout(weights, _zero(weights), choice.alpha, choice.minimiser, factor.jitter)


def _readout(weights: Tensor, offset: Tensor, alpha: float, minimiser: float, jitter: float) -> Readout:
    # Row by row, as a file holds them: a product with the columns of a solver rounds otherwise, in the last place.
    return Readout(weights.contiguous(), offset, alpha, minimiser, jitter)


def _zero(weights: Tensor) -> Tensor:
    return weights.new_zeros(weights.shape[1])


def _discriminant(stats: RidgeStatistics, counts: Tensor, alpha: float) -> Readout:
    geometry = ClassGeometry.of(stats, counts)
    factor = geometry.factor(alpha)
    solved = factor.solve(geometry.means)
    offset = -0.5 * (geometry.means * solved).sum(dim=0)
    # Scatter is a sum: times the degrees of freedom, scores are log-likelihoods up to a constant.
    scale = float(max(stats.count - len(counts), 1))
    return _readout(stats.lift(solved) * scale, offset * scale, alpha, alpha, factor.jitter)


def temperature(state: RidgeState, counts: Tensor, readout: Readout, kind: str) -> float:
    """Return the temperature of the softmax that turns scores into probabilities.

    No data is held out. For ridge, with df the trace of the hat matrix and t the mean score of the true
    class on the rows learned, ``a = 1 - (1 - t) / (1 - df / n)`` estimates that score on new rows (leave one out,
    on average), and the temperature is ``sqrt(a) / (4 ln C)``. For the discriminant it is 0.065 times the mean
    gap between a class mean's own score and its average score, less what leaving a sample out takes from that
    gap. Both constants were measured on image and text features.
    """
    stats = state.reduced()
    classes = max(len(counts), 2)
    if kind == "discriminant":
        geometry = ClassGeometry.of(stats, counts)
        at_means = stats.lift(geometry.means).T @ readout.weights + readout.offset
        gap = float((at_means.diagonal() - at_means.mean(dim=1)).mean())
        return 0.065 * max(gap - _optimism(geometry, readout.alpha), 0.1 * gap, 1e-6)
    n = max(stats.count, 1)
    factor = safe_cholesky(stats.gram, shift=readout.alpha)
    dof = stats.gram.shape[0] - readout.alpha * factor.trace_inverse()
    reduced = factor.solve(stats.cross)
    learned = float((reduced * stats.cross).sum()) / n
    fresh = 1.0 - (1.0 - learned) / max(1.0 - dof / n, 1e-9)
    return 0.25 * math.sqrt(min(max(fresh, 0.05), 1.0)) / math.log(classes)


def _optimism(geometry: ClassGeometry, alpha: float) -> float:
    """Return how much of the gap at class means is owed to each sample having shaped mean and scatter itself."""
    classes = len(geometry.counts)
    free = max(geometry.stats.count - classes, 1)
    per_class = max(float(geometry.counts.sum()) / max(classes, 1), 2.0)
    factor = geometry.factor(alpha)
    share = min((geometry.scatter.shape[0] - alpha * factor.trace_inverse()) / free, 0.99)
    inflation = (per_class / (per_class - 1.0)) ** 2 - 1.0
    return 0.5 * free * inflation * share / (1.0 - share)
