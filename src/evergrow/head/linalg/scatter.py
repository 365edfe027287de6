"""Class means solved against the within-class scatter, and estimates of class means.

**Solution.** G is the Gram matrix of all rows in k coordinates, and Q_c the sum of the
n_c rows of class c. With class means ``m_c = Q_c / n_c`` (the columns of M) and a ridge
alpha, the within-class scatter is

    S_w = G - sum_c n_c m_c m_c^T        A = S_w + alpha I

Like all statistics it is a sum over samples, so it can be merged and unlearned exactly.
Predictions need ``A^-1 M`` and ``tr A^-1``. A row x of weight w (1 by default) of a
class with n rows and mean m changes

    S_w by  n w / (n + w) (x - m)(x - m)^T        m by  w (x - m) / (n + w)

so after a few rows ``A = A_0 + U diag(s) U^T`` with one column of U and one sign s per
row. With ``P = A_0^-1`` and ``V = P U``,

    A^-1 = P - V (diag(s) + U^T V)^-1 V^T

Changed means lie in the span of the old means and U, so following a row repeats no
operation of order k^2 C for C classes.

**Estimated means.** Class means of few rows are noisy. In the metric ``f A^-1`` (f
degrees of freedom), the mean of n_c rows carries noise of energy

    v_c = u / (n_c (1 - l))        u = tr(A^-1 S_w)        l = u / f   (mean leverage)

With the class means D about a common centre, their Gram matrix ``K = f D^T A^-1 D``,
the mean energy t of a true mean, and a prior Gram matrix Gamma of the true means, the
best linear estimate of the true means is ``D F^T`` with
``F = Gamma (Gamma + diag(v))^-1``. The scores of a row h are

    score_c(h) = (F z)_c - o_c / 2
    z          = f D^T A^-1 (h - centre)
    o_c        = (F K F^T)_cc - sum_j F_cj^2 v_j - (1 - eta) r_c^2 (K_cc - v_c - t)
    r_c        = t / (t + v_c)

Gamma is the average of two priors. The first is K with the noise removed from its
eigenvalues. It treats directions shared by several means as signal, so a class of few
rows benefits from the others. The second is t times the identity, which shrinks each
mean independently by r_c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evergrow.core.errors import UnlearnError
from evergrow.head.linalg.class_shapes import counts_or_one
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky, symmetric_eigh
from evergrow.head.linalg.statistics import RidgeStatistics, sum_columns

MAX_CORRECTIONS = 192
"""Number of followed rows from which a new factorisation is cheaper."""

SHARED_PRIOR_WEIGHT = 0.5
"""Weight of the prior learned from the other means.

Chosen on training rows of four data sets, where 0.25 to 0.65 give similar accuracy. 0
loses 1 to 5 points for classes of one or two rows, 1 loses 2 to 10.
"""

MAX_SHARED_CLASSES = 1024
"""Above this many classes, each mean is shrunk independently.

The decomposition of a C x C matrix would otherwise dominate the cost.
"""

ETA = 0.9
"""Fraction of a mean's energy above its expectation that counts in its offset.

