"""A plain transcription of the paper's printed equations: the baseline of the construction benchmark.

The L x L inverse by the block formula for one candidate after another, its ridge
weights from that inverse, the residual from the full product: what the equations say,
and nothing that they do not. Used for timing and as an independent computation in
tests.
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
        while self.H.shape[1] < units:
            E = self.Y - self.H @ self.W
            energy = float(E.square().sum())
            best = None
            lowest = self.contraction * energy
            for index, (weights, bias) in enumerate(self.draw(len(self.chosen))):
                candidate = self._augmented(torch.sigmoid(self.Z @ weights + bias))
                left = float((self.Y - candidate[0] @ candidate[2]).square().sum())
                if left <= lowest:
                    best = candidate
                    lowest = left
                    chosen = index
            if best is None:
                raise RuntimeError(f"no admissible block in round {len(self.chosen)}")
            self.H, self.P_inverse, self.W = best
            self.chosen.append(chosen)
            self.residuals.append(lowest)

    def _augmented(self, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden matrix, inverse and ridge weights with a block added.

        The inverse of ``[[P, C], [C^T, D]]`` by the block inversion formula with the
        Schur complement S, then the weights of the ridge problem on the augmented
        matrix.
        """
        cross = self.H.T @ block
        S = (
            block.T @ block
            + self.alpha * torch.eye(block.shape[1], dtype=block.dtype)
            - cross.T @ self.P_inverse @ cross
        )
        schur_inverse = torch.linalg.inv(S)
        coupling = self.P_inverse @ cross
        top = torch.cat(
            [
                self.P_inverse + coupling @ schur_inverse @ coupling.T,
                -coupling @ schur_inverse,
            ],
            dim=1,
        )
        bottom = torch.cat([-schur_inverse @ coupling.T, schur_inverse], dim=1)
        inverse = torch.cat([top, bottom])
        hidden = torch.cat([self.H, block], dim=1)
        return hidden, inverse, inverse @ (hidden.T @ self.Y)
