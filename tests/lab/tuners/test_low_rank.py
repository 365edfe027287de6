"""Low-rank additions against weights that have them added by hand."""

from __future__ import annotations

import copy

import pytest
import torch

from evergrow.adapt.tuners import UnsupportedModelError, create_tuner
from evergrow.core.errors import InputError, ParameterError


def add_to_weights(model, deltas) -> None:
    """Add (out, in) matrices to the named maps, fused or not."""
    for name, delta in deltas.items():
        path, _, target = name.rpartition(".")
        owner = model.get_submodule(path)
        if target in ("q", "k", "v") and getattr(owner, "qkv", None) is not None:
            rows = len(owner.qkv.weight) // 3
            start = "qkv".index(target) * rows
            owner.qkv.weight.data[start : start + rows] += delta
        else:
            if target in ("q", "k", "v"):
                layer = getattr(owner, f"{target}_proj")
            else:
                layer = getattr(owner, target)
            layer.weight.data += delta


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_small_patch14_reg4_dinov2", {"init_values": 0.3}),
        ("vit_tiny_patch16_224", {"qk_norm": True}),
        (
            "eva02_tiny_patch14_224",
            {},
        ),  # fused, with the bias added outside of the projection
        ("eva02_base_patch14_224", {}),  # separate projections
        ("beit_base_patch16_224", {"init_values": 0.3}),
    ],
)
@pytest.mark.parametrize("targets", [("q", "v"), ("q", "k", "v", "proj", "fc2")])
def test_lora_is_ba_added_to_the_weights(
    make_model, images, shaken, name, options, targets
) -> None:
    model = make_model(name, **options)
    tuner = shaken(create_tuner("lora", model, rank=3, alpha=6, targets=targets))
    state = tuner.state_dict()
    slots = sorted({key.removeprefix("layers.").rpartition(".")[0] for key in state})
    assert len(slots) == 2 * len(targets)
    by_hand = make_model(name, **options)
    base = by_hand(images)
    add_to_weights(
        by_hand,
        {s: 2.0 * state[f"layers.{s}.B"] @ state[f"layers.{s}.A"] for s in slots},
    )
    assert not torch.allclose(base, model(images), atol=1e-3)
    torch.testing.assert_close(model(images), by_hand(images), rtol=1e-4, atol=1e-5)


def test_lora_starts_as_the_base_model(make_model, images) -> None:
    model = make_model()
    expected = model(images)
    state = create_tuner("lora", model).state_dict()
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
    a = state["layers.blocks.0.attn.q.A"]
    b = state["layers.blocks.0.attn.q.B"]
    assert a.shape == (10, 48)
    assert b.shape == (48, 10)
    assert not b.any()
    assert 0.9 * 48**-0.5 < a.abs().max() <= 48**-0.5
    assert not torch.equal(a, state["layers.blocks.0.attn.v.A"])


def test_gated_mlps_have_both_first_maps_tuned(make_model) -> None:
    names = create_tuner(
        "lora", make_model("eva02_base_patch14_224"), targets=("fc1",)
    ).state_dict()
    tuned = {
        name.split(".")[4] for name in names if name.startswith("layers.blocks.0.mlp")
    }
    assert tuned == {"fc1_g", "fc1_x"}


def test_unsupported_blocks_and_unknown_targets_raise(make_model) -> None:
    from timm.models.vision_transformer import ParallelScalingBlock

    with pytest.raises(UnsupportedModelError, match="must have a part 'attn'"):
        create_tuner("lora", make_model(block_fn=ParallelScalingBlock))
    with pytest.raises(
        ParameterError, match=r"targets must be distinct names .* got 'w'"
    ):
        create_tuner("lora", make_model(), targets=("q", "w"))


def directions(tuner) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    state = {
        key.removeprefix("layers."): tensor
        for key, tensor in tuner.state_dict().items()
    }
    return {
        key[:-2]: (state[key].clone(), state[key[:-1] + "B"].clone())
        for key in state
        if key.endswith(".A")
    }


def test_sdlora_sums_unit_directions_with_shared_magnitudes(
    make_model, images, shaken
) -> None:
    model = make_model()
    tuner = create_tuner("sdlora", model, rank=3)
    history = []
    for task, rank in enumerate((3, 2, 4)):
        if task:
            tuner.start_task(rank)
        shaken(tuner)
        history.append(directions(tuner))
    magnitudes = tuner.magnitudes.detach()
    assert magnitudes.shape == (3,)
    by_hand = make_model()
    deltas = {}
    for slot in history[0]:
        a, b = history[-1][slot]
        total = magnitudes[-1] * b @ a
        for magnitude, earlier in zip(magnitudes, history[:-1]):
            a, b = earlier[slot]
            total = total + magnitude * (b @ a) / (a.norm() * b.norm())
        deltas[slot] = total
    add_to_weights(by_hand, deltas)
    torch.testing.assert_close(model(images), by_hand(images), rtol=1e-4, atol=1e-5)


def test_sdlora_resets_magnitudes_and_direction_per_task(make_model, shaken) -> None:
    model = make_model()
    tuner = create_tuner("sdlora", model, rank=3)
    first = directions(tuner)
    shaken(tuner)
    tuner.start_task()
    torch.testing.assert_close(tuner.magnitudes.detach(), torch.tensor([0.8, 0.8]))
    second = directions(tuner)
    for slot, (a, b) in second.items():
        assert not b.any()
        assert not torch.equal(a, first[slot][0])
    trainable = {
        name for name, parameter in tuner.named_parameters() if parameter.requires_grad
    }
    assert trainable == {
        "scalars.values",
        *(f"layers.{slot}.{m}" for slot in second for m in "AB"),
    }


def test_sdlora_takes_any_number_of_tasks(make_model, images, shaken) -> None:
    model = make_model()
    tuner = create_tuner("sdlora", model, rank=1)
    for _ in range(40):
        shaken(tuner)
        tuner.start_task()
    assert tuner.n_tasks == 41
    assert torch.isfinite(model(images)).all()


def test_sdlora_keeps_an_untrained_direction_at_zero(make_model, images) -> None:
    model = make_model()
    expected = model(images)
    create_tuner("sdlora", model).start_task()
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


def test_sdlora_rejects_a_contradictory_state(make_model, images, shaken) -> None:
    model = make_model()
    tuner = shaken(create_tuner("sdlora", model, rank=3))
    expected = model(images)
    state = copy.deepcopy(dict(tuner.state_dict()))
    with pytest.raises(InputError, match="the task of every row"):
        tuner.load_state_dict({**state, "scalars.values": torch.zeros(2)})
    with pytest.raises(InputError, match="must have 'layers"):
        tuner.load_state_dict({**state, "scalars.task": torch.tensor([0, 0])})
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
