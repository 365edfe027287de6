"""Parquet: texts, paths, bytes and the structs of Hugging Face, with whatever can be wrong about them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import PNG

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, ImageError, InputError
from evergrow.data import load_data, parquet
from evergrow.data.intake import read_items

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore:data set:evergrow.core.errors.DataWarning"),  # few samples of each class
]


def write(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None, **options: Any) -> Path:
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata), path, **options)
    return path


def bodies(n: int) -> list[bytes]:
    return [PNG + bytes([row % 256, row // 256]) for row in range(n)]


def test_texts(tmp_path: Path) -> None:
    words = [f"message {row}" for row in range(12)]
    columns = {"text": words, "label": ["ham", "spam"] * 6}
    data = load_data(write(tmp_path / "mail.parquet", columns))
    assert (data.layout, data.kind, len(data.train), len(data.test)) == ("parquet", "text", 10, 2)
    assert data.train.items.raw(0) in words
    with pytest.raises(FileFormatError, match=r"column 'split'; write the parts to files of their own"):
        load_data(write(tmp_path / "both.parquet", {**columns, "split": ["train"] * 8 + ["test"] * 4}))
    other = write(tmp_path / "other.parquet", {"body": words, "species": pa.array(["a", "b"] * 6).dictionary_encode()})
    named = load_data(other, test_size=0, text_column="body", label_column="species")
    assert (named.class_names, len(named.train)) == (("a", "b"), 12)
    with pytest.raises(FileFormatError, match="must have a column of texts"):
        load_data(other)


def test_image_bytes_in_several_groups_read_in_any_order(tmp_path: Path) -> None:
    images = bodies(100)
    columns = {"picture": images, "label": [row % 3 for row in range(100)]}
    path = write(tmp_path / "x.parquet", columns, row_group_size=37)
    data = load_data(path, test_size=0)
    assert (data.kind, data.class_names) == ("image", ("0", "1", "2"))
    order = [99, 0, 36, 37, 38, 98, 1, 73, 74, 50]
    assert [data.train.items.raw(row) for row in order] == [images[row] for row in order]
    again = pickle.loads(pickle.dumps(data.train))
    assert [again.items.raw(row) for row in range(100)] == images
    assert again.items.stamp() == data.train.items.stamp()
    assert data.train.items.name(5) == "x.parquet[5]"


def test_hugging_face_shards_with_class_names(tmp_path: Path) -> None:
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    folder = tmp_path / "pets" / "data"
    folder.mkdir(parents=True)
    for name, n in (("train-00000-of-00002", 5), ("train-00001-of-00002", 4), ("test-00000-of-00001", 3)):
        cells = [{"bytes": body, "path": None} for body in bodies(n)]
        write(folder / f"{name}.parquet", {"image": cells, "label": [row % 2 for row in range(n)]}, metadata)
    data = load_data(tmp_path / "pets")
    assert (data.layout, data.class_names, len(data.train), len(data.test)) == ("parquet", ("cat", "dog"), 9, 3)
    assert data.train.items.raw(6) == bodies(4)[1]


def test_paths_in_structs_and_columns(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.png").write_bytes(PNG)
    plain = write(tmp_path / "paths.parquet", {"path": ["a.png", "b.png"], "label": ["x", "y"]})
    assert load_data(plain, test_size=0).train.items.raw(1).read_bytes() == PNG
    cells = [
        {"bytes": None, "path": "a.png"},
        {"bytes": None, "path": "../../etc/passwd"},
        {"bytes": None, "path": None},
    ]
    data = load_data(write(tmp_path / "s.parquet", {"image": cells, "label": ["x", "y", "y"]}), test_size=0)
    assert data.train.items.raw(0).read_bytes() == PNG
    with pytest.raises(ImageError, match="must be in the folder"):
        data.train.items.raw(1)
    with pytest.raises(ImageError, match="its bytes are not in the table"):
        data.train.items.raw(2)
    with pytest.raises(DatasetNotFoundError, match=r"1 of 1 are not"):
        load_data(write(tmp_path / "lost.parquet", {"path": ["no.png"], "label": ["x"]}), test_size=0)


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        (
            {"text": ["a", None], "label": ["x", "y"]},
            InputError,
            r"text must not be empty, got None for x.parquet\[1\]",
        ),
        ({"text": ["a", "b"], "label": ["x", "  "]}, InputError, "must have a label, got '' in row 1"),
        ({"text": ["a"], "label": [0.5]}, InputError, "must have a label, got 0.5"),
        ({"text": ["a"], "label": [float("nan")]}, InputError, "must have a label, got nan"),
        ({"text": [["a"]], "label": ["x"]}, FileFormatError, "must have a column of texts"),
        ({"text": ["a"], "class_": ["x"]}, InputError, "must have labels; .*label_column"),
        ({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}, InputError, "at least one sample"),
    ],
)
def test_wrong_columns(columns: dict[str, Any], error: type[Exception], match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        load_data(write(tmp_path / "x.parquet", columns), test_size=0)


def test_duplicate_columns_damage_and_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["x"])], names=["text", "text", "label"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(FileFormatError, match="every column once"):
        load_data(tmp_path / "twice.parquet")
    path = write(tmp_path / "x.parquet", {"text": ["a" * 1000] * 5000, "label": ["x", "y"] * 2500})
    monkeypatch.setattr(parquet, "ROOM", 1000)
    with pytest.raises(FileFormatError, match="must unpack to at most 100 times"):
        load_data(path)
    body = path.read_bytes()
    for damaged in (b"", b"PAR1", body[:100], body[:-20] + bytes(20)):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="whole Parquet file"):
            load_data(path)


def test_without_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"image": bodies(3), "text": ["a", "b", "c"]})
    assert read_items(path, "image").items.raw(2) == bodies(3)[2]
    assert read_items(path, "text").items.raw(2) == "c"


def test_real_sentences(shared: Path, tmp_path: Path) -> None:
    import pandas

    frame = pandas.read_csv(shared / "texts" / "clinc150.csv", keep_default_na=False)
    frame = frame[frame["split"] != "unknown"]
    source = tmp_path / "clinc150.csv"
    frame.to_csv(source, index=False)
    (tmp_path / "parts").mkdir()
    for part in ("train", "test"):
        frame[frame["split"] == part].drop(columns="split").to_parquet(tmp_path / "parts" / f"{part}.parquet")
    one, two = load_data(source), load_data(tmp_path / "parts")
    assert (one.class_names, one.train.items.texts) == (two.class_names, two.train.items.texts)
    assert one.y_test.tolist() == two.y_test.tolist()
