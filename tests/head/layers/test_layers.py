import math

import numpy as np
import pytest
import torch

from evergrow.core.errors import InputError, NotFittedError, ParameterError, UnknownNameError
from evergrow.head.layers import (
    FourierProjection,
    GaussianProjection,
    GuidedProjection,
    LinkedProjection,
    read_projection,
)
from evergrow.head.layers.normalize import normalize, resolve_normalization
from evergrow.head.layers.scales import PAPER_SCALES
from evergrow.lab.layers.scsm import SCSMProjection


def layers():
    return {
        "gaussian": GaussianProjection(n_units=20, random_state=2),
        "gaussian-auto": GaussianProjection(n_units=20, scales="auto", bias="points", random_state=2),
        "fourier": FourierProjection(n_units=20, random_state=2),
        "mgsm": GuidedProjection(random_state=2, scales="auto", n_units=20, block_size=5),
        "scsm": SCSMProjection(n_units=12, n_candidates=20, random_state=2),
        "linked": LinkedProjection(GuidedProjection(random_state=2, scales="auto", n_units=20, block_size=5)),
    }


@pytest.fixture
def task(rng):
    Z = torch.randn(60, 7, generator=rng, dtype=torch.float64)
    return Z, torch.eye(3, dtype=torch.float64)[torch.arange(60) % 3]


@pytest.mark.parametrize("name", list(layers()))
def test_frozen_map_properties(name, task, device):
    Z, Y = task
    layer = layers()[name].build(Z.to(device), Y.to(device))
    H = layer.transform(Z.to(device))
    assert H.shape == (60, layer.n_outputs)
    assert H.device.type == device.type
    assert torch.equal(H, layer.transform(Z.to(device))), "transform must be pure"
    single = layer.transform(Z[:1].to(device))
    assert torch.allclose(single, H[:1], atol=1e-12)
    low = layer.transform(Z.float().to(device))
    assert low.dtype == torch.float32
    assert torch.allclose(low.double(), H, atol=1e-4)
    again = layers()[name].build(Z, Y)
    assert torch.allclose(again.transform(Z), H.cpu(), atol=1e-9), "the same seed gives the same layer everywhere"


@pytest.mark.parametrize("name", list(layers()))
def test_restore_is_the_same_map(name, task):
    layer = layers()[name].build(*task)
    back = read_projection(layer.to_archive(), torch.device("cpu"))
    assert type(back) is type(layer)
    assert back.same_map(layer)
    assert torch.equal(back.transform(task[0]), layer.transform(task[0]))
    other = layers()[name]
    other.random_state = 3
    if name == "linked":
        other.inner.random_state = 3
    assert not other.build(*task).same_map(layer)


@pytest.mark.parametrize("name", list(layers()))
def test_chunks_are_bounded_and_whole(name, task):
    layer = layers()[name].build(*task)
    limit = 8 * layer.n_outputs * 7
    chunks = list(layer.iter_transform(task[0], chunk_bytes=limit))
    assert all(H.nbytes <= limit for _, H in chunks)
    assert torch.allclose(torch.cat([H for _, H in chunks]), layer.transform(task[0]), atol=1e-12)


def test_unbuilt_and_bad_input(task):
    with pytest.raises(NotFittedError, match="must be built"):
        GaussianProjection().transform(task[0])
    layer = GaussianProjection(n_units=3).build(*task)
    with pytest.raises(InputError, match="7 columns"):
        layer.transform(torch.zeros(2, 6))
    with pytest.raises(UnknownNameError, match="nearest: 'sigmoid'"):
        GaussianProjection(activation="sigmoyd")
    with pytest.raises(ParameterError, match="n_units"):
        GaussianProjection(n_units=0)
    with pytest.raises(ParameterError, match="gamma"):
        FourierProjection(gamma=-1.0)


def test_wider_layers_begin_with_narrower_ones(task):
    narrow, wide = (GaussianProjection(n_units=n, random_state=0).build(*task) for n in (300, 700))
    assert torch.equal(narrow.weights, wide.weights[:, :300])


def test_paper_grid():
    assert len(PAPER_SCALES) == 33
    assert PAPER_SCALES[0] == 0.0008
    assert PAPER_SCALES[-1] == 0.004


def test_fourier_approximates_its_kernel(task):
    Z, Y = task
    H = FourierProjection(n_units=60_000, gamma=0.1).build(Z, Y).transform(Z)
    kernel = torch.exp(-0.1 * torch.cdist(Z, Z).square())
    assert float((H @ H.T - kernel).abs().max()) < 0.03


def test_link_has_equal_energy(task):
    layer = LinkedProjection(GaussianProjection(n_units=50)).build(*task)
    H = layer.transform(task[0])
    units, link = H[:, :50], H[:, 50:]
    energy = [float(((part - part.mean(0)) ** 2).sum()) for part in (units, link)]
    assert energy[0] == pytest.approx(energy[1], rel=1e-9)


def test_scsm_equals_its_definition(task):
    """Every accepted unit satisfies the inequality, and the residual is the pseudo-inverse's."""
    Z, Y = task
    layer = SCSMProjection(n_units=15, n_candidates=30, random_state=4).build(Z, Y)
    H = layer.transform(Z).numpy()
    T = Y.numpy()
    for width in range(1, layer.n_units + 1):
        fitted = H[:, :width] @ np.linalg.pinv(H[:, :width]) @ T
        assert layer.log[width - 1].rmse == pytest.approx(math.sqrt(((T - fitted) ** 2).mean()), rel=1e-6)
    before = T - H[:, :5] @ np.linalg.pinv(H[:, :5]) @ T
    h = H[:, 5]
    falls = (h @ before) ** 2 / (h @ h)
    assert (falls >= (1 - 0.999999 - 1e-6 / 6) * (before**2).sum(axis=0)).all()


def test_scsm_statuses(task):
    Z, Y = task
    assert SCSMProjection(n_units=5, random_state=0).build(Z, Y).status == "capped"
    interpolated = SCSMProjection(n_units=300, n_candidates=50, random_state=0).build(Z, Y)
    assert interpolated.status == "converged"
    assert interpolated.n_units <= 60
    ridge = SCSMProjection(n_units=100, n_candidates=20, tol=0.0, alpha=0.01, random_state=0).build(Z, Y)
    assert ridge.n_units == 100


def test_normalization():
    positive, signed = torch.tensor([[1.0, 4.0]]), torch.tensor([[-1.0, 4.0]])
    assert resolve_normalization("auto", positive) == "sqrt-l2"
    assert resolve_normalization("auto", signed) == "l2"
    assert resolve_normalization("none", signed) == "none"
    assert torch.allclose(normalize(positive, "sqrt-l2"), torch.tensor([[1.0, 2.0]]) / 5**0.5)
    assert bool(torch.isfinite(normalize(torch.zeros(2, 3), "l2")).all())