Rows of a class vary in energy: their scores on their own class vary 2.5 to 4.5 times as
much as the common covariance predicts. On training rows 0.9 is slightly better than 1
(0.1 to 0.25 points) and than 0.8.
"""

_LARGEST_LEVERAGE = 1.0 - 1e-3
"""Bound on the mean leverage l, so that ``u / (1 - l)`` stays finite."""

_SPREAD_ITERATIONS = 20


@dataclass(frozen=True)
class ClassGeometry:
    """Class means and within-class scatter in the coordinates of the statistics.

    Parameters
    ----------
    means : Tensor of shape (k, C)
        Class means M.
    scatter : Tensor of shape (k, k)
        Within-class scatter S_w. It is a sum, not divided by the number of rows.
    counts : Tensor of shape (C,)
        Rows per class, or sums of their weights.
    stats : RidgeStatistics
        Statistics from which the means and the scatter were computed.
    """

    means: Tensor
    scatter: Tensor
    counts: Tensor
    stats: RidgeStatistics

    @classmethod
    def of(cls, stats: RidgeStatistics, counts: Tensor) -> ClassGeometry:
        """Compute means and scatter from statistics of one-hot targets.

        A class without rows gets a mean of zeros.

        Parameters
        ----------
        stats : RidgeStatistics
            The statistics.
        counts : Tensor of shape (C,)
            Rows per class, or sums of their weights.
        """
        counts = counts.to(stats.cross)
        divisors = counts_or_one(counts)
        means = stats.cross / divisors
        roots = stats.cross / divisors.sqrt()
        scatter = torch.addmm(stats.gram, roots, roots.T, alpha=-1.0)
        return cls(means, scatter, counts, stats)


@dataclass(frozen=True, eq=False)
class SolvedScatter:
    """Solution of ``A = S_w + alpha I`` for the class means.

    Parameters
    ----------
    alpha : float
        The ridge.
    factor : CholeskyFactor
        Factor of A_0, the matrix A when the statistics were solved.
    counts : Tensor of shape (C,)
        Rows per class, or sums of their weights, float64.
    means : Tensor of shape (k, C)
        Class means M.
    solved_means : Tensor of shape (k, C)
        ``P M``.
    columns : Tensor of shape (k, r)
        U, one column per followed row.
    solved_columns : Tensor of shape (k, r)
        ``V = P U``.
    signs : Tensor of shape (r,)
        s: 1 for a learned row, -1 for an unlearned one.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> rng = torch.Generator().manual_seed(0)
    >>> H = torch.randn(9, 3, generator=rng, dtype=torch.float64)
    >>> codes = torch.tensor([0, 1, 2] * 3)
    >>> def scatter(n):
    ...     Y = torch.nn.functional.one_hot(codes[:n], 3).double()
    ...     stats = RidgeStatistics.create(3, 3).update(H[:n], Y)
    ...     return SolvedScatter.of(ClassGeometry.of(stats, Y.sum(dim=0)), alpha=0.1)
    >>> followed = scatter(6).follow(H[6:], codes[6:])
    >>> bool(torch.allclose(followed.solve_means(), scatter(9).solve_means()))
    True
    """

    alpha: float
    factor: CholeskyFactor
    counts: Tensor
    means: Tensor
    solved_means: Tensor
    columns: Tensor
    solved_columns: Tensor
    signs: Tensor

    @classmethod
    def of(cls, geometry: ClassGeometry, alpha: float) -> SolvedScatter:
        """Factor ``S_w + alpha I`` and solve for the class means. No rows followed."""
        factor = safe_cholesky(geometry.scatter, shift=alpha)
        means = geometry.means
        no_columns = means.new_zeros(means.shape[0], 0)
        return cls(
            alpha=alpha,
            factor=factor,
            counts=geometry.counts.to(means),
            means=means,
            solved_means=factor.solve(means),
            columns=no_columns,
            solved_columns=no_columns,
            signs=means.new_zeros(0),
        )

    def group(self, groups: Sequence[Sequence[int]]) -> SolvedScatter:
        """Return a copy with classes reordered, and added without rows.

        Parameters
        ----------
        groups : sequence of sequences of int
            The old class of each new class, empty for a new class. Every old class must
            occur once.
        """
        return replace(
            self,
            counts=sum_columns(self.counts, groups, dim=0),
            means=sum_columns(self.means, groups),
            solved_means=sum_columns(self.solved_means, groups),
        )

    def follow(
        self, H: Tensor, codes: Tensor, weights: Tensor | None = None, sign: int = 1
    ) -> SolvedScatter:
        """Return the solution after learned rows, or unlearned ones with ``sign=-1``.

        Each row adds a column to U, along which the mean of its class moves. The first
        row of a new class adds none: it only sets the mean.

        Parameters
        ----------
        H : Tensor of shape (n, k)
            Rows.
        codes : Tensor of shape (n,)
            Class of each row.
        weights : Tensor of shape (n,) or None
            Sample weights. None means 1.
        sign : {1, -1}
            Whether rows were learned or unlearned.

        Raises
        ------
        UnlearnError
            If a class would lose its last row.
        """
        means, counts, columns, steps, first_rows = self._move_means(
            H, codes, weights, sign
        )
        n_columns = len(columns)
        block = means.new_zeros(means.shape[0], 0)
        if columns or first_rows:
            block = torch.stack([*columns, *first_rows.values()], dim=1)
        solved = self.factor.solve(block)
        new_solved = solved[:, :n_columns]
        # P M changes by the solved first rows and along the solved columns.
        solved_means = self.solved_means.clone()
        solved_means[:, list(first_rows)] = solved[:, n_columns:]
        shift = means.new_zeros(n_columns, means.shape[1])
        for index, (code, step) in enumerate(steps):
            shift[index, code] = step
        moved = sorted({code for code, _ in steps})
        solved_means[:, moved] += new_solved @ shift[:, moved]
        return replace(
            self,
            counts=self.counts.new_tensor(counts),
            means=means,
            solved_means=solved_means,
            columns=torch.cat([self.columns, block[:, :n_columns]], dim=1),
            solved_columns=torch.cat([self.solved_columns, new_solved], dim=1),
            signs=torch.cat([self.signs, self.signs.new_full((n_columns,), sign)]),
        )

    def _move_means(
        self, H: Tensor, codes: Tensor, weights: Tensor | None, sign: int
    ) -> tuple[
        Tensor, list[float], list[Tensor], list[tuple[int, float]], dict[int, Tensor]
    ]:
        """Move the class means by rows, one after the other. See :meth:`follow`.

        Returns
        -------
        means : Tensor of shape (k, C)
            The moved means.
        counts : list of float
            Rows per class afterwards.
        columns : list of Tensor of shape (k,)
            New columns of U.
        steps : list of (int, float)
            For each column the class of its row, and how far the mean of this class
            moves along the column.
        first_rows : dict of int to Tensor of shape (k,)
            First rows of classes that had none, by class.
        """
        means = self.means.clone()
        counts = self.counts.tolist()
        row_weights = [1.0] * len(H) if weights is None else weights.tolist()
        columns = []
        steps = []
        first_rows = {}
        for row, code, w in zip(H, codes.tolist(), row_weights, strict=True):
            before = counts[code]
            after = before + sign * w
            counts[code] = after
            if before == 0.0:
                means[:, code] = row
                first_rows[code] = row
                continue
            if after <= 1e-9 * before:
                raise UnlearnError(
                    "The last row of a class cannot be unlearned alone: drop the class "
                    "instead."
                )
            deviation = row - means[:, code]
            columns.append((before * w / after) ** 0.5 * deviation)
            steps.append((code, sign * w**0.5 / (before * after) ** 0.5))
            means[:, code] += sign * w * deviation / after
        return means, counts, columns, steps, first_rows

    def without_classes(
        self, H: Tensor, codes: Tensor, weights: Tensor | None = None
    ) -> SolvedScatter:
        """Return the solution of the other classes, as if these were never learned.

        Parameters
        ----------
        H : Tensor of shape (n, k)
            All learned rows of the classes to leave out.
        codes : Tensor of shape (n,)
            Class of each row.
        weights : Tensor of shape (n,) or None
            Sample weights. None means 1.
        """
        # The last row of a class equals its mean, so it adds nothing to the scatter.
        last = {code: row for row, code in enumerate(codes.tolist())}
        others = torch.ones_like(codes, dtype=torch.bool)
        others[list(last.values())] = False
        other_weights = None if weights is None else weights[others]
        rest = self.follow(H[others], codes[others], other_weights, sign=-1)
        kept = [code for code in range(len(self.counts)) if code not in last]
        return replace(
            rest,
            counts=rest.counts[kept],
            means=rest.means[:, kept],
            solved_means=rest.solved_means[:, kept],
        )

    def _correct(self, rhs: Tensor) -> Tensor:
        """Return ``(diag(s) + U^T V)^-1 rhs`` for `rhs` of shape (r, m).

        The matrix is symmetric, but indefinite if rows were unlearned.
        """
        core = self.columns.T @ self.solved_columns
        core.diagonal().add_(self.signs)  # 1 / s = s
        solved: Tensor = torch.linalg.solve(core, rhs)
        return solved

    def matrix(self) -> Tensor:
        """Return A (k, k) as a new tensor."""
        found = (self.columns * self.signs) @ self.columns.T
        for panel in self.factor.panels:
            found[-len(panel) :, -len(panel) :].addmm_(panel, panel.T)
        return found

    def solve_means(self) -> Tensor:
        """Return ``A^-1 M`` of shape (k, C), without an operation of order k^2 C."""
        if not len(self.signs):
            return self.solved_means
        correction = self._correct(self.solved_columns.T @ self.means)
        return self.solved_means - self.solved_columns @ correction

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``A^-1 rhs`` for `rhs` of shape (k, m)."""
        correction = self._correct(self.solved_columns.T @ rhs)
        return self.factor.solve(rhs) - self.solved_columns @ correction

    def quadratic(self, rhs: Tensor) -> Tensor:
        """Return ``x^T A^-1 x`` (m,) for every column x of `rhs` (k, m)."""
        across = self.solved_columns.T @ rhs
        squares = self.factor.half_solve(rhs).square().sum(dim=0)
        return squares - (across * self._correct(across)).sum(dim=0)

    @property
    def trace_inverse(self) -> float:
        """``tr A^-1``. The part that belongs to A_0 is computed once per factor."""
        across = self.solved_columns.T @ self.solved_columns
        return self.factor.trace_inverse - float(self._correct(across).diagonal().sum())

    @property
    def freedom(self) -> float:
        """Degrees of freedom f of the scatter, at least one."""
        return max(float(self.counts.sum()) - len(self.counts), 1.0)

    def noise_energy(self, *, inside: bool = False) -> float:
        """Return ``u / (1 - l)``, the expected energy of a row about its class mean.

        This is the energy of a new row, which was not learned.

        Parameters
        ----------
        inside : bool, default=False
            Return the energy u of a learned row instead.

        Returns
        -------
        float
            0 if the rows give no estimate: each class has one row, or copies of one.
        """
        freedom = float(self.counts.sum()) - len(self.counts)
        return self.noise_energy_of(self.trace_inverse, freedom, inside=inside)

    def noise_energy_of(
        self, trace_inverse: float, freedom: float, *, inside: bool = False
    ) -> float:
        """Return :meth:`noise_energy` of other rows with the same ridge.

        Parameters
        ----------
        trace_inverse : float
            ``tr A^-1`` of these rows.
        freedom : float
            Their degrees of freedom.
        inside : bool, default=False
            As for :meth:`noise_energy`.
        """
        # u = tr(A^-1 (A - alpha I))
        k = self.means.shape[0]
        within = k - (self.alpha + self.factor.jitter) * trace_inverse
        if freedom < 1.0 or within <= 1e-8:
            return 0.0
        if inside:
            return within
        return within / (1.0 - min(within / freedom, _LARGEST_LEVERAGE))

    def estimate_means(self) -> MeanEstimates:
        """Return the linear scores from estimated class means.

        The means are used unchanged if the rows give no estimate of the noise. Every
        class must have rows.
        """
        return MeanEstimates.of(
            self.means,
            self.solve_means(),
            self.noise_energy() / self.counts,
            self.freedom,
        )


