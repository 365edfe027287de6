"""The readout that knows how little it has seen: class means as estimates, shapes of classes, and answers that follow.

From the statistics of a :class:`~evergrow.head.ridge_model.RidgeModel` to linear scores: the ridge is chosen
(:mod:`evergrow.head.linalg.ridge_choice`), the means are solved for (:mod:`evergrow.head.linalg.scatter`) and
the noise is taken off them (:mod:`evergrow.head.linalg.mean_estimates`). A few rows more or less are followed; ridge
and strength of the prior of shapes are chosen anew when the number of rows has changed by a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.archive import Archive, register_kind
from evergrow.core.fields import Fields
from evergrow.head.feature_blocks import ENOUGH_ROWS, cautious_weights, read_weights
from evergrow.head.linalg import (
    ClassGeometry,
    MeanEstimates,
    ShapeScores,
    SolvedScatter,
    choose_block_weights,
    choose_ridge,
)
from evergrow.head.readout import Readout, row_energy
from evergrow.head.ridge_model import RidgeModel

PRIORS = ("uniform", "counts")

GROWTH = 1.25
"""How much more or fewer rows there must be before ridge and strength are chosen anew."""

CHOICE = register_kind("denoised-choice")

_MAX_LEVERAGE = 1.0 - 1e-3


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

    alpha: float
    step: int
    strength: float
    rows: int
    weights: tuple[float, ...] = ()

    def holds(self, rows: int) -> bool:
        """Return whether it still serves for so many rows."""
        return self.rows <= GROWTH * rows and rows <= GROWTH * self.rows

    def to_archive(self) -> Archive:
        """Return what a file holds."""
        meta: dict[str, Any] = {"alpha": self.alpha, "step": self.step, "strength": self.strength, "rows": self.rows}
        return CHOICE.archive(meta | ({"weights": list(self.weights)} if self.weights else {}))

    @classmethod
    def from_archive(cls, fields: Fields) -> Choice:
        """Return what :meth:`to_archive` gave, or raise :class:`FileFormatError`."""
        alpha, strength = fields.number("alpha", low=0.0), fields.number("strength", low=0.0)
        fields.require(alpha > 0.0 and strength > 0.0, "a ridge or a strength is zero")
        weights = read_weights(fields, "weights") if fields.has("weights") else ()
        return cls(alpha, fields.integer("step", low=-1000, high=1000), strength, fields.integer("rows"), weights)


@dataclass(frozen=True, eq=False)
class Solution:
    """What has been worked out from the statistics of a model.

    Parameters
    ----------
    choice : Choice
        Ridge and strength.
    scatter : SolvedScatter or None
        What can follow further rows; None where the statistics are kept in fewer coordinates and solving is cheap.
    readout : Readout
        Linear scores.
    spread : float
        Energy of a true class mean around the centre of all.
    """

    choice: Choice
    scatter: SolvedScatter | None
    readout: Readout
    spread: float


def solve_model(
    model: RidgeModel, fixed: float | None, prior: str, last: Choice | None, scatter: SolvedScatter | None
) -> Solution:
    """Solve for the scores of a model.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    fixed : float or None
        The ridge, where it is not to be chosen.
    prior : {"uniform", "counts"}
        Whether classes with more samples are likelier beforehand.
    last : Choice or None
        An earlier choice.
    scatter : SolvedScatter or None
        A solution that has followed all rows since that choice.
    """
    rows = round(float(model.mass.sum()))
    held = last is not None and last.holds(rows) and (fixed is None or last.alpha == fixed)
    if last is None or not held:
        weights = choose_weights(model)
        geometry = weighted_geometry(model, weights)
        last, scatter = choose(model, geometry, fixed, None if last is None else last.step, weights), None
    elif scatter is None:
        geometry = weighted_geometry(model, last.weights)
    stats = model.state.reduced()
    if scatter is None:
        scatter, stats = SolvedScatter.of(geometry, last.alpha), geometry.stats
    estimates = estimate_means(scatter)
    offset = class_offset(estimates, scatter.counts, prior)
    lifted, scale = stats.lift(estimates.weights), column_scale(model, last.weights)
    if scale is not None:
        lifted = scale[:, None] * lifted
    readout = Readout(lifted, offset, last.alpha, last.alpha, scatter.factor.jitter)
    return Solution(last, scatter if stats.basis is None else None, readout, estimates.spread)


def choose_weights(model: RidgeModel) -> tuple[float, ...]:
    """Choose the weights of the blocks of the direct link; none where there are no blocks or no link."""
    link, blocks = model.projection.link_columns(), model.blocks
    if blocks is None or link is None or len(blocks.kept) < 2:
        return ()
    if float(model.mass.sum()) < ENOUGH_ROWS:
        return tuple(w / g for w, g in zip(cautious_weights(len(blocks.kept)), blocks.weights, strict=True))
    gram, cross, basis = model.state.reduced().part(link)
    return choose_block_weights(gram, cross, model.mass, blocks.kept, blocks.weights, basis).weights


def column_scale(model: RidgeModel, weights: tuple[float, ...]) -> Tensor | None:
    """Return what activations (n, L) are multiplied by, (L,): the weights of blocks on the link, one elsewhere."""
    link = model.projection.link_columns()
    if not weights or link is None or model.blocks is None:
        return None
    scale = model.state.reduced().gram.new_ones(model.projection.n_outputs)
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
    return ClassGeometry.of(stats if scale is None else stats.scaled(scale), model.mass)


def choose(
    model: RidgeModel,
    geometry: ClassGeometry,
    fixed: float | None,
    start: int | None = None,
    weights: tuple[float, ...] = (),
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
    start : int, optional
        Where an earlier search ended.
    weights : tuple of float
        Weights of blocks that were chosen before.
    """
    alpha, step = fixed, 0
    if alpha is None:
        chosen = choose_ridge(geometry, _scale(geometry, model), start)
        alpha, step = chosen.alpha, chosen.step
    strength = 1.0 if model.shapes is None else ShapeScores.of(model.shapes.moments, model.mass).strength
    return Choice(alpha, step, strength, round(float(model.mass.sum())), weights)


