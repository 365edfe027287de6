"""From statistics to linear class scores: ridge regression, and the readout that takes class means for estimates.

The denoised readout chooses a ridge (:mod:`evergrow.head.linalg.ridge_choice`), solves
for the class means and takes the noise off them (:mod:`evergrow.head.linalg.scatter`).
What was worked out is kept until the statistics change.

Probabilities and novelty are calibrated on learned rows that are scored as if their
fold had not been learned. Means, scatter, degrees of freedom and shapes are then those
of the rest, exactly; ridge and strength of the prior of shapes stay. Nothing of the
order of the layer is factored: the solved scatter follows the rows that are taken out.
"""

from __future__ import annotations

import math
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

from evergrow.core.record import Between, record
from evergrow.core.seeding import generator
from evergrow.head.block_weights import (
    MIN_CV_ROWS,
    cautious_weights,
    choose_block_weights,
)
from evergrow.head.layers.feature_map import check_weights
from evergrow.head.linalg.class_shapes import ShapeScores
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky
from evergrow.head.linalg.ridge_choice import choose_by_gcv, choose_ridge
from evergrow.head.linalg.scatter import (
    MAX_CORRECTIONS,
    ClassGeometry,
    SolvedScatter,
    mean_spread,
)
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.novelty import TEMPERATURES, NoveltyStandard
from evergrow.head.ridge_model import RidgeModel, row_energy

T = TypeVar("T")

READOUTS = ("denoised", "ridge")

_BLOCK = 2**22  # numbers whose log losses are worked out at once
_BLOCK_ROWS = 256  # rows of a matrix of all classes that are multiplied at once
_TERM_ROWS = 4096  # rows whose terms of novelty are worked out at once

GROWTH = 1.25
"""How much more or fewer rows there must be before ridge and strength are chosen anew."""

_DRAWN = 256

_REST_SPREAD = 0.3
"""Spread of the rest of known rows, in units of its expectation, where no row was ever scored as if not learned."""

UNCALIBRATED = 0.06
"""Temperature per energy of a true class mean, where no row was ever scored as if not learned. At the ends of streams
of image and text features the calibrated temperature is 0.03 to 0.12 of that energy."""


# -- ridge regression ------------------------------------------------------------------


def solve_ridge(model: RidgeModel, alpha: float | None) -> Readout:
    """Solve the ridge regression on one-hot targets.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    alpha : float or None
        The ridge; None chooses it by generalised cross-validation.
    """
    if alpha is None:
        stats = replace(model.state, count=round(model.pooled_rows))
        alpha = choose_by_gcv(
            stats, row_energy(stats, model.masses, float(max(stats.count, 1)))
        )[0]
    return model.state.solve(alpha)


def ridge_temperature(model: RidgeModel, readout: Readout) -> float:
    """Return the temperature of the softmax that turns ridge scores into probabilities.

    No data is held out. With df the trace of the hat matrix and t the mean score of the
    true class on the rows learned, ``a = 1 - (1 - t) / (1 - df / n)`` estimates that
    score on new rows (leave one out, on average), and the temperature is ``sqrt(a) / (4
    ln C)``; the constant was measured on image and text features.
    """
    stats = model.state
    n = model.pooled_rows
    factor = safe_cholesky(stats.gram, shift=readout.alpha)
    dof = stats.gram.shape[0] - readout.alpha * factor.trace_inverse
    learned = float((factor.solve(stats.cross) * stats.cross).sum()) / n
    fresh = 1.0 - (1.0 - learned) / max(1.0 - dof / n, 1e-9)
    return (
        0.25
        * math.sqrt(min(max(fresh, 0.05), 1.0))
        / math.log(max(len(model.counts), 2))
    )


# -- class means as estimates ----------------------------------------------------------


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


