"""The ``evergrow`` command."""

from __future__ import annotations

from evergrow.cli.registry import build_app

app = build_app()
"""The application with all registered commands."""


def main() -> None:
    """Run the command line and exit with its exit code."""
    app()
