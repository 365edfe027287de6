"""Results solved from the statistics of a model, and the state of a classifier.

**Readouts.** The ridge readout is the ridge regression on one-hot targets. The denoised
readout solves for the class means at a chosen ridge
(:mod:`evergrow.head.linalg.ridge_choice`) and removes their noise
(:mod:`evergrow.head.linalg.scatter`). Before that, blocks of features are multiplied by
weights chosen from the statistics (:mod:`evergrow.head.block_weights`).

**When.** Readout, temperature, class shapes and terms of novelty are solved when first
needed and kept until the statistics change. A few more or fewer rows update a solved
scatter instead of factoring it again.

**Held-out rows.** Probabilities and novelty are calibrated on learned rows that are
scored as if their fold had not been learned. Means, scatter, degrees of freedom and
class shapes are exactly those of the other rows. The ridge and the strength of the
prior of shapes stay the same. No k x k matrix is factored again: the solved scatter is
updated.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.record import Between, record, require
from evergrow.head.block_weights import choose_link_weights
from evergrow.head.layers.feature_map import check_weights
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.leave_one_out import LeaveOneOut
from evergrow.head.linalg.ridge_choice import choose_ridge
from evergrow.head.linalg.scatter import (
    MAX_CORRECTIONS,
    ClassGeometry,
    MeanEstimates,
    SolvedScatter,
)
from evergrow.head.linalg.shape_scores import LeftOutRows, ShapeScores
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.novelty.matrices import NoveltyMatrices
from evergrow.head.novelty.score import (
    N_COLUMNS,
    NoveltyStandard,
    term_units,
    to_units,
)
from evergrow.head.novelty.terms import NoveltyTerms
from evergrow.head.ridge_model import (
    LayerMap,
    RidgeModel,
    layer_map,
    row_energy,
    solve_ridge,
)
from evergrow.head.temperature import TEMPERATURES, log_losses

if TYPE_CHECKING:
    from evergrow.head.pseudo_labels import PseudoLabels

T = TypeVar("T")

READOUTS = ("denoised", "ridge")

GROWTH = 1.25
"""Factor by which the number of rows must change before settings are chosen again."""

EXPECTED_TEMPERATURE = (0.04, 0.08)
"""Expected temperature without energy of a true class mean, and per such energy. On
image and text features with 5 to 25 samples in each of 5 to 100 classes, the best
temperature per energy is 0.04 to 0.2, and varies little within a data set."""

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

    def __get__(self, instance: Locked | None, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        values = vars(instance)
        with instance._lock:
            if self._name not in values:
                values[self._name] = self._compute(instance)
            found: T = values[self._name]
        return found


class Locked:
    """An object with a lock. Copies and unpickled objects get a new lock."""

    _lock: Any

    def __init__(self) -> None:
        vars(self)["_lock"] = threading.RLock()  # also in a frozen dataclass

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        Locked.__init__(self)


# -- results ---------------------------------------------------------------------------


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
    """Initial content of a cache: chosen settings and their solved class means.

    Parameters
    ----------
    choice : Choice or None
        The settings. None if nothing was chosen.
    scatter : SolvedScatter or None
        The class means solved with these settings. None if they are not solved.
    stats : RidgeStatistics or None
        The statistics in the coordinates of ``scatter``. None without it.
    is_fresh : bool
        Whether ridge and strength were chosen for exactly these statistics.
    """

    choice: Choice | None = None
    scatter: SolvedScatter | None = None
    stats: RidgeStatistics | None = None
    is_fresh: bool = False

    def full_scatter(self) -> SolvedScatter | None:
        """Return the scatter if its coordinates are the activations, else None."""
        if self.stats is None or self.stats.basis is not None:
            return None
        return self.scatter


class SolvedMeans(NamedTuple):
    """Solved class means. The fields are those of :class:`SolvedChoice`."""

    choice: Choice
    scatter: SolvedScatter
    stats: RidgeStatistics


@dataclass(frozen=True, eq=False)
class SquaredLengths:
    """Coefficients of the squared length of an activation row h.

    With units u and features z,
    ``|h|^2 = gain^2 |u|^2 + |factors (z - centre)|^2 + constant``

    Parameters
    ----------
    gain : float
        Factor of the units.
    centre, factors : Tensor of shape (d,) or None
        Of the direct link. None without a link.
    constant : float
        1 with an intercept, else 0.
    """

    gain: float
    centre: Tensor | None
    factors: Tensor | None
    constant: float


@dataclass(frozen=True, eq=False)
class NoveltyMap:
    """The terms of novelty as matrices.

    Parameters
    ----------
    whiten : LayerMap
        From features to whitened rows (n, r).
    matrices : NoveltyMatrices
        From whitened rows to terms.
    lengths : SquaredLengths or None
        Squared lengths of activations, from which the energy outside of the coordinates
        of the statistics follows. None if they span all activations.
    """

    whiten: LayerMap
    matrices: NoveltyMatrices
    lengths: SquaredLengths | None


class _FoldScores(NamedTuple):
    """Scores of n rows by a model without them, see `SolvedCache._scores_by_fold`."""

    novelty: NoveltyTerms
    """The terms of novelty of any row by this model."""
    terms: Tensor
    """Terms of novelty (n, 6) of the rows."""
    scores: Tensor
    """Class scores (n, C)."""
    spread: float
    """Energy of a true class mean."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Terms of novelty and log losses of rows scored as if they were not learned.

    Parameters
    ----------
    terms : ndarray of shape (n, 6)
        Terms of novelty of each row, and 1 / count of the nearest class.
    losses : ndarray of shape (n, 29) or None
        Log loss of each row at every temperature of
        :data:`~evergrow.head.temperature.TEMPERATURES`, in units of the temperature
        expected by the scoring model. None for the ridge readout, whose temperature
        follows from the statistics.
    """

    terms: NDArray[np.float64]
    losses: NDArray[np.float64] | None = None


class SolvedCache(Locked):
    """Results solved from the statistics of a model, each when it is first needed.

    The settings (ridge, block weights, strength of the prior of shapes) are chosen
    again when the number of rows has changed by a quarter.

    Threads may share a cache. Every result is computed once, under a lock, and does not
    change afterwards. Copies for changed statistics share the results that stay valid.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    kind : {"denoised", "ridge"}
        The readout.
    fixed_alpha : float or None
        The ridge. None chooses it from the statistics.
    known : SolvedChoice, optional
        Settings chosen before the last change, and the class means if they are already
        solved with them.
    solution : Solution, optional
        The class scores and their temperature, if they are already solved.
    shape_masses : Tensor of shape (C,), optional
        Sums of the weights of the samples in the class shapes. By default the masses
        of the model. With pseudo-labels, those of the labelled samples.
    """

    def __init__(
        self,
        model: RidgeModel,
        kind: str,
        fixed_alpha: float | None,
        known: SolvedChoice | None = None,
        *,
        solution: Solution | None = None,
        shape_masses: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.fixed_alpha = fixed_alpha
        self.shape_masses = shape_masses
        # Replaced as a whole by `means`, so that the old scatter can be freed.
        self._known = SolvedChoice() if known is None else known
        if solution is not None:
            vars(self)["_solution"] = solution.readout, solution.temperature

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

    def for_model(
        self,
        model: RidgeModel,
        known: SolvedChoice | None = None,
        solution: Solution | None = None,
    ) -> SolvedCache:
        """Return a cache of another or the same model, with the same readout.

        Parameters
        ----------
        model : RidgeModel
            The model.
        known : SolvedChoice, optional
            What the cache starts from. By default the settings of this one.
        solution : Solution, optional
            Results solved from the model.
        """
        return SolvedCache(
            model,
            self.kind,
            self.fixed_alpha,
            known or SolvedChoice(self.choice),
            solution=solution,
            shape_masses=self.shape_masses,
        )

    def followed(
        self,
        model: RidgeModel,
        Z: Tensor,
        codes: Tensor,
        groups: list[list[int]] | None,
        weights: Tensor | None,
    ) -> SolvedCache:
        """Return the cache of a model that learned or unlearned rows.

        The solved scatter is updated if there is one in the coordinates of the
        activations and the rows are few. Otherwise it will be solved again.

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
        scatter = known.full_scatter()
        if (
            known.choice is None
            or scatter is None
            or model.state.basis is not None
            or len(scatter.signs) + len(codes) > MAX_CORRECTIONS
        ):
            return self.for_model(model)
        H = model.weighted_rows(known.choice.weights, Z)
        if groups is None:
            scatter = scatter.follow(H, codes, weights, sign=-1)
        else:
            scatter = scatter.group(groups).follow(H, codes, weights)
        return self.for_model(model, SolvedChoice(known.choice, scatter, model.state))

    def reordered(self, model: RidgeModel, order: list[int]) -> SolvedCache:
        """Return the cache of the same statistics with classes in another order.

        Parameters
        ----------
        model : RidgeModel
            The reordered model.
        order : list of int
            Old column of each new class.
        """
        known = self._known
        scatter = known.full_scatter()
        if scatter is None:
            known = replace(known, scatter=None, stats=None)
        else:
            scatter = scatter.group([[old] for old in order])
            known = replace(known, scatter=scatter, stats=model.state)
        solution = self.solution()
        if solution is not None:
            readout = replace(
                solution.readout,
                weights=solution.readout.weights[:, order],
                offset=solution.readout.offset[order],
            )
            solution = replace(solution, readout=readout)
        made = self.for_model(model, known, solution)
        # Rows drawn again from reordered classes would differ.
        if "expected_terms" in vars(self):
            vars(made)["expected_terms"] = self.expected_terms
        return made

    def refreshed(self) -> SolvedCache:
        """Return a cache whose settings are chosen for exactly these statistics."""
        known = self._known
        if known.choice is None or known.is_fresh:
            return self
        # Settings chosen for 0 rows do not hold for any number.
        start = SolvedChoice(replace(known.choice, rows=0))
        return self.for_model(self.model, start)

    def restored(self, solution: Solution | None) -> SolvedCache:
        """Return a cache with the solved results of a file, or self if it has none.

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
        is_fresh = choice is not None and choice.rows == model.n_rows
        return self.for_model(model, SolvedChoice(choice, is_fresh=is_fresh), solution)

    # -- scatter and readout -----------------------------------------------------------

    def readout(self) -> Readout:
        """Return the linear class scores."""
        return self._solution[0]

    @solved_once
    def _solution(self) -> tuple[Readout, float | None]:
        """The linear class scores, and the temperature if it is solved with them."""
        if self.kind == "ridge":
            return solve_ridge(self.model, self.fixed_alpha), None
        choice, scatter, stats = self.means
        estimates = scatter.estimate_means()
        weights = stats.lift(estimates.weights)
        scale = self.model.column_scale(choice.weights)
        if scale is not None:  # so that the readout takes plain activations
            weights = scale[:, None] * weights
        readout = Readout(
            weights, estimates.offset, choice.alpha, scatter.factor.jitter
        )
        return readout, self._expected_temperature(estimates)

    @solved_once
    def means(self) -> SolvedMeans:
        """The settings, the class means solved with them, and their statistics."""
        # With the ridge readout, only novelty uses the means. Its ridge is always
        # chosen.
        alpha = self.fixed_alpha if self.kind == "denoised" else None
        choice = self.choice
        geometry: ClassGeometry | None = None
        if (
            choice is None
            or not choice.holds(self.model.n_rows)
            or alpha not in (None, choice.alpha)
        ):
            choice, geometry = self._choose_settings(alpha)
        known = self._known
        if known.scatter is not None and known.stats is not None:
            return SolvedMeans(choice, known.scatter, known.stats)
        if geometry is None:
            geometry = self._geometry(choice.weights)
        # Keep one Gram matrix only.
        stats = self.model.state
        if geometry.stats.basis is not None:
            stats = geometry.stats
        scatter = SolvedScatter.of(geometry, choice.alpha)
        self._known = replace(known, scatter=scatter, stats=stats)
        return SolvedMeans(choice, scatter, stats)

    def _choose_settings(self, alpha: float | None) -> tuple[Choice, ClassGeometry]:
        """Choose block weights, ridge and strength of the prior of shapes.

        Replaces `_known` by the new settings. The solved scatter in it is kept if block
        weights and ridge stay the same. Otherwise it is freed before another matrix of
        its size is made. The caller holds the lock.

        Parameters
        ----------
        alpha : float or None
            A fixed ridge. None chooses it from the statistics.

        Returns
        -------
        choice : Choice
            The settings.
        geometry : ClassGeometry
            Class means and scatter with these block weights.
        """
        model = self.model
        previous = self.choice
        weights: tuple[float, ...] = ()
        if self.kind == "denoised":
            start: tuple[float, ...] = ()
            # Previous settings without rows come from `refreshed`. The search of block
            # weights then starts anew, so that the result does not depend on them.
            if previous is not None and previous.rows:
                start = previous.weights
            weights = choose_link_weights(model, start)
        if previous is not None and previous.weights != weights:
            self._known = SolvedChoice(previous)  # frees the scatter
        geometry = self._geometry(weights)
        step = 0  # a fixed ridge is not on the grid of the search
        if alpha is None:
            alpha, step = self._choose_alpha(geometry)
        strength = 1.0
        if model.shapes is not None:
            strength = ShapeScores(model.shapes, self._shape_masses()).strength
        choice = Choice(alpha, step, strength, model.n_rows, weights)
        scatter = self._known.scatter
        if scatter is not None and scatter.alpha == alpha:
            # The search kept the ridge of the scatter because it is nearly the best.
            self._known = replace(self._known, choice=choice, is_fresh=False)
        else:
            self._known = SolvedChoice(choice, is_fresh=True)
        return choice, geometry

    def _choose_alpha(self, geometry: ClassGeometry) -> tuple[float, int]:
        """Choose the ridge. Return it and its index on the grid of the search."""
        model = self.model
        rows = model.pooled_rows
        energy = row_energy(geometry.stats, model.masses, rows)
        total = float(geometry.stats.gram.diagonal().sum()) / rows
        # If all rows are equal up to rounding, use the energy of a row that is not
        # centred.
        if not energy > 1e-10 * total:
            energy = total
        start = None if self.choice is None else self.choice.step
        return choose_ridge(geometry, energy, start, self._known.scatter)

    def _geometry(self, weights: tuple[float, ...]) -> ClassGeometry:
        """Return class means and scatter of activations with block weights."""
        stats = self.model.weighted_statistics(weights)
        return ClassGeometry.of(stats, self.model.masses)

    def _shape_masses(self) -> Tensor:
        """Return `shape_masses`, by default the masses of the model."""
        if self.shape_masses is None:
            return self.model.masses
        return self.shape_masses

    @solved_once
    def shapes(self) -> ShapeScores | None:
        """The terms that class shapes add to the scores. None without shapes."""
        if self.model.shapes is None or self.kind == "ridge":
            return None
        self.readout()  # chooses the strength
        strength = 1.0 if self.choice is None else self.choice.strength
        return ShapeScores(self.model.shapes, self._shape_masses(), strength)

    def temperature(self) -> float:
        """Return the softmax temperature estimated from the statistics."""
        return self._temperature

    @solved_once
    def _temperature(self) -> float:
        """The temperature, by the readout."""
        readout, temperature = self._solution
        if temperature is not None:
            return temperature
        if self.kind == "ridge":
            return ridge_temperature(self.model, readout)
        # A file may have a readout without its temperature.
        return self._expected_temperature(self.means.scatter.estimate_means())

    def _expected_temperature(self, estimates: MeanEstimates) -> float:
        """Return the temperature to expect of the scores from estimated means."""
        if estimates.spread > 0.0:
            return expected_temperature(estimates.spread)
        # The noise is unknown, so the means were used unchanged.
        return expected_temperature(float(self.terms.energies.mean()))

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
            Squared length outside these coordinates. None if they span all activations.
        """
        choice, _, stats = self.means
        H = self.model.weighted_rows(choice.weights, Z)
        if stats.basis is None:
            return H, None
        reduced = stats.project(H)
        outside = H.square().sum(dim=1) - reduced.square().sum(dim=1)
        return reduced, outside.clamp_min(0.0)

    def whiten(self, Z: Tensor) -> Tensor:
        """Return features Z (n, d) centred and in units of the scatter, (n, k)."""
        rows, _ = self.project(Z)
        factor = self.means.scatter.factor
        return factor.half_solve((rows - self.terms.centre).T).T

    def novelty_terms(self, Z: Tensor) -> Tensor:
        """Return the terms of novelty and 1 / count (n, 6) of features (n, d).

        Terms of rows whose squares overflow are infinite.
        """
        chunks = [
            self.terms.of_rows(*self.project(chunk))
            for chunk in torch.split(Z, _CHUNK_ROWS)
        ]
        return torch.nan_to_num(torch.cat(chunks), nan=torch.inf)

    @solved_once
    def terms(self) -> NoveltyTerms:
        """The matrices from which terms of novelty are computed."""
        return NoveltyTerms.of(self.means.scatter, self._gram)

    def novelty_map(self) -> NoveltyMap:
        """Return matrices that compute the terms of novelty, on the CPU."""
        choice, _, stats = self.means
        matrices = NoveltyMatrices.of(self.terms)
        whitening = stats.lift(matrices.whitening)
        scale = self.model.column_scale(choice.weights)
        if scale is not None:  # so that it takes plain activations
            whitening = scale[:, None] * whitening
        offset = -(matrices.centre @ matrices.whitening)
        return NoveltyMap(
            layer_map(self.model, whitening, offset),
            matrices,
            None if stats.basis is None else self._squared_lengths(scale),
        )

    def _squared_lengths(self, scale: Tensor | None) -> SquaredLengths:
        """Return how squared lengths of activations follow from units and features.

        Parameters
        ----------
        scale : Tensor of shape (L,) or None
            Factor of each activation.
        """
        layer = self.model.layer
        link = layer.link_columns()
        centre = None
        factors = None
        if link is not None and layer.centre is not None:
            centre = layer.centre.cpu()
            factors = torch.full_like(centre, layer.scale)
            if scale is not None:
                factors = factors * scale[link].cpu()
        constant = 1.0 if layer.intercept else 0.0
        return SquaredLengths(layer.gain, centre, factors, constant)

    def _gram(self, H: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Return the Gram matrix (k, k) of the learned rows, minus rows H (n, k).

        Parameters
        ----------
        H : Tensor of shape (n, k), optional
            Rows to leave out. By default none.
        weights : Tensor of shape (n,), optional
            Their sample weights. By default ones.
        """
        gram = self.model.weighted_statistics(self.means.choice.weights).gram
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
        """Terms of novelty (n, 6) of rows drawn from the statistics."""
        return np.asarray(self.terms.draw_terms().cpu().numpy())

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
            Their folds, any integers.
        weights : Tensor of shape (n,), optional
            The weights they were learned with. By default ones. Each row is scored once
            in any case.
        """
        # Solving the readout now costs little more, and files keep the result.
        self.readout()
        found = np.empty((len(codes), N_COLUMNS))
        losses = np.empty((len(codes), len(TEMPERATURES)))
        for rows, rest in self._scores_by_fold(Z, codes, folds, weights):
            own = rows.cpu().numpy()
            found[own] = rest.terms.cpu().numpy()
            unit = expected_temperature(rest.spread)
            losses[own] = log_losses(rest.scores, codes[rows], unit)
        return HeldOutScores(found, None if self.kind == "ridge" else losses)

    def scores_without_one(
        self,
        Z: Tensor,
        codes: Tensor,
        weights: Tensor | None = None,
        question: Tensor | None = None,
    ) -> Tensor:
        """Score rows by the denoised readout, each without one learned row.

        Exact for class means, scatter and class shapes. Ridge, block weights and
        strength of the prior of shapes stay the same. If each row is scored without
        itself, so do the other settings; see
        :mod:`evergrow.head.linalg.leave_one_out`.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            The learned rows to leave out. Their classes have other rows.
        codes : Tensor of shape (n,)
            Their classes.
        weights : Tensor of shape (n,), optional
            The weights they were learned with. By default ones.
        question : Tensor of shape (1, d), optional
            The row to score. By default each row is scored without itself.

        Returns
        -------
        Tensor of shape (n, C)
        """
        self.readout()
        if weights is None:
            weights = torch.ones_like(codes, dtype=torch.float64)
        shapes = self.shapes
        scores = []
        for part, part_codes, part_weights in zip(
            torch.split(Z, _CHUNK_ROWS),
            torch.split(codes, _CHUNK_ROWS),
            torch.split(weights, _CHUNK_ROWS),
            strict=True,
        ):
            H, _ = self.project(part)
            if question is None:
                found = self._leave_one_out.own_scores(H, part_codes, part_weights)
            else:
                h, _ = self.project(question)
                found = self._leave_one_out.scores_without(
                    h[0], H, part_codes, part_weights
                )
            if shapes is not None and self.model.shapes is not None:
                P = self.model.shapes.rows(self.model.inputs(part))
                left_out = LeftOutRows(P, part_codes, part_weights)
                if question is None:
                    found = shapes.add(P, found, left_out)
                else:
                    asked = self.model.shapes.rows(self.model.inputs(question))
                    is_learned = ~found.isnan().any(dim=1)
                    found[is_learned] = shapes.add_without(
                        asked[0],
                        found[is_learned],
                        LeftOutRows(*(column[is_learned] for column in left_out)),
                    )
            scores.append(found)
        return torch.cat(scores)

    @solved_once
    def _leave_one_out(self) -> LeaveOneOut:
        """Scores of models that lack one row."""
        return LeaveOneOut(self.means.scatter)

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
        found = np.empty((len(codes), N_COLUMNS))
        losses = np.empty((len(codes), len(TEMPERATURES)))
        by_fold = self._scores_by_fold(Z, codes, folds, weights, whole_classes=True)
        for rows, rest in by_fold:
            own = rows.cpu().numpy()
            units = term_units(rest.novelty.draw_terms().cpu().numpy())
            found[own] = to_units(rest.terms.cpu().numpy(), units)
            unit = expected_temperature(rest.spread)
            losses[own] = log_losses(rest.scores, rest.scores.argmax(dim=1), unit)
        return HeldOutScores(found, None if self.kind == "ridge" else losses)

    def _scores_by_fold(
        self,
        Z: Tensor,
        codes: Tensor,
        folds: Tensor,
        weights: Tensor | None,
        *,
        whole_classes: bool = False,
    ) -> Iterator[tuple[Tensor, _FoldScores]]:
        """Score the rows of each fold with the model of all other rows.

        Parameters
        ----------
        Z, codes, folds, weights : Tensor
            The rows, as for :meth:`held_out_scores`.
        whole_classes : bool, default=False
            Whether a fold has all rows of its classes. The model then lacks them.

        Yields
        ------
        rows : Tensor of shape (m,)
            Indices of the rows of a fold.
        scores : _FoldScores
            Their scores.
        """
        choice, scatter, _ = self.means
        reduced, outside = self.project(Z)
        shapes = self.model.shapes
        shape_rows = None if shapes is None else shapes.rows(self.model.inputs(Z))
        for fold in torch.unique(folds).tolist():
            rows = torch.nonzero(folds == fold).ravel()
            H = reduced[rows]
            own_codes = codes[rows]
            own_weights = _take(weights, rows)
            if whole_classes:
                rest = scatter.without_classes(H, own_codes, own_weights)
            else:
                rest = scatter.follow(H, own_codes, own_weights, sign=-1)
            novelty = NoveltyTerms.of(rest, partial(self._gram, H, own_weights))
            terms = novelty.of_rows(H, _take(outside, rows))
            estimates = rest.estimate_means()
            scores = torch.addmm(estimates.offset, H, estimates.weights)
            if shapes is not None and shape_rows is not None:
                P = shape_rows[rows]
                if whole_classes:
                    left_out = own_codes.tolist()
                    kept = [c for c in range(len(scatter.counts)) if c not in left_out]
                    others = shapes.group([[column] for column in kept])
                else:
                    others = shapes.add(P, own_codes, -1.0, own_weights)
                shape_scores = ShapeScores(others, rest.counts, choice.strength)
                scores = shape_scores.add(P, scores)
            spread = estimates.spread
            if spread <= 0.0:  # the noise is unknown, so the means were used unchanged
                spread = float(novelty.energies.mean())
            yield rows, _FoldScores(novelty, terms, scores, spread)


def _take(values: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the values of some rows. None stays None."""
    return None if values is None else values[rows]


def expected_temperature(spread: float) -> float:
    """Return the softmax temperature to expect of the denoised readout.

    Parameters
    ----------
    spread : float
        Energy of a true class mean.
    """
    constant, slope = EXPECTED_TEMPERATURE
    return constant + slope * spread


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
    weights = factor.solve(stats.cross)
    learned = float((weights * stats.cross).sum()) / n
    fresh = 1.0 - (1.0 - learned) / max(1.0 - dof / n, 1e-9)
    fresh = min(max(fresh, 0.05), 1.0)
    root = math.sqrt(fresh)
    return 0.25 * root / math.log(max(len(model.counts), 2))


# -- state of a classifier -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassifierState(Locked):
    """Everything that predictions are computed from. Each change makes a new state.

    Parameters
    ----------
    solved : SolvedCache
        The model of the labelled samples, and results solved from it.
    pseudo_labels : PseudoLabels or None
        Rows learned without labels.
    start : Choice or None
        Settings at which the search with pseudo-labels starts. Unused without them.
    """

    solved: SolvedCache
    pseudo_labels: PseudoLabels | None = None
    start: Choice | None = None

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def model(self) -> RidgeModel:
        """Layer and statistics of the labelled samples."""
        return self.solved.model

    @solved_once
    def answering(self) -> SolvedCache:
        """The results that predictions use: with pseudo-labels if there are any.

        The statistics are added when this is first used.
        """
        solved = self.solved
        if self.pseudo_labels is None:
            return solved
        return SolvedCache(
            self.pseudo_labels.blended(solved.model),
            solved.kind,
            solved.fixed_alpha,
            SolvedChoice(self.start),
            shape_masses=solved.model.masses,
        )

    # -- changes -----------------------------------------------------------------------

    def changed(
        self, solved: SolvedCache, pseudo_labels: PseudoLabels | None
    ) -> ClassifierState:
        """Return the state with other samples or pseudo-labels.

        Parameters
        ----------
        solved : SolvedCache
            The changed model, and results solved from it.
        pseudo_labels : PseudoLabels or None
            Pseudo-labels, with the classes of the changed model.
        """
        # Pseudo-labels of no rows are falsy, like None.
        if not pseudo_labels:
            return ClassifierState(solved)
        start = solved.choice
        if self.pseudo_labels is not None and "answering" in vars(self):
            start = self.answering.choice
        return ClassifierState(solved, pseudo_labels, start)

    def with_model(self, model: RidgeModel) -> ClassifierState:
        """Return the state of another model with the same classes."""
        return self.changed(self.solved.for_model(model), self.pseudo_labels)

    def with_pseudo_labels(self, pseudo_labels: PseudoLabels | None) -> ClassifierState:
        """Return the state with other pseudo-labels, or without any."""
        return self.changed(self.solved, pseudo_labels)

    def settled(self) -> ClassifierState:
        """Return the state with readout and temperature solved for its statistics."""
        made = replace(self, solved=self.solved.refreshed())
        made.solved.temperature()
        if self.pseudo_labels is not None:
            vars(made)["answering"] = self.answering.refreshed()
            made.answering.temperature()
        return made

    def restored(
        self,
        solution: Solution | None,
        pseudo_labels: PseudoLabels | None,
        blended_solution: Solution | None,
    ) -> ClassifierState:
        """Return the state with the other contents of a file.

        Parameters
        ----------
        solution : Solution or None
            Results solved from the labelled samples.
        pseudo_labels : PseudoLabels or None
            The pseudo-labels.
        blended_solution : Solution or None
            Results solved from labelled samples and pseudo-labels.

        Raises
        ------
        FileFormatError
            If the contents do not fit each other.
        """
        made = self.changed(self.solved.restored(solution), pseudo_labels)
        if pseudo_labels is not None:
            added = pseudo_labels.state
            own = self.model.state
            require(
                (added.n_features, added.n_targets) == (own.n_features, own.n_targets),
                "its pseudo-labels are of another layer or of other classes",
            )
            vars(made)["answering"] = made.answering.restored(blended_solution)
        return made

    # -- results -----------------------------------------------------------------------

    def class_scores(self, Z: Tensor) -> Tensor:
        """Return class scores (n, C) of features Z (n, d)."""
        model = self.model
        readout = self.answering.readout()
        scores = Z.new_empty(Z.shape[0], readout.weights.shape[1])
        for rows, H in model.activations(Z):
            scores[rows] = torch.addmm(readout.offset, H, readout.weights)
        shapes = self.answering.shapes
        if shapes is None or model.shapes is None:
            return scores
        return shapes.add(model.shapes.rows(model.inputs(Z)), scores)

    def temperature(self, calibrated: float | None) -> float:
        """Return the softmax temperature.

        Parameters
        ----------
        calibrated : float or None
            Temperature calibrated on labelled samples. None estimates it from the
            statistics. Pseudo-labels scale it, because they change the scores.
        """
        temperature = calibrated
        if temperature is None:
            temperature = self.solved.temperature()
        if self.pseudo_labels is not None:
            ratio = self.answering.temperature() / self.solved.temperature()
            temperature *= ratio
        return temperature
