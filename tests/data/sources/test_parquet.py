"""Parquet: texts, images, features, and reading of only the needed row groups."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.conftest import PNG
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import (
    LARGE,
    NAMES,
    bodies,
    images_table,
    jpeg,
    labels_of,
    names_of,
    parts_of,
)
from tests.engine.object_storage import upload

from evergrow.core.errors import FileFormatError, ImageError, InputError
from evergrow.data import load_data, parquet, read, source_from
from evergrow.data.inputs import read_items

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings(
        "ignore:data set:evergrow.core.errors.DataWarning"
    ),  # few samples of each class
]


def write(path: Path, columns: Any, **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_texts_are_read(tmp_path: Path) -> None:
    words = [f"message {row}" for row in range(12)]
    labels = ["ham", "spam"] * 6
    columns = {"text": words, "label": labels}
    data = load_data(write(tmp_path / "mail.parquet", columns))
    assert (data.layout, data.kind, len(data.train), len(data.test)) == (
        "parquet",
        "text",
        10,
        2,
    )
    assert data.train.items.raw(0) in words
    with pytest.raises(
        FileFormatError, match=r"column 'split'; write the parts to files of their own"
    ):
        load_data(
            write(
                tmp_path / "both.parquet",
                {**columns, "split": ["train"] * 8 + ["test"] * 4},
            )
        )
    other = write(
        tmp_path / "other.parquet",
        {"body": words, "species": pa.array(labels).dictionary_encode()},
    )
    source = read(other, text_column="body", label_column="species")
    parts = parts_of(source, rows=5)
    assert source.kind == "text"
    assert [part.items.raw(row) for part in parts for row in range(len(part))] == words
    assert labels_of(parts) == labels
    (plain,) = parts_of(read(other, text_column="species", labelled=False))
    assert (plain.labels, plain.items.raw(1)) == (None, "spam")


def test_image_bytes_in_several_groups_read_in_any_order(tmp_path: Path) -> None:
    images = [PNG + bytes([row]) for row in range(100)]
    columns = {"picture": images, "label": [row % 3 for row in range(100)]}
    path = write(tmp_path / "x.parquet", columns, row_group_size=37)
    data = load_data(path, test_size=0)
    assert (data.kind, data.class_names) == ("image", ("0", "1", "2"))
    order = [99, 0, 36, 37, 38, 98, 1, 73, 74, 50]
    assert [data.train.items.raw(row) for row in order] == [
        images[row] for row in order
    ]
    again = pickle.loads(pickle.dumps(data.train))
    assert bodies(again) == images
    assert again.items.stamp() == data.train.items.stamp()
    plain = write(tmp_path / "plain.parquet", {"image": images, "text": ["a"] * 100})
    assert read_items(plain, "image").items.raw(2) == images[2]
    assert read_items(plain, "text").items.raw(2) == "a"


def test_files_of_the_hub_are_parts_with_class_names(tmp_path: Path) -> None:
    (tmp_path / "pets/data").mkdir(parents=True)
    counts = {
        "train-00000-of-00002": 5,
        "train-00001-of-00002": 4,
        "test-00000-of-00001": 3,
    }
    for name, n in counts.items():
        write(tmp_path / f"pets/data/{name}.parquet", images_table(n))
    for part, numbers in (("train", [5, 4]), ("test", [3]), ("all", [3, 5, 4])):
        assert sorted(map(len, parts_of(read(tmp_path / "pets", part=part)))) == sorted(
            numbers
        )
    data = load_data(tmp_path / "pets")
    assert (data.layout, data.class_names) == ("parquet", tuple(NAMES))
    assert bodies(data.train) == [jpeg(row) for row in (0, 1, 2, 3, 4, 0, 1, 2, 3)]
    assert data.y_train.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0]
    assert bodies(data.test) == [jpeg(row) for row in range(3)]


def test_only_the_groups_and_columns_of_a_shard_are_read(
    tmp_path: Path, traffic: Traffic
) -> None:
    (tmp_path / "far").mkdir()
    path = write(
        tmp_path / "far/train-0.parquet", images_table(60, side=64), row_group_size=5
    )
    upload(tmp_path / "far", "memory://sets")
    far = read("memory://sets")
    local = read(tmp_path / "far")
    shards = list(far.shards(rows=10, size=LARGE))
    assert shards == list(local.shards(rows=10, size=LARGE))
    assert far.identity() == local.identity()
    assert traffic.total < path.stat().st_size / 4  # the footer
    worker = source_from(json.loads(json.dumps(far.describe())))
    worker.read(shards[0])
    traffic.sizes.clear()
    assert bodies(worker.read(shards[3])) == [jpeg(row, 64) for row in range(30, 40)]
    assert traffic.total == shards[3].size < 60_000  # without the ballast, 100 kB


@pytest.mark.parametrize("size", [10, 3000, LARGE])
def test_a_large_row_group_is_divided_among_shards(tmp_path: Path, size: int) -> None:
    source = read(write(tmp_path / "a.parquet", images_table(), row_group_size=20))
    parts = parts_of(source, rows=6, size=size)
    assert source.kind == "image"
    assert bodies(*parts) == [jpeg(row) for row in range(20)]
    assert max(map(len, parts)) <= 6
    assert names_of(parts) == [f"a.parquet[{row}]" for row in range(20)]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_vectors_are_read_as_features(tmp_path: Path, fixed: bool, dtype: type) -> None:
    X = np.random.default_rng(0).normal(size=(11, 4)).astype(dtype)
    values = pa.array(X.reshape(-1))
    if fixed:
        lists = pa.FixedSizeListArray.from_arrays(values, 4)
    else:
        lists = pa.ListArray.from_arrays(np.arange(0, 45, 4), values)
    names = [f"{row}.jpg" for row in range(11)]
    columns = {"name": names, "label": ["a"] * 11, "feature": lists}
    source = read(write(tmp_path / "f.parquet", columns, row_group_size=5))
    parts = parts_of(source, rows=3)
    if dtype == np.float16:
        expected = X.astype(np.float32)
    else:
        expected = X
    assert source.kind == "features"
    assert (
        np.concatenate([part.features for part in parts]).tobytes()
        == expected.tobytes()
    )
    assert names_of(parts) == names


def test_images_without_bytes_are_errors_of_single_images(tmp_path: Path) -> None:
    cells = [
        {"bytes": jpeg(0), "path": None},
        {"bytes": None, "path": "../../etc/passwd"},
        {"bytes": b"", "path": ""},
    ]
    for images in (cells, [jpeg(0), None, b""]):
        (held,) = parts_of(
            read(write(tmp_path / "c.parquet", {"image": images, "label": ["x"] * 3}))
        )
        assert held.items.raw(0) == jpeg(0)
        for row in (1, 2):
            with pytest.raises(
                ImageError, match="bytes of the image must be in the table"
            ):
                held.items.raw(row)


OTHER = {"caption": ["a"], "kind": ["b"], "count": [1]}
NOTHING = pa.array([], pa.string())
XY = ["x", "y"]


@pytest.mark.parametrize(
    ("columns", "options", "error", "match"),
    [
        (
            {"text": ["a", None], "label": XY},
            {},
            InputError,
            r"text must not be empty, got None for x.parquet\[1\]",
        ),
        (
            {"text": ["a", "b"], "label": ["x", "  "]},
            {},
            InputError,
            "must have a label, got '' in row 1",
        ),
        (
            {"text": ["a", "b"], "label": ["x", None]},
            {},
            InputError,
            r"x.parquet: .* a label, got None in row 1",
        ),
        ({"text": ["a"], "label": [0.5]}, {}, InputError, "must have a label, got 0.5"),
        (
            {"text": ["a"], "label": [float("nan")]},
            {},
            InputError,
            "must have a label, got nan",
        ),
        (
            {"text": [["a"]], "label": ["x"]},
            {},
            FileFormatError,
            "column 'text' must hold texts, got numbers or other values; name "
            "another column by text_column",
        ),
        (
            {"text": [3, 4], "label": ["x", "y"]},
            {},
            FileFormatError,
            "column 'text' must hold texts, got numbers or other values",
        ),
        (
            {"text": ["a"], "class_": ["x"]},
            {},
            InputError,
            "must have labels; .*label_column",
        ),
        (
            {"path": ["a.png"], "label": ["x"]},
            {},
            FileFormatError,
            "'path' must hold images, got their names",
        ),
        ({"text": NOTHING, "label": NOTHING}, {}, InputError, "at least one sample"),
        ({"feature": [[1.0], [np.nan]], "label": XY}, {}, InputError, "must be finite"),
        (
            {"feature": [[0.5], [0.5] * 4], "label": XY},
            {},
            FileFormatError,
            "x.parquet: feature must hold .* of one width",
        ),
        (
            images_table(3).set_column(1, "label", pa.array([0, 1, 7])),
            {},
            InputError,
            "the 3 named classes, got 7",
        ),
        (
            OTHER,
            {},
            FileFormatError,
            "must have a column 'text'.*got 'caption', 'kind', 'count'",
        ),
        (
            OTHER,
            {"text_column": "captoin"},
            FileFormatError,
            "must have a column .*, got 'caption', 'kind'",
        ),
        (
            OTHER,
            {"text_column": "caption", "label_column": "clas"},
            FileFormatError,
            "must have a column .*, got 'cap",
        ),
        (
            OTHER,
            {"image_column": "count"},
            FileFormatError,
            "column 'count' must hold images",
        ),
    ],
)
def test_invalid_columns_are_refused(
    columns: Any,
    options: dict[str, str],
    error: type[Exception],
    match: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=match):
        load_data(write(tmp_path / "x.parquet", columns), test_size=0, **options)


@pytest.mark.parametrize(
    ("one", "other", "match"),
    [
        (
            {"feature": [[0.5] * 3]},
            {"feature": [[0.5] * 5]},
            r"width 3 in a.parquet and 5 in b.parquet",
        ),
        (
            {"text": ["a"], "label": ["x"]},
            {"text": ["a"]},
            "labels 'label' in a.parquet and '' in b",
        ),
    ],
)
def test_parquet_files_of_different_form_are_refused(
    one: dict[str, Any], other: dict[str, Any], match: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.parquet", one)
    write(tmp_path / "b.parquet", other)
    with pytest.raises(FileFormatError, match=match):
        parts_of(read(tmp_path))


def test_duplicate_columns_damage_and_wrong_statistics_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["b"]), pa.array(["x"])],
        names=["text", "text", "label"],
    )
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(FileFormatError, match="every column once"):
        load_data(tmp_path / "twice.parquet")
    path = write(
        tmp_path / "x.parquet",
        {"text": ["a" * 1000] * 5000, "label": ["x", "y"] * 2500},
    )
    monkeypatch.setattr(parquet, "ROOM", 1000)
    with pytest.raises(FileFormatError, match="must unpack to at most 100 times"):
        load_data(path)
    body = path.read_bytes()
    for damaged in (b"", b"PAR1", body[:100], body[:-20] + bytes(20)):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="intact Parquet file"):
            load_data(path)


def test_wrong_row_counts_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        {"text": [f"t{row}" for row in range(300)], "label": ["x"] * 300},
    )
    body = path.read_bytes()
    footer = int.from_bytes(body[-8:-4], "little")
    thrift = body[-8 - footer : -8]
    count = bytes([0xD8, 0x04])  # 300 as thrift writes it: zigzag, seven bits a byte
    for value, places in (
        (301, -1),
        (2**40, -1),
        (10, 1),
    ):  # everywhere, or in one place of several
        lie = b""
        zigzag = 2 * value
        while zigzag >= 128:
            lie = lie + bytes([zigzag & 127 | 128])
            zigzag = zigzag >> 7
        told = thrift.replace(count, lie + bytes([zigzag]), places)
        assert told != thrift
        path.write_bytes(
            body[: -8 - footer] + told + len(told).to_bytes(4, "little") + b"PAR1"
        )
        with pytest.raises(FileFormatError, match=r"a\.parquet must"):
            parts_of(read(path), rows=50)
