"""CODA-Prompt: prompts by definition, frozen components, division of the pool."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lab.methods.rival_toys import colours, shown, small_backbone, taught
from torch import Tensor

from evergrow.adapt.tuners import create_tuner
from evergrow.lab.methods.coda_prompt import CODAPromptClassifier
from evergrow.lab.methods.cost import inference_gflops
from evergrow.lab.tuners.prefix import PrefixTuner


def learned(sizes: list[int], depth: int = 2, **options: Any) -> CODAPromptClassifier:
    settings = {
        "epochs": 3,
        "lr": 0.02,
        "batch_size": 12,
        "pool_size": 6,
        "n_tasks": 3,
        **options,
    }
    return taught(CODAPromptClassifier(small_backbone(depth=depth), **settings), sizes)


def whole(model: CODAPromptClassifier, part: str) -> Tensor:
    """All components of a part, (blocks, k, size)."""
    pool = model._state.modules["tuner"]
    return torch.cat([pool[f"past_{part}"], pool[part]], dim=1)


def test_scores_follow_the_definition_of_prompts() -> None:
    model = learned([2, 3], depth=3)
    backbone = small_backbone(depth=3)
    (items, _) = colours([0, 4], 2, seed=8)
    images = shown(backbone, items)
    query = backbone.encode(images)  # nothing sits on this backbone
    tuner = create_tuner("prefix", backbone.module, source="provider", blocks=(0, 1, 2))
    assert isinstance(tuner, PrefixTuner)
    rows = model._state.weights
    for n in range(len(items)):
        prompts = {}
        for block in range(3):
            P = whole(model, "prompts")[block].reshape(4, 8, 24)
            A = whole(model, "attention")[block]
            K = whole(model, "keys")[block]
            mixed = torch.zeros(8, 24)
            for k in range(4):
                mixed += torch.cosine_similarity(query[n] * A[k], K[k], dim=0) * P[k]
            prompts[block] = (mixed[:4], mixed[4:])
        with tuner.using(prompts):
            z = backbone.encode(images[n : n + 1])
        expected = (z @ rows.weight.T + rows.bias)[0]
        found = torch.from_numpy(model.decision_function(items.take([n])))[0].float()
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_components_of_earlier_tasks_stay_and_new_ones_are_trained() -> None:
    before = learned([2])
    after = learned([2, 2])
    untrained = learned([2, 2], epochs=1, lr=1e-9)
    for part in ("prompts", "keys", "attention"):
        assert torch.equal(whole(after, part)[:, :2], whole(before, part))
        assert (
            whole(after, part)[:, 2:] - whole(untrained, part)[:, 2:]
        ).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("pool", "n_tasks", "each"), [(7, 3, 2), (100, 60, 1), (3, 5, 1)]
)
def test_the_pool_is_divided_and_grows_beyond(
    pool: int, n_tasks: int, each: int
) -> None:
    model = CODAPromptClassifier(
        small_backbone(), epochs=1, pool_size=pool, n_tasks=n_tasks
    )
    items, labels = colours([0, 1], 1)
    for task in range(4):
        model.partial_fit(items, labels + 2 * task)
        assert model.n_components_ == each * (task + 1)


@pytest.mark.parametrize(("depth", "prompted"), [(2, 2), (6, 5)])
def test_the_first_five_blocks_have_prompts(depth: int, prompted: int) -> None:
    assert whole(learned([2], depth=depth, epochs=1), "keys").shape[0] == prompted
    assert whole(learned([2], depth=depth, epochs=1, n_blocks=1), "keys").shape[0] == 1


def test_the_penalty_keeps_components_nearer_to_orthonormal() -> None:
    def distance(model: CODAPromptClassifier) -> float:
        keys = whole(model, "keys")
        return float(
            (keys @ keys.transpose(1, 2) - torch.eye(keys.shape[1])).square().mean()
        )

    assert distance(learned([2, 2], ortho_penalty=10.0)) < distance(learned([2, 2]))


def test_a_prediction_takes_two_passes() -> None:
    model = learned([2])
    once = inference_gflops(small_backbone().module, (16, 16), torch.device("cpu"))
    assert 2 * once < model.cost_.inference_gflops < 2.6 * once
