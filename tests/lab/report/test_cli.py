"""The command: what it prints, and its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.commands import evergrow
from tests.lab.report.toys import Write, run


def test_report_command_writes_the_page(write: Write, tmp_path: Path) -> None:
    result = evergrow(
        "lab",
        "report",
        str(write([run(seed=1), run(seed=2)])),
        "-o",
        str(tmp_path / "out"),
        "--title",
        "T",
    )
    assert result.exit_code == 0
    assert "index.html" in result.output
    assert "not run: DINOv2 backbone" in result.output
    assert "evergrow lab mechanism experiments/mechanism.toml" in result.output
    assert "<h1>T</h1>" in (tmp_path / "out" / "index.html").read_text()


def test_json_lists_figures_tables_and_missing_results(
    write: Write, tmp_path: Path
) -> None:
    result = evergrow(
        "lab", "report", str(write([run()])), "-o", str(tmp_path / "out"), "--json"
    )
    body = json.loads(result.stdout)
    assert body["exit_code"] == result.exit_code == 0
    assert body["page"].endswith("index.html")
    assert "published-main" in body["tables"]
    assert {"title", "why", "command"} == set(body["not_run"][0])


def test_unusable_files_exit_1(write: Write, tmp_path: Path) -> None:
    folder = write([run()])
    for index in range(7):
        (folder / f"bad{index}.json").write_text("{")
    result = evergrow("lab", "report", str(folder), "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert result.output.count("left out:") == 6
    assert "2 further files" in result.output
    assert (tmp_path / "out" / "index.html").exists()


def test_no_usable_record_exits_2_and_writes_nothing(tmp_path: Path) -> None:
    result = evergrow("lab", "report", str(tmp_path), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "error: No record in" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["matplotlib", "jinja2", "pandas"])
def test_a_missing_extra_names_the_install_command(
    module: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = evergrow("lab", "report", str(write([run()])), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "pip install 'evergrow[lab]'" in result.output
    assert not (tmp_path / "out").exists()
