"""A learner on feature blocks joins them alike from every source and keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapt.tiny import stripes, tiny_vit
from tests.commands import evergrow
from tests.learner.toys import Colours, Letters

from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import (
    FileFormatError,
    InputError,
    MergeError,
    ParameterError,
)
from evergrow.data import Dataset, save_features
from evergrow.data.feature_blocks import join_blocks
from evergrow.features import create_backbone, encode
from evergrow.features.encoding import featurize
from evergrow.head import Classifier
from evergrow.learner import empty_copy
from evergrow.learner.edits import backbone_differences
from evergrow.learner.learner import Learner

UNITS = {"n_units": 30}
BLOCKS = ["final", "mean@-1", "cls@-2"]


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    items, y = stripes(3, 8)
    return items.pixels, y


def learner(recipe: Any = "rich", **more: Any) -> Learner:
    return Learner(tiny_vit(), features=recipe, options=UNITS, **more)


def test_the_head_gets_joined_blocks_and_is_told_so(data: Any) -> None:
    images, y = data
    made = learner(BLOCKS).fit(data)
    backbone = tiny_vit().with_recipe(BLOCKS)
    raw = encode(backbone, stripes(3, 8)[0], cache=False, join=False).X
    expected = Classifier(n_units=30, random_state=0, blocks=(24, 24, 24))
    expected.fit(join_blocks(raw, (24, 24, 24)), y.astype(str))
    assert made.head_.model_.normalization == "none"
    assert made.state_.describe()["backbone"]["recipe"]["widths"] == [24, 24, 24]
    np.testing.assert_allclose(
        made.decision_function(images),
        expected.class_scores(join_blocks(raw, (24,) * 3)),
    )
    few = made.encode(images[:2])  # which go through the backbone at once
    np.testing.assert_allclose(
        few.X, join_blocks(raw, (24,) * 3)[:2], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("backbone", ["test_vit", "test_vit+test_resnet"])
def test_a_saved_model_has_its_recipe_and_answers_the_same(
    data: Any, tmp_path: Path, backbone: str
) -> None:
    made = Learner(
        backbone, weights="random", features="rich", options=UNITS, device="cpu"
    ).fit(data)
    made.save(tmp_path / "model.evg")
    again = Learner.load(tmp_path / "model.evg", device="cpu")
    assert again.state_.spec == made.state_.spec
    assert again.features == list(made.state_.spec.recipe.blocks)
    np.testing.assert_allclose(
        again.decision_function(data[0]), made.decision_function(data[0]), rtol=1e-6
    )
    again.partial_fit((data[0][:3], [99] * 3))
    assert 99 in again.classes_
    assert again.state_.spec == made.state_.spec


def test_learning_elsewhere_and_merging_keep_the_recipe(data: Any) -> None:
    made = learner().fit(data)
    child = empty_copy(made)
    child.partial_fit((data[0][:4], [99] * 4))
    made.merge(child)
    assert 99 in made.classes_
    with pytest.raises(MergeError, match="recipe"):
        made.merge(learner("final").fit(data))


# -- features from files ---------------------------------------------------------------


def feature_set(recipe: Any = BLOCKS) -> Dataset:
    items, y = stripes(3, 8)
    raw = Dataset.of(items, y, items, y, names=("a", "b", "c"), name="toy")
    return featurize(raw, tiny_vit().with_recipe(recipe), cache=False)


def test_a_file_of_blocks_is_learned_as_the_images_are(
    data: Any, tmp_path: Path
) -> None:
    save_features(tmp_path / "toy.npz", feature_set())
    made = Learner(options=UNITS).fit(tmp_path / "toy.npz")
    direct = learner(BLOCKS).fit((data[0], np.array(["a", "b", "c"])[data[1]]))
    raw = join_blocks(feature_set().X_train, (24, 24, 24))
    np.testing.assert_allclose(
        made.decision_function(raw),
        direct.decision_function(data[0]),
        rtol=1e-5,
        atol=1e-9,
    )
    made.save(tmp_path / "model.evg")
    again = Learner.load(tmp_path / "model.evg")
    np.testing.assert_array_equal(
        again.decision_function(raw), made.decision_function(raw)
    )
    np.testing.assert_allclose(
        direct.decision_function(direct.encode(data[0]).X),
        direct.decision_function(data[0]),
    )
    # Asked about by its path, a file says itself that its blocks are to be joined.
    np.testing.assert_array_equal(
        again.decision_function(str(tmp_path / "toy.npz")), made.decision_function(raw)
    )
    assert (
        again.evaluate(tmp_path / "toy.npz").accuracy
        == made.evaluate(feature_set()).accuracy
    )
    np.testing.assert_array_equal(
        empty_copy(again).partial_fit((raw, data[1])).predict(raw[:1]).shape, (1,)
    )


def test_features_of_other_blocks_are_refused(data: Any) -> None:
    blocks = feature_set()
    with pytest.raises(InputError, match="widths must add up to the 72 columns"):
        Dataset.of(blocks.X_train, blocks.y_train, widths=(24, 24))
    made = Learner(options=UNITS).fit(feature_set())
    with pytest.raises(InputError, match=r"features must have 72 columns, got 24"):
        made.evaluate(feature_set("final"))
    other = feature_set(["final", "mean@-1", "max@-2"])
    assert (
        made.evaluate(other).n_known
    )  # nothing tells them apart but the backbone's description, which is not asked
    plain = Learner(options=UNITS).fit(
        (data[0].reshape(24, -1)[:, :72].astype(float), data[1])
    )
    with pytest.raises(
        InputError,
        match=r"features must have the blocks that the model was made with, one block, got",
    ):
        plain.partial_fit(feature_set())


def test_a_model_file_whose_blocks_do_not_fit_is_refused(tmp_path: Path) -> None:
    Learner(options=UNITS).fit(feature_set()).save(tmp_path / "model.evg")
    archive = read_archive(tmp_path / "model.evg")
    for widths in ([24, 24], [0, 72], [-24, 96], "72", [2**60]):
        archive.meta["widths"] = widths
        write_archive(tmp_path / "bad.evg", archive)
        with pytest.raises(FileFormatError):
            Learner.load(tmp_path / "bad.evg")


# -- what is asked for -----------------------------------------------------------------


def test_the_recommended_settings_take_rich_features_and_the_papers_do_not(
    data: Any,
) -> None:
    assert (
        Learner(tiny_vit(), options=UNITS).fit(data).state_.spec.recipe
        == tiny_vit().with_recipe("rich").spec.recipe
    )
    paper = Learner(tiny_vit(), method="scl-mgsm", options={"max_units": 20}).fit(data)
    assert paper.state_.spec.recipe is None


def test_auto_keeps_what_a_backbone_has_and_never_asks_too_much(data: Any) -> None:
    own = Learner(tiny_vit().with_recipe(["final", "max@-1"]), options=UNITS).fit(data)
    assert own.state_.spec.blocks.blocks == ("final", "max@-1")
    assert Learner(Colours(), options=UNITS).fit(data).state_.spec.recipe is None
    assert (
        Learner(Letters(), options=UNITS)
        .fit((["aab", "abb", "bcc"], list("xyz")))
        .state_.spec.recipe
        is None
    )


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "riche",
            "features must be 'auto', 'fast', 'rich', 'best' or blocks such as "
            "'final,mean@-2', got 'riche'",
        ),
        (
            ["mean@-9"],
            r"got 'mean@-9': VisionTransformer has -1 \(blocks.1\) to -2 \(blocks.0\)",
        ),
        (["mean@-1"] * 2, "blocks of features must differ"),
    ],
)
def test_invalid_recipes_raise_and_leave_the_learner_unchanged(
    data: Any, recipe: Any, message: str
) -> None:
    made = learner().fit(data)
    before = made.decision_function(data[0])
    made.features = recipe
    with pytest.raises(ParameterError, match=message):
        made.fit(data)
    np.testing.assert_array_equal(made.decision_function(data[0]), before)


def test_a_backbone_may_be_named_for_features_of_its_own(data: Any) -> None:
    backbone = create_backbone("test_resnet", weights="random", device="cpu")
    items, y = stripes(3, 8)
    X = encode(backbone, items, cache=False, join=False).X
    made = Learner(backbone, options=UNITS).fit((X, y))
    assert made.state_.spec.n_features == 96


@pytest.mark.parametrize(
    ("side", "size", "seen"),
    [(40, 224, ", the whole image"), (180, 224, ""), (300, 256, "")],
)
def test_the_first_images_choose_the_view_which_is_frozen_and_told(
    side: int, size: int, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images = [
        rng.integers(0, 256, (side, side + 20, 3), dtype=np.uint8) // (1 + row % 2)
        for row in range(8)
    ]
    network = create_backbone(
        "test_resnet", weights="random", device="cpu", img_size=224
    )
    learner = Learner(network, options=UNITS, cache=False).fit(
        images, ["light", "dark"] * 4
    )
    transform = learner.backbone_().transform
    assert (transform.size, transform.resize == transform.size) == (
        (size, size),
        bool(seen),
    )
    later = [image[::2, ::2] for image in images]  # later ones change nothing
    learner.partial_fit(later, ["small light", "small dark"] * 4).save(
        tmp_path / "m.evg"
    )
    loaded = Learner.load(tmp_path / "m.evg", backbone=network, cache=False)
    assert loaded.backbone_().transform == transform
    np.testing.assert_allclose(
        loaded.predict_proba(images), learner.predict_proba(images), atol=1e-6
    )
    told = " ".join(evergrow("inspect", str(tmp_path / "m.evg")).stdout.split())
    assert (
        f"({size} px{seen}, since images have {side} px on their shorter side (median))"
        in told
    )
    other = Learner(network, options=UNITS, cache=False).fit(
        [image[:-1] for image in images], ["light", "dark"] * 4
    )
    assert (
        other.state_.spec.recipe.note != learner.state_.spec.recipe.note
    )  # another median, and no other backbone
    assert backbone_differences(learner.state_.spec, other.state_.spec) == []
