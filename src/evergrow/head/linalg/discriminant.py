"""A shrunk linear discriminant from the same statistics as ridge.

With class counts n_c and means ``m_c = Q_c / n_c`` the within-class scatter is ``S_w = G - sum n_c m_c m_c^T``, and

    score_c(h) = h^T B m_c - m_c^T B m_c / 2          B = (S_w + alpha I)^-1

is as exact, mergeable and unlearnable as ridge, since everything in it is a sum over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.linalg.cholesky import CholeskyFactor, safe_cholesky
from evergrow.head.linalg.state import ReducedStatistics, check_alpha


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
    stats : ReducedStatistics
        Where they came from.
    """

    means: Tensor
    scatter: Tensor
    counts: Tensor
    stats: ReducedStatistics

    @classmethod
    def of(cls, stats: ReducedStatistics, counts: Tensor) -> ClassGeometry:
        """Compute means and scatter from one-hot statistics."""
        counts = counts.to(stats.cross)
        divisors = at_least_some(counts)
        means = stats.cross / divisors
        scatter = stats.gram - (stats.cross / divisors.sqrt()) @ (stats.cross / divisors.sqrt()).T
        return cls(means, scatter, counts, stats)

    def factor(self, alpha: float) -> CholeskyFactor:
        """Factor ``S_w + alpha I``."""
        return safe_cholesky(self.scatter, shift=check_alpha(alpha))


@dataclass(frozen=True)
class Discriminant:
    """Linear scores ``h @ weights + offset``.

    Parameters
    ----------
    weights : Tensor of shape (L, C)
        ``B m_c`` in feature coordinates.
    offset : Tensor of shape (C,)
        ``-m_c^T B m_c / 2``.
    alpha, jitter : float
        The shrinkage and what had to be added to it.
    """

    weights: Tensor
    offset: Tensor
    alpha: float
    jitter: float

    @classmethod
    def solve(cls, geometry: ClassGeometry, alpha: float) -> Discriminant:
        """Solve for the scores."""
        factor = geometry.factor(alpha)
        reduced = factor.solve(geometry.means)
        offset = -0.5 * torch.einsum("kc,kc->c", geometry.means, reduced)
        return cls(geometry.stats.lift(reduced), offset, alpha, factor.jitter)
