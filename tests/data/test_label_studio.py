"""Exports of Label Studio: one class per sample is read, everything else is counted and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import PNG

from evergrow.core.errors import DatasetNotFoundError, DataWarning, FileFormatError, InputError
from evergrow.data.intake import read_parts

pytestmark = pytest.mark.usefixtures("alone")


def images(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(PNG)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def task(reference: str, choices: list[str], kind: str = "image", **more: Any) -> dict[str, Any]:
    result = [{"type": "choices", "value": {"choices": choices}}] if choices else []
    return {"id": 1, "data": {kind: reference}, "annotations": [{"result": result, **more}]}


def test_images_with_what_cannot_be_used(tmp_path: Path) -> None:
    images(tmp_path, ["data/upload/3/ab-1.png", "birds/2.png", "3.png", "4.png"])
    marked = [{"type": "rectanglelabels", "value": {"x": 1}}]
    tasks = [
        task("/data/upload/3/ab-1.png", ["cat"]),
        task("/data/local-files/?d=birds/2.png", ["dog", "dog"]),
        task("3.png", ["cat", "dog"]),
        task("4.png", []),
        task("4.png", ["cat"], was_cancelled=True),
        task("s3://bucket/5.png", ["cat"]),
        {"id": 9, "data": {"image": "/data/upload/3/x.png"}, "annotations": [{"result": marked}]},
    ]
    path = write(tmp_path / "result.json", tasks)
    for source in (path, tmp_path):
        with pytest.warns(DataWarning, match="samples left out: 5 .*on another machine: 1.* ratings only: 1") as said:
            data = read_parts(source)
        assert "of several classes: 1" in str(said[0].message)
        assert "without a class: 2" in str(said[0].message)
        assert (data.layout, data.train.labels.tolist()) == ("label-studio", ["cat", "dog"])
        assert data.train.items.raw(0).read_bytes() == PNG


@pytest.mark.parametrize("file", ["birds_{part}.json", "{part}/annotations.json"])
def test_two_parts(file: str, tmp_path: Path) -> None:
    for part, n in (("val", 2), ("train", 4)):
        names = [f"{part}/{number}.png" for number in range(n)]
        images(tmp_path, names)
        tasks = [task(name, ["cat" if number % 2 else "dog"]) for number, name in enumerate(names)]
        path = write(tmp_path / file.format(part=part), tasks)
    data = read_parts(tmp_path if "/" in file else path)
    assert (len(data.train), len(data.test), data.test.labels.tolist()) == (4, 2, ["dog", "cat"])


def test_texts_and_the_small_form(tmp_path: Path) -> None:
    data = read_parts(write(tmp_path / "x.json", [task("hello", ["ham"], "text"), task("buy", ["spam"], "text")]))
    assert (data.train.items.texts, data.train.labels.tolist()) == (("hello", "buy"), ["ham", "spam"])
    small = [{"id": 1, "text": "hello", "choice": "ham"}, {"id": 2, "text": "buy", "choice": {"choices": ["spam"]}}]
    assert read_parts(write(tmp_path / "y.json", small)).train.labels.tolist() == ["ham", "spam"]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b'{"images": []}', "got another JSON"),
        (b"[]", "got another JSON"),
        (b"[1, 2]", "got another JSON"),
        (b"[" * 200_000, "must be JSON"),
        (b"\xff\xfe[]", "UTF-8"),
        ([task("a.png", [])], r"exactly one class, got none \(without a class: 1\)"),
        ([task("a.png", ["x", "y"])], "of several classes: 1"),
        ([{"id": 1}], "task 1 must have an 'image' or a 'text'"),
        ([task("a.png", ["x"]), task("hello", ["y"], "text")], "got both"),
    ],
)
def test_what_is_refused(content: Any, match: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(FileFormatError, match=match):
        read_parts(tmp_path / "x.json")


def test_images_outside_of_the_folder_or_named_twice_are_refused(tmp_path: Path) -> None:
    images(tmp_path, ["secret.png"])
    with pytest.raises(InputError, match="named once"):
        read_parts(write(tmp_path / "x.json", [task("secret.png", ["cat"]), task("secret.png", ["dog"])]))
    folder = tmp_path / "deep" / "down" / "set"
    for name in ("../../../secret.png", str(tmp_path / "secret.png")):
        with pytest.raises(DatasetNotFoundError, match=r"1 of 1 are not"):
            read_parts(write(folder / "x.json", [task(name, ["cat"])]))
