"""The registry of commands, and the typer application that is built from it.

The docstring of a command is its help text. Its section "Parameters" holds the help of
the options. Rarely used options (:data:`evergrow.cli.options.Rare`) are set by
``--set NAME=VALUE``.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from evergrow.cli import MODULES
from evergrow.cli.console import Answer, run_and_print
from evergrow.cli.exits import CommandGroup, without_value
from evergrow.cli.options import RARE, Json, OptionGroup
from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import load_plugins, nearest
from evergrow.core.version import __version__

ABOUT = (
    "Classifiers that keep learning new classes, without old data and without "
    "forgetting."
)

OTHERS = "Data and tools"
"""Panel of commands without one. Without a panel they would be listed first."""

_SET = "set_"  # the parameter with the values of --set
_PARAMETERS = "\n\nParameters\n----------\n"

_BOOLEANS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}

_LIBRARY_NAMES = {
    "n_units": "units",
    "random_state": "seed",
    "n_groups": "groups",
}
"""Parameters of the library that an option sets under another name."""

Function = TypeVar("Function", bound=Callable[..., Answer])


@dataclass(frozen=True)
class Command:
    """A registered command.

    Parameters
    ----------
    name : str
        The words that users type: ``"fit"``, or ``"lab run"`` in a group.
    function : callable
        Takes the parsed arguments and returns an :class:`Answer`.
    panel : str or None
        Panel of the help that lists it.
    """

    name: str
    function: Callable[..., Answer]
    panel: str | None = None


COMMANDS: dict[str, Command] = {}
"""All commands by name, in the order of the help."""

GROUPS: dict[str, str] = {}
"""Help texts of the command groups by name."""


def command(name: str, *, panel: str | None = None) -> Callable[[Function], Function]:
    """Return a decorator that registers a function as a command.

    The function itself is not changed. It may raise any error: the command line prints
    one line or one JSON object and exits with the code for that error. Every command
    has the option ``--json``. A function that needs its value takes a parameter
    ``as_json``.

    Parameters
    ----------
    name : str
        The words that users type; two words for a command of a group.
    panel : str, optional
        Panel of the help that lists it.

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
    """Set the help text of a command group."""
    GROUPS[name] = help


def build_app() -> typer.Typer:
    """Import all modules with commands, and plugins, and return the application.

    Commands of a group, such as ``lab run``, become subcommands of the group.
    """
    for module in MODULES:
        importlib.import_module(f"evergrow.cli.{module}")
    load_plugins("evergrow.commands")
    app = typer.Typer(
        name="evergrow",
        cls=CommandGroup,
        help=ABOUT,
        no_args_is_help=True,
        rich_markup_mode="rich",
        callback=_root,  # makes the application a group even with a single command
    )
    groups: dict[str, typer.Typer] = {}
    for entry in COMMANDS.values():
        parent = app
        name = entry.name
        panel: str | None = entry.panel or OTHERS
        group, _, subcommand = entry.name.partition(" ")
        if subcommand:
            if group not in groups:
                groups[group] = _add_group(app, group)
            parent = groups[group]
            name = subcommand
            panel = entry.panel
        parent.command(
            name,
            cls=FileCommand,
            help=help_text(entry.function.__doc__ or ""),
            rich_help_panel=panel,
        )(_typer_function(entry))
    return app


def _add_group(app: typer.Typer, name: str) -> typer.Typer:
    """Add an application for the commands of a group, and return it."""
    group = typer.Typer(
        help=GROUPS.get(name), no_args_is_help=True, rich_markup_mode="rich"
    )
    app.add_typer(group, name=name, rich_help_panel=OTHERS)
    return group


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


_VERSION = typer.Option(
    "--version",
    metavar="",
    help="Print the version and exit.",
    is_eager=True,
    callback=_print_version,
)


def _root(version: Annotated[bool, _VERSION] = False) -> None:
    """Take the options that come before a command."""


