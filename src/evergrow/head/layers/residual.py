"""The residual of the growing layer, and how much each candidate block would shrink it.

Z is N x d, H the N x L activations accepted so far, Y the N x C targets. With

    M = I - H (H^T H + alpha I)^-1 H^T = alpha (alpha I + H H^T)^-1          (N x N)

the ridge residual is ``E = M Y``. Accepting a block H_s with Schur complement ``S = alpha I + H_s^T M H_s`` and
gains ``A = S^-1 H_s^T E`` gives

    E' = E - M H_s A              M' = M - (M H_s) S^-1 (M H_s)^T

so no L x L matrix is needed. Everything that the criterion needs are five small matrices per block:

    gram   = H_s^T H_s            schur = alpha I + H_s^T M H_s
    v      = H_s^T E              u     = (M H_s)^T E               w = (M H_s)^T (M H_s)

M is held in one of two forms that agree: dense, 8 N^2 bytes, best for the few hundred samples that a first task
usually has; or factored, ``M = I - F F^T`` with F re-compressed to its numerical rank, best when N is large and the
units are nearly affine, so that the rank stays near d + 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.layers.activations import ACTIVATIONS
from evergrow.head.linalg import symmetric_eigh

COMPRESSION_TOL = 1e-11
"""Directions of F F^T below this are dropped. An eigenvalue rho of F F^T is 1 - rho in M, so that dropping it
changes M by the relative amount rho: far below the 1e-8 to which the forms must agree."""


@dataclass(frozen=True)
class CandidateBlocks:
    """Random units proposed together, as B blocks of s columns each.

    Parameters
    ----------
    weights : Tensor of shape (d, B * s)
        Input weights, float32.
    bias : Tensor of shape (B * s,)
        Biases.
    block : int
        s, the number of units in a block.
    activation : str
        Name of the activation.
    """

    weights: Tensor
    bias: Tensor
    block: int
    activation: str

    @property
    def n_blocks(self) -> int:
        """B, the number of blocks."""
        return int(self.weights.shape[1]) // self.block

    def activations(self, Z: Tensor) -> Tensor:
        """Return the activations (n, B * s) on rows Z."""
        pre = torch.addmm(self.bias.to(Z), Z, self.weights.to(Z))
        return ACTIVATIONS[self.activation](pre)

    def columns(self, index: int) -> slice:
        """Return the columns of one block."""
        return slice(index * self.block, (index + 1) * self.block)


@dataclass(frozen=True)
class BlockMoments:
    """The five small matrices of every candidate block; shapes (B, s, s) or (B, s, C)."""

    gram: Tensor
    schur: Tensor
    v: Tensor
    u: Tensor
    w: Tensor


@dataclass(frozen=True)
class BlockScores:
    """What accepting each block would do, per target column.

    Parameters
    ----------
    drop_exact : Tensor of shape (B, C)
        Exact fall of each column's squared residual, old weights re-adjusted.
    drop_theorem : Tensor of shape (B, C)
        The left side of the paper's inequality.
    gains : Tensor of shape (B, s, C)
        Weights that each block would get.
    lower : Tensor of shape (B, s, s)
        Cholesky factors of the Schur complements.
    valid : Tensor of shape (B,)
        False where the factorisation failed.
    """

    drop_exact: Tensor
    drop_theorem: Tensor
    gains: Tensor
    lower: Tensor
    valid: Tensor

    @property
    def coupling(self) -> Tensor:
        """The coupling term R_L of the paper's appendix, per column."""
        return self.drop_exact - self.drop_theorem


def score_blocks(moments: BlockMoments) -> BlockScores:
    """Evaluate all blocks at once.

    With ``A = S^-1 V``, column by column,

        drop_exact   = 2 <U, A> - <A, W A>          drop_theorem = 2 <V, A> - <A, H_s^T H_s A>
    """
    lower, info = torch.linalg.cholesky_ex(moments.schur)
    # Two triangular solves: batched cholesky_solve takes a far slower route on a GPU.
    gains = torch.linalg.solve_triangular(lower, moments.v, upper=False)
    gains = torch.linalg.solve_triangular(lower.mT, gains, upper=True)
    exact = (2.0 * moments.u - moments.w @ gains).mul_(gains).sum(dim=1)
    theorem = (2.0 * moments.v - moments.gram @ gains).mul_(gains).sum(dim=1)
    valid = (info == 0) & torch.isfinite(exact).all(dim=1)
    return BlockScores(exact, theorem, gains, lower, valid)


