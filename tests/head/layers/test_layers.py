"""Layers equal their definitions, and files keep them bit for bit."""

import hashlib

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.head.layers.layer_checks import (
    check_archive,
    check_plain_values,
    check_transform,
    small_task,
)

from evergrow.head.layers import FourierLayer, GuidedLayer
from evergrow.head.layers.feature_map import (
    normalize,
    resolve_normalization,
)
from evergrow.head.layers.fourier import FourierMap

LAYERS = {
    "fourier": FourierLayer(n_units=20, direct_link=False),
    "fourier-linked": FourierLayer(n_units=20),
    "link": FourierLayer(n_units=0),
    "guided": GuidedLayer(scales="auto", n_units=20, block_size=5),
    "guided-linked": GuidedLayer(
        scales="auto", n_units=20, block_size=5, direct_link=True
    ),
}


@pytest.fixture
def task(rng):
    return small_task(rng)


@pytest.mark.parametrize("name", list(LAYERS))
def test_frozen_map_properties(name, task, device):
    check_transform(LAYERS[name], task, device)


@pytest.mark.parametrize("name", list(LAYERS))
def test_a_map_survives_its_archive_bit_for_bit(name, task):
    check_archive(LAYERS[name], task, random=name != "link")


@pytest.mark.parametrize("name", list(LAYERS))
def test_parameters_survive_as_plain_values(name):
    check_plain_values(LAYERS[name])


def test_wider_layers_begin_with_narrower_ones(task):
    narrow, wide = (FourierLayer(n_units=n).build(*task).units() for n in (300, 700))
    rows = [layer.transform(task[0]) / layer.gain for layer in (narrow, wide)]
    assert torch.allclose(rows[0], rows[1][:, :300], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("features", "units", "rows"),
    [(7, 20, 4000), (64, 150, 9), (100, 128, 1), (300, 700, 500)],
)
def test_fourier_units_equal_explicit_products_of_signs_and_hadamard_matrices(
    features, units, rows, rng
):
    Z = torch.randn(rows, features, generator=rng, dtype=torch.float64)
    layer = FourierLayer(units, gamma=0.3, direct_link=False).build(Z, Z, seed=5)
    signs, phases = (part.numpy() for part in layer.drawn())
    order = signs.shape[2]
    H = scipy.linalg.hadamard(order)
    small = len(layer.factors()[1])
    rotated = [np.eye(order)] * signs.shape[1]
    for rotation in signs:
        products = [
            matrix * sign @ H / order**0.5
            for matrix, sign in zip(rotated, rotation, strict=True)
        ]
        rotated = [
            one.reshape(order, small, -1).transpose(0, 2, 1).reshape(order, order)
            for one in products
        ]
    for matrix in rotated:
        assert np.allclose(matrix.T @ matrix, np.eye(order))
    weights = 0.6**0.5 * order**0.5 * np.concatenate(rotated, axis=1)[:features, :units]
    identity = torch.eye(features, dtype=torch.float64)
    scale = layer.bandwidth / layer.order
    columns = [part.numpy().T * scale for _, part in layer.rotate(identity)]
    assert np.allclose(np.concatenate(columns, axis=1), weights)
    assert np.allclose(
        layer.transform(Z).numpy(),
        (2 / units) ** 0.5 * np.cos(Z.numpy() @ weights + phases),
    )


def test_fourier_signs_and_phases_do_not_depend_on_the_machine():
    signs, phases = (
        FourierLayer(100, gamma=1.0)
        .build(torch.ones(2, 70), torch.eye(2), seed=7)
        .drawn()
    )
    drawn = signs.to(torch.int8).numpy().tobytes() + phases.numpy().tobytes()
    assert hashlib.sha256(drawn).hexdigest()[:16] == "f4714e8a233cfc84"


def test_fourier_approximates_its_kernel(task):
    Z, Y = task
    H = FourierLayer(60_000, direct_link=False, gamma=0.1).build(Z, Y).transform(Z)
    kernel = torch.exp(-0.1 * torch.cdist(Z, Z).square())
    assert float((H @ H.T - kernel).abs().max()) < 0.03


def test_direct_link_has_the_energy_of_the_units(task):
    layer = FourierLayer(n_units=50).build(*task)
    H = layer.transform(task[0])
    units = H[:, :50]
    link = H[:, 50:]
    energy = [float(((part - part.mean(0)) ** 2).sum()) for part in (units, link)]
    assert energy[0] == pytest.approx(energy[1], rel=1e-9)


def test_auto_normalization_depends_on_the_sign_of_the_features():
    positive = torch.tensor([[1.0, 4.0]])
    signed = torch.tensor([[-1.0, 4.0]])
    assert resolve_normalization("auto", positive) == "sqrt-l2"
    assert resolve_normalization("auto", signed) == "l2"
    assert resolve_normalization("none", signed) == "none"
    assert torch.allclose(
        normalize(positive, "sqrt-l2"), torch.tensor([[1.0, 2.0]]) / 5**0.5
    )
    assert bool(torch.isfinite(normalize(torch.zeros(2, 3), "l2")).all())


@pytest.mark.parametrize(("features", "width"), [(5, 700), (384, 3000), (64, 64)])
def test_fourier_blocks_computed_together_equal_blocks_computed_alone(
    features: int, width: int
) -> None:
    Z = torch.randn(
        7, features, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    layer = FourierMap(features=features, width=width, seed=3, bandwidth=0.5)
    one, all_at_once = (
        torch.cat([part.clone() for _, part in layer.rotate(Z, n)])
        for n in (1, layer.blocks)
    )
    torch.testing.assert_close(one, all_at_once, rtol=1e-12, atol=1e-9)
    assert one.shape == (width, 7)
