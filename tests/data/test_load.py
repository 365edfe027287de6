"""Arrays, raw sets, options and names: what holds for every source."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import PNG, Tree, contents_of

from evergrow.core.errors import (
    DataWarning,
    FileFormatError,
    InputError,
    LabelError,
    ParameterError,
    UnknownNameError,
)
from evergrow.data import (
    DataOptions,
    Dataset,
    inspect_data,
    load_data,
    load_features,
)
from evergrow.data.items import Images, Texts

pytestmark = pytest.mark.usefixtures("alone")

PIXELS = np.random.default_rng(0).integers(0, 256, size=(12, 4, 5, 3), dtype=np.uint8)
LABELS = np.arange(12) % 2
IMAGES = {
    "X_train": PIXELS,
    "y_train": LABELS,
    "X_test": PIXELS[:4],
    "y_test": LABELS[:4],
}


# -- arrays ----------------------------------------------------------------------------


def test_bytes_are_images_and_floats_are_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", classes=np.array(["cat", "dog"]), **IMAGES)
    data = load_data(tmp_path / "images.npz")
    assert isinstance(data.train.items, Images)
    assert data.class_names == ("cat", "dog")
    np.testing.assert_array_equal(data.test.items.raw(3), PIXELS[3])
    with pytest.raises(FileFormatError, match="load other data with load_data"):
        load_features(tmp_path / "images.npz")
    flat = {
        key: value.reshape(len(value), -1).astype(np.float32)
        if key[0] == "X"
        else value
        for key, value in IMAGES.items()
    }
    np.savez(tmp_path / "features.npz", **flat)
    features = load_data(tmp_path / "features.npz")
    assert features.kind == "features"
    assert contents_of(features) == contents_of(
        load_features(tmp_path / "features.npz")
    )


def test_grey_images_and_labels_without_names(tmp_path: Path) -> None:
    grey = {
        key: value[..., 0] if key[0] == "X" else value + 7
        for key, value in IMAGES.items()
    }
    np.savez(tmp_path / "grey.npz", **grey)
    data = load_data(tmp_path / "grey.npz")
    assert data.class_names == ("7", "8")
    words = {
        **grey,
        "y_train": np.array(["b", "a"])[LABELS],
        "y_test": np.array(["b", "a"])[LABELS[:4]],
    }
    np.savez(tmp_path / "words.npz", **words)
    assert load_data(tmp_path / "words.npz").y_train.tolist() == (1 - LABELS).tolist()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"y_train": LABELS[:5]}, "12 integers or strings"),
        ({"y_train": LABELS + 0.5}, "integers or strings"),
        (
            {"y_train": LABELS * 9, "classes": np.array(["a", "b"])},
            "labels must be among the 2 named classes, got 9",
        ),
        ({"X_test": PIXELS[:4].astype(np.float32)}, "bytes of images"),
        ({"X_train": PIXELS[..., :2]}, "must be uint8 of shape"),
    ],
)
def test_malformed_image_arrays_are_refused(
    changes: dict[str, np.ndarray], match: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **{**IMAGES, **changes})
    with pytest.raises(FileFormatError, match=match):
        load_data(tmp_path / "bad.npz")


# -- options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"test_size": -1}, "test_size"),
        ({"test_size": 1.0}, "test_size"),
        ({"part": "half"}, "part must be one of"),
        ({"seed": -1}, "seed"),
        ({"layout": "folder"}, "layout must be one of"),
        ({"text_column": 3}, "text_column must be a string"),
        ({"root": 3}, "root must be a string"),
    ],
)
def test_invalid_options_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        load_data("cub", **settings)
    with pytest.raises(UnknownNameError, match="nearest: 'label_column'"):
        load_data("cub", label_colum="x")


def test_settings_override_options(tree: Tree) -> None:
    root = tree({"a": 10, "b": 10})
    options = DataOptions(test_size=0.5, seed=3)
    assert len(load_data(root, options).y_test) == 10
    assert len(load_data(root, options, test_size=0.2).y_test) == 4


# -- raw sets --------------------------------------------------------------------------


def test_contents_follow_files_and_labels_but_not_the_folder(
    tree: Tree, tmp_path: Path
) -> None:
    root = tree({"train/a": 5, "train/b": 5, "test/a": 1, "test/b": 1})
    before = contents_of(load_data(root))
    moved = root.rename(tmp_path / "moved")
    os.utime(moved / "train/a/000.png", (1, 1))
    same = load_data(moved)
    assert contents_of(same) == before
    (moved / "train/a/000.png").write_bytes(PNG + b"\0")
    assert contents_of(load_data(moved)) != before
    (moved / "train/a/000.png").write_bytes(PNG)
    items, test = same.train.items, same.test.items
    swapped = Dataset.of(
        items, 1 - same.y_train, test, same.y_test, names=same.class_names
    )
    assert contents_of(swapped) != contents_of(same)
    again = Dataset.of(items, same.y_train, test, same.y_test, names=same.class_names)
    assert contents_of(again) == contents_of(same)


def test_the_stamp_of_files_opens_no_image(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_data(tree({"train/a": 5, "test/a": 2}))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    assert data.train.raw_items().stamp() != data.test.raw_items().stamp()


def test_data_set_requires_one_label_per_sample() -> None:
    with pytest.raises(LabelError, match=r"one per sample \(3\), got 2"):
        Dataset.of(Texts(("a", "b", "c")), [0, 1])
    mixed = Dataset.of(Texts(("a", "b", "c")), [10, "9", 9])
    assert (mixed.class_names, mixed.y_train.tolist()) == (("10", "9"), [0, 1, 1])
    numbers = Dataset.of(
        Texts(("a", "b", "c")), np.array([10, 9, 9]), names={9: "nine"}
    )
    assert numbers.class_names == ("nine", "10")


def test_report_names_small_and_large_classes(tree: Tree) -> None:
    data = load_data(
        tree(
            {
                "train/a": 9,
                "train/b": 6,
                "train/c": 30,
                "test/a": 1,
                "test/b": 2,
                "test/c": 3,
            }
        )
    )
    report = inspect_data(data, most=2)
    assert report.smallest == [("b", 6, 2), ("a", 9, 1)]
    assert report.largest == [("c", 30, 3), ("a", 9, 1)]
    assert (report.kind, report.n_features, report.cautions) == ("image", 0, [])


def test_a_report_names_classes_in_the_test_part_only(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "toy.npz",
        X_train=np.eye(10),
        y_train=np.repeat(["a", "b"], 5),
        X_test=np.eye(10),
        y_test=np.repeat(["b", "c"], 5),
    )
    with pytest.raises(LabelError, match="'c' in the test set only"):
        load_data(tmp_path / "toy.npz")
    report = inspect_data(tmp_path / "toy.npz")
    assert (report.n_classes, report.n_test) == (2, 10)
    assert "in the test set only: 'c'; they can be detected" in report.cautions[0]


def test_a_folder_of_another_layout_than_named_is_refused(tree: Tree) -> None:
    root = tree({"a": 2, "b": 2})
    with pytest.raises(InputError, match="folder of the layout 'train-test'"):
        load_data(root, layout="train-test")


def test_similar_class_names_and_small_classes_are_warned_about(tree: Tree) -> None:
    root = tree({"Apple": 6, "apple": 3})
    if len(list(root.iterdir())) < 2:
        pytest.skip("needs another file system: this one makes no difference")
    with pytest.warns(
        DataWarning,
        match=r"only in spelling: 'Apple / apple'; .*fewer than 5 .* 1 of 2",
    ):
        load_data(root)
