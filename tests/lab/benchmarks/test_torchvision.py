"""torchvision's data sets by name, from what is on this machine alone."""

from __future__ import annotations

import hashlib
import pickle
import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import PNG

from evergrow.core.errors import DatasetNotFoundError, MissingExtraError, UnknownNameError
from evergrow.data import Dataset
from evergrow.data.items import Images
from evergrow.lab.benchmarks import load_benchmark
from evergrow.lab.benchmarks.vision import list_torchvision

pytestmark = pytest.mark.usefixtures("alone")


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
    data = load_benchmark("torchvision:cifar10", root=tmp_path, download=False)
    assert isinstance(data, Dataset)
    assert isinstance(data.train.items, Images)
    assert (len(data.train), len(data.test), data.n_classes) == (100, 20, 10)
    assert data.class_names[:2] == ("name0", "name1")
    first = pixels["data_batch_1"][0]
    assert data.train.items.raw(0)[0, 0].tolist() == [first[0], first[1024], first[2048]]


def test_torchvision_files(tmp_path: Path) -> None:
    for name in ("Forest", "River"):
        folder = tmp_path / "eurosat" / "2750" / name
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"{number}.jpg").write_bytes(PNG)
    data = load_benchmark("torchvision:EuroSAT", root=tmp_path)
    assert data.train.items.root is not None
    assert data.class_names == ("Forest", "River")
    assert data.test_counts.tolist() == [2, 2]
    assert data.train.items.raw(0).read_bytes() == PNG


def test_torchvision_images_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import FakeData

    original = FakeData.__init__

    def small(self: FakeData) -> None:
        original(self, size=30, image_size=(3, 4, 4), num_classes=2)

    monkeypatch.setattr(FakeData, "__init__", small)
    data = load_benchmark("torchvision:FakeData")
    assert isinstance(data.train.items, Images)
    assert data.train.items.raw(0).size == (4, 4)
    assert data.train.items.name(0).startswith("FakeData train[")
    assert data.fingerprint == load_benchmark("torchvision:FakeData").fingerprint
    assert pickle.loads(pickle.dumps(data.train.items)).take([1, 2]).stamp() == data.train.items.take([1, 2]).stamp()
    assert data.train.items.stamp() != data.test.items.stamp()


def test_torchvision_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(DatasetNotFoundError, match=r"must be in .*no network.* comes from https.*let torchvision"):
        load_benchmark("torchvision:CIFAR100", root=tmp_path)
    with pytest.raises(DatasetNotFoundError, match=r"must be in .* or be downloaded"):
        load_benchmark("torchvision:CIFAR100", root=tmp_path, download=False)


def test_torchvision_names() -> None:
    import torchvision.datasets

    assert all(hasattr(torchvision.datasets, name) for name in list_torchvision())
    with pytest.raises(UnknownNameError, match="'Flowers102'"):
        load_benchmark("torchvision:flowers")


def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(MissingExtraError, match=r"evergrow\[lab\]"):
        load_benchmark("torchvision:MNIST")
