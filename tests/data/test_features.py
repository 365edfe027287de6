"""Feature files: both formats, the search path, and every way a file can be wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evergrow.core.errors import FileFormatError, InputError, NewerSchemaError, ParameterError
from evergrow.data import (
    DatasetNotFoundError,
    FeatureSet,
    arrays,
    load_features,
    save_features,
)
from evergrow.data.load import load_data
from evergrow.lab.streams import Protocol, stream_of

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


@pytest.mark.parametrize("names", [("X", "y"), ("features", "labels")])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_arrays_of_no_part_are_all_for_training(tmp_path: Path, names: tuple[str, str], suffix: str) -> None:
    arrays = dict(zip(names, (X, Y)))
    np.savez(tmp_path / "toy.npz", **arrays)
    save_file({key: torch.from_numpy(value) for key, value in arrays.items()}, tmp_path / "toy.safetensors")
    data = load_features(tmp_path / f"toy{suffix}")
    np.testing.assert_array_equal(data.X_train, X)
    np.testing.assert_array_equal(data.y_train, Y)
    assert len(data.X_test) == len(data.y_test) == 0


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    tensors = {key: torch.from_numpy(value) for key, value in ARRAYS.items()}
    tensors |= {key: tensors[key].to(torch.bfloat16) for key in ("X_train", "X_test")}
    save_file(tensors, tmp_path / "toy.safetensors")
    np.testing.assert_array_equal(load_features(tmp_path / "toy.safetensors").X_train, X)


@pytest.mark.parametrize("place", ["EVERGROW_DATA", "data"])
def test_names_are_found_in_every_place(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(place)
    if place == "EVERGROW_DATA":
        folder = tmp_path / "else"
        monkeypatch.setenv(place, str(folder))
    folder.mkdir(parents=True)
    np.savez(folder / "toy.npz", **ARRAYS)
    assert load_features("toy").name == "toy"


def test_evergrow_data_comes_first_and_may_hold_several_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scale in (("one", 1), ("two", 2), ("data", 3)):
        folder = Path("data") if name == "data" else tmp_path / name
        folder.mkdir()
        np.savez(folder / "toy.npz", **{**ARRAYS, "X_train": scale * X})
    monkeypatch.setenv("EVERGROW_DATA", os.pathsep.join(str(tmp_path / name) for name in ("empty", "two", "one")))
    np.testing.assert_array_equal(load_features("toy").X_train, 2 * X)


def test_a_missing_name_brings_the_nearest() -> None:
    Path("data").mkdir()
    np.savez("data/cub200.npz", **ARRAYS)
    with pytest.raises(DatasetNotFoundError, match=r"'cub20' here. Did you mean 'cub200'") as caught:
        load_features("cub20")
    assert isinstance(caught.value, FileNotFoundError)
    for name in ("no/such.npz", "gone.npz", "./folder"):
        with pytest.raises(DatasetNotFoundError, match="No folder or file"):
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
    stream = stream_of(data, Protocol(increment=1))
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


# -- the file contract ------------------------------------------------------------------------------------


def _entry(shape: str, dtype: str, body: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


def _npz(path: Path, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in ARRAYS.items():
            buffer = io.BytesIO()
            np.save(buffer, value)
            archive.writestr(f"{name}.npy", entries.pop(name, buffer.getvalue()))
        for name, body in entries.items():
            archive.writestr(f"{name}.npy", body)


@pytest.mark.parametrize(
    "entries",
    [
        {"X_train": _entry("(1000000000000, 4)", "<f8")},
        {"X_train": _entry("(6, 4)", "|O", b"x" * 400)},
        {"X_train": _entry("(-6, 4)", "<f8")},
        {"X_train": _entry("(6, 4)", "<f8", b"x" * 191)},
        {"X_train": _entry("6, 4", "<f8")},
        {"X_train": _entry("(" * 5000 + ")" * 5000, "<f8")},
        {"X_train": _entry("(6, 4)", "<nothing")},
        {"X_train": b"\x93NUMPY\x03\x00" + b"\0" * 200},
        {"X_train": b""},
        {"classes": _entry("(1000000000000,)", "<U0")},
        {"classes": _entry("(1,)", "<U1000000000")},
        {"backbone": _entry("()", "<U1", "[".encode("utf-32-le"))},
        {"evergrow": _entry("()", "<U3", "NaN".encode("utf-32-le"))},
    ],
)
def test_hostile_arrays_end_in_a_file_error(entries: dict[str, bytes], tmp_path: Path) -> None:
    _npz(tmp_path / "toy.npz", **entries)
    with pytest.raises(FileFormatError):
        load_features(tmp_path / "toy.npz")


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "ROOM", 2**16)
    zeros = _entry("(262144, 4)", "<f8", bytes(2**23))
    _npz(tmp_path / "bomb.npz", zipfile.ZIP_DEFLATED, X_train=zeros)
    with pytest.raises(FileFormatError, match="must unpack to at most"):
        load_features(tmp_path / "bomb.npz")
    _npz(tmp_path / "odd.npz", zipfile.ZIP_BZIP2)
    with pytest.raises(FileFormatError, match="stored or deflated"):
        load_features(tmp_path / "odd.npz")


def test_flipped_bytes_end_in_a_file_error_or_in_sound_features(tmp_path: Path) -> None:
    path = tmp_path / "toy.npz"
    np.savez_compressed(path, classes=np.array(["a", "b", "c"]), **ARRAYS)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place in rng.integers(0, len(whole), size=300):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        with contextlib.suppress(FileFormatError):
            assert np.isfinite(load_features(path).X_train).all()


@pytest.mark.parametrize("metadata", [{"classes": "5"}, {"classes": "[[1]]"}, {"backbone": "[" * 50_000}])
def test_hostile_metadata_ends_in_a_file_error(metadata: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "toy.safetensors"
    save_file({key: torch.from_numpy(value) for key, value in ARRAYS.items()}, path, metadata)
    with pytest.raises(FileFormatError):
        load_features(path)
    save_file({key: torch.from_numpy(value).to(torch.float8_e4m3fn) for key, value in ARRAYS.items()}, path)
    with pytest.raises(FileFormatError, match="plain numbers"):
        load_features(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_kind_version_and_unknown_fields(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"set{suffix}"
    data = FeatureSet("set", *ARRAYS.values(), unknown={"licence": "CC0"})
    save_features(path, data)
    again = load_features(path)
    assert again.unknown == {"licence": "CC0"}
    assert again.fingerprint == FeatureSet("set", *ARRAYS.values()).fingerprint
    for stamp, error in (
        ({"schema": "feature-set", "version": 99, "evergrow": "7.0"}, NewerSchemaError),
        ({"schema": "learner", "version": 1}, FileFormatError),
        ({"version": "two"}, FileFormatError),
    ):
        _stamp(path, json.dumps(stamp))
        with pytest.raises(error):
            load_features(path)


def _stamp(path: Path, text: str) -> None:
    if path.suffix == ".npz":
        np.savez(path, evergrow=np.array(text), **ARRAYS)
    else:
        save_file({key: torch.from_numpy(value) for key, value in ARRAYS.items()}, path, {"evergrow": text})


def test_a_file_without_a_test_part(tmp_path: Path) -> None:
    X, y = np.eye(20), np.repeat(["a", "b"], 10)
    np.savez(tmp_path / "bare.npz", X_train=X, y_train=y)
    save_features(tmp_path / "saved.npz", FeatureSet("x", X, y, X[:0], y[:0], whole=True))
    for name in ("bare.npz", "saved.npz"):
        data = load_features(tmp_path / name)
        assert (data.whole, len(data.y_train), len(data.y_test)) == (True, 20, 0)
        assert load_data(tmp_path / name, test_size=0).whole
        drawn = load_data(tmp_path / name, test_size=0.3)
        assert isinstance(drawn, FeatureSet)
        assert (drawn.whole, len(drawn.y_train), len(drawn.y_test)) == (False, 14, 6)
        assert np.array_equal(np.concatenate([drawn.X_train, drawn.X_test]).sum(axis=0), np.ones(20))
        with pytest.raises(InputError, match="needs a test set"):
            stream_of(data)
    with pytest.raises(InputError, match="X_test must be empty where whole is true"):
        FeatureSet("x", X, y, X, y, whole=True)
    with pytest.raises(InputError, match="X_test must be a non-empty"):
        FeatureSet("x", X, y, X[:0], y[:0])
    np.savez(tmp_path / "half.npz", X_train=X, y_train=y, X_test=X)
    with pytest.raises(FileFormatError, match="it lacks y_test"):
        load_features(tmp_path / "half.npz")
