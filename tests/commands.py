"""The command line as users type it, in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from evergrow.cli.registry import build_app


def evergrow(*arguments: object, stdin: str | None = None) -> Any:
    """Run ``evergrow`` with these arguments; raise errors that it did not handle."""
    result = CliRunner().invoke(
        build_app(), [str(argument) for argument in arguments], input=stdin
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def help_of(command: str) -> str:
    """Return the help of a command with its line breaks and boxes taken out."""
    result = CliRunner().invoke(
        build_app(),
        [command, "--help"],
        env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"},
    )
    assert result.exit_code == 0
    return " ".join(result.stdout.replace("│", " ").split())
