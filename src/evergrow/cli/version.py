"""``evergrow version``: which one this is."""

from __future__ import annotations

from evergrow.cli.console import Answer
from evergrow.cli.options import Json
from evergrow.cli.registry import command


@command("version")
def version(as_json: Json = False) -> Answer:
    """Print the version."""
    from evergrow.core.version import __version__

    return Answer({"version": __version__}, [__version__])
