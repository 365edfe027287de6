"""The ``evergrow`` command."""

from __future__ import annotations

from evergrow.cli.registry import build_app

app = build_app()
"""The application with all commands that are registered by now."""


def main() -> None:
    """Run the command line and leave with an exit code."""
    app()
