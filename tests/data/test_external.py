"""torchvision and Hugging Face data sets, from what is on this machine alone."""

from __future__ import annotations

import hashlib
import io
import pickle
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.conftest import PNG

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    ImageError,
    InputError,
    MissingExtraError,
    UnknownNameError,
)
from evergrow.core.items import ImageArrays, ImageFiles, Texts
from evergrow.data import RawSet, load_data
from evergrow.data.fetched import FetchedImages
from evergrow.data.vision import list_torchvision

pytestmark = pytest.mark.usefixtures("alone")


# -- torchvision ------------------------------------------------------------------------------------------


def _cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Write CIFAR-10 files of torchvision's form, and let it take their checksums for the right ones."""
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    pixels, sums = {}, {}
    generator = np.random.default_rng(0)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        pixels[name] = generator.integers(0, 256, size=(20, 3072), dtype=np.uint8)
        content = {"data": pixels[name], "labels": [row % 10 for row in range(20)]}
        sums[name] = _write(folder / name, content)
    sums["batches.meta"] = _write(folder / "batches.meta", {"label_names": [f"name{code}" for code in range(10)]})
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in list(pixels)[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": sums["batches.meta"]}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return pixels


def _write(path: Path, content: object) -> str:
    body = pickle.dumps(content)
    path.write_bytes(body)
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def test_torchvision_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = _cifar10(tmp_path, monkeypatch)
    data = load_data("torchvision:cifar10", root=tmp_path, download=False)
    assert isinstance(data, RawSet)
    assert isinstance(data.train, ImageArrays)
    assert (len(data.train), len(data.test), data.n_classes) == (100, 20, 10)
    assert data.class_names[:2] == ("name0", "name1")
    first = pixels["data_batch_1"][0]
    assert data.train.raw(0)[0, 0].tolist() == [first[0], first[1024], first[2048]]


def test_torchvision_files(tmp_path: Path) -> None:
    for name in ("Forest", "River"):
        folder = tmp_path / "eurosat" / "2750" / name
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"{number}.jpg").write_bytes(PNG)
    data = load_data("torchvision:EuroSAT", root=tmp_path)
    assert isinstance(data.train, ImageFiles)
    assert data.class_names == ("Forest", "River")
    assert data.test_counts.tolist() == [2, 2]
    assert data.train.raw(0).read_bytes() == PNG


def test_torchvision_images_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import FakeData

    original = FakeData.__init__

    def small(self: FakeData) -> None:
        original(self, size=30, image_size=(3, 4, 4), num_classes=2)

    monkeypatch.setattr(FakeData, "__init__", small)
    data = load_data("torchvision:FakeData")
    assert isinstance(data.train, FetchedImages)
    assert data.train.raw(0).size == (4, 4)
    assert data.train.name(0).startswith("FakeData train[")
    assert data.fingerprint == load_data("torchvision:FakeData").fingerprint
    assert pickle.loads(pickle.dumps(data.train)).take([1, 2]).stamp() == data.train.take([1, 2]).stamp()
    assert data.train.stamp() != data.test.stamp()


def test_torchvision_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(DatasetNotFoundError, match=r"must be in .*no network.* comes from https.*let torchvision"):
        load_data("torchvision:CIFAR100", root=tmp_path)
    with pytest.raises(DatasetNotFoundError, match=r"must be in .* or be downloaded"):
        load_data("torchvision:CIFAR100", root=tmp_path, download=False)


def test_torchvision_names() -> None:
    import torchvision.datasets

    assert all(hasattr(torchvision.datasets, name) for name in list_torchvision())
    with pytest.raises(UnknownNameError, match="'Flowers102'"):
        load_data("torchvision:flowers")


# -- Hugging Face -----------------------------------------------------------------------------------------


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
    from PIL import Image

    content = datasets.DatasetDict({"train": _images(12, ["b", "a"]), "test": _images(4, ["b", "a"])})
    content.save_to_disk(tmp_path / "saved")
    data = load_data(tmp_path / "saved")
    assert isinstance(data.train, FetchedImages)
    assert data.layout == "hub"
    assert data.class_names == ("b", "a")
    assert data.y_train.tolist() == [0, 1] * 6
    assert data.train.raw(3) == PNG
    assert Image.open(io.BytesIO(data.train.raw(3))).size == (1, 1)
    assert data.fingerprint == load_data(f"hf:{tmp_path / 'saved'}").fingerprint
    assert pickle.loads(pickle.dumps(data.test)).raw(0) == PNG
    assert data.test.stamp() != data.train.stamp()


