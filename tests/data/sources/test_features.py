"""Feature files as sources: rows equal those of the ordinary reader, and no more than them is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from tests.data.sources.conftest import Traffic
from tests.engine.object_storage import upload

from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.data import FeatureSet, Samples, Source, load_features, read, save_features, source_from
from evergrow.data.items import Images

LARGE = 1 << 30


@pytest.fixture
def features() -> FeatureSet:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 6)).astype(np.float32)
    y = np.arange(50) % 3
    return FeatureSet("toy", X[:40], y[:40], X[40:], y[40:], ("ant", "bee", "cat"))


def whole(source: Source, rows: int = 7) -> tuple[np.ndarray, list[str]]:
    data = [source.read(shard) for shard in source.shards(rows, LARGE)]
    return np.concatenate([part.features for part in data]), [label for part in data for label in part.labels.tolist()]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("part", ["train", "test", "all"])
def test_rows_are_those_of_the_ordinary_reader(tmp_path: Path, features: FeatureSet, suffix: str, part: str) -> None:
    save_features(tmp_path / f"toy.{suffix}", features)
    source = read(tmp_path / f"toy.{suffix}", part=part)
    X, labels = whole(source)
    parts = ["train", "test"] if part == "all" else [part]
    expected = np.concatenate([getattr(features, f"X_{name}") for name in parts])
    codes = np.concatenate([getattr(features, f"y_{name}") for name in parts])
    assert X.dtype == np.float32
    assert X.tobytes() == expected.tobytes()
    assert labels == [features.class_names[code] for code in codes]
    assert source.kind == "features"


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_only_the_rows_of_a_shard_are_read(tmp_path: Path, features: FeatureSet, suffix: str, traffic: Traffic) -> None:
    X = np.random.default_rng(1).normal(size=(20_000, 8)).astype(np.float32)
    y = np.arange(20_000) % 5
    save_features(tmp_path / f"big.{suffix}", FeatureSet("big", X, y, X[:10], y[:10]))
    upload(tmp_path, "memory://sets")
    size = (tmp_path / f"big.{suffix}").stat().st_size
    far = read(f"memory://sets/big.{suffix}")
    shards = list(far.shards(rows=100, size=LARGE))
    assert traffic.total < size / 3  # planning read headers
    traffic.sizes.clear()
    worker = source_from(json.loads(json.dumps(far.describe())))
    data = worker.read(shards[150])
    assert data.features.tobytes() == X[15_000:15_100].tobytes()
    assert data.labels.tolist() == [str(code) for code in y[15_000:15_100]]
    assert data.names()[0] == f"big.{suffix}[15000]"
    assert traffic.total < size / 3
    traffic.sizes.clear()
    worker.read(shards[151])
    assert traffic.total == 100 * (8 * 4 + 8)  # once the headers are known, rows and labels alone


def test_packed_arrays_are_read_whole_but_once(tmp_path: Path, traffic: Traffic) -> None:
    X = np.random.default_rng(1).normal(size=(3000, 8)).astype(np.float32)
    y = np.array([f"class {row % 7}" for row in range(3000)])
    np.savez_compressed(tmp_path / "packed.npz", X=X, y=y)
    np.savez(tmp_path / "columns.npz", X=np.asfortranarray(X), y=y)
    upload(tmp_path, "memory://sets")
    for name in ("packed.npz", "columns.npz"):
        traffic.sizes.clear()
        far = read(f"memory://sets/{name}")
        got, labels = whole(far, rows=100)
        assert got.tobytes() == X.tobytes()
        assert labels == y.tolist()
        assert traffic.total < 2.5 * (tmp_path / name).stat().st_size


def test_types_and_shapes(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(6, 4))
    labels = np.arange(6)
    for dtype, expected in (("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i4", "f8")):
        np.savez(tmp_path / f"{dtype}.npz", X=(X * 9).astype(dtype), y=labels)
        got, _ = whole(read(tmp_path / f"{dtype}.npz"))
        assert got.dtype == np.dtype(expected)
        assert np.array_equal(got, (X * 9).astype(dtype).astype(expected))
    save_tensors({"X": torch.tensor(X).bfloat16(), "y": torch.arange(6)}, tmp_path / "half.safetensors")
    got, _ = whole(read(tmp_path / "half.safetensors"))
    assert np.array_equal(got, torch.tensor(X).bfloat16().float().numpy())


def test_pixels_are_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", X_train=pixels, y_train=np.arange(10) % 2, classes=np.array(["a", "b"]))
    source = read(tmp_path / "images.npz")
    data = [source.read(shard) for shard in source.shards(4, LARGE)]
    assert source.kind == "image"
    assert isinstance(data[1].items, Images)
    assert np.array_equal(np.concatenate([part.items.pixels for part in data]), pixels)
    assert data[1].labels.tolist() == ["a", "b", "a", "b"]


def test_blocks_are_joined_as_the_ordinary_reader_joins_them(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    y = np.arange(9) % 3
    save_features(tmp_path / "blocks.npz", FeatureSet("blocks", X, y, X, y, widths=(2, 3)))
    expected = load_features(tmp_path / "blocks.npz").train(np.arange(9))[0]
    assert whole(read(tmp_path / "blocks.npz"), rows=4)[0].tobytes() == expected.tobytes()


def test_many_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        np.savez(tmp_path / f"{name}.npz", X=np.full((3, 2), ord(name), np.float32), y=np.array([name] * 3))
    assert whole(read(tmp_path))[1] == list("aaabbbccc")
    assert whole(read(tmp_path / "[ab].npz"))[1] == list("aaabbb")


def test_a_file_without_labels_has_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", X=np.eye(3, dtype=np.float32))
    source = read(tmp_path / "plain.npz")
    data: Samples = source.read(next(iter(source.shards(9, LARGE))))
    assert data.labels is None
    np.savez(tmp_path / "with.npz", X=np.eye(3, dtype=np.float32), y=np.arange(3))
    with pytest.raises(FileFormatError, match=r"plain.npz must have labels like the files beside it"):
        list(read(tmp_path).shards(9, LARGE))
    assert len(list(read(tmp_path, labelled=False).shards(9, LARGE))) == 2


def test_widths_that_differ_are_named_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(3, dtype=np.float32), y=np.arange(3))
    np.savez(tmp_path / "b.npz", X=np.eye(5, dtype=np.float32), y=np.arange(5))
    with pytest.raises(FileFormatError, match=r"one width, got 3 in a.npz and 5 in b.npz"):
        list(read(tmp_path).shards(9, LARGE))


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    X = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    path = tmp_path / f"a.{suffix}"
    if suffix == "npz":
        np.savez(path, X=X, y=np.arange(500))
    else:
        save_file({"X": X, "y": np.arange(500)}, path)
    body = path.read_bytes()
    said: list[str] = []
    for number in range(60):
        rng = np.random.default_rng(number)
        broken = bytearray(body)
        if number % 2:
            broken = broken[: int(rng.integers(0, len(body)))]
        else:  # the headers at both ends
            for place in rng.integers(0, 200, 4):
                broken[int(place) * (1 if number % 4 else -1)] = int(rng.integers(256))
        path.write_bytes(broken)
        try:
            source = read(path)
            for shard in source.shards(100, LARGE):
                source.read(shard)
        except EvergrowError as error:
            said.append(str(error))
    assert len(said) >= 30  # a flipped byte may leave a sound file, a cut one does not
    assert all(f"a.{suffix}" in message for message in said)


def test_what_is_no_table_of_features_is_refused(tmp_path: Path) -> None:
    cases = {
        "lacks": ({"Z": np.eye(3)}, "must hold an array X_train, X or features, got 'Z'"),
        "deep": ({"X": np.zeros((2, 3, 4), np.float32)}, "must be feature vectors of shape"),
        "short": ({"X": np.eye(3), "y": np.arange(2)}, "y must hold 3 integers or strings"),
    }
    for name, (arrays, message) in cases.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(FileFormatError, match=message):
            list(read(tmp_path / f"{name}.npz").shards(9, LARGE))
    np.savez(tmp_path / "nan.npz", X=np.array([[1.0], [np.nan]]), y=np.arange(2))
    source = read(tmp_path / "nan.npz")
    with pytest.raises(InputError, match=r"nan.npz must be finite, .* row 1"):
        source.read(next(iter(source.shards(9, LARGE))))
    np.savez(tmp_path / "pickled.npz", X=np.array([{}], dtype=object))
    with pytest.raises(FileFormatError, match=r"pickled\.npz must be a whole NPZ file of plain arrays"):
        list(read(tmp_path / "pickled.npz").shards(9, LARGE))


def test_a_file_that_changed_since_the_shards_were_made_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(9), y=np.arange(9))
    source = read(tmp_path / "a.npz")
    last = list(source.shards(3, LARGE))[-1]
    np.savez(tmp_path / "a.npz", X=np.eye(4), y=np.arange(4))
    with pytest.raises(FileFormatError, match="must hold 9 rows of X, as when the shards were made"):
        source_from(source.describe()).read(last)
