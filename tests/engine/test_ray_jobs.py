"""Jobs on a Ray cluster give the model of one process, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.conftest import ROOT, SMALL, alive, descendants, killing, wait_until
from tests.learner.toys import write_folder

from evergrow import Learner
from evergrow.core.errors import EngineError
from evergrow.core.files import PARTIAL
from evergrow.core.seeding import generator
from evergrow.engine import Engine, LocalEngine, RayEngine
from evergrow.engine.job import read_job
from evergrow.features import create_backbone

pytestmark = pytest.mark.slow

KILLS = 10
OPTIONS = {"n_units": 600}
SIZES = {"shard_rows": 100, "first_rows": 400}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 3,000 labelled feature vectors, which is 30 shards."""
    draws = np.random.default_rng(0)
    y = draws.permutation(np.arange(3000) % 12)
    X = draws.normal(size=(12, 64))[y] + draws.normal(size=(3000, 64))
    path = tmp_path_factory.mktemp("data") / "vectors.npz"
    np.savez(
        path, X=X.astype(np.float32), y=np.array([f"class {label:02d}" for label in y])
    )
    return path


@pytest.fixture(scope="module")
def logits(data: Path) -> np.ndarray:
    """Return the answers of a model that one process learned, shard by shard."""
    return answers(learned(data, LocalEngine(**SIZES)), data)


def learned(data: Path, engine: Engine) -> Learner:
    return Learner(device="cpu", options=OPTIONS).fit(str(data), engine=engine)


def answers(learner: Learner, data: Path) -> np.ndarray:
    with np.load(data) as arrays:
        return learner.decision_function(arrays["X"][:200])


def check_left(folder: Path) -> None:
    """Assert that a job counted every shard once and left no partial files."""
    found = read_job(folder).final_report()
    assert (len(found.shards), found.rows, found.failed) == (30, 3000, {})
    assert not [path for path in folder.rglob("*") if PARTIAL in path.name]


def workers_here() -> list[int]:
    """Return working processes that this process started."""
    found = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(
                b"ray::task_result"
            ) and alive(pid):
                found.append(pid)
    return sorted(found)


def files(folder: Path) -> int:
    return sum(
        path.suffix == ".evg"
        for stage in ("statistics", "merged")
        for path in (folder / stage).glob("*")
    )


def test_cluster_gives_the_model_of_one_process(
    cluster: Any, data: Path, logits: np.ndarray
) -> None:
    for workers in (1, 3):
        there = learned(
            data, RayEngine(address=cluster.address, workers=workers, **SIZES)
        )
        np.testing.assert_array_equal(answers(there, data), logits)


