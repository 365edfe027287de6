"""An incremental truncated singular value decomposition of rows that arrive block by block.

Kept are an orthonormal basis U (L x k) of the leading right singular directions of all
rows, and the rows' Gram matrix in it, ``core = U^T (sum h h^T) U``. A block H of b rows
is absorbed by

    H = P U^T + R^T Q^T           (Q: orthonormal basis of what U does not span) core' =
    [[core, 0], [0, 0]] + [P, R^T]^T [P, R^T]        in the basis [U, Q], of order m = k
    + b

and the basis is cut back to the leading eigenspace of core'. That eigenspace is the
complement of the few trailing eigenvectors D (m x r), so the new basis is ``[U, Q]``
times r Householder reflectors: ``4 L m r`` operations instead of the ``2 L m k`` of a
full rotation plus ``4 L k^2`` of a re-orthonormalisation, with the same span and the
same singular values. Reflectors are orthogonal to rounding, so the basis stays
orthonormal by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh

_PARTIAL_FROM = 256
"""From this order on a few trailing eigenvectors are cheaper through LAPACK's range drivers."""


@dataclass(frozen=True)
class TruncatedBasis:
    """Leading directions of the rows seen and their second moments; a record, never changed in place.

    Parameters
    ----------
    basis : Tensor of shape (L, k)
        Orthonormal columns, in the floating type of the rows.
    core : Tensor of shape (k, k)
        Gram matrix of the rows in that basis, float64.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.truncated import TruncatedBasis
    >>> rows = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    >>> kept = TruncatedBasis.empty(3, torch.float64, torch.device("cpu")).absorb(rows, rank=2)
    >>> kept.singular_values().round(decimals=6).tolist()
    [3.0, 2.0]
    """

    basis: Tensor
    core: Tensor

    @classmethod
    def empty(
        cls, n_features: int, dtype: torch.dtype, device: torch.device
    ) -> TruncatedBasis:
        """Return the decomposition of no rows."""
        basis = torch.zeros(n_features, 0, dtype=dtype, device=device)
        return cls(basis, torch.zeros(0, 0, dtype=torch.float64, device=device))

    @property
    def rank(self) -> int:
        """Number of directions kept."""
        return int(self.basis.shape[1])

    def singular_values(self) -> Tensor:
        """Return the singular values kept, largest first."""
        return symmetric_eigh(self.core)[0].clamp_min(0.0).sqrt().flip(0)

    def absorb(self, H: Tensor, rank: int) -> TruncatedBasis:
        """Return the decomposition with rows H (b, L) added, cut back to at most ``rank`` directions.

        Directions whose singular value is rounding noise are dropped too, whatever the
        rank.
        """
        wide, core = self._widened(H)
        trailing, leading = _cut(core, rank, torch.finfo(H.dtype).eps)
        if trailing is None:
            return TruncatedBasis(
                wide @ leading.to(H.dtype), _congruence(core, leading)
            )
        dropped = trailing.shape[1]
        if dropped == 0:
            return TruncatedBasis(wide, core)
        # Q_full = [D, complement of D] up to signs: its columns from r on are the new
        # basis.
        reflectors, scales = torch.geqrf(trailing)
        turned = torch.ormqr(reflectors, scales, core, left=False)
        turned = torch.ormqr(reflectors, scales, turned, left=True, transpose=True)[
            dropped:, dropped:
        ]
        basis = torch.ormqr(
            reflectors.to(H.dtype), scales.to(H.dtype), wide, left=False
        )[:, dropped:]
        return TruncatedBasis(basis.contiguous(), (turned + turned.T).mul_(0.5))

    def _widened(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Return an orthonormal basis that holds the rows as well, and the Gram matrix in it."""
        if (
            self.rank + H.shape[0] >= H.shape[1]
        ):  # nothing is gained by coordinates: take the features' own
            basis = self.basis.to(torch.float64)
            rows = H.to(torch.float64)
            core = (basis @ self.core @ basis.T).addmm_(rows.T, rows)
            return torch.eye(H.shape[1], dtype=H.dtype, device=H.device), core
        rows, extension, rest = _split(self.basis, H)
        coordinates = torch.cat([rows, rest], dim=1).to(torch.float64)
        extra = rest.shape[1]
        core = torch.nn.functional.pad(self.core, (0, extra, 0, extra))
        return torch.cat([self.basis, extension], dim=1), core.addmm_(
            coordinates.T, coordinates
        )

    def solve(self, cross: Tensor, ridge: float) -> Tensor:
        """Return ``U (core + ridge I)^-1 U^T cross`` for ``cross`` of shape (L, C)."""
        if self.rank == 0:
            return torch.zeros_like(cross)
        factor = safe_cholesky(self.core, shift=ridge)
        return self.basis @ factor.solve((self.basis.T @ cross).to(torch.float64)).to(
            cross.dtype
        )


def _split(basis: Tensor, H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return P (b, k), Q (L, q) and R^T (b, q) with ``H = P U^T + R^T Q^T``."""
    rows = H @ basis
    remainder = torch.addmm(H, rows, basis.T, alpha=-1.0)
    # A second pass: once is not enough where the remainder is tiny beside the row.
    again = remainder @ basis
    remainder = remainder.addmm_(again, basis.T, alpha=-1.0)
    extension, triangle = torch.linalg.qr(remainder.T)
    return rows + again, extension, triangle.T


def _cut(core: Tensor, rank: int, eps: float) -> tuple[Tensor | None, Tensor]:
    """Return the trailing eigenvectors to drop where they are few, else None and the leading ones to keep."""
    order = core.shape[0]
    # Noise: of the Gram product in float64, and of the rows in their own type (singular
    # values, so squared).
    noise = (
        float(core.diagonal().sum())
        * max(torch.finfo(torch.float64).eps, eps**2)
        * order
    )
    surplus = max(order - rank, 0)
    if core.device.type == "cpu" and order >= _PARTIAL_FROM and surplus <= order // 4:
        from scipy.linalg import eigh

        values, vectors = eigh(
            core.numpy(), subset_by_index=[0, surplus], check_finite=False
        )
        if values[surplus] > noise:
            return torch.from_numpy(vectors[:, :surplus].copy()), core
    all_values, all_vectors = symmetric_eigh(core)
    dropped = max(surplus, int((all_values <= noise).sum()))
    if dropped <= order // 2:
        return all_vectors[:, :dropped].contiguous(), core
    return None, all_vectors[:, dropped:]


def _congruence(core: Tensor, vectors: Tensor) -> Tensor:
    """Return ``vectors^T core vectors``, symmetric."""
    product = vectors.T @ core @ vectors
    return (product + product.T).mul_(0.5)
