"""An incremental truncated singular value decomposition of blocks of rows.

The state is an orthonormal basis U (L x k) of the leading right singular directions of
all rows, and the Gram matrix of the rows in this basis, ``core = U^T (sum h h^T) U``. A
block H of b rows is absorbed by

    H = P U^T + R^T Q^T         with Q an orthonormal basis of the part outside U
    core' = [[core, 0], [0, 0]] + [P, R^T]^T [P, R^T]      in the basis [U, Q]

of size m = k + b. The basis is then truncated to the leading eigenspace of core'. This
eigenspace is the complement of the few trailing eigenvectors D (m x r), so the new
basis is ``[U, Q]`` times r Householder reflectors: ``4 L m r`` operations instead of
``2 L m k`` for a full rotation plus ``4 L k^2`` for re-orthonormalisation, with the
same span and singular values. Reflectors are orthogonal up to rounding, so the basis
stays orthonormal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh

_PARTIAL_FROM = 256
"""Matrix size from which LAPACK's partial eigenvalue drivers are faster."""


@dataclass(frozen=True)
class TruncatedBasis:
    """Leading directions of rows and their second moments, as an immutable record.

    Parameters
    ----------
    basis : Tensor of shape (L, k)
        Orthonormal columns, in the dtype of the rows.
    core : Tensor of shape (k, k)
        Gram matrix of the rows in that basis, in float64.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.truncated import TruncatedBasis
    >>> rows = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    >>> empty = TruncatedBasis.empty(3, torch.float64, torch.device("cpu"))
    >>> empty.absorb(rows, rank=2).singular_values().round(decimals=6).tolist()
    [3.0, 2.0]
    """

    basis: Tensor
    core: Tensor

    @classmethod
    def empty(
        cls, n_features: int, dtype: torch.dtype, device: torch.device
    ) -> TruncatedBasis:
        """Create a decomposition without rows."""
        basis = torch.zeros(n_features, 0, dtype=dtype, device=device)
        return cls(basis, torch.zeros(0, 0, dtype=torch.float64, device=device))

    @property
    def rank(self) -> int:
        """Number of directions."""
        return int(self.basis.shape[1])

    def singular_values(self) -> Tensor:
        """Return the singular values, largest first."""
        return symmetric_eigh(self.core)[0].clamp_min(0.0).sqrt().flip(0)

    def absorb(self, H: Tensor, rank: int) -> TruncatedBasis:
        """Add rows H (b, L) and truncate to at most ``rank`` directions.

        Directions whose singular value is rounding noise are always dropped.
        """
        wide, core = self._extended(H)
        trailing, leading = _split_eigenspace(core, rank, torch.finfo(H.dtype).eps)
        if trailing is None:
            basis = wide @ leading.to(H.dtype)
            return TruncatedBasis(basis, _congruence(core, leading))
        dropped = trailing.shape[1]
        if dropped == 0:
            return TruncatedBasis(wide, core)
        # Q_full = [D, complement of D] up to signs. Its columns from r on are the new
        # basis.
        reflectors, scales = torch.geqrf(trailing)
        rotated = torch.ormqr(reflectors, scales, core, left=False)
        rotated = torch.ormqr(reflectors, scales, rotated, left=True, transpose=True)
        rotated = rotated[dropped:, dropped:]
        basis = torch.ormqr(
            reflectors.to(H.dtype), scales.to(H.dtype), wide, left=False
        )[:, dropped:]
        return TruncatedBasis(basis.contiguous(), (rotated + rotated.T).mul_(0.5))

    def _extended(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Return an orthonormal basis that spans H too, and the Gram matrix in it."""
        if self.rank + H.shape[0] >= H.shape[1]:
            # The basis would span all features, so use the features themselves.
            basis = self.basis.to(torch.float64)
            rows = H.to(torch.float64)
            core = (basis @ self.core @ basis.T).addmm_(rows.T, rows)
            return torch.eye(H.shape[1], dtype=H.dtype, device=H.device), core
        rows, extension, rest = _decompose(self.basis, H)
        coordinates = torch.cat([rows, rest], dim=1).to(torch.float64)
        extra = rest.shape[1]
        core = torch.nn.functional.pad(self.core, (0, extra, 0, extra))
        core.addmm_(coordinates.T, coordinates)
        return torch.cat([self.basis, extension], dim=1), core

    def solve(self, cross: Tensor, ridge: float) -> Tensor:
        """Return ``U (core + ridge I)^-1 U^T cross`` for ``cross`` of shape (L, C)."""
        if self.rank == 0:
            return torch.zeros_like(cross)
        factor = safe_cholesky(self.core, shift=ridge)
        solution = factor.solve((self.basis.T @ cross).to(torch.float64))
        return self.basis @ solution.to(cross.dtype)


def _decompose(basis: Tensor, H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return P (b, k), Q (L, q) and R^T (b, q) with ``H = P U^T + R^T Q^T``."""
    rows = H @ basis
    remainder = torch.addmm(H, rows, basis.T, alpha=-1.0)
    # A second pass removes the rounding error if the remainder is small.
    again = remainder @ basis
    remainder = remainder.addmm_(again, basis.T, alpha=-1.0)
    extension, triangle = torch.linalg.qr(remainder.T)
    return rows + again, extension, triangle.T


def _split_eigenspace(
    core: Tensor, rank: int, eps: float
) -> tuple[Tensor | None, Tensor]:
    """Return the trailing eigenvectors to drop, or None and the leading ones to keep.

    The first form is returned if few eigenvectors are dropped.
    """
    order = core.shape[0]
    # Noise of the Gram product in float64, and of the rows in their own dtype (squared,
    # because eps is relative to singular values).
    relative_noise = max(torch.finfo(torch.float64).eps, eps**2)
    noise = float(core.diagonal().sum()) * relative_noise * order
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
