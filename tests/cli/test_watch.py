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
from tests.cli.conftest import Shell, clouds

from evergrow.learner.modelfile import open_model

ONCE = ("watch", "m.evg", "incoming", "--once", "--quiet")


@pytest.fixture(autouse=True)
def folder(shell: Shell, model: Path) -> Path:
    Path("incoming", "cat").mkdir(parents=True)
    for number, vector in enumerate(clouds(("dog",), 3, 5)[0]):
        np.save(Path("incoming", "cat", f"{number}.npy"), vector)
    return Path("incoming")


def test_once_learns(shell: Shell, model: Path, folder: Path) -> None:
    values = shell.json(*ONCE, 0)
    assert (values["learned"], values["revision"]) == (3, 2)
    assert "learned 0 files" in shell.run(*ONCE, 0).stdout
    assert open_model(model).history_[-1].note == "watched 3 files"


def test_fresh_files_are_looked_at_twice(shell: Shell) -> None:
    assert shell.json(*ONCE, 0.2)["learned"] == 3


def test_refused_files_are_worth_a_look(shell: Shell, folder: Path) -> None:
    (folder / "cat" / "text.txt").write_text("no vector")
    assert list(shell.json(*ONCE, 0, code=1)["refused"]) == ["cat/text.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.evg", "incoming"], "Make one with fit"),
        (["m.evg", "nowhere"], "No folder 'nowhere'"),
        (["m.evg", "incoming", "--quiet", "-1"], "--quiet"),
        (["m.evg", "incoming", "--interval", "nan"], "--interval"),
    ],
)
def test_bad_arguments(shell: Shell, arguments: list[str], message: str) -> None:
    assert message in shell.error("watch", *arguments, "--once")


@pytest.mark.slow
def test_it_goes_on_until_interrupted(folder: Path) -> None:
    command = [sys.executable, "-m", "evergrow", "watch", "m.evg", "incoming"]
    process = subprocess.Popen(
        [*command, "--interval", "0.1", "--quiet", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / "done" / "learned" / "cat" / "2.npy").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["learned"] == 3
    assert "watching" in err
