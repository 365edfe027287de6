"""The one list of commands, filled by a decorator, and the application that is built from it.

The docstring of a command is its help, and the section on parameters that of its
options. What few people need is no option of its own: ``--set NAME=VALUE`` sets it, by
the name that it has in Python.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from evergrow.cli import MODULES
from evergrow.cli.console import Answer, answer_with
from evergrow.cli.exits import CommandGroup
from evergrow.cli.options import RARE, Json, OptionGroup
from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import load_plugins, nearest
from evergrow.core.version import __version__

ABOUT = "Classifiers that keep learning new classes, without old data and without forgetting."

OTHERS = "Data and tools"
"""Heading of the commands that name none; the help would else list them before all others."""

_SET = "set_"  # the parameter that holds the values of --set
_PARAMETERS = "\n\nParameters\n----------\n"

Function = TypeVar("Function", bound=Callable[..., Answer])


@dataclass(frozen=True)
class Command:
    """A command as people type it.

    Parameters
    ----------
    name : str
        ``fit``, or ``lab run`` for a command of a group.
    function : callable
        Takes what typer parses and returns an :class:`Answer`; its docstring is the
        help.
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

    Errors need no care: whatever a command raises becomes one line, one JSON object and
    an exit code. Every command has ``--json``; one that has to know takes it as
    ``as_json``.

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
    ... def greet(who: str) -> Answer:
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
                groups[first] = typer.Typer(
                    help=GROUPS.get(first),
                    no_args_is_help=True,
                    rich_markup_mode="rich",
                )
                app.add_typer(groups[first], name=first, rich_help_panel=OTHERS)
            parent = groups[first]
        about = reflowed(entry.function.__doc__ or "")
        panel = entry.panel if second else entry.panel or OTHERS
        parent.command(
            second or first, cls=FileCommand, help=about, rich_help_panel=panel
        )(_printing(entry))
    return app


_VERSION = typer.Option(
    "--version",
    help="Print the version and leave.",
    is_eager=True,
    callback=_print_version,
)


def _root(version: Annotated[bool, _VERSION] = False) -> None:
    """Take the options that stand before any command."""


class FileCommand(TyperCommand):
    """A command that looks for its files first."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, unless models or data are not there: that is said before anything heavy is imported."""
        from evergrow.core.files import existing_model

        for each in self.params:
            if each.name in ("model", "sources") and each.metavar in (
                "MODEL",
                "MODEL MODEL...",
            ):
                given = ctx.params[each.name]
                for path in given if isinstance(given, (list, tuple)) else [given]:
                    if path is not None:
                        existing_model(path)
                if ctx.params.get("data") is not None:
                    from evergrow.data.load import check_source

                    check_source(ctx.params["data"])
        return super().invoke(ctx)


def _printing(entry: Command) -> Callable[..., None]:
    """Return a command for typer: it prints the answer and leaves with its exit code."""
    groups = {
        name: kind for name, kind in _hints(entry.function).items() if _is_group(kind)
    }
    options = list(_options(entry.function))
    takes_json = any(option.name == "as_json" for option, _ in options)
    rare = {
        option.name: option
        for option, _ in options
        if RARE in option.annotation.__metadata__
    }
    shown = [option for option, _ in options if option.name not in rare]
    shown.sort(key=lambda option: option.name == "as_json")  # last
    if not takes_json:
        shown.append(
            inspect.Parameter(
                "as_json",
                inspect.Parameter.KEYWORD_ONLY,
                default=False,
                annotation=Json,
            )
        )
    if rare:
        names = " ".join(
            f"{option.name}: {text}" for option, text in options if option.name in rare
        )
        about = f"What is rarely needed; repeatable. {names}"
        kind = Annotated[
            list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=about)
        ]
        shown.append(
            inspect.Parameter(
                _SET, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
            )
        )

    @functools.wraps(entry.function)
    def run(as_json: bool, **given: Any) -> None:
        given |= {"as_json": as_json} if takes_json else {}
        given |= settings_of(given.pop(_SET, None) or [], rare)
        for name, group in groups.items():
            given[name] = group(
                **{
                    field: given.pop(field)
                    for field in inspect.signature(group).parameters
                }
            )
        work = functools.partial(entry.function, **given)
        code = answer_with(entry.name, work, as_json=as_json)
        if code:
            raise typer.Exit(int(code))

    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in shown}
    return run


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionGroup)


def _hints(owner: Any) -> dict[str, Any]:
    if isinstance(owner, type):
        return typing.get_type_hints(owner, include_extras=True)
    # In Python 3.10 typing.get_type_hints hides the option of a parameter whose default
    # is None.
    return inspect.get_annotations(owner, eval_str=True)


