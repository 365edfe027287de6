"""APT: where the vectors act, how they are averaged, what the classifier computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lab.methods.rival_toys import colours, shown, small_backbone, tasks, taught
from torch import Tensor, nn

from evergrow.lab.methods.apt import APTClassifier


def learned(sizes: list[int], **options: Any) -> APTClassifier:
    model = APTClassifier(small_backbone(), **{"epochs": 3, "lr": 0.05, "batch_size": 12, **options})
    return taught(model, sizes)  # type: ignore[no-any-return]


def spelled_out(model: Any, images: Tensor, vectors: dict[str, Tensor]) -> Tensor:
    """A vision transformer block by block, with vectors added to key and value of the first token."""
    x = model.patch_embed(images)
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], dim=1) + model.pos_embed
    for number, block in enumerate(model.blocks):
        attention = block.attn
        q, k, v = attention.qkv(block.norm1(x)).chunk(3, dim=-1)
        k, v = k.clone(), v.clone()
        k[:, 0] += vectors[f"layers.blocks.{number}.key"]
        v[:, 0] += vectors[f"layers.blocks.{number}.value"]
        heads, size = attention.num_heads, q.shape[-1] // attention.num_heads
        out = torch.zeros_like(q)
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
            out[..., part] = scores.softmax(dim=-1) @ v[..., part]
        x = x + attention.proj(out)
        x = x + block.mlp(block.norm2(x))
    return model.norm(x)[:, 0]  # type: ignore[no-any-return]


def test_answers_by_the_spelled_out_transformer() -> None:
    model = learned([2, 3])
    backbone, (items, _) = small_backbone(), colours([0, 4], 3, seed=8)
    state = model._state
    with torch.no_grad():
        z = spelled_out(backbone.module, shown(backbone, items), state.modules["merged"])
        centred = z - z.mean(dim=1, keepdim=True)
        standard = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        expected = standard @ (state.weights.weight / state.weights.weight.norm(dim=1, keepdim=True)).T
    torch.testing.assert_close(torch.from_numpy(model.decision_function(items)).float(), expected, atol=1e-4, rtol=1e-4)


def test_vectors_are_averaged_over_tasks_and_trained_on() -> None:
    items = list(tasks([2, 2, 2]))
    model, states = APTClassifier(small_backbone(), epochs=3, lr=0.05, batch_size=12, ema=0.6), []
    for task in items:
        model.partial_fit(*task)
        states.append(model._state.modules)
    for name, first in states[0]["current"].items():
        assert torch.equal(states[0]["merged"][name], first)
        second, third = states[1]["current"][name], states[2]["current"][name]
        assert not torch.equal(first, second)
        once = 0.6 * first + 0.4 * second
        torch.testing.assert_close(states[1]["merged"][name], once)
        torch.testing.assert_close(states[2]["merged"][name], 0.6 * once + 0.4 * third)
    # The third task starts from the vectors, not from their average.
    with model._network(states[1], 2) as body:
        for name, value in body.trained.state_dict().items():
            assert torch.equal(value, states[1]["current"][name])


def test_the_average_does_not_change_what_is_trained() -> None:
    plain, averaged = learned([2, 2], ema=0.0), learned([2, 2], ema=0.9)
    for name, value in plain._state.modules["current"].items():
        assert torch.equal(averaged._state.modules["current"][name], value)
        assert torch.equal(plain._state.modules["merged"][name], value)


def test_only_vectors_and_rows_are_trained() -> None:
    model = learned([2])
    assert model.cost_.trainable_parameters == 2 * 2 * 24 + 2 * 24


def test_a_model_without_class_token_is_refused() -> None:
    backbone = small_backbone()
    backbone.module.cls_token = None
    assert isinstance(backbone.module, nn.Module)
    with pytest.raises(TypeError, match="class token"):
        APTClassifier(backbone).fit(*colours([0, 1], 2))
