"""The imagefolder of Hugging Face, nested class folders, and images that need a plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.data.conftest import PNG, Tree
from tests.data.test_archives import pack

from evergrow.core.errors import DataWarning, FileFormatError, InputError
from evergrow.data import items as image_formats
from evergrow.data import load_data
from evergrow.data.intake import read_parts

pytestmark = pytest.mark.usefixtures("alone")


# -- metadata ---------------------------------------------------------------------------------------------


def metadata(folder: Path, labels: list[str], form: str = "csv", column: str = "label") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(f"{number}.png", label) for number, label in enumerate(labels)]
    for name, _ in rows:
        (folder / name).write_bytes(PNG)
    if form == "csv":
        body = "".join(f"{name},{label}\n\n" for name, label in rows)
        (folder / "metadata.csv").write_text(f"\ufefffile_name,{column}\n{body}", encoding="utf-8")
    else:
        (folder / "metadata.jsonl").write_text(
            "".join(json.dumps({"file_name": name, column: label}) + "\n" for name, label in rows)
        )


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_metadata_beside_images(form: str, tmp_path: Path) -> None:
    root = tmp_path / "pets"
    metadata(root, ["cat", "dog", "cat"], form)
    data = read_parts(root)
    assert (data.layout, data.train.labels.tolist(), data.test) == ("table", ["cat", "dog", "cat"], None)
    assert read_parts(pack(root, tmp_path / "pets.zip")).train.labels.tolist() == ["cat", "dog", "cat"]


def test_metadata_of_two_parts_and_another_column(tmp_path: Path) -> None:
    metadata(tmp_path / "train", ["cat", "dog"] * 3, column="species")
    metadata(tmp_path / "test", ["dog"], column="species")
    with pytest.warns(DataWarning, match="fewer than 5"):
        data = load_data(tmp_path, label_column="species")
    assert (len(data.train), len(data.test), data.class_names) == (6, 1, ("cat", "dog"))
    with pytest.raises(FileFormatError, match=r"must have a column 'label'.* by label_column"):
        load_data(tmp_path)


def test_another_file_called_metadata_is_passed_over(tree: Tree) -> None:
    root = tree({"cat": 2, "dog": 2})
    (root / "metadata.csv").write_text("when,who\n1,2\n")
    assert read_parts(root).layout == "class-folders"


# -- nested folders ---------------------------------------------------------------------------------------

NESTED = {f"{line}/{name}": 6 for line in ("line1", "line2") for name in ("ant", "bee", "cat")}


def test_repeated_names_are_noticed(tree: Tree) -> None:
    root = tree(NESTED)
    with pytest.warns(DataWarning, match=r"'ant', 'bee', 'cat'\) repeat in 'line1', 'line2'.*a class level of 2 takes"):
        data = load_data(root)
    assert data.class_names == ("line1", "line2")
    inner = load_data(root, class_level=2, test_size=0)
    assert inner.class_names == ("ant", "bee", "cat")
    assert inner.train_counts.tolist() == [12, 12, 12]
    assert load_data(root, class_level=1).class_names == ("line1", "line2")
    with pytest.raises(InputError, match="class_level must be a depth at which"):
        load_data(root, class_level=3)


def test_class_level_in_parts_and_archives(tree: Tree, tmp_path: Path) -> None:
    root = tree({f"{part}/{name}": n for part, n in (("train", 6), ("test", 2)) for name in NESTED})
    for source in (root, pack(root, tmp_path / "pets.zip")):
        data = load_data(source, class_level=2)
        assert (data.class_names, data.train_counts.tolist(), len(data.test)) == (("ant", "bee", "cat"), [12] * 3, 12)
    with pytest.warns(DataWarning, match="repeat in"):
        load_data(root)


# -- plugins ----------------------------------------------------------------------------------------------


def test_images_that_need_a_plugin_are_said(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree({"cat": 6, "dog": 6})
    for name in ("cat/1.HEIC", "cat/2.heic", "dog/1.CR2", "dog/1.psd"):
        (root / name).write_bytes(b"x")
    monkeypatch.setattr(image_formats, "_is_there", lambda module: False)
    with pytest.warns(DataWarning) as said:
        data = load_data(root)
    text = str(said[0].message)
    assert len(data.train) + len(data.test) == 12
    assert "HEIC images left out: 2; pip install 'evergrow[heic]' reads them" in text
    assert "camera RAW images left out: 1; pip install 'evergrow[raw]' reads them" in text
    assert "PSD images left out: 1; save them as JPEG or PNG" in text
    monkeypatch.setattr(image_formats, "_is_there", lambda module: True)
    with pytest.warns(DataWarning, match="PSD images left out: 1"):
        assert load_data(root, test_size=0).train_counts.tolist() == [8, 7]
