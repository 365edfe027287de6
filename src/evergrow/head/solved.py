"""What a classifier works out from its statistics, kept until they change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from evergrow.head.linalg import RidgeStatistics, ShapeScores, SolvedScatter
from evergrow.head.novelty import KnownTerms, NoveltyPool, NoveltyStandard, NoveltyTerms
from evergrow.head.readout import (
    Choice,
    Readout,
    choose,
    choose_weights,
    column_scale,
    estimate_means,
    guessed_temperature,
    ridge_temperature,
    solve_ridge,
    weighted_geometry,
    weighted_rows,
)
from evergrow.head.ridge_model import RidgeModel


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
        """Whether ridge and strength were chosen for just these statistics."""
        # A solution that was followed is in the coordinates of the features.
        self._scatter = None if scatter is None else (scatter, model.state.reduced())
        self._shapes: ShapeScores | None = None
        self._terms: NoveltyTerms | None = None
        self._standard: NoveltyStandard | None = None

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
                learned = columns is not None
                scatter = before.learned(H, codes, columns or [], weights) if learned else None
                scatter = scatter if learned else before.unlearned(H, codes, weights)
        return self.after(model, self.fixed, scatter)

    def reordered(self, model: RidgeModel, order: list[int]) -> SolvedCache:
        """Return the cache of the same statistics with classes in another order; nothing large is solved again."""
        made = SolvedCache(model, self.kind, self.fixed, self.last_alpha, self.choice)
        made.warmth, made.is_fresh, made._standard = self.warmth, self.is_fresh, self._standard
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
        if self.solution is None:
            model = self.model
            if self.kind == "ridge":
                self.solution = solve_ridge(
                    model.state, model.masses, self.fixed, model.pooled_rows, last=self.last_alpha
                )
            else:
                self.solution = self._denoised()
        return self.solution

    def _denoised(self) -> Readout:
        choice, scatter, stats = self.scatter()
        estimates = estimate_means(scatter)
        self.warmth = guessed_temperature(estimates.spread)
        lifted, scale = stats.lift(estimates.weights), column_scale(self.model, choice.weights)
        if scale is not None:
            lifted = scale[:, None] * lifted
        return Readout(lifted, estimates.offset, choice.alpha, choice.alpha, scatter.factor.jitter)

    def scatter(self) -> tuple[Choice, SolvedScatter, RidgeStatistics]:
        """Return what was chosen, the class means solved at it, and the statistics with their coordinates."""
        geometry, denoised = None, self.kind == "denoised"
        # Ridge regression has a ridge of its own; that of the scatter, for novelty, is always chosen.
        fixed, last = self.fixed if denoised else None, self.choice
        if last is None or not last.holds(self.model.rows) or fixed not in (None, last.alpha):
            weights = choose_weights(self.model) if denoised else ()
            geometry = weighted_geometry(self.model, weights)
            self.choice = choose(self.model, geometry, fixed, None if last is None else last.step, weights)
            self._scatter, self.is_fresh = None, True
        if self.choice is None:
            raise RuntimeError("a choice was made above")
        if self._scatter is None:
            geometry = weighted_geometry(self.model, self.choice.weights) if geometry is None else geometry
            self._scatter = SolvedScatter.of(geometry, self.choice.alpha), geometry.stats
        return self.choice, *self._scatter

    def shapes(self) -> ShapeScores | None:
        """Return what the shapes of classes add to the scores; None where no shapes are kept."""
        shapes = self.model.shapes
        if shapes is None or self.kind == "ridge":
            return None
        if self._shapes is None:
            self.readout()
            strength = 1.0 if self.choice is None else self.choice.strength
            self._shapes = ShapeScores.of(shapes.moments, self.model.masses, strength)
        return self._shapes

    def temperature(self) -> float:
        """Return a temperature for probabilities, guessed from the statistics."""
        readout = self.readout()
        if self.warmth is None and self.kind == "ridge":
            self.warmth = ridge_temperature(self.model, readout)
        elif self.warmth is None:
            self.warmth = guessed_temperature(estimate_means(self.scatter()[1]).spread)
        return self.warmth

    def terms(self) -> NoveltyTerms:
        """Return what novelty is weighed from."""
        if self._terms is None:
            self._terms = NoveltyTerms.of(self.scatter()[1])
        return self._terms

    def standard(self) -> NoveltyStandard:
        """Return how terms become a score where nothing was calibrated: by what the statistics say of known rows."""
        if self._standard is None:
            rows = np.asarray(self.terms().expected_rows().cpu().numpy())
            self._standard = NoveltyPool((KnownTerms.of(rows, int(self.model.counts.sum())),)).standard()
        return self._standard
