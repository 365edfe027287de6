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
from evergrow.adapt.fsa import CosineHead
from evergrow.adapt.tuners import (
    UnsupportedModelError,
    adapting_tuners,
    create_tuner,
    tuners_of,
)
from evergrow.core.errors import (
    LabelError,
    NotFittedError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.core.record import read_record, write_record
from evergrow.data.items import Texts
from evergrow.features import ImageBackbone, create_backbone, encode, hash_weights
from evergrow.head import HEADS
from evergrow.lab.checks.properties import every_part
from evergrow.lab.methods import (
    FsaClassifier,
    create_method,
    list_methods,
    method_options,
)

QUICK = FsaConfig.recipe(epochs=2, batch_size=16)


def state(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in module.state_dict().values()])


# -- adaptation ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", adapting_tuners())
def test_adaptation_leaves_the_backbone_as_it_was(kind: str) -> None:
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


def test_the_protocol_is_ranpacs() -> None:
    """Its settings; that the loop does what torch's own tools do is among the tests of the loop."""
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


def test_heads_have_streams_and_tuners_settings_of_their_own() -> None:
    assert torch.equal(CosineHead(6, 3, 0, "a").weight, CosineHead(6, 3, 0, "a").weight)
    assert not torch.equal(
        CosineHead(6, 3, 0, "a").weight, CosineHead(6, 3, 0, "b").weight
    )
    assert QUICK.changed(settings={"bottleneck": 4}).changed(tuner="ssf").settings == {}


def test_what_cannot_be_adapted_is_refused_before_training() -> None:
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


def test_labels_of_any_kind_train_what_their_numbers_do() -> None:
    items, y = stripes(3, 4)
    named = adapt(tiny_vit(), items, np.array(["ant", "bee", "cat"])[y], QUICK)
    for labels in (y, y * 7 + 3):
        assert adapt(tiny_vit(), items, labels, QUICK).spec == named.spec


def test_ssf_serves_a_resnet_and_leaves_its_statistics() -> None:
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
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        FsaConfig(**wrong)
    with pytest.raises(UnknownNameError, match="'epochs'"):
        FsaConfig.recipe(epoch=3)


def test_an_adapted_backbone_can_be_made_again(tmp_path: Path) -> None:
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
    with pytest.raises(WeightsError, match="trained on"):
        adapted_from(tiny_vit(seed=3), adaptation)


def test_caches_tell_adapted_backbones_apart(tmp_path: Path) -> None:
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


# -- classifier ------------------------------------------------------------------------


def tasks(n_classes: int = 6, per_class: int = 8) -> list[tuple[Any, np.ndarray]]:
    items, y = stripes(n_classes, per_class)
    half = n_classes // 2
    return [
        (items.take(np.flatnonzero(rows)), y[rows]) for rows in (y < half, y >= half)
    ]


def test_fit_and_partial_fit_are_adaptation_extraction_and_head() -> None:
    (first, y1), (second, y2) = tasks()
    backbone = tiny_vit()
    model = FsaClassifier(
        "ranpac", backbone, fsa=QUICK, adapt="ssf", random_state=3, n_units=60
    )
    model.fit(first, y1).partial_fit(second, y2)
    adapted = adapt(backbone, first, y1, QUICK.changed(tuner="ssf"), seed=3)
    head = HEADS["ranpac"](n_units=60, random_state=3, device="cpu")
    for items, y in ((first, y1), (second, y2)):
        head.partial_fit(encode(adapted, items, cache=False, join=False).X, y)
    features = encode(adapted, second, cache=False, join=False).X
    np.testing.assert_array_equal(
        model.decision_function(second), head.decision_function(features)
    )
    assert model.backbone_.spec == adapted.spec
    # Going on with the public parts is the same as going on with the classifier.
    np.testing.assert_array_equal(
        model.head_.predict(encode(model.backbone_, second, cache=False, join=False).X),
        model.predict(second),
    )


def test_more_epochs_do_not_change_the_random_projection() -> None:
    ((items, y), _) = tasks()
    layers = []
    for epochs in (1, 3):
        model = FsaClassifier(
            "ranpac", tiny_vit(), fsa=QUICK, epochs=epochs, n_units=50
        ).fit(items, y)
        tensors = [
            item
            for part in every_part(model.head_.to_archive())
            for item in part.tensors.items()
        ]
        layers.append(
            next(value for name, value in tensors if name.endswith("weights"))
        )
    assert layers[0].shape == (24, 50)
    assert torch.equal(*layers)


def test_labels_may_be_strings_in_any_order_of_arrival() -> None:
    (first, y1), (second, y2) = tasks(4)
    names = np.array(["zebra", "ant", "moth", "bee"])
    model = FsaClassifier("simplecil", tiny_vit(), adapt="ssf", epochs=1)
    model.fit(first, names[y1]).partial_fit(second, names[y2])
    assert model.classes_.tolist() == ["ant", "bee", "moth", "zebra"]
    assert model.arrival_.tolist() == ["ant", "zebra", "bee", "moth"]
    scores = model.decision_function(second)
    np.testing.assert_array_equal(
        model.classes_[scores.argmax(axis=1)], model.predict(second)
    )
    np.testing.assert_array_equal(
        model.predict(second),
        model.head_.predict(model._features(model.backbone_, second)),
    )
    with pytest.raises(LabelError, match="strings as before"):
        model.partial_fit(second, y2)
    assert len(model.classes_) == 4


def test_names_and_options() -> None:
    assert {f"{name}+fsa" for name in HEADS.names()} <= set(list_methods())
    assert (
        method_options("ranpac+fsa").items()
        >= {"adapt": "auto", "fsa": "ranpac", "n_units": 10_000}.items()
    )
    model = create_method("ranpac+fsa", n_units=30, adapt="lora")
    assert model.get_params()["n_units"] == 30
    assert model.set_params(n_units=20).head_options == {"n_units": 20}
    items, y = stripes(2, 2)
    with pytest.raises(UnknownNameError, match="'n_units'"):
        FsaClassifier("ranpac", tiny_vit(), n_unit=3).fit(items, y)
    with pytest.raises(ParameterError, match="adapt must be one of"):
        FsaClassifier("ranpac", tiny_vit(), adapt="adaptor").fit(items, y)
    with pytest.raises(ParameterError, match="n_units"):
        FsaClassifier("ranpac", tiny_vit(), n_units=-3).fit(items, y)


def test_wrong_input_is_refused() -> None:
    items, y = stripes(2, 2)
    with pytest.raises(NotFittedError, match="learn something first"):
        FsaClassifier("simplecil", tiny_vit()).predict(items)
    with pytest.raises(ValueError, match="images"):
        FsaClassifier("simplecil", tiny_vit()).fit(Texts(("a", "b")), [0, 1])
    with pytest.raises(LabelError, match="one label per row"):
        FsaClassifier("simplecil", tiny_vit()).fit(items, y[:-1])
