"""Parquet files as sources: rows equal those of pyarrow, and only the needed columns of the needed groups are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import bodies, jpeg
from tests.engine.object_storage import upload

from evergrow.core.errors import EvergrowError, FileFormatError, ImageError, InputError
from evergrow.data import Source, read, source_from

LARGE = 1 << 30


def images_table(n: int = 20, side: int = 24) -> pa.Table:
    """Return a table as the Hugging Face library writes it: images with their paths, and labels with names."""
    cells = [{"bytes": jpeg(row, side), "path": f"{row}.jpg"} for row in range(n)]
    about = {"info": {"features": {"label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"}}}}
    image = pa.array(cells, type=pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    ballast = pa.array([np.random.default_rng(row).bytes(5000).hex() for row in range(n)])
    table = pa.table({"image": image, "label": pa.array([row % 3 for row in range(n)]), "ballast": ballast})
    return table.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})


def rows_of(source: Source, rows: int = 7, size: int = LARGE) -> list[Any]:
    return [source.read(shard) for shard in source.shards(rows, size)]


def test_images_with_names_of_labels(tmp_path: Path) -> None:
    pq.write_table(images_table(), tmp_path / "a.parquet", row_group_size=5)
    source = read(tmp_path / "a.parquet")
    data = rows_of(source, rows=10)
    assert source.kind == "image"
    assert [len(part) for part in data] == [10, 10]
    assert [body for part in data for body in bodies(part)] == [jpeg(row) for row in range(20)]
    assert data[0].labels.tolist() == [("ant", "bee", "cat")[row % 3] for row in range(10)]
    assert data[1].names()[0] == "a.parquet[10]"


def test_only_the_groups_and_columns_of_a_shard_are_read(tmp_path: Path, traffic: Traffic) -> None:
    (tmp_path / "far").mkdir()
    pq.write_table(images_table(60, side=64), tmp_path / "far/train-0.parquet", row_group_size=5)
    upload(tmp_path / "far", "memory://sets")
    far, local = read("memory://sets"), read(tmp_path / "far")
    shards = list(far.shards(rows=10, size=LARGE))
    assert shards == list(local.shards(rows=10, size=LARGE))
    assert far.identity() == local.identity()
    assert traffic.total < (tmp_path / "far/train-0.parquet").stat().st_size / 4  # the footer
    worker = source_from(json.loads(json.dumps(far.describe())))
    worker.read(shards[0])
    traffic.sizes.clear()
    data = worker.read(shards[3])
    assert bodies(data) == [jpeg(row, 64) for row in range(30, 40)]
    assert traffic.total == shards[3].size < 60_000  # without the ballast, 100 kB


@pytest.mark.parametrize("size", [10, 3000, LARGE])
def test_a_large_group_is_shared_out(tmp_path: Path, size: int) -> None:
    pq.write_table(images_table(), tmp_path / "a.parquet", row_group_size=20)
    data = rows_of(read(tmp_path / "a.parquet"), rows=6, size=size)
    assert [body for part in data for body in bodies(part)] == [jpeg(row) for row in range(20)]
    assert max(len(part) for part in data) <= 6
    assert [name for part in data for name in part.names()] == [f"a.parquet[{row}]" for row in range(20)]


def test_texts(tmp_path: Path) -> None:
    texts = [f"text {row}" for row in range(9)]
    table = pa.table(
        {"sentence": texts, "label": pa.array([f"class {row % 2}" for row in range(9)]).dictionary_encode()}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    source = read(tmp_path / "a.parquet")
    data = rows_of(source, rows=4)
    assert source.kind == "text"
    assert [part.items.raw(row) for part in data for row in range(len(part))] == texts
    assert data[2].labels.tolist() == ["class 0", "class 1", "class 0"]  # of nine, three parts alike
    other = read(tmp_path / "a.parquet", text_column="label", labelled=False)
    assert rows_of(other)[0].labels is None
    assert rows_of(other)[0].items.raw(1) == "class 1"


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features(tmp_path: Path, fixed: bool, dtype: type) -> None:
    X = np.random.default_rng(0).normal(size=(11, 4)).astype(dtype)
    values = pa.array(X.reshape(-1))
    lists = (
        pa.FixedSizeListArray.from_arrays(values, 4) if fixed else pa.ListArray.from_arrays(np.arange(0, 45, 4), values)
    )
    names = [f"{row}.jpg" for row in range(11)]
    pq.write_table(
        pa.table({"name": names, "label": ["a"] * 11, "feature": lists}), tmp_path / "f.parquet", row_group_size=5
    )
    source = read(tmp_path / "f.parquet")
    data = rows_of(source, rows=3)
    expected = X.astype(np.float32) if dtype == np.float16 else X
    assert source.kind == "features"
    assert np.concatenate([part.features for part in data]).tobytes() == expected.tobytes()
    assert [name for part in data for name in part.names()] == names


def test_widths_that_differ_are_named_in_one_line(tmp_path: Path) -> None:
    for name, width in (("a", 3), ("b", 5)):
        pq.write_table(pa.table({"feature": [[0.5] * width] * 2, "label": ["x", "y"]}), tmp_path / f"{name}.parquet")
    with pytest.raises(FileFormatError, match=r"one width, got 3 in a.parquet and 5 in b.parquet"):
        list(read(tmp_path).shards(9, LARGE))
    pq.write_table(pa.table({"feature": [[0.5] * 3, [0.5] * 4], "label": ["x", "y"]}), tmp_path / "c.parquet")
    source = read(tmp_path / "c.parquet")
    with pytest.raises(FileFormatError, match=r"c.parquet: feature must hold vectors of one width"):
        rows_of(source)


def test_missing_columns_say_which_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": ["a"], "kind": ["b"], "count": [1]}), tmp_path / "a.parquet")
    with pytest.raises(FileFormatError, match=r"must have a column of texts.*got 'caption', 'kind', 'count'"):
        list(read(tmp_path / "a.parquet").shards(9, LARGE))
    for options in ({"text_column": "caption", "label_column": "clas"}, {"text_column": "captoin"}):
        with pytest.raises(FileFormatError, match=r"must have a column .*, got 'caption', 'kind', 'count'"):
            list(read(tmp_path / "a.parquet", **options).shards(9, LARGE))
    with pytest.raises(FileFormatError, match="column 'count' must hold bytes of images, got int64"):
        list(read(tmp_path / "a.parquet", image_column="count").shards(9, LARGE))


def test_missing_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None], "label": ["x", "y"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"text must not be empty, got None for a.parquet\[1\]"):
        rows_of(read(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"text": ["a", "b"], "label": ["x", None]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet: every sample must have a label, got None in row 1"):
        rows_of(read(tmp_path / "b.parquet"))
    pq.write_table(pa.table({"image": [jpeg(0), None, b""], "label": ["x"] * 3}), tmp_path / "c.parquet")
    (data,) = rows_of(read(tmp_path / "c.parquet"))
    assert data.items.raw(0) == jpeg(0)
    for row in (1, 2):
        with pytest.raises(ImageError, match="its bytes are not in the table"):
            data.items.raw(row)
    pq.write_table(pa.table({"feature": [[1.0], [np.nan]], "label": ["x", "y"]}), tmp_path / "d.parquet")
    with pytest.raises(InputError, match="must be finite"):
        rows_of(read(tmp_path / "d.parquet"))


def test_a_label_without_a_name_is_refused(tmp_path: Path) -> None:
    table = images_table(3)
    table = table.set_column(1, "label", pa.array([0, 1, 7]))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="labels must be among the 3 that it names, got 7"):
        rows_of(read(tmp_path / "a.parquet"))


def test_files_of_the_hub_are_parts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        pq.write_table(pa.table({"text": [name], "label": ["x"]}), tmp_path / f"data/{name}.parquet")
    texts = {
        part: [data.items.raw(0) for data in rows_of(read(tmp_path, part=part))] for part in ("train", "test", "all")
    }
    assert texts["train"] == ["train-00000-of-00002", "train-00001-of-00002"]
    assert texts["test"] == ["test-00000-of-00001"]
    assert len(texts["all"]) == 3


def test_columns_must_be_alike(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "b.parquet")
    with pytest.raises(FileFormatError, match="must have the same columns"):
        list(read(tmp_path).shards(9, LARGE))


def test_damaged_files_never_end_in_another_error(tmp_path: Path) -> None:
    pq.write_table(images_table(6), tmp_path / "a.parquet", row_group_size=3)
    body = (tmp_path / "a.parquet").read_bytes()
    said = []
    for number in range(120):
        rng = np.random.default_rng(number)
        broken = bytearray(body)
        if number % 3 == 0:
            broken = broken[: int(rng.integers(0, len(body)))]
        for _ in range(3 if number % 3 else 0):
            broken[-int(rng.integers(1, min(len(body), 2500)))] = int(rng.integers(256))
        (tmp_path / "b.parquet").write_bytes(broken)
        try:
            rows_of(read(tmp_path / "b.parquet"), rows=2)
        except EvergrowError as error:
            said.append(str(error))
    assert len(said) > 40
    assert all("b.parquet" in message for message in said)


def test_row_counts_that_lie_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"t{row}" for row in range(300)], "label": ["x"] * 300}), tmp_path / "a.parquet")
    body = (tmp_path / "a.parquet").read_bytes()
    count = bytes([0xD8, 0x04])  # 300 as thrift writes it: zigzag, seven bits a byte
    for value, places in ((301, -1), (2**40, -1), (10, 1)):  # everywhere, or in one place of several
        lie, zigzag = b"", 2 * value
        while zigzag >= 128:
            lie, zigzag = lie + bytes([zigzag & 127 | 128]), zigzag >> 7
        lie += bytes([zigzag])
        footer = int.from_bytes(body[-8:-4], "little")
        thrift = body[-8 - footer : -8]
        told = thrift.replace(count, lie, places)
        assert told != thrift
        (tmp_path / "a.parquet").write_bytes(body[: -8 - footer] + told + len(told).to_bytes(4, "little") + b"PAR1")
        with pytest.raises(FileFormatError, match=r"a\.parquet must"):
            rows_of(read(tmp_path / "a.parquet"), rows=50)
