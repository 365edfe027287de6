"""Class means solved against the within-class scatter, kept up to date row by row instead of factored anew.

With class counts n_c and means ``m_c = Q_c / n_c`` the within-class scatter is ``S_w =
G - sum n_c m_c m_c^T``: as exact, mergeable and unlearnable as ridge, since everything
in it is a sum over samples. Answers need ``A^-1 M`` and ``tr A^-1`` with ``A = S_w +
alpha I``. A row x of weight w (one, unless said otherwise) of a class with k rows and
mean m changes

    S_w by  k w / (k + w) (x - m)(x - m)^T        m by  w (x - m) / (k + w)

so that after a few rows ``A = A_0 + U diag(s) U^T`` with one column (and sign) per row,
and with P = A_0^-1, V = P U

    A^-1 = P - V (diag(s) + U^T V)^-1 V^T.

Columns of changed means lie in the span of the old ones and of U, so nothing of order
k^2 C is repeated.

**Class means are estimates**: how much of each is noise, and class scores that take it
off.

In the metric ``f A^-1`` (``A = S_w + alpha I``, f degrees of freedom) the mean of n_c
rows carries noise of energy

    v_c = u / (n_c (1 - l))        u = tr(A^-1 S_w)        l = u / f        (mean
    leverage)

With centred means D, their Gram matrix ``K = f D^T A^-1 D`` and a prior Gram matrix
Gamma of the true means, the best linear estimate of them from the noisy ones is ``D
F^T``, ``F = Gamma (Gamma + V)^-1``, and

    score_c(h) = (F z)_c - o_c / 2        z = f D^T A^-1 (h - centre)        r_c = t /
    (t + v_c) o_c = (F K F^T)_cc - sum_j F_cj^2 v_j - (1 - eta) r_c^2 (K_cc - v_c - t)

Gamma is half K with the noise taken off its eigenvalues (what a mean shares with the
other means is signal: a class of few rows borrows their directions), half a multiple of
the identity (each mean shrunk by itself, ``t / (t + v_c)``).
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
"""Rows that are followed before it is cheaper to factor anew."""

_MAX_LEVERAGE = 1.0 - 1e-3

SHARED = 0.5
"""Share of the prior that is learned from the other means. Chosen on training rows of birds, intents, CIFAR-100 and a
text set: 0.25 to 0.65 do about as well, 0 loses 1 to 5 points where classes have one or
two rows, 1 loses 2 to 10."""

MAX_SHARED_CLASSES = 1024
"""Beyond this many classes each mean is shrunk by itself: a decomposition of that order costs more than all else."""

ETA = 0.9
"""How much of a mean's energy beyond the expected one counts in its offset. Rows vary in how strongly they show their
own class: the spread of scores on it is 2.5 to 4.5 times that of the common covariance,
on others 1.0 to 1.1 times. On training rows 0.9 is a little better than 1 everywhere
(0.1 to 0.25 points), 0.8 less."""

_ROUNDS = 20


@dataclass(frozen=True)
class ClassGeometry:
    """Class means and within-class scatter in reduced coordinates.

    Parameters
    ----------
    means : Tensor of shape (k, C)
        Class means.
    scatter : Tensor of shape (k, k)
        Within-class scatter S_w (a sum, not divided by the number of rows).
    counts : Tensor of shape (C,)
        Rows per class, or the sum of their weights.
    stats : RidgeStatistics
        Where they came from.
    """

    means: Tensor
    scatter: Tensor
    counts: Tensor
    stats: RidgeStatistics

    @classmethod
    def of(cls, stats: RidgeStatistics, counts: Tensor) -> ClassGeometry:
        """Compute means and scatter from one-hot statistics."""
        counts = counts.to(stats.cross)
        divisors = counts_or_one(counts)
        means = stats.cross / divisors
        roots = stats.cross / divisors.sqrt()
        scatter = torch.addmm(stats.gram, roots, roots.T, alpha=-1.0)
        return cls(means, scatter, counts, stats)


@dataclass(frozen=True, eq=False)
class SolvedScatter:
    """``S_w + alpha I`` and the class means, inverted and solved.

    Parameters
    ----------
    alpha : float
        The ridge.
    factor : CholeskyFactor
        Of ``A_0``.
    counts : Tensor of shape (C,)
        Rows per class, or the sum of their weights, float64.
    means : Tensor of shape (k, C)
        Class means M.
    solved_means : Tensor of shape (k, C)
        ``P M``.
    columns, solved_columns : Tensor of shape (k, r)
        U and ``V = P U``.
    signs : Tensor of shape (r,)
        1 for a row learned, -1 for one unlearned.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
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
        """Factor the scatter and solve for the class means."""
        factor = safe_cholesky(geometry.scatter, shift=alpha)
        means = geometry.means
        no_columns = means.new_zeros(means.shape[0], 0)
        no_signs = means.new_zeros(0)
        counts = geometry.counts.to(means)
        return cls(
            alpha,
            factor,
            counts,
            means,
            factor.solve(means),
            no_columns,
            no_columns,
            no_signs,
        )

    def group(self, groups: Sequence[Sequence[int]]) -> SolvedScatter:
        """Return the solution with each class at another place, and new ones without rows; none may be left out."""
        return replace(
            self,
            counts=sum_columns(self.counts, groups, dim=0),
            means=sum_columns(self.means, groups),
            solved_means=sum_columns(self.solved_means, groups),
        )

    def follow(
        self, H: Tensor, codes: Tensor, weights: Tensor | None = None, sign: int = 1
    ) -> SolvedScatter:
        """Return the solution after rows H (n, k) of classes ``codes`` were learned, or with ``sign=-1`` unlearned.

        There is one more column per row, along which the mean of its class moves. A
        class cannot lose its last row.
        """
        means = self.means.clone()
        counts = self.counts.tolist()
        rows = []
        steps = []
        first = {}
        for row, code, w in zip(
            H, codes.tolist(), [1.0] * len(H) if weights is None else weights.tolist()
        ):
            n = counts[code]
            after = counts[code] = n + sign * w
            if n == 0.0:
                means[:, code] = first[code] = row
                continue
            if after <= 1e-9 * n:
                raise UnlearnError(
                    "The last row of a class cannot be unlearned alone: drop the class instead."
                )
            away = row - means[:, code]
            rows.append((n * w / after) ** 0.5 * away)
            steps.append(
                (code, sign * w**0.5 / (n * after) ** 0.5)
            )  # the mean moves by this much of the column
            means[:, code] += sign * w * away / after
        if rows or first:
            block = torch.stack([*rows, *first.values()], dim=1)
        else:
            block = means.new_zeros(means.shape[0], 0)
        solved = self.factor.solve(block)
        added = solved[:, : len(rows)]
        solved_means = self.solved_means.clone()
        solved_means[:, list(first)] = solved[:, len(rows) :]
        if steps:
            shift = means.new_zeros(len(steps), means.shape[1])
            for index, (code, step) in enumerate(steps):
                shift[index, code] = step
            touched = sorted({code for code, _ in steps})
            solved_means[:, touched] += added @ shift[:, touched]
        return replace(
            self,
            counts=self.counts.new_tensor(counts),
            means=means,
            solved_means=solved_means,
            columns=torch.cat([self.columns, block[:, : len(rows)]], dim=1),
            solved_columns=torch.cat([self.solved_columns, added], dim=1),
            signs=torch.cat([self.signs, self.signs.new_full((len(rows),), sign)]),
        )

    def _correct(self, rhs: Tensor) -> Tensor:
        """Return ``(diag(s) + U^T V)^-1 rhs``; the matrix is symmetric but, with rows taken out, not definite."""
        core = self.columns.T @ self.solved_columns
        core.diagonal().add_(self.signs)  # 1 / s = s
        solved: Tensor = torch.linalg.solve(core, rhs)
        return solved

    # -- answers -----------------------------------------------------------------------

    def matrix(self) -> Tensor:
        """Return ``A`` (k, k)."""
        found = (self.columns * self.signs) @ self.columns.T
        for panel in self.factor.panels:
            found[-len(panel) :, -len(panel) :].addmm_(panel, panel.T)
        return found

    def solve_means(self) -> Tensor:
        """Return ``A^-1 M`` of shape (k, C), without a product of order ``k^2 C``."""
        if not len(self.signs):
            return self.solved_means
        return self.solved_means - self.solved_columns @ self._correct(
            self.solved_columns.T @ self.means
        )

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``A^-1 rhs`` of shape (k, m)."""
        return self.factor.solve(rhs) - self.solved_columns @ self._correct(
            self.solved_columns.T @ rhs
        )

    def quadratic(self, rhs: Tensor) -> Tensor:
        """Return ``x^T A^-1 x`` (m,) for every column x of ``rhs`` (k, m)."""
        across = self.solved_columns.T @ rhs
        return self.factor.half_solve(rhs).square().sum(dim=0) - (
            across * self._correct(across)
        ).sum(dim=0)

    @property
    def trace_inverse(self) -> float:
        """``tr A^-1``."""
        across = self.solved_columns.T @ self.solved_columns
        return self.factor.trace_inverse - float(self._correct(across).diagonal().sum())

    @property
    def freedom(self) -> float:
        """The degrees of freedom f of the scatter, at least one."""
        return max(float(self.counts.sum()) - len(self.counts), 1.0)

    def noise_energy(self, *, inside: bool = False) -> float:
        """Return the energy of a new row about the mean of its class, or with ``inside`` that of a learned one.

        Zero where the rows tell nothing of their spread: one row of each class, or
        copies of it.
        """
        order = self.means.shape[0]
        free = float(self.counts.sum()) - len(self.counts)
        within = order - (self.alpha + self.factor.jitter) * self.trace_inverse
        if free < 1.0 or within <= 1e-8:
            return 0.0
        if inside:
            return within
        return within / (1.0 - min(within / free, _MAX_LEVERAGE))

    def estimate_means(self) -> MeanEstimates:
        """Return the scores of estimated class means; of the means as they are where no row tells of the spread."""
        return MeanEstimates.of(
            self.means,
            self.solve_means(),
            self.noise_energy() / self.counts,
            self.freedom,
        )


# -- class means as estimates ----------------------------------------------------------


@dataclass(frozen=True)
class MeanEstimates:
    """Linear scores ``h @ weights + offset`` of estimated class means.

    Parameters
    ----------
    weights : Tensor of shape (k, C)
        Weights in the coordinates of the statistics.
    offset : Tensor of shape (C,)
        Offsets.
    spread : float
        t, the energy of a true mean around the centre of all.
    """

    weights: Tensor
    offset: Tensor
    spread: float

    @classmethod
    def of(
        cls, means: Tensor, solved: Tensor, noise: Tensor, freedom: float
    ) -> MeanEstimates:
        """Estimate the means and solve for the scores.

        Parameters
        ----------
        means : Tensor of shape (k, C)
            Class means M.
        solved : Tensor of shape (k, C)
            ``A^-1 M``.
        noise : Tensor of shape (C,)
            v_c, all zero where the rows tell nothing of it.
        freedom : float
            f.

        Examples
        --------
        >>> import torch
        >>> from evergrow.head.linalg.scatter import MeanEstimates
        >>> means = torch.tensor([[2.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
        >>> plain = MeanEstimates.of(means, means, torch.zeros(2, dtype=torch.float64), 1.0)
        >>> plain.weights.tolist()
        [[2.0, -2.0], [0.0, 0.0]]
        >>> few = MeanEstimates.of(means, means, torch.full((2,), 2.0, dtype=torch.float64), 1.0)
        >>> bool((few.weights.abs() < plain.weights.abs())[0].all())
        True
        """
        classes = means.shape[1]

        def centred(centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Return what the Gram matrix and its diagonal lose about a centre ``M w``, and that diagonal."""
            across = freedom * (means.T @ (solved @ centre))
            within = across @ centre
            return (
                across,
                within,
                (
                    freedom * (means * solved).sum(dim=0) - 2.0 * across + within
                ).clamp_min(0.0),
            )

        centre = means.new_full((classes,), 1.0 / max(classes, 1))
        spread = 0.0
        across, within, energies = centred(centre)
        is_noisy = bool((noise > 0.0).all())
        if is_noisy:
            precision = 1.0 / (mean_spread(energies, noise) + noise)
            centre = precision / precision.sum()  # few rows do not move the centre
            across, within, energies = centred(centre)
            spread = mean_spread(energies, noise)
        weights = freedom * (solved - (solved @ centre)[:, None])
        if is_noisy and classes > MAX_SHARED_CLASSES:
            kept = spread / (spread + noise)
            weights = weights * kept
            energies = kept.square() * (
                energies - noise - (1.0 - ETA) * (energies - noise - spread)
            )
        elif is_noisy:
            gram = freedom * (means.T @ solved)
            gram = 0.5 * (gram + gram.T) - across[:, None] - across[None, :] + within
            mixing, energies = _shrinkage(gram, noise, spread)
            weights = weights @ mixing.T
        return cls(weights, -((means @ centre) @ weights) - 0.5 * energies, spread)


def _shrinkage(gram: Tensor, noise: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """Return F (C, C) and the energies o_c (C,); what a mean shares with the others counts as signal."""
    root = noise.sqrt()
    values, vectors = symmetric_eigh(gram / root[:, None] / root[None, :])
    seen = root[:, None] * vectors
    prior = SHARED * (seen * (values - 1.0).clamp_min(0.0)) @ seen.T
    prior.diagonal().add_((1.0 - SHARED) * spread)
    total = prior.clone()
    total.diagonal().add_(noise)
    mixing = torch.linalg.solve(
        total, prior
    ).T  # F = Gamma (Gamma + V)^-1, both symmetric
    energies = ((mixing @ gram) * mixing).sum(dim=1) - mixing.square() @ noise
    kept = (spread / (spread + noise)).square()
    energies = energies - (1.0 - ETA) * kept * (gram.diagonal() - noise - spread)
    return mixing, energies


def mean_spread(energies: Tensor, noise: Tensor) -> float:
    """Return t, the energy of a true mean: a mean of ``q - v`` in which noisy classes count less."""
    energies = energies.cpu()  # a few numbers in many rounds: no work for a GPU
    noise = noise.cpu()
    floor = 1e-6 * float(energies.mean()) + 1e-300
    spread = max(float((energies - noise).clamp_min(0.0).mean()), floor)
    for _ in range(_ROUNDS):
        weights = (spread + noise).square().reciprocal()
        spread = max(float((weights * (energies - noise)).sum() / weights.sum()), floor)
    return spread
