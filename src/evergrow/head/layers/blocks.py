"""Scoring of candidate blocks: how much would accepting each of them shrink the residual.

For a candidate block H_s, with M the residual maker of the layer so far (E = M Y), everything the criterion
needs are five small matrices per block, which each form of the residual computes in its own way:

    gram   = H_s^T H_s            schur = alpha I + H_s^T M H_s
    v      = H_s^T E              u     = (M H_s)^T E               w = (M H_s)^T (M H_s)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.layers.activations import ACTIVATIONS


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
