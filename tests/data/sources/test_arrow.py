"""Hugging Face data sets, saved, as Parquet files or from the Hub: rows equal those of the library."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.data.sources.samples import NAMES, bodies, image_set, jpeg, labels_of, names_of, parts_of

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.data import load_data, read

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("alone")


def write_parquet(folder: Path) -> None:
    folder.mkdir(parents=True)
    image_set(15).to_parquet(folder / "train-00000-of-00001.parquet")
    image_set(6).to_parquet(folder / "test-00000-of-00001.parquet")


def test_rows_are_those_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "DEFAULT_MAX_BATCH_SIZE", 10)
    image_set(60, 64).save_to_disk(tmp_path / "saved", num_shards=2)  # batches of ten rows in two files
    source = read(tmp_path / "saved")
    parts = parts_of(source, rows=7)
    expected = datasets.load_from_disk(str(tmp_path / "saved")).cast_column("image", datasets.Image(decode=False))
    assert source.kind == "image"
    assert bodies(*parts) == [cell["bytes"] for cell in expected["image"]]
    assert labels_of(parts) == [NAMES[code] for code in expected["label"]]
    assert max(map(len, parts)) <= 7
    assert len(set(names_of(parts))) == 60


def test_saved_splits(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": image_set(15), "validation": image_set(6)})
    splits.save_to_disk(tmp_path / "saved")
    for part, rows in (("train", 15), ("test", 6), ("all", 21)):
        assert sum(map(len, parts_of(read(tmp_path / "saved", part=part)))) == rows
    data = load_data(tmp_path / "saved")
    assert (data.layout, data.class_names, data.y_train.tolist()) == ("arrow", tuple(NAMES), [0, 1, 2] * 5)
    assert bodies(data.train) == [jpeg(row) for row in range(15)]
    assert data.fingerprint == load_data(f"hf:{tmp_path / 'saved'}").fingerprint
    assert pickle.loads(pickle.dumps(data.test.items)).raw(0) == jpeg(0)
    assert data.test.items.stamp() != data.train.items.stamp()


def test_saved_texts_in_a_single_split(tmp_path: Path) -> None:
    rows = {"text": [f"t{row}" for row in range(20)], "label": ["ham", "spam"] * 10}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "mail")
    data = load_data(tmp_path / "mail")
    assert (data.kind, data.class_names, data.test_counts.tolist()) == ("text", ("ham", "spam"), [2, 2])
    with pytest.raises(FileFormatError, match="must have a column 'body'"):
        load_data(tmp_path / "mail", text_column="body")
    (tmp_path / "mail" / "cache-1.arrow").write_bytes(b"of the library")
    assert load_data(tmp_path / "mail").fingerprint == data.fingerprint
    (tmp_path / "mail" / "indices.arrow").write_bytes(b"")
    with pytest.raises(FileFormatError, match="flatten_indices"):
        load_data(tmp_path / "mail")


def test_local_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_parquet(tmp_path / "set")
    data = load_data(f"hf:{tmp_path / 'set'}")
    assert (data.class_names, len(data.train), len(data.test)) == (tuple(NAMES), 15, 6)
    assert data.train.items.raw(0) == jpeg(0)


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    with pytest.raises(DatasetNotFoundError, match=r"cannot be had: .*bring FOLDER here"):
        load_data("hf:no-such-owner/no-such-set", download=False)

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach\nthe Hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(DatasetNotFoundError, match=r"reach the Hub.*hf download --repo-type dataset uoft-cs/cifar100"):
        load_data("hf:uoft-cs/cifar100")


def test_a_data_set_of_the_hub_is_downloaded_and_read_like_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[object] = []

    def fake(name: str, **settings: object) -> str:
        asked.append((name, settings))
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    write_parquet(tmp_path / "hub" / "plain")
    for name, download in (("hf:some/one#plain", True), ("hf:some/one", False)):
        data = load_data(name, download=download)
        assert (data.name, data.class_names, len(data.train), len(data.test)) == ("one", tuple(NAMES), 15, 6)
        assert asked.pop() == ("some/one", {"repo_type": "dataset", "local_files_only": not download})
