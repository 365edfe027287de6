"""Edited attention, prefixes and additive prompts against explicit attention."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from evergrow.adapt.tuners import TunerError, UnsupportedModelError, create_tuner
from evergrow.core.errors import InputError
from evergrow.lab.tuners.attention import AttentionEdit, AttentionSite

TIMM = tuple(int(part) for part in timm.__version__.split(".")[:3])


def since(wanted):
    return pytest.mark.skipif(
        wanted > TIMM,
        reason=f"needs another version: timm {'.'.join(map(str, wanted))}",
    )


KINDS = [
    ("vit_tiny_patch16_224", {}),
    ("vit_tiny_patch16_224", {"qk_norm": True, "scale_attn_norm": True}),
    ("vit_small_patch14_reg4_dinov2", {}),
    ("vit_small_patch16_dinov3", {}),
    ("vit_small_patch16_rope_mixed_224", {}),
    ("eva02_tiny_patch14_224", {}),
    ("eva02_base_patch14_224", {"scale_attn_inner": True}),
    pytest.param(
        "eva02_base_patch14_224",
        {"attn_type": "rope", "num_kv_heads": 1},
        marks=since((1, 0, 28)),
    ),
    ("eva_giant_patch14_224", {}),
    ("beit_base_patch16_224", {}),
    (
        "beitv2_base_patch16_224",
        {"use_shared_rel_pos_bias": True, "use_rel_pos_bias": False},
    ),
]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_an_empty_edit_computes_the_same_as_the_layer(
    make_model, images, name, options, fused
) -> None:
    model = make_model(name, **options)
    for block in model.blocks:
        block.attn.fused_attn = fused
    expected = model(images)
    handles = [
        AttentionSite.of(block.attn).add(AttentionEdit()) for block in model.blocks
    ]
    assert all("forward" in block.attn.__dict__ for block in model.blocks)
    torch.testing.assert_close(model(images), expected, rtol=1e-6, atol=1e-6)
    for handle in handles:
        handle.remove()
        handle.remove()
    assert not any("forward" in block.attn.__dict__ for block in model.blocks)


def attention_by_hand(
    block, x, keys=None, values=None, first_key=None, first_value=None
):
    """Attention with 3 heads of 16, with additions (B or 1, L, 48) or (48,)."""
    attn = block.attn
    n = x.shape[1]
    q, k, v = (x @ attn.qkv.weight.T + attn.qkv.bias).split(48, dim=-1)
    if first_key is not None:
        k = torch.cat([k[:, :1] + first_key, k[:, 1:]], dim=1)
        v = torch.cat([v[:, :1] + first_value, v[:, 1:]], dim=1)
    if keys is not None:  # prepended, as published
        k = torch.cat([keys.expand(len(x), -1, -1), k], dim=1)
        v = torch.cat([values.expand(len(x), -1, -1), v], dim=1)
    out = []
    for head in range(3):
        columns = slice(16 * head, 16 * (head + 1))
        weights = torch.softmax(
            q[..., columns] @ k[..., columns].transpose(1, 2) / 4, dim=-1
        )
        out.append(weights @ v[..., columns])
    assert weights.shape[1] == n
    return torch.cat(out, dim=-1) @ attn.proj.weight.T + attn.proj.bias


def by_hand(model, images, additions):
    x = model._pos_embed(model.patch_embed(images))
    for index, block in enumerate(model.blocks):
        x = x + attention_by_hand(block, block.norm1(x), **additions.get(index, {}))
        x = x + block.mlp(block.norm2(x))
    return model.forward_head(model.norm(x))


def test_prefix_adds_keys_and_values(make_model, images, shaken) -> None:
    model = make_model()
    tuner = shaken(create_tuner("prefix", model, length=4))
    state = tuner.state_dict()
    additions = {
        i: {
            "keys": state[f"layers.blocks.{i}.keys"][None],
            "values": state[f"layers.blocks.{i}.values"][None],
        }
        for i in range(2)
    }
    torch.testing.assert_close(
        model(images), by_hand(model, images, additions), rtol=1e-5, atol=1e-5
    )


def test_prefix_accepts_prompts_per_image(make_model, images) -> None:
    model = make_model()
    tuner = create_tuner("prefix", model, source="provider", blocks=(0,))
    assert list(tuner.parameters()) == []
    prompts = torch.randn(
        3, 8, 48, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    expected = by_hand(
        model, images, {0: {"keys": prompts[:, :4], "values": prompts[:, 4:]}}
    )
    with tuner.using({0: prompts}):
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
        model(images).sum().backward()
    assert prompts.grad is not None
    assert bool((prompts.grad.abs().sum(dim=(1, 2)) > 0).all())
    with tuner.using(lambda block, x: (prompts[:, :4], prompts[:, 4:])):
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    with tuner.using({}):
        torch.testing.assert_close(
            model(images), by_hand(model, images, {}), rtol=1e-5, atol=1e-5
        )


def test_prefix_without_prompts_raises_with_advice(make_model, images) -> None:
    model = make_model()
    tuner = create_tuner("prefix", model, source="provider")
    with pytest.raises(
        TunerError, match=r"provider must be set .* tuner.using\(prompts\)"
    ):
        model(images)
    with (
        tuner.using({0: torch.zeros(2, 8, 48)}),
        pytest.raises(InputError, match=r"must be \(3, L, 48\)"),
    ):
        model(images)
    with (
        tuner.using({0: torch.zeros(3, 7, 48)}),
        pytest.raises(InputError, match="even number of rows"),
    ):
        model(images)
    own = create_tuner("prefix", make_model())
    with pytest.raises(TunerError, match="source='provider'"), own.using({}):
        pass


@pytest.mark.parametrize("fused", [True, False])
def test_prefix_has_no_relative_position(make_model, fused) -> None:
    """Position biases go to the image's keys, none to the added ones."""
    model = make_model("beit_base_patch16_224", depth=1)
    layer = model.blocks[0].attn
    layer.fused_attn = fused
    source = torch.Generator().manual_seed(0)
    x, keys, values = (torch.randn(3, n, 48, generator=source) for n in (17, 2, 2))
    bias = torch.cat([layer._get_rel_pos_bias()[0], torch.zeros(3, 17, 2)], dim=-1)
    q, k, v = (x @ layer.qkv.weight.T).split(48, dim=-1)
    q = q + layer.q_bias
    k = torch.cat([k, keys], dim=1)
    v = torch.cat([v + layer.v_bias, values], dim=1)
    heads = [slice(16 * head, 16 * (head + 1)) for head in range(3)]
    scores = [q[..., head] @ k[..., head].transpose(1, 2) / 4 for head in heads]
    mixed = [
        torch.softmax(score + bias[i], dim=-1) @ v[..., heads[i]]
        for i, score in enumerate(scores)
    ]
    expected = torch.cat(mixed, dim=-1) @ layer.proj.weight.T + layer.proj.bias
    tuner = create_tuner("prefix", model, source="provider")
    with tuner.using({0: (keys, values)}):
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_additive_prompts_join_the_class_token(make_model, images, shaken) -> None:
    model = make_model()
    tuner = create_tuner("additive", model)
    for tensor in tuner.state_dict().values():
        assert 0 < tensor.abs().max() <= 0.04
    state = shaken(tuner).state_dict()
    additions = {
        i: {
            "first_key": state[f"layers.blocks.{i}.key"],
            "first_value": state[f"layers.blocks.{i}.value"],
        }
        for i in range(2)
    }
    torch.testing.assert_close(
        model(images), by_hand(model, images, additions), rtol=1e-5, atol=1e-5
    )
    assert tuner.n_trainable == 2 * 2 * 48


