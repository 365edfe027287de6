"""From statistics to linear class scores: ridge regression, and the readout that takes class means for estimates.

The denoised readout chooses a ridge (:mod:`evergrow.head.linalg.ridge_choice`), solves for the class means
and takes the noise off them (:mod:`evergrow.head.linalg.scatter`). What was worked out is kept until the statistics
change.

Probabilities and novelty are calibrated on learned rows that are scored as if their fold had not been learned. Means,
scatter, degrees of freedom and shapes are then those of the rest, exactly; ridge and strength of the prior of shapes
stay. Nothing of the order of the layer is factored: the solved scatter follows the rows that are taken out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.record import Between, Spec, record
from evergrow.head.block_weights import ENOUGH_ROWS, cautious_weights, choose_block_weights
from evergrow.head.layers.feature_map import check_weights
from evergrow.head.linalg.class_shapes import ShapeScores
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.ridge_choice import choose_by_gcv, choose_ridge
from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
from evergrow.head.linalg.statistics import LARGEST_WEIGHT, RidgeState, RidgeStatistics
from evergrow.head.novelty import TEMPERATURES, KnownTerms, NoveltyPool, NoveltyStandard, NoveltyTerms, bounded
from evergrow.head.ridge_model import RidgeModel, row_energy

READOUTS = ("denoised", "ridge")

_BLOCK = 2**22  # numbers whose log losses are worked out at once
_TERM_ROWS = 4096  # rows whose terms of novelty are worked out at once

GROWTH = 1.25
"""How much more or fewer rows there must be before ridge and strength are chosen anew."""

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


def solve_ridge(state: RidgeState, masses: Tensor, alpha: float | None, rows: float | None = None) -> Readout:
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
    """
    minimiser = alpha
    if alpha is None:
        stats = state.reduced()
        state = stats = stats if rows is None else replace(stats, count=round(rows))
        choice = choose_by_gcv(stats, row_energy(stats, masses, float(max(stats.count, 1))))
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


# -- rows as if they had not been learned -------------------------------------------------------------------------


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
    >>> from evergrow.head.readout import mean_log_losses
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


# -- what was worked out ------------------------------------------------------------------------------------------


