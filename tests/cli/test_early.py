"""Mistakes that show in the arguments alone are met before torch is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
]


def test_wrong_paths_are_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "there.evg").write_bytes(b"any file: nobody gets as far as reading it")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(WRONG)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome == [[arguments, 2, []] for arguments in WRONG]
    errors = done.stderr.splitlines()
    assert len(errors) == len(WRONG)
    assert all(line.startswith("error: ") for line in errors)
    assert not list(tmp_path.glob("new*"))


def test_a_text_is_told_how_it_is_given(shell, model):
    assert '--text "where is it"' in shell.error("predict", model, "where is it")
    assert "--text" not in shell.error("predict", model, "photo.jpg")
