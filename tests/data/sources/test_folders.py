"""Images in folders: layouts, files left out, errors, and reading from a storage."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from tests.data.conftest import PNG, Tree, contents_of
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import (
    LARGE,
    bodies,
    counts,
    jpeg,
    labels_of,
    names_of,
    parts_of,
)
from tests.data.test_archives import pack
from tests.engine.object_storage import upload

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    ImageError,
    InputError,
    LabelError,
)
from evergrow.data import Dataset, items, load_data, read, shards, source_from
from evergrow.data.inputs import read_parts
from evergrow.data.items import Images

pytestmark = pytest.mark.usefixtures("alone")

BOTH = {"train/cat": 6, "train/dog": 5, "test/cat": 2, "test/dog": 3}


def test_train_and_test_folders_are_read(tree: Tree) -> None:
    root = tree(BOTH)
    data = load_data(root)
    assert isinstance(data, Dataset)
    assert (data.name, data.kind, data.layout) == ("pets", "image", "train-test")
    assert data.class_names == ("cat", "dog")
    assert data.y_train.tolist() == [0] * 6 + [1] * 5
    assert data.y_test.tolist() == [0] * 2 + [1] * 3
    assert data.y_train.dtype == np.int64
    assert data.train.items.name(6) == "train/dog/000.png"
    assert data.train.items.raw(6).read_bytes() == PNG
    parts = {
        part: parts_of(read(root, part=part), rows=4)
        for part in ("train", "test", "all")
    }
    assert [len(part) for part in parts["train"]] == [4, 4, 3]
    assert labels_of(parts["all"]) == [
        data.class_names[code] for code in (*data.y_train, *data.y_test)
    ]
    names = {part: names_of(found) for part, found in parts.items()}
    assert names == {
        "train": data.train.names(),
        "test": data.test.names(),
        "all": names["train"] + names["test"],
    }
    kept = load_data(root, test_size=0)
    assert (kept.has_test, contents_of(kept)) == (True, contents_of(data))


@pytest.mark.parametrize(
    ("folders", "layout", "classes"),
    [
        (
            {f"inner/{key}": count for key, count in BOTH.items()},
            "train-test",
            ("cat", "dog"),
        ),
        ({"train/a": 10, "train/b": 10}, "class-folders", ("a", "b")),
        ({"bus": 6, "metro": 6}, "class-folders", ("bus", "metro")),
        ({"Train/a": 5, "VAL/a": 2}, "train-test", ("a",)),
        ({"TRAINING/a": 5, "Validation/a": 2}, "train-test", ("a",)),
        ({"train/a": 5, "valid/a": 2}, "train-test", ("a",)),
        (
            {
                "train/кошка 🐈": 5,
                "train/ñandú": 5,
                "test/кошка 🐈": 1,
                "test/ñandú": 1,
            },
            "train-test",
            ("ñandú", "кошка 🐈"),
        ),
        (
            {"cat/2019": 3, "cat/2020": 3, "dog/indoors": 5, "dog/2019": 1, "dog/x": 1},
            "class-folders",
            ("cat", "dog"),
        ),
    ],
)
def test_variants_of_the_folder_layouts_are_read(
    folders: dict[str, int], layout: str, classes: tuple[str, ...], tree: Tree
) -> None:
    data = load_data(tree(folders))
    assert (data.layout, data.class_names) == (layout, classes)
    assert data.train.items.raw(0).is_file()
    assert len(data.train.raw_items().stamp(times=False)) == 32


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


# -- automatic split -------------------------------------------------------------------


def test_class_folders_are_split_by_class(tree: Tree) -> None:
    root = tree({"a": 10, "b": 20, "c": 6})
    data = load_data(root)
    assert data.layout == "class-folders"
    assert counts(data, "test") == [2, 4, 1]
    assert counts(data, "train") == [8, 16, 5]
    assert data.train.items.root is not None
    assert isinstance(data.test.items, Images)
    every = sorted(data.train.items.names + data.test.items.names)
    assert every == sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*.png")
    )
    assert len(set(every)) == 36


def test_split_follows_seed_and_size_and_no_other_class(tree: Tree) -> None:
    root = tree({"a": 10, "b": 20})
    one = load_data(root)
    again = load_data(root)
    other = load_data(root, seed=3)
    assert one.test.items.names == again.test.items.names != other.test.items.names
    assert counts(load_data(root, test_size=0.5), "test") == [5, 10]
    (root / "aa").mkdir()
    for number in range(7):
        (root / "aa" / f"{number}.png").write_bytes(PNG)
    more = load_data(root)
    assert [
        name for name in more.test.items.names if not name.startswith("aa/")
    ] == list(one.test.items.names)


@pytest.mark.parametrize("test_size", [0.01, 0.99])
def test_every_class_is_on_both_sides_and_single_images_are_in_training(
    test_size: float, tree: Tree
) -> None:
    root = tree({"a": 2, "b": 3, "lonely": 1})
    with pytest.warns(
        DataWarning,
        match="one sample are in the training set only: 'lonely'.*fewer than 5",
    ):
        data = load_data(root, test_size=test_size)
    assert min(counts(data, "train")) >= 1
    assert min(counts(data, "test")[:2]) >= 1
    assert (counts(data, "train")[2], counts(data, "test")[2]) == (1, 0)


def test_no_split_leaves_everything_in_training(tree: Tree) -> None:
    root = tree({"a": 9, "b": 8})
    data = load_data(root, test_size=0)
    assert data.train.items.root is not None
    assert sorted(data.train.items.names) == sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*.png")
    )
    assert (data.has_test, data.test, data.y_test.dtype) == (False, None, np.int64)
    assert counts(data, "train") == [9, 8]
    assert counts(data, "test") == [0, 0]
    assert data.notes[-1].startswith("no test set")
    assert contents_of(data) != contents_of(load_data(root))


# -- files left out --------------------------------------------------------------------


def test_nested_folders_are_read_and_other_files_counted(tree: Tree) -> None:
    root = tree(
        {
            **BOTH,
            "train/cat/from phone/2024": 2,
            "train/.thumbnails": 3,
            "train/__MACOSX": 1,
        }
    )
    for name in (
        "train/cat/labels.txt",
        "train/cat/.hidden.png",
        "train/cat/noend",
        "train/loose.png",
        "readme.md",
    ):
        (root / name).write_bytes(PNG)
    (root / "train/cat/upper.JPEG").write_bytes(PNG)
    data = load_data(root)
    assert counts(data, "train") == [9, 5]
    assert "train/cat/from phone/2024/000.png" in data.train.items.names
    note = next(note for note in data.notes if "left out" in note)
    for part in (
        "not images (.txt): 1",
        "not images (no suffix): 1",
        "hidden: 3",
        "outside class folders: 1",
    ):
        assert part in note


def test_order_is_by_name_and_not_by_disk(tree: Tree) -> None:
    root = tree({"train/a": 5, "test/a": 1})
    for name in ("z.png", "Z.png", "é.png", "10.png", "9.png"):
        (root / "train/a" / name).write_bytes(PNG)
    names = [name.rpartition("/")[2] for name in load_data(root).train.items.names]
    assert names == sorted(names)
    assert names[-2:] == ["z.png", "é.png"]


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: file names")
def test_names_that_are_not_utf8_are_read(tree: Tree) -> None:
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
    assert data.train.raw_items().stamp()


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
    (root / "train/a/deep").mkdir()
    (root / "train/a/deep/again").symlink_to(root / "train/a/deep")
    (root / "train/a/other").symlink_to(root / "train/b")  # and back
    (root / "train/b/other").symlink_to(root / "train/a")
    (root / "train/b/gone.png").symlink_to(root / "nothing.png")
    (root / "train/b/round.png").symlink_to(root / "train/b/round.png")
    data = load_data(root)
    assert Counter(data.y_train.tolist()) == {0: 10, 1: 10, 2: 6}
    note = next(note for note in data.notes if "left out" in note)
    assert "links back to a folder above: 10" in note
    assert "broken links: 4" in note  # once more through the link


# -- errors ----------------------------------------------------------------------------


def test_a_missing_name_suggests_the_most_similar_one(
    tmp_path: Path, alone: Path
) -> None:
    (alone / "ten").mkdir()
    (alone / "data").mkdir()
    (alone / "data" / "birds.csv").write_text("text,label\n")
    for name, near in (
        ("tenn", "ten"),
        ("./tenn", "ten"),
        ("brids", "birds"),
        ("birds.cvs", "birds.csv"),
    ):
        with pytest.raises(
            DatasetNotFoundError,
            match=f"No folder or file '{name}' here. Did you mean '{near}'?",
        ):
            load_data(name)
    for name in ("xyz", "no/such/folder", "./gone", "gone.parquet"):
        with pytest.raises(
            DatasetNotFoundError, match=f"No folder or file '{name}' here"
        ):
            load_data(name)
    with pytest.raises(
        DatasetNotFoundError,
        match=r"No folder or file 'bird.csv' in .*data. Did you mean",
    ):
        load_data(alone / "data" / "bird.csv")


def test_empty_classes_are_left_out_with_a_warning(tree: Tree) -> None:
    root = tree({**BOTH, "train/empty": 0, "test/empty": 0})
    (root / "train/empty/notes.txt").write_text("no image")
    with pytest.warns(DataWarning, match="without images left out: 'train/empty'"):
        assert load_data(root).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("one", "other"), [("Cat", "cat"), ("caf\u00e9", "cafe\u0301")]
)
def test_classes_spelled_differently_in_train_and_test_are_refused(
    one: str, other: str, tree: Tree
) -> None:
    root = tree({f"train/{one}": 5, f"test/{other}": 1})
    if len({entry.name for entry in root.glob("*/*")}) < 2:
        pytest.skip("needs another file system: this one makes no difference")
    with pytest.raises(LabelError, match=r"spelled the same.*rename one"):
        load_data(root)


def test_class_without_test_images_is_a_warning(tree: Tree) -> None:
    with pytest.warns(DataWarning, match="without a test sample: 'bird'"):
        load_data(tree({**BOTH, "train/bird": 5}))


def test_two_training_folders_are_refused(tree: Tree) -> None:
    root = tree({"train/a": 2, "Train/a": 2, "test/a": 2})
    if len(list(root.iterdir())) < 3:
        pytest.skip("needs another file system: this one makes no difference")
    with pytest.raises(InputError, match="one of the folders 'Train' and 'train'"):
        load_data(root)


@pytest.mark.parametrize(
    ("folders", "error", "match"),
    [
        ({}, InputError, "one folder per class"),
        ({"a": 0, "b": 0}, InputError, "at least one image, got none in 'a', 'b' of"),
        ({"": 4}, InputError, "holds no folder but 4 images"),
        ({"train": 4, "test": 4}, InputError, "one folder per class"),
        (
            {f"{name}/{key}": 2 for name in ("one", "two") for key in BOTH},
            InputError,
            "point to one of 'one', 'two'",
        ),
        ({"a": 1, "b": 1}, LabelError, "No test set can be drawn"),
        (
            {**BOTH, "test/bird": 1, "test/fish": 1},
            LabelError,
            "got 'bird', 'fish' in the test set only",
        ),
        (
            {**BOTH, "train/bird": 0, "test/bird": 2},
            LabelError,
            "'bird' in the test set only",
        ),
    ],
)
def test_ambiguous_and_incomplete_folders_are_refused(
    folders: dict[str, int], error: type[Exception], match: str, tree: Tree
) -> None:
    with pytest.raises(error, match=match):
        load_data(tree(folders))


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="needs a user without root"
)
def test_an_unreadable_folder_is_a_typed_error(tree: Tree) -> None:
    root = tree(BOTH)
    (root / "train/cat").chmod(0)
    try:
        with pytest.raises(DatasetNotFoundError, match="readable"):
            load_data(root)
    finally:
        (root / "train/cat").chmod(0o700)


# -- folders and tables as sources -----------------------------------------------------


def test_shards_follow_sizes_and_not_earlier_requests(
    images: Path,
) -> None:
    source = read(images / "classes")
    sizes = [
        len(body)
        for shard in source.shards(100, LARGE)
        for body in bodies(source.read(shard))
    ]
    by_size = list(source.shards(rows=100, size=3 * max(sizes)))
    assert by_size == list(
        read(images / "classes").shards(rows=100, size=3 * max(sizes))
    )
    assert all(shard.size <= 3 * max(sizes) for shard in by_size)
    assert sum(shard.rows for shard in by_size) == 12
    assert [shard.number for shard in by_size] == list(range(len(by_size)))
    assert all(shard.rows == 1 for shard in source.shards(rows=100, size=1))


@pytest.mark.parametrize("part", ["classes", "list.csv", "named"])
def test_another_storage_gives_the_same_samples(
    images: Path, traffic: Traffic, part: str
) -> None:
    upload(images, "memory://sets")
    local = read(images / part)
    far = read(f"memory://sets/{part}")
    assert far.identity() == local.identity()
    assert far.kind == "image"
    shards = list(far.shards(rows=4, size=LARGE))
    assert shards == list(local.shards(rows=4, size=LARGE))
    traffic.sizes.clear()
    worker = source_from(json.loads(json.dumps(far.describe())))
    got = worker.read(shards[1])
    expected = local.read(shards[1])
    assert bodies(got) == bodies(expected)
    assert got.names() == expected.names()
    assert got.labels.tolist() == expected.labels.tolist()
    assert (
        traffic.total == shards[1].size == sum(len(body) for body in bodies(got))
    )  # only these files


def test_identity_is_of_names_sizes_and_labels_alone(
    images: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(images / "classes", tmp_path / "moved")
    identity = read(images / "classes").identity()
    assert read(copy).identity() == identity
    (copy / "ant/0.jpg").rename(copy / "ant/9.jpg")
    assert read(copy).identity() != identity
    (copy / "ant/9.jpg").rename(copy / "ant/0.jpg")
    (copy / "ant").rename(copy / "cow")
    assert read(copy).identity() != identity


def test_images_without_labels_are_found_wherever_they_lie(
    images: Path, tree: Tree
) -> None:
    (data,) = parts_of(read(tree({".": 1, "deep/down": 1}), labelled=False))
    assert data.labels is None
    assert data.names() == ["000.png", "deep/down/000.png"]
    assert parts_of(read(images / "list.csv", labelled=False))[0].labels is None


def test_a_deleted_image_is_an_error_of_one_image_not_of_the_shard(
    images: Path, traffic: Traffic
) -> None:
    upload(images / "classes", "memory://sets")
    source = read("memory://sets")
    (shard,) = source.shards(99, LARGE)
    fsspec.filesystem("memory").rm("/sets/bee/1.jpg")
    data = source.read(shard)
    with pytest.raises(
        ImageError, match=r"image must be a readable file, got bee/1\.jpg"
    ):
        data.items.raw(5)
    assert data.items.take([4, 6]).raw(1) == (images / "classes/bee/2.jpg").read_bytes()
    assert len(data) == 12


def test_empty_addresses_are_errors_in_one_line(
    images: Path, tmp_path: Path, traffic: Traffic
) -> None:
    for address in (
        tmp_path / "none",
        tmp_path / "none.csv",
        "memory://none",
        "memory://none.csv",
        "memory://n-*.csv",
    ):
        with pytest.raises(DatasetNotFoundError) as caught:
            list(read(address).shards(5, 5))
        assert "none" in str(caught.value) or "n-*" in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "list.csv").write_text("path,label\nmissing.jpg,a\n")
    with pytest.raises(DatasetNotFoundError, match=r"missing\.jpg"):
        list(read(tmp_path / "list.csv").shards(5, 5))


def test_a_table_on_a_storage_leads_to_no_file_outside_its_folder(
    traffic: Traffic,
) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/secret.jpg", jpeg(0))
    system.pipe_file("/sets/list.csv", b"path,label\n../secret.jpg,a\n")
    with pytest.raises(DatasetNotFoundError, match="secret"):
        list(read("memory://sets/list.csv").shards(5, 5))


def test_an_image_file_of_impossible_size_is_refused(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "LARGEST_IMAGE", 100)
    with pytest.raises(FileFormatError, match="must be an image of at most"):
        list(read(images / "classes").shards(5, LARGE))


def test_an_inconsistent_shard_is_refused(images: Path) -> None:
    source = read(images / "classes")
    shard = next(iter(source.shards(5, LARGE)))
    with pytest.raises(FileFormatError, match="must name 6 files"):
        source.read(replace(shard, rows=6))


def test_unprintable_labels_have_an_identity(tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_text(
        '{"text": "a", "label": "x\\ud800"}\n{"text": "b\\udfff", "label": "y"}\n'
    )
    source = read(path)
    assert len(source.identity()) == 32
    assert json.loads(json.dumps([shard.where for shard in source.shards(5, LARGE)]))
    path.write_text(path.read_text().replace('"a"', '"A"'))
    assert read(path).identity() != source.identity()


# -- metadata --------------------------------------------------------------------------


def metadata(
    folder: Path, labels: list[str], form: str = "csv", column: str = "label"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(f"{number}.png", label) for number, label in enumerate(labels)]
    for name, _ in rows:
        (folder / name).write_bytes(PNG)
    if form == "csv":
        body = "".join(f"{name},{label}\n\n" for name, label in rows)
        (folder / "metadata.csv").write_text(
            f"\ufefffile_name,{column}\n{body}", encoding="utf-8"
        )
    else:
        (folder / "metadata.jsonl").write_text(
            "".join(
                json.dumps({"file_name": name, column: label}) + "\n"
                for name, label in rows
            )
        )


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_metadata_of_an_image_folder_is_read(form: str, tmp_path: Path) -> None:
    root = tmp_path / "pets"
    metadata(root, ["cat", "dog", "cat"], form)
    data = read_parts(root)
    assert (data.layout, data.train.labels.tolist(), data.test) == (
        "table",
        ["cat", "dog", "cat"],
        None,
    )
    assert read_parts(pack(root, tmp_path / "pets.zip")).train.labels.tolist() == [
        "cat",
        "dog",
        "cat",
    ]


def test_metadata_of_two_parts_and_another_column_is_read(tmp_path: Path) -> None:
    metadata(tmp_path / "train", ["cat", "dog"] * 3, column="species")
    metadata(tmp_path / "test", ["dog"], column="species")
    with pytest.warns(DataWarning, match="fewer than 5"):
        data = load_data(tmp_path, label_column="species")
    assert (len(data.train), len(data.test), data.class_names) == (6, 1, ("cat", "dog"))
    with pytest.raises(
        FileFormatError, match=r"must have a column 'label'.* by label_column"
    ):
        load_data(tmp_path)


def test_another_file_called_metadata_is_ignored(tree: Tree) -> None:
    root = tree({"cat": 2, "dog": 2})
    (root / "metadata.csv").write_text("when,who\n1,2\n")
    assert read_parts(root).layout == "class-folders"


# -- nested folders --------------------------------------------------------------------

NESTED = {
    f"{line}/{name}": 6 for line in ("line1", "line2") for name in ("ant", "bee", "cat")
}


def test_repeated_subfolder_names_are_warned_about(tree: Tree) -> None:
    root = tree(NESTED)
    with pytest.warns(
        DataWarning,
        match=r"'ant', 'bee', 'cat'\) repeat in 'line1', 'line2', which were taken",
    ):
        data = load_data(root)
    assert data.class_names == ("line1", "line2")


# -- plugins ---------------------------------------------------------------------------


def test_images_that_need_a_plugin_are_warned_about(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree({"cat": 6, "dog": 6})
    for name in ("cat/1.HEIC", "cat/2.heic", "dog/1.CR2", "dog/1.psd"):
        (root / name).write_bytes(b"x")
    monkeypatch.setattr(items, "has_plugin", lambda extra: False)
    with pytest.warns(DataWarning) as caught:
        data = load_data(root)
    text = str(caught[0].message)
    assert len(data.train) + len(data.test) == 12
    assert "HEIC images left out: 2; pip install 'evergrow[heic]' reads them" in text
    assert (
        "camera RAW images left out: 1; pip install 'evergrow[raw]' reads them" in text
    )
    assert "PSD images left out: 1; save them as JPEG or PNG" in text
    monkeypatch.setattr(items, "has_plugin", lambda extra: extra == "heic")
    with pytest.warns(DataWarning, match="PSD images left out: 1"):
        assert counts(load_data(root, test_size=0), "train") == [8, 6]
