"""All commands that make, change and ask a model, in the order in which people meet them."""

from __future__ import annotations

import inspect

import typer

from evergrow.cli.change import forget_command, rollback_command, unlearn_command, update_command
from evergrow.cli.choices import NamesListingCommand
from evergrow.cli.evaluate import evaluate_command
from evergrow.cli.export import export_command
from evergrow.cli.fit import fit_command
from evergrow.cli.inspect import inspect_command
from evergrow.cli.predict import predict_command
from evergrow.cli.share import merge_command, spawn_command

_LEARN, _ASK, _EDIT, _SHARE = "Learn", "Ask", "Edit", "Share"


def register(app: typer.Typer) -> None:
    """Add the commands to an application.

    Examples
    --------
    >>> import typer
    >>> from evergrow.cli.commands import register
    >>> app = typer.Typer()
    >>> register(app)
    >>> [command.name for command in app.registered_commands][:3]
    ['fit', 'update', 'predict']
    """
    for name, panel, command in (
        ("fit", _LEARN, fit_command),
        ("update", _LEARN, update_command),
        ("predict", _ASK, predict_command),
        ("evaluate", _ASK, evaluate_command),
        ("inspect", _ASK, inspect_command),
        ("forget", _EDIT, forget_command),
        ("unlearn", _EDIT, unlearn_command),
        ("rollback", _EDIT, rollback_command),
        ("spawn", _SHARE, spawn_command),
        ("merge", _SHARE, merge_command),
        ("export", _SHARE, export_command),
    ):
        about = reflowed(command.__doc__ or "")
        app.command(name, cls=NamesListingCommand, help=about, rich_help_panel=panel)(command)


def reflowed(text: str) -> str:
    r"""Return a docstring with one line per paragraph, for a terminal that is narrower than the source.

    Examples
    --------
    >>> from evergrow.cli.commands import reflowed
    >>> reflowed("One\nparagraph.\n\n    Another\n    one.")
    'One paragraph.\n\nAnother one.'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
