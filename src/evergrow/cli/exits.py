"""How commands end: exit codes, error messages and closed streams."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import takewhile
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from evergrow.core.errors import (
    BusyError,
    EvergrowError,
    ParameterError,
    WeightsError,
)
from evergrow.core.escaping import one_line

_PARAMETER = re.compile(
    r"(?<![\w'./=-])(?<!--set )(?P<name>[a-z]\w*)"
    r"(?:=(?P<value>'[^']*'|True|False)|(?![\w=]))"
)
"""A word in a message that can be a parameter, with or without a value."""

DEBUG = "EVERGROW_DEBUG"
"""Environment variable that makes errors print their traceback."""

# The base class of click's errors, which typer does not export.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

CHANGING = frozenset(
    {
        "fit",
        "update",
        "forget",
        "unlearn",
        "rename",
        "merge-classes",
        "relabel",
        "merge",
        "fade",
    }
)
"""Commands that replace a model file in one step, at their end."""

SYNONYMS = {
    **dict.fromkeys(("learn", "train", "teach"), "'fit' or 'update'"),
    **dict.fromkeys(("add", "partial_fit", "partial-fit"), "'update'"),
    **dict.fromkeys(("classify", "ask", "infer", "run"), "'predict'"),
    **dict.fromkeys(("test", "score", "validate"), "'evaluate'"),
    **dict.fromkeys(("show", "info", "describe", "history"), "'inspect' or 'log'"),
    **dict.fromkeys(("undo", "revert"), "'rollback'"),
    **dict.fromkeys(("delete", "remove"), "'forget' or 'unlearn'"),
    **dict.fromkeys(("bench", "report", "methods"), "'lab'"),
}
"""Suggestions for words that are not commands."""


class ExitCode(IntEnum):
    """Exit codes of all commands, as in docs/cli.md."""

    OK = 0
    LOOK = 1  # done, but look at the result
    BAD = 2  # bad input or arguments
    BUSY = 3  # another process uses the same file
    BUG = 70
    UNPRINTED = 74  # standard output did not accept the answer
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class PrintError(Exception):
    """Standard output did not accept the answer.

    Parameters
    ----------
    done : str
        Sentence on the written file, such as ``"m.evg was written"``. Empty if the
        command writes nothing.
    cause : OSError
        The error of the stream.
    """

    def __init__(self, done: str, cause: OSError) -> None:
        super().__init__(done, cause)
        self.done = done
        self.cause = cause


def describe_error(
    error: BaseException, command: str = ""
) -> tuple[ExitCode, str, str]:
    """Return exit code, type name and one-line message of an error.

    Any error that is not evergrow's, of the system or of the arguments counts as a bug.

    Parameters
    ----------
    error : BaseException
        The error.
    command : str
        Name of the command; its parameters in the message become flags.

    Examples
    --------
    >>> from evergrow.cli.exits import describe_error
    >>> from evergrow.core.errors import BusyError
    >>> describe_error(BusyError("m.evg is in use"))
    (<ExitCode.BUSY: 3>, 'BusyError', 'm.evg is in use')
    """
    kind = type(error).__name__
    message = one_line(str(error))
    if isinstance(error, typer.Abort):
        cause = error.__cause__ or error.__context__
        if isinstance(cause, KeyboardInterrupt):
            message = one_line(str(cause)) or "Interrupted."
            return ExitCode.INTERRUPTED, "KeyboardInterrupt", message
        return ExitCode.LOOK, kind, "Not confirmed; nothing was done."
    if isinstance(error, _UsageError):
        return ExitCode.BAD, "UsageError", _usage_message(error)
    if isinstance(error, PrintError):
        reason = error.cause.strerror or str(error.cause)
        message = f"the answer could not be printed: {reason}"
        if error.done:
            message = f"{error.done}; {message}"
        return ExitCode.UNPRINTED, kind, one_line(message)
    if isinstance(error, MemoryError):
        return (
            ExitCode.BAD,
            kind,
            message or "This machine has too little memory for that.",
        )
    if isinstance(error, BusyError):
        return ExitCode.BUSY, kind, message
    if isinstance(error, (EvergrowError, OSError)):
        is_setting = isinstance(error, (ParameterError, WeightsError))
        message = with_flags(message, command, leading=is_setting)
        return ExitCode.BAD, kind, message
    message = f"this is a bug in evergrow: {kind}: {message}"
    if not os.environ.get(DEBUG):
        message += f"; set {DEBUG}=1 to see the traceback"
    return ExitCode.BUG, kind, message


def with_flags(message: str, command: str, *, leading: bool = False) -> str:
    """Return a message in which parameters of the library are flags of a command.

    Parameters
    ----------
    message : str
        Message of an error or a warning.
    command : str
        Name of the command. Without one, the message is unchanged.
    leading : bool, default=False
        Whether the message may begin with a parameter: "seed must be ...".

    Examples
    --------
    >>> from evergrow.cli.exits import with_flags
    >>> from evergrow.cli.registry import build_app
    >>> _ = build_app()
    >>> with_flags("on_error='skip' leaves such images out", "fit")
    '--on-error skip leaves such images out'
    >>> with_flags("do without by cache=False", "fit")
    'do without by --set cache=false'
    >>> with_flags("name another by text_column", "fit")
    'name another by --set text_column'
    >>> with_flags("n_units must be an integer >= 0, got -1", "fit", leading=True)
    '--units must be an integer >= 0, got -1'
    """
    from evergrow.cli.registry import COMMANDS, option_flags

    if command not in COMMANDS:
        return message
    flags = option_flags(command)

    def as_flag(found: re.Match[str]) -> str:
        name = found["name"]
        rest = message[found.end() :]
        is_leading = leading and not found.start() and rest.startswith(" must ")
        is_meant = found["value"] is not None or "_" in name or is_leading
        if name not in flags or not is_meant:
            return found[0]
        flag = flags[name]
        value = found["value"]
        if value is None:
            return flag
        plain = value.lower() if value in ("True", "False") else value[1:-1]
        if flag.startswith("--set "):
            return f"{flag}={plain}"
        return flag if plain == "true" else f"{flag} {plain}"

    return _PARAMETER.sub(as_flag, message)


def _usage_message(error: Any) -> str:
    """Return the error in the arguments, and the command that explains them."""
    command = getattr(getattr(error, "ctx", None), "command_path", "evergrow")
    message = error.format_message()
    unknown = re.match(r"No such command '(\w+)'", message)
    if unknown and unknown[1].lower() in SYNONYMS:
        suggestion = SYNONYMS[unknown[1].lower()]
        return (
            f"No such command {unknown[1]!r}. Did you mean {suggestion}? "
            f"({command} --help lists all commands)"
        )
    return one_line(f"{message.rstrip('.')} (see {command} --help)")


class CommandGroup(TyperGroup):
    """The ``evergrow`` command. All errors of its subcommands end here."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command and exit with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        repair_streams()
        try:
            code = super().main(words, *rest, **{**extra, "standalone_mode": False})
            flush()
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
                sys.exit(ExitCode.BAD)
            as_json = "--json" in takewhile(lambda word: word != "--", words)
            _exit_with_error(error, self._command_name(words), as_json)
        sys.exit(int(code or 0))

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, shown without a value."""
        return without_value(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the parsed command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error  # the only exception that typer passes on
        except BrokenPipeError as error:
            # typer would exit with 1, which means that the work is done.
            raise PrintError("", error) from error

    def _command_name(self, words: Sequence[str]) -> str:
        """Return the name of the command in the arguments, such as ``lab run``."""
        if not words or words[0] not in self.commands:
            return ""
        subcommands = getattr(self.commands[words[0]], "commands", {})
        if len(words) > 1 and words[1] in subcommands:
            return f"{words[0]} {words[1]}"
        return words[0]


def without_value(option: Any) -> Any:
    """Return an option of a parser, shown without a value in the help."""
    if option is not None:
        option.metavar = ""
    return option


def _exit_with_error(error: Exception, command: str, as_json: bool) -> NoReturn:
    """Print an error and end the process.

    Parameters
    ----------
    error : Exception
        The error.
    command : str
        Name of the command, or empty if it is unknown.
    as_json : bool
        Also print the error as a JSON object on standard output.
    """
    if _is_closed_pipe(error):
        discard_buffer(sys.stdout)
        sys.exit(ExitCode.PIPE_CLOSED)
    code, kind, message = describe_error(error, command)
    if code is ExitCode.INTERRUPTED and command in CHANGING:
        message = "Interrupted; the model was not changed."
    if os.environ.get(DEBUG):
        with suppress(OSError):
            traceback.print_exception(error)
    if as_json and code is not ExitCode.UNPRINTED:
        from evergrow.cli.console import print_json

        try:
            details = {"type": kind, "message": message}
            print_json({"command": command, "exit_code": int(code), "error": details})
            flush()
        except (OSError, PrintError):  # the line on standard error has to do
            discard_buffer(sys.stdout)
    print_to_stderr(f"error: {message}", typer.colors.RED)
    if code is ExitCode.UNPRINTED:
        discard_buffer(sys.stdout)
    sys.exit(code)


def _is_closed_pipe(error: Exception) -> bool:
    """Return whether the program at the end of the pipe stopped reading.

    Not if the command has written a file: then the user must be told of it.
    """
    cause: Exception = error
    if isinstance(error, PrintError):
        if error.done:
            return False
        cause = error.cause
    return isinstance(cause, OSError) and cause.errno == errno.EPIPE


def print_to_stderr(line: str, colour: str | None) -> None:
    """Print a line on standard error, if that is open."""
    try:
        typer.secho(line, fg=colour, err=True)
    except OSError:
        discard_buffer(sys.stderr)


def repair_streams() -> None:
    """Open the null device for closed standard streams, and escape unprintable text.

    The operating system would give the number of a closed stream to the next opened
    file, which would then be used as that stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  stays open
        if mode == "w" and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def flush() -> None:
    """Flush standard output, so that a failure raises here and not at exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise PrintError("", error) from error


def discard_buffer(stream: Any) -> None:
    """Drop the buffered text of a stream, so that Python exits without an error."""
    with suppress(OSError, ValueError, AttributeError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, stream.fileno())
        os.close(null_device)
