"""Layers of the laboratory pass the checks of every layer."""

import math

import numpy as np
import pytest
import torch
from tests.head.layers.layer_checks import (
    check_archive,
    check_plain_values,
    check_transform,
    small_task,
)

from evergrow.head.layers import FourierLayer
from evergrow.lab.layers import GaussianLayer, SCSMLayer, UniformLayer
from evergrow.lab.layers.gaussian import input_weights

LAYERS = {
    "gaussian": GaussianLayer(n_units=20),
    "gaussian-auto": GaussianLayer(n_units=20, scales="auto", bias="points"),
    "uniform": UniformLayer(n_units=20),
    "scsm": SCSMLayer(n_units=12, n_candidates=20),
}


@pytest.fixture
def task(rng):
    return small_task(rng)


@pytest.mark.parametrize("name", list(LAYERS))
def test_frozen_map_properties(name, task, device):
    check_transform(LAYERS[name], task, device)


@pytest.mark.parametrize("name", list(LAYERS))
def test_a_map_survives_its_archive_bit_for_bit(name, task):
    check_archive(LAYERS[name], task)


@pytest.mark.parametrize("name", list(LAYERS))
def test_parameters_survive_as_plain_values(name):
    check_plain_values(LAYERS[name])


def test_wider_gaussian_layers_begin_with_narrower_ones(task):
    narrow, wide = (GaussianLayer(n_units=n).build(*task) for n in (300, 700))
    assert torch.equal(narrow.weights, wide.weights[:, :300])


def test_input_weights_give_the_units_of_a_fourier_layer(task):
    layer = FourierLayer(100, direct_link=False).build(*task).units()
    _, phases = layer.drawn()
    products = task[0] @ input_weights(layer)[:, :100] + phases[:100]
    units = (2 / 100) ** 0.5 * torch.cos(products)
    assert torch.allclose(layer.transform(task[0]), units, atol=1e-12)


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
