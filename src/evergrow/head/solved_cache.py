"""The cache of results solved from the statistics of a model.

Readout, temperature, class shapes and terms of novelty are solved when first needed and
kept until the statistics change. A few more or fewer rows update a solved scatter
instead of factoring it again.

Probabilities and novelty are calibrated on learned rows that are scored as if their
fold had not been learned. Means, scatter, degrees of freedom and class shapes are
exactly those of the other rows. The ridge and the strength of the prior of shapes stay
the same. No k x k matrix is factored again: the solved scatter is updated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.record import Between, record, require
from evergrow.head.linalg.class_shapes import ShapeScores
from evergrow.head.linalg.ridge_choice import choose_ridge
from evergrow.head.linalg.scatter import (
    MAX_CORRECTIONS,
    ClassGeometry,
    SolvedScatter,
)
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.novelty.score import (
    N_COLUMNS,
    NoveltyStandard,
    term_units,
    to_units,
)
from evergrow.head.novelty.terms import NoveltyTerms
from evergrow.head.readout import (
    Choice,
    choose_weights,
    column_scale,
    ridge_temperature,
    solve_ridge,
    weighted_rows,
    weighted_statistics,
)
from evergrow.head.ridge_model import RidgeModel, row_energy
from evergrow.head.temperature import TEMPERATURES, log_losses

T = TypeVar("T")

UNCALIBRATED = 0.06
"""Temperature per energy of a true class mean, if no row was ever held out. At the ends
of streams of image and text features, the calibrated temperature is 0.03 to 0.12 of
that energy."""

_CHUNK_ROWS = 4096  # rows whose terms of novelty are computed at once


# -- attributes that are computed once -------------------------------------------------


class solved_once(Generic[T]):  # noqa: N801 (used like a property)
    """An attribute that is computed at its first use, by one thread.

    Like :func:`functools.cached_property`, but the lock ``_lock`` of the instance is
    held meanwhile. The lock must be reentrant if one such attribute needs another.

    Examples
    --------
    >>> import threading
    >>> from evergrow.head.solved_cache import solved_once
    >>> class Square:
    ...     def __init__(self, side):
    ...         self.side = side
    ...         self._lock = threading.RLock()
    ...     @solved_once
    ...     def area(self):
    ...         return self.side**2
    >>> Square(3).area
    9
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Self | T:
        if instance is None:
            return self
        values = vars(instance)
        with instance._lock:
            if self._name not in values:
                values[self._name] = self._compute(instance)
            found: T = values[self._name]
        return found


class Locked:
    """An object with a lock. Copies and unpickled objects get a new lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


# -- results ---------------------------------------------------------------------------


@record("head-solution")
@dataclass(frozen=True, eq=False)
class Solution:
    """The solved results that a file keeps, so that a loaded model predicts at once.

    Parameters
    ----------
    readout : Readout
        The linear class scores.
    temperature : float or None
        Temperature estimated from the statistics. None if it was not computed.
    choice : Choice or None
        Settings of the denoised readout. None for the ridge readout.
    """

    readout: Readout
    temperature: Annotated[float, Between(above=0.0)] | None = None
    choice: Choice | None = None


@dataclass(frozen=True, eq=False)
class SolvedChoice:
    """Chosen settings, and the class means solved with them.

    Parameters
    ----------
    choice : Choice or None
        The settings. None if nothing was chosen.
    scatter : SolvedScatter or None
        The class means solved with these settings. None if they are not solved.
    stats : RidgeStatistics or None
        The statistics in the coordinates of ``scatter``.
    is_fresh : bool
        Whether ridge and strength were chosen for exactly these statistics.
    """

    choice: Choice | None = None
    scatter: SolvedScatter | None = None
    stats: RidgeStatistics | None = None
    is_fresh: bool = False

    @property
    def has_full_scatter(self) -> bool:
        """Whether there is a solved scatter in the coordinates of the activations."""
        return (
            self.scatter is not None
            and self.stats is not None
            and self.stats.basis is None
        )


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Terms and losses of rows scored as if they had not been learned.

    Parameters
    ----------
    terms : ndarray of shape (n, 6)
        Terms of novelty of each row, and 1 / count of the nearest class.
    losses : ndarray of shape (n, 29) or None
        Log loss of each row at every temperature of
        :data:`~evergrow.head.temperature.TEMPERATURES`. None for the ridge readout,
        whose temperature follows from the statistics.
    guess : float
        Temperature estimated from the statistics.
    """

    terms: NDArray[np.float64]
    losses: NDArray[np.float64] | None = None
    guess: float = 1.0

    @property
    def log_losses(self) -> NDArray[np.float64] | None:
        """Mean log loss at every temperature (29,); None for the ridge readout."""
        if self.losses is None:
            return None
        means: NDArray[np.float64] = self.losses.mean(axis=0)
        return means


