from __future__ import annotations

import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from torch import nn
from torch.nn.functional import cross_entropy

from evergrow.adapt import FsaConfig, adapt
from evergrow.core.record import from_values, to_values
from evergrow.lab.methods import FsaClassifier, JointFineTuning
from evergrow.lab.methods.cost import (
    Cost,
    adaptation_cost,
    inference_gflops,
    training_gflops,
)

CPU = torch.device("cpu")


def vit_macs(tokens: int, width: int, depth: int, patch: int = 8) -> int:
    """Multiplications of a plain vision transformer, from its formula."""
    block = 12 * width * width * tokens + 2 * tokens * tokens * width
    return (tokens - 1) * 3 * patch * patch * width + depth * block


def test_inference_is_counted_by_the_formula() -> None:
    backbone = tiny_vit()
    assert inference_gflops(backbone.module, (16, 16), CPU) == pytest.approx(
        2e-9 * vit_macs(5, 24, 2), rel=1e-6
    )


def test_training_all_weights_costs_three_passes() -> None:
    """The backward pass takes two products per forward one, without image gradient."""
    module = tiny_vit().module.requires_grad_(True)
    forward = inference_gflops(module, (16, 16), CPU)
    step = training_gflops(
        module, module.parameters(), (16, 16), CPU, lambda z, codes: z.sum()
    )
    # The patch embedding needs no gradient of its input.
    first = 2e-9 * 4 * 3 * 64 * 24
    assert step == pytest.approx(3 * forward - first, rel=1e-6)


def test_counting_changes_neither_network_nor_generator() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3)).train()
    state = torch.random.get_rng_state()
    training_gflops(net, net.parameters(), (2, 2), CPU, cross_entropy)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(part.training for part in net.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_costs_add_up_over_tasks() -> None:
    total = Cost(10, 1.0, 0.5, 6.0, 2, 100, 7) + Cost(8, 2.0, 0.7, 1.0, 3, 50, 9)
    assert total == Cost(10, 3.0, 0.7, 7.0, 5, 150, 9)
    assert from_values(Cost, to_values(total), "cost") == total


def test_adaptation_has_a_cost() -> None:
    backbone = tiny_vit()
    (items, y) = stripes(3, 8)
    adapted = adapt(
        backbone, items, y, FsaConfig.recipe(epochs=2, settings={"bottleneck": 4})
    )
    cost = adaptation_cost(adapted, 3)
    width = 24
    inner = 4
    trained = 2 * (2 * width * inner + inner + width) + 3 * width + 1
    assert cost.trainable_parameters == trained
    assert cost.samples == 48
    assert cost.epochs == 2
    assert cost.train_seconds > 0
    plain = inference_gflops(backbone.module, (16, 16), CPU)
    branches = 2e-9 * 2 * 2 * 5 * width * inner
    assert cost.inference_gflops == pytest.approx(plain + branches, rel=1e-6)
    # The last block's products once more for the gradients of its inputs, attention's
    # two twice; of the first block nothing but the branch, since nothing before it is
    # trained. A branch has four products backwards, the first three.
    one = 5 * width * inner
    forward = vit_macs(5, width, 2) + 4 * one + 3 * width
    backward = 12 * width * width * 5 + 4 * 5 * 5 * width + 7 * one + 2 * 3 * width
    assert cost.train_gflops == pytest.approx(
        2e-9 * (forward + backward) * 48, rel=1e-9
    )


def test_a_classifier_adds_extraction_and_later_tasks() -> None:
    items, y = stripes(4, 6)
    model = FsaClassifier("simplecil", tiny_vit(), adapt=None).fit(
        items.take(range(12)), y[:12]
    )
    one = inference_gflops(tiny_vit().module, (16, 16), CPU)
    assert model.cost_.train_gflops == pytest.approx(12 * one)
    model.partial_fit(items.take(range(12, 24)), y[12:])
    assert model.cost_.train_gflops == pytest.approx(24 * one)
    assert model.cost_.inference_gflops == pytest.approx(one)


def test_joint_fine_tuning_trains_every_number() -> None:
    items, y = stripes(3, 4)
    backbone = tiny_vit()
    model = JointFineTuning(backbone, epochs=1).fit(items, y)
    model.predict(items)
    everything = (
        sum(parameter.numel() for parameter in backbone.module.parameters())
        + 3 * 24
        + 1
    )
    assert model.cost_.trainable_parameters == everything
    assert not any(
        parameter.requires_grad for parameter in backbone.module.parameters()
    )
