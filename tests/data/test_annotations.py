"""COCO and Label Studio: one class per sample is read, everything else is counted and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import PNG

from evergrow.core.errors import DatasetNotFoundError, DataWarning, FileFormatError, InputError
from evergrow.data.intake import read_parts

pytestmark = pytest.mark.usefixtures("alone")


def coco(pairs: list[tuple[str, list[str]]], **more: Any) -> dict[str, Any]:
    """Return an export with these classes of every image."""
    names = sorted({name for _, classes in pairs for name in classes})
    return {
        "images": [{"id": number, "file_name": name} for number, (name, _) in enumerate(pairs)],
        "categories": [{"id": 7 + number, "name": name} for number, name in enumerate(names)],
        "annotations": [
            {"image_id": number, "category_id": 7 + names.index(name), **more}
            for number, (_, classes) in enumerate(pairs)
            for name in classes
        ],
    }


def images(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(PNG)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_coco_with_what_cannot_be_used(tmp_path: Path) -> None:
    pairs = [("a.png", ["cat"]), ("b.png", ["dog", "dog"]), ("c.png", ["cat", "dog"]), ("d.png", [])]
    images(tmp_path / "images", [name for name, _ in pairs])
    path = write(tmp_path / "annotations.json", coco(pairs, bbox=[0, 0, 1, 1]))
    for source in (path, tmp_path):
        with pytest.warns(DataWarning, match=r"samples left out: 2 \(of several classes: 1, without a class: 1\)"):
            data = read_parts(source)
        assert (data.layout, data.train.labels.tolist()) == ("coco", ["cat", "dog"])
        assert any("boxes or outlines: whole images are learned" in note for note in data.notes)
        assert data.train.items.raw(0).read_bytes() == PNG


@pytest.mark.parametrize(
    ("test", "folder", "file"),
    [
        ("val", "{part}2017", "annotations/instances_{part}2017.json"),  # as it is published
        ("valid", "{part}", "{part}/_annotations.coco.json"),
    ],
)
def test_coco_of_two_parts(test: str, folder: str, file: str, tmp_path: Path) -> None:
    for part, n in ((test, 2), ("train", 4)):
        pairs = [(f"{part}{number}.png", ["cat" if number % 2 else "dog"]) for number in range(n)]
        images(tmp_path / folder.format(part=part), [name for name, _ in pairs])
        path = write(tmp_path / file.format(part=part), coco(pairs))
    for source in (tmp_path, path) if test == "val" else (tmp_path,):
        data = read_parts(source)
        assert (len(data.train), len(data.test), data.test.labels.tolist()) == (4, 2, ["dog", "cat"])


def task(reference: str, choices: list[str], kind: str = "image", **more: Any) -> dict[str, Any]:
    result = [{"type": "choices", "value": {"choices": choices}}] if choices else []
    return {"id": 1, "data": {kind: reference}, "annotations": [{"result": result, **more}]}


def test_label_studio_images(tmp_path: Path) -> None:
    images(tmp_path, ["upload/3/ab-1.png", "birds/2.png", "3.png", "4.png"])
    marked = [{"type": "rectanglelabels", "value": {"x": 1}}]
    box = {"id": 9, "data": {"image": "/data/upload/3/x.png"}, "annotations": [{"result": marked}]}
    tasks = [
        task("/data/upload/3/ab-1.png", ["cat"]),
        task("/data/local-files/?d=birds/2.png", ["dog"]),
        task("3.png", ["cat", "dog"]),
        task("4.png", []),
        task("4.png", ["cat"], was_cancelled=True),
        task("s3://bucket/5.png", ["cat"]),
        box,
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "upload").rename(tmp_path / "data" / "upload")
    with pytest.warns(DataWarning, match="images on another machine: 1.* boxes, outlines or ratings only: 1") as said:
        data = read_parts(write(tmp_path / "export.json", tasks))
    assert "of several classes: 1" in str(said[0].message)
    assert "without a class: 2" in str(said[0].message)
    assert (data.layout, data.train.labels.tolist()) == ("label-studio", ["cat", "dog"])


def test_label_studio_texts_and_the_small_form(tmp_path: Path) -> None:
    data = read_parts(write(tmp_path / "x.json", [task("hello", ["ham"], "text"), task("buy", ["spam"], "text")]))
    assert (data.train.items.texts, data.train.labels.tolist()) == (("hello", "buy"), ["ham", "spam"])
    small = [{"id": 1, "text": "hello", "choice": "ham"}, {"id": 2, "text": "buy", "choice": {"choices": ["spam"]}}]
    assert read_parts(write(tmp_path / "y.json", small)).train.labels.tolist() == ["ham", "spam"]


EMPTY: dict[str, Any] = {"annotations": [], "categories": []}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"images": []}, "got another JSON"),
        ([], "got another JSON"),
        ([1, 2], "got another JSON"),
        ({**EMPTY, "images": 3}, "images must be a list of objects"),
        ({**EMPTY, "images": [{"id": True, "file_name": "a"}]}, "an id of their own .*'id': True"),
        ({**EMPTY, "images": [{"id": 1, "file_name": " "}]}, "and a file_name, got"),
        (
            {**EMPTY, "images": [{"id": 1, "file_name": name} for name in "ab"]},
            "id of their own .* 'b'",
        ),
        (coco([("a.png", [])]), r"exactly one class, got none \(without a class: 1\)"),
        (coco([("a.png", ["x", "y"])]), "of several classes: 1"),
        ([{"id": 1}], "task 1 must have an 'image' or a 'text'"),
        ([task("a.png", ["x"]), task("hello", ["y"], "text")], "got both"),
    ],
)
def test_what_is_refused(content: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=match):
        read_parts(write(tmp_path / "x.json", content))


def test_annotations_of_nothing_nesting_and_bad_letters(tmp_path: Path) -> None:
    wrong = coco([("a.png", ["cat"])])
    wrong["annotations"][0]["image_id"] = [1]
    with pytest.raises(FileFormatError, match="annotate images and categories that are in it"):
        read_parts(write(tmp_path / "x.json", wrong))
    (tmp_path / "x.json").write_text("[" * 200_000)
    with pytest.raises(FileFormatError, match="must be JSON"):
        read_parts(tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes(b"\xff\xfe[]")
    with pytest.raises(FileFormatError, match="UTF-8"):
        read_parts(tmp_path / "x.json")


def test_images_outside_of_the_folder_or_named_twice_are_refused(tmp_path: Path) -> None:
    images(tmp_path, ["secret.png"])
    twice = coco([("secret.png", ["cat"]), ("secret.png", ["dog"])])
    with pytest.raises(InputError, match="named once"):
        read_parts(write(tmp_path / "x.json", twice))
    folder = tmp_path / "deep" / "down" / "set"
    for name in ("../../../secret.png", str(tmp_path / "secret.png")):
        path = write(folder / "x.json", coco([(name, ["cat"])]))
        with pytest.raises(DatasetNotFoundError, match=r"1 of 1 are not"):
            read_parts(path)
