"""Names, settings, switching and files of all tuners."""

from __future__ import annotations

import copy

import pytest
import torch

from evergrow.adapt.tuners import (
    TUNERS,
    TunerError,
    UnsupportedModelError,
    create_tuner,
    tuners_of,
)
from evergrow.core.errors import EvergrowError, ParameterError, UnknownNameError
from evergrow.core.record import write_record


def test_unknown_names_and_settings_name_the_nearest(make_model) -> None:
    with pytest.raises(UnknownNameError, match="nearest: 'adapter'"):
        create_tuner("adaptor", make_model())
    with pytest.raises(
        UnknownNameError, match="got 'bottlneck'; nearest: 'bottleneck'"
    ):
        create_tuner("adapter", make_model(), bottlneck=3)
    with pytest.raises(UnknownNameError, match="nearest: 'vpt-deep'"):
        create_tuner("vpt", make_model())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("adapter", {"bottleneck": 0}, "bottleneck must be an integer >= 1, got 0"),
        ("adapter", {"dropout": 1.0}, "dropout must be a number >= 0 and < 1, got 1.0"),
        ("prefix", {"blocks": (0, 0)}, "blocks must be None or distinct block numbers"),
        ("prefix", {"blocks": ()}, "blocks must be None or distinct block numbers"),
        ("prefix", {"blocks": (2,)}, "blocks must be numbers below 2"),
        ("lora", {"rank": 1.5}, "rank must be an integer >= 1, got 1.5"),
        ("lora", {"targets": "qv"}, "targets must be distinct names"),
        ("ssf", {"std": -1}, "std must be a number >= 0, got -1"),
        ("vpt-deep", {"tokens": 0}, "tokens must be an integer >= 1, got 0"),
        ("prefix", {"source": "pool"}, "source must be one of 'own', 'provider'"),
        ("sdlora", {"magnitude": float("nan")}, "magnitude must be a number"),
        ("additive", {"std": None}, "std must be a number >= 0, got None"),
    ],
)
def test_create_tuner_rejects_settings_out_of_range(
    make_model, name, settings, message
) -> None:
    model = make_model()
    with pytest.raises(ParameterError, match=message):
        create_tuner(name, model, **settings)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_create_tuner_rejects_invalid_models_and_seeds(make_model) -> None:
    with pytest.raises(
        ParameterError, match=r"model must be a torch.nn.Module, got str"
    ):
        create_tuner("adapter", "vit_tiny_patch16_224")
    with pytest.raises(ParameterError, match="seed must be an integer"):
        create_tuner("adapter", make_model(), seed=0.5)


@pytest.mark.parametrize("name", [name for name in TUNERS.names() if name != "ssf"])
def test_create_tuner_rejects_models_without_blocks(make_model, name) -> None:
    model = make_model("test_resnet", small=False)
    with pytest.raises(
        UnsupportedModelError, match=r"must be a vision transformer .* got ResNet"
    ):
        create_tuner(name, model)
    assert tuners_of(model) == []
    assert issubclass(UnsupportedModelError, EvergrowError)
    assert issubclass(UnsupportedModelError, TypeError)


def test_removed_tuner_keeps_its_parameters(make_model, tmp_path) -> None:
    tuner = create_tuner("lora", make_model())
    tuner.remove()
    tuner.remove()
    write_record(tmp_path / "tuner.safetensors", tuner.saved())
    assert tuner.removed
    assert not tuner.enabled
    with pytest.raises(TunerError, match="it was removed: create a new one"):
        tuner.enable()


def test_copied_model_has_its_own_tuners(make_model, images, shaken) -> None:
    for name in TUNERS.names():
        model = make_model()
        tuner = shaken(create_tuner(name, model))
        expected = model(images)
        twin = copy.deepcopy(model)
        (copied,) = tuners_of(twin)
        tuner.disable()
        torch.testing.assert_close(twin(images), expected, rtol=0, atol=0, msg=name)
        copied.remove()
        torch.testing.assert_close(
            twin(images), model(images), rtol=0, atol=0, msg=name
        )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", TUNERS.names())
def test_tuners_work_on_a_gpu(make_model, images, shaken, name) -> None:
    model = make_model()
    expected = (shaken(create_tuner(name, model)), model(images))[1]
    there = make_model().cuda()
    tuner = shaken(create_tuner(name, there))
    assert all(parameter.is_cuda for parameter in tuner.parameters())
    torch.testing.assert_close(
        there(images.cuda()).cpu(), expected, rtol=1e-3, atol=1e-3
    )
    with torch.autocast("cuda", dtype=torch.float16):
        answer = there(images.cuda())
    answer.float().square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in tuner.parameters())
    torch.testing.assert_close(answer.float().cpu(), expected, rtol=0.1, atol=0.1)
    there.cpu()
    tuner.cpu()
    torch.testing.assert_close(there(images), expected, rtol=1e-4, atol=1e-4)