def test_saved_texts_and_single_split(tmp_path: Path) -> None:
    import datasets

    rows = {"text": [f"t{row}" for row in range(20)], "label": ["ham", "spam"] * 10}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "mail")
    data = load_data(tmp_path / "mail")
    assert isinstance(data.train, Texts)
    assert data.class_names == ("ham", "spam")
    assert data.test_counts.tolist() == [2, 2]


def test_local_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    _images(12, ["b", "a"]).to_parquet(folder / "train.parquet")
    _images(4, ["b", "a"]).to_parquet(folder / "test.parquet")
    data = load_data(f"hf:{folder}")
    assert (data.class_names, len(data.train), len(data.test)) == (("b", "a"), 12, 4)
    assert data.train.raw(0) == PNG


def test_test_split_without_labels_gives_way(tmp_path: Path) -> None:
    import datasets

    def part(labels: list[int]) -> Any:
        return datasets.Dataset.from_dict({"sentence": [f"t{row}" for row in range(len(labels))], "label": labels})

    content = datasets.DatasetDict({"train": part([0, 1] * 5), "validation": part([1, 0]), "test": part([-1, -1])})
    content.save_to_disk(tmp_path / "glue")
    data = load_data(tmp_path / "glue")
    assert data.y_test.tolist() == [1, 0]
    assert any("left out: test" in note for note in data.notes)


def test_columns_must_be_clear(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"q": ["a"] * 9, "a": ["b"] * 9, "label": [0] * 9}).save_to_disk(tmp_path / "two")
    with pytest.raises(FileFormatError, match=r"'q', 'a', 'label'.*text_column"):
        load_data(tmp_path / "two")
    assert load_data(tmp_path / "two", text_column="q").train.raw(0) == "a"
    datasets.Dataset.from_dict({"text": ["a"] * 9}).save_to_disk(tmp_path / "none")
    with pytest.raises(FileFormatError, match="column 'label'"):
        load_data(tmp_path / "none")
    datasets.Dataset.from_dict({"text": ["a", " "], "label": [0, 0]}).save_to_disk(tmp_path / "empty")
    with pytest.raises(InputError, match="must not be empty"):
        load_data(tmp_path / "empty")


def test_empty_cells_are_named(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    cells = [{"bytes": PNG, "path": None}] * 8 + [None]
    datasets.Dataset.from_dict({"image": cells, "label": [0] * 9}, features=features).save_to_disk(tmp_path / "set")
    data = load_data(tmp_path / "set")
    images = FetchedImages(data.train.fetch, np.arange(9), "set", "")
    with pytest.raises(ImageError, match=r"empty cell for set train\[8\]"):
        images.raw(8)


def test_damaged_saved_set(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_dict.json").write_text("{")
    with pytest.raises(FileFormatError, match="whole saved"):
        load_data(folder)


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DatasetNotFoundError, match=r"reach the Hub.*load_dataset\('uoft-cs/cifar100'\).save_to_disk"):
        load_data("hf:uoft-cs/cifar100")


def test_hub_stays_off_the_network_where_downloads_are_forbidden() -> None:
    with pytest.raises(DatasetNotFoundError, match=r"Offline.*bring FOLDER here"):
        load_data("hf:no-such-owner/no-such-set", download=False)


def test_hub_name_config_and_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[object] = []

    def fake(*args: object, **_: object) -> object:
        asked.append((args, datasets.config.HF_HUB_OFFLINE))
        return {"train": _images(12, ["b", "a"]), "test": _images(4, ["b", "a"])}

    monkeypatch.setattr(datasets, "load_dataset", fake)
    with pytest.warns(DataWarning, match="CIFAR-100: classes: 2, expected 100"):
        data = load_data("hf:uoft-cs/cifar100#plain")
    load_data("hf:some/one", download=False)
    assert data.name == "cifar100"
    before = datasets.config.HF_HUB_OFFLINE
    assert asked == [(("uoft-cs/cifar100", "plain"), before), (("some/one", None), True)]


@pytest.mark.parametrize(("source", "module"), [("hf:a/b", "datasets"), ("torchvision:MNIST", "torchvision.datasets")])
def test_missing_library_says_what_to_install(source: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"evergrow\[datasets\]"):
        load_data(source)
