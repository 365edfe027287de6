"""Adapters against block outputs computed by hand from the blocks' own parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.adapt.tiny import patch_tokens
from torch import Tensor, nn

from evergrow.adapt.tuners import UnsupportedModelError, create_tuner


def parts(tuner: nn.Module, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    state = tuner.state_dict()
    names = ("down_weight", "down_bias", "up_weight", "up_bias")
    a, b, c, d = (state[f"layers.blocks.{index}.{name}"] for name in names)
    return a, b, c, d


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_small_patch14_reg4_dinov2", {"init_values": 0.3}),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("vit_tiny_patch16_224", {"dynamic_img_size": True}),
    ],
)
def test_adapter_adds_a_scaled_branch_of_the_stream(
    make_model, images, shaken, name, options
) -> None:
    model = make_model(name, **options)
    tuner = shaken(create_tuner("adapter", model, bottleneck=6))
    x = patch_tokens(model, images)
    for index, block in enumerate(model.blocks):
        down, down_bias, up, up_bias = parts(tuner, index)
        with tuner.disable():
            x = x + block.drop_path1(block.ls1(block.attn(block.norm1(x))))
            branch = torch.clamp(x @ down.T + down_bias, min=0) @ up.T + up_bias
            x = x + block.ls2(block.mlp(block.norm2(x))) + 0.1 * branch
    expected = model.forward_head(model.norm(x))
    torch.testing.assert_close(model(images), expected)


def test_starts_as_the_base_model(make_model, images) -> None:
    model = make_model()
    expected = model(images)
    tuner = create_tuner("adapter", model, bottleneck=64)
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
    down, down_bias, up, up_bias = parts(tuner, 0)
    assert down.abs().max() <= 48**-0.5
    assert down.std() == pytest.approx(48**-0.5 / 3**0.5, rel=0.1)
    assert not down_bias.any()
    assert not up.any()
    assert not up_bias.any()


def test_dropout_needs_model_and_tuner_in_training_mode(
    make_model, images, shaken
) -> None:
    model = make_model()
    tuner = shaken(create_tuner("adapter", model, dropout=0.5))
    evaluated = model(images)
    model.train()
    assert not torch.equal(model(images), evaluated)
    tuner.eval()
    torch.testing.assert_close(model(images), evaluated, rtol=0, atol=0)
    tuner.train()
    model.eval()
    torch.testing.assert_close(model(images), evaluated, rtol=0, atol=0)


def test_failed_block_leaves_no_stored_stream(make_model, images, shaken) -> None:
    """An aborted pass must not leave its stream for the next one."""
    model = make_model()
    tuner = shaken(create_tuner("adapter", model))
    expected = model(images)
    block = model.blocks[0]

    def fail(*_: object) -> None:
        raise MemoryError("out of it")

    handle = block.mlp.fc2.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        model(2 * images)
    handle.remove()
    assert not tuner.layers.blocks._modules["0"]._streams
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


def test_threads_have_separate_streams(make_model, shaken) -> None:
    model = make_model()
    shaken(create_tuner("adapter", model))
    batches = [
        torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        for seed in range(16)
    ]
    with torch.no_grad():
        expected = [model(batch) for batch in batches]

    def answer(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return model(batch)

    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(answer, batches), expected):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_adapter_rejects_blocks_without_norm2(make_model) -> None:
    from timm.models.vision_transformer import ParallelScalingBlock

    model = make_model(block_fn=ParallelScalingBlock)
    with pytest.raises(
        UnsupportedModelError,
        match=r"blocks.0 must have a part 'norm2', got a ParallelScalingBlock",
    ):
        create_tuner("adapter", model)
    assert all(parameter.requires_grad for parameter in model.parameters())
