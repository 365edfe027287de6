"""One list of commands: help, completion and the application are made from it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.commands import evergrow
from typer.testing import CliRunner

from evergrow.cli.registry import COMMANDS, build_app

build_app()  # fills the list
NAMES = tuple(COMMANDS)
CHANGING = ("fit", "update", "forget", "unlearn", "rollback", "merge", "cache clear", "lab run", "lab mechanism")


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_command(name: str) -> None:
    output = evergrow(*name.split(), "--help").stdout
    assert "--json" in output
    if name not in ("demo", "lab methods"):  # which can only succeed
        assert "Exit codes: 0" in output
    if name in CHANGING:
        assert " 3 " in output.partition("Exit codes")[2]  # busy


def test_shell_completion_offers_the_commands() -> None:
    environment = {
        "_EVERGROW_COMPLETE": "complete_bash",
        "COMP_WORDS": "evergrow ev",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_TESTING": "True",
    }
    result = CliRunner().invoke(build_app(), [], env=environment, prog_name="evergrow")
    assert result.stdout.split() == ["evaluate"]


def test_commands_import_nothing_heavy_before_they_run() -> None:
    code = (
        "import sys, typer; before = set(sys.modules); from evergrow.cli.registry import build_app; build_app(); "
        "heavy = {'torch', 'timm', 'torchvision', 'PIL', 'pandas', 'matplotlib', 'numpy', 'sklearn'}; "
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_version_is_an_option_too():
    from evergrow.core.version import __version__

    assert evergrow("--version").stdout == f"{__version__}\n"
