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


def task(reference: str, choices: list[str], kind: str = "image", **more: Any) -> dict[str, Any]:
    result = [{"type": "choices", "value": {"choices": choices}}, {"type": "rectanglelabels", "value": {"x": 1}}]
    return {"id": 1, "data": {kind: reference}, "annotations": [{"result": result, **more}]}


def write(path: Path, content: Any, *images: str) -> Path:
    for name in images:
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(PNG)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_images_of_one_class_are_read_and_the_others_counted(tmp_path: Path) -> None:
    tasks = [
        task("/data/upload/3/ab-1.png", ["cat"]),
        task("/data/local-files/?d=birds/2.png", ["dog"]),
        task("3.png", ["cat", "dog"]),
        task("4.png", []),
        task("4.png", ["cat"], was_cancelled=True),
        task("s3://bucket/5.png", ["cat"]),
    ]
    path = write(tmp_path / "export.json", tasks, "data/upload/3/ab-1.png", "birds/2.png", "3.png", "4.png")
    words = "images on another machine: 1, of several classes: 1, without a class: 2"
    with pytest.warns(DataWarning, match=words):
        data = read_parts(path)
    assert (data.layout, data.train.labels.tolist()) == ("label-studio", ["cat", "dog"])


def test_texts_and_the_small_form(tmp_path: Path) -> None:
    data = read_parts(write(tmp_path / "x.json", [task("hello", ["ham"], "text"), task("buy", ["spam"], "text")]))
    assert (data.train.items.texts, data.train.labels.tolist()) == (("hello", "buy"), ["ham", "spam"])
    small = [{"id": 1, "text": "hello", "choice": "ham"}, {"id": 2, "text": "buy", "choice": {"choices": ["spam"]}}]
    assert read_parts(write(tmp_path / "y.json", small)).train.labels.tolist() == ["ham", "spam"]


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ({"images": []}, FileFormatError, "no export of Label Studio"),
        ([1, 2], FileFormatError, "no export of Label Studio"),
        ([], FileFormatError, "no sample of one class"),
        ([task("a.png", [])], FileFormatError, r"no sample of one class \(without a class: 1\)"),
        ([{"id": 1}], FileFormatError, "task 1 has neither"),
        ([task("a.png", ["x"]), task("hello", ["y"], "text")], FileFormatError, "both kinds"),
        ([task("a.png", ["x"]), task("a.png", ["y"])], InputError, "named once"),
        ([task("../../secret.png", ["x"])], DatasetNotFoundError, "1 of 1 are not"),
    ],
)
def test_what_is_refused(content: Any, error: type[Exception], match: str, tmp_path: Path) -> None:
    write(tmp_path / "x.json", content, "secret.png", "deep/down/set/a.png")
    with pytest.raises(error, match=match):
        read_parts(write(tmp_path / "deep/down/set/x.json", content))


@pytest.mark.parametrize(("raw", "match"), [(b"[" * 200_000, "no JSON"), (b"\xff\xfe[]", "UTF-8")])
def test_damaged_files_are_refused(raw: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(FileFormatError, match=match):
        read_parts(tmp_path / "x.json")
