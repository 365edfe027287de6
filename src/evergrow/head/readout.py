"""From statistics to linear class scores: ridge regression, and the readout that takes class means for estimates.

The denoised readout chooses a ridge (:mod:`evergrow.head.linalg.ridge_choice`), solves for the class means
(:mod:`evergrow.head.linalg.scatter`) and takes the noise off them (:mod:`evergrow.head.linalg.mean_estimates`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from evergrow.core.record import Between, record
from evergrow.head.feature_blocks import ENOUGH_ROWS, cautious_weights, check_weights
from evergrow.head.linalg import (
    ClassGeometry,
    MeanEstimates,
    RidgeState,
    ShapeScores,
    SolvedScatter,
    choose_block_weights,
    choose_by_gcv,
    choose_ridge,
    safe_cholesky,
)
from evergrow.head.ridge_model import RidgeModel, row_energy

READOUTS = ("denoised", "ridge")

GROWTH = 1.25
"""How much more or fewer rows there must be before ridge and strength are chosen anew."""

UNCALIBRATED = 0.06
"""Temperature per energy of a true class mean, where no row was ever scored as if not learned. At the ends of streams
of image and text features the calibrated temperature is 0.03 to 0.12 of that energy."""

_MAX_LEVERAGE = 1.0 - 1e-3


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


# -- ridge regression -----------------------------------------------------------------------------------------


def solve_ridge(
    state: RidgeState, masses: Tensor, alpha: float | None, rows: float | None = None, last: float | None = None
) -> Readout:
    """Solve the ridge regression on one-hot targets.

    Parameters
    ----------
    state : RidgeState
        The statistics.
    masses : Tensor of shape (C,)
        Samples per class, or the sum of their weights.
    alpha : float or None
        The ridge; None chooses it by generalised cross-validation.
    rows : float, optional
        Rows behind the statistics, where that is not their count.
    last : float, optional
        The previous choice, where to begin looking for the next.
    """
    if alpha is not None:
        solution = state.solve(alpha)
        return _without_offset(solution.weights, alpha, alpha, solution.jitter)
    stats = state.reduced()
    if rows is not None:
        stats = replace(stats, count=round(rows))
    choice = choose_by_gcv(stats, row_energy(stats, masses, float(max(stats.count, 1))), last)
    factor = safe_cholesky(stats.gram, shift=choice.alpha)
    return _without_offset(stats.lift(factor.solve(stats.cross)), choice.alpha, choice.minimiser, factor.jitter)


def _without_offset(weights: Tensor, alpha: float, minimiser: float, jitter: float) -> Readout:
    # Row by row, as a file holds them: a product with the columns of a solver rounds otherwise, in the last place.
    return Readout(weights.contiguous(), weights.new_zeros(weights.shape[1]), alpha, minimiser, jitter)


def ridge_temperature(model: RidgeModel, readout: Readout) -> float:
    """Return the temperature of the softmax that turns ridge scores into probabilities.

    No data is held out. With df the trace of the hat matrix and t the mean score of the true class on the rows learned,
    ``a = 1 - (1 - t) / (1 - df / n)`` estimates that score on new rows (leave one out, on average), and the temperature
    is ``sqrt(a) / (4 ln C)``; the constant was measured on image and text features.
    """
    stats, n = model.state.reduced(), model.pooled_rows
    factor = safe_cholesky(stats.gram, shift=readout.alpha)
    dof = stats.gram.shape[0] - readout.alpha * factor.trace_inverse()
    learned = float((factor.solve(stats.cross) * stats.cross).sum()) / n
    fresh = 1.0 - (1.0 - learned) / max(1.0 - dof / n, 1e-9)
    return 0.25 * math.sqrt(min(max(fresh, 0.05), 1.0)) / math.log(max(len(model.counts), 2))


# -- class means as estimates -----------------------------------------------------------------------------------


@record("denoised-choice")
@dataclass(frozen=True)
class Choice:
    """Settings that were chosen from the statistics, and how much had been seen then.

    Parameters
    ----------
    alpha : float
        The ridge.
    step : int
        Where it lies on the grid of the search, to begin there next time.
    strength : float
        Strength of the prior of class shapes.
    rows : int
        Rows learned when it was chosen; 0 where it is only a place to begin.
    weights : tuple of float
        Weights of the blocks of the direct link; none where there is one block only.
    """

    alpha: Annotated[float, Between(above=0.0)]
    step: Annotated[int, Between(-1000, 1000)]
    strength: Annotated[float, Between(above=0.0)]
    rows: int
    weights: tuple[float, ...] = ()

    def holds(self, rows: int) -> bool:
        """Return whether it still serves for so many rows."""
        return self.rows <= GROWTH * rows and rows <= GROWTH * self.rows

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds weights of blocks that can be."""
        check_weights(self.weights)


