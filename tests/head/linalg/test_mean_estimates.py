"""What estimated class means must do at the ends; tests of the denoised readout write the formulas out."""

from __future__ import annotations

import pytest
import torch

from evergrow.head.linalg.scatter import MeanEstimates


def test_no_noise_is_the_plain_discriminant(make_classes):
    geometry = make_classes(7, 15, 4).geometry()
    M = geometry.means
    solved = torch.linalg.solve(geometry.scatter + 0.05 * torch.eye(15, dtype=torch.float64), M)
    estimates = MeanEstimates.of(M, solved, torch.zeros(7, dtype=torch.float64), 3.0)
    h = torch.randn(5, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = 3.0 * (h @ solved - 0.5 * (M * solved).sum(dim=0))
    scores = h @ estimates.weights + estimates.offset
    torch.testing.assert_close(scores - scores[:, :1], plain - plain[:, :1])


@pytest.mark.parametrize("classes", [1, 2])
def test_equal_means_say_nothing(classes):
    M = torch.ones(4, classes, dtype=torch.float64)
    estimates = MeanEstimates.of(M, M, torch.ones(classes, dtype=torch.float64), 2.0)
    assert bool(torch.isfinite(estimates.offset).all())
    torch.testing.assert_close(estimates.weights, torch.zeros_like(M))