def _scale(geometry: ClassGeometry, model: RidgeModel) -> float:
    """Return the mean energy of a centred row, or of a whole one where all rows are the same up to rounding."""
    rows = float(max(geometry.stats.count, 1) if model.masses is None else model.masses.sum())
    energy = row_energy(geometry.stats, model.mass, rows)
    whole = float(geometry.stats.gram.diagonal().sum()) / rows
    return energy if energy > 1e-10 * whole else whole


def solved_scatter(model: RidgeModel, choice: Choice) -> SolvedScatter:
    """Return the class means solved at a choice that was made before, in the coordinates of the statistics."""
    return SolvedScatter.of(weighted_geometry(model, choice.weights), choice.alpha)


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


def class_offset(estimates: MeanEstimates, counts: Tensor, prior: str) -> Tensor:
    """Return what is added to the linear scores."""
    return estimates.offset + (counts / counts.sum()).log() if prior == "counts" else estimates.offset


def shape_scores(model: RidgeModel, choice: Choice) -> ShapeScores | None:
    """Return what the shapes of classes add, or None where no shapes are kept."""
    if model.shapes is None:
        return None
    return ShapeScores.of(model.shapes.moments, model.mass, choice.strength)


def follow(
    scatter: SolvedScatter | None,
    model: RidgeModel,
    Z: Tensor,
    codes: Tensor,
    columns: list[int] | None,
    weights: tuple[float, ...] = (),
    sample_weights: Tensor | None = None,
) -> SolvedScatter | None:
    """Return a solution after rows were learned, or unlearned where ``columns`` is None; None where it cannot follow.

    Parameters
    ----------
    scatter : SolvedScatter or None
        Of the model before.
    model : RidgeModel
        The model after.
    Z : Tensor of shape (n, d)
        The rows.
    codes : Tensor of shape (n,)
        Their classes, as the model after numbers them.
    columns : list of int or None
        Where the classes before are among those after; -1 is new.
    weights : tuple of float
        Weights of blocks that the solution was found with.
    sample_weights : Tensor of shape (n,), optional
        What the rows count for, where that is not one.
    """
    if scatter is None or not scatter.can_follow(len(codes)) or model.state.reduced().basis is not None:
        return None
    H = weighted_rows(model, weights, Z)
    if columns is None:
        return scatter.unlearned(H, codes, sample_weights)
    return scatter.learned(H, codes, columns, sample_weights)