def choose_weights(model: RidgeModel, choice: Choice | None) -> tuple[float, ...]:
    """Choose the weights of the blocks of the direct link; none where there are no blocks or no link.

    The search begins with the weights in use, or with those that the first task fixed.
    """
    link = model.layer.link_columns()
    blocks = model.blocks
    if blocks is None or link is None or len(blocks.sizes) < 2:
        return ()
    if float(model.masses.sum()) < MIN_CV_ROWS:
        return tuple(
            w / g
            for w, g in zip(
                cautious_weights(len(blocks.sizes)), blocks.weights, strict=True
            )
        )
    gram, cross, basis = model.state.part(link)
    if choice is not None and choice.rows:
        start = choice.weights
    else:
        start = ()
    start = start or (1.0,) * len(blocks.sizes)
    return choose_block_weights(
        gram, cross, model.masses, blocks.sizes, blocks.weights, basis, start
    )


def column_scale(model: RidgeModel, weights: tuple[float, ...]) -> Tensor | None:
    """Return what activations (n, L) are multiplied by, (L,): the weights of blocks on the link, one elsewhere."""
    link = model.layer.link_columns()
    if not weights or link is None or model.blocks is None:
        return None
    scale = model.state.gram.new_ones(model.layer.n_outputs)
    scale[link] = torch.repeat_interleave(
        scale.new_tensor(weights), torch.tensor(model.blocks.sizes).to(scale.device)
    )
    return scale


def weighted_rows(model: RidgeModel, weights: tuple[float, ...], Z: Tensor) -> Tensor:
    """Return the activations (n, L) of features with the weights of blocks."""
    H = torch.cat([part for _, part in model.activations(Z)])
    scale = column_scale(model, weights)
    return H if scale is None else H * scale


def weighted_statistics(
    model: RidgeModel, weights: tuple[float, ...]
) -> RidgeStatistics:
    """Return the statistics with the weights of blocks."""
    scale = column_scale(model, weights)
    if scale is None:
        return model.state
    return model.state.scaled(scale)