@dataclass(eq=False)
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
    choice : Choice, optional
        What was chosen before the last change.
    known_scatter : tuple of SolvedScatter and RidgeStatistics, optional
        The class means solved at that choice, and the statistics with their coordinates.
    solution : Readout, optional
        The linear class scores.
    warmth : float, optional
        The temperature that the statistics suggest.
    is_fresh : bool
        Whether ridge and strength were chosen for just these statistics.
    shape_masses : Tensor of shape (C,), optional
        Weight behind the shapes of classes, where that is not the model's.
    """

    model: RidgeModel
    kind: str
    fixed: float | None
    choice: Choice | None = None
    known_scatter: tuple[SolvedScatter, RidgeStatistics] | None = None
    solution: Readout | None = None
    warmth: float | None = None
    is_fresh: bool = False
    shape_masses: Tensor | None = None

    # -- the next one -----------------------------------------------------------------------------------------

    def after(self, model: RidgeModel, fixed: float | None, scatter: SolvedScatter | None = None) -> SolvedCache:
        """Return the cache of another model, which begins where this one's choices ended."""
        # A solution that was followed is in the coordinates of the features.
        known = None if scatter is None else (scatter, model.state.reduced())
        return SolvedCache(model, self.kind, fixed, self.choice, known)

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
        if self.known_scatter is not None and self.choice is not None and model.state.reduced().basis is None:
            before, stats = self.known_scatter
            if stats.basis is None and before.can_follow(len(codes)):
                H = weighted_rows(model, self.choice.weights, Z)
                old = before if columns is None else before.select(columns)
                scatter = old.follow(H, codes, weights, -1 if columns is None else 1)
        return self.after(model, self.fixed, scatter)

    def reordered(self, model: RidgeModel, order: list[int]) -> SolvedCache:
        """Return the cache of the same statistics with classes in another order; nothing large is solved again."""
        solution, known = self.solution, None
        if solution is not None:
            solution = replace(solution, weights=solution.weights[:, order], offset=solution.offset[order])
        if self.known_scatter is not None and self.known_scatter[1].basis is None:
            known = self.known_scatter[0].select(order), model.state.reduced()
        made = replace(self, model=model, solution=solution, known_scatter=known)
        if "expected_terms" in vars(self):
            made.expected_terms = self.expected_terms
        return made

    def refreshed(self) -> SolvedCache:
        """Return a cache in which everything is chosen for just these statistics."""
        if self.choice is None or self.is_fresh:
            return self
        choice = replace(self.choice, rows=0)
        return SolvedCache(self.model, self.kind, self.fixed, choice, shape_masses=self.shape_masses)

    # -- answers ----------------------------------------------------------------------------------------------

    def readout(self) -> Readout:
        """Return the linear class scores."""
        model = self.model
        if self.solution is None and self.kind == "ridge":
            self.solution = solve_ridge(model.state, model.masses, self.fixed, model.pooled_rows)
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
            weights = choose_weights(self.model) if denoised else ()
            geometry = weighted_geometry(self.model, weights)
            self.choice = self._choose(geometry, fixed, None if last is None else last.step, weights)
            self.known_scatter, self.is_fresh = None, True
        if self.choice is None:
            raise RuntimeError("a choice was made above")
        if self.known_scatter is None:
            geometry = weighted_geometry(self.model, self.choice.weights) if geometry is None else geometry
            self.known_scatter = SolvedScatter.of(geometry, self.choice.alpha), geometry.stats
        return self.choice, *self.known_scatter

    def _choose(
        self, geometry: ClassGeometry, alpha: float | None, start: int | None, weights: tuple[float, ...]
    ) -> Choice:
        """Choose the ridge, unless it is given, and the strength of the prior of shapes."""
        model, step = self.model, 0
        if alpha is None:
            rows = model.pooled_rows
            energy = row_energy(geometry.stats, model.masses, rows)
            whole = float(geometry.stats.gram.diagonal().sum()) / rows
            # Where all rows are the same up to rounding, the scale is that of a whole row, not of a centred one.
            alpha, step = choose_ridge(geometry, energy if energy > 1e-10 * whole else whole, start)
        masses = model.masses if self.shape_masses is None else self.shape_masses
        strength = 1.0 if model.shapes is None else ShapeScores(model.shapes, masses).strength
        return Choice(alpha, step, strength, model.rows, weights)

    def as_seen(self, Z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return features (n, d) in the coordinates of the statistics (n, k), and their energy (n,) outside."""
        choice, _, stats = self.scatter()
        H = weighted_rows(self.model, choice.weights, Z)
        if stats.basis is None:
            return H, None
        reduced = stats.project(H)
        return reduced, (H.square().sum(dim=1) - reduced.square().sum(dim=1)).clamp_min(0.0)

    def novelty_terms(self, Z: Tensor) -> Tensor:
        """Return the terms of novelty of features (n, d), and 1 / count of the nearest class."""
        blocks = torch.split(Z, _TERM_ROWS)
        return torch.cat([bounded(self.terms.of_rows(*self.as_seen(block)), block) for block in blocks])

    @cached_property
    def shapes(self) -> ShapeScores | None:
        """What the shapes of classes add to the scores; None where no shapes are kept."""
        if self.model.shapes is None or self.kind == "ridge":
            return None
        self.readout()
        strength = 1.0 if self.choice is None else self.choice.strength
        masses = self.model.masses if self.shape_masses is None else self.shape_masses
        return ShapeScores(self.model.shapes, masses, strength)

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
        return NoveltyPool((KnownTerms.of(self.expected_terms, int(self.model.counts.sum())),)).standard()

    @cached_property
    def expected_terms(self) -> NDArray[np.float64]:
        """Terms of rows drawn as the statistics say known ones are."""
        return np.asarray(self.terms.expected_rows().cpu().numpy())

    def fold_outs(self, Z: Tensor, codes: Tensor, folds: Tensor, weights: Tensor | None = None) -> FoldOuts:
        """Score learned rows, each as if its fold had not been learned.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            The rows; of each class at least one learned row must not be in any one fold.
        codes, folds : Tensor of shape (n,)
            Their classes and their folds.
        weights : Tensor of shape (n,), optional
            What they were learned with, where that is not one. Each is scored once all the same.
        """
        self.readout()  # most of its cost is shared with what comes now, and a file keeps it
        choice, scatter, _ = self.scatter()
        shapes, spread = self.model.shapes, 0.0
        rows = *self.as_seen(Z), None if shapes is None else shapes.rows(self.model.inputs(Z))
        scores, terms = Z.new_empty(len(codes), len(scatter.counts)), Z.new_empty(len(codes), 6)
        for fold in torch.unique(folds).tolist():
            mine = torch.nonzero(folds == fold).ravel()
            own, taken, reduced = codes[mine], None if weights is None else weights[mine], rows[0][mine]
            outside, shape = (None if part is None else part[mine] for part in rows[1:])
            rest = scatter.follow(reduced, own, taken, sign=-1)
            terms[mine] = NoveltyTerms.of(rest).of_rows(reduced, outside)
            estimates = rest.estimate_means()
            linear = torch.addmm(estimates.offset, reduced, estimates.weights)
            if shapes is not None and shape is not None:
                moments = shapes.remove(shape, own, self.model.masses, taken)
                linear = ShapeScores(moments, rest.counts, choice.strength).add(shape, linear)
            scores[mine] = linear
            spread += estimates.spread * len(mine) / len(codes)
        found = np.asarray(terms.cpu().numpy())
        if self.kind == "ridge":
            return FoldOuts(found)
        return FoldOuts(found, mean_log_losses(scores, codes), guessed_temperature(spread))
