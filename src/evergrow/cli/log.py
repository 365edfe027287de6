"""``evergrow log``: who changed a model, when, how, and what became of its accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli.console import Answer, listed, percent, plural, table
from evergrow.cli.options import Json, ModelFile
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.learner.changes import Change

_SHOWN = 20


@command("log", panel="Ask")
def log_command(
    model: ModelFile,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many of the latest changes to list.")] = _SHOWN,
    full: Annotated[bool, typer.Option("--full", help="List all changes.")] = False,
    as_json: Json = False,
) -> Answer:
    """List the changes of a model, the latest first: who, when, what, and accuracy where it was tested.

    What was rolled back stays in the list. A user is named as [bold]EVERGROW_AUTHOR[/bold] says, where that is set.

    For example:

      evergrow log birds.evg

      evergrow log birds.evg --full --json

    Exit codes: 0 listed, 2 no model or a damaged one.
    """
    from evergrow.learner.modelfile import history

    changes = history(model)
    shown = changes if full else changes[-n:]
    rows = [
        [
            str(change.revision),
            change.when[:19].replace("T", " "),
            change.who,
            change.what,
            f"{change.samples:,}",
            described(change),
        ]
        for change in reversed(shown)
    ]
    lines = table(["revision", "when (UTC)", "who", "what", "samples", "details"], rows, right=["revision", "samples"])
    if len(shown) < len(changes):
        lines.append(f"({plural(len(changes) - len(shown), 'earlier change')}: --full)")
    return Answer({"model": str(model), "history": [change.to_dict() for change in changes]}, lines)


def described(change: Change) -> str:
    """Return what a change did to classes and accuracy, in a few words."""
    parts = []
    if change.names:
        parts.append(listed([f"{old} -> {new}" for old, new in change.names.items()], 3))
    elif change.classes:
        sign = "-" if change.what in ("forget", "unlearn") else "+"
        parts.append(f"{sign}{len(change.classes)}: {listed(change.classes, 3)}")
    if change.tested is not None and change.tested.after is not None:
        before = "" if change.tested.before is None else f"{percent(change.tested.before)} -> "
        parts.append(f"accuracy {before}{percent(change.tested.after)}")
    return "; ".join([*parts, *([change.note] if change.note else [])])
