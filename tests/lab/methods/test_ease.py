"""EASE, recomputed image by image and class by class."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.lab.methods.rival_toys import colours, shown, small_backbone, tasks, taught
from torch import Tensor

from evergrow.adapt.tuners import create_tuner
from evergrow.data.items import Images
from evergrow.features.image_backbone import ImageBackbone
from evergrow.lab.methods.block_means import BlockMeans
from evergrow.lab.methods.ease import EASEClassifier, EaseState

SIZES = [2, 3, 1]
TASK_OF = [task for task, size in enumerate(SIZES) for _ in range(size)]


def learned(sizes: list[int] = SIZES, **options: Any) -> EASEClassifier:
    settings = {"epochs": 2, "lr": 0.5, "batch_size": 12, "bottleneck": 6, **options}
    return taught(EASEClassifier(small_backbone(), **settings), sizes)


@cache
def three_tasks() -> EASEClassifier:
    """Return a method that has learned three tasks; made once and only looked at."""
    return learned()


def features(
    backbone: ImageBackbone, adapter: dict[str, Tensor] | None, items: Images
) -> Tensor:
    """Features under one adapter, which is put on the backbone by itself."""
    images = shown(backbone, items)
    if adapter is None:
        return backbone.encode(images).double()
    tuner = create_tuner("adapter", backbone.module, bottleneck=6)
    tuner.load_state_dict(adapter)
    result = backbone.encode(images).double()
    tuner.remove()
    return result


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("recalculate", [True, False])
def test_prototypes_are_the_completed_means_under_every_adapter(
    recalculate: bool,
) -> None:
    state: EaseState = (
        three_tasks() if recalculate else learned(recalc_sim=False)
    )._state
    backbone = small_backbone()
    expected = BlockMeans.empty(24)
    for task, (items, labels) in enumerate(tasks(SIZES)):
        seen = torch.stack(
            [
                features(backbone, adapter, items)
                for adapter in state.adapters[: task + 1]
            ]
        )
        expected = expected.extended(int(labels.max()) + 1, blocks=task + 1).added(
            seen, torch.from_numpy(labels)
        )
        expected = expected.completed(recalculate=recalculate)
    torch.testing.assert_close(
        state.means.prototypes, expected.prototypes, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("plain", [False, True])
def test_scores_equal_plain_loops(plain: bool) -> None:
    model = learned(alpha=0.3, beta=0.7, use_init_ptm=plain)
    state: EaseState = model._state
    items, _ = colours([0, 3, 5], 2, seed=8)
    blocks: list[dict[str, Tensor] | None] = [
        *([None] if plain else []),
        *state.adapters,
    ]
    z = [features(small_backbone(), adapter, items) for adapter in blocks]
    scores = model.decision_function(items)
    for n in range(len(items)):
        for label, task in enumerate(TASK_OF):
            expected = 0.0
            for block in range(len(blocks)):
                if block == task + plain:
                    weight = 1.0
                elif plain and block == 0:
                    weight = 0.7
                else:
                    weight = 0.3 / 2
                expected += weight * cosine(
                    z[block][n], state.means.prototypes[block, label]
                )
            assert scores[n, label] == pytest.approx(expected, abs=1e-4)


def test_adapters_are_fresh_for_every_task_and_then_stay() -> None:
    model = three_tasks()
    before = learned([2, 3])
    for old, now in zip(before._state.adapters, model._state.adapters, strict=False):
        assert all(torch.equal(old[name], now[name]) for name in old)
    assert any(
        adapter["layers.blocks.1.up_weight"].abs().max() > 0
        for adapter in model._state.adapters
    )
    first, second = learned(
        [2, 2], epochs=1, lr=1e-9
    )._state.adapters  # as they were drawn, but for rounding
    name = "layers.blocks.0.down_weight"
    assert (first[name] - second[name]).abs().max() > 0.01


def test_a_prediction_takes_one_pass_per_adapter() -> None:
    once = learned([2], epochs=1).cost_.inference_gflops
    assert three_tasks().cost_.inference_gflops == pytest.approx(3 * once, rel=0.02)


def test_max_adapters_stops_training_but_not_learning() -> None:
    model = learned(max_adapters=1)
    assert model.n_adapters_ == 1
    assert model.cost_.epochs == 2
    assert model._state.means.home.tolist() == [0] * 6
    items, labels = colours(list(range(6)), 5, seed=9)
    assert model.score(items, labels) >= 0.9
