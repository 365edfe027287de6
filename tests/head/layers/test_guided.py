"""MGSM agrees with a transcription of the paper's equations, in both forms."""

import itertools

import numpy as np
import pytest
import torch
from benchmarks.data import VitLike
from benchmarks.paper_equations import PaperConstruction

from evergrow.core.errors import ConstructionError, ConstructionWarning, ParameterError
from evergrow.head.layers import GuidedLayer
from evergrow.head.layers import guided as module
from evergrow.head.layers.feature_map import layer_from_plain
from evergrow.head.layers.guided import UnitSampler


@pytest.fixture(scope="module")
def task():
    source = VitLike(5, d=40, seed=3)
    return source.sample(list(range(5)), 90)


SETTINGS = {
    "block_size": 10,
    "n_candidates": 4,
    "scales": (0.004, 0.02),
    "tol": 0.0,
    "max_units": 120,
}


def grow(task, **options):
    return GuidedLayer(**{**SETTINGS, **options}).build(*task, seed=1)


def test_construction_equals_the_papers_equations(task):
    Z, Y = task
    layer = grow(task, contraction=0.9999)
    sampler = UnitSampler(Z, SETTINGS["scales"], "gaussian", 1, "mgsm")

    def draw(round_):
        weights, bias = sampler.draw_round(round_, 4, 10, 0)
        blocks = zip(weights.double().split(10, dim=1), bias.split(10))
        return list(blocks)

    paper = PaperConstruction(Z, Y, alpha=0.01, contraction=0.9999, draw=draw)
    paper.grow_to(120)
    ours = np.array([record.rmse for record in layer.log]) ** 2 * Y.numel()
    assert np.allclose(
        -np.diff(ours), [record.drop_exact for record in layer.log[1:]], rtol=1e-6
    )
    for record in layer.log:
        assert record.coupling == pytest.approx(record.drop_exact - record.drop_theorem)
        assert record.tried % SETTINGS["n_candidates"] == 0
    assert np.allclose(ours, paper.residuals, rtol=1e-7)
    assert torch.allclose(layer.transform(Z), paper.H, atol=1e-12)


@pytest.mark.parametrize("form", ["dense", "factored"])
def test_dense_and_factored_forms_agree(task, form, device, monkeypatch):
    reference = grow(task)
    assert reference.construction.form == "dense"
    monkeypatch.setattr(module, "choose_residual_form", lambda *arguments: form)
    other = grow([t.to(device) for t in task])
    assert other.construction.form == form
    for a, b in zip(reference.log, other.log, strict=True):
        assert a.rmse == pytest.approx(b.rmse, rel=1e-8)
        assert a.drop_exact == pytest.approx(b.drop_exact, rel=1e-6)
    assert torch.equal(reference.weights, other.weights.cpu())


def test_every_block_contracts_the_residual(task):
    layer = grow(task, contraction=0.99)
    energies = [r.rmse**2 for r in layer.log]
    assert all(b <= 0.99 * a * (1 + 1e-12) for a, b in itertools.pairwise(energies))


def test_status_says_why_the_construction_stopped(task):
    assert grow(task, tol=10.0, n_units=5).status == "converged"
    capped = grow(task, max_units=37, contraction=0.9999)
    assert (capped.status, capped.n_units) == ("capped", 37)  # the last block is cut
    with pytest.warns(ConstructionWarning, match="stopped at .* with an RMSE of"):
        layer = grow(task, scales=(1e-6,), contraction=0.9, max_units=1000)
    assert layer.status == "exhausted"


def test_no_admissible_block_is_an_error(task):
    with pytest.raises(ConstructionError, match="accepted no block"):
        grow(task, scales=(1e-9,), contraction=1e-9)


def test_theorem_criterion_stops_after_few_blocks(task):
    with pytest.warns(ConstructionWarning):
        literal = grow(task, criterion="theorem", max_units=1000)
    assert literal.n_units <= 20
    assert literal.status == "exhausted"


def test_scales_never_decrease(task):
    with pytest.warns(ConstructionWarning):
        grown = grow(task, scales=(1e-5, 0.004, 0.02), contraction=0.9, max_units=2000)
    scales = [r.scale for r in grown.log]
    assert scales == sorted(scales)


def test_layer_is_filled_up_to_n_units(task):
    layer = grow(task, n_units=200, max_units=200, tol=0.3)
    assert layer.n_units == 200
    assert layer.construction.n_guided < 200
    assert layer.status == "converged"


def test_first_candidates_do_not_depend_on_the_number_of_candidates(task):
    Z, _ = task
    sampler = UnitSampler(Z, (0.1,), "gaussian", 0, "x")
    few, few_biases = sampler.draw_round(3, 2, 10, 0)
    many, many_biases = sampler.draw_round(3, 5, 10, 0)
    assert torch.equal(few, many[:, :20])
    assert torch.equal(few_biases, many_biases[:20])


@pytest.mark.parametrize("bias", ["gaussian", "points"])
@pytest.mark.parametrize("scales", ["paper", "auto", (0.1, 0.2)])
def test_layer_depends_on_its_seed_and_not_on_the_global_rng(task, scales, bias):
    options = {"scales": scales, "bias": bias, "n_units": 50, "tol": 0.0}
    a = grow(task, **options)
    torch.manual_seed(123)
    torch.randn(1000)
    b = grow(task, **options)
    assert torch.equal(a.weights, b.weights)
    assert torch.equal(a.bias, b.bias)


def test_auto_scales_follow_the_features(task):
    Z, Y = task
    for scale in (1.0, 100.0):
        layer = GuidedLayer(scales="auto", n_units=400, tol=0.0).build(scale * Z, Y)
        spread = (scale * (Z - Z.mean(0)) @ layer.weights.double()).std(dim=0)
        assert float(spread.min()) > 0.2
        assert float(spread.max()) < 5.0


def test_direct_link_leaves_its_residual_to_the_units(task):
    Z, Y = task
    layer = grow(task, scales=(0.3,), max_units=30, direct_link=True)
    link = Z - Z.mean(dim=0)
    H = torch.cat(
        [
            link / link.square().sum(dim=1).mean().sqrt(),
            layer.transform(Z)[:, : layer.n_units],
        ],
        dim=1,
    )
    W = torch.linalg.solve(
        H.T @ H + 0.01 * torch.eye(H.shape[1], dtype=torch.float64), H.T @ Y
    )
    assert layer.log[-1].rmse == pytest.approx(
        float((Y - H @ W).square().mean().sqrt()), rel=1e-6
    )


def test_unknown_parameters_and_bad_scales_are_rejected():
    with pytest.raises(ParameterError, match="nearest: 'block_size'"):
        layer_from_plain({"kind": "guided", "blocksize": 3})
    for scales in ((0.1, -1), 3):
        with pytest.raises(ParameterError, match="scale"):
            GuidedLayer(scales=scales)
