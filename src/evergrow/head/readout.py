"""Readouts: from statistics to linear class scores.

The ridge readout is the ridge regression on one-hot targets. The denoised readout
solves for the class means at a chosen ridge
(:mod:`evergrow.head.linalg.ridge_choice`) and removes their noise
(:mod:`evergrow.head.linalg.scatter`). Before that, blocks of features are multiplied by
weights chosen from the statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from evergrow.core.record import Between, record
from evergrow.head.block_weights import (
    MIN_CV_ROWS,
    cautious_weights,
    choose_block_weights,
)
from evergrow.head.layers.feature_map import check_weights
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.ridge_choice import choose_by_gcv
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.ridge_model import RidgeModel, row_energy

READOUTS = ("denoised", "ridge")

GROWTH = 1.25
"""Factor by which the number of rows must change before settings are chosen again."""


@record("denoised-choice")
@dataclass(frozen=True)
class Choice:
    """Settings of the denoised readout, chosen from the statistics.

    Parameters
    ----------
    alpha : float
        The ridge.
    step : int
        Index of the ridge on the grid of the search. The next search starts there.
    strength : float
        Strength of the prior of class shapes.
    rows : int
        Number of rows when the settings were chosen. 0 if they only start a search.
    weights : tuple of float
        Weights of the blocks of features in the direct link. Empty for a single block.
    """

    alpha: Annotated[float, Between(above=0.0)]
    step: Annotated[int, Between(-1000, 1000)]
    strength: Annotated[float, Between(above=0.0)]
    rows: int
    weights: tuple[float, ...] = ()

    def holds(self, rows: int) -> bool:
        """Return whether the settings are still good enough for this many rows."""
        return self.rows <= GROWTH * rows and rows <= GROWTH * self.rows

    def check(self) -> None:
        """Raise :class:`FileFormatError` if the weights are out of range."""
        check_weights(self.weights)


# -- ridge regression ------------------------------------------------------------------


def solve_ridge(model: RidgeModel, alpha: float | None) -> Readout:
    """Solve the ridge regression on one-hot targets.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    alpha : float or None
        The ridge. None chooses it by generalised cross-validation.
    """
    if alpha is None:
        stats = replace(model.state, count=round(model.pooled_rows))
        energy = row_energy(stats, model.masses, float(max(stats.count, 1)))
        alpha = choose_by_gcv(stats, energy)[0]
    return model.state.solve(alpha)


def ridge_temperature(model: RidgeModel, readout: Readout) -> float:
    """Return the softmax temperature of ridge scores, estimated from the statistics.

    No data is held out. Let df be the trace of the hat matrix and t the mean score of
    the true class on the learned rows. Then ``a = 1 - (1 - t) / (1 - df / n)``
    estimates this score on new rows (leave-one-out on average). The temperature is
    ``sqrt(a) / (4 ln C)``. The constant was measured on image and text features.
    """
    stats = model.state
    n = model.pooled_rows
    factor = safe_cholesky(stats.gram, shift=readout.alpha)
    dof = stats.gram.shape[0] - readout.alpha * factor.trace_inverse
    learned = float((factor.solve(stats.cross) * stats.cross).sum()) / n
    fresh = 1.0 - (1.0 - learned) / max(1.0 - dof / n, 1e-9)
    root = math.sqrt(min(max(fresh, 0.05), 1.0))
    return 0.25 * root / math.log(max(len(model.counts), 2))


# -- weights of blocks -----------------------------------------------------------------


def choose_weights(model: RidgeModel, choice: Choice | None) -> tuple[float, ...]:
    """Choose the weights of the blocks of features in the direct link.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    choice : Choice or None
        Settings in use. The search starts with their weights, or with the weights of
        the first batch.

    Returns
    -------
    tuple of float
        Factors on top of the weights of the first batch. Empty if there is a single
        block or no direct link.
    """
    link = model.layer.link_columns()
    blocks = model.blocks
    if blocks is None or link is None or len(blocks.sizes) < 2:
        return ()
    n_blocks = len(blocks.sizes)
    if float(model.masses.sum()) < MIN_CV_ROWS:
        wanted = zip(cautious_weights(n_blocks), blocks.weights, strict=True)
        return tuple(weight / given for weight, given in wanted)
    gram, cross, basis = model.state.part(link)
    start: tuple[float, ...] = ()
    if choice is not None and choice.rows:
        start = choice.weights
    start = start or (1.0,) * n_blocks
    return choose_block_weights(
        gram, cross, model.masses, blocks.sizes, blocks.weights, basis, start
    )


def column_scale(model: RidgeModel, weights: tuple[float, ...]) -> Tensor | None:
    """Return the factor (L,) of each activation: its block weight, or one.

    None stands for no weights.
    """
    link = model.layer.link_columns()
    if not weights or link is None or model.blocks is None:
        return None
    scale = model.state.gram.new_ones(model.layer.n_outputs)
    sizes = torch.tensor(model.blocks.sizes).to(scale.device)
    scale[link] = torch.repeat_interleave(scale.new_tensor(weights), sizes)
    return scale


def weighted_rows(model: RidgeModel, weights: tuple[float, ...], Z: Tensor) -> Tensor:
    """Return the activations (n, L) of features, multiplied by the block weights."""
    H = torch.cat([part for _, part in model.activations(Z)])
    scale = column_scale(model, weights)
    if scale is None:
        return H
    return H * scale


def weighted_statistics(
    model: RidgeModel, weights: tuple[float, ...]
) -> RidgeStatistics:
    """Return the statistics of activations multiplied by the block weights."""
    scale = column_scale(model, weights)
    if scale is None:
        return model.state
    return model.state.scaled(scale)
