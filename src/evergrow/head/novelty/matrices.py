"""Novelty as matrices, for programs without evergrow such as ONNX runtimes.

Let h be a row in the coordinates of the statistics, and ``L L^T = A`` the scatter
within classes (notation of :mod:`evergrow.head.novelty.terms`). The whitened row
``w = L^-1 (h - m)`` gives every term:

    a = f |w|^2 + f o / alpha
    z = w D,  D = f L^-1 (M - m)
    e = |z S|^2
    z^T (K + f N^-1)^-1 z = |z T|^2

o is the energy of the row outside of these coordinates. S and T are inverse Cholesky
factors. With more classes than coordinates, e is a without o, and
``z^T (K + f N^-1)^-1 z = f (|w|^2 - |w T|^2)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky
from evergrow.head.novelty.terms import NoveltyTerms


@dataclass(frozen=True, eq=False)
class NoveltyMatrices:
    """Matrices of the terms of novelty, in the coordinates of the statistics.

    Parameters
    ----------
    whitening : Tensor of shape (r, r)
        ``L^-T``. A row h is whitened as ``(h - centre) @ whitening``.
    centre : Tensor of shape (r,)
        m, mean of all rows.
    lower : Tensor of shape (r, r)
        L. A whitened row w is the row ``w @ lower.T + centre``.
    products : Tensor of shape (r, C)
        D, from whitened rows to the products z.
    inside : Tensor of shape (C, C - 1) or None
        S, from products to the part of the energy in the span of the class means. None
        if there are more classes than coordinates.
    explained : Tensor of shape (C, C) or (r, r)
        T, from products, or from whitened rows if there are more classes than
        coordinates.
    energies : Tensor of shape (C,)
        K_cc, energies of the class means.
    counts : Tensor of shape (C,)
        Rows per class, or sums of their weights.
    freedom : float
        f, degrees of freedom.
    alpha : float
        The ridge.
    expected_energy : float
        Expected energy of a new row of a known class.
    """

    whitening: Tensor
    centre: Tensor
    lower: Tensor
    products: Tensor
    inside: Tensor | None
    explained: Tensor
    energies: Tensor
    counts: Tensor
    freedom: float
    alpha: float
    expected_energy: float

    @classmethod
    def of(cls, terms: NoveltyTerms) -> NoveltyMatrices:
        """Compute the matrices of the terms of a model.

        Inverse factors are formed, because ONNX cannot solve triangular systems.
        """
        scatter = terms.scatter
        factor = safe_cholesky(scatter.matrix())
        centred = scatter.means - terms.centre[:, None]
        inside = None
        if terms.span is None:
            # |T^T w|^2 is the energy by the Gram matrix: T = L^T L_t^-T.
            explained = terms.total.half_solve(factor.lower).T
        else:
            inside = terms.from_span_basis(_inverse_transposed(terms.span))
            explained = _inverse_transposed(terms.total)
        return cls(
            whitening=_inverse_transposed(factor),
            centre=terms.centre,
            lower=factor.lower,
            products=scatter.freedom * factor.half_solve(centred),
            inside=inside,
            explained=explained,
            energies=terms.energies,
            counts=scatter.counts,
            freedom=scatter.freedom,
            alpha=scatter.alpha,
            expected_energy=terms.expected_energy,
        )

    def rounding_growth(self) -> float:
        """Return how much whitening increases relative rounding errors of a row.

        ``sqrt(|h|^2 / alpha) / |w|`` for rows of typical lengths ``|h|`` and ``|w|``.
        Directions with little scatter are multiplied by up to ``1 / sqrt(alpha)``.
        """
        spread = float(self.lower.square().sum()) / self.freedom
        row_energy = float(self.centre.square().sum()) + spread
        known_energy = self.expected_energy + float(self.energies.mean())
        return math.sqrt(row_energy / self.alpha * self.freedom / known_energy)


def _inverse_transposed(factor: CholeskyFactor) -> Tensor:
    """Return ``L^-T`` of a factor L."""
    identity = torch.eye(factor.lower.shape[0]).to(factor.lower)
    return factor.half_solve(identity).T
