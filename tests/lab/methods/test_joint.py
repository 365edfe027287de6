from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit

from evergrow.core.errors import InputError, ParameterError
from evergrow.data.items import Texts
from evergrow.features import hash_weights
from evergrow.lab.methods import IMAGE_METHODS, JointFineTuning
from evergrow.lab.methods.joint import JointConfig

QUICK = {"epochs": 2, "batch_size": 16}


def test_it_is_registered_with_the_published_settings() -> None:
    model = IMAGE_METHODS["joint-ft"]()
    assert isinstance(model, JointFineTuning)
    config = model.config()
    assert (config.epochs, config.batch_size, config.lr, config.head_lr) == (
        30,
        128,
        1e-4,
        0.01,
    )
    assert (config.momentum, config.weight_decay, config.schedule) == (
        0.9,
        5e-4,
        "constant",
    )
    tuned = JointFineTuning(recipe="tuned", lr=0.5, train={"mixup": 0.7}).config()
    assert (tuned.optimizer, tuned.lr, tuned.mixup, tuned.layer_decay) == (
        "adamw",
        0.5,
        0.7,
        0.65,
    )
    with pytest.raises(ParameterError, match="recipe"):
        JointFineTuning(recipe="best").config()


def test_earlier_blocks_have_smaller_rates() -> None:
    body = tiny_vit().module
    head = torch.nn.Linear(24, 3)
    groups = JointConfig(lr=1.0, layer_decay=0.5, head_lr=3.0).groups(body, head)
    assert [group["lr"] for group in groups] == [0.125, 0.25, 0.5, 1.0, 3.0]
    rates = {
        id(parameter): group["lr"] for group in groups for parameter in group["params"]
    }
    found = {name: rates[id(parameter)] for name, parameter in body.named_parameters()}
    assert (found["pos_embed"], found["patch_embed.proj.bias"], found["norm.bias"]) == (
        0.125,
        0.125,
        1.0,
    )
    assert (found["blocks.0.norm1.weight"], found["blocks.1.mlp.fc2.bias"]) == (
        0.25,
        0.5,
    )


@pytest.mark.parametrize("wrong", [{"head_lr": -1}, {"layer_decay": 0}])
def test_invalid_rates_raise(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        JointConfig(**wrong)


def test_task_by_task_is_the_same_as_at_once_and_the_backbone_stays() -> None:
    items, y = stripes(4, 6)
    order = np.argsort(y, kind="stable")
    items = items.take(order)
    y = y[order]
    backbone = tiny_vit()
    flags = [parameter.requires_grad for parameter in backbone.module.parameters()]
    at_once = JointFineTuning(backbone, **QUICK).fit(items, y)
    by_task = JointFineTuning(backbone, **QUICK)
    for rows in (y < 2, y >= 2):
        by_task.partial_fit(items.take(np.flatnonzero(rows)), y[rows])
    np.testing.assert_array_equal(
        at_once.decision_function(items), by_task.decision_function(items)
    )
    assert hash_weights(backbone.module) == backbone.spec.weights_hash
    assert [
        parameter.requires_grad for parameter in backbone.module.parameters()
    ] == flags
    moved = [
        not torch.equal(ours, theirs)
        for ours, theirs in zip(
            at_once.network().backbone.parameters(), backbone.module.parameters()
        )
    ]
    assert all(moved)


def test_it_learns_classes_that_the_frozen_features_cannot_separate() -> None:
    items, y = stripes(3, 20)
    test, z = stripes(3, 10, seed=7)
    untrained = JointFineTuning(tiny_vit(), epochs=1, lr=1e-12, head_lr=1e-12).fit(
        items, y
    )
    model = JointFineTuning(
        tiny_vit(), recipe="tuned", epochs=20, batch_size=16, lr=0.002
    ).fit(items, y)
    assert untrained.score(test, z) < 0.5  # random features barely differ
    assert model.score(test, z) > 0.8


def test_training_starts_at_the_first_prediction_and_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, y = stripes(3, 4)
    model = JointFineTuning(tiny_vit(), **QUICK)
    calls = []
    original = JointFineTuning._train
    monkeypatch.setattr(
        JointFineTuning, "_train", lambda self: calls.append(1) or original(self)
    )
    model.fit(items, y).partial_fit(items, y + 3)
    assert calls == []
    model.predict(items)
    model.predict(items)
    assert calls == [1]
    assert model.cost_.samples == 2 * 24


def test_invalid_settings_and_items_raise() -> None:
    items, y = stripes(2, 3)
    with pytest.raises(ParameterError, match="epochs"):
        JointFineTuning(tiny_vit(), epochs=0).fit(items, y)
    model = JointFineTuning(tiny_vit(), **QUICK).fit(items, y)
    with pytest.raises(InputError, match=r"must be images.*got texts"):
        model.partial_fit(Texts(("a",)), y[:1] + 2)
    assert model.classes_.tolist() == [0, 1]
