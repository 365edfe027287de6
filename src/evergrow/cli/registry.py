"""The one list of commands, filled by a decorator, and the application that is built from it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from evergrow.cli import MODULES
from evergrow.cli.choices import NamesListingCommand
from evergrow.cli.console import Answer, answer_with
from evergrow.cli.exits import CommandGroup
from evergrow.cli.options import OptionGroup, Rare
from evergrow.cli.settings import SET, RareOption, set_option, settings_of
from evergrow.core.registry import load_plugins

ABOUT = "Classifiers that keep learning new classes, without old data and without forgetting."

OTHERS = "Data and tools"
"""Heading of the commands that name none; the help would else list them before all others."""

Function = TypeVar("Function", bound=Callable[..., Answer])


@dataclass(frozen=True)
class Command:
    """A command as people type it.

    Parameters
    ----------
    name : str
        ``fit``, or ``lab run`` for a command of a group.
    function : callable
        Takes what typer parses and returns an :class:`Answer`; its docstring is the help.
    panel : str or None
        Heading under which the help lists it.
    """

    name: str
    function: Callable[..., Answer]
    panel: str | None = None


COMMANDS: dict[str, Command] = {}
"""All commands by name, in the order of the help."""

GROUPS: dict[str, str] = {}
"""Groups of commands with their help."""


def command(name: str, *, panel: str | None = None) -> Callable[[Function], Function]:
    """Return a decorator that makes a function a command; the function itself stays as it is.

    Errors need no care: whatever a command raises becomes one line, one JSON object and an exit code.

    Parameters
    ----------
    name : str
        As people type it; two words for a command of a group.
    panel : str, optional
        Heading in the help.

    Examples
    --------
    >>> from evergrow.cli.console import Answer
    >>> from evergrow.cli.registry import COMMANDS, build_app, command
    >>> @command("greet")
    ... def greet(who: str, as_json: bool = False) -> Answer:
    ...     '''Say hello.'''
    ...     return Answer({"who": who}, [f"hello {who}"])
    >>> "greet" in [entry.name for entry in build_app().registered_commands]
    True
    >>> _ = COMMANDS.pop("greet")
    """

    def register(function: Function) -> Function:
        known = COMMANDS.get(name)
        if known is not None and known.function is not function:
            raise ValueError(f"command {name!r} is registered twice")
        COMMANDS[name] = Command(name, function, panel)
        return function

    return register


def command_group(name: str, help: str) -> None:
    """Give a group of commands its help."""
    GROUPS[name] = help


def _print_version(wanted: bool) -> None:
    if wanted:
        from evergrow.core.version import __version__

        typer.echo(__version__)
        raise typer.Exit


def build_app() -> typer.Typer:
    """Return the application with every command that is registered by now."""
    for module in MODULES:
        importlib.import_module(f"evergrow.cli.{module}")
    load_plugins("evergrow.commands")
    app = typer.Typer(
        name="evergrow",
        cls=CommandGroup,
        help=ABOUT,
        no_args_is_help=True,
        rich_markup_mode="rich",
        callback=_root,  # so that it is a group even with a single command
    )
    groups: dict[str, typer.Typer] = {}
    for entry in COMMANDS.values():
        first, _, second = entry.name.partition(" ")
        parent = app
        if second:
            if first not in groups:
                groups[first] = typer.Typer(help=GROUPS.get(first), no_args_is_help=True, rich_markup_mode="rich")
                app.add_typer(groups[first], name=first, rich_help_panel=OTHERS)
            parent = groups[first]
        about = reflowed(entry.function.__doc__ or "")
        panel = entry.panel if second else entry.panel or OTHERS
        parent.command(second or first, cls=NamesListingCommand, help=about, rich_help_panel=panel)(_printing(entry))
    return app


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Take the options that stand before any command."""


def _printing(entry: Command) -> Callable[..., None]:
    """Return a command for typer: it prints the answer and leaves with its exit code."""
    groups, rare, signature = _parameters(entry.function)

    @functools.wraps(entry.function)
    def run(**given: Any) -> None:
        given |= settings_of(given.pop(SET, None) or [], rare)
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        work = functools.partial(entry.function, **given)
        code = answer_with(entry.name, work, as_json=bool(given.get("as_json")))
        if code:
            raise typer.Exit(int(code))

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: entry.annotation for name, entry in signature.parameters.items()}
    return run


def _parameters(function: Callable[..., Answer]) -> tuple[dict[str, Any], dict[str, RareOption], inspect.Signature]:
    """Return the groups of options that a command takes, what ``--set`` sets, and its signature for typer."""
    # In Python 3.10 typing.get_type_hints hides what an option is where None is its default.
    hints = inspect.get_annotations(function, eval_str=True)
    groups: dict[str, Any] = {}
    found: list[tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[name] = kind
            inner = typing.get_type_hints(kind, include_extras=True)
            found += [(field.name, inner[field.name], field.default) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        else:
            found.append((name, kind, parameter.default))
    rare = {
        name: RareOption(typing.get_args(kind)[0], default, mark.help)
        for name, kind, default in found
        for mark in getattr(kind, "__metadata__", ())
        if isinstance(mark, Rare)
    }
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in found
        if name not in rare
    ]
    if rare:
        shown.append(inspect.Parameter(SET, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=set_option(rare)))
    return groups, rare, inspect.Signature(shown)


def reflowed(text: str) -> str:
    r"""Return a docstring with one line per paragraph, for a terminal that is narrower than the source.

    Examples
    --------
    >>> from evergrow.cli.registry import reflowed
    >>> reflowed("One\nparagraph.\n\n    Another\n    one.")
    'One paragraph.\n\nAnother one.'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