# -- estimated means -------------------------------------------------------------------


@dataclass(frozen=True)
class MeanEstimates:
    """Linear scores ``h @ weights + offset`` from estimated class means.

    Parameters
    ----------
    weights : Tensor of shape (k, C)
        Weights in the coordinates of the statistics.
    offset : Tensor of shape (C,)
        Offsets.
    spread : float
        t, the mean energy of a true mean about the common centre. 0 if the noise is
        unknown.
    centre : Tensor of shape (C,)
        Weights of the class means in the common centre.
    prior : Tensor of shape (C, C) or None
        Gamma. None if each mean is shrunk independently, or not at all.
    """

    weights: Tensor
    offset: Tensor
    spread: float
    centre: Tensor
    prior: Tensor | None = None

    @classmethod
    def of(
        cls, means: Tensor, solved: Tensor, noise: Tensor, freedom: float
    ) -> MeanEstimates:
        """Compute the scores ``(F z)_c - o_c / 2`` of the module docstring.

        Up to `MAX_SHARED_CLASSES` classes use both priors, more classes only the
        second. Without noise, F is the identity.

        Parameters
        ----------
        means : Tensor of shape (k, C)
            Class means M.
        solved : Tensor of shape (k, C)
            ``A^-1 M``.
        noise : Tensor of shape (C,)
            v_c. All zero if unknown.
        freedom : float
            f.

        Examples
        --------
        >>> import torch
        >>> from evergrow.head.linalg.scatter import MeanEstimates
        >>> means = torch.tensor([[2.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
        >>> noise = torch.zeros(2, dtype=torch.float64)
        >>> exact = MeanEstimates.of(means, means, noise, freedom=1.0)
        >>> exact.weights.tolist()
        [[2.0, -2.0], [0.0, 0.0]]
        >>> noisy = MeanEstimates.of(means, means, noise + 2.0, freedom=1.0)
        >>> bool((noisy.weights.abs() < exact.weights.abs())[0].all())
        True
        """
        classes = means.shape[1]
        # The centre is M w. Without noise, all classes have the same weight.
        centre = means.new_full((classes,), 1.0 / max(classes, 1))
        spread = 0.0
        across, within, energies = _centred_energies(means, solved, centre, freedom)
        is_noisy = bool((noise > 0.0).all())
        if is_noisy:
            # Noisy means get less weight in the centre.
            precision = 1.0 / (mean_spread(energies, noise) + noise)
            centre = precision / precision.sum()
            across, within, energies = _centred_energies(means, solved, centre, freedom)
            spread = mean_spread(energies, noise)
        weights = freedom * (solved - (solved @ centre)[:, None])
        prior = None
        if is_noisy and classes > MAX_SHARED_CLASSES:
            kept = spread / (spread + noise)  # F = diag(r)
            weights = weights * kept
            energies = kept.square() * (
                energies - noise - (1.0 - ETA) * (energies - noise - spread)
            )
        elif is_noisy:
            # K, from the products of means that are not centred.
            gram = freedom * (means.T @ solved)
            gram = 0.5 * (gram + gram.T) - across[:, None] - across[None, :] + within
            prior = _prior(gram, noise, spread)
            mixing, energies = _shrinkage(gram, prior, noise, spread)
            weights = weights @ mixing.T
        offset = -((means @ centre) @ weights) - 0.5 * energies
        return cls(weights, offset, spread, centre, prior)


