"""Random units: what is kept of them is what is drawn."""

from __future__ import annotations

import pytest
import torch

from evergrow.head.layers import FourierProjection
from evergrow.head.layers.units import KEPT, KeptDirections, UnitSampler


@pytest.fixture
def room():
    KEPT.make_room(2**20)
    yield KEPT
    KEPT.make_room(0)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_directions_that_are_kept_are_those_that_are_drawn(room, orthogonal) -> None:
    layers = []
    for spread in (1.0, 3.0):  # other data: another scale of the same directions
        Z = spread * torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        drawn = UnitSampler(Z, "spread", "phases", 7, "fourier", orthogonal=orthogonal)
        first = [drawn.units(index, drawn.normals(index, 1, 256), 0) for index in range(2)]
        layer = FourierProjection(300, "spread", 7, orthogonal=orthogonal).build(Z, torch.eye(5))
        assert torch.equal(layer.weights, torch.cat([weights for weights, _ in first], dim=1)[:, :300])
        assert torch.equal(layer.bias, torch.cat([bias for _, bias in first])[:300])
        layers.append(layer.weights)
    assert not torch.equal(*layers)


def test_nothing_is_kept_without_room_and_the_oldest_goes_first() -> None:
    kept = KeptDirections()
    kept.put(("a",), torch.zeros(10))
    assert kept.get(("a",)) is None
    kept.make_room(100)
    for name in "abc":
        kept.put((name,), torch.zeros(10))  # 40 bytes each
    assert [kept.get((name,)) is not None for name in "abc"] == [False, True, True]
    kept.make_room(40)
    assert [kept.get((name,)) is not None for name in "abc"] == [False, False, True]
