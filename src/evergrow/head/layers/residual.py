"""The residual of the growing layer, in three forms that agree: dense dual, factored dual and primal.

Z is N x d, H the N x L activations accepted so far, Y the N x C targets. With

    M = I - H (H^T H + alpha I)^-1 H^T = alpha (alpha I + H H^T)^-1          (N x N)

the ridge residual is ``E = M Y``. Accepting a block H_s with Schur complement ``S = alpha I + H_s^T M H_s`` and
gains ``A = S^-1 H_s^T E`` gives

    E' = E - M H_s A              M' = M - (M H_s) S^-1 (M H_s)^T

so no L x L matrix is needed. The forms differ in how they hold M:

* dense dual: as it is, 8 N^2 bytes; best for the few hundred samples a first task usually has;
* factored dual: ``M = I - F F^T`` with F re-compressed to its numerical rank; best when N is large and the
  units are nearly affine, so that the rank stays near d + 1;
* primal: the Cholesky factor of ``H^T H + alpha I``, activations recomputed in chunks; best when N is far
  larger than the layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from evergrow.head.layers.base import CHUNK_BYTES, chunk_rows
from evergrow.head.layers.blocks import BlockMoments, BlockScores, CandidateBlocks, split_blocks
from evergrow.head.linalg import symmetric_eigh

COMPRESSION_TOL = 1e-11
"""Directions of F F^T below this are dropped. An eigenvalue rho of F F^T is 1 - rho in M, so that dropping it
changes M by the relative amount rho: far below the 1e-8 to which the forms must agree."""


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

    form: ClassVar[str]

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        self.Z = Z
        self.Y = Y
        self.alpha = alpha
        self.sq_norms = Y.square().sum(dim=0)

    @property
    def sq_norm(self) -> float:
        """Squared Frobenius norm of the residual."""
        return float(self.sq_norms.sum())

    @abstractmethod
    def moments(self, candidates: CandidateBlocks) -> BlockMoments:
        """Return the small matrices of all candidate blocks."""

    @abstractmethod
    def accept(self, candidates: CandidateBlocks, index: int, scores: BlockScores) -> None:
        """Append block ``index`` of the candidates just measured."""


class DualResidual(Residual):
    """What the two dual forms share: E is kept, and candidates are measured through M H."""

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        super().__init__(Z, Y, alpha)
        self.E = Y.clone()
        self._projected: Tensor | None = None

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


class DenseDual(DualResidual):
    """M held as an N x N matrix."""

    form: ClassVar[str] = "dense-dual"

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        super().__init__(Z, Y, alpha)
        self.M = torch.eye(Z.shape[0], dtype=Z.dtype, device=Z.device)

    def project(self, H: Tensor) -> Tensor:
        """Return ``M H``."""
        return self.M @ H

    def _downdate(self, half: Tensor) -> None:
        self.M.addmm_(half.T, half, alpha=-1.0)


class FactoredDual(DualResidual):
    """M held as ``I - F F^T``, with F compressed to its numerical rank now and then."""

    form: ClassVar[str] = "factored-dual"

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


class Primal(Residual):
    """The Cholesky factor of ``P = H^T H + alpha I``; activations are recomputed in chunks.

    With ``C = H^T H_s``, ``X = P_lower^-1 C`` and ``D = P^-1 C`` the small matrices are

        schur = alpha I + gram - X^T X     v = H_s^T Y - C^T W     u = v - alpha D^T W
        w = gram - X^T X - alpha D^T D

    where the third uses ``H^T E = alpha W`` at the ridge optimum.
    """

    form: ClassVar[str] = "primal"

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(Z, Y, alpha)
        self.chunk_bytes = chunk_bytes
        self.layer: list[CandidateBlocks] = []
        self.lower = Z.new_zeros(0, 0)
        self.W = Z.new_zeros(0, Y.shape[1])
        self._measured: tuple[Tensor, Tensor] | None = None

    def moments(self, candidates: CandidateBlocks) -> BlockMoments:
        """Return the small matrices of all candidate blocks, in one pass over the rows."""
        gram, cross, targets = self._pass(candidates)
        half = torch.linalg.solve_triangular(self.lower, cross, upper=False)
        full = torch.linalg.solve_triangular(self.lower.T, half, upper=True)
        self._measured = (half, full)
        halves, fulls = split_blocks(half, candidates.block), split_blocks(full, candidates.block)
        rest = gram - halves.mT @ halves
        schur = rest.clone()
        schur.diagonal(dim1=1, dim2=2).add_(self.alpha)
        shape = (candidates.n_blocks, candidates.block, self.Y.shape[1])
        v = targets - cross.T @ self.W
        u = v - self.alpha * (full.T @ self.W)
        w = rest - self.alpha * (fulls.mT @ fulls)
        return BlockMoments(gram, schur, v.view(shape), u.view(shape), w)

    def _pass(self, candidates: CandidateBlocks) -> tuple[Tensor, Tensor, Tensor]:
        """Accumulate ``H_s^T H_s`` per block, ``H^T H_s`` and ``H_s^T Y`` over chunks of rows."""
        width = candidates.weights.shape[1]
        gram = self.Z.new_zeros(candidates.n_blocks, candidates.block, candidates.block)
        cross = self.Z.new_zeros(self.W.shape[0], width)
        targets = self.Z.new_zeros(width, self.Y.shape[1])
        step = chunk_rows(self.W.shape[0] + 2 * width, self.Z.element_size(), self.chunk_bytes)
        for Z, Y in zip(torch.split(self.Z, step), torch.split(self.Y, step)):
            H = candidates.activations(Z)
            blocks = split_blocks(H, candidates.block)
            gram += blocks.mT @ blocks
            targets += H.T @ Y
            start = 0
            for part in self.layer:
                stop = start + part.weights.shape[1]
                cross[start:stop].addmm_(part.activations(Z).T, H)
                start = stop
        return gram, cross, targets

    def accept(self, candidates: CandidateBlocks, index: int, scores: BlockScores) -> None:
        """Append block ``index``: grow the factor by its Schur complement and re-adjust the weights."""
        if self._measured is None:
            raise RuntimeError("moments() must be called before accept()")
        columns = candidates.columns(index)
        half, full = (matrix[:, columns] for matrix in self._measured)
        size, block = self.lower.shape[0], candidates.block
        lower = self.lower.new_zeros(size + block, size + block)
        lower[:size, :size] = self.lower
        lower[size:, :size] = half.T
        lower[size:, size:] = scores.lower[index]
        gains = scores.gains[index]
        self.lower = lower
        self.W = torch.cat([self.W - full @ gains, gains])
        self.sq_norms = self.sq_norms - scores.drop_exact[index]
        self._append(candidates, columns)
        self._measured = None

    def _append(self, candidates: CandidateBlocks, columns: slice) -> None:
        """Keep the accepted units in few large pieces, so that recomputing them is one product each."""
        chosen = CandidateBlocks(
            candidates.weights[:, columns], candidates.bias[columns], candidates.block, candidates.activation
        )
        last = self.layer[-1] if self.layer else None
        if last is None or last.weights.shape[1] >= 1024:
            self.layer.append(chosen)
            return
        self.layer[-1] = CandidateBlocks(
            torch.cat([last.weights, chosen.weights], dim=1),
            torch.cat([last.bias, chosen.bias]),
            last.block,
            last.activation,
        )


FORMS: dict[str, type[Residual]] = {form.form: form for form in (DenseDual, FactoredDual, Primal)}


def choose_form(n_rows: int, n_features: int, units: int, width: int, *, rank: int, memory_bytes: int) -> str:
    """Return the cheapest form that fits in memory.

    Parameters
    ----------
    n_rows : int
        N, the number of first-task samples.
    n_features : int
        d, the width of the features.
    units : int
        The number of units the layer may grow to.
    width : int
        B * s, the number of candidate units per round.
    rank : int
        The numerical rank that the activations are expected to have.
    memory_bytes : int
        Memory that the residual may take.

    Examples
    --------
    >>> from evergrow.head.layers.residual import choose_form
    >>> choose_form(600, 768, 15_000, 500, rank=600, memory_bytes=2**30)
    'dense-dual'
    >>> choose_form(20_000, 768, 15_000, 500, rank=769, memory_bytes=2**30)
    'factored-dual'
    >>> choose_form(200_000, 768, 1_000, 500, rank=1_000, memory_bytes=2**30)
    'primal'
    """
    held = 1.75 * rank  # F carries uncompressed columns beside the rank
    average = units / 2
    flops = {
        "dense-dual": 2.0 * n_rows * n_rows * width,
        "factored-dual": 4.0 * n_rows * held * width,
        "primal": 2.0 * n_rows * average * (width + n_features) + 2.0 * average * average * width,
    }
    memory = {
        "dense-dual": 8.0 * n_rows * n_rows,
        "factored-dual": 16.0 * n_rows * held,
        "primal": 16.0 * units * units,
    }
    fitting = [form for form in flops if memory[form] <= memory_bytes]
    return min(fitting or flops, key=lambda form: flops[form] if fitting else memory[form])
