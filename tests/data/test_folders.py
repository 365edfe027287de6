"""Images in folders: both layouts, what is left out, and every way they can be wrong."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import PNG, Tree

from evergrow.core.errors import DatasetNotFoundError, DataWarning, InputError, LabelError
from evergrow.data import DataOptions, Dataset, load_data
from evergrow.data.intake import read_parts
from evergrow.data.items import Images
from evergrow.lab.streams import Protocol, stream_of

pytestmark = pytest.mark.usefixtures("alone")

BOTH = {"train/cat": 6, "train/dog": 5, "test/cat": 2, "test/dog": 3}


def test_train_and_test_folders(tree: Tree) -> None:
    data = load_data(tree(BOTH))
    assert isinstance(data, Dataset)
    assert (data.name, data.kind, data.layout) == ("pets", "image", "train-test")
    assert data.class_names == ("cat", "dog")
    assert data.y_train.tolist() == [0] * 6 + [1] * 5
    assert data.y_test.tolist() == [0] * 2 + [1] * 3
    assert data.y_train.dtype == np.int64
    assert data.train.items.name(6) == "train/dog/000.png"
    assert data.train.items.raw(6).read_bytes() == PNG


@pytest.mark.parametrize(("train", "test"), [("Train", "VAL"), ("TRAINING", "Validation"), ("train", "valid")])
def test_split_names_in_any_case(train: str, test: str, tree: Tree) -> None:
    data = load_data(tree({f"{train}/a": 5, f"{test}/a": 2}))
    assert (len(data.y_train), len(data.y_test)) == (5, 2)


@pytest.mark.parametrize(
    ("folders", "layout", "classes"),
    [
        ({f"inner/{key}": count for key, count in BOTH.items()}, "train-test", ("cat", "dog")),
        ({"train/a": 10, "train/b": 10}, "class-folders", ("a", "b")),
        ({"bus": 6, "train": 6}, "class-folders", ("bus", "train")),
    ],
)
def test_other_forms(folders: dict[str, int], layout: str, classes: tuple[str, ...], tree: Tree) -> None:
    data = load_data(tree(folders))
    assert (data.layout, data.class_names) == (layout, classes)


def test_test_folder_goes_before_validation_unless_it_has_no_labels(tree: Tree) -> None:
    root = tree({**BOTH, "val/cat": 1})
    data = load_data(root)
    assert len(data.y_test) == 5
    assert any("val left out" in note for note in data.notes)
    for folder in ("cat", "dog"):
        for file in (root / "test" / folder).iterdir():
            file.rename(root / "test" / f"{folder}{file.name}")
        (root / "test" / folder).rmdir()
    (root / "val" / "dog").mkdir()
    (root / "val" / "dog" / "0.png").write_bytes(PNG)
    assert load_data(root).test.items.name(0) == "val/cat/000.png"


def test_stream_rows_index_the_items(tree: Tree) -> None:
    data = load_data(tree(BOTH))
    stream = stream_of(data, Protocol(increment=1, shuffle=False))
    names = {data.train.items.name(int(row)).split("/")[1] for row in stream.tasks[1].train}
    assert names == {"dog"}
    assert data.test.items.take(stream.tasks[0].test).name(1) == "test/cat/001.png"


# -- automatic split --------------------------------------------------------------------------------------


def test_class_folders_are_split_by_class(tree: Tree) -> None:
    root = tree({"a": 10, "b": 20, "c": 6})
    data = load_data(root)
    assert data.layout == "class-folders"
    assert data.test_counts.tolist() == [2, 4, 1]
    assert data.train_counts.tolist() == [8, 16, 5]
    assert data.train.items.root is not None
    assert isinstance(data.test.items, Images)
    every = sorted(data.train.items.names + data.test.items.names)
    assert every == sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    assert len(set(every)) == 36


def test_split_follows_seed_and_size_and_no_other_class(tree: Tree) -> None:
    root = tree({"a": 10, "b": 20})
    one, again, other = load_data(root), load_data(root), load_data(root, seed=3)
    assert one.test.items.names == again.test.items.names != other.test.items.names
    assert load_data(root, test_size=0.5).test_counts.tolist() == [5, 10]
    (root / "aa").mkdir()
    for number in range(7):
        (root / "aa" / f"{number}.png").write_bytes(PNG)
    more = load_data(root)
    assert [name for name in more.test.items.names if not name.startswith("aa/")] == list(one.test.items.names)


@pytest.mark.parametrize("test_size", [0.01, 0.99])
def test_every_class_is_on_both_sides(test_size: float, tree: Tree) -> None:
    root = tree({"a": 2, "b": 3})
    with pytest.warns(DataWarning, match="fewer than 5"):
        data = load_data(root, test_size=test_size)
    assert data.train_counts.min() >= 1
    assert data.test_counts.min() >= 1


def test_single_images_go_to_training_with_a_warning(tree: Tree) -> None:
    root = tree({"a": 9, "lonely": 1})
    with pytest.warns(DataWarning, match="one sample are in the training set only: 'lonely'"):
        data = load_data(root)
    assert data.train_counts.tolist() == [7, 1]
    assert data.test_counts.tolist() == [2, 0]


def test_no_split_leaves_everything_in_training(tree: Tree) -> None:
    root = tree({"a": 9, "b": 8})
    data = load_data(root, test_size=0)
    assert data.train.items.root is not None
    assert sorted(data.train.items.names) == sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    assert (data.whole, data.test, data.y_test.dtype) == (True, None, np.int64)
    assert data.train_counts.tolist() == [9, 8]
    assert data.test_counts.tolist() == [0, 0]
    assert data.notes[-1].startswith("no test set")
    assert data.fingerprint != load_data(root).fingerprint
    with pytest.raises(InputError, match="needs a test set"):
        stream_of(data)


def test_no_split_takes_one_sample(tree: Tree) -> None:
    with pytest.warns(DataWarning, match="fewer than 5") as said:
        data = load_data(tree({"a": 1}), test_size=0)
    assert len(said) == 1
    assert (data.class_names, len(data.train)) == (("a",), 1)


def test_a_test_set_that_is_there_is_kept_without_a_split_too(tree: Tree) -> None:
    root = tree({"train/a": 6, "train/b": 6, "test/a": 2, "test/b": 3})
    kept, usual = load_data(root, test_size=0), load_data(root)
    assert (kept.whole, kept.fingerprint) == (False, usual.fingerprint)


def test_read_path_gives_what_is_there(tree: Tree) -> None:
    root = tree({"a": 2, "b": 1, "void": 0})
    with pytest.warns(DataWarning, match="'pets' can be used but: .*left out: 'void'") as said:
        found = read_parts(root, DataOptions(allow_empty=True))
    assert len(said) == 1
    assert isinstance(found, Dataset)
    assert (found.train.labels.tolist(), found.test) == (["a", "a", "b"], None)


# -- what is left out -------------------------------------------------------------------------------------


def test_nested_folders_and_foreign_files(tree: Tree) -> None:
    root = tree({**BOTH, "train/cat/from phone/2024": 2, "train/.thumbnails": 3, "train/__MACOSX": 1})
    for name in ("train/cat/labels.txt", "train/cat/.hidden.png", "train/cat/noend", "train/loose.png", "readme.md"):
        (root / name).write_bytes(PNG)
    (root / "train/cat/upper.JPEG").write_bytes(PNG)
    data = load_data(root)
    assert data.train_counts.tolist() == [9, 5]
    assert "train/cat/from phone/2024/000.png" in data.train.items.names
    note = next(note for note in data.notes if "left out" in note)
    for part in ("not images (.txt): 1", "not images (no suffix): 1", "hidden: 3", "outside class folders: 1"):
        assert part in note


def test_order_is_by_name_and_not_by_disk(tree: Tree) -> None:
    root = tree({"train/a": 5, "test/a": 1})
    for name in ("z.png", "Z.png", "é.png", "10.png", "9.png"):
        (root / "train/a" / name).write_bytes(PNG)
    names = [name.rpartition("/")[2] for name in load_data(root).train.items.names]
    assert names == sorted(names)
    assert names[-2:] == ["z.png", "é.png"]


def test_unicode_paths(tree: Tree) -> None:
    data = load_data(tree({"train/кошка 🐈": 5, "train/ñandú": 5, "test/кошка 🐈": 1, "test/ñandú": 1}))
    assert data.class_names == ("ñandú", "кошка 🐈")
    assert data.train.items.raw(9).is_file()
    assert len(data.fingerprint) == 16


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: file names")
def test_names_that_are_no_utf8(tree: Tree) -> None:
    root = tree({"train/a": 5, "test/a": 1})
    odd = os.fsencode(root) + b"/train/caf\xe9"
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("needs another file system: this one refuses such names")
    for number in range(5):
        Path(os.fsdecode(odd), f"{number}.png").write_bytes(PNG)
    with pytest.warns(DataWarning, match="without a test sample") as caught:
        data = load_data(root)
    assert r"caf\udce9" in str(caught[0].message)
    str(caught[0].message).encode()
    assert data.train.items.raw(9).read_bytes() == PNG
    assert data.fingerprint


def test_links_are_followed_and_loops_are_not(tree: Tree, tmp_path: Path) -> None:
    root = tree({"train/a": 5, "train/b": 5, "test/a": 1, "test/b": 1})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number in range(6):
        (elsewhere / f"{number}.png").write_bytes(PNG)
    try:
        (root / "train/linked").symlink_to(elsewhere, target_is_directory=True)
    except OSError:
        pytest.skip("needs another file system: no links on this one")
    (root / "test/linked").symlink_to(elsewhere, target_is_directory=True)
    (root / "train/a/self").symlink_to(root / "train/a")
    (root / "train/a/up").symlink_to(root)
    (root / "train/a/top").symlink_to(root.parent)
    (root / "train/b/gone.png").symlink_to(root / "nothing.png")
    (root / "train/b/round.png").symlink_to(root / "train/b/round.png")
    data = load_data(root)
    assert Counter(data.y_train.tolist()) == {0: 5, 1: 5, 2: 6}
    note = next(note for note in data.notes if "left out" in note)
    assert "links back to a folder above: 3" in note
    assert "broken links: 2" in note


# -- what is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["no/such/folder", "./gone", "gone.csv"])
def test_missing_source(source: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=f"No folder or file '{source}' here"):
        load_data(source)


def test_a_name_that_is_not_there_brings_the_nearest(tmp_path: Path, alone: Path) -> None:
    (alone / "ten").mkdir()
    (alone / "data").mkdir()
    (alone / "data" / "birds.csv").write_text("text,label\n")
    for name, near in (("tenn", "ten"), ("./tenn", "ten"), ("brids", "birds"), ("birds.cvs", "birds.csv")):
        with pytest.raises(DatasetNotFoundError, match=f"No folder or file '{name}' here. Did you mean '{near}'?"):
            load_data(name)
    with pytest.raises(DatasetNotFoundError, match=r"No folder or file 'xyz' here\.$"):
        load_data("xyz")
    with pytest.raises(DatasetNotFoundError, match=r"No folder or file 'bird.csv' in .*data. Did you mean"):
        load_data(alone / "data" / "bird.csv")


def test_empty_class_is_named(tree: Tree) -> None:
    root = tree({**BOTH, "train/empty": 0, "test/empty": 0})
    (root / "train/empty/notes.txt").write_text("no image")
    with pytest.raises(InputError, match=r"got none in 'train/empty'.*allow_empty"):
        load_data(root)
    with pytest.warns(DataWarning, match="without images left out: 'train/empty'"):
        data = load_data(root, allow_empty=True)
    assert data.class_names == ("cat", "dog")


@pytest.mark.parametrize(("one", "other"), [("Cat", "cat"), ("caf\u00e9", "cafe\u0301")])
def test_spelling_that_differs(one: str, other: str, tree: Tree) -> None:
    root = tree({f"train/{one}": 5, f"test/{other}": 1})
    if len({entry.name for entry in root.glob("*/*")}) < 2:
        pytest.skip("needs another file system: this one makes no difference")
    with pytest.raises(LabelError, match=r"spelled alike.*rename one"):
        load_data(root)


def test_class_without_test_images_is_a_warning(tree: Tree) -> None:
    with pytest.warns(DataWarning, match="without a test sample: 'bird'"):
        load_data(tree({**BOTH, "train/bird": 5}))


def test_two_training_folders(tree: Tree) -> None:
    root = tree({"train/a": 2, "Train/a": 2, "test/a": 2})
    if len(list(root.iterdir())) < 3:
        pytest.skip("needs another file system: this one makes no difference")
    with pytest.raises(InputError, match="one folder called 'train'"):
        load_data(root)


@pytest.mark.parametrize(
    ("folders", "error", "match"),
    [
        ({}, InputError, "one folder per class"),
        ({"": 4}, InputError, "got no folder but 4 images"),
        ({"train": 4, "test": 4}, InputError, "one folder per class"),
        (
            {f"{name}/{key}": 2 for name in ("one", "two") for key in BOTH},
            InputError,
            "several .'one', 'two'",
        ),
        ({"a": 1, "b": 1}, LabelError, "No test set can be drawn"),
        ({**BOTH, "test/bird": 1, "test/fish": 1}, LabelError, "got 'bird', 'fish' in the test set only"),
        ({**BOTH, "train/bird": 0, "test/bird": 2}, LabelError, "'bird' in the test set only"),
    ],
)
def test_what_is_refused(folders: dict[str, int], error: type[Exception], match: str, tree: Tree) -> None:
    with pytest.raises(error, match=match):
        load_data(tree(folders), allow_empty=True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user without root")
def test_unreadable_folder(tree: Tree) -> None:
    root = tree(BOTH)
    (root / "train/cat").chmod(0)
    try:
        with pytest.raises(DatasetNotFoundError, match="readable"):
            load_data(root)
    finally:
        (root / "train/cat").chmod(0o700)


def test_real_birds(shared: Path) -> None:
    data = load_data(shared / "images" / "birds")
    assert (data.n_classes, len(data.train), len(data.test)) == (20, 120, 60)
    features = np.load(shared / "features" / "cub200_efficientnet_lite0.npz")
    assert set(data.class_names) <= set(features["classes"].tolist())
    assert {name.rpartition("/")[2] for name in data.train.items.names} <= {
        name.rpartition("/")[2] for name in features["files_train"].tolist()
    }
