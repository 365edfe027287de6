"""Prompts against a loop over the blocks written by hand."""

from __future__ import annotations

import pytest
import torch
from tests.adapt.tiny import patch_tokens

from evergrow.adapt.tuners import TunerError, UnsupportedModelError, create_tuner

VARIANTS = [
    ("vit_tiny_patch16_224", {}),
    ("vit_small_patch14_reg4_dinov2", {"init_values": 0.3}),
    ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
    ("vit_tiny_patch16_224", {"dynamic_img_size": True}),
    ("deit_tiny_distilled_patch16_224", {}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("deep", [True, False])
def test_prompts_are_appended_and_dropped_in_every_block_or_in_all(
    make_model, images, shaken, name, options, deep
) -> None:
    model = make_model(name, **options)
    tuner = shaken(create_tuner("vpt-deep" if deep else "vpt-shallow", model, tokens=3))
    prompts = [
        value.expand(len(images), -1, -1) for value in tuner.state_dict().values()
    ]
    x = patch_tokens(model, images)
    last = len(model.blocks) - 1
    with tuner.disable():
        for index, block in enumerate(model.blocks):
            x = block(
                torch.cat([x, prompts[index]], dim=1) if deep or index == 0 else x
            )
            if deep or index == last:
                x = x[:, :-3]
            else:
                x = x
        expected = model.forward_head(model.norm(x))
    torch.testing.assert_close(model(images), expected)
    assert model.forward_features(images).shape == x.shape


@pytest.mark.parametrize("name", ["vpt-deep", "vpt-shallow"])
def test_rotary_positions_do_not_change_with_prompts(
    make_model, images, shaken, name
) -> None:
    """With prompts masked by huge negative keys, the output equals the base model's."""
    model = make_model("vit_small_patch16_dinov3", init_values=0.5)
    expected = model(images)
    shaken(create_tuner(name, model, tokens=3))
    assert not torch.allclose(model(images), expected, atol=1e-4)

    from evergrow.lab.tuners.attention import AttentionEdit, AttentionSite

    class IgnoreTail(AttentionEdit):
        def heads(self, x, q, k, v):
            q = torch.cat([q, torch.ones_like(q[..., :1])], dim=-1)
            blind = torch.zeros_like(k[..., :1])
            blind[:, :, -3:] = -1e6
            k = torch.cat([k, blind], dim=-1)
            # One more channel changes the scale of the dot products; take that back.
            return q * (q.shape[-1] / (q.shape[-1] - 1)) ** 0.5, k, v

    for block in model.blocks:
        AttentionSite.of(block.attn).add(IgnoreTail())
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


def test_prompts_start_at_zero_by_default(make_model) -> None:
    state = create_tuner("vpt-deep", make_model()).state_dict()
    assert [tuple(tensor.shape) for tensor in state.values()] == [(5, 48), (5, 48)]
    assert not any(tensor.any() for tensor in state.values())
    spread = create_tuner("vpt-deep", make_model(), tokens=50, std=0.02).state_dict()[
        "layers.blocks.0.prompts"
    ]
    assert spread.std() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    "name", ["vit_relpos_small_patch16_224", "beit_base_patch16_224"]
)
def test_relative_positions_raise(make_model, name) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"blocks.0 must attend to any number of tokens"
    ):
        create_tuner("vpt-deep", make_model(name))


def test_masks_raise(make_model, images) -> None:
    model = make_model()
    create_tuner("vpt-deep", model)
    with pytest.raises(TunerError, match="attn_mask must be None"):
        model(images, attn_mask=torch.zeros(17, 17))
