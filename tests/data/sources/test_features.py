"""Feature files: search path, damaged files, and reading of only the needed rows."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.conftest import contents_of
from tests.data.sources.conftest import Traffic
from tests.data.sources.samples import LARGE, labels_of, parts_of
from tests.engine.object_storage import upload

from evergrow.core.errors import (
    FileFormatError,
    InputError,
    LabelError,
    NewerSchemaError,
    ParameterError,
)
from evergrow.data import (
    Dataset,
    DatasetNotFoundError,
    Source,
    arrays,
    load_features,
    read,
    save_features,
    source_from,
)
from evergrow.data.feature_blocks import join_blocks
from evergrow.data.inputs import read_items, read_labelled
from evergrow.data.items import Images
from evergrow.data.load import load_data

pytestmark = pytest.mark.usefixtures("alone")

X = np.arange(24, dtype=np.float16).reshape(6, 4)
Y = np.array([0, 0, 1, 1, 2, 2], dtype=np.int16)
ARRAYS = {"X_train": X, "y_train": Y, "X_test": X[::2].copy(), "y_test": Y[::2].copy()}


def write(path: Path, arrays: Mapping[str, Any], **texts: str) -> Path:
    """Write arrays and texts."""
    np.savez(path, **arrays, **{key: np.array(text) for key, text in texts.items()})
    return path


def rows_of(source: Source, rows: int = 7) -> tuple[np.ndarray, list[str]]:
    parts = parts_of(source, rows)
    return np.concatenate([part.features for part in parts]), labels_of(parts)


# -- reading and writing ---------------------------------------------------------------


@pytest.mark.parametrize("names", [("X", "y"), ("features", "labels")])
def test_arrays_without_parts_are_all_training(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    data = load_features(write(tmp_path / "toy.npz", dict(zip(names, (X, Y)))))
    assert data.X_train.dtype == np.float16
    np.testing.assert_array_equal(data.X_train, X)
    np.testing.assert_array_equal(data.y_train, Y)
    assert len(data.X_test) == len(data.y_test) == 0


def test_stored_types_become_float32_or_float64(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(6, 4))
    for dtype, expected in (("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i4", "f8")):
        stored = (values * 9).astype(dtype)
        got, _ = rows_of(read(write(tmp_path / f"{dtype}.npz", {"X": stored, "y": Y})))
        assert got.dtype == np.dtype(expected)
        assert np.array_equal(got, stored.astype(expected))


@pytest.mark.parametrize("part", ["train", "test", "all"])
def test_a_written_file_is_read_back_unchanged(tmp_path: Path, part: str) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    codes = np.arange(50) % 3
    about = {"name": "net", "n_features": 6}
    names = ("ant", "bee", "dög")
    data = Dataset.of(
        rows[:40],
        codes[:40],
        rows[40:],
        codes[40:],
        names=names,
        backbone=about,
        origin="abc",
    )
    save_features(tmp_path / "toy.npz", data)
    back = load_features(tmp_path / "toy.npz")
    assert (back.class_names, back.describe()["backbone"]) == (names, about)
    assert contents_of(back) == contents_of(data)
    assert back.origin == ""
    assert np.array_equal(back.X_train, rows[:40])
    assert np.array_equal(back.y_test, codes[40:])
    source = read(tmp_path / "toy.npz", part=part)
    got, labels = rows_of(source)
    chosen = {"train": slice(40), "test": slice(40, 50), "all": slice(50)}[part]
    assert (source.kind, got.dtype) == ("features", np.float32)
    assert got.tobytes() == rows[chosen].tobytes()
    assert labels == [names[code] for code in codes[chosen]]


def test_a_refused_write_leaves_no_file(tmp_path: Path) -> None:
    data = Dataset.of(np.eye(2), ["a", "b"])
    with pytest.raises(ParameterError, match="must end in"):
        save_features(tmp_path / "set.csv", data)
    images = Dataset.of(Images(np.zeros((2, 4, 4, 3), np.uint8)), ["a", "b"])
    with pytest.raises(InputError, match="must be feature vectors, got images"):
        save_features(tmp_path / "set.npz", images)
    other = Dataset.of(np.eye(2), ["a", "b"], np.eye(2), ["a", "c"])
    with pytest.raises(LabelError, match="'c' in the test set only"):
        save_features(tmp_path / "set.npz", other)
    assert list(tmp_path.glob("*set*")) == []


def test_a_file_without_a_test_part_is_read(tmp_path: Path) -> None:
    X = np.eye(20)
    y = np.repeat(["a", "b"], 10)
    np.savez(tmp_path / "bare.npz", X_train=X, y_train=y)
    save_features(tmp_path / "saved.npz", Dataset.of(X, y))
    for name in ("bare.npz", "saved.npz"):
        data = load_features(tmp_path / name)
        assert (data.has_test, len(data.y_train), len(data.y_test)) == (False, 20, 0)
        assert not load_data(tmp_path / name, test_size=0).has_test
        drawn = load_data(tmp_path / name, test_size=0.3)
        assert (drawn.has_test, len(drawn.y_train), len(drawn.y_test)) == (True, 14, 6)
        assert np.array_equal(
            np.concatenate([drawn.X_train, drawn.X_test]).sum(axis=0), np.ones(20)
        )
    with pytest.raises(InputError, match="must be Images, Texts or a non-empty 2-D"):
        Dataset.of(X, y, X[:0], y[:0])


def test_arrays_of_pixels_are_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    np.savez(
        tmp_path / "images.npz",
        X_train=pixels,
        y_train=np.arange(10) % 2,
        classes=np.array(["a", "b"]),
    )
    source = read(tmp_path / "images.npz")
    parts = parts_of(source, rows=4)
    assert source.kind == "image"
    assert isinstance(parts[1].items, Images)
    assert np.array_equal(np.concatenate([part.items.pixels for part in parts]), pixels)
    assert labels_of(parts) == ["a", "b"] * 5


def test_blocks_in_shards_are_joined_like_those_of_a_data_set(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    y = np.arange(9) % 3
    save_features(tmp_path / "blocks.npz", Dataset.of(X, y, widths=(2, 3)))
    data = load_features(tmp_path / "blocks.npz")
    assert np.array_equal(data.X_train, X)
    expected = data.part("train").features
    assert np.array_equal(expected, join_blocks(X, (2, 3)))
    assert np.array_equal(rows_of(read(tmp_path / "blocks.npz"), rows=4)[0], expected)
    assert np.array_equal(read_items(data.train).features, expected)
    joined = Dataset(data.part("train"), class_names=data.class_names)
    save_features(tmp_path / "joined.npz", joined)
    assert np.array_equal(
        load_features(tmp_path / "joined.npz").part("train").features, expected
    )


def test_the_feature_files_of_a_folder_are_one_data_set(
    alone: Path, tmp_path: Path
) -> None:
    X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    y = np.tile(["a", "b"], 6)
    for name, rows in (
        ("train-0", slice(4)),
        ("train-1", slice(4, 8)),
        ("test", slice(8, 12)),
    ):
        save_features(
            alone / f"{name}.npz", Dataset.of(X[rows], y[rows], widths=(2, 3))
        )
    data = load_features(alone)
    assert data.class_names == ("a", "b")
    assert data.y_train.tolist() == [0, 1] * 4
    expected = join_blocks(X, (2, 3))
    assert np.array_equal(data.part("all").features, expected)
    save_features(tmp_path / "one.npz", data)
    again = load_features(tmp_path / "one.npz")
    assert np.array_equal(again.part("all").features, expected)


# -- lookup and partial reading --------------------------------------------------------


def test_names_are_searched_in_evergrow_data_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scale, folder in enumerate(
        (Path("data"), tmp_path / "one", tmp_path / "two"), start=1
    ):
        folder.mkdir()
        np.savez(folder / "toy.npz", **{**ARRAYS, "X_train": scale * X})
    np.testing.assert_array_equal(load_features("toy").X_train, X)
    monkeypatch.setenv(
        "EVERGROW_DATA",
        os.pathsep.join(str(tmp_path / name) for name in ("empty", "two", "one")),
    )
    np.testing.assert_array_equal(load_features("toy").X_train, 3 * X)
    with pytest.raises(
        DatasetNotFoundError, match=r"'toyy' here. Did you mean 'toy'"
    ) as caught:
        load_features("toyy")
    assert isinstance(caught.value, FileNotFoundError)


def test_several_files_are_read_in_order_of_their_names(alone: Path) -> None:
    for name in ("b", "a", ".hidden", "c"):
        np.savez(
            alone / f"{name}.npz",
            X=np.full((3, 2), ord(name[0]), np.float32),
            y=np.array([name] * 3),
        )
    assert rows_of(read(alone))[1] == list("aaabbbccc")
    assert rows_of(read(alone / "[ab].npz"))[1] == list("aaabbb")


def test_only_the_rows_of_a_shard_are_read(tmp_path: Path, traffic: Traffic) -> None:
    X = np.random.default_rng(1).normal(size=(20_000, 8)).astype(np.float32)
    y = np.arange(20_000) % 5
    save_features(tmp_path / "big.npz", Dataset.of(X, y, X[:10], y[:10]))
    upload(tmp_path, "memory://sets")
    size = (tmp_path / "big.npz").stat().st_size
    far = read("memory://sets/big.npz")
    shards = list(far.shards(rows=100, size=LARGE))
    assert traffic.total < size / 3  # planning read headers
    traffic.sizes.clear()
    worker = source_from(json.loads(json.dumps(far.describe())))
    data = worker.read(shards[150])
    assert data.features.tobytes() == X[15_000:15_100].tobytes()
    assert data.labels.tolist() == [str(code) for code in y[15_000:15_100]]
    assert data.names()[0] == "big.npz[15000]"
    assert traffic.total < size / 3
    traffic.sizes.clear()
    worker.read(shards[151])
    assert traffic.total == 100 * (
        8 * 4 + 8
    )  # with cached headers, only rows and labels are read


def test_compressed_arrays_are_read_once(tmp_path: Path, traffic: Traffic) -> None:
    X = np.random.default_rng(1).normal(size=(3000, 8)).astype(np.float32)
    y = np.array([f"class {row % 7}" for row in range(3000)])
    np.savez_compressed(tmp_path / "packed.npz", X=X, y=y)
    np.savez(tmp_path / "columns.npz", X=np.asfortranarray(X), y=y)
    upload(tmp_path, "memory://sets")
    for name in ("packed.npz", "columns.npz"):
        traffic.sizes.clear()
        got, labels = rows_of(read(f"memory://sets/{name}"), rows=100)
        assert got.tobytes() == X.tobytes()
        assert labels == y.tolist()
        assert traffic.total < 2.5 * (tmp_path / name).stat().st_size


# -- errors ----------------------------------------------------------------------------


def test_files_of_different_form_are_refused(alone: Path) -> None:
    np.savez(alone / "a.npz", X=np.eye(3, dtype=np.float32))
    assert parts_of(read(alone / "a.npz"))[0].labels is None
    np.savez(alone / "b.npz", X=np.eye(3, dtype=np.float32), y=np.arange(3))
    with pytest.raises(
        FileFormatError, match=r"labels False in a.npz and True in b.npz"
    ):
        parts_of(read(alone))
    assert len(parts_of(read(alone, labelled=False))) == 2
    np.savez(alone / "b.npz", X=np.eye(5, dtype=np.float32))
    with pytest.raises(
        FileFormatError, match=r"width \(3,\) in a.npz and \(5,\) in b.npz"
    ):
        parts_of(read(alone))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"X_test": None}, "lacks X_test"),
        ({"y_test": None}, "lacks y_test"),
        ({"X_train": X[:, :3]}, "3 columns like the training features, got 4"),
        ({"y_train": Y[:3]}, "must hold 6 integers or strings"),
        ({"X_train": np.where(X == 9, np.nan, X)}, "row 2"),
        ({"X_train": X.astype(complex)}, "must be feature vectors or bytes"),
        ({"y_train": Y + 0.5}, "integers or strings"),
        (
            {"y_train": np.array([{}] * 6)},
            r"toy\.npz must be an intact NPZ file of plain arrays",
        ),
    ],
)
def test_invalid_feature_files_are_typed_errors(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    arrays = {
        key: value for key, value in {**ARRAYS, **changes}.items() if value is not None
    }
    with pytest.raises(FileFormatError, match=match):
        load_features(write(tmp_path / "toy.npz", arrays))


def test_a_class_in_the_test_part_only_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.npz", {**ARRAYS, "y_test": np.array([0, 1, 9])})
    with pytest.raises(LabelError, match="'9' in the test set only"):
        load_features(path)


@pytest.mark.parametrize(
    ("arrays", "error", "match"),
    [
        (
            {"Z": np.eye(3)},
            FileFormatError,
            "must hold an array X_train, X or features, got 'Z'",
        ),
        (
            {"X": np.zeros((2, 3, 4), np.float32)},
            FileFormatError,
            "must be feature vectors or",
        ),
        (
            {"X": np.eye(3), "y": np.arange(2)},
            FileFormatError,
            "y must hold 3 integers or strings",
        ),
        (
            {"X": np.array([[1.0], [np.nan]])},
            InputError,
            r"toy.npz must be finite, .* row 1",
        ),
    ],
)
def test_invalid_arrays_are_refused(
    arrays: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        parts_of(read(write(tmp_path / "toy.npz", arrays)))


def npy(header: str, values: bytes = b"") -> bytes:
    return (
        b"\x93NUMPY\x01\x00"
        + len(header).to_bytes(2, "little")
        + header.encode("latin-1")
        + values
    )


def entry(shape: str, dtype: str, values: bytes = b"") -> bytes:
    return npy(
        f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117)
        + "\n",
        values,
    )


def write_entries(
    path: Path, compression: int = zipfile.ZIP_STORED, **entries: bytes
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in ARRAYS.items():
            buffer = io.BytesIO()
            np.save(buffer, value)
            entries.setdefault(name, buffer.getvalue())
        for name, body in entries.items():
            archive.writestr(f"{name}.npy", body)
    return path


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (entry("(1000000000000, 4)", "<f8"), "another number of bytes"),
        (entry("(-6, 4)", "<f8", bytes(8)), "another number of bytes"),
        (entry("(-6, -4)", "<f8", bytes(192)), "another number of bytes"),
        (entry("(6, 4)", "<f8", b"x" * 191), "another number of bytes"),
        (entry("(6, 4)", "|O", b"x" * 400), "must hold plain values"),
        (entry("6, 4", "<f8"), "must "),
        (
            entry("(" * 5000 + ")" * 5000, "<f8"),
            "must begin with the header of an array",
        ),
        (entry("(6, 4)", "<nothing"), "must begin with the header of an array"),
        (
            npy("{'descr': '<f8', 'fortran_order': False, 'sha"),
            "must begin with the header of an array",
        ),
        (
            npy("{'descr': [[[['<f8'", bytes(8)),
            "must begin with the header of an array",
        ),
        (npy("(" * 9000), "must begin with the header of an array"),
        (b"\x93NUMPY\x03\x00" + b"\0" * 200, "must "),
        (b"\x93NUMPY", "must be an intact NP"),
        (b"", "must be an intact NP"),
    ],
)
def test_damaged_arrays_and_wrong_sizes_are_refused(
    body: bytes, match: str, tmp_path: Path
) -> None:
    (tmp_path / "x.npy").write_bytes(body)
    write_entries(tmp_path / "x.npz", X_train=body)
    with pytest.raises(FileFormatError, match=match):
        load_features(tmp_path / "x.npz")
    for name in ("x.npy", "x.npz"):
        with pytest.raises(FileFormatError, match=match):
            read_items(tmp_path / name)


@pytest.mark.parametrize(
    "entries",
    [
        {"classes": entry("(1000000000000,)", "<U0")},
        {"classes": entry("(1,)", "<U1000000000")},
        {
            "classes": entry("()", "<U1", "5".encode("utf-32-le")),
            "backbone": entry("()", "<U1", "[".encode("utf-32-le")),
        },
        {"backbone": entry("()", "<U50000", ("[" * 50_000).encode("utf-32-le"))},
        {"evergrow": entry("()", "<U3", "NaN".encode("utf-32-le"))},
    ],
)
def test_hostile_texts_of_an_npz_end_in_a_file_error(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError):
        load_features(write_entries(tmp_path / "toy.npz", **entries))


def test_an_archive_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "ROOM", 2**16)
    zeros = entry("(262144, 4)", "<f8", bytes(2**23))
    with pytest.raises(FileFormatError, match="must unpack to at most"):
        load_features(
            write_entries(tmp_path / "bomb.npz", zipfile.ZIP_DEFLATED, X_train=zeros)
        )
    with pytest.raises(FileFormatError, match="stored or deflated"):
        load_features(write_entries(tmp_path / "odd.npz", zipfile.ZIP_BZIP2))


def test_kind_and_version_are_checked_and_unknown_fields_kept(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    data = Dataset.of(*ARRAYS.values(), unknown={"licence": "CC0"})
    save_features(path, data)
    again = load_features(path)
    assert again.unknown == {"licence": "CC0"}
    assert contents_of(again) == contents_of(data)
    for stamp, error in (
        ({"schema": "feature-set", "version": 99, "evergrow": "7.0"}, NewerSchemaError),
        ({"schema": "learner", "version": 1}, FileFormatError),
        ({"version": "two"}, FileFormatError),
    ):
        with pytest.raises(error):
            load_features(write(path, ARRAYS, evergrow=json.dumps(stamp)))


def test_a_backbone_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.npz", ARRAYS, backbone="[1]")
    with pytest.raises(FileFormatError, match="backbone must be an object, got list"):
        load_features(path)


def test_a_file_that_changed_since_the_shards_were_made_is_refused(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(9), y=np.arange(9))
    source = read(tmp_path / "a.npz")
    last = list(source.shards(3, LARGE))[-1]
    np.savez(tmp_path / "a.npz", X=np.eye(4), y=np.arange(4))
    with pytest.raises(
        FileFormatError, match="must hold 9 rows of X, as when the shards were made"
    ):
        source_from(source.describe()).read(last)


def test_a_file_states_its_blocks_by_an_array(tmp_path: Path) -> None:
    X = np.array([[3.0, 4.0, 5.0, -12.0], [0.0, -1.0, 1.0, 0.0]])
    np.savez(tmp_path / "a.npz", X=X, y=["a", "b"], blocks=[2, 2])
    train = read_labelled(tmp_path / "a.npz", "train")
    assert train.widths == (2, 2)
    lengths = np.linalg.norm(train.features.reshape(2, 2, 2), axis=2)
    np.testing.assert_allclose(lengths, np.sqrt(0.5))
    assert read_items(tmp_path / "a.npz").widths == (2, 2)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [([2, 3], "must add up to the 4 columns"), ([2.0, 2.0], "must be whole numbers")],
)
def test_blocks_that_do_not_fit_are_refused(
    tmp_path: Path, blocks: list, message: str
) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(4), y=list("abcd"), blocks=blocks)
    with pytest.raises(FileFormatError, match=message):
        read_labelled(tmp_path / "a.npz", "train")
