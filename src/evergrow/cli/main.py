"""The ``evergrow`` command."""

from __future__ import annotations

from evergrow.cli.registry import build_app


def main() -> None:
    """Run the command line and leave with an exit code."""
    build_app()()
