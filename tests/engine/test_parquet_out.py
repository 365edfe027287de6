"""Parquet results are exact, reproducible and written atomically."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from evergrow.core.errors import FileFormatError
from evergrow.data import read
from evergrow.data.storage import Tree
from evergrow.engine.parquet_out import WIDTHS, write_features, write_predictions
from evergrow.learner.predictions import Predictions


def small_predictions(*, novelty: bool) -> Predictions:
    values = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    found = Predictions(
        np.array(["ant", "bee", "cat"]), values, "probability", np.array([0, 2])
    )
    more = {
        "novelty": np.array([0.5, 3.0]),
        "unknown": np.array([False, True]),
        "threshold": np.ones(2),
    }
    if novelty:
        return replace(found, **more)
    return found


def test_features_round_trip_is_exact(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    names = [f"{row}.jpg" for row in range(9)]
    labels = np.array([f"class {row % 2}" for row in range(9)])
    write_features(tmp_path / "0.parquet", names=names, features=X, labels=labels)
    source = read(tmp_path, layout="parquet")
    data = [source.read(shard) for shard in source.shards(4, 1 << 30)]
    assert np.concatenate([part.features for part in data]).tobytes() == X.tobytes()
    assert [name for part in data for name in part.names()] == names
    assert [label for part in data for label in part.labels.tolist()] == labels.tolist()
    assert pq.read_schema(tmp_path / "0.parquet").field("feature").type.list_size == 5


@pytest.mark.parametrize(
    ("stated", "message"),
    [((2, 4), "must add up to the 5"), ("2 3", "must be positive integers")],
)
def test_block_widths_are_stored_and_checked(
    tmp_path: Path, stated: object, message: str
) -> None:
    X = np.ones((4, 5), dtype=np.float32)
    write_features(
        tmp_path / "0.parquet", names=list("abcd"), features=X, widths=(2, 3)
    )
    assert read(tmp_path, layout="parquet").widths == (2, 3)
    table = pq.read_table(tmp_path / "0.parquet").replace_schema_metadata(
        {WIDTHS: json.dumps(stated)}
    )
    pq.write_table(table, tmp_path / "0.parquet")
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path, layout="parquet").widths  # noqa: B018


@pytest.mark.parametrize("widths", [(3, 2), ()])
def test_files_with_different_blocks_are_rejected(
    tmp_path: Path, widths: tuple[int, ...]
) -> None:
    X = np.ones((4, 5), dtype=np.float32)
    for number, stated in enumerate([(2, 3), widths]):
        write_features(
            tmp_path / f"{number}.parquet",
            names=list("abcd"),
            features=X,
            widths=stated,
        )
    source = read(tmp_path, layout="parquet")
    with pytest.raises(
        FileFormatError, match=r"got blocks \(2, 3\) in 0\.parquet and .* in 1\.parquet"
    ):
        list(source.shards(4, 1 << 30))


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    for name in ("a.parquet", "b.parquet", "a.parquet"):
        write_features(tmp_path / name, names=["x"] * 9, features=X)
    listing = Tree(tmp_path).listing()
    assert list(listing) == ["a.parquet", "b.parquet"]
    assert len({Tree(tmp_path).read(name) for name in listing}) == 1


def test_write_predictions_writes_all_columns(tmp_path: Path) -> None:
    names = ["a", "unreadable", "c"]
    truth = np.array(["ant", "ant", "bee"])
    write_predictions(
        tmp_path / "0.parquet",
        names=names,
        predictions=small_predictions(novelty=True),
        labels=truth,
        top=2,
    )
    assert pq.read_table(tmp_path / "0.parquet").to_pylist() == [
        {
            "name": "a",
            "label": "ant",
            "probability": 0.7,
            "nearest": "ant",
            "unknown": False,
            "novelty": 0.5,
            "threshold": 1.0,
            "top": [
                {"label": "ant", "probability": 0.7},
                {"label": "bee", "probability": 0.2},
            ],
            "true_label": "ant",
        },
        {
            "name": "c",
            "label": None,
            "probability": None,
            "nearest": "cat",
            "unknown": True,
            "novelty": 3.0,
            "threshold": 1.0,
            "top": [
                {"label": "cat", "probability": 0.6},
                {"label": "bee", "probability": 0.3},
            ],
            "true_label": "bee",
        },
    ]
    plain = small_predictions(novelty=False)
    unsure = np.array([True, False])
    write_predictions(
        tmp_path / "2.parquet", names=names, predictions=plain, unsure=unsure
    )
    table = pq.read_table(tmp_path / "2.parquet").to_pydict()
    assert table["unsure"] == [True, False]
    write_predictions(tmp_path / "1.parquet", names=names, predictions=plain)
    assert pq.read_schema(tmp_path / "1.parquet").names == [
        "name",
        "label",
        "probability",
    ]


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    write_features(
        tmp_path / "a.parquet", names=["caf\udce9.jpg"], features=np.ones((1, 2))
    )
    found = replace(
        small_predictions(novelty=True), classes=np.array(["caf\udce9", "bee", "cat"])
    )
    write_predictions(
        tmp_path / "b.parquet",
        names=list("abc"),
        predictions=found,
        labels=np.array(["caf\udce9"] * 3),
        top=2,
    )
    assert pq.read_table(tmp_path / "a.parquet")["name"].to_pylist() == [
        "caf\\udce9.jpg"
    ]
    table = pq.read_table(tmp_path / "b.parquet").to_pydict()
    assert table["label"] == ["caf\\udce9", None]
    assert table["true_label"] == ["caf\\udce9"] * 2


def test_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_features(tmp_path / "a.parquet", names=["a"], features=np.ones((1, 2)))
    before = (tmp_path / "a.parquet").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_features(tmp_path / "a.parquet", names=["b"], features=np.zeros((1, 2)))
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
    assert (tmp_path / "a.parquet").read_bytes() == before
