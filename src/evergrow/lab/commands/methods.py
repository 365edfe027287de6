"""``evergrow lab methods``: the names of methods in specs."""

from __future__ import annotations

from evergrow.cli.console import Answer
from evergrow.cli.options import Json
from evergrow.cli.registry import command


@command("lab methods")
def methods(as_json: Json = False) -> Answer:
    """List the names of all methods."""
    from evergrow.lab.methods import list_methods

    names = list_methods()
    return Answer({"methods": names}, names)