def test_cluster_gives_bit_identical_image_features(
    cluster: Any, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_folder(tmp_path / "images", {"ant": 0, "bee": 1, "cat": 2}, n=20)
    backbone = create_backbone("test_resnet", weights="random", device="cpu")
    there = {"address": cluster.address}
    engines = {
        "one": LocalEngine(folder=tmp_path / "one", shard_rows=16),
        "two": LocalEngine(folder=tmp_path / "two", shard_rows=16, workers=2),
        "ray": RayEngine(folder=tmp_path / "ray", shard_rows=16, **there, workers=2),
        "decoding": RayEngine(
            folder=tmp_path / "decoding",
            shard_rows=16,
            **there,
            workers=1,
            cpus_per_worker=2,
        ),
    }
    found = {}
    for name, engine in engines.items():
        engine.features(backbone, str(tmp_path / "images"))
        found[name] = parquet.read_table(tmp_path / name / "features").to_pydict()
        assert len(found[name]["name"]) == 60
        assert found[name] == found["one"], name


def test_cluster_gives_update_and_predictions_of_one_process(
    cluster: Any, data: Path, tmp_path: Path
) -> None:
    with np.load(data) as arrays:
        X = arrays["X"]
        y = arrays["y"]
    known = Learner(device="cpu", options=OPTIONS).fit(
        (X[y < "class 06"], y[y < "class 06"])
    )
    known.save(tmp_path / "known.evg")
    np.savez(tmp_path / "more.npz", X=X[y >= "class 06"], y=y[y >= "class 06"])
    told = []
    for engine in (
        LocalEngine(**SIZES),
        RayEngine(address=cluster.address, workers=2, **SIZES),
    ):
        learner = Learner.load(tmp_path / "known.evg", device="cpu")
        learner.partial_fit(str(tmp_path / "more.npz"), engine=engine)
        evaluation, tally = engine.evaluate(learner, str(data))
        told.append((answers(learner, data), evaluation.accuracy, tally.rows))
    np.testing.assert_array_equal(told[0][0], told[1][0])
    assert told[0][1:] == told[1][1:]
    assert told[0][2] == 3000


def test_killed_workers_on_a_cluster_do_not_change_the_result(
    cluster: Any, data: Path, logits: np.ndarray, tmp_path: Path
) -> None:
    waits = (
        torch.rand(KILLS, generator=generator(17, "moments to kill")) * 0.8
    ).tolist()
    with killing(workers_here, waits, lambda: files(tmp_path)) as killed:
        there = learned(
            data,
            RayEngine(folder=tmp_path, **SIZES, address=cluster.address, workers=2),
        )
    np.testing.assert_array_equal(answers(there, data), logits)
    check_left(tmp_path)
    assert len(killed) >= KILLS // 2, "it was over before the workers were killed"


def test_lost_node_does_not_change_the_result(
    cluster: Any, data: Path, logits: np.ndarray, tmp_path: Path
) -> None:
    extra = cluster.add_node(num_cpus=2, **SMALL)
    cluster.wait_for_nodes()

    def remove() -> None:
        wait_until(lambda: files(tmp_path) >= 4)
        cluster.remove_node(extra, allow_graceful=False)

    remover = threading.Thread(target=remove, daemon=True)
    remover.start()
    engine = RayEngine(folder=tmp_path, **SIZES, address=cluster.address, workers=6)
    there = learned(data, engine)
    remover.join(60)
    assert extra not in cluster.worker_nodes
    np.testing.assert_array_equal(answers(there, data), logits)
    check_left(tmp_path)


DRIVER = """
import sys
from evergrow import Learner
from evergrow.engine import RayEngine
data, folder, address = sys.argv[1:]
sizes = {"shard_rows": 100, "first_rows": 400}
engine = RayEngine(folder=folder, address=address, workers=2, **sizes)
Learner(device="cpu", options={"n_units": 600}).fit(data, engine=engine)
"""


def test_killed_driver_resumes_on_a_cluster(
    cluster: Any, data: Path, logits: np.ndarray, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", DRIVER, str(data), str(tmp_path), cluster.address]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for done in (2, 6):  # twice, at other places
        driver = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        wait_until(
            lambda done=done, driver=driver: (
                files(tmp_path) >= done or driver.poll() is not None
            )
        )
        driver.kill()
        assert driver.wait() == -signal.SIGKILL
        assert read_job(tmp_path).final_report() is None
    before = {
        path.name: path.stat().st_mtime_ns
        for path in (tmp_path / "statistics").glob("*.evg")
    }
    there = learned(
        data, RayEngine(folder=tmp_path, **SIZES, address=cluster.address, workers=2)
    )
    assert before
    np.testing.assert_array_equal(answers(there, data), logits)
    check_left(tmp_path)
    wait_until(lambda: not workers_here())  # also those of the drivers that were killed


def test_nodes_with_other_versions_are_rejected_before_any_work(
    cluster: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergrow.engine.job_steps.versions", lambda: {"torch": "0.1"})
    with pytest.raises(
        EngineError,
        match=r"^node \S+: versions must be {'torch': '0.1'} as where",
    ):
        learned(
            data,
            RayEngine(folder=tmp_path, **SIZES, address=cluster.address, workers=2),
        )
    assert not list((tmp_path / "first").glob("*"))
