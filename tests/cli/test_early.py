"""Mistakes that show in the arguments, and commands that need no network, import neither torch nor its companions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from evergrow.learner.modelfile import open_model

RUN = """
import json, sys
from evergrow.cli.main import app
outcome = []
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as leaving:
        outcome.append([arguments, leaving.code, sorted({"torch", "timm", "scipy", "sklearn"} & set(sys.modules))])
print(json.dumps(outcome))
"""

WRONG = [
    ["predict", "absent.evg", "image.png"],
    ["predict", "there.evg", "absent.png"],
    ["predict", "there.evg", "a text that is no file"],
    ["evaluate", "absent.evg", "one"],
    ["evaluate", "there.evg", "absent/data"],
    ["update", "there.evg", "absent.csv"],
    ["unlearn", "there.evg", "no-such-name"],
    ["inspect", "absent.evg"],
    ["merge", "there.evg", "absent.evg", "-o", "new.evg"],
    ["export", "absent.evg", "--onnx", "new.onnx"],
    ["rollback", "absent.evg"],
    ["fit", "absent/data", "-m", "new.evg"],
    ["fit", "no-such-name", "-m", "new.evg"],
    ["fit", "one", "-m", "absent/new.evg"],
    ["features", "absent/data", "-o", "new.npz"],
    ["data", "absent/data"],
    ["predict"],
    ["fit", "--no-such-option"],
    ["prdict", "there.evg"],
]


LIGHT = [
    ["log", "m.evg"],
    ["inspect", "m.evg"],
    ["rename", "m.evg", "ant", "wasp"],
    ["diff", "m.evg@1", "m.evg"],
    ["rollback", "m.evg"],
    ["redo", "m.evg"],
    ["merge-classes", "m.evg", "wasp", "bee", "--into", "insect"],
    ["--help"],
    *([name, "--help"] for name in ("predict", "evaluate", "update", "rename", "serve")),
]


def run_all(commands: list[list[str]], folder: Path) -> tuple[list[Any], list[str]]:
    """Return arguments, exit code and heavy modules of each command, all in one process, and the lines of errors."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def test_commands_that_need_no_network_load_none(shell, model):
    outcome, _ = run_all(LIGHT, Path.cwd())
    assert outcome == [[arguments, 0, []] for arguments in LIGHT]
    assert open_model(model).classes_.tolist() == ["cat", "insect"]  # the file is whole
    assert open_model(model).revision_ == 3


def test_wrong_paths_are_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "there.evg").write_bytes(b"any file: nobody gets as far as reading it")
    outcome, errors = run_all(WRONG, tmp_path)
    assert outcome == [[arguments, 2, []] for arguments in WRONG]
    assert len(errors) == len(WRONG)
    assert all(line.startswith("error: ") for line in errors)
    assert not list(tmp_path.glob("new*"))


def test_a_text_is_told_how_it_is_given(shell, model):
    assert '--text "where is it"' in shell.error("predict", model, "where is it")
    assert "--text" not in shell.error("predict", model, "photo.jpg")
