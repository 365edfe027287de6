"""Feature files: both formats, the search path, and every way a file can be wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.datasets import DatasetNotFoundError, FeatureSet, available_features, load_features, save_features
from evergrow.streams import Protocol

X = np.arange(24, dtype=np.float16).reshape(6, 4)
Y = np.array([0, 0, 1, 1, 2, 2], dtype=np.int16)
ARRAYS = {"X_train": X, "y_train": Y, "X_test": X[::2].copy(), "y_test": Y[::2].copy()}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no real data set can be found."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("EVERGROW_DATA", raising=False)
    monkeypatch.delenv("EVERGROW_SHARED", raising=False)


def test_npz_by_path_keeps_the_stored_type(tmp_path: Path) -> None:
    np.savez(tmp_path / "toy.npz", classes=np.array(["a", "b", "c"]), **ARRAYS)
    data = load_features(tmp_path / "toy.npz")
    assert data.name == "toy"
    assert data.X_train.dtype == np.float16
    assert data.class_names == ("a", "b", "c")
    assert data.n_classes == 3
    np.testing.assert_array_equal(data.X_test, ARRAYS["X_test"])


def test_safetensors_equals_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "toy.npz", **ARRAYS)
    tensors = {key: torch.from_numpy(value) for key, value in ARRAYS.items()}
    save_file(tensors, tmp_path / "toy.safetensors", metadata={"classes": json.dumps(["a", "b", "c"])})
    one, two = load_features(tmp_path / "toy.npz"), load_features(tmp_path / "toy.safetensors")
    assert one.fingerprint == two.fingerprint
    assert two.class_names == ("a", "b", "c")


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    tensors = {key: torch.from_numpy(value) for key, value in ARRAYS.items()}
    tensors |= {key: tensors[key].to(torch.bfloat16) for key in ("X_train", "X_test")}
    save_file(tensors, tmp_path / "toy.safetensors")
    np.testing.assert_array_equal(load_features(tmp_path / "toy.safetensors").X_train, X)


@pytest.mark.parametrize("place", ["EVERGROW_DATA", "EVERGROW_SHARED", "../shared/features", "data"])
def test_names_are_found_in_every_place(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(place)
    if place.startswith("EVERGROW"):
        monkeypatch.setenv(place, str(tmp_path / "else"))
        folder = tmp_path / "else" / ("features" if place == "EVERGROW_SHARED" else "")
    folder.mkdir(parents=True)
    np.savez(folder / "toy.npz", **ARRAYS)
    assert load_features("toy").name == "toy"
    assert available_features() == ["toy"]


def test_evergrow_data_comes_first_and_may_hold_several_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scale in (("one", 1), ("two", 2), ("data", 3)):
        folder = Path("data") if name == "data" else tmp_path / name
        folder.mkdir()
        np.savez(folder / "toy.npz", **{**ARRAYS, "X_train": scale * X})
    monkeypatch.setenv("EVERGROW_DATA", os.pathsep.join(str(tmp_path / name) for name in ("empty", "two", "one")))
    np.testing.assert_array_equal(load_features("toy").X_train, 2 * X)


def test_missing_name_says_what_where_and_how() -> None:
    Path("data").mkdir()
    np.savez("data/cub200.npz", **ARRAYS)
    with pytest.raises(DatasetNotFoundError) as caught:
        load_features("cub20")
    text = str(caught.value)
    for part in (
        "cub20.npz",
        "cub20.safetensors",
        "../shared/features",
        "data",
        "'cub200'",
        "EVERGROW_DATA",
        "savez",
    ):
        assert part in text
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("name", ["no/such.npz", "gone.npz", "./folder"])
def test_missing_path_says_so(name: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="must be an existing"):
        load_features(name)


def _broken(**changes: object) -> dict[str, object]:
    return {key: value for key, value in {**ARRAYS, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (_broken(X_test=None), "lacks X_test"),
        (_broken(X_train=X[:, :3]), "columns like X_train"),
        (_broken(y_train=Y[:3]), "must hold 6"),
        (_broken(y_test=np.array([0, 1, 9])), r"\[9\] besides"),
        (_broken(X_train=np.where(X == 9, np.nan, X)), "row 2"),
        (_broken(X_train=X.astype(int)), "floating-point"),
        (_broken(y_train=Y + 0.5), "integers or strings"),
        (_broken(y_train=np.array([{}] * 6)), "plain arrays"),
    ],
)
def test_wrong_contents_are_typed_errors(arrays: dict, match: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "toy.npz", **arrays)
    with pytest.raises(FileFormatError, match=match):
        load_features(tmp_path / "toy.npz")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_damaged_files_are_typed_errors(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"toy{suffix}"
    if suffix == ".npz":
        np.savez(path, **ARRAYS)
    else:
        save_file({key: torch.from_numpy(value) for key, value in ARRAYS.items()}, path)
    whole = path.read_bytes()
    for keep in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(FileFormatError):
            load_features(path)


def test_fingerprint_follows_the_contents_only() -> None:
    one = FeatureSet("one", *ARRAYS.values())
    two = FeatureSet("two", *(value.copy() for value in ARRAYS.values()))
    other = FeatureSet("one", X + 1, *list(ARRAYS.values())[1:])
    assert one.fingerprint == two.fingerprint != other.fingerprint


def test_rows_are_copied_task_by_task() -> None:
    data = FeatureSet("toy", *ARRAYS.values())
    stream = data.stream(Protocol(increment=1))
    for task in stream:
        features, labels = data.train(task.train)
        assert features.shape == (2, 4)
        assert set(labels.tolist()) == set(task.classes.tolist())
        assert not np.shares_memory(features, data.X_train)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_written_file_is_read_back_whole(tmp_path: Path, suffix: str) -> None:
    X, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 0, 1, 1])
    data = FeatureSet("set", X, y, X[1:], y[1:], ("cat", "dög"), {"name": "net", "n_features": 3}, origin="abc")
    save_features(tmp_path / f"set{suffix}", data)
    back = load_features(tmp_path / f"set{suffix}")
    assert np.array_equal(back.X_train, X)
    assert np.array_equal(back.y_test, y[1:])
    assert back.class_names == data.class_names
    assert back.describe()["backbone"] == {"name": "net", "n_features": 3}
    assert back.fingerprint != data.fingerprint  # what is in a file is known by its contents


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    X, y = np.eye(2), np.array(["a", "b"])
    data = FeatureSet("set", X, y, X, y)
    with pytest.raises(ParameterError, match=r"\.npz instead"):
        save_features(tmp_path / "set.safetensors", data)
    with pytest.raises(ParameterError, match="must end in"):
        save_features(tmp_path / "set.csv", data)
    assert list(tmp_path.glob("*set*")) == []
