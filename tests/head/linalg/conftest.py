"""Synthetic classes with explicit statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.linalg.statistics import RidgeStatistics


class Classes:
    """Rows of classes with different means, and their statistics."""

    def __init__(self, classes: int, width: int, rows: int, seed: int = 0) -> None:
        source = torch.Generator().manual_seed(seed)
        means = torch.randn(classes, width, generator=source, dtype=torch.float64)
        means = 2.0 * means / width**0.5
        self.codes = torch.arange(classes * rows) % classes
        spread = torch.linspace(0.2, 1.0, width, dtype=torch.float64)
        noise = torch.randn(
            len(self.codes), width, generator=source, dtype=torch.float64
        )
        self.rows = 1.0 + means[self.codes] + 2.0 * noise * spread / width**0.5
        self.classes = classes

    def geometry(self, keep: Tensor | slice = slice(None)) -> ClassGeometry:
        H = self.rows[keep]
        codes = self.codes[keep]
        Y = torch.nn.functional.one_hot(codes, self.classes).to(torch.float64)
        stats = RidgeStatistics(
            gram=H.T @ H, cross=H.T @ Y, count=len(H), sq_targets=float(len(H))
        )
        return ClassGeometry.of(stats, Y.sum(dim=0))


@pytest.fixture
def make_classes() -> type[Classes]:
    return Classes
