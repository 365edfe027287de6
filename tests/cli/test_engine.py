"""Commands with ``--engine``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, Shell, write_features

from evergrow import Learner

pytest.importorskip("pyarrow")
ENGINE = ("--engine", "local", "--set", "shard_rows=20")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_features(tmp_path / "points.npz", NAMES[:4])


def test_fit_and_update_learn_all_shards(
    shell: Shell, data: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.evg"
    values = shell.json("fit", data, "-m", model, "--units", 20, *ENGINE)
    assert values["engine"] == {
        "rows": 80,
        "shards": 4,
        "failed": {},
        "left_out": [],
        "unreadable": {},
    }
    assert values["n_samples"] == 80
    more = write_features(tmp_path / "more.npz", NAMES[3:], n=10)
    values = shell.json("update", model, more, *ENGINE)
    assert values["classes"] == ["eel", "fox"]
    assert not list(
        tmp_path.glob("*.engine")
    )  # folders that nobody named go with the work
    assert [change.what for change in Learner.load(model).state_.history] == [
        "fit",
        "update",
    ]


def test_shards_are_limited_by_bytes_too(shell: Shell, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    X = draws.normal(size=(400, 1000)).astype(np.float32)
    y = np.array(list("ab") * 200)
    np.savez(tmp_path / "wide.npz", X=X, y=y)
    settings = ("--units", 5, "--engine", "local", "--set", "shard_mib=1")
    values = shell.json(
        "fit", tmp_path / "wide.npz", "-m", tmp_path / "wide.evg", *settings
    )
    assert values["engine"]["shards"] == 2  # 1.6 MB in all


def test_evaluate_and_predict_with_shards(
    shell: Shell, data: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.evg"
    shell.run("fit", data, "-m", model, "--units", 20)
    plain = shell.json("evaluate", model, data)
    found = shell.json("evaluate", model, data, *ENGINE)
    assert found["confusion"] == plain["confusion"]
    assert found["n_samples"] == 40  # the test part
    values = shell.json("predict", model, data, *ENGINE, "--out", tmp_path / "answers")
    assert values["answered"] == 120
    folder = tmp_path / "answers" / "predict"
    assert len(list(folder.glob("*.parquet"))) == 6
    strict = ("predict", model, data, "--strangers", "many")
    stderr = shell.run(*strict, *ENGINE, "--out", tmp_path / "strict").stderr
    assert "--strangers many: of 100 samples of learned classes" in stderr
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "strict" / "predict").to_pylist()
    parts = np.load(data)
    np.save(tmp_path / "X.npy", np.concatenate([parts["X_train"], parts["X_test"]]))
    rows = shell.json("predict", model, tmp_path / "X.npy", "--strangers", "many")
    assert [row["unsure"] for row in table] == [
        row["unsure"] for row in rows["predictions"]
    ]


def test_unreadable_images_are_listed(
    shell: Shell, images: Path, tmp_path: Path
) -> None:
    (images / "lying" / "0.png").write_bytes(b"no image")
    command = (
        "features",
        images,
        "-b",
        "test_resnet",
        "--set",
        "weights=random",
        *ENGINE,
    )
    said = shell.error(*command, "-o", tmp_path / "stopped")
    assert "lying/0.png" in said
    assert "the same command continues from there" in said
    result = shell.run(
        *command, "-o", tmp_path / "features", "--on-error", "skip", code=1
    )
    assert "1 samples could not be read and were left out: lying/0.png" in result.stderr


def test_options_that_an_engine_rejects(
    shell: Shell, data: Path, tmp_path: Path
) -> None:
    fit = ("fit", data, "-m", tmp_path / "model.evg", *ENGINE)
    assert "--holdout does not work with --engine" in shell.error(
        *fit, "--holdout", 0.2
    )
    assert "--adapt does not work with --engine" in shell.error(*fit, "--adapt", "ssf")
    assert "method 'simplecil' cannot spawn an empty classifier" in shell.error(
        *fit, "--method", "simplecil"
    )
    assert "No folder or file 'no'" in shell.error(
        "fit", tmp_path / "no", "-m", tmp_path / "m.evg", *ENGINE
    )
    shell.run("fit", data, "-m", tmp_path / "model.evg", "--units", 20)
    assert "name a folder by --out" in shell.error(
        "predict", tmp_path / "model.evg", data, *ENGINE
    )
    assert "one folder, file or address" in shell.error(
        "predict", tmp_path / "model.evg", data, data, *ENGINE
    )
    assert "holds features already" in shell.error(
        "features", data, "-o", tmp_path / "f", *ENGINE
    )
    ray = ("fit", data, "-m", tmp_path / "r.evg", "--engine", "ray", "--set")
    assert "Nobody answers at 127.0.0.1:1: " in shell.error(*ray, "address=127.0.0.1:1")
    assert "address must be HOST:PORT" in shell.error(*ray, "address=head")
    assert not list(tmp_path.glob("*.engine"))
