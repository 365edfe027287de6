"""What EASE, CODA-Prompt, APT and SD-LoRA have in common."""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.lab.methods.rival_toys import colours, small_backbone, taught

from evergrow.adapt import TrainingError, loop
from evergrow.adapt.tuners import UnsupportedModelError, tuners_of
from evergrow.core.errors import LabelError, ParameterError
from evergrow.features import create_backbone, hash_weights
from evergrow.features.image_backbone import ImageBackbone
from evergrow.lab.methods.apt import APTClassifier
from evergrow.lab.methods.coda_prompt import CODAPromptClassifier
from evergrow.lab.methods.ease import EASEClassifier
from evergrow.lab.methods.sd_lora import SDLoRAClassifier
from evergrow.lab.methods.taskwise import TaskwiseClassifier

METHODS: dict[type[TaskwiseClassifier], dict[str, Any]] = {
    EASEClassifier: {"lr": 0.1, "epochs": 4, "bottleneck": 8},
    APTClassifier: {"lr": 0.03, "epochs": 8},
    SDLoRAClassifier: {"lr": 0.02, "epochs": 8, "rank": 4},
    CODAPromptClassifier: {"lr": 0.03, "epochs": 8, "pool_size": 9, "n_tasks": 3},
}
TASK_OF = np.array([0, 0, 1, 1, 1, 2, 2])
SIZES = [2, 3, 2]


@pytest.fixture(params=METHODS, ids=lambda kind: kind.method)
def kind(request: pytest.FixtureRequest) -> type[TaskwiseClassifier]:
    found: type[TaskwiseClassifier] = request.param
    return found


def make(
    kind: type[TaskwiseClassifier],
    backbone: ImageBackbone | None = None,
    **options: Any,
) -> TaskwiseClassifier:
    settings = {"batch_size": 12, **METHODS[kind], **options}
    return kind(small_backbone() if backbone is None else backbone, **settings)


def learned(
    kind: type[TaskwiseClassifier], sizes: list[int] = SIZES, **options: Any
) -> TaskwiseClassifier:
    return taught(make(kind, **options), sizes)  # type: ignore[no-any-return]


@cache
def _two_tasks(kind: type[TaskwiseClassifier]) -> TaskwiseClassifier:
    return learned(kind, [2, 3])


def two_tasks(kind: type[TaskwiseClassifier]) -> TaskwiseClassifier:
    """Return a method that has learned five classes in two tasks, shared by tests."""
    return copy(_two_tasks(kind))


def test_learns_three_tasks_of_unequal_size(kind: type[TaskwiseClassifier]) -> None:
    model = learned(kind)
    items, labels = colours(list(range(7)), 10, seed=99)
    scores = model.decision_function(items)
    assert scores.shape == (70, 7)
    own = np.where(TASK_OF[None] == TASK_OF[labels][:, None], scores, -np.inf).argmax(
        axis=1
    )
    for task in range(3):
        assert (own == labels)[TASK_OF[labels] == task].mean() >= 0.9
    assert model.score(items, labels) >= 2 / 7


def test_the_backbone_is_unchanged_after_learning(
    kind: type[TaskwiseClassifier],
) -> None:
    backbone = small_backbone()
    module = backbone.module.requires_grad_(True).train()
    before = hash_weights(module)
    model = learned(kind, [2, 2], backbone=backbone)
    model.predict(colours([0], 2)[0])
    assert hash_weights(module) == before
    assert not tuners_of(module)
    assert module.training
    assert all(part.training for part in module.modules())
    assert all(
        parameter.requires_grad and parameter.grad is None
        for parameter in module.parameters()
    )
    assert not any(
        part._forward_hooks or part._forward_pre_hooks for part in module.modules()
    )


def test_same_seed_same_answers_whatever_else_draws_random_numbers(
    kind: type[TaskwiseClassifier],
) -> None:
    items, _ = colours(list(range(5)), 3, seed=5)
    torch.manual_seed(1)
    first = learned(kind, [2, 3], random_state=7)
    torch.manual_seed(2)
    torch.rand(17)
    state = torch.random.get_rng_state()
    second = learned(kind, [2, 3], random_state=7)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = learned(kind, [2, 3], random_state=8)
    assert np.array_equal(
        first.decision_function(items), second.decision_function(items)
    )
    assert not np.array_equal(
        first.decision_function(items), other.decision_function(items)
    )


