"""Every name, file, command and link in docstrings and pages exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.code_names import PACKAGE, ROOT, Checker, Code, Finding
from typer.main import get_command

from evergrow.cli.registry import COMMANDS, build_app

PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / name / "README.md" for name in ("experiments", "benchmarks")),
    ]
)


@pytest.fixture(scope="module")
def checker() -> Checker:
    app = get_command(build_app())
    commands = {"": options(app)}
    for name in COMMANDS:
        found = app
        for word in name.split():
            found = found.commands[word]
        commands[name] = options(found)
    return Checker(Code(), commands)


def options(command) -> set[str]:
    known = {"--help"}
    for item in command.params:
        known.update((*item.opts, *item.secondary_opts))
    return known


def present(path: Path) -> str:
    """Return a page without what it says about older versions."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = "\n## ".join(text.split("\n## ")[:2])
        old = r"\n### (?:Changed|Removed).*?(?=\n### |\Z)"
        text = re.sub(old, lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    if path.name == "releases.md":
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE)
    return text


def report(findings: list[Finding]) -> str:
    lines = sorted(str(finding) for finding in findings)
    return "\n".join([f"{len(lines)} names do not exist:", *lines])


def test_docstrings_name_what_exists(checker):
    found = []
    for module, tree in checker.code.trees.items():
        found += checker.source(module, tree, checker.code.paths[module])
    assert not found, report(found)


def test_pages_name_what_exists(checker):
    found = []
    for path in PAGES:
        found += checker.page(path, present(path))
    assert not found, report(found)
