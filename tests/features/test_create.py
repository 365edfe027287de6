"""Backbones by name and from modules: features, modes, seeds, options, descriptions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.features import (
    BackboneSpec,
    ImageBackbone,
    Preprocessing,
    backbone_from_spec,
    create_backbone,
    decode_image,
    hash_weights,
)
from evergrow.features.catalog import check_buildable

IMAGE = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
TINY = [name for name in timm.list_models("test_*") if "naflex" not in name]


def image_backbone(name: str | nn.Module, **options: object) -> ImageBackbone:
    backbone = create_backbone(name, device="cpu", **options)
    assert isinstance(backbone, ImageBackbone)
    return backbone


@pytest.mark.parametrize("name", TINY)
def test_every_family_gives_its_pooled_features(name: str) -> None:
    backbone = image_backbone(name, weights="random")
    batch = torch.stack([backbone.transform(decode_image(IMAGE))] * 2)
    features = backbone.encode(batch)
    model = backbone.module
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(batch), pre_logits=True)
    assert features.shape == (2, backbone.n_features)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-3)
    assert not any(p.requires_grad for p in model.parameters())
    assert backbone.encode(batch[:0]).shape == (0, backbone.n_features)


def test_dinov2_takes_its_own_image_size_unless_told() -> None:
    name = "vit_base_patch14_dinov2.lvd142m"
    assert image_backbone(name, weights="random", depth=1).transform.size == (518, 518)
    assert image_backbone(
        name, weights="random", depth=1, img_size=98
    ).transform.size == (98, 98)
    assert image_backbone(
        "test_resnet", weights="random", img_size=64
    ).transform.size == (64, 64)


def test_random_weights_depend_on_the_seed_and_leave_the_global_generator_alone() -> (
    None
):
    state = torch.random.get_rng_state()
    first = image_backbone("test_vit", weights="random", seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(5)  # another global state must not matter
    again = image_backbone("test_vit", weights="random", seed=1)
    other = image_backbone("test_vit", weights="random", seed=2)
    assert first.spec == again.spec
    assert first.spec.weights_hash != other.spec.weights_hash


def test_features_agree_on_every_device(device: torch.device) -> None:
    for name in ("test_vit", "test_efficientnet"):
        backbone = image_backbone(name, weights="random")
        batch = torch.rand(2, 3, 160, 160)
        weights_hash = backbone.spec.weights_hash
        expected = backbone.encode(batch)
        moved = backbone.to(device)
        assert moved is backbone
        features = moved.encode(batch)
        assert features.device.type == device.type
        torch.testing.assert_close(features.cpu(), expected, atol=1e-3, rtol=1e-3)
        assert hash_weights(backbone.module) == weights_hash


def test_encode_evaluates_whatever_the_mode_and_leaves_it() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    module.train()
    module[1].eval()
    backbone = image_backbone(module)
    mean = module[1].running_mean.clone()
    batch = torch.rand(3, 3, 32, 32)
    first = backbone.encode(batch)
    second = backbone.encode(batch)
    assert torch.equal(first, second)
    assert torch.equal(module[1].running_mean, mean)
    assert [part.training for part in module] == [True, False, True, True, True]


def test_features_are_ordinary_tensors_that_a_probe_can_be_trained_on() -> None:
    backbone = image_backbone("test_resnet", weights="random")
    probe = nn.Linear(backbone.n_features, 2)
    probe(backbone.encode(torch.rand(2, 3, 64, 64))).sum().backward()
    assert probe.weight.grad is not None


def test_a_module_becomes_a_backbone() -> None:
    class Mean(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean(dim=(2, 3))

    preset = Preprocessing.pilot(20)
    backbone = image_backbone(Mean(), preset=preset)
    assert (backbone.spec.name, backbone.spec.weights, backbone.spec.preset) == (
        "Mean",
        "module",
        "custom",
    )
    assert backbone.n_features == 3
    batch = torch.rand(4, 3, 20, 20)
    torch.testing.assert_close(backbone.encode(batch), batch.mean(dim=(2, 3)))
    same = backbone_from_spec(backbone.spec, weights=Mean(), device="cpu")
    assert same.spec == backbone.spec
    assert image_backbone(Mean()).transform == Preprocessing()
    with pytest.raises(
        WeightsError, match="must be the module that the backbone Mean was made from"
    ):
        backbone_from_spec(backbone.spec, device="cpu")
    with pytest.raises(ParameterError, match="must be left out for a module"):
        create_backbone(Mean(), weights="random")


def test_a_users_timm_module_brings_its_preprocessing() -> None:
    module = timm.create_model("test_vit", num_classes=0)
    backbone = image_backbone(module)
    assert backbone.transform.size == (160, 160)
    assert backbone.module is module
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv2d(3, 4, 3), "one vector per image"),
        (nn.Linear(7, 2), "must take images of shape"),
        (nn.LSTM(224, 2), "must take images|must return a tensor"),
    ],
)
def test_modules_that_are_no_backbones(module: nn.Module, message: str) -> None:
    with pytest.raises((ParameterError, InputError), match=message):
        create_backbone(module, device="cpu")


@pytest.mark.parametrize(
    "batch",
    [
        torch.rand(3, 32, 32),
        torch.rand(1, 1, 32, 32),
        torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
        ["a text"],
    ],
)
def test_encode_rejects_other_batches(batch: object) -> None:
    with pytest.raises(InputError, match="batch must be a floating-point tensor"):
        image_backbone("test_resnet", weights="random").encode(batch)  # type: ignore[arg-type]


def test_descriptions_survive_json_and_give_the_backbone_back() -> None:
    backbone = image_backbone(
        "test_vit", weights="random", preset="pilot", seed=3, img_size=64, recipe="rich"
    )
    spec = BackboneSpec.from_dict(json.loads(json.dumps(backbone.spec.to_dict())))
    assert spec == backbone.spec
    again = backbone_from_spec(spec, device="cpu")
    batch = torch.rand(2, 3, 64, 64)
    assert again.spec == spec
    assert torch.equal(again.encode(batch), backbone.encode(batch))
    assert again.transform == backbone.transform
    assert "recipe" not in backbone.with_recipe("final").spec.to_dict()


def test_a_description_does_not_take_other_weights_and_says_where_its_file_was() -> (
    None
):
    spec = image_backbone("test_vit", weights="random", seed=3).spec
    for changes, message in (
        (
            {"options": {"seed": 4}},
            f"must be those that the model was made with.*{spec.weights_hash}",
        ),
        (
            {"weights": "file:/no/such/file.pth", "options": {}},
            r"/no/such/file\.pth does not exist: give weights=",
        ),
    ):
        with pytest.raises(WeightsError, match=message):
            backbone_from_spec(
                BackboneSpec.from_dict(spec.to_dict() | changes), device="cpu"
            )


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet1O1", "'resnet101'"),
        ("vit_base_patch16_224.augreg_in21", "'vit_base_patch16_224.augreg_in21k'"),
        ("local-dir:/tmp", ""),
        ("timm/resnet101", "resnet101"),
    ],
)
def test_unknown_names_come_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(
        UnknownNameError, match=f"There is no backbone '{name}'; .*{near}"
    ):
        create_backbone(name)


def test_old_names_of_timm_are_understood() -> None:
    with pytest.raises(WeightsError, match="weights of"):
        create_backbone("vit_base_patch16_224_in21k", weights="bundled")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dimm": 3}, "model options must fit test_vit, got {'embed_dimm': 3}"),
        ({"img_size": 0}, "img_size must be an integer >= 1"),
        ({"num_classes": 10}, "must not set num_classes"),
        ({"norm_layer": nn.LayerNorm}, "must be plain values"),
        ({"preset": "pilots"}, "preset must be one of"),
        ({"preset": Preprocessing.pilot(50)}, "must take images of shape"),
        ({"seed": "x"}, "seed must be an integer"),
    ],
)
def test_create_backbone_rejects_invalid_options(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        create_backbone("test_vit", weights="random", device="cpu", **options)
    for name in ("", 3, None):
        with pytest.raises(ParameterError, match="must be a name or a torch module"):
            create_backbone(name)  # type: ignore[arg-type]


# -- networks out of strangers' files --------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"embed_dim": 4096, "depth": 200, "num_heads": 4},
            "must leave it a network of its size",
        ),
        ({"depth": 10**9}, "'depth' of test_vit must be at most 256"),
        ({"img_size": 10**6}, "'img_size' of test_vit must be at most 4096"),
        (
            {"img_size": 4096, "patch_size": 1, "embed_dim": 64},
            "must leave it a network of its size",
        ),
        ({"img_size": float("nan")}, "'img_size' of test_vit must be at most 4096"),
        ({"mlp_ratio": [1.0] * 300}, "must have at most 256 parts"),
    ],
)
def test_a_network_far_larger_than_its_architecture_is_refused(
    options: dict[str, Any], message: str
) -> None:
    spec = create_backbone("test_vit", weights="random", device="cpu").spec
    with pytest.raises(FileFormatError, match=message):
        backbone_from_spec(replace(spec, options=options), device="cpu")


def test_a_network_that_cannot_be_counted_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create(*_: object, **__: object) -> object:
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(
        FileFormatError, match="must be such that its size is known before it is built"
    ):
        check_buildable("test_vit", {"embed_dim": 4096})
