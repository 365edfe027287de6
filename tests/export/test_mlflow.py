"""Learners are saved, loaded and served as MLflow models."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.learner.toys import image

from evergrow import Learner
from evergrow.core.errors import InputError

mlflow = pytest.importorskip("mlflow.pyfunc")
pandas = pytest.importorskip("pandas")

from tests.samples import separated_rows  # noqa: E402

from evergrow.export.mlflow import log_model, predict_frame, save_model  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def frame() -> Any:
    X = separated_rows(np.arange(90) % 3, 4)
    return pandas.DataFrame(X, columns=["a", "b", "c", "d"])


@pytest.fixture
def learner(frame: Any) -> Learner:
    return Learner(None, options={"n_units": 20}).fit(
        frame, np.array(["x", "y", "z"])[np.arange(90) % 3]
    )


def test_saved_mlflow_model_predicts_as_the_learner(
    learner: Learner, frame: Any, tmp_path: Path
) -> None:
    save_model(learner, tmp_path / "model")
    files = {path.suffix for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert ".pkl" not in files
    assert ".evg" in files
    loaded = mlflow.load_model(str(tmp_path / "model"))
    found = loaded.predict(frame)
    assert found["class"].tolist() == learner.predict(frame).tolist()
    np.testing.assert_array_equal(
        found["probability"], learner.predict_proba(frame).max(axis=1)
    )
    more = loaded.predict(frame, params={"top": 2, "false_alarm": 0.05})
    assert {"class_2", "probability_2", "unknown", "novelty"} <= set(more.columns)
    assert (more["unknown"] == learner.is_unknown(frame)).all()
    shuffled = loaded.predict(
        frame[["d", "c", "b", "a"]]
    )  # MLflow puts columns into the order of the signature
    assert shuffled["class"].tolist() == found["class"].tolist()
    with pytest.raises(Exception, match="schema"):
        loaded.predict(frame.rename(columns={"a": "q"}))


def test_logged_mlflow_model_is_loaded_from_its_run(
    frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow as tracking

    X = frame.to_numpy()  # an array has no names of columns
    learner = Learner(None, options={"n_units": 20}).fit(X, np.arange(90) % 3)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    tracking.set_tracking_uri((tmp_path / "runs").as_uri())
    try:
        with tracking.start_run():
            logged = log_model(learner)
        assert logged.metadata["classes"] == 3
        assert (
            mlflow.load_model(logged.model_uri).predict(X)["class"].tolist()
            == learner.predict(X).tolist()
        )
    finally:
        tracking.set_tracking_uri(None)


def png(number: int) -> bytes:
    held = io.BytesIO()
    Image.fromarray(image(number % 2, number)).save(held, "PNG")
    return held.getvalue()


def test_mlflow_accepts_image_bytes_but_no_paths(tmp_path: Path) -> None:
    pixels = [image(number % 2, number) for number in range(10)]
    learner = Learner(
        "test_vit.r160_in1k", weights="random", options={"n_units": 10}, cache=False
    )
    learner.fit(pixels, ["red", "blue"] * 5)
    save_model(learner, tmp_path / "model")
    sent = pandas.DataFrame({"image": [png(number) for number in range(4)]})
    found = mlflow.load_model(str(tmp_path / "model")).predict(sent)
    assert found["class"].tolist() == learner.predict(pixels[:4]).tolist()
    (tmp_path / "secret.png").write_bytes(png(0))
    for bad in (str(tmp_path / "secret.png"), "/etc/passwd", 3):
        with pytest.raises(InputError, match="must be the bytes of an image file"):
            predict_frame(learner, pandas.DataFrame({"image": [bad]}))
    encoded = pandas.DataFrame({"image": [base64.b64encode(png(0)).decode()]})
    assert (
        predict_frame(learner, encoded)["class"].tolist() == found["class"].tolist()[:1]
    )
    with pytest.raises(InputError, match="a column 'image'"):
        predict_frame(learner, pandas.DataFrame({"path": ["x"]}))


# -- served ----------------------------------------------------------------------------


def ask(address: str, values: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address}/invocations",
        json.dumps(values).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["predictions"]


def test_mlflow_serves_the_model(learner: Learner, frame: Any, tmp_path: Path) -> None:
    save_model(learner, tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        str(tmp_path / "model"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        ),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            [*line, "--env-manager", "local", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(server, address, tmp_path / "log.txt")
            rows = frame[:5].to_dict("split")
            found = ask(
                address,
                {"dataframe_split": {"columns": rows["columns"], "data": rows["data"]}},
            )
            assert [row["class"] for row in found] == learner.predict(
                frame[:5]
            ).tolist()
            found = ask(
                address,
                {
                    "dataframe_records": frame[:1].to_dict("records"),
                    "params": {"false_alarm": 0.05},
                },
            )
            assert found[0]["unknown"] in (False, True)
            with pytest.raises(urllib.error.HTTPError):
                ask(address, {"dataframe_records": [{"a": 1.0}]})
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=60)


def wait_for(server: Any, address: str, log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/ping", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())
