"""The language of the command line: settings as the options of the command that runs, actions as commands."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from typing import Any

from evergrow.core.wording import Words

SPELLED = {
    "random_state": "seed",
    "n_units": "units",
    "source": "data",
    "items": "data",
    "data": "source",
    "model": "models",
    "path": "onnx",
    "recipe": "features",
}
"""Arguments of Python by another name of a command's parameter, where the command has none of their own name."""

SPECS = "bench"
"""Group of commands whose settings stand in a spec, under the same names as in Python."""


class CommandWords(Words):
    """Options and arguments of one command.

    Parameters
    ----------
    parameters : iterable of click's parameters
        Those of the command.
    command : str
        Its name, such as ``lab run``.
    commands : collection of str
        All commands, which actions are found among.

    Examples
    --------
    >>> from evergrow.cli.main import app
    >>> from evergrow.cli.wording import words_of
    >>> fit = words_of(app, "fit")
    >>> fit.setting("n_units"), fit.given("on_error", "skip"), fit.given("cache", False), fit.setting("max_pixels")
    ('--units', '--on-error skip', '--no-cache', None)
    >>> fit.setting("data"), fit.action("spawn")
    ('DATA', "'evergrow spawn'")
    """

    def __init__(self, parameters: Iterable[Any], command: str = "", commands: Collection[str] = ()) -> None:
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._command, self._commands = command, frozenset(commands)

    def setting(self, name: str) -> str | None:
        """Return the option, or the argument as the help writes it."""
        parameter = self._parameter(name)
        return None if parameter is None else shown_name(parameter)

    def given(self, name: str, value: Any) -> str | None:
        """Return the option with its value; a switch stands alone."""
        parameter = self._parameter(name)
        if parameter is None or parameter.param_type_name == "argument":
            return None if parameter is None else shown_name(parameter)
        if value is True:
            return shown_name(parameter)
        if value is False:
            return str(parameter.secondary_opts[0]) if parameter.secondary_opts else None
        return f"{shown_name(parameter)} {shlex.quote(str(value))}"

    def action(self, name: str) -> str | None:
        """Return the command."""
        spelled = name.replace("_", "-")
        return f"'evergrow {spelled}'" if spelled in self._commands else None

    def unnamed(self, name: str) -> str:
        """Return the setting of a spec by its key, any other in plain words."""
        return name if self._command.partition(" ")[0] == SPECS else super().unnamed(name)

    def _parameter(self, name: str) -> Any:
        found = self._parameters.get(name)
        return self._parameters.get(SPELLED.get(name, "")) if found is None else found


def shown_name(parameter: Any) -> str:
    """Return a parameter as people type it: an option with its dashes, an argument as the help writes it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper()).split()[0].removesuffix("...")
    return str(max(parameter.opts, key=len))


def words_of(app: Any, command: str) -> CommandWords:
    """Return the language of a command of an application."""
    from typer.main import get_command

    group: Any = get_command(app)
    commands = list(group.commands)
    for word in command.split():
        group = group.commands[word]
    return CommandWords(group.params, command, commands)
