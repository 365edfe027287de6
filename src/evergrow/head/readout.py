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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.record import Between, record
from evergrow.core.seeding import generator
from evergrow.head.block_weights import (
    ENOUGH_ROWS,
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


# -- ridge regression -----------------------------------------------------------------------------------------


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

    No data is held out. With df the trace of the hat matrix and t the mean score of the true class on the rows learned,
    ``a = 1 - (1 - t) / (1 - df / n)`` estimates that score on new rows (leave one out, on average), and the temperature
    is ``sqrt(a) / (4 ln C)``; the constant was measured on image and text features.
    """
    stats, n = model.state, model.pooled_rows
    factor = safe_cholesky(stats.gram, shift=readout.alpha)
    dof = stats.gram.shape[0] - readout.alpha * factor.trace_inverse
    learned = float((factor.solve(stats.cross) * stats.cross).sum()) / n
    fresh = 1.0 - (1.0 - learned) / max(1.0 - dof / n, 1e-9)
    return (
        0.25
        * math.sqrt(min(max(fresh, 0.05), 1.0))
        / math.log(max(len(model.counts), 2))
    )


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


def choose_weights(model: RidgeModel, choice: Choice | None) -> tuple[float, ...]:
    """Choose the weights of the blocks of the direct link; none where there are no blocks or no link.

    The search begins with the weights in use, or with those that the first task fixed.
    """
    link, blocks = model.layer.link_columns(), model.blocks
    if blocks is None or link is None or len(blocks.sizes) < 2:
        return ()
    if float(model.masses.sum()) < ENOUGH_ROWS:
        return tuple(
            w / g
            for w, g in zip(
                cautious_weights(len(blocks.sizes)), blocks.weights, strict=True
            )
        )
    gram, cross, basis = model.state.part(link)
    start = choice.weights if choice is not None and choice.rows else ()
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
    return model.state if scale is None else model.state.scaled(scale)


# -- terms of novelty ---------------------------------------------------------------------------------------------


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
        Of K; None where there are more classes than coordinates, which the means span then.
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
        counts, free = scatter.counts, scatter.freedom
        shares = counts / counts.sum()
        centre, solved = scatter.means @ shares, scatter.solve_means()
        common = solved @ shares
        # Rows of a large matrix are multiplied a few at a time, without another one of that size.
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
            # The means less their mean are linearly dependent; a shift this small leaves their span as it is.
            span = safe_cholesky(metric, shift=1e-8 * float(energies.mean()))
            total = safe_cholesky(metric + torch.diag(free / counts))
        else:
            span, root = None, float(counts.sum()) ** 0.5 * centre
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
            Energy that rows have outside of these coordinates, where nothing was learned.
        """
        centred = H - self.centre
        products, energy = (
            self._products(centred),
            self.scatter.freedom * self.scatter.quadratic(centred.T),
        )
        inside, explained = self._explained(centred, products, energy)
        if outside is not None:
            energy = energy + self.scatter.freedom * outside / self.scatter.alpha
        return self._terms(products, inside, explained, energy)

    def expected_rows(self) -> Tensor:
        """Return terms (256, 6) of rows drawn as the statistics say known ones are: what to expect before any was seen.

        Rows of a class lie about its true mean with the common scatter. Of that mean the observed one is an estimate:
        it is drawn nearer to the mean of all, the more so the fewer rows there were. Drawn are products of rows with
        the class means and their energy outside the span of the means, or with more classes than coordinates the rows
        themselves.
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
            products, energy = (
                self._products(centred),
                free * scatter.quadratic(centred.T),
            )
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
        known, ridge = (
            scatter.noise_energy(inside=True),
            scatter.alpha + scatter.factor.jitter,
        )
        scale = max(self.expected / max(known, 1e-300), 1.0)
        if self.span is None and known > 0.0:
            covariance = scatter.matrix().mul_(scale / free)
            shift = 1e-8 * float(covariance.diagonal().mean())
            covariance.diagonal().sub_(scale * ridge / free)
            return safe_cholesky(covariance, shift=shift).lower
        means = scatter.means - self.centre[:, None]
        if known <= 0.0:  # nothing is known of the spread but that of the means
            spread = means if self.span is None else self._products(means.T)
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
        counts, energy, inside = (
            self.scatter.counts,
            energy.clamp_min(1e-9),
            inside.clamp_min(1e-12),
        )
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


# -- rows as if they had not been learned -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FoldOuts:
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
        return None if self.losses is None else self.losses.mean(axis=0)


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

    def after(
        self,
        model: RidgeModel,
        fixed: float | None,
        scatter: SolvedScatter | None = None,
    ) -> SolvedCache:
        """Return the cache of another model, which begins where this one's choices ended."""
        # A solution that was followed is in the coordinates of the features.
        known = None if scatter is None else (scatter, model.state)
        return SolvedCache(model, self.kind, fixed, self.choice, known)

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
        scatter = None
        if (
            self.known_scatter is not None
            and self.choice is not None
            and model.state.basis is None
        ):
            before, stats = self.known_scatter
            if (
                stats.basis is None
                and len(before.signs) + len(codes) <= MAX_CORRECTIONS
            ):
                H = weighted_rows(model, self.choice.weights, Z)
                old = before if groups is None else before.group(groups)
                scatter = old.follow(H, codes, weights, -1 if groups is None else 1)
        return self.after(model, self.fixed, scatter)

    def reordered(self, model: RidgeModel, order: list[int]) -> SolvedCache:
        """Return the cache of the same statistics with classes in another order; nothing large is solved again."""
        solution, known = self.solution, None
        if solution is not None:
            solution = replace(
                solution,
                weights=solution.weights[:, order],
                offset=solution.offset[order],
            )
        if self.known_scatter is not None and self.known_scatter[1].basis is None:
            known = self.known_scatter[0].group([[old] for old in order]), model.state
        made = replace(self, model=model, solution=solution, known_scatter=known)
        if "expected_terms" in vars(self):
            made.expected_terms = self.expected_terms
        return made

    def refreshed(self) -> SolvedCache:
        """Return a cache in which everything is chosen for just these statistics."""
        if self.choice is None or self.is_fresh:
            return self
        choice = replace(self.choice, rows=0)
        return SolvedCache(
            self.model, self.kind, self.fixed, choice, shape_masses=self.shape_masses
        )

    # -- answers ----------------------------------------------------------------------------------------------

    def readout(self) -> Readout:
        """Return the linear class scores."""
        model = self.model
        if self.solution is None and self.kind == "ridge":
            self.solution = solve_ridge(model, self.fixed)
        elif self.solution is None:
            choice, scatter, stats = self.scatter()
            estimates, scale = (
                scatter.estimate_means(),
                column_scale(model, choice.weights),
            )
            self.warmth = 1.0 + UNCALIBRATED * estimates.spread
            lifted = stats.lift(estimates.weights)
            lifted = lifted if scale is None else scale[:, None] * lifted
            self.solution = Readout(
                lifted, estimates.offset, choice.alpha, scatter.factor.jitter
            )
        return self.solution

    def scatter(self) -> tuple[Choice, SolvedScatter, RidgeStatistics]:
        """Return what was chosen, the class means solved at it, and the statistics with their coordinates."""
        geometry, denoised = None, self.kind == "denoised"
        # Ridge regression has a ridge of its own; that of the scatter, for novelty, is always chosen.
        fixed, choice = self.fixed if denoised else None, self.choice
        if (
            choice is None
            or not choice.holds(self.model.rows)
            or fixed not in (None, choice.alpha)
        ):
            weights = choose_weights(self.model, choice) if denoised else ()
            geometry = ClassGeometry.of(
                weighted_statistics(self.model, weights), self.model.masses
            )
            if choice is None or choice.weights != weights:
                self.known_scatter = None
            choice = self.choice = self._choose(
                geometry, fixed, None if choice is None else choice.step, weights
            )
            if (
                self.known_scatter is not None
                and self.known_scatter[0].alpha != choice.alpha
            ):
                self.known_scatter = None
            self.is_fresh = self.known_scatter is None
        if self.known_scatter is None:
            if geometry is None:
                geometry = ClassGeometry.of(
                    weighted_statistics(self.model, choice.weights), self.model.masses
                )
            stats = (
                geometry.stats if geometry.stats.basis is not None else self.model.state
            )  # one Gram matrix is held
            self.known_scatter = SolvedScatter.of(geometry, choice.alpha), stats
        return choice, *self.known_scatter

    def _choose(
        self,
        geometry: ClassGeometry,
        alpha: float | None,
        start: int | None,
        weights: tuple[float, ...],
    ) -> Choice:
        """Choose the ridge, unless it is given, and the strength of the prior of shapes."""
        model, step = self.model, 0
        if alpha is None:
            rows = model.pooled_rows
            energy = row_energy(geometry.stats, model.masses, rows)
            whole = float(geometry.stats.gram.diagonal().sum()) / rows
            # Where all rows are the same up to rounding, the scale is that of a whole row, not of a centred one.
            known = None if self.known_scatter is None else self.known_scatter[0]
            alpha, step = choose_ridge(
                geometry, energy if energy > 1e-10 * whole else whole, start, known
            )
        masses = model.masses if self.shape_masses is None else self.shape_masses
        strength = (
            1.0 if model.shapes is None else ShapeScores(model.shapes, masses).strength
        )
        return Choice(alpha, step, strength, model.rows, weights)

    def as_seen(self, Z: Tensor) -> tuple[Tensor, Tensor | None]:
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
                self.terms.of_rows(*self.as_seen(block))
                for block in torch.split(Z, _TERM_ROWS)
            ]
        )
        # Rows too large to be squared are as unknown as can be.
        return torch.nan_to_num(found, nan=torch.inf)

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
            self.warmth = 1.0 + UNCALIBRATED * self.scatter()[1].estimate_means().spread
        return self.warmth

    @cached_property
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

    @cached_property
    def standard(self) -> NoveltyStandard:
        """How terms become a score where nothing was calibrated: by what the statistics say of known rows."""
        terms = self.expected_terms
        return NoveltyStandard.of(terms.mean(axis=0), terms.T @ terms / len(terms))

    @cached_property
    def expected_terms(self) -> NDArray[np.float64]:
        """Terms of rows drawn as the statistics say known ones are."""
        return np.asarray(self.terms.expected_rows().cpu().numpy())

    def fold_outs(
        self, Z: Tensor, codes: Tensor, folds: Tensor, weights: Tensor | None = None
    ) -> FoldOuts:
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
        rows = (
            *self.as_seen(Z),
            None if shapes is None else shapes.rows(self.model.inputs(Z)),
        )
        scores, terms = (
            Z.new_empty(len(codes), len(scatter.counts)),
            Z.new_empty(len(codes), 6),
        )
        for fold in torch.unique(folds).tolist():
            mine = torch.nonzero(folds == fold).ravel()
            own, taken, reduced = (
                codes[mine],
                None if weights is None else weights[mine],
                rows[0][mine],
            )
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
            return FoldOuts(found)
        return FoldOuts(found, log_losses(scores, codes), 1.0 + UNCALIBRATED * spread)
