"""Learned rows scored as if their fold had not been learned: what calibrates probabilities and novelty.

Means, scatter, degrees of freedom and shapes are those of the rest, exactly; ridge and strength of the prior of shapes
stay. Nothing of the order of the layer is factored: the solved scatter follows the rows that are taken out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.head.denoised import Choice, class_offset, column_scale, estimate_means, weighted_rows
from evergrow.head.linalg import ShapeScores, SolvedScatter
from evergrow.head.novelty_terms import NoveltyTerms
from evergrow.head.ridge_model import RidgeModel
from evergrow.head.temperatures import guessed_temperature, mean_log_losses


@dataclass(frozen=True, eq=False)
class FoldOuts:
    """What rows look like to a model that has not learned them.

    Parameters
    ----------
    log_losses : ndarray of shape (57,)
        Mean log loss of their classes at every temperature of :data:`~evergrow.head.temperatures.TEMPERATURES`.
    terms : ndarray of shape (n, 6)
        Terms of novelty of each, and 1 / count of the class nearest to it.
    guess : float
        Temperature that the statistics alone suggest.
    """

    log_losses: NDArray[np.float64]
    terms: NDArray[np.float64]
    guess: float


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in every form that answers need.

    Parameters
    ----------
    reduced : Tensor of shape (n, k)
        Activations in the coordinates of the statistics.
    outside : Tensor of shape (n,) or None
        Energy outside of these coordinates.
    shape : Tensor of shape (n, j) or None
        Features in the directions in which the shapes of classes are known.
    """

    reduced: Tensor
    outside: Tensor | None
    shape: Tensor | None

    @classmethod
    def of(cls, model: RidgeModel, Z: Tensor, weights: tuple[float, ...] = ()) -> Rows:
        """Return features Z (n, d) as a model sees them, with the weights of blocks."""
        H, stats, scale = weighted_rows(model, weights, Z), model.state.reduced(), column_scale(model, weights)
        if scale is not None and stats.basis is not None:
            stats = stats.scaled(scale)
        reduced, outside, shape = stats.project(H), None, None
        if stats.basis is not None:
            outside = (H.square().sum(dim=1) - reduced.square().sum(dim=1)).clamp_min(0.0)
        if model.shapes is not None:
            shape = model.shapes.rows(model.inputs(Z))
        return cls(reduced, outside, shape)

    def take(self, rows: Tensor) -> Rows:
        """Return some of the rows."""
        outside = None if self.outside is None else self.outside[rows]
        return Rows(self.reduced[rows], outside, None if self.shape is None else self.shape[rows])


def fold_outs(
    model: RidgeModel,
    scatter: SolvedScatter,
    choice: Choice,
    prior: str,
    Z: Tensor,
    codes: Tensor,
    folds: Tensor,
    weights: Tensor | None = None,
) -> FoldOuts:
    """Score learned rows, each as if its fold had not been learned.

    Parameters
    ----------
    model : RidgeModel
        A model that has learned the rows.
    scatter : SolvedScatter
        Its class means, solved.
    choice : Choice
        Its ridge and strength.
    prior : {"uniform", "counts"}
        Whether classes with more samples are likelier beforehand.
    Z : Tensor of shape (n, d)
        The rows; of each class at least one learned row must not be in any one fold.
    codes, folds : Tensor of shape (n,)
        Their classes and their folds.
    weights : Tensor of shape (n,), optional
        What they were learned with, where that is not one. Each is scored once all the same.
    """
    rows, spread = Rows.of(model, Z, choice.weights), 0.0
    scores, terms = rows.reduced.new_empty(len(codes), len(scatter.counts)), rows.reduced.new_empty(len(codes), 6)
    for fold in torch.unique(folds).tolist():
        mine = torch.nonzero(folds == fold).ravel()
        part, own = rows.take(mine), codes[mine]
        taken = None if weights is None else weights[mine]
        rest = scatter.unlearned(part.reduced, own, taken)
        estimates = estimate_means(rest)
        linear = torch.addmm(class_offset(estimates, rest.counts, prior), part.reduced, estimates.weights)
        scores[mine] = _with_shapes(model, rest.counts, choice, part, own, linear, taken)
        terms[mine] = NoveltyTerms.of(rest).of_rows(part.reduced, part.outside)
        spread += estimates.spread * len(mine) / len(codes)
    return FoldOuts(mean_log_losses(scores, codes), np.asarray(terms.cpu().numpy()), guessed_temperature(spread))


def _with_shapes(
    model: RidgeModel,
    left: Tensor,
    choice: Choice,
    rows: Rows,
    codes: Tensor,
    scores: Tensor,
    weights: Tensor | None,
) -> Tensor:
    """Return linear scores with what the shapes of classes add, that are known from the rows left of each."""
    if model.shapes is None or rows.shape is None:
        return scores
    moments = model.shapes.moments.remove(rows.shape, codes, model.mass, weights)
    return ShapeScores.of(moments, left, choice.strength).add(rows.shape, scores)
