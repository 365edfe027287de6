from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from torch import nn
from torch.nn.functional import linear, normalize

from evergrow.adapt import Adaptation, FsaConfig, TrainConfig, adapt, adapted_from
from evergrow.adapt.networks import CosineHead
from evergrow.adapt.tuners import (
    UnsupportedModelError,
    adapting_tuners,
    create_tuner,
    tuners_of,
)
from evergrow.core.errors import (
    LabelError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.core.record import read_record, write_record
from evergrow.features import ImageBackbone, create_backbone, encode, hash_weights

QUICK = FsaConfig.recipe(epochs=2, batch_size=16)


def state(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in module.state_dict().values()])


# -- adaptation ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", adapting_tuners())
def test_adapt_does_not_change_the_backbone(kind: str) -> None:
    backbone = tiny_vit()
    (items, y) = stripes(3, 8)
    flags = [parameter.requires_grad for parameter in backbone.module.parameters()]
    before = encode(backbone, items, cache=False, join=False).X
    adapted = adapt(backbone, items, y, QUICK.changed(tuner=kind))
    assert hash_weights(backbone.module) == backbone.spec.weights_hash
    assert tuners_of(backbone.module) == []
    assert [
        parameter.requires_grad for parameter in backbone.module.parameters()
    ] == flags
    np.testing.assert_array_equal(
        encode(backbone, items, cache=False, join=False).X, before
    )
    after = encode(adapted, items, cache=False, join=False).X
    assert np.abs(after - before).max() > 1e-4
    assert not any(
        parameter.requires_grad
        for parameter in [*adapted.module.parameters(), *adapted.tuner.parameters()]
    )
    # The frozen weights are shared, not copied.
    assert (
        next(adapted.module.parameters()).data_ptr()
        == next(backbone.module.parameters()).data_ptr()
    )


def test_defaults_are_the_protocol_of_ranpac() -> None:
    """Compare the settings. Tests of the loop compare the training itself."""
    assert FsaConfig() == FsaConfig(
        tuner="adapter",
        train=TrainConfig(
            epochs=20,
            batch_size=48,
            lr=0.01,
            momentum=0.9,
            weight_decay=5e-4,
            optimizer="sgd",
            schedule="cosine",
        ),
    )
    head = CosineHead(24, 3, 4, "fsa")
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    assert float(head.weight.detach().abs().max()) <= 24**-0.5
    torch.testing.assert_close(head(x), linear(normalize(x), normalize(head.weight)))


def test_heads_have_named_streams_and_tuners_keep_settings() -> None:
    assert torch.equal(CosineHead(6, 3, 0, "a").weight, CosineHead(6, 3, 0, "a").weight)
    assert not torch.equal(
        CosineHead(6, 3, 0, "a").weight, CosineHead(6, 3, 0, "b").weight
    )
    assert QUICK.changed(settings={"bottleneck": 4}).changed(tuner="ssf").settings == {}


def test_adapt_rejects_unsupported_input_before_training() -> None:
    items, y = stripes(3, 4)
    resnet = create_backbone("test_resnet", weights="random", device="cpu")
    assert isinstance(resnet, ImageBackbone)
    for kind in ("adapter", "vpt-deep", "vpt-shallow", "lora"):
        with pytest.raises(UnsupportedModelError):
            adapt(resnet, items, y, QUICK.changed(tuner=kind))
    with pytest.raises(LabelError, match="at least 2"):
        adapt(tiny_vit(), items, np.zeros(12, dtype=np.int64), QUICK)
    tuned = tiny_vit()
    create_tuner("ssf", tuned.module)
    with pytest.raises(ParameterError, match="no tuner"):
        adapt(tuned, items, y, QUICK)


def test_adapt_gives_the_same_tuner_for_labels_of_any_type() -> None:
    items, y = stripes(3, 4)
    named = adapt(tiny_vit(), items, np.array(["ant", "bee", "cat"])[y], QUICK)
    for labels in (y, y * 7 + 3):
        assert adapt(tiny_vit(), items, labels, QUICK).spec == named.spec


def test_ssf_adapts_a_resnet_and_keeps_its_statistics() -> None:
    backbone = create_backbone("test_resnet", weights="random", device="cpu", seed=1)
    assert isinstance(backbone, ImageBackbone)
    items, y = stripes(2, 9, side=32)
    adapted = adapt(
        backbone, items, y, QUICK.changed(tuner="ssf", epochs=1)
    )  # the last batch holds two images
    assert hash_weights(adapted.module) == backbone.spec.weights_hash


@pytest.mark.parametrize(
    "wrong", [{"tuner": "prefix"}, {"settings": {"rank": 4}}, {"settings": 3}]
)
def test_fsa_config_rejects_invalid_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        FsaConfig(**wrong)
    with pytest.raises(UnknownNameError, match="'epochs'"):
        FsaConfig.recipe(epoch=3)


def test_adapted_from_restores_the_adapted_backbone(tmp_path: Path) -> None:
    backbone = tiny_vit()
    (items, y) = stripes(3, 6)
    adapted = adapt(backbone, items, y, QUICK)
    assert adapted.spec.weights_hash != backbone.spec.weights_hash
    write_record(tmp_path / "adaptation", adapted.adaptation)
    adaptation = read_record(Adaptation, tmp_path / "adaptation")
    again = adapted_from(tiny_vit(), adaptation)
    assert again.spec == adapted.spec
    assert again.adaptation.describe() == adapted.adaptation.describe()
    assert FsaConfig.from_dict(adaptation.config or {}) == QUICK
    a, b = (
        encode(model, items, cache=False, join=False).X for model in (adapted, again)
    )
    np.testing.assert_array_equal(a, b)
    with pytest.raises(WeightsError, match="was adapted"):
        adapted_from(tiny_vit(seed=3), adaptation)


def test_cache_distinguishes_adapted_backbones(tmp_path: Path) -> None:
    backbone = tiny_vit()
    (items, y) = stripes(3, 6)
    first, second = (
        adapt(backbone, items, y, QUICK.changed(tuner="ssf"), seed=seed)
        for seed in (0, 1)
    )
    found = [
        encode(model, items, cache=tmp_path)
        for model in (backbone, first, second, first)
    ]
    assert [item.computed == 0 for item in found] == [False, False, False, True]
    assert not np.array_equal(found[1].X, found[2].X)
