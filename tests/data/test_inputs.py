from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.learner.toys import image, write_folder

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    InputError,
    LabelError,
)
from evergrow.data import Dataset, load_data
from evergrow.data.inputs import as_names, read_items, read_labelled, read_unknown
from evergrow.data.items import Images, Texts

PIXELS = np.zeros((3, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("part", ["train", "test", "all"])
def test_a_folder_without_a_test_set_is_read_completely(
    part: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "pets", {"red": 0, "blue": 1}, n=10)
    monkeypatch.setenv("EVERGROW_DATA", str(tmp_path))
    for source in (folder, "pets", load_data(folder, test_size=0)):
        assert (
            sorted(read_labelled(source, part).required_labels().tolist())
            == ["blue"] * 10 + ["red"] * 10
        )
    assert (
        len(read_labelled(load_data(folder), part))
        == {"train": 16, "test": 4, "all": 20}[part]
    )


def test_the_requested_part_of_a_folder_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "d" / "train", {"red": 0, "blue": 1}, n=4)
    write_folder(tmp_path / "d" / "test", {"red": 0, "blue": 1}, n=2)
    assert [
        len(read_labelled(tmp_path / "d", part)) for part in ("train", "test", "all")
    ] == [8, 4, 12]


def test_the_test_part_of_a_table_can_have_new_classes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label,split\na,x,train\nb,x,test\nc,y,test\n")
    assert read_labelled(tmp_path / "t.csv", "test").required_labels().tolist() == [
        "x",
        "y",
    ]


def test_one_image_is_enough_and_cautions_are_warned_about_once(tmp_path: Path) -> None:
    write_folder(tmp_path / "all", {"red": 0}, n=1)
    assert read_labelled(str(tmp_path / "all"), "train").names() == ["red/0.png"]
    (tmp_path / "all" / "red" / "drawing.psd").write_bytes(b"x")
    with pytest.warns(
        DataWarning, match="'all' can be used but: .*PSD images left out: 1"
    ) as caught:
        read_labelled(tmp_path / "all", "train")
    assert len(caught) == 1


def test_parts_of_data_sets_in_memory_become_samples() -> None:
    y = np.array([0, 1])
    raw = Dataset.of(
        Texts(("a", "b")), y, Texts(("c", "d")), y, names=("one", "two"), name="r"
    )
    assert read_labelled(raw, "test").raw_items().raw(0) == "c"
    assert read_labelled(raw, "all").required_labels().tolist() == [
        "one",
        "two",
        "one",
        "two",
    ]
    features = Dataset.of(np.eye(2, dtype=np.float16), y)
    samples = read_labelled(features, "train")
    assert samples.features is not None
    assert samples.features.dtype == np.float32
    assert samples.required_labels().tolist() == ["0", "1"]


@pytest.mark.parametrize(
    ("items", "kind", "expected"),
    [
        (["one text", "two"], None, "text"),
        ("a text", None, "text"),
        ("a text", "text", "text"),
        ("x" * 5000, "text", "text"),
        (np.array(["one", "two"]), None, "text"),
        (PIXELS, None, "image"),
        (PIXELS[..., 0], None, "image"),
        (PIXELS[0], None, "image"),
        (list(PIXELS), "image", "image"),
        ([PIXELS[0], image(0, 0)], None, "image"),
        (Image.fromarray(PIXELS[0]), None, "image"),
        ([Image.fromarray(PIXELS[0]), PIXELS[1]], None, "image"),
        (np.zeros((2, 5)), None, "features"),
        (np.zeros(5), None, "features"),
        (np.zeros((2, 5), dtype=np.uint8), "features", "features"),
        (torch.zeros(2, 5), None, "features"),
        ([[0.0, 1.0], [2.0, 3.0]], None, "features"),
        (Texts(("a",)), None, "text"),
        (Images(PIXELS), None, "image"),
    ],
)
def test_items_are_recognised_as_texts_images_or_features(
    items: object, kind: str | None, expected: str
) -> None:
    samples = read_items(items, kind)
    assert samples.kind == expected
    assert not samples.lasting
    assert len(samples) >= 1


def test_folders_images_and_arrays_on_disk_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "deep", {"red": 0, "blue": 1}, n=2)
    assert read_items(folder).names() == [
        "blue/0.png",
        "blue/1.png",
        "red/0.png",
        "red/1.png",
    ]
    paths = [folder / "red/1.png", folder / "blue/0.png"]
    for given in (paths, [str(path) for path in paths]):
        samples = read_items(given)
        assert isinstance(samples.items, Images)
        assert [samples.items.raw(row) for row in range(2)] == paths
    assert len(read_items(str(paths[0]))) == 1
    np.save(tmp_path / "x.npy", np.eye(3))
    np.savez(tmp_path / "x.npz", X=np.eye(4))
    assert [len(read_items(tmp_path / name)) for name in ("x.npy", "x.npz")] == [3, 4]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("t.txt", "one\n\ntwo\n"),
        ("t.csv", 'id;text\n1;"one"\n2;two\n'),
        ("t.tsv", "text\tid\none\t1\ntwo\t2\n"),
        ("t.jsonl", '{"text": "one"}\n{"text": "two"}\n'),
    ],
)
def test_files_of_texts_are_read(tmp_path: Path, name: str, body: str) -> None:
    (tmp_path / name).write_text(body)
    items = read_items(tmp_path / name, "text").raw_items()
    assert [items.raw(row) for row in range(len(items))] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("t.csv", "words\none\n", "column 'text'"),
        ("t.jsonl", "{", "line 1 must be"),
        ("t.jsonl", '{"text": [5]}', "column 'text'"),
        ("t.jsonl", '{"text": "one"}\n{"text": null}', "line 2 must have 'text'"),
        ("t.txt", "\n", "at least one text"),
    ],
)
def test_malformed_files_of_texts_are_refused(
    tmp_path: Path, name: str, body: str, message: str
) -> None:
    (tmp_path / name).write_text(body)
    with pytest.raises(FileFormatError, match=message):
        read_items(tmp_path / name, "text")


