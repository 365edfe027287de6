"""Class means are estimates: how much of each is noise, and class scores that take it off.

In the metric ``f A^-1`` (``A = S_w + alpha I``, f degrees of freedom) the mean of n_c rows carries noise of energy

    v_c = u / (n_c (1 - l))        u = tr(A^-1 S_w)        l = u / f        (mean leverage)

With centred means D, their Gram matrix ``K = f D^T A^-1 D`` and a prior Gram matrix Gamma of the true means, the best
linear estimate of them from the noisy ones is ``D F^T``, ``F = Gamma (Gamma + V)^-1``, and

    score_c(h) = (F z)_c - o_c / 2        z = f D^T A^-1 (h - centre)        r_c = t / (t + v_c)
    o_c = (F K F^T)_cc - sum_j F_cj^2 v_j - (1 - eta) r_c^2 (K_cc - v_c - t)

Gamma is half K with the noise taken off its eigenvalues (what a mean shares with the other means is signal: a class of
few rows borrows their directions), half a multiple of the identity (each mean shrunk by itself, ``t / (t + v_c)``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.linalg.factor import symmetric_eigh

SHARED = 0.5
"""Share of the prior that is learned from the other means. Chosen on training rows of birds, intents, CIFAR-100 and a
text set: 0.25 to 0.65 do about as well, 0 loses 1 to 5 points where classes have one or two rows, 1 loses 2 to 10."""

MAX_SHARED_CLASSES = 1024
"""Beyond this many classes each mean is shrunk by itself: a decomposition of that order costs more than all else."""

ETA = 0.9
"""How much of a mean's energy beyond the expected one counts in its offset. Rows vary in how strongly they show their
own class: the spread of scores on it is 2.5 to 4.5 times that of the common covariance, on others 1.0 to 1.1 times. On
training rows 0.9 is a little better than 1 everywhere (0.1 to 0.25 points), 0.8 less."""

_ROUNDS = 20

_SMALL = 512
"""Classes up to which the decomposition is done on the CPU."""


@dataclass(frozen=True)
class MeanEstimates:
    """Linear scores ``h @ weights + offset`` of estimated class means.

    Parameters
    ----------
    weights : Tensor of shape (k, C)
        Weights in the coordinates of the statistics.
    offset : Tensor of shape (C,)
        Offsets.
    noise : Tensor of shape (C,)
        v_c.
    spread : float
        t, the energy of a true mean around the centre of all.
    """

    weights: Tensor
    offset: Tensor
    noise: Tensor
    spread: float

    @classmethod
    def of(cls, means: Tensor, solved: Tensor, noise: Tensor, freedom: float) -> MeanEstimates:
        """Estimate the means and solve for the scores.

        Parameters
        ----------
        means : Tensor of shape (k, C)
            Class means M.
        solved : Tensor of shape (k, C)
            ``A^-1 M``.
        noise : Tensor of shape (C,)
            v_c, all zero where the rows tell nothing of it.
        freedom : float
            f.

        Examples
        --------
        >>> import torch
        >>> from evergrow.head.linalg import MeanEstimates
        >>> means = torch.tensor([[2.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
        >>> plain = MeanEstimates.of(means, means, torch.zeros(2, dtype=torch.float64), 1.0)
        >>> plain.weights.tolist()
        [[2.0, -2.0], [0.0, 0.0]]
        >>> few = MeanEstimates.of(means, means, torch.full((2,), 2.0, dtype=torch.float64), 1.0)
        >>> bool((few.weights.abs() < plain.weights.abs())[0].all())
        True
        """
        classes = means.shape[1]
        even = means.new_full((classes,), 1.0 / max(classes, 1))
        gram = _CentredGram(means, solved, freedom)
        if not bool((noise > 0.0).all()):
            return cls._scores(gram, even, None, torch.zeros_like(noise), 0.0)
        spread = _spread(gram.energies(even), noise)
        precision = 1.0 / (spread + noise)
        centre = precision / precision.sum()  # few rows do not move the centre
        energies = gram.energies(centre)
        spread = _spread(energies, noise)
        if classes > MAX_SHARED_CLASSES:
            return cls._scores(gram, centre, _Shrinkage.alone(energies, noise, spread), noise, spread)
        return cls._scores(gram, centre, _Shrinkage.shared(gram.matrix(centre), noise, spread), noise, spread)

    @classmethod
    def _scores(
        cls, gram: _CentredGram, centre: Tensor, shrinkage: _Shrinkage | None, noise: Tensor, spread: float
    ) -> MeanEstimates:
        directions = gram.freedom * (gram.solved - (gram.solved @ centre)[:, None])
        weights = directions if shrinkage is None else shrinkage.apply(directions)
        energies = gram.energies(centre) if shrinkage is None else shrinkage.energies
        return cls(weights, -((gram.means @ centre) @ weights) - 0.5 * energies, noise, spread)


@dataclass(frozen=True)
class _Shrinkage:
    """How true means follow from observed ones, and the energies o_c that enter the offsets.

    Parameters
    ----------
    mixing : Tensor of shape (C, C) or (C,)
        F, as its diagonal where each mean is shrunk by itself.
    energies : Tensor of shape (C,)
        The o_c.
    """

    mixing: Tensor
    energies: Tensor

    def apply(self, directions: Tensor) -> Tensor:
        """Return directions (k, C) mixed."""
        return directions * self.mixing if self.mixing.dim() == 1 else directions @ self.mixing.T

    @classmethod
    def alone(cls, observed: Tensor, noise: Tensor, spread: float) -> _Shrinkage:
        """Shrink each mean by itself."""
        kept = spread / (spread + noise)
        energies = kept.square() * (observed - noise - (1.0 - ETA) * (observed - noise - spread))
        return cls(kept, energies)

    @classmethod
    def shared(cls, gram: Tensor, noise: Tensor, spread: float) -> _Shrinkage:
        """Let what a mean shares with the others count as signal."""
        device = gram.device
        if len(noise) <= _SMALL:
            gram, noise = gram.cpu(), noise.cpu()  # a GPU decomposes small matrices more slowly
        root, observed = noise.sqrt(), gram.diagonal()
        values, vectors = symmetric_eigh(gram / root[:, None] / root[None, :])
        seen = root[:, None] * vectors
        prior = SHARED * (seen * (values - 1.0).clamp_min(0.0)) @ seen.T
        prior.diagonal().add_((1.0 - SHARED) * spread)
        total = prior.clone()
        total.diagonal().add_(noise)
        # F = Gamma (Gamma + V)^-1, both symmetric.
        mixing: Tensor = torch.linalg.solve(total, prior).T
        kept = (spread / (spread + noise)).square()
        energies = ((mixing @ gram) * mixing).sum(dim=1) - mixing.square() @ noise
        energies = energies - (1.0 - ETA) * kept * (observed - noise - spread)
        return cls(mixing.to(device), energies.to(device))


@dataclass(frozen=True)
class _CentredGram:
    """The Gram matrix of the means in the metric ``f A^-1`` about any centre ``M w``; of order C x C only on demand."""

    means: Tensor
    solved: Tensor
    freedom: float

    def energies(self, centre: Tensor) -> Tensor:
        """Return the diagonal."""
        across, within = self._about(centre)
        own = self.freedom * (self.means * self.solved).sum(dim=0)
        return (own - 2.0 * across + within).clamp_min(0.0)

    def matrix(self, centre: Tensor) -> Tensor:
        """Return all of it."""
        across, within = self._about(centre)
        full = self.freedom * (self.means.T @ self.solved)
        full = 0.5 * (full + full.T)
        return full - across[:, None] - across[None, :] + within

    def _about(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        across = self.freedom * (self.means.T @ (self.solved @ centre))
        return across, across @ centre


def _spread(energies: Tensor, noise: Tensor) -> float:
    """Return t, the energy of a true mean: a mean of ``q - v`` in which noisy classes count less."""
    energies, noise = energies.cpu(), noise.cpu()  # a few numbers in many rounds: no work for a GPU
    floor = 1e-6 * float(energies.mean()) + 1e-300
    spread = max(float((energies - noise).clamp_min(0.0).mean()), floor)
    for _ in range(_ROUNDS):
        weights = (spread + noise).square().reciprocal()
        spread = max(float((weights * (energies - noise)).sum() / weights.sum()), floor)
    return spread
