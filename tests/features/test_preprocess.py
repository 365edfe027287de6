"""Preprocessing equals the transforms of timm and torchvision bit for bit."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.features import Preprocessing, create_backbone, preprocess

SIZES = [
    (300, 400),
    (401, 299),
    (224, 224),
    (256, 256),
    (17, 33),
    (1, 1),
    (50, 51),
    (640, 91),
]


def make_image(height: int, width: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng([seed, height, width])
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def some_configs() -> list[str]:
    """Return a model for every combination of timm's preprocessing settings."""
    seen: dict[tuple[object, ...], str] = {}
    for name in timm.list_models(pretrained=True):
        c = timm.get_pretrained_cfg(name)
        if max(c.input_size) <= 300 or c.input_size[1] != c.input_size[2]:
            seen.setdefault(
                (c.crop_mode, c.crop_pct, c.interpolation, c.mean, c.std, c.input_size),
                name,
            )
    return list(seen.values())


@pytest.mark.parametrize("size", SIZES)
def test_timm_preset_is_timms_transform(size: tuple[int, int]) -> None:
    image = make_image(*size)
    names = some_configs()
    assert len(names) > 20
    for name in names[:: 1 if size in SIZES[:2] else 4]:
        config = resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
        )
        expected = create_transform(**config, is_training=False)(image)
        assert torch.equal(Preprocessing.from_timm(config)(image), expected), (
            name,
            config,
        )


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize(
    ("shape", "kind"), [((96, 96), "bicubic"), ((64, 96), "bilinear")]
)
def test_every_crop_mode_is_timms(mode: str, shape: tuple[int, int], kind: str) -> None:
    # Before its version 1.0.31 timm took this filter for crops that are not square,
    # whatever the model asked for.
    config = {
        "input_size": (3, *shape),
        "crop_pct": 0.9,
        "crop_mode": mode,
        "interpolation": kind,
    }
    config |= {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}
    for size in SIZES[:-3]:
        image = make_image(*size)
        expected = create_transform(**config, is_training=False)(image)
        assert torch.equal(Preprocessing.from_timm(config)(image), expected)


@pytest.mark.parametrize("size", SIZES)
def test_pilot_presets_are_the_published_transforms(size: tuple[int, int]) -> None:
    image = make_image(*size)
    for preset, resize in (
        (Preprocessing.pilot(), 256),
        (Preprocessing.pilot(resize=224), 224),
    ):
        published = transforms.Compose(
            [
                transforms.Resize(resize, interpolation=InterpolationMode.BICUBIC),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
            ]
        )
        assert torch.equal(preset(image), published(image))


def test_presets_follow_the_size_of_the_model() -> None:
    assert Preprocessing.pilot(518).resize == (592, 592)
    backbone = create_backbone(
        "test_vit", weights="random", preset="pilot", device="cpu"
    )
    assert backbone.spec.preset == "pilot"
    assert backbone.transform == Preprocessing.pilot(160)
    cifar = create_backbone(
        "test_vit", weights="random", preset="pilot-cifar", device="cpu", img_size=64
    )
    assert cifar.transform == Preprocessing.pilot(64, 64)


def test_a_long_strip_is_not_blown_up(monkeypatch: pytest.MonkeyPatch) -> None:
    strip = make_image(
        2, 60_000
    )  # resized whole it would have 2 thousand million pixels
    assert tuple(Preprocessing.pilot()(strip).shape) == (3, 224, 224)
    image = make_image(91, 300)
    whole = Preprocessing.pilot()(image)
    monkeypatch.setattr(preprocess, "_RESIZED_LIMIT", 0)
    part = Preprocessing.pilot()(image)
    assert float((whole - part).abs().max()) <= 1.01 / 255


def test_settings_survive_json_and_pickle() -> None:
    original = Preprocessing(
        (64, 96), (70, 100), "border", "lanczos", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    )
    assert (
        Preprocessing.from_dict(json.loads(json.dumps(original.to_dict()))) == original
    )
    copy = pickle.loads(pickle.dumps(original))
    assert torch.equal(copy(make_image(50, 60)), original(make_image(50, 60)))
    assert len(pickle.dumps(original)) < 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (0, 4)}, "size must be an integer >= 1"),
        ({"size": 224}, "size must have 2 numbers"),
        ({"std": (0.0, 1.0, 1.0)}, "std must be a number > 0"),
        ({"crop_mode": "centre"}, "crop_mode must be one of"),
        ({"interpolation": "cubic"}, "interpolation must be one of"),
    ],
)
def test_preprocessing_rejects_invalid_settings(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        Preprocessing(**change)  # type: ignore[arg-type]


def test_descriptions_with_other_keys_and_images_in_other_modes() -> None:
    with pytest.raises(FileFormatError, match="lacks"):
        Preprocessing.from_dict({"size": [1, 1]})
    with pytest.raises(InputError, match="in RGB"):
        Preprocessing()(Image.new("L", (4, 4)))