def _centred_energies(
    means: Tensor, solved: Tensor, centre: Tensor, freedom: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms of ``K_cc = f (m_c - M w)^T A^-1 (m_c - M w)``.

    Parameters
    ----------
    means, solved : Tensor of shape (k, C)
        M and ``A^-1 M``.
    centre : Tensor of shape (C,)
        w.
    freedom : float
        f.

    Returns
    -------
    across : Tensor of shape (C,)
        ``f M^T A^-1 M w``.
    within : Tensor of shape ()
        ``f w^T M^T A^-1 M w``.
    energies : Tensor of shape (C,)
        Diagonal of K, at least zero.
    """
    across = freedom * (means.T @ (solved @ centre))
    within = across @ centre
    energies = freedom * (means * solved).sum(dim=0) - 2.0 * across + within
    return across, within, energies.clamp_min(0.0)


def _prior(gram: Tensor, noise: Tensor, spread: float) -> Tensor:
    """Return the average Gamma (C, C) of the two priors of the true means.

    Parameters
    ----------
    gram : Tensor of shape (C, C)
        K.
    noise : Tensor of shape (C,)
        v_c.
    spread : float
        t.
    """
    root = noise.sqrt()
    values, vectors = symmetric_eigh(gram / root[:, None] / root[None, :])
    directions = root[:, None] * vectors
    # In units of the noise, eigenvalues of K below 1 are noise alone.
    signal = (values - 1.0).clamp_min(0.0)
    prior = SHARED_PRIOR_WEIGHT * (directions * signal) @ directions.T
    prior.diagonal().add_((1.0 - SHARED_PRIOR_WEIGHT) * spread)
    return prior


def _shrinkage(
    gram: Tensor, prior: Tensor, noise: Tensor, spread: float
) -> tuple[Tensor, Tensor]:
    """Return ``F = Gamma (Gamma + diag(v))^-1`` (C, C) and the energies o_c (C,).

    Parameters
    ----------
    gram : Tensor of shape (C, C)
        K.
    prior : Tensor of shape (C, C)
        Gamma.
    noise : Tensor of shape (C,)
        v_c.
    spread : float
        t.
    """
    total = prior.clone()
    total.diagonal().add_(noise)
    mixing = torch.linalg.solve(total, prior).T  # Gamma is symmetric
    energies = ((mixing @ gram) * mixing).sum(dim=1) - mixing.square() @ noise
    kept = (spread / (spread + noise)).square()
    energies = energies - (1.0 - ETA) * kept * (gram.diagonal() - noise - spread)
    return mixing, energies


def mean_spread(energies: Tensor, noise: Tensor) -> float:
    """Return t, the weighted mean of ``K_cc - v_c`` with weights ``(t + v_c)^-2``.

    Solved by fixed-point iteration. Noisy classes count less. The result is positive.

    Parameters
    ----------
    energies : Tensor of shape (C,)
        K_cc, the energies of the centred means.
    noise : Tensor of shape (C,)
        v_c.
    """
    # A few numbers in many iterations are faster on the CPU.
    energies = energies.cpu()
    noise = noise.cpu()
    floor = 1e-6 * float(energies.mean()) + 1e-300
    spread = max(float((energies - noise).clamp_min(0.0).mean()), floor)
    for _ in range(_SPREAD_ITERATIONS):
        weights = (spread + noise).square().reciprocal()
        spread = max(float((weights * (energies - noise)).sum() / weights.sum()), floor)
    return spread