def test_models_without_a_class_token_raise(make_model) -> None:
    with pytest.raises(UnsupportedModelError, match="must have a class token"):
        create_tuner("additive", make_model(class_token=False, global_pool="avg"))


def test_unknown_attention_raises(make_model) -> None:
    model = make_model(attn_layer="diff")
    with pytest.raises(
        UnsupportedModelError,
        match=r"attention must be one of .* got timm.*DiffAttention",
    ):
        create_tuner("prefix", model)
    model = make_model()
    model.blocks[1].attn.surprise = nn.Linear(2, 2)
    with pytest.raises(
        UnsupportedModelError,
        match=r"parts that evergrow knows, got .* with \['surprise'\]",
    ):
        create_tuner("prefix", model)
    model = make_model()
    model.blocks[1].attn.forward = lambda x: x
    with pytest.raises(UnsupportedModelError, match="something else replaced"):
        create_tuner("prefix", model)
    assert all(parameter.requires_grad for parameter in model.parameters())


@since((1, 0, 26))
@pytest.mark.parametrize(
    "given",
    [{"is_causal": True}, {"attn_mask": torch.zeros(17, 17)}],
    ids=["causal", "mask"],
)
def test_masks_raise(make_model, images, given) -> None:
    model = make_model()
    create_tuner("prefix", model)
    with pytest.raises(TunerError, match="attention must have no mask"):
        model(images, **given)
