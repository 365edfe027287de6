"""``evergrow watch``: what it prints, and how it leaves."""

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
