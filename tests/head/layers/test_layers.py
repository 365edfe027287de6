import hashlib
import json
import math

import numpy as np
import pytest
import scipy.linalg
import torch

from evergrow.core.record import from_archive, to_archive
from evergrow.head.layers import FeatureMap, FourierLayer, GuidedLayer
from evergrow.head.layers.feature_map import (
    layer_from_plain,
    normalize,
    resolve_normalization,
)
from evergrow.head.layers.fourier import FourierMap
from evergrow.lab.layers import GaussianLayer, SCSMLayer, UniformLayer
from evergrow.lab.layers.gaussian import input_weights

LAYERS = {
    "fourier": FourierLayer(n_units=20, direct_link=False),
    "fourier-linked": FourierLayer(n_units=20),
    "link": FourierLayer(n_units=0),
    "guided": GuidedLayer(scales="auto", n_units=20, block_size=5),
    "guided-linked": GuidedLayer(
        scales="auto", n_units=20, block_size=5, direct_link=True
    ),
    "gaussian": GaussianLayer(n_units=20),
    "gaussian-auto": GaussianLayer(n_units=20, scales="auto", bias="points"),
    "uniform": UniformLayer(n_units=20),
    "scsm": SCSMLayer(n_units=12, n_candidates=20),
}


@pytest.fixture
def task(rng):
    Z = torch.randn(60, 7, generator=rng, dtype=torch.float64)
    return Z, torch.eye(3, dtype=torch.float64)[torch.arange(60) % 3]


@pytest.mark.parametrize("name", list(LAYERS))
def test_frozen_map_properties(name, task, device):
    Z, Y = task
    layer = LAYERS[name].build(Z.to(device), Y.to(device), seed=2)
    H = layer.transform(Z.to(device))
    assert H.shape == (60, layer.n_outputs)
    assert H.device.type == device.type
    assert torch.equal(H, layer.transform(Z.to(device))), "transform must be pure"
    single = layer.transform(Z[:1].to(device))
    assert torch.allclose(single, H[:1], atol=1e-12)
    limit = 8 * layer.n_outputs * 7
    chunks = list(layer.iter_transform(Z.to(device), chunk_bytes=limit))
    assert all(part.nbytes <= limit for _, part in chunks)
    assert torch.allclose(torch.cat([part for _, part in chunks]), H, atol=1e-12)
    low = layer.transform(Z.float().to(device))
    assert low.dtype == torch.float32
    assert torch.allclose(low.double(), H, atol=1e-4)
    again = LAYERS[name].build(Z, Y, seed=2)
    assert torch.allclose(again.transform(Z), H.cpu(), atol=1e-9), (
        "the same seed gives the same layer everywhere"
    )


@pytest.mark.parametrize("name", list(LAYERS))
def test_a_map_survives_its_archive_bit_for_bit(name, task):
    layer = LAYERS[name].build(*task, seed=2)
    back = from_archive(FeatureMap, to_archive(layer))
    assert back.same_map(layer)
    assert back.construction == layer.construction
    assert torch.equal(back.transform(task[0]), layer.transform(task[0]))
    other = LAYERS[name].build(*task, seed=3)
    assert other.same_map(layer) == (name == "link")  # nothing is drawn for it


@pytest.mark.parametrize("name", list(LAYERS))
def test_parameters_survive_as_plain_values(name):
    plain = json.loads(json.dumps(LAYERS[name].to_plain()))
    assert layer_from_plain(plain) == LAYERS[name]


def test_wider_layers_begin_with_narrower_ones(task):
    narrow, wide = (GaussianLayer(n_units=n).build(*task) for n in (300, 700))
    assert torch.equal(narrow.weights, wide.weights[:, :300])
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
    assert np.allclose(input_weights(layer).numpy(), weights)
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


def test_scsm_equals_its_definition(task):
    """Accepted units satisfy the inequality; the residual is the pseudo-inverse's."""
    Z, Y = task
    layer = SCSMLayer(n_units=15, n_candidates=30).build(Z, Y, seed=4)
    H = layer.transform(Z).numpy()
    T = Y.numpy()
    for width in range(1, layer.n_units + 1):
        fitted = H[:, :width] @ np.linalg.pinv(H[:, :width]) @ T
        assert layer.log[width - 1].rmse == pytest.approx(
            math.sqrt(((T - fitted) ** 2).mean()), rel=1e-6
        )
    before = T - H[:, :5] @ np.linalg.pinv(H[:, :5]) @ T
    h = H[:, 5]
    drops = (h @ before) ** 2 / (h @ h)
    assert (drops >= (1 - 0.999999 - 1e-6 / 6) * (before**2).sum(axis=0)).all()


def test_scsm_reports_why_it_stopped(task):
    Z, Y = task
    assert SCSMLayer(n_units=5).build(Z, Y).status == "capped"
    interpolated = SCSMLayer(n_units=300, n_candidates=50).build(Z, Y)
    assert interpolated.status == "converged"
    assert interpolated.n_units <= 60
    ridge = SCSMLayer(n_units=100, n_candidates=20, tol=0.0, alpha=0.01).build(Z, Y)
    assert ridge.n_units == 100


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