def _options(owner: Any) -> Iterator[tuple[inspect.Parameter, str]]:
    """Yield the options of a command or a group as typer takes them, each with its help from the docstring."""
    hints = _hints(owner)
    texts: dict[str, tuple[str, str]] = {}
    for base in reversed(inspect.getmro(owner) if isinstance(owner, type) else [owner]):
        texts |= parameter_texts(base.__doc__ or "")
    for name, parameter in inspect.signature(owner).parameters.items():
        if _is_group(hints[name]):
            yield from _options(hints[name])
            continue
        kind, *marks = (
            typing.get_args(hints[name])
            if hasattr(hints[name], "__metadata__")
            else [hints[name]]
        )
        metavar, text = texts.get(name, ("", ""))
        if RARE not in marks:
            is_option = parameter.default is not parameter.empty
            if marks:
                info = copy.copy(marks[0])
            elif is_option:
                info = typer.Option()
            else:
                info = typer.Argument()
            info.help = info.help or text or None
            info.metavar = info.metavar or metavar or None
            # Where an option is annotated, typer takes its first name as the default.
            if isinstance(info, OptionInfo) and not str(info.default).startswith("--"):
                long = name.replace("_", "-")
                if parameter.default is True:
                    switch = f"--{long}/--no-{long}"
                else:
                    switch = f"--{long}"
                if info.default is ...:
                    short = []
                else:
                    short = [str(info.default)]
                info.default = switch
                info.param_decls = (*short, *(info.param_decls or ()))
            marks = [info]
        yield (
            parameter.replace(
                kind=parameter.KEYWORD_ONLY, annotation=Annotated[(kind, *marks)]
            ),
            text,
        )


def settings_of(
    given: Sequence[str], rare: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return the value of everything that ``--set`` can set.

    Parameters
    ----------
    given : sequence of str
        As typed, ``NAME=VALUE`` each.
    rare : mapping
        The parameters of the command that are marked as rare.
    """
    values = {name: option.default for name, option in rare.items()}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise ParameterError(
                f"--set takes NAME=VALUE, such as --set {next(iter(rare))}=..., not {text!r}."
            )
        name = name.strip().replace("-", "_")
        if name not in rare:
            raise UnknownNameError(
                f"There is nothing called {name!r} to set. Did you mean {nearest(name, rare, 1)}?"
            )
        values[name] = _converted(
            name, value, typing.get_args(rare[name].annotation)[0]
        )
    return values


def _converted(name: str, value: str, kind: Any) -> Any:
    """Return the text of a setting as the type that it has in Python."""
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    kinds = typing.get_args(kind) or (
        kind,
    )  # of int | None its parts, of Literal["cpu", "gpu"] its values
    try:
        if isinstance(kinds[0], str):
            return {choice: choice for choice in kinds}[value]
        if kind is bool:
            return {
                "true": True,
                "yes": True,
                "1": True,
                "false": False,
                "no": False,
                "0": False,
            }[value.lower()]
        return kinds[0](value)
    except (KeyError, ValueError) as error:
        raise ParameterError(
            f"{name} is {words.get(kinds[0]) or ', '.join(kinds)}, not {value!r}."
        ) from error


def parameter_texts(doc: str) -> dict[str, tuple[str, str]]:
    r"""Return metavar and help of the parameters in a numpydoc docstring; the metavar stands where a type would.

    Examples
    --------
    >>> from evergrow.cli.registry import parameter_texts
    >>> parameter_texts("Ask.\n\nParameters\n----------\ndata : DATA\n    Never\n    learned.\ntop\n    How many.")
    {'data': ('DATA', 'Never learned.'), 'top': ('', 'How many.')}
    """
    entries = re.split(r"\n(?=\S)", inspect.cleandoc(doc).partition(_PARAMETERS)[2])
    texts = {}
    for head, _, text in (entry.partition("\n") for entry in entries):
        name, _, metavar = head.partition(" : ")
        texts[name] = metavar, " ".join(text.split())
    return texts


def reflowed(text: str) -> str:
    r"""Return a docstring without its parameters, one line per paragraph: a terminal is narrower than the source.

    Examples
    --------
    >>> from evergrow.cli.registry import reflowed
    >>> reflowed("One\nparagraph.\n\n    Another\n    one.")
    'One paragraph.\n\nAnother one.'
    """
    paragraphs = inspect.cleandoc(text).partition(_PARAMETERS)[0].split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