class SolvedCache(Locked):
    """Results solved from the statistics of a model, each when it is first needed.

    The settings (ridge, block weights, strength of the prior of shapes) are chosen
    again when the number of rows has changed by a quarter.

    Threads may share a cache. Every result is computed once, under a lock, and does not
    change afterwards.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    kind : {"denoised", "ridge"}
        The readout.
    fixed : float or None
        The ridge. None chooses it from the statistics.
    known : SolvedChoice, optional
        Settings chosen before the last change, and the class means if they are already
        solved with them.
    solution : Readout, optional
        The linear class scores, if they are already solved.
    temperature : float, optional
        The temperature estimated from the statistics, if it is already known.
    shape_masses : Tensor of shape (C,), optional
        Sums of weights behind the class shapes. By default the masses of the model.
    """

    def __init__(
        self,
        model: RidgeModel,
        kind: str,
        fixed: float | None,
        known: SolvedChoice | None = None,
        *,
        solution: Readout | None = None,
        temperature: float | None = None,
        shape_masses: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.fixed = fixed
        self.shape_masses = shape_masses
        # Replaced as a whole by `scatter`, so that the old scatter can be freed.
        self._known = SolvedChoice() if known is None else known
        self._is_chosen = False
        if solution is not None:
            vars(self)["_solution"] = solution, temperature

    @property
    def choice(self) -> Choice | None:
        """The settings chosen last. None if nothing was chosen."""
        return self._known.choice

    def solution(self) -> Solution | None:
        """Return the solved results, without solving. None without class scores."""
        if "_solution" not in vars(self):
            return None
        readout, temperature = self._solution
        if temperature is None:
            temperature = vars(self).get("_temperature")
        return Solution(readout, temperature, self.choice)

    # -- caches of changed models ------------------------------------------------------

    def after(self, model: RidgeModel, fixed: float | None) -> SolvedCache:
        """Return the cache of another model. Its search starts at these settings."""
        return SolvedCache(model, self.kind, fixed, SolvedChoice(self.choice))

    def followed(
        self,
        model: RidgeModel,
        Z: Tensor,
        codes: Tensor,
        groups: list[list[int]] | None,
        weights: Tensor | None,
    ) -> SolvedCache:
        """Return the cache of a model that learned or unlearned rows.

        The solved scatter is updated if that is exact and cheap.

        Parameters
        ----------
        model : RidgeModel
            The model after the change.
        Z : Tensor of shape (n, d)
            The rows.
        codes : Tensor of shape (n,)
            Their classes, as columns of the new model.
        groups : list of list of int or None
            The old columns of each new class. None if the rows were unlearned.
        weights : Tensor of shape (n,) or None
            Weights of the rows. None stands for ones.
        """
        known = self._known
        if (
            known.choice is None
            or known.scatter is None
            or not known.has_full_scatter
            or model.state.basis is not None
            or len(known.scatter.signs) + len(codes) > MAX_CORRECTIONS
        ):
            return self.after(model, self.fixed)
        H = weighted_rows(model, known.choice.weights, Z)
        if groups is None:
            scatter = known.scatter.follow(H, codes, weights, sign=-1)
        else:
            scatter = known.scatter.group(groups).follow(H, codes, weights)
        known = SolvedChoice(known.choice, scatter, model.state)
        return SolvedCache(model, self.kind, self.fixed, known)

    def reordered(self, model: RidgeModel, order: list[int]) -> SolvedCache:
        """Return the cache of the same statistics with classes in another order."""
        readout: Readout | None = None
        temperature: float | None = None
        solution = self.solution()
        if solution is not None:
            temperature = solution.temperature
            readout = replace(
                solution.readout,
                weights=solution.readout.weights[:, order],
                offset=solution.readout.offset[order],
            )
        known = self._known
        if known.scatter is None or not known.has_full_scatter:
            known = replace(known, scatter=None, stats=None)
        else:
            scatter = known.scatter.group([[old] for old in order])
            known = replace(known, scatter=scatter, stats=model.state)
        made = SolvedCache(
            model,
            self.kind,
            self.fixed,
            known,
            solution=readout,
            temperature=temperature,
            shape_masses=self.shape_masses,
        )
        if "expected_terms" in vars(self):
            vars(made)["expected_terms"] = self.expected_terms
        return made

    def refreshed(self) -> SolvedCache:
        """Return a cache whose settings are chosen for exactly these statistics."""
        known = self._known
        if known.choice is None or known.is_fresh:
            return self
        return SolvedCache(
            self.model,
            self.kind,
            self.fixed,
            SolvedChoice(replace(known.choice, rows=0)),
            shape_masses=self.shape_masses,
        )

    def restored(self, solution: Solution | None) -> SolvedCache:
        """Return the cache with the solved results of a file.

        Raises
        ------
        FileFormatError
            If the results do not fit the model.
        """
        if solution is None:
            return self
        model = self.model
        choice = solution.choice
        shape = (model.layer.n_outputs, len(model.counts))
        require(
            solution.readout.weights.shape == shape,
            "its solution is of another layer or of other classes",
        )
        require(
            choice is not None or self.kind == "ridge",
            "its solution has no settings of the readout",
        )
        n_blocks = 0 if model.blocks is None else len(model.blocks.sizes)
        require(
            choice is None or len(choice.weights) in (0, n_blocks),
            "its solution has weights of another number of blocks",
        )
        is_fresh = choice is not None and choice.rows == model.rows
        return SolvedCache(
            model,
            self.kind,
            self.fixed,
            SolvedChoice(choice, is_fresh=is_fresh),
            solution=solution.readout,
            temperature=solution.temperature,
            shape_masses=self.shape_masses,
        )

    # -- scatter and readout -----------------------------------------------------------

    def readout(self) -> Readout:
        """Return the linear class scores."""
        return self._solution[0]

    @solved_once
    def _solution(self) -> tuple[Readout, float | None]:
        """The linear class scores, and the temperature if it is solved with them."""
        if self.kind == "ridge":
            return solve_ridge(self.model, self.fixed), None
        choice, scatter, stats = self.scatter()
        estimates = scatter.estimate_means()
        weights = stats.lift(estimates.weights)
        scale = column_scale(self.model, choice.weights)
        if scale is not None:
            weights = scale[:, None] * weights
        readout = Readout(
            weights, estimates.offset, choice.alpha, scatter.factor.jitter
        )
        return readout, 1.0 + UNCALIBRATED * estimates.spread

    def scatter(self) -> tuple[Choice, SolvedScatter, RidgeStatistics]:
        """Return the settings, the solved class means, and their statistics."""
        if not self._is_chosen:
            with self._lock:
                if not self._is_chosen:
                    self._solve_scatter()
        known = self._known
        if known.choice is None or known.scatter is None or known.stats is None:
            raise AssertionError("the class means must be solved by now")
        return known.choice, known.scatter, known.stats

    def _solve_scatter(self) -> None:
        """Choose settings and solve for the class means. The caller holds the lock."""
        # With the ridge readout, only novelty uses the scatter. Its ridge is always
        # chosen.
        alpha = self.fixed if self.kind == "denoised" else None
        geometry: ClassGeometry | None = None
        known = self._known
        choice = known.choice
        if (
            choice is None
            or not choice.holds(self.model.rows)
            or alpha not in (None, choice.alpha)
        ):
            del known  # holds the old scatter, which may be freed now
            known, choice, geometry = self._choose_settings(alpha)
        if known.scatter is None:
            if geometry is None:
                geometry = self._geometry(choice.weights)
            # Keep one Gram matrix only.
            stats = self.model.state
            if geometry.stats.basis is not None:
                stats = geometry.stats
            scatter = SolvedScatter.of(geometry, choice.alpha)
            known = replace(known, scatter=scatter, stats=stats)
        self._known = known
        self._is_chosen = True  # last, for threads that do not hold the lock

    def _choose_settings(
        self, alpha: float | None
    ) -> tuple[SolvedChoice, Choice, ClassGeometry]:
        """Choose block weights, ridge and strength. Keep the scatter if it still fits.

        A scatter that does not fit is freed before another matrix of its size is made.
        """
        known = self._known
        weights: tuple[float, ...] = ()
        if self.kind == "denoised":
            weights = choose_weights(self.model, known.choice)
        geometry = self._geometry(weights)
        if known.choice is None or known.choice.weights != weights:
            known = self._known = replace(known, scatter=None, stats=None)
        start = None if known.choice is None else known.choice.step
        step = 0
        if alpha is None:
            alpha, step = self._choose_alpha(geometry, start, known.scatter)
        strength = 1.0
        if self.model.shapes is not None:
            strength = ShapeScores(self.model.shapes, self._shape_masses()).strength
        choice = Choice(alpha, step, strength, self.model.rows, weights)
        if known.scatter is not None and known.scatter.alpha != alpha:
            known = self._known = replace(known, scatter=None, stats=None)
        is_fresh = known.scatter is None
        return replace(known, choice=choice, is_fresh=is_fresh), choice, geometry

    def _choose_alpha(
        self,
        geometry: ClassGeometry,
        start: int | None,
        scatter: SolvedScatter | None,
    ) -> tuple[float, int]:
        """Choose the ridge. Return it and its index on the grid."""
        model = self.model
        rows = model.pooled_rows
        energy = row_energy(geometry.stats, model.masses, rows)
        total = float(geometry.stats.gram.diagonal().sum()) / rows
        # If all rows are equal up to rounding, use the energy of a row that is not
        # centred.
        if not energy > 1e-10 * total:
            energy = total
        return choose_ridge(geometry, energy, start, scatter)

    def _geometry(self, weights: tuple[float, ...]) -> ClassGeometry:
        """Return class means and scatter of activations with block weights."""
        stats = weighted_statistics(self.model, weights)
        return ClassGeometry.of(stats, self.model.masses)

    def _shape_masses(self) -> Tensor:
        if self.shape_masses is None:
            return self.model.masses
        return self.shape_masses

    @solved_once
    def shapes(self) -> ShapeScores | None:
        """The terms that class shapes add to the scores. None without shapes."""
        if self.model.shapes is None or self.kind == "ridge":
            return None
        self.readout()
        strength = 1.0 if self.choice is None else self.choice.strength
        return ShapeScores(self.model.shapes, self._shape_masses(), strength)

    def temperature(self) -> float:
        """Return the softmax temperature estimated from the statistics."""
        return self._temperature

    @solved_once
    def _temperature(self) -> float:
        readout, temperature = self._solution
        if temperature is not None:
            return temperature
        if self.kind == "ridge":
            return ridge_temperature(self.model, readout)
        return 1.0 + UNCALIBRATED * self.scatter()[1].estimate_means().spread

    # -- novelty -----------------------------------------------------------------------

    def project(self, Z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Project features onto the coordinates of the statistics.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.

        Returns
        -------
        rows : Tensor of shape (n, k)
            The coordinates.
        outside : Tensor of shape (n,) or None
            Energy outside these coordinates. None if they span all activations.
        """
        choice, _, stats = self.scatter()
        H = weighted_rows(self.model, choice.weights, Z)
        if stats.basis is None:
            return H, None
        reduced = stats.project(H)
        outside = H.square().sum(dim=1) - reduced.square().sum(dim=1)
        return reduced, outside.clamp_min(0.0)

    def whiten(self, Z: Tensor) -> Tensor:
        """Return whitened features (n, k): centred, in units of the scatter."""
        rows, _ = self.project(Z)
        factor = self.scatter()[1].factor
        return factor.half_solve((rows - self.terms.centre).T).T

    def novelty_terms(self, Z: Tensor) -> Tensor:
        """Return the terms of novelty and 1 / count (n, 6) of features (n, d)."""
        chunks = [
            self.terms.of_rows(*self.project(chunk))
            for chunk in torch.split(Z, _CHUNK_ROWS)
        ]
        # The terms of rows whose squares overflow count as infinite.
        return torch.nan_to_num(torch.cat(chunks), nan=torch.inf)

    @solved_once
    def terms(self) -> NoveltyTerms:
        """The matrices from which terms of novelty are computed."""
        return NoveltyTerms.of(self.scatter()[1], self._gram)

    def _gram(self, H: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Return the sum of h h^T (k, k) over all rows except the rows of H (n, k)."""
        gram = weighted_statistics(self.model, self.scatter()[0].weights).gram
        if H is None:
            return gram
        weighted = H if weights is None else weights[:, None] * H
        return torch.addmm(gram, H.T, weighted, alpha=-1.0)

    @solved_once
    def standard(self) -> NoveltyStandard:
        """The novelty score without calibration, from terms expected of known rows."""
        terms = self.expected_terms
        return NoveltyStandard.of(terms.mean(axis=0), terms.T @ terms / len(terms))

    @solved_once
    def expected_terms(self) -> NDArray[np.float64]:
        """Terms of rows drawn from the statistics."""
        return np.asarray(self.terms.expected_rows().cpu().numpy())

    # -- held-out rows -----------------------------------------------------------------

    def held_out_scores(
        self, Z: Tensor, codes: Tensor, folds: Tensor, weights: Tensor | None = None
    ) -> HeldOutScores:
        """Score learned rows, each as if its fold had not been learned.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            The rows. No fold may contain all learned rows of a class.
        codes : Tensor of shape (n,)
            Their classes.
        folds : Tensor of shape (n,)
            Their folds.
        weights : Tensor of shape (n,), optional
            The weights they were learned with. By default ones. Each row is scored once
            in any case.
        """
        # Most of its cost is shared with the lines below, and files keep the result.
        self.readout()
        n_classes = len(self.scatter()[1].counts)
        shapes = self.model.shapes
        reduced, outside = self.project(Z)
        shape_rows = None if shapes is None else shapes.rows(self.model.inputs(Z))
        scores = Z.new_empty(len(codes), n_classes)
        terms = Z.new_empty(len(codes), N_COLUMNS)
        spread = 0.0
        for fold in torch.unique(folds).tolist():
            rows = torch.nonzero(folds == fold).ravel()
            terms[rows], scores[rows], fold_spread = self._score_fold(
                reduced[rows],
                codes[rows],
                _take(weights, rows),
                _take(outside, rows),
                _take(shape_rows, rows),
            )
            spread += fold_spread * len(rows) / len(codes)
        found = np.asarray(terms.cpu().numpy())
        if self.kind == "ridge":
            return HeldOutScores(found)
        guess = 1.0 + UNCALIBRATED * spread
        return HeldOutScores(found, log_losses(scores, codes), guess)

    def scores_as_new_class(
        self, Z: Tensor, codes: Tensor, folds: Tensor, weights: Tensor | None = None
    ) -> HeldOutScores:
        """Score learned rows, each as if no class of its fold had been learned.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            All learned rows of some classes.
        codes : Tensor of shape (n,)
            Their classes.
        folds : Tensor of shape (n,)
            Their folds. All rows of a class are in one fold, and at least two classes
            are not in it.
        weights : Tensor of shape (n,), optional
            The weights they were learned with. By default ones.

        Returns
        -------
        HeldOutScores
            Terms in units of the terms that the statistics without the fold expect of
            known rows (:func:`~evergrow.head.novelty.score.to_units`), and log losses
            of the class that these statistics predict.
        """
        choice, scatter, _ = self.scatter()
        reduced, outside = self.project(Z)
        shapes = self.model.shapes
        shape_rows = None if shapes is None else shapes.rows(self.model.inputs(Z))
        found = np.empty((len(codes), N_COLUMNS))
        losses = np.empty((len(codes), len(TEMPERATURES)))
        for fold in torch.unique(folds).tolist():
            rows = torch.nonzero(folds == fold).ravel()
            H = reduced[rows]
            left_out = torch.unique(codes[rows]).tolist()
            kept = [c for c in range(len(scatter.counts)) if c not in left_out]
            own_weights = _take(weights, rows)
            rest = scatter.without_classes(H, codes[rows], own_weights)
            matrices = NoveltyTerms.of(rest, partial(self._gram, H, own_weights))
            units = term_units(matrices.expected_rows().cpu().numpy())
            terms = matrices.of_rows(H, _take(outside, rows)).cpu().numpy()
            estimates = rest.estimate_means()
            scores = torch.addmm(estimates.offset, H, estimates.weights)
            if shapes is not None and shape_rows is not None:
                moments = shapes.group([[column] for column in kept])
                without_fold = ShapeScores(moments, rest.counts, choice.strength)
                scores = without_fold.add(shape_rows[rows], scores)
            own = rows.cpu().numpy()
            found[own] = to_units(terms, units)
            losses[own] = log_losses(scores, scores.argmax(dim=1))
        return HeldOutScores(found, None if self.kind == "ridge" else losses)

    def _score_fold(
        self,
        reduced: Tensor,
        codes: Tensor,
        weights: Tensor | None,
        outside: Tensor | None,
        shape_rows: Tensor | None,
    ) -> tuple[Tensor, Tensor, float]:
        """Score the rows of a fold with the model of all other rows.

        Parameters
        ----------
        reduced, outside : Tensor of shape (n, k) and (n,)
            The rows, as :meth:`project` returns them.
        codes, weights : Tensor of shape (n,)
            Their classes and weights.
        shape_rows : Tensor or None
            The rows in the directions of the class shapes.

        Returns
        -------
        terms : Tensor of shape (n, 6)
        scores : Tensor of shape (n, C)
        spread : float
            Energy of a true class mean.
        """
        choice, scatter, _ = self.scatter()
        rest = scatter.follow(reduced, codes, weights, sign=-1)
        gram = partial(self._gram, reduced, weights)
        terms = NoveltyTerms.of(rest, gram).of_rows(reduced, outside)
        estimates = rest.estimate_means()
        scores = torch.addmm(estimates.offset, reduced, estimates.weights)
        shapes = self.model.shapes
        if shapes is not None and shape_rows is not None:
            moments = shapes.add(shape_rows, codes, -1.0, weights)
            without_fold = ShapeScores(moments, rest.counts, choice.strength)
            scores = without_fold.add(shape_rows, scores)
        return terms, scores, estimates.spread


def _take(values: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the values of some rows. None stays None."""
    return None if values is None else values[rows]
