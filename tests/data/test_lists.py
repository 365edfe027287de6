"""Images named by lists: where their images are looked for, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.conftest import Tree

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.data import load_data

pytestmark = pytest.mark.usefixtures("alone")

COUNTS = {"n01": 7, "n02": 8}


def _rows(start: int, stop: int, prefix: str = "") -> list[tuple[str, int]]:
    return [(f"{prefix}n{code + 1:02d}/{row:03d}.png", code) for code in (0, 1) for row in range(start, stop)]


def _text(path: Path, rows: list[tuple[str, object]], separator: str = " ") -> Path:
    path.write_text("".join(f"{name}{separator}{label}\n" for name, label in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_text_lists_in_a_folder(separator: str, tree: Tree) -> None:
    root = tree({f"images/{name}": count for name, count in COUNTS.items()})
    _text(root / "train.txt", _rows(0, 5), separator)
    _text(root / "test.txt", _rows(5, 7), separator)
    data = load_data(root)
    assert data.layout == "lists"
    assert data.class_names == ("n01", "n02")
    assert data.y_train.tolist() == [0] * 5 + [1] * 5
    assert data.test.items.name(2) == "n02/005.png"
    assert data.test.items.raw(2).is_file()


def test_a_list_finds_its_partner(tree: Tree) -> None:
    root = tree(COUNTS)
    _text(root / "mine_val.txt", _rows(5, 7))
    data = load_data(_text(root / "mine_train.txt", _rows(0, 5)))
    assert data.name == "mine"
    assert len(data.y_test) == 4
    alone = load_data(_text(root / "all.txt", _rows(0, 7)))
    assert (len(alone.y_train), len(alone.y_test)) == (12, 2)


def test_lists_written_from_elsewhere(tree: Tree) -> None:
    root = tree({f"data/imagenet/{name}": count for name, count in COUNTS.items()})
    (root / "splits").mkdir()
    train = _text(root / "splits" / "imagenet_train.txt", _rows(0, 5, "data/imagenet/"))
    _text(root / "splits" / "imagenet_test.txt", _rows(5, 7, "data/imagenet/"))
    data = load_data(train)
    assert data.class_names == ("n01", "n02")
    assert data.train.items.raw(0) == root / "data/imagenet/n01/000.png"
    elsewhere = load_data(train, root=root / "data" / "imagenet")
    assert elsewhere.train.items.name(0) == "n01/000.png"
    assert elsewhere.train.items.raw(0).is_file()


def test_lines_without_labels_take_the_folder(tree: Tree) -> None:
    root = tree({"air freshener": 6, "alarm clock": 6})
    rows = [f"{name}/{row:03d}.png" for name in ("air freshener", "alarm clock") for row in range(6)]
    (root / "train.txt").write_text("# a comment\n\n" + "\r\n".join(rows[:5] + rows[6:11]))
    (root / "test.txt").write_text("\ufeff" + "\n".join([rows[5], rows[11]]), encoding="utf-8")
    data = load_data(root)
    assert data.class_names == ("air freshener", "alarm clock")
    assert data.y_test.tolist() == [0, 1]


def test_integers_sort_as_numbers_and_names_stay_if_folders_do_not_match(tree: Tree) -> None:
    root = tree({"all": 15})
    rows = [(f"all/{row:03d}.png", label) for row, label in enumerate([2] * 5 + [10] * 5)]
    _text(root / "train.txt", rows)
    _text(root / "test.txt", [("all/010.png", 10), ("all/011.png", 2)])
    data = load_data(root)
    assert data.class_names == ("2", "10")
    assert data.y_test.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ("n01/000.png 0\nn01/000.png 0\n", "'n01/000.png' twice in train.txt"),
        ("n01/000.png 0\n./n01//000.png 1\n", "'n01/000.png' twice in train.txt"),
        ("n01/000.png 0\nn01/006.png 0\n", r"'n01/006.png' twice in train.txt and test.txt"),
    ],
)
def test_an_image_named_twice(lines: str, match: str, tree: Tree) -> None:
    root = tree(COUNTS)
    (root / "train.txt").write_text(lines)
    _text(root / "test.txt", _rows(5, 7))
    with pytest.raises(InputError, match=match):
        load_data(root)


def test_missing_images_are_counted_and_named(tree: Tree) -> None:
    root = tree(COUNTS)
    _text(root / "train.txt", [("n01/gone.png", 0), *_rows(0, 5)])
    _text(root / "test.txt", _rows(5, 7))
    with pytest.raises(DatasetNotFoundError, match=r"but 1 of 11 are not: 'n01/gone.png'"):
        load_data(root)
    _text(root / "train.txt", [("x/gone.png", 0), ("x/lost.png", 1)])
    with pytest.raises(DatasetNotFoundError, match=r"2 of 2 are not.*by root"):
        load_data(root)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"n01/000.png 0\njusttext\n", "line 2 must be a path and a label"),
        (b"", "at least one image"),
        (b"n01/000.png 0\n\xff\xfe\n", "UTF-8, but line 2"),
        ("n01/000.png 0".encode("utf-16"), "line 1 is not; it looks like UTF-16"),
    ],
)
def test_bad_text_lists(body: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    path.write_bytes(body)
    with pytest.raises(FileFormatError, match=match):
        load_data(path)


def test_folder_without_lists(tree: Tree) -> None:
    with pytest.raises(InputError, match="a folder of the layout 'lists'"):
        load_data(tree(COUNTS), layout="lists")
