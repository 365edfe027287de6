"""The classifier that adapts a backbone on the first task equals its public parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit

from evergrow.adapt import FsaConfig, adapt
from evergrow.core.errors import (
    LabelError,
    NotFittedError,
    ParameterError,
    UnknownNameError,
)
from evergrow.data.items import Texts
from evergrow.features import encode
from evergrow.head import HEADS
from evergrow.lab.methods import (
    FsaClassifier,
    create_method,
    list_methods,
    method_options,
)

QUICK = FsaConfig.recipe(epochs=2, batch_size=16)


def tasks(n_classes: int = 6, per_class: int = 8) -> list[tuple[Any, np.ndarray]]:
    items, y = stripes(n_classes, per_class)
    half = n_classes // 2
    return [
        (items.take(np.flatnonzero(rows)), y[rows]) for rows in (y < half, y >= half)
    ]


def test_classifier_equals_adaptation_encoding_and_head() -> None:
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
            for part in model.head_.to_archive().walk()
            for item in part.tensors.items()
        ]
        layers.append(
            next(value for name, value in tensors if name.endswith("weights"))
        )
    assert layers[0].shape == (24, 50)
    assert torch.equal(*layers)


def test_classifier_accepts_strings_in_any_order() -> None:
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


def test_method_names_and_options() -> None:
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


def test_classifier_rejects_invalid_input() -> None:
    items, y = stripes(2, 2)
    with pytest.raises(NotFittedError, match="learn something first"):
        FsaClassifier("simplecil", tiny_vit()).predict(items)
    with pytest.raises(ValueError, match="images"):
        FsaClassifier("simplecil", tiny_vit()).fit(Texts(("a", "b")), [0, 1])
    with pytest.raises(LabelError, match="one label per row"):
        FsaClassifier("simplecil", tiny_vit()).fit(items, y[:-1])


def test_every_head_can_use_fine_tuned_weights() -> None:
    items, y = stripes(4, 6)
    old = y < 2
    model = FsaClassifier("simplecil", tiny_vit(), fsa="tuned", epochs=1)
    model.fit(items.take(np.flatnonzero(old)), y[old])
    model.partial_fit(items.take(np.flatnonzero(~old)), y[~old])
    assert model.backbone_.spec.name.endswith("+full")
    assert model.cost_.trainable_parameters > 19_000
    assert model.cost_.train_gflops > 0
    assert model.predict(items).shape == y.shape


def test_fine_tuned_weights_leave_no_choice_of_a_tuner() -> None:
    with pytest.raises(ParameterError, match="adapt must be 'auto' or None"):
        FsaClassifier("simplecil", tiny_vit(), fsa="tuned", adapt="ssf").config()