def test_a_failed_task_leaves_everything_as_it_was(
    kind: type[TaskwiseClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = two_tasks(kind)
    items, _ = colours(list(range(5)), 3, seed=5)
    before = model.decision_function(items)
    cost = model.cost_
    with monkeypatch.context() as patch:
        original = loop._Run._step
        # The step is made, so that what was trained has changed; only what it reports
        # is not finite.
        patch.setattr(
            loop._Run, "_step", lambda run, *batch: original(run, *batch) * float("nan")
        )
        with pytest.raises(TrainingError):
            model.partial_fit(*colours([5, 6], 12))
    with pytest.raises(LabelError):
        model.partial_fit(colours([5, 6], 12)[0], ["five"] * 24)
    assert np.array_equal(model.decision_function(items), before)
    assert model.cost_ == cost
    assert len(model.classes_) == 5


def test_tasks_of_one_class_one_image_and_strings(
    kind: type[TaskwiseClassifier],
) -> None:
    model = make(kind, epochs=1)
    names = np.array(["red", "green", "blue", "yellow"])
    for classes, each in (([2], 1), ([0, 3], 2), ([1], 1)):
        items, labels = colours(classes, each)
        model.partial_fit(items, names[labels])
    assert model.classes_.tolist() == ["blue", "green", "red", "yellow"]
    assert set(model.predict(colours([0, 1], 3)[0])) <= set(names)


def test_classes_may_recur(kind: type[TaskwiseClassifier]) -> None:
    model = two_tasks(kind)
    model.partial_fit(*colours([1, 3, 5], 12, seed=4))
    assert model.classes_.tolist() == list(range(6))
    model.partial_fit(*colours([0, 2], 12, seed=5))
    items, labels = colours([0, 2], 10, seed=99)
    scores = model.decision_function(items)
    assert ((scores[:, 2] > scores[:, 0]) == (labels == 2)).mean() >= 0.9


def test_the_order_of_labels_does_not_matter_to_columns(
    kind: type[TaskwiseClassifier],
) -> None:
    """Columns are sorted labels, however the classes came."""
    high = colours([0, 1], 6)
    low = colours([2, 3], 6)
    model = make(kind, epochs=1).fit(high[0], high[1] + 10).partial_fit(*low)
    assert model.classes_.tolist() == [2, 3, 10, 11]
    twin = make(kind, epochs=1).fit(high[0], high[1]).partial_fit(*low)
    items, _ = colours([0, 3], 2, seed=9)
    assert np.array_equal(
        model.decision_function(items)[:, [2, 3, 0, 1]], twin.decision_function(items)
    )


def test_cost_adds_up(kind: type[TaskwiseClassifier]) -> None:
    model = two_tasks(kind)
    first = learned(kind, [2])
    epochs = METHODS[kind]["epochs"]
    assert model.cost_.epochs == 2 * epochs
    assert model.cost_.samples == epochs * (24 + 36)
    assert model.cost_.train_gflops > first.cost_.train_gflops > 0
    assert model.cost_.inference_gflops >= first.cost_.inference_gflops > 0
    assert model.cost_.trainable_parameters > 0
    assert model.cost_.train_seconds > 0


COMMON = [{"epochs": 0}, {"lr": -1.0}, {"batch_size": 0}]
OWN: dict[type[TaskwiseClassifier], list[dict[str, Any]]] = {
    EASEClassifier: [
        {"alpha": -1},
        {"bottleneck": 0},
        {"max_adapters": 0},
        {"recalc_sim": 1},
        {"beta": "much"},
    ],
    APTClassifier: [{"ema": 1.5}, {"std": -1}],
    SDLoRAClassifier: [{"rank": 0}, {"magnitude": None}, {"rank_reduction": "yes"}],
    CODAPromptClassifier: [{name: 0} for name in ("pool_size", "n_tasks", "n_blocks")]
    + [{"prompt_length": 3}, {"ortho_penalty": -1}],
}


def test_invalid_settings_raise(kind: type[TaskwiseClassifier]) -> None:
    for options in [*COMMON, *OWN[kind]]:
        with pytest.raises(ParameterError, match=next(iter(options))):
            make(kind, **options).fit(*colours([0, 1], 2))


@pytest.mark.parametrize(
    "trained", [APTClassifier, SDLoRAClassifier, CODAPromptClassifier]
)
def test_training_keeps_the_weights_of_other_classes(
    trained: type[TaskwiseClassifier],
) -> None:
    before = learned(trained, [2])._state.weights
    after = two_tasks(trained)._state.weights
    assert torch.equal(after.weight[:2], before.weight)
    assert before.bias is None or torch.equal(after.bias[:2], before.bias)


def test_a_backbone_without_transformer_blocks_raises(
    kind: type[TaskwiseClassifier],
) -> None:
    backbone = create_backbone("test_resnet", weights="random", device="cpu")
    assert isinstance(backbone, ImageBackbone)
    with pytest.raises(UnsupportedModelError):
        make(kind, backbone).fit(*colours([0, 1], 2))
