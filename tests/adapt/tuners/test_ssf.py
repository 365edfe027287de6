"""Scaling and shifting against a forward pass written out in functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from evergrow.adapt.tuners import UnsupportedModelError, create_tuner


def test_ssf_scales_eight_kinds_of_layers_of_a_vit(make_model, images, shaken) -> None:
    model = make_model("vit_small_patch14_reg4_dinov2", init_values=0.3)
    tuner = shaken(create_tuner("ssf", model))
    state = tuner.state_dict()
    w = model.state_dict()

    def ssf(x, name):
        return x * state[f"layers.{name}.gamma"] + state[f"layers.{name}.beta"]

    def linear(x, name):
        return ssf(functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"]), name)

    def norm(x, name):
        return ssf(
            functional.layer_norm(
                x, (48,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6
            ),
            name,
        )

    x = functional.conv2d(
        images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=8
    )
    x = ssf(x.flatten(2).transpose(1, 2), "patch_embed.proj") + w["pos_embed"]
    x = torch.cat(
        [w["cls_token"].expand(3, -1, -1), w["reg_token"].expand(3, -1, -1), x], dim=1
    )
    for b in ("blocks.0", "blocks.1"):
        qkv = (
            linear(norm(x, f"{b}.norm1"), f"{b}.attn.qkv")
            .reshape(3, -1, 3, 3, 16)
            .permute(2, 0, 3, 1, 4)
        )
        q, k, v = qkv.unbind(0)
        mixed = torch.softmax(q @ k.transpose(-2, -1) / 4, dim=-1) @ v
        x = x + w[f"{b}.ls1.gamma"] * linear(
            mixed.transpose(1, 2).reshape(3, -1, 48), f"{b}.attn.proj"
        )
        hidden = functional.gelu(linear(norm(x, f"{b}.norm2"), f"{b}.mlp.fc1"))
        x = x + w[f"{b}.ls2.gamma"] * linear(hidden, f"{b}.mlp.fc2")
    torch.testing.assert_close(model(images), norm(x, "norm")[:, 0])
    assert len(state) == 2 * (1 + 2 * 6 + 1)


def test_starts_near_the_base_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 20_000))
    state = create_tuner("ssf", model).state_dict()
    gamma = state["layers.0.gamma"]
    beta = state["layers.0.beta"]
    for value, mean in ((gamma, 1.0), (beta, 0.0)):
        assert value.mean() == pytest.approx(mean, abs=1e-3)
        assert value.std() == pytest.approx(0.02, rel=0.05)
    assert torch.corrcoef(torch.stack([gamma, beta]))[0, 1].abs() < 0.03


def test_ssf_scales_norms_before_their_activation(shaken) -> None:
    layers = pytest.importorskip("timm.layers")
    model = torch.nn.Sequential(layers.BatchNormAct2d(4)).eval()
    x = torch.randn(2, 4, 3, 3)
    state = shaken(create_tuner("ssf", model)).state_dict()
    gamma, beta = (
        state[f"layers.0.{name}"][:, None, None] for name in ("gamma", "beta")
    )
    torch.testing.assert_close(
        model(x), torch.relu(x / (1 + model[0].eps) ** 0.5 * gamma + beta)
    )


def test_ssf_rejects_layers_that_are_not_called(make_model) -> None:
    attention = torch.nn.TransformerEncoderLayer(8, 2)
    with pytest.raises(
        UnsupportedModelError, match=r"self_attn.out_proj must be called by itself"
    ):
        create_tuner("ssf", attention)
    assert all(parameter.requires_grad for parameter in attention.parameters())
