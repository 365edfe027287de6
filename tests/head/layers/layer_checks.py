"""Checks that every layer passes; the laboratory's layers are tested with them too."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from evergrow.core.record import from_archive, to_archive
from evergrow.head.layers import FeatureMap
from evergrow.head.layers.feature_map import Layer, layer_from_plain

Task = tuple[Tensor, Tensor]


def small_task(rng: torch.Generator) -> Task:
    Z = torch.randn(60, 7, generator=rng, dtype=torch.float64)
    return Z, torch.eye(3, dtype=torch.float64)[torch.arange(60) % 3]


def check_transform(layer: Layer, task: Task, device: torch.device) -> None:
    Z, Y = task
    built = layer.build(Z.to(device), Y.to(device), seed=2)
    H = built.transform(Z.to(device))
    assert H.shape == (60, built.n_outputs)
    assert H.device.type == device.type
    assert torch.equal(H, built.transform(Z.to(device))), "transform must be pure"
    single = built.transform(Z[:1].to(device))
    assert torch.allclose(single, H[:1], atol=1e-12)
    limit = 8 * built.n_outputs * 7
    chunks = list(built.iter_transform(Z.to(device), chunk_bytes=limit))
    assert all(part.nbytes <= limit for _, part in chunks)
    assert torch.allclose(torch.cat([part for _, part in chunks]), H, atol=1e-12)
    low = built.transform(Z.float().to(device))
    assert low.dtype == torch.float32
    assert torch.allclose(low.double(), H, atol=1e-4)
    again = layer.build(Z, Y, seed=2)
    assert torch.allclose(again.transform(Z), H.cpu(), atol=1e-9), (
        "the same seed gives the same layer everywhere"
    )


def check_archive(layer: Layer, task: Task, *, random: bool = True) -> None:
    """Check that an archive keeps a built layer bit for bit."""
    built = layer.build(*task, seed=2)
    back = from_archive(FeatureMap, to_archive(built))
    assert back.same_map(built)
    assert back.construction == built.construction
    assert torch.equal(back.transform(task[0]), built.transform(task[0]))
    other = layer.build(*task, seed=3)
    assert other.same_map(built) != random


def check_plain_values(layer: Layer) -> None:
    plain = json.loads(json.dumps(layer.to_plain()))
    assert layer_from_plain(plain) == layer
