"""Data sets of the Hugging Face Hub in shards, read from a fake file system."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.engine.clouds import points
from tests.export.hub_stand_in import running_hub

from evergrow import Learner

pytest.importorskip("fsspec")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROOT = Path(__file__).parents[3]


def parquet(X: np.ndarray, y: np.ndarray) -> bytes:
    held = io.BytesIO()
    table = pa.table({"feature": list(X), "label": [f"class {code}" for code in y]})
    pq.write_table(table, held, row_group_size=25)
    return held.getvalue()


def run(address: str, home: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a subprocess, because the client reads the Hub URL on import."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    environment.pop("HF_HUB_OFFLINE", None)
    line = [sys.executable, "-m", "evergrow", *map(str, command)]
    return subprocess.run(
        line, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow  # two processes that import torch
def test_data_set_of_the_hub_is_learned_by_shards(tmp_path: Path) -> None:
    X, y = points(n=200)
    model = tmp_path / "points.evg"
    with running_hub() as hub:
        files = {
            f"data/part-{k}.parquet": parquet(
                X[k * 100 : k * 100 + 100], y[k * 100 : k * 100 + 100]
            )
            for k in (0, 1)
        }
        hub.repository("me/points", "datasets").add(files)
        address = "hf://datasets/me/points/data/*.parquet"
        options = ["--engine", "local", "--units", 20, "--device", "cpu", "--json"]
        done = run(hub.address, tmp_path, "fit", address, "-m", model, *options)
        assert done.returncode == 0, done.stderr
        gone = run(
            hub.address,
            tmp_path,
            "fit",
            "hf://datasets/me/nothing/data/",
            "-m",
            tmp_path / "no.evg",
            *options,
        )
    assert json.loads(done.stdout)["engine"]["rows"] == 200
    plain = Learner(options={"n_units": 20}, device="cpu").fit(
        X, np.array([f"class {code}" for code in y])
    )
    np.testing.assert_allclose(
        Learner.load(model).head_.decision_function(X),
        plain.head_.decision_function(X),
        rtol=0,
        atol=1e-9,
    )
    assert gone.returncode == 2
    assert "hf://datasets/me/nothing" in gone.stderr
    assert "Traceback" not in gone.stderr
    assert not (tmp_path / "no.evg").exists()
