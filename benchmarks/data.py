"""Synthetic features with the statistics of un-normalised ViT-B/16 CLS tokens: norm of a few tens, uneven scales."""

from __future__ import annotations

import torch
from torch import Tensor


class VitLike:
    """Class-conditional Gaussian features in ``d`` dimensions with log-normal per-dimension scales.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    d : int
        Width of the features.
    seed : int
        Seed of class means and noise.
    """

    def __init__(self, n_classes: int, d: int = 768, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.n_classes = n_classes
        self.means = 0.25 * torch.randn(
            n_classes, d, generator=self.generator, dtype=torch.float64
        )
        self.scales = torch.exp(
            0.7 * torch.randn(d, generator=self.generator, dtype=torch.float64)
        )

    def sample(self, classes: list[int], n: int) -> tuple[Tensor, Tensor]:
        """Return ``n`` features of the given classes and their one-hot labels over all classes."""
        labels = torch.tensor(classes)[torch.arange(n) % len(classes)]
        noise = torch.randn(
            n, self.means.shape[1], generator=self.generator, dtype=torch.float64
        )
        Z = (self.means[labels] + noise) * self.scales * 0.8
        return Z, torch.nn.functional.one_hot(labels, self.n_classes).to(torch.float64)