@pytest.mark.parametrize(
    ("items", "kind", "error", "message"),
    [
        ([], None, InputError, "at least one item"),
        (np.zeros((0, 5)), None, InputError, "at least one item"),
        (np.full((2, 2), np.nan), None, InputError, "finite.*row 0"),
        (np.zeros((2, 3, 4)), None, InputError, "shape"),
        (
            ["nowhere/a.png", "nowhere/b.jpg"],
            None,
            DatasetNotFoundError,
            "nowhere/a.png.*1 more",
        ),
        (
            ["one", "more"],
            "image",
            DatasetNotFoundError,
            "got 'one' and 1 more; texts need a text backbone",
        ),
        (["a/b.jpg"], "image", DatasetNotFoundError, r"got 'a/b\.jpg'$"),
        ([Path("a.png"), "b"], "text", DatasetNotFoundError, "a.png"),
        ([1.0, "a"], None, InputError, "float, str"),
        (b"abc", None, InputError, "bytes"),
        (5, None, InputError, "int"),
    ],
)
def test_invalid_items_are_refused(
    items: object, kind: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_items(items, kind)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((np.eye(2), ["a"]), LabelError, "one per sample"),
        ((np.eye(2), None), LabelError, "NoneType"),
        ((np.eye(2), [None, "a"]), LabelError, "None"),
        ((np.eye(2), [float("nan"), 1.0]), LabelError, "nan"),
        ((np.eye(2), ["", "a"]), LabelError, "visible names"),
        ((np.eye(2), [True, "a"]), LabelError, "mix of bool, str"),
        ((np.eye(2), [1, True]), LabelError, "mix of bool, int"),
        ((np.eye(2), ["x", 5]), LabelError, "mix of int, str"),
        ((np.eye(2), "ab"), LabelError, "sequence"),
        ((np.eye(2),), InputError, "tuple of 1"),
        (5, InputError, "int"),
        ("nowhere/at/all", DatasetNotFoundError, "nowhere"),
    ],
)
def test_invalid_labelled_data_is_refused(
    data: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_labelled(data, "train")


def test_labels_become_names() -> None:
    assert as_names(np.array([1, 20], dtype=np.int16), 2).tolist() == ["1", "20"]
    assert as_names(torch.tensor([3, 4]), 2).tolist() == ["3", "4"]
    assert as_names(("x", 5), 2).tolist() == ["x", "5"]


def test_the_stamp_of_images_in_memory_follows_their_appearance() -> None:
    first = Image.fromarray(image(0, 0))
    second = Image.fromarray(image(0, 1))
    stamps = [
        read_items([image]).raw_items().stamp()
        for image in (first, first.copy(), second)
    ]
    assert stamps[0] == stamps[1] != stamps[2]


def test_unknown_samples_are_read_with_and_without_classes(tmp_path: Path) -> None:
    write_folder(tmp_path / "classes", {"red": 0}, n=2)
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.fromarray(image(0, 0)).save(flat / "a.png")
    assert read_unknown(tmp_path / "classes", "image").labels is not None
    assert read_unknown(flat, "image").labels is None
    assert read_unknown(np.eye(3), "features").labels is None
