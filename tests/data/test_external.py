"""Hugging Face data sets, from what is on this machine alone."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import PNG

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.data import load_data

pytestmark = pytest.mark.usefixtures("alone")


def _images(count: int, names: list[str]) -> Any:
    import datasets

    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=names), "id": datasets.Value("int64")}
    )
    cells = [{"bytes": PNG, "path": None}] * count
    return datasets.Dataset.from_dict(
        {"img": cells, "label": [row % len(names) for row in range(count)], "id": list(range(count))}, features=features
    )


def test_saved_images(tmp_path: Path) -> None:
    import datasets

    content = datasets.DatasetDict({"train": _images(12, ["b", "a"]), "test": _images(4, ["b", "a"])})
    content.save_to_disk(tmp_path / "saved")
    data = load_data(tmp_path / "saved")
    assert (data.layout, data.class_names, data.y_train.tolist()) == ("arrow", ("b", "a"), [0, 1] * 6)
    assert data.train.items.raw(3) == PNG
    assert data.fingerprint == load_data(f"hf:{tmp_path / 'saved'}").fingerprint
    assert pickle.loads(pickle.dumps(data.test.items)).raw(0) == PNG
    assert data.test.items.stamp() != data.train.items.stamp()


def test_saved_texts_in_a_single_split(tmp_path: Path) -> None:
    import datasets

    rows = {"text": [f"t{row}" for row in range(20)], "label": ["ham", "spam"] * 10}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "mail")
    data = load_data(tmp_path / "mail")
    assert (data.kind, data.class_names, data.test_counts.tolist()) == ("text", ("ham", "spam"), [2, 2])
    (tmp_path / "mail" / "cache-1.arrow").write_bytes(b"of the library")
    assert load_data(tmp_path / "mail").fingerprint == data.fingerprint
    (tmp_path / "mail" / "indices.arrow").write_bytes(b"")
    with pytest.raises(FileFormatError, match="flatten_indices"):
        load_data(tmp_path / "mail")


def test_local_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    _images(12, ["b", "a"]).to_parquet(folder / "train.parquet")
    _images(4, ["b", "a"]).to_parquet(folder / "test.parquet")
    data = load_data(f"hf:{folder}")
    assert (data.class_names, len(data.train), len(data.test)) == (("b", "a"), 12, 4)
    assert data.train.items.raw(0) == PNG


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach\nthe Hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(DatasetNotFoundError, match=r"reach the Hub.*hf download --repo-type dataset uoft-cs/cifar100"):
        load_data("hf:uoft-cs/cifar100")


def test_hub_stays_off_the_network_where_downloads_are_forbidden() -> None:
    with pytest.raises(DatasetNotFoundError, match=r"cannot be had: .*bring FOLDER here"):
        load_data("hf:no-such-owner/no-such-set", download=False)


def test_a_data_set_of_the_hub_is_downloaded_and_read_like_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[object] = []

    def fake(name: str, **settings: object) -> str:
        asked.append((name, settings))
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    (tmp_path / "hub" / "plain").mkdir(parents=True)
    _images(12, ["b", "a"]).to_parquet(tmp_path / "hub" / "plain" / "train-00000-of-00001.parquet")
    _images(4, ["b", "a"]).to_parquet(tmp_path / "hub" / "plain" / "test-00000-of-00001.parquet")
    for name, download in (("hf:some/one#plain", True), ("hf:some/one", False)):
        data = load_data(name, download=download)
        assert (data.name, data.class_names, len(data.train), len(data.test)) == ("one", ("b", "a"), 12, 4)
        assert asked.pop() == ("some/one", {"repo_type": "dataset", "local_files_only": not download})