def choose(
    model: RidgeModel, geometry: ClassGeometry, fixed: float | None, start: int | None, weights: tuple[float, ...]
) -> Choice:
    """Choose ridge and strength from the statistics.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    geometry : ClassGeometry
        Their means and scatter, with the weights of blocks.
    fixed : float or None
        The ridge, where it is not to be chosen.
    start : int or None
        Where an earlier search ended.
    weights : tuple of float
        Weights of blocks that were chosen before.
    """
    alpha, step = fixed, 0
    if alpha is None:
        rows = model.pooled_rows
        energy = row_energy(geometry.stats, model.masses, rows)
        whole = float(geometry.stats.gram.diagonal().sum()) / rows
        # Where all rows are the same up to rounding, the scale is that of a whole row, not of a centred one.
        chosen = choose_ridge(geometry, energy if energy > 1e-10 * whole else whole, start)
        alpha, step = chosen.alpha, chosen.step
    strength = 1.0 if model.shapes is None else ShapeScores.of(model.shapes.moments, model.masses).strength
    return Choice(alpha, step, strength, model.rows, weights)


def choose_weights(model: RidgeModel) -> tuple[float, ...]:
    """Choose the weights of the blocks of the direct link; none where there are no blocks or no link."""
    link, blocks = model.layer.link_columns(), model.blocks
    if blocks is None or link is None or len(blocks.kept) < 2:
        return ()
    if float(model.masses.sum()) < ENOUGH_ROWS:
        return tuple(w / g for w, g in zip(cautious_weights(len(blocks.kept)), blocks.weights, strict=True))
    gram, cross, basis = model.state.reduced().part(link)
    return choose_block_weights(gram, cross, model.masses, blocks.kept, blocks.weights, basis).weights


def column_scale(model: RidgeModel, weights: tuple[float, ...]) -> Tensor | None:
    """Return what activations (n, L) are multiplied by, (L,): the weights of blocks on the link, one elsewhere."""
    link = model.layer.link_columns()
    if not weights or link is None or model.blocks is None:
        return None
    scale = model.state.reduced().gram.new_ones(model.layer.n_outputs)
    scale[link] = torch.repeat_interleave(scale.new_tensor(weights), torch.tensor(model.blocks.kept).to(scale.device))
    return scale


def weighted_rows(model: RidgeModel, weights: tuple[float, ...], Z: Tensor) -> Tensor:
    """Return the activations (n, L) of features with the weights of blocks."""
    H = torch.cat([part for _, part in model.activations(Z)])
    scale = column_scale(model, weights)
    return H if scale is None else H * scale


def weighted_geometry(model: RidgeModel, weights: tuple[float, ...]) -> ClassGeometry:
    """Return class means and scatter of the statistics with the weights of blocks."""
    stats, scale = model.state.reduced(), column_scale(model, weights)
    return ClassGeometry.of(stats if scale is None else stats.scaled(scale), model.masses)


def freedom(scatter: SolvedScatter) -> float:
    """Return the degrees of freedom f of the scatter, at least one."""
    return max(float(scatter.counts.sum()) - len(scatter.counts), 1.0)


def noise_energy(scatter: SolvedScatter, *, inside: bool = False) -> float:
    """Return the energy of a new row about the mean of its class, or with ``inside`` that of a learned one.

    Zero where the rows tell nothing of their spread: one row of each class, or copies of it.
    """
    order, free = scatter.means.shape[0], float(scatter.counts.sum()) - len(scatter.counts)
    within = order - (scatter.alpha + scatter.factor.jitter) * scatter.trace_inverse()
    if free < 1.0 or within <= 1e-8:
        return 0.0
    return within if inside else within / (1.0 - min(within / free, _MAX_LEVERAGE))


def estimate_means(scatter: SolvedScatter) -> MeanEstimates:
    """Return the scores of estimated class means; where rows tell nothing of the spread each is taken at its word."""
    noise = noise_energy(scatter) / scatter.counts
    return MeanEstimates.of(scatter.means, scatter.solve_means(), noise, freedom(scatter))


def guessed_temperature(spread: float) -> float:
    """Return a temperature for scores of class means with this energy around their centre."""
    return 1.0 + UNCALIBRATED * spread
