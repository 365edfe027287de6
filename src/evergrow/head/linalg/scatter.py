"""Class means solved against the within-class scatter, kept up to date row by row instead of factored anew.

With class counts n_c and means ``m_c = Q_c / n_c`` the within-class scatter is ``S_w = G - sum n_c m_c m_c^T``: as
exact, mergeable and unlearnable as ridge, since everything in it is a sum over samples. Answers need ``A^-1 M`` and
``tr A^-1`` with ``A = S_w + alpha I``. A row x of weight w (one, unless said otherwise) of a class with k rows and mean
m changes

    S_w by  k w / (k + w) (x - m)(x - m)^T        m by  w (x - m) / (k + w)

so that after a few rows ``A = A_0 + U diag(s) U^T`` with one column (and sign) per row, and with P = A_0^-1, V = P U

    A^-1 = P - V (diag(s) + U^T V)^-1 V^T.

Columns of changed means lie in the span of the old ones and of U, so nothing of order k^2 C is repeated. On a CPU P
is a triangular factor; on a GPU, which solves triangles slowly, it is the inverse itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evergrow.core.errors import UnlearnError
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky
from evergrow.head.linalg.statistics import RidgeStatistics, check_alpha, take_columns

MAX_CORRECTIONS = 192
"""Rows that are followed before it is cheaper to factor anew."""


def at_least_some(counts: Tensor) -> Tensor:
    """Return counts to divide by: those of classes without rows are one; sums of weights may well be below it."""
    return torch.where(counts > 0, counts, torch.ones_like(counts))


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
        divisors = at_least_some(counts)
        means = stats.cross / divisors
        scatter = stats.gram - (stats.cross / divisors.sqrt()) @ (stats.cross / divisors.sqrt()).T
        return cls(means, scatter, counts, stats)

    def factor(self, alpha: float) -> CholeskyFactor:
        """Factor ``S_w + alpha I``."""
        return safe_cholesky(self.scatter, shift=check_alpha(alpha))


@dataclass(frozen=True, eq=False)
class SolvedScatter:
    """``S_w + alpha I`` and the class means, inverted and solved.

    Parameters
    ----------
    alpha : float
        The ridge.
    factor : CholeskyFactor
        Of ``A_0``.
    inverse : Tensor of shape (k, k) or None
        P where it is explicit.
    trace : float
        Trace of P.
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
    >>> from evergrow.head.linalg import ClassGeometry, RidgeStatistics, SolvedScatter
    >>> H = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> codes = torch.tensor([0, 1, 2] * 3)
    >>> def scatter(n):
    ...     Y = torch.nn.functional.one_hot(codes[:n], 3).double()
    ...     stats = RidgeStatistics.create(3, 3).update(H[:n], Y)
    ...     return SolvedScatter.of(ClassGeometry.of(stats, Y.sum(dim=0)), alpha=0.1)
    >>> followed = scatter(6).learned(H[6:], codes[6:], [0, 1, 2])
    >>> bool(torch.allclose(followed.solve_means(), scatter(9).solve_means()))
    True
    """

    alpha: float
    factor: CholeskyFactor
    inverse: Tensor | None
    trace: float
    counts: Tensor
    means: Tensor
    solved_means: Tensor
    columns: Tensor
    solved_columns: Tensor
    signs: Tensor

    @classmethod
    def of(cls, geometry: ClassGeometry, alpha: float) -> SolvedScatter:
        """Factor the scatter and solve for the class means."""
        factor = geometry.factor(alpha)
        means = geometry.means
        inverse = torch.cholesky_inverse(factor.lower) if means.is_cuda else None
        none = means.new_zeros(means.shape[0], 0)
        return cls(
            alpha=alpha,
            factor=factor,
            inverse=inverse,
            trace=factor.trace_inverse() if inverse is None else float(inverse.diagonal().sum()),
            counts=geometry.counts.to(means),
            means=means,
            solved_means=_apply(factor, inverse, means),
            columns=none,
            solved_columns=none,
            signs=means.new_zeros(0),
        )

    def can_follow(self, rows: int) -> bool:
        """Return whether so many more rows are better followed than factored."""
        return len(self.signs) + rows <= MAX_CORRECTIONS

    # -- following a stream -----------------------------------------------------------------------------------------

    def learned(self, H: Tensor, codes: Tensor, columns: Sequence[int], weights: Tensor | None = None) -> SolvedScatter:
        """Return the solution after rows H (n, k) of classes ``codes``; ``columns`` places old classes, -1 is new."""
        return self.select(columns)._followed(H, codes, weights, 1.0)

    def unlearned(self, H: Tensor, codes: Tensor, weights: Tensor | None = None) -> SolvedScatter:
        """Return the solution with rows taken out again; every class must keep a row."""
        return self._followed(H, codes, weights, -1.0)

    def select(self, columns: Sequence[int]) -> SolvedScatter:
        """Return the solution with classes reordered; -1 is a new one without rows. None may be left out."""
        if list(columns) == list(range(len(self.counts))):
            return self
        return replace(
            self,
            counts=take_columns(self.counts[None, :], columns)[0],
            means=take_columns(self.means, columns),
            solved_means=take_columns(self.solved_means, columns),
        )

    def _followed(self, H: Tensor, codes: Tensor, weights: Tensor | None, sign: float) -> SolvedScatter:
        """Return the record with one more column per row, means moved along them, and first rows of new classes."""
        means, counts = self.means.clone(), self.counts.tolist()
        rows, steps, first = [], [], {}
        for row, code, w in zip(H, codes.tolist(), [1.0] * len(H) if weights is None else weights.tolist()):
            n = counts[code]
            after = counts[code] = n + sign * w
            if n == 0.0:
                means[:, code] = first[code] = row
                continue
            if after <= 1e-9 * n:
                raise UnlearnError("The last row of a class cannot be unlearned alone: drop the class instead.")
            away = row - means[:, code]
            rows.append((n * w / after) ** 0.5 * away)
            steps.append((code, sign * w**0.5 / (n * after) ** 0.5))  # the mean moves by this much of the column
            means[:, code] += sign * w * away / after
        block = torch.stack([*rows, *first.values()], dim=1) if rows or first else means.new_zeros(means.shape[0], 0)
        solved = _apply(self.factor, self.inverse, block)
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

    # -- answers ----------------------------------------------------------------------------------------------------

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``A^-1 rhs`` for ``rhs`` of shape (k, m)."""
        base = _apply(self.factor, self.inverse, rhs)
        if not len(self.signs):
            return base
        return base - self.solved_columns @ self._correct(self.solved_columns.T @ rhs)

    def solve_means(self) -> Tensor:
        """Return ``A^-1 M`` of shape (k, C), without a product of order ``k^2 C``."""
        if not len(self.signs):
            return self.solved_means
        return self.solved_means - self.solved_columns @ self._correct(self.solved_columns.T @ self.means)

    def quadratic(self, rhs: Tensor) -> Tensor:
        """Return ``x^T A^-1 x`` (m,) for every column x of ``rhs`` (k, m)."""
        if self.inverse is not None:
            base = (rhs * (self.inverse @ rhs)).sum(dim=0)
        else:
            base = self.factor.half_solve(rhs).square().sum(dim=0)
        if not len(self.signs):
            return base
        across = self.solved_columns.T @ rhs
        return base - (across * self._correct(across)).sum(dim=0)

    def trace_inverse(self) -> float:
        """Return ``tr A^-1``."""
        if not len(self.signs):
            return self.trace
        return self.trace - float(self._correct(self.solved_columns.T @ self.solved_columns).diagonal().sum())

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = (self.factor.lower, self.means, self.solved_means, self.columns, self.solved_columns)
        return sum(tensor.nbytes for tensor in held) + (0 if self.inverse is None else self.inverse.nbytes)


def _apply(factor: CholeskyFactor, inverse: Tensor | None, rhs: Tensor) -> Tensor:
    """Return ``P rhs``."""
    if inverse is not None:
        return inverse @ rhs
    half = factor.half_solve(rhs)
    solved: Tensor = torch.linalg.solve_triangular(factor.lower.mT, half, upper=True)
    return solved
