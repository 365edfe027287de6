"""A plain transcription of the paper's printed equations: the baseline of the construction benchmark.

L x L inverses by the block formula, one candidate after another, the residual from the full product: what the
equations say, and nothing that they do not. Used for timing and as an independent computation in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Draw = Callable[[int], list[tuple[Tensor, Tensor]]]


@dataclass
class PaperConstruction:
    """Grow a layer by the paper's equations.

    Parameters
    ----------
    Z, Y : Tensor
        First-task features and one-hot targets, float64.
    alpha, contraction : float
        The ridge and the contraction rate r.
    draw : callable
        Maps a round to its candidate blocks ``(weights, bias)``.
    """

    Z: Tensor
    Y: Tensor
    alpha: float
    contraction: float
    draw: Draw
    H: Tensor = field(init=False)
    P_inverse: Tensor = field(init=False)
    W: Tensor = field(init=False)
    chosen: list[int] = field(init=False, default_factory=list)
    residuals: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.H = self.Z.new_zeros(self.Z.shape[0], 0)
        self.P_inverse = self.Z.new_zeros(0, 0)
        self.W = self.Z.new_zeros(0, self.Y.shape[1])

    def grow_to(self, units: int) -> None:
        """Accept the best admissible block of every round until the layer has that many units."""
        round_ = len(self.chosen)
        while self.H.shape[1] < units:
            best = self._best(round_)
            if best is None:
                raise RuntimeError(f"no admissible block in round {round_}")
            index, block, schur_inverse, W = best
            self._accept(block, schur_inverse, W)
            self.chosen.append(index)
            round_ += 1

    def _best(self, round_: int) -> tuple[int, Tensor, Tensor, Tensor] | None:
        E = self.Y - self.H @ self.W
        energy = float(E.square().sum())
        best, best_fall = None, (1.0 - self.contraction) * energy
        for index, (weights, bias) in enumerate(self.draw(round_)):
            block = torch.sigmoid(self.Z @ weights + bias)
            cross = self.H.T @ block
            S = block.T @ block + self.alpha * torch.eye(block.shape[1], dtype=block.dtype)
            S = S - cross.T @ self.P_inverse @ cross
            schur_inverse = torch.linalg.inv(S)
            delta = -self.P_inverse @ cross @ schur_inverse @ block.T
            W = torch.cat([self.W + delta @ E, schur_inverse @ block.T @ E])
            residual = self.Y - torch.cat([self.H, block], dim=1) @ W
            fall = energy - float(residual.square().sum())
            if fall >= best_fall:
                best, best_fall = (index, block, schur_inverse, W), fall
        return best

    def _accept(self, block: Tensor, schur_inverse: Tensor, W: Tensor) -> None:
        """Update the inverse of ``[[P, C], [C^T, D]]`` by the block inversion formula."""
        coupling = self.P_inverse @ (self.H.T @ block)
        top = torch.cat([self.P_inverse + coupling @ schur_inverse @ coupling.T, -coupling @ schur_inverse], dim=1)
        bottom = torch.cat([-schur_inverse @ coupling.T, schur_inverse], dim=1)
        self.P_inverse = torch.cat([top, bottom])
        self.H = torch.cat([self.H, block], dim=1)
        self.W = W
        self.residuals.append(float((self.Y - self.H @ self.W).square().sum()))
