"""APT: where the vectors act, how they are averaged, what the classifier computes."""

from __future__ import annotations

from typing import Any

import torch
from tests.lab.methods.rival_toys import colours, shown, small_backbone, tasks, taught

from evergrow.adapt.tuners import create_tuner
from evergrow.lab.methods.apt import APTClassifier


def learned(sizes: list[int], **options: Any) -> APTClassifier:
    model = APTClassifier(
        small_backbone(), **{"epochs": 3, "lr": 0.05, "batch_size": 12, **options}
    )
    return taught(model, sizes)  # type: ignore[no-any-return]


def test_scores_use_averaged_vectors_and_standardised_features() -> None:
    model = learned([2, 3])
    backbone = small_backbone()
    (items, _) = colours([0, 4], 3, seed=8)
    state = model._state
    with torch.no_grad():
        create_tuner("additive", backbone.module).load_state_dict(
            state.modules["merged"]
        )
        z = backbone.encode(shown(backbone, items))
        centred = z - z.mean(dim=1, keepdim=True)
        standard = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        expected = (
            standard
            @ (state.weights.weight / state.weights.weight.norm(dim=1, keepdim=True)).T
        )
    torch.testing.assert_close(
        torch.from_numpy(model.decision_function(items)).float(),
        expected,
        atol=1e-4,
        rtol=1e-4,
    )


def test_vectors_are_averaged_over_tasks_and_trained_on() -> None:
    items = list(tasks([2, 2, 2]))
    model = APTClassifier(small_backbone(), epochs=3, lr=0.05, batch_size=12, ema=0.6)
    states = []
    for task in items:
        model.partial_fit(*task)
        states.append(model._state.modules)
    for name, first in states[0]["current"].items():
        assert torch.equal(states[0]["merged"][name], first)
        second = states[1]["current"][name]
        third = states[2]["current"][name]
        assert not torch.equal(first, second)
        once = 0.6 * first + 0.4 * second
        torch.testing.assert_close(states[1]["merged"][name], once)
        torch.testing.assert_close(states[2]["merged"][name], 0.6 * once + 0.4 * third)
    # The third task starts from the vectors, not from their average.
    with model._network(states[1], 2) as body:
        for name, value in body.trained.state_dict().items():
            assert torch.equal(value, states[1]["current"][name])


def test_only_vectors_and_rows_are_trained() -> None:
    model = learned([2])
    assert model.cost_.trainable_parameters == 2 * 2 * 24 + 2 * 24