def split_blocks(matrix: Tensor, block: int) -> Tensor:
    """View (n, B * s) as (B, n, s) without copying."""
    n, columns = matrix.shape
    return matrix.view(n, columns // block, block).transpose(0, 1)


class Residual(ABC):
    """Residual of a growing ridge layer.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features, float64.
    Y : Tensor of shape (N, C)
        Targets, float64.
    alpha : float
        Ridge of the construction.
    """

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        self.Z, self.Y, self.alpha = Z, Y, alpha
        self.E = Y.clone()
        self.sq_norms = Y.square().sum(dim=0)
        self._projected: Tensor | None = None

    @property
    def sq_norm(self) -> float:
        """Squared Frobenius norm of the residual."""
        return float(self.sq_norms.sum())

    @abstractmethod
    def project(self, H: Tensor) -> Tensor:
        """Return ``M H`` for H of shape (N, m)."""

    @abstractmethod
    def _downdate(self, half: Tensor) -> None:
        """Replace M by ``M - half^T half`` for ``half`` of shape (s, N)."""

    def moments(self, candidates: CandidateBlocks) -> BlockMoments:
        """Return the small matrices of all candidate blocks."""
        H = candidates.activations(self.Z)
        projected = self._projected = self.project(H)
        blocks, maps = split_blocks(H, candidates.block), split_blocks(projected, candidates.block)
        schur = blocks.mT @ maps
        schur = (schur + schur.mT).mul_(0.5)
        schur.diagonal(dim1=1, dim2=2).add_(self.alpha)
        shape = (candidates.n_blocks, candidates.block, self.E.shape[1])
        return BlockMoments(
            gram=blocks.mT @ blocks,
            schur=schur,
            v=(H.T @ self.E).view(shape),
            u=(projected.T @ self.E).view(shape),
            w=maps.mT @ maps,
        )

    def accept(self, candidates: CandidateBlocks, index: int, scores: BlockScores) -> None:
        """Append block ``index`` of the candidates just measured."""
        if self._projected is None:
            raise RuntimeError("moments() must be called before accept()")
        chosen = self._projected[:, candidates.columns(index)]
        self.absorb(chosen, scores.lower[index], scores.gains[index])
        self._projected = None

    def absorb(self, projected: Tensor, lower: Tensor, gains: Tensor) -> None:
        """Append columns given as ``M H_s``, the Cholesky factor of S and the gains ``S^-1 H_s^T E``."""
        half = torch.linalg.solve_triangular(lower, projected.T, upper=False)
        self._downdate(half)
        self.E = self.E - projected @ gains
        self.sq_norms = self.E.square().sum(dim=0)


class DenseResidual(Residual):
    """M held as an N x N matrix."""

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        super().__init__(Z, Y, alpha)
        self.M = torch.eye(Z.shape[0], dtype=Z.dtype, device=Z.device)

    def project(self, H: Tensor) -> Tensor:
        """Return ``M H``."""
        return self.M @ H

    def _downdate(self, half: Tensor) -> None:
        self.M.addmm_(half.T, half, alpha=-1.0)


class FactoredResidual(Residual):
    """M held as ``I - F F^T``, with F compressed to its numerical rank now and then."""

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        super().__init__(Z, Y, alpha)
        self.F = Z.new_zeros(Z.shape[0], 0)
        self._rank = 0

    @property
    def rank(self) -> int:
        """Columns of F at present."""
        return int(self.F.shape[1])

    def project(self, H: Tensor) -> Tensor:
        """Return ``H - F F^T H``."""
        return H - self.F @ (self.F.T @ H)

    def _downdate(self, half: Tensor) -> None:
        self.F = torch.cat([self.F, half.T], dim=1)
        slack = max(8 * half.shape[0], self._rank // 2)
        if self.rank >= self._rank + slack:
            self._compress()

    def _compress(self) -> None:
        values, vectors = symmetric_eigh(self.F.T @ self.F)
        self.F = self.F @ vectors[:, values > COMPRESSION_TOL]
        self._rank = self.rank


FORMS: dict[str, type[Residual]] = {"dense": DenseResidual, "factored": FactoredResidual}


def choose_form(Z: Tensor, units: int, scale: float) -> str:
    """Return the form of M that takes fewer operations, and fewer bytes.

    Units whose pre-activations stay below about 0.2 are affine to within the compression tolerance, so their rank is
    that of the features and a constant; otherwise every unit may count. F carries about as many columns again that are
    not yet compressed.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features.
    units : int
        Units that the layer may grow to.
    scale : float
        Largest scale of the weights.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.residual import choose_form
    >>> choose_form(torch.ones(600, 768), 15_000, 0.004), choose_form(torch.ones(9_000, 768), 15_000, 0.004)
    ('dense', 'factored')
    """
    n, d = Z.shape
    spread = scale * float(Z.square().sum(dim=1).mean().sqrt())
    rank = min(n, units, d + 1) if spread < 0.2 else min(n, units)
    return "dense" if n <= 3.5 * rank else "factored"
