"""From statistics to linear class scores: ridge regression, and the readout that takes class means for estimates.

The denoised readout chooses a ridge (:mod:`evergrow.head.linalg.ridge_choice`), solves for the class means
and takes the noise off them (:mod:`evergrow.head.linalg.scatter`). What was worked out is kept until the statistics
change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from evergrow.core.record import Between, Spec, record
from evergrow.head.block_weights import ENOUGH_ROWS, cautious_weights, choose_block_weights
from evergrow.head.layers.feature_map import check_weights
from evergrow.head.linalg.class_shapes import ShapeScores
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.recursive import LARGEST_WEIGHT
from evergrow.head.linalg.ridge_choice import choose_by_gcv, choose_ridge
from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
from evergrow.head.linalg.statistics import RidgeState, RidgeStatistics
from evergrow.head.novelty import KnownTerms, NoveltyPool, NoveltyStandard, NoveltyTerms
from evergrow.head.ridge_model import RidgeModel, row_energy

READOUTS = ("denoised", "ridge")

GROWTH = 1.25
"""How much more or fewer rows there must be before the ridge is chosen anew."""

SLOW_GROWTH = 2.0
"""The same for what hardly moves and costs as much: weights of blocks, and the strength of the prior of shapes."""

UNCALIBRATED = 0.06
"""Temperature per energy of a true class mean, where no row was ever scored as if not learned. At the ends of streams
of image and text features the calibrated temperature is 0.03 to 0.12 of that energy."""


@record("readout")
@dataclass(frozen=True, eq=False)
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

    weights: Annotated[Tensor, Spec(("L", "C"), largest=LARGEST_WEIGHT)]
    offset: Annotated[Tensor, Spec(("C",), largest=LARGEST_WEIGHT)]
    alpha: Annotated[float, Between(0.0)]
    minimiser: Annotated[float, Between(0.0)]
    jitter: Annotated[float, Between(0.0)]


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
    minimiser = alpha
    if alpha is None:
        stats = state.reduced()
        state = stats = stats if rows is None else replace(stats, count=round(rows))
        choice = choose_by_gcv(stats, row_energy(stats, masses, float(max(stats.count, 1))), last)
        alpha, minimiser = choice.alpha, choice.minimiser
    solution = state.solve(alpha)
    # Row by row, as a file holds them: a product with the columns of a solver rounds otherwise, in the last place.
    weights = solution.weights.contiguous()
    return Readout(weights, weights.new_zeros(weights.shape[1]), alpha, minimiser or alpha, solution.jitter)


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
    slow_rows : int
        Rows learned when weights and strength were chosen.
    """

    alpha: Annotated[float, Between(above=0.0)]
    step: Annotated[int, Between(-1000, 1000)]
    strength: Annotated[float, Between(above=0.0)]
    rows: int
    weights: tuple[float, ...] = ()
    slow_rows: int = 0

    def holds(self, rows: int) -> bool:
        """Return whether it still serves for so many rows."""
        return self.rows <= GROWTH * rows and rows <= GROWTH * self.rows

    def holds_slowly(self, rows: int) -> bool:
        """Return whether weights and strength still serve for so many rows; never where it is a place to begin."""
        return self.rows > 0 and self.slow_rows <= SLOW_GROWTH * rows and rows <= SLOW_GROWTH * self.slow_rows

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds weights of blocks that can be."""
        check_weights(self.weights)


def choose(
    model: RidgeModel, geometry: ClassGeometry, fixed: float | None, last: Choice | None, slow: Choice
) -> Choice:
    """Choose the ridge from the statistics.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    geometry : ClassGeometry
        Their means and scatter, with the weights of blocks.
    fixed : float or None
        The ridge, where it is not to be chosen.
    last : Choice or None
        The choice before.
    slow : Choice
        Which has the weights and the strength.
    """
    alpha, step = fixed, 0
    if alpha is None:
        rows = model.pooled_rows
        energy = row_energy(geometry.stats, model.masses, rows)
        whole = float(geometry.stats.gram.diagonal().sum()) / rows
        # Where all rows are the same up to rounding, the scale is that of a whole row, not of a centred one.
        start = None if last is None else last.step
        alpha, step = choose_ridge(geometry, energy if energy > 1e-10 * whole else whole, start)
    return replace(slow, alpha=alpha, step=step, rows=model.rows)


def choose_slowly(model: RidgeModel, is_denoised: bool) -> Choice:
    """Choose the weights of blocks and the strength of the prior of shapes; the ridge is still open."""
    strength = 1.0 if model.shapes is None else ShapeScores(model.shapes, model.masses).strength
    return Choice(1.0, 0, strength, model.rows, choose_weights(model) if is_denoised else (), model.rows)


def choose_weights(model: RidgeModel) -> tuple[float, ...]:
    """Choose the weights of the blocks of the direct link; none where there are no blocks or no link."""
    link, blocks = model.layer.link_columns(), model.blocks
    if blocks is None or link is None or len(blocks.sizes) < 2:
        return ()
    if float(model.masses.sum()) < ENOUGH_ROWS:
        return tuple(w / g for w, g in zip(cautious_weights(len(blocks.sizes)), blocks.weights, strict=True))
    gram, cross, basis = model.state.reduced().part(link)
    return choose_block_weights(gram, cross, model.masses, blocks.sizes, blocks.weights, basis)


def column_scale(model: RidgeModel, weights: tuple[float, ...]) -> Tensor | None:
    """Return what activations (n, L) are multiplied by, (L,): the weights of blocks on the link, one elsewhere."""
    link = model.layer.link_columns()
    if not weights or link is None or model.blocks is None:
        return None
    scale = model.state.reduced().gram.new_ones(model.layer.n_outputs)
    scale[link] = torch.repeat_interleave(scale.new_tensor(weights), torch.tensor(model.blocks.sizes).to(scale.device))
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


def guessed_temperature(spread: float) -> float:
    """Return a temperature for scores of class means with this energy around their centre."""
    return 1.0 + UNCALIBRATED * spread


# -- what was worked out ------------------------------------------------------------------------------------------


class SolvedCache:
    """Class weights, temperature and terms of novelty of a model, each worked out when first asked for.

    A few rows more or less are followed rather than solved anew, and what was chosen from the statistics (ridge,
    weights of blocks, strength of the prior of shapes) is chosen anew when the number of rows has changed by a quarter.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    kind : {"denoised", "ridge"}
        How class scores are solved for.
    fixed : float or None
        The ridge; None where it is chosen from the statistics.
    last_alpha : float, optional
        The ridge that was chosen before the last change, where the next choice begins.
    choice : Choice, optional
        What was chosen before the last change.
    scatter : SolvedScatter, optional
        A solution that has followed all rows since that choice.
    """

    def __init__(
        self,
        model: RidgeModel,
        kind: str,
        fixed: float | None,
        last_alpha: float | None = None,
        choice: Choice | None = None,
        scatter: SolvedScatter | None = None,
    ) -> None:
        self.model, self.kind, self.fixed = model, kind, fixed
        self.last_alpha, self.choice = last_alpha, choice
        self.solution: Readout | None = None
        self.warmth: float | None = None
        self.is_fresh = False
        """Whether everything was chosen for just these statistics."""
        # A solution that was followed is in the coordinates of the features.
        self._scatter = None if scatter is None else (scatter, model.state.reduced())

    # -- the next one -----------------------------------------------------------------------------------------

    def after(self, model: RidgeModel, fixed: float | None, scatter: SolvedScatter | None = None) -> SolvedCache:
        """Return the cache of another model, which begins where this one's choices ended."""
        return SolvedCache(model, self.kind, fixed, self.latest_alpha, self.choice, scatter)

    def followed(
        self, model: RidgeModel, Z: Tensor, codes: Tensor, columns: list[int] | None, weights: Tensor | None
    ) -> SolvedCache:
        """Return the cache of a model that learned rows, or unlearned them where ``columns`` is None.

        Parameters
        ----------
        model : RidgeModel
            The model after.
        Z : Tensor of shape (n, d)
            The rows.
        codes : Tensor of shape (n,)
            Their classes, as the model after numbers them.
        columns : list of int or None
            Where the classes before are among those after; -1 is new.
        weights : Tensor of shape (n,) or None
            What the rows count for, where that is not one.
        """
        scatter = None
        if self._scatter is not None and self.choice is not None and model.state.reduced().basis is None:
            before, stats = self._scatter
            if stats.basis is None and before.can_follow(len(codes)):
                H = weighted_rows(model, self.choice.weights, Z)
                old = before if columns is None else before.select(columns)
                scatter = old.follow(H, codes, weights, -1 if columns is None else 1)
        return self.after(model, self.fixed, scatter)

    def reordered(self, model: RidgeModel, order: list[int]) -> SolvedCache:
        """Return the cache of the same statistics with classes in another order; nothing large is solved again."""
        made = SolvedCache(model, self.kind, self.fixed, self.last_alpha, self.choice)
        made.warmth, made.is_fresh = self.warmth, self.is_fresh
        if "standard" in vars(self):
            made.standard = self.standard
        if self.solution is not None:
            weights, offset = self.solution.weights[:, order], self.solution.offset[order]
            made.solution = replace(self.solution, weights=weights, offset=offset)
        if self._scatter is not None and self._scatter[1].basis is None:
            made._scatter = self._scatter[0].select(order), model.state.reduced()
        return made

    def refreshed(self) -> SolvedCache:
        """Return a cache in which everything is chosen for just these statistics."""
        if self.choice is None or self.is_fresh:
            return self
        return SolvedCache(self.model, self.kind, self.fixed, self.latest_alpha, replace(self.choice, rows=0))

    @property
    def latest_alpha(self) -> float | None:
        """The ridge chosen last; None where none was."""
        return self.solution.minimiser if self.solution is not None else self.last_alpha

    # -- answers ----------------------------------------------------------------------------------------------

    def readout(self) -> Readout:
        """Return the linear class scores."""
        model = self.model
        if self.solution is None and self.kind == "ridge":
            self.solution = solve_ridge(model.state, model.masses, self.fixed, model.pooled_rows, last=self.last_alpha)
        elif self.solution is None:
            choice, scatter, stats = self.scatter()
            estimates, scale = scatter.estimate_means(), column_scale(model, choice.weights)
            self.warmth = guessed_temperature(estimates.spread)
            lifted = stats.lift(estimates.weights)
            lifted = lifted if scale is None else scale[:, None] * lifted
            self.solution = Readout(lifted, estimates.offset, choice.alpha, choice.alpha, scatter.factor.jitter)
        return self.solution

    def scatter(self) -> tuple[Choice, SolvedScatter, RidgeStatistics]:
        """Return what was chosen, the class means solved at it, and the statistics with their coordinates."""
        geometry, denoised = None, self.kind == "denoised"
        # Ridge regression has a ridge of its own; that of the scatter, for novelty, is always chosen.
        fixed, last = self.fixed if denoised else None, self.choice
        if last is None or not last.holds(self.model.rows) or fixed not in (None, last.alpha):
            kept = last if last is not None and last.holds_slowly(self.model.rows) else None
            slow = kept or choose_slowly(self.model, denoised)
            geometry = weighted_geometry(self.model, slow.weights)
            self.choice = choose(self.model, geometry, fixed, last, slow)
            self._scatter, self.is_fresh = None, kept is None
        if self.choice is None:
            raise RuntimeError("a choice was made above")
        if self._scatter is None:
            geometry = weighted_geometry(self.model, self.choice.weights) if geometry is None else geometry
            self._scatter = SolvedScatter.of(geometry, self.choice.alpha), geometry.stats
        return self.choice, *self._scatter

    @cached_property
    def shapes(self) -> ShapeScores | None:
        """What the shapes of classes add to the scores; None where no shapes are kept."""
        if self.model.shapes is None or self.kind == "ridge":
            return None
        self.readout()
        strength = 1.0 if self.choice is None else self.choice.strength
        return ShapeScores(self.model.shapes, self.model.masses, strength)

    def temperature(self) -> float:
        """Return a temperature for probabilities, guessed from the statistics."""
        readout = self.readout()
        if self.warmth is None and self.kind == "ridge":
            self.warmth = ridge_temperature(self.model, readout)
        elif self.warmth is None:
            self.warmth = guessed_temperature(self.scatter()[1].estimate_means().spread)
        return self.warmth

    @cached_property
    def terms(self) -> NoveltyTerms:
        """What novelty is weighed from."""
        return NoveltyTerms.of(self.scatter()[1])

    @cached_property
    def standard(self) -> NoveltyStandard:
        """How terms become a score where nothing was calibrated: by what the statistics say of known rows."""
        rows = np.asarray(self.terms.expected_rows().cpu().numpy())
        return NoveltyPool((KnownTerms.of(rows, int(self.model.counts.sum())),)).standard()
