"""Hugging Face data sets that were saved: rows equal the rows of the library."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.data.conftest import contents_of
from tests.data.sources.samples import (
    NAMES,
    bodies,
    counts,
    image_set,
    jpeg,
    labels_of,
    names_of,
    parts_of,
)

from evergrow.core.errors import FileFormatError
from evergrow.data import load_data, read

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("alone")


def test_rows_are_those_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "DEFAULT_MAX_BATCH_SIZE", 10)
    image_set(60, 64).save_to_disk(
        tmp_path / "saved", num_shards=2
    )  # batches of ten rows in two files
    source = read(tmp_path / "saved")
    parts = parts_of(source, rows=7)
    expected = datasets.load_from_disk(str(tmp_path / "saved")).cast_column(
        "image", datasets.Image(decode=False)
    )
    assert source.kind == "image"
    assert bodies(*parts) == [cell["bytes"] for cell in expected["image"]]
    assert labels_of(parts) == [NAMES[code] for code in expected["label"]]
    assert max(map(len, parts)) <= 7
    assert len(set(names_of(parts))) == 60


def test_a_few_kilobytes_that_unpack_to_half_a_gigabyte_are_refused(
    tmp_path: Path,
) -> None:
    import pyarrow as pa

    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    before = pa.total_allocated_bytes()
    batch = pa.record_batch({"image": [bytes(500_000_000)], "label": ["a"]})
    with pa.ipc.new_stream(
        str(tmp_path / "a.arrow"), batch.schema, options=packed
    ) as out:
        out.write_batch(batch)
    del batch
    assert (tmp_path / "a.arrow").stat().st_size < 20_000
    with pytest.raises(FileFormatError, match="must hold plain batches"):
        list(read(tmp_path).shards(10, 1 << 30))
    assert pa.total_allocated_bytes() - before < 2**20


def test_saved_splits_are_parts(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": image_set(15), "validation": image_set(6)})
    splits.save_to_disk(tmp_path / "saved")
    for part, rows in (("train", 15), ("test", 6), ("all", 21)):
        assert sum(map(len, parts_of(read(tmp_path / "saved", part=part)))) == rows
    data = load_data(tmp_path / "saved")
    assert (data.layout, data.class_names, data.y_train.tolist()) == (
        "arrow",
        tuple(NAMES),
        [0, 1, 2] * 5,
    )
    assert bodies(data.train) == [jpeg(row) for row in range(15)]
    assert pickle.loads(pickle.dumps(data.test.items)).raw(0) == jpeg(0)
    assert data.test.items.stamp() != data.train.items.stamp()


def test_saved_texts_of_a_single_split_are_read(tmp_path: Path) -> None:
    rows = {"text": [f"t{row}" for row in range(20)], "label": ["ham", "spam"] * 10}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "mail")
    data = load_data(tmp_path / "mail")
    assert (data.kind, data.class_names, counts(data, "test")) == (
        "text",
        ("ham", "spam"),
        [2, 2],
    )
    with pytest.raises(FileFormatError, match="must have a column 'body'"):
        load_data(tmp_path / "mail", text_column="body")
    (tmp_path / "mail" / "cache-1.arrow").write_bytes(b"of the library")
    assert contents_of(load_data(tmp_path / "mail")) == contents_of(data)
    (tmp_path / "mail" / "indices.arrow").write_bytes(b"")
    with pytest.raises(FileFormatError, match="flatten_indices"):
        load_data(tmp_path / "mail")