class FileCommand(TyperCommand):
    """A command that checks the paths of models and data before it imports anything."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, shown without a value."""
        return without_value(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Check the paths, then run the command."""
        paths = list(self._model_paths(ctx))
        if paths:
            from evergrow.core.files import existing_model

            for path in paths:
                existing_model(path)
            if ctx.params.get("data") is not None:
                from evergrow.data.inputs import check_source

                check_source(ctx.params["data"])
        return super().invoke(ctx)

    def _model_paths(self, ctx: Any) -> list[Any]:
        """Return the model files that the command reads. --model of fit is written."""
        for parameter in self.params:
            if parameter.metavar == "MODEL" and parameter.name == "model":
                model = ctx.params["model"]
                return [] if model is None else [model]
            if parameter.name == "models":
                return list(ctx.params["models"])
        return []


def _typer_function(entry: Command) -> Callable[..., None]:
    """Return a function for typer that runs a command, prints its answer and exits.

    Its parameters are the options of the command and of its option groups, in a
    signature made here, because typer reads signatures. Rare options become one option
    ``--set``.
    """
    groups = {
        name: kind
        for name, kind in _type_hints(entry.function).items()
        if _is_group(kind)
    }
    visible = []
    rare = {}
    rare_help = []
    for option, text in _options(entry.function):
        has_flag = _flag_info(option) is not None
        if has_flag:
            visible.append(option)
        if RARE in option.annotation.__metadata__:
            rare[option.name] = option
            if not has_flag:
                rare_help.append(f"{option.name}: {text}")
    takes_json = any(option.name == "as_json" for option in visible)
    if not takes_json:
        visible.append(_keyword("as_json", False, Json))
    visible.sort(key=lambda option: option.name == "as_json")  # --json comes last
    if rare:
        visible.append(_set_option(rare_help))

    @functools.wraps(entry.function)
    def run(as_json: bool, **arguments: Any) -> None:
        if takes_json:
            arguments["as_json"] = as_json
        settings = parse_settings(arguments.pop(_SET, None) or [], rare)
        given = {name: arguments[name] for name in arguments.keys() & settings}
        arguments |= settings
        arguments |= {name: value for name, value in given.items() if value is not None}
        for name, group in groups.items():
            fields = inspect.signature(group).parameters
            arguments[name] = group(**{field: arguments.pop(field) for field in fields})
        work = functools.partial(entry.function, **arguments)
        code = run_and_print(entry.name, work, as_json=as_json)
        if code:
            raise typer.Exit(int(code))

    run.__signature__ = inspect.Signature(visible)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in visible}
    return run


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _set_option(help_texts: Iterable[str]) -> inspect.Parameter:
    """Return the option ``--set``, whose help lists all rarely used options."""
    info = typer.Option(
        "--set",
        metavar="NAME=VALUE",
        # One option per line.
        help="\n\n".join(["Set a rarely used option; repeatable.", *help_texts]),
    )
    return _keyword(_SET, None, Annotated[list[str] | None, info])


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionGroup)


def _type_hints(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function or an option group, with their metadata."""
    if isinstance(owner, type):
        return typing.get_type_hints(owner, include_extras=True)
    # In Python 3.10 typing.get_type_hints hides the metadata of a parameter whose
    # default is None.
    return inspect.get_annotations(owner, eval_str=True)


def _options(owner: Any) -> Iterator[tuple[inspect.Parameter, str]]:
    """Yield the options of a command or an option group with their help texts.

    Options of a group within a command stand in the place of the group.

    Yields
    ------
    option : inspect.Parameter
        Its annotation is ``Annotated[kind, info]`` with typer's info,
        ``Annotated[kind, RARE]``, or ``Annotated[kind, info, RARE]`` for both.
    text : str
        Help text from the docstring.
    """
    hints = _type_hints(owner)
    texts = _inherited_texts(owner)
    for name, parameter in inspect.signature(owner).parameters.items():
        hint = hints[name]
        if _is_group(hint):
            yield from _options(hint)
            continue
        kind = hint
        metadata: list[Any] = []
        if hasattr(hint, "__metadata__"):
            kind, *metadata = typing.get_args(hint)
        metavar, text = texts.get(name, ("", ""))
        if metadata != [RARE]:
            infos = [part for part in metadata if part != RARE]
            marks = [part for part in metadata if part == RARE]
            metadata = [_typer_info(parameter, infos, metavar, text), *marks]
        option = parameter.replace(
            kind=parameter.KEYWORD_ONLY, annotation=Annotated[(kind, *metadata)]
        )
        yield option, text


def _flag_info(option: inspect.Parameter) -> Any:
    """Return typer's description of an option, None if only ``--set`` sets it."""
    info = option.annotation.__metadata__[0]
    return None if info == RARE else info


def _inherited_texts(owner: Any) -> dict[str, tuple[str, str]]:
    """Return the parameter texts of a function, or of a class and its base classes."""
    if not isinstance(owner, type):
        return parameter_texts(owner.__doc__ or "")
    texts: dict[str, tuple[str, str]] = {}
    for base in reversed(owner.__mro__):
        texts |= parameter_texts(base.__doc__ or "")
    return texts


def option_flags(name: str) -> dict[str, str]:
    """Return how users type each option of a command, by parameter name.

    Other names of the same settings in the library are included.

    Examples
    --------
    >>> from evergrow.cli.registry import build_app, option_flags
    >>> _ = build_app()
    >>> flags = option_flags("fit")
    >>> flags["on_error"], flags["text_column"], flags["n_units"]
    ('--on-error', '--set text_column', '--units')
    """
    flags = {}
    for option, _ in _options(COMMANDS[name].function):
        info = _flag_info(option)
        if info is None:
            flags[option.name] = f"--set {option.name}"
        elif option.default is not option.empty:
            flags[option.name] = _longest_flag(info)
    for other, parameter in _LIBRARY_NAMES.items():
        if parameter in flags:
            flags[other] = flags[parameter]
    return flags


def _longest_flag(info: Any) -> str:
    """Return the long form of an option, such as ``--model`` of ``-m``."""
    names = [str(info.default), *(info.param_decls or ())]
    flags = [name.partition("/")[0] for name in names if name.startswith("-")]
    return max(flags, key=len, default="")


def _typer_info(
    parameter: inspect.Parameter, metadata: Sequence[Any], metavar: str, text: str
) -> Any:
    """Return typer's description of an option or argument.

    Parameters
    ----------
    parameter : inspect.Parameter
        Parameter of the command. Without a default it is an argument.
    metadata : sequence
        Typer's description from the annotation, if there is one. Its missing fields are
        filled in.
    metavar, text : str
        Placeholder of the value and help text, from the docstring.
    """
    if metadata:
        info = copy.copy(metadata[0])
    elif parameter.default is parameter.empty:
        info = typer.Argument()
    else:
        info = typer.Option()
    info.help = info.help or text or None
    info.metavar = info.metavar or metavar or None
    if isinstance(parameter.default, bool):
        info.metavar = ""  # a flag takes no value
    # In an annotation, typer takes the first name of an option as its default.
    if isinstance(info, OptionInfo) and not str(info.default).startswith("--"):
        names = [] if info.default is ... else [str(info.default)]
        name = parameter.name.replace("_", "-")
        info.default = f"--{name}"
        if parameter.default is True:
            info.default = f"--{name}/--no-{name}"
        info.param_decls = (*names, *(info.param_decls or ()))
    return info


def parse_settings(
    texts: Sequence[str], options: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return the value of every option that ``--set`` can set.

    Parameters
    ----------
    texts : sequence of str
        Values of ``--set``, each ``NAME=VALUE``.
    options : mapping of str to inspect.Parameter
        The rarely used options of the command by name.

    Returns
    -------
    dict
        Values by name. Options that are not set have their default.

    Raises
    ------
    ParameterError
        If a text is not ``NAME=VALUE``, or the value is not of the option's type.
    UnknownNameError
        If the command has no such option.
    """
    values = {name: option.default for name, option in options.items()}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            example = next(iter(options))
            raise ParameterError(
                f"--set takes NAME=VALUE, such as --set {example}=..., not {text!r}."
            )
        name = name.strip().replace("-", "_")
        if name not in options:
            suggestion = nearest(name, options, 1)
            raise UnknownNameError(
                f"--set has no option {name!r}. Did you mean {suggestion}?"
            )
        kind = typing.get_args(options[name].annotation)[0]
        values[name] = _parse_value(name, value, kind)
    return values


def _parse_value(name: str, text: str, kind: Any) -> Any:
    """Convert the text of the setting `name` to the type `kind`.

    The type is bool, a literal of texts, or one that takes a text (str, int, float or
    Path), also with None.
    """
    # int | None has the parts int and NoneType, Literal["a", "b"] its values.
    parts = typing.get_args(kind) or (kind,)
    first = parts[0]
    if isinstance(first, str):
        if text in parts:
            return text
        expected = ", ".join(parts)
    elif kind is bool:
        if text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        expected = "true or false"
    else:
        try:
            return first(text)
        except ValueError:
            expected = "a whole number" if first is int else "a number"
    raise ParameterError(f"{name} is {expected}, not {text!r}.")


def parameter_texts(doc: str) -> dict[str, tuple[str, str]]:
    r"""Return metavar and help text of the parameters in a numpydoc docstring.

    The metavar takes the place of the type.

    Examples
    --------
    >>> from evergrow.cli.registry import parameter_texts
    >>> doc = "Run.\n\nParameters\n----------\nx : DATA\n    The\n    data.\nk\n    K."
    >>> parameter_texts(doc)
    {'x': ('DATA', 'The data.'), 'k': ('', 'K.')}
    """
    entries = re.split(r"\n(?=\S)", inspect.cleandoc(doc).partition(_PARAMETERS)[2])
    texts = {}
    for entry in entries:
        head, _, text = entry.partition("\n")
        name, _, metavar = head.partition(" : ")
        texts[name] = metavar, " ".join(text.split())
    return texts


def help_text(doc: str) -> str:
    r"""Return a docstring without its parameters, each paragraph on one line.

    Examples
    --------
    >>> from evergrow.cli.registry import help_text
    >>> help_text("One\nparagraph.\n\n    Another\n    one.")
    'One paragraph.\n\nAnother one.'
    """
    paragraphs = inspect.cleandoc(doc).partition(_PARAMETERS)[0].split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