# -- terms of novelty ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NoveltyTerms:
    """What the terms need, worked out once.

    Parameters
    ----------
    scatter : SolvedScatter
        Class means solved against the scatter.
    centre : Tensor of shape (k,)
        m.
    solved : Tensor of shape (k, C)
        ``A^-1 m_c``.
    energies : Tensor of shape (C,)
        The diagonal of K.
    span : CholeskyFactor or None
        Of K; None where there are more classes than coordinates, which the means span
        then.
    total : CholeskyFactor
        Of ``K + f N^-1``, else of ``A + B``.
    expected : float
        Energy of a new row of a known class.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.readout import NoveltyTerms
    >>> from evergrow.head.linalg.scatter import MAX_CORRECTIONS, ClassGeometry, SolvedScatter, mean_spread
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> codes = torch.arange(60) % 3
    >>> H[torch.arange(60), codes] += 9.0
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = RidgeStatistics.create(4, 3).update(H, Y)
    >>> terms = NoveltyTerms.of(SolvedScatter.of(ClassGeometry.of(stats, Y.sum(dim=0)), alpha=0.1), lambda: stats.gram)
    >>> known, new = terms.of_rows(H).mean(dim=0), terms.of_rows(H.flip(1))[codes == 0].mean(dim=0)
    >>> bool((new > known)[:5].all())
    True
    """

    scatter: SolvedScatter
    centre: Tensor
    solved: Tensor
    energies: Tensor
    span: CholeskyFactor | None
    total: CholeskyFactor
    expected: float

    @classmethod
    def of(cls, scatter: SolvedScatter, gram: Callable[[], Tensor]) -> NoveltyTerms:
        """Prepare the terms: matrices of the order of the classes are factored, or of that of the layer if smaller.

        Parameters
        ----------
        scatter : SolvedScatter
            Class means solved against the scatter.
        gram : callable
            Returns the sum of products of all rows, (k, k).
        """
        counts = scatter.counts
        free = scatter.freedom
        shares = counts / counts.sum()
        centre = scatter.means @ shares
        solved = scatter.solve_means()
        common = solved @ shares
        # Rows of a large matrix are multiplied a few at a time, without another one of
        # that size.
        pairs = zip(
            torch.split(scatter.means, _BLOCK_ROWS),
            torch.split(solved, _BLOCK_ROWS),
            strict=True,
        )
        energies = (
            sum((means * part).sum(dim=0) for means, part in pairs)
            - common @ scatter.means
            - centre @ solved
        )
        energies = (free * (energies + centre @ common)).clamp_min(1e-12)
        if len(counts) <= len(centre):
            metric = (
                free * (scatter.means - centre[:, None]).T @ (solved - common[:, None])
            )
            metric = 0.5 * (metric + metric.T)
            # The means less their mean are linearly dependent; a shift this small
            # leaves their span as it is.
            span = safe_cholesky(metric, shift=1e-8 * float(energies.mean()))
            total = safe_cholesky(metric + torch.diag(free / counts))
        else:
            span = None
            root = float(counts.sum()) ** 0.5 * centre
            total = safe_cholesky(
                gram() - torch.outer(root, root),
                shift=scatter.alpha + scatter.factor.jitter,
            )
        energy = scatter.noise_energy()
        return cls(
            scatter,
            centre,
            solved,
            energies,
            span,
            total,
            energy if energy > 0.0 else 1.0,
        )

    def of_rows(self, H: Tensor, outside: Tensor | None = None) -> Tensor:
        """Return the terms (n, 5) of rows and, as a sixth column, 1 / count of the class nearest to each.

        Parameters
        ----------
        H : Tensor of shape (n, k)
            Rows in the coordinates of the statistics.
        outside : Tensor of shape (n,), optional
            Energy that rows have outside of these coordinates, where nothing was
            learned.
        """
        centred = H - self.centre
        products = self._products(centred)
        energy = self.scatter.freedom * self.scatter.quadratic(centred.T)
        inside, explained = self._explained(centred, products, energy)
        if outside is not None:
            energy = energy + self.scatter.freedom * outside / self.scatter.alpha
        return self._terms(products, inside, explained, energy)

    def expected_rows(self) -> Tensor:
        """Return terms (256, 6) of rows drawn as the statistics say known ones are: what to expect before any was seen.

        Rows of a class lie about its true mean with the common scatter. Of that mean
        the observed one is an estimate: it is drawn nearer to the mean of all, the more
        so the fewer rows there were. Drawn are products of rows with the class means
        and their energy outside the span of the means, or with more classes than
        coordinates the rows themselves.
        """
        scatter, counts, free = self.scatter, self.scatter.counts, self.scatter.freedom
        source = generator(0, "novelty", "expected")
        spots = (torch.arange(_DRAWN, dtype=torch.float64) + 0.5) / _DRAWN
        chances = torch.cumsum(counts / counts.sum(), dim=0).cpu()
        codes = (
            torch.searchsorted(chances, spots)
            .clamp_max(len(counts) - 1)
            .to(counts.device)
        )
        off = scatter.noise_energy() / counts
        spread = mean_spread(self.energies, off)
        kept = (spread / (spread + off))[codes]
        lower = self._noise_factor()
        noise = (
            torch.randn(
                _DRAWN, lower.shape[1], generator=source, dtype=torch.float64
            ).to(lower)
            @ lower.T
        )
        noise = noise * (1.0 + kept / counts[codes]).sqrt()[:, None]
        centred = kept[:, None] * (scatter.means[:, codes].T - self.centre)
        if self.span is None:
            centred = centred + noise
            products = self._products(centred)
            energy = free * scatter.quadratic(centred.T)
            return self._terms(
                products, *self._explained(centred, products, energy), energy
            )
        products = self._products(centred) + noise
        inside, explained = self._explained(centred, products, counts)
        rest = max(
            self.expected - float(self.span.half_solve(lower).square().sum()),
            0.05 * self.expected,
        )
        drawn = torch.randn(_DRAWN, generator=source, dtype=torch.float64).to(counts)
        return self._terms(
            products,
            inside,
            explained,
            inside + rest * (1.0 + _REST_SPREAD * drawn).clamp_min(0.1),
        )

    def _noise_factor(self) -> Tensor:
        """Return a factor of the covariance of products with the class means, or of rows, about the mean of a class."""
        scatter, free = self.scatter, self.scatter.freedom
        known = scatter.noise_energy(inside=True)
        ridge = scatter.alpha + scatter.factor.jitter
        scale = max(self.expected / max(known, 1e-300), 1.0)
        if self.span is None and known > 0.0:
            covariance = scatter.matrix().mul_(scale / free)
            shift = 1e-8 * float(covariance.diagonal().mean())
            covariance.diagonal().sub_(scale * ridge / free)
            return safe_cholesky(covariance, shift=shift).lower
        means = scatter.means - self.centre[:, None]
        if known <= 0.0:  # nothing is known of the spread but that of the means
            if self.span is None:
                spread = means
            else:
                spread = self._products(means.T)
            return spread / math.sqrt(len(self.energies))
        directions = free * (
            self.solved
            - (self.solved @ (scatter.counts / scatter.counts.sum()))[:, None]
        )
        covariance = (means - (ridge / free) * directions).T @ directions
        return safe_cholesky(
            scale * covariance, shift=1e-8 * float(self.energies.mean())
        ).lower

    def _products(self, centred: Tensor) -> Tensor:
        """Return z (n, C) of rows (n, k) less the mean of all."""
        found = centred @ self.solved
        return (
            found - (found @ (self.scatter.counts / self.scatter.counts.sum()))[:, None]
        ).mul_(self.scatter.freedom)

    def _explained(
        self, centred: Tensor, products: Tensor, energy: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``z^T K^-1 z`` and ``z^T (K + f N^-1)^-1 z`` (n,) of rows with products z and this energy."""
        if self.span is not None:
            span, total = (
                factor.half_solve(products.T).square().sum(dim=0)
                for factor in (self.span, self.total)
            )
            return span, total
        return energy, energy - self.scatter.freedom * self.total.half_solve(
            centred.T
        ).square().sum(dim=0)

    def _terms(
        self, products: Tensor, inside: Tensor, explained: Tensor, energy: Tensor
    ) -> Tensor:
        counts = self.scatter.counts
        energy = energy.clamp_min(1e-9)
        inside = inside.clamp_min(1e-12)
        rest = (energy - inside).clamp_min(1e-9)
        unsure = (
            1.0 + 1.0 / counts
        )  # the mean of few rows is off by a share of the spread itself
        likest = (products / self.energies.sqrt()).amax(dim=1)
        away = self.energies - 2.0 * products
        nearest = ((energy[:, None] + away) / unsure).min(dim=1)
        distance = ((inside[:, None] + away) / unsure).amin(dim=1).clamp_min(0.0)
        columns = [
            nearest.values - energy + explained,
            -likest / energy.sqrt(),
            -likest / inside.sqrt(),
            distance,
            rest / self.expected,
        ]
        if (
            len(counts) == 1
        ):  # with one mean there is nothing to be relative to, and no span: what is left is distance
            none = torch.zeros_like(energy)
            columns = [nearest.values, none, none, none, rest / self.expected]
        return torch.stack([*columns, 1.0 / counts[nearest.indices]], dim=1)


# -- rows as if they had not been learned ----------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """What rows look like to a model that has not learned them.

    Parameters
    ----------
    terms : ndarray of shape (n, 6)
        Terms of novelty of each, and 1 / count of the class nearest to it.
    losses : ndarray of shape (n, 29) or None
        Log loss of the class of each row at every temperature of
        :data:`TEMPERATURES`; None for the ridge readout, whose temperature follows from
        the statistics.
    guess : float
        Temperature that the statistics alone suggest.
    """

    terms: NDArray[np.float64]
    losses: NDArray[np.float64] | None = None
    guess: float = 1.0

    @property
    def log_losses(self) -> NDArray[np.float64] | None:
        """Mean log loss at every temperature (29,); None for the ridge readout."""
        if self.losses is None:
            return None
        return self.losses.mean(axis=0)


def log_losses(scores: Tensor, codes: Tensor) -> NDArray[np.float64]:
    """Return the log loss of each row at every temperature of the grid.

    Parameters
    ----------
    scores : Tensor of shape (n, C)
        Class scores of rows that the scoring model had not learned.
    codes : Tensor of shape (n,)
        Their classes.

    Returns
    -------
    ndarray of shape (n, 29)

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.readout import log_losses
    >>> log_losses(torch.zeros(3, 2), torch.tensor([0, 1, 1])).round(4)[:, 0].tolist()
    [0.6931, 0.6931, 0.6931]
    """
    cross_entropy = torch.nn.functional.cross_entropy
    block = max(_BLOCK // max(scores.shape[1], 1), 1)
    blocks = []
    for part, right in zip(
        torch.split(scores.to(torch.float64), block),
        torch.split(codes, block),
        strict=True,
    ):
        columns = [
            cross_entropy(part / temperature, right, reduction="none")
            for temperature in TEMPERATURES
        ]
        blocks.append(torch.stack(columns, dim=1))
    return np.asarray(torch.cat(blocks).cpu().numpy())


# -- what was worked out ---------------------------------------------------------------


class solved_once(Generic[T]):  # noqa: N801 (used like a property)
    """An attribute that is computed at its first use, by one thread, and does not change afterwards.

    Like :func:`functools.cached_property`, but the lock ``_lock`` of the instance is
    held meanwhile. The lock must be reentrant if one such attribute needs another.

    Examples
    --------
    >>> import threading
    >>> from evergrow.head.readout import solved_once
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
    """An object with a lock of its own; a copy of it, also in another process, gets another lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


@dataclass(frozen=True, eq=False)
class SolvedChoice:
    """Settings chosen from the statistics, and the class means solved at them.

    Parameters
    ----------
    choice : Choice or None
        The settings; None while nothing was chosen.
    scatter : SolvedScatter or None
        The class means solved at them; None while they are not solved.
    stats : RidgeStatistics or None
        The statistics with the coordinates of ``scatter``.
    is_fresh : bool
        Whether ridge and strength were chosen for just these statistics.
    """

    choice: Choice | None = None
    scatter: SolvedScatter | None = None
    stats: RidgeStatistics | None = None
    is_fresh: bool = False


class SolvedCache(Locked):
    """Class weights, temperature and terms of novelty of a model, each worked out when first asked for.

    A few rows more or less are followed rather than solved anew, and what was chosen
    from the statistics (ridge, weights of blocks, strength of the prior of shapes) is
    chosen anew when the number of rows has changed by a quarter.

    Threads may share it: every result is computed once, under a lock, and does not
    change afterwards.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    kind : {"denoised", "ridge"}
        How class scores are solved for.
    fixed : float or None
        The ridge; None where it is chosen from the statistics.
    known : SolvedChoice, optional
        What was chosen before the last change, and the class means solved at that
        choice where they are known.
    solution : Readout, optional
        The linear class scores, where they are known.
    temperature : float, optional
        The temperature that the statistics suggest, where it is known.
    shape_masses : Tensor of shape (C,), optional
        Weight behind the shapes of classes, where that is not the model's.
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
        # Replaced as a whole: with the final one, what it began with can be freed.
        if known is None:
            self._known = SolvedChoice()
        else:
            self._known = known
        self._is_chosen = False
        if solution is not None:
            vars(self)["_solution"] = solution, temperature

    @property
    def choice(self) -> Choice | None:
        """What was chosen for these statistics, or before the last change; None where nothing was."""
        return self._known.choice

    def known_solution(self) -> tuple[Readout, float | None, Choice | None] | None:
        """Return class scores, temperature and choice as far as they are solved; None without class scores."""
        if "_solution" not in vars(self):
            return None
        readout, temperature = self._solution
        if temperature is None:
            temperature = vars(self).get("_temperature")
        return readout, temperature, self.choice

    # -- the next one ------------------------------------------------------------------

    def after(
        self,
        model: RidgeModel,
        fixed: float | None,
        scatter: SolvedScatter | None = None,
    ) -> SolvedCache:
        """Return the cache of another model, which begins where this one's choices ended."""
        # A solution that was followed is in the coordinates of the features.
        stats = None
        if scatter is not None:
            stats = model.state
        known = SolvedChoice(self.choice, scatter, stats)
        return SolvedCache(model, self.kind, fixed, known)

    def followed(
        self,
        model: RidgeModel,
        Z: Tensor,
        codes: Tensor,
        groups: list[list[int]] | None,
        weights: Tensor | None,
    ) -> SolvedCache:
        """Return the cache of a model that learned rows, or unlearned them where ``groups`` is None.

        Parameters
        ----------
        model : RidgeModel
            The model after.
        Z : Tensor of shape (n, d)
            The rows.
        codes : Tensor of shape (n,)
            Their classes, as the model after numbers them.
        groups : list of list of int or None
            For each class after, its column before; none where it is new.
        weights : Tensor of shape (n,) or None
            What the rows count for, where that is not one.
        """
        known = self._known
        if (
            known.choice is None
            or known.scatter is None
            or known.stats is None
            or known.stats.basis is not None
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
        """Return the cache of the same statistics with classes in another order; nothing large is solved again."""
        solution: Readout | None = None
        temperature: float | None = None
        if (found := self.known_solution()) is not None:
            readout, temperature, _ = found
            solution = replace(
                readout, weights=readout.weights[:, order], offset=readout.offset[order]
            )
        known = self._known
        if (
            known.scatter is None
            or known.stats is None
            or known.stats.basis is not None
        ):
            known = replace(known, scatter=None, stats=None)
        else:
            scatter = known.scatter.group([[old] for old in order])
            known = replace(known, scatter=scatter, stats=model.state)
        made = SolvedCache(
            model,
            self.kind,
            self.fixed,
            known,
            solution=solution,
            temperature=temperature,
            shape_masses=self.shape_masses,
        )
        if "expected_terms" in vars(self):
            vars(made)["expected_terms"] = self.expected_terms
        return made

    def refreshed(self) -> SolvedCache:
        """Return a cache in which everything is chosen for just these statistics."""
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

    # -- answers -----------------------------------------------------------------------

    def readout(self) -> Readout:
        """Return the linear class scores."""
        return self._solution[0]

    @solved_once
    def _solution(self) -> tuple[Readout, float | None]:
        """The linear class scores, and the temperature where it comes with them."""
        if self.kind == "ridge":
            return solve_ridge(self.model, self.fixed), None
        choice, scatter, stats = self.scatter()
        estimates = scatter.estimate_means()
        lifted = stats.lift(estimates.weights)
        scale = column_scale(self.model, choice.weights)
        if scale is not None:
            lifted = scale[:, None] * lifted
        readout = Readout(lifted, estimates.offset, choice.alpha, scatter.factor.jitter)
        return readout, 1.0 + UNCALIBRATED * estimates.spread

    def scatter(self) -> tuple[Choice, SolvedScatter, RidgeStatistics]:
        """Return what was chosen, the class means solved at it, and the statistics with their coordinates."""
        if not self._is_chosen:
            with self._lock:
                if not self._is_chosen:
                    self._solve_scatter()
        known = self._known
        if known.choice is None or known.scatter is None or known.stats is None:
            raise AssertionError("the class means must be solved by now")
        return known.choice, known.scatter, known.stats

    def _solve_scatter(self) -> None:
        """Choose settings for the statistics and solve for the class means; the caller holds the lock."""
        # Ridge regression has a ridge of its own; that of the scatter, for novelty, is
        # always chosen.
        is_denoised = self.kind == "denoised"
        fixed = self.fixed if is_denoised else None
        known = self._known
        geometry: ClassGeometry | None = None
        choice = known.choice
        holds = (
            choice is not None
            and choice.holds(self.model.rows)
            and fixed in (None, choice.alpha)
        )
        if choice is None or not holds:
            if is_denoised:
                weights = choose_weights(self.model, choice)
            else:
                weights = ()
            geometry = self._geometry(weights)
            scatter = known.scatter
            if choice is None or choice.weights != weights:
                scatter = None
                self._known = known = replace(known, scatter=None, stats=None)
            step = None if choice is None else choice.step
            choice = self._choose(geometry, fixed, step, weights, scatter)
            if scatter is not None and scatter.alpha != choice.alpha:
                scatter = None
                # Free the old factor before the new one is made.
                self._known = known = replace(known, scatter=None, stats=None)
            known = replace(known, choice=choice, is_fresh=scatter is None)
        if known.scatter is None:
            if geometry is None:
                geometry = self._geometry(choice.weights)
            # One Gram matrix is held.
            stats = self.model.state
            if geometry.stats.basis is not None:
                stats = geometry.stats
            scatter = SolvedScatter.of(geometry, choice.alpha)
            known = replace(known, scatter=scatter, stats=stats)
        self._known = known
        self._is_chosen = True  # last, for threads that do not hold the lock

    def _geometry(self, weights: tuple[float, ...]) -> ClassGeometry:
        """Return class means and scatter with the weights of blocks."""
        stats = weighted_statistics(self.model, weights)
        return ClassGeometry.of(stats, self.model.masses)

    def _choose(
        self,
        geometry: ClassGeometry,
        alpha: float | None,
        start: int | None,
        weights: tuple[float, ...],
        scatter: SolvedScatter | None,
    ) -> Choice:
        """Choose the ridge, unless it is given, and the strength of the prior of shapes."""
        model = self.model
        step = 0
        if alpha is None:
            rows = model.pooled_rows
            energy = row_energy(geometry.stats, model.masses, rows)
            whole = float(geometry.stats.gram.diagonal().sum()) / rows
            # Where all rows are the same up to rounding, the scale is that of a whole
            # row, not of a centred one.
            alpha, step = choose_ridge(
                geometry, energy if energy > 1e-10 * whole else whole, start, scatter
            )
        strength = 1.0
        if model.shapes is not None:
            strength = ShapeScores(model.shapes, self._shape_masses()).strength
        return Choice(alpha, step, strength, model.rows, weights)

    def _shape_masses(self) -> Tensor:
        if self.shape_masses is None:
            return self.model.masses
        return self.shape_masses

    def project(self, Z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return features (n, d) in the coordinates of the statistics (n, k), and their energy (n,) outside."""
        choice, _, stats = self.scatter()
        H = weighted_rows(self.model, choice.weights, Z)
        if stats.basis is None:
            return H, None
        reduced = stats.project(H)
        return reduced, (H.square().sum(dim=1) - reduced.square().sum(dim=1)).clamp_min(
            0.0
        )

    def novelty_terms(self, Z: Tensor) -> Tensor:
        """Return the terms of novelty of features (n, d), and 1 / count of the nearest class."""
        found = torch.cat(
            [
                self.terms.of_rows(*self.project(block))
                for block in torch.split(Z, _TERM_ROWS)
            ]
        )
        # Rows too large to be squared are as unknown as can be.
        return torch.nan_to_num(found, nan=torch.inf)

    @solved_once
    def shapes(self) -> ShapeScores | None:
        """What the shapes of classes add to the scores; None where no shapes are kept."""
        if self.model.shapes is None or self.kind == "ridge":
            return None
        self.readout()
        if self.choice is None:
            strength = 1.0
        else:
            strength = self.choice.strength
        return ShapeScores(self.model.shapes, self._shape_masses(), strength)

    def temperature(self) -> float:
        """Return a temperature for probabilities, guessed from the statistics."""
        return self._temperature

    @solved_once
    def _temperature(self) -> float:
        readout, temperature = self._solution
        if temperature is not None:
            return temperature
        if self.kind == "ridge":
            return ridge_temperature(self.model, readout)
        return 1.0 + UNCALIBRATED * self.scatter()[1].estimate_means().spread

    @solved_once
    def terms(self) -> NoveltyTerms:
        """What novelty is weighed from."""
        return NoveltyTerms.of(self.scatter()[1], self._gram)

    def _gram(self, H: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Return the sum of products (k, k) of all rows but those of H (n, k)."""
        gram = weighted_statistics(self.model, self.scatter()[0].weights).gram
        if H is None:
            return gram
        return torch.addmm(
            gram, H.T, H if weights is None else weights[:, None] * H, alpha=-1.0
        )

    @solved_once
    def standard(self) -> NoveltyStandard:
        """How terms become a score where nothing was calibrated: by what the statistics say of known rows."""
        terms = self.expected_terms
        return NoveltyStandard.of(terms.mean(axis=0), terms.T @ terms / len(terms))

    @solved_once
    def expected_terms(self) -> NDArray[np.float64]:
        """Terms of rows drawn as the statistics say known ones are.

        Classes are drawn in the order of their energies, so that other names of classes
        give the same rows.
        """
        terms = self.terms
        order = torch.argsort(terms.energies, stable=True).tolist()
        if order != sorted(order):
            groups = [[column] for column in order]
            terms = NoveltyTerms.of(terms.scatter.group(groups), self._gram)
        return np.asarray(terms.expected_rows().cpu().numpy())

    def held_out_scores(
        self, Z: Tensor, codes: Tensor, folds: Tensor, weights: Tensor | None = None
    ) -> HeldOutScores:
        """Score learned rows, each as if its fold had not been learned.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            The rows; of each class at least one learned row must not be in any one
            fold.
        codes, folds : Tensor of shape (n,)
            Their classes and their folds.
        weights : Tensor of shape (n,), optional
            What they were learned with, where that is not one. Each is scored once all
            the same.
        """
        # Most of its cost is shared with what comes now, and a file keeps it
        self.readout()
        choice, scatter, _ = self.scatter()
        shapes = self.model.shapes
        spread = 0.0
        rows = (
            *self.project(Z),
            None if shapes is None else shapes.rows(self.model.inputs(Z)),
        )
        scores = Z.new_empty(len(codes), len(scatter.counts))
        terms = Z.new_empty(len(codes), 6)
        for fold in torch.unique(folds).tolist():
            mine = torch.nonzero(folds == fold).ravel()
            own = codes[mine]
            taken = None if weights is None else weights[mine]
            reduced = rows[0][mine]
            outside, shape = (None if part is None else part[mine] for part in rows[1:])
            rest = scatter.follow(reduced, own, taken, sign=-1)
            terms[mine] = NoveltyTerms.of(
                rest, partial(self._gram, reduced, taken)
            ).of_rows(reduced, outside)
            estimates = rest.estimate_means()
            linear = torch.addmm(estimates.offset, reduced, estimates.weights)
            if shapes is not None and shape is not None:
                moments = shapes.add(shape, own, -1.0, taken)
                linear = ShapeScores(moments, rest.counts, choice.strength).add(
                    shape, linear
                )
            scores[mine] = linear
            spread += estimates.spread * len(mine) / len(codes)
        found = np.asarray(terms.cpu().numpy())
        if self.kind == "ridge":
            return HeldOutScores(found)
        return HeldOutScores(
            found, log_losses(scores, codes), 1.0 + UNCALIBRATED * spread
        )
