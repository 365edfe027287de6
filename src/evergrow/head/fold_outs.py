"""Learned rows scored as if their fold had not been learned: what calibrates probabilities and novelty.

Means, scatter, degrees of freedom and shapes are those of the rest, exactly; ridge and strength of the prior of shapes
stay. Nothing of the order of the layer is factored: the solved scatter follows the rows that are taken out.

``softmax(score / T)`` has one number to choose. Its log loss at a fixed grid of temperatures is a mean over rows, so it
can be pooled over the batches of a stream and over sites without keeping a score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.head.linalg.class_shapes import ShapeScores
from evergrow.head.novelty import NoveltyTerms
from evergrow.head.readout import SolvedCache, column_scale, guessed_temperature, weighted_rows
from evergrow.head.ridge_model import RidgeModel
from evergrow.head.temperatures import TEMPERATURES

_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class FoldOuts:
    """What rows look like to a model that has not learned them.

    Parameters
    ----------
    terms : ndarray of shape (n, 6)
        Terms of novelty of each, and 1 / count of the class nearest to it.
    log_losses : ndarray of shape (57,) or None
        Mean log loss of their classes at every temperature of :data:`TEMPERATURES`; None for the ridge readout, whose
        temperature follows from the statistics.
    guess : float
        Temperature that the statistics alone suggest.
    """

    terms: NDArray[np.float64]
    log_losses: NDArray[np.float64] | None = None
    guess: float = 1.0


def as_seen(model: RidgeModel, Z: Tensor, weights: tuple[float, ...]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return features Z (n, d) as a model sees them, with the weights of blocks.

    Returns
    -------
    Tensor of shape (n, k)
        Activations in the coordinates of the statistics.
    Tensor of shape (n,) or None
        Energy outside of these coordinates.
    Tensor of shape (n, j) or None
        Features in the directions in which the shapes of classes are known.
    """
    H, stats, scale = weighted_rows(model, weights, Z), model.state.reduced(), column_scale(model, weights)
    if scale is not None and stats.basis is not None:
        stats = stats.scaled(scale)
    reduced, outside = stats.project(H), None
    if stats.basis is not None:
        outside = (H.square().sum(dim=1) - reduced.square().sum(dim=1)).clamp_min(0.0)
    return reduced, outside, None if model.shapes is None else model.shapes.rows(model.inputs(Z))


def fold_outs(solved: SolvedCache, Z: Tensor, codes: Tensor, folds: Tensor, weights: Tensor | None = None) -> FoldOuts:
    """Score learned rows, each as if its fold had not been learned.

    Parameters
    ----------
    solved : SolvedCache
        Of a model that has learned the rows.
    Z : Tensor of shape (n, d)
        The rows; of each class at least one learned row must not be in any one fold.
    codes, folds : Tensor of shape (n,)
        Their classes and their folds.
    weights : Tensor of shape (n,), optional
        What they were learned with, where that is not one. Each is scored once all the same.
    """
    choice, scatter, _ = solved.scatter()
    model, spread = solved.model, 0.0
    rows = as_seen(model, Z, choice.weights)
    scores, terms = Z.new_empty(len(codes), len(scatter.counts)), Z.new_empty(len(codes), 6)
    for fold in torch.unique(folds).tolist():
        mine = torch.nonzero(folds == fold).ravel()
        own, taken, reduced = codes[mine], None if weights is None else weights[mine], rows[0][mine]
        outside, shape = (None if part is None else part[mine] for part in rows[1:])
        rest = scatter.follow(reduced, own, taken, sign=-1)
        terms[mine] = NoveltyTerms.of(rest).of_rows(reduced, outside)
        estimates = rest.estimate_means()
        linear = torch.addmm(estimates.offset, reduced, estimates.weights)
        if model.shapes is not None and shape is not None:
            moments = model.shapes.remove(shape, own, model.masses, taken)
            linear = ShapeScores(moments, rest.counts, choice.strength).add(shape, linear)
        scores[mine] = linear
        spread += estimates.spread * len(mine) / len(codes)
    found = np.asarray(terms.cpu().numpy())
    if solved.kind == "ridge":
        return FoldOuts(found)
    return FoldOuts(found, mean_log_losses(scores, codes), guessed_temperature(spread))


# -- temperatures -------------------------------------------------------------------------------------------------


def mean_log_losses(scores: Tensor, codes: Tensor) -> NDArray[np.float64]:
    """Return the mean log loss of rows at every temperature of the grid.

    Parameters
    ----------
    scores : Tensor of shape (n, C)
        Class scores of rows that the scoring model had not learned.
    codes : Tensor of shape (n,)
        Their classes.

    Returns
    -------
    ndarray of shape (57,)

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.fold_outs import mean_log_losses
    >>> mean_log_losses(torch.zeros(3, 2), torch.tensor([0, 1, 1])).round(4)[:2].tolist()
    [0.6931, 0.6931]
    """
    total = np.zeros(len(TEMPERATURES))
    block = max(_BLOCK // max(scores.shape[1], 1), 1)
    for start in range(0, len(codes), block):
        part = scores[start : start + block].to(torch.float64)
        right = codes[start : start + block]
        for place, warmth in enumerate(TEMPERATURES):
            total[place] += float(torch.nn.functional.cross_entropy(part / warmth, right, reduction="sum"))
    return np.asarray(total / max(len(codes), 1))
