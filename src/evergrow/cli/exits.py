"""The one way out of every command: exit codes, errors as one line or one JSON object, and streams that are shut."""

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

from evergrow.core.errors import BusyError, EvergrowError
from evergrow.core.escaping import one_line

DEBUG = "EVERGROW_DEBUG"
"""Environment variable that shows the traceback of an error."""

_ArgumentsError: type[Exception] = typer.BadParameter.__mro__[
    2
]  # the root of click's errors, which typer hides


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
"""Commands that write a model in one step, at their end."""

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
"""Commands that people look for under another name."""


class ExitCode(IntEnum):
    """Exit codes of all commands; docs/cli.md lists them for people."""

    OK = 0
    LOOK = 1
    BAD = 2
    BUSY = 3
    BUG = 70
    UNPRINTED = 74
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class PrintError(Exception):
    """The answer could not be printed.

    Parameters
    ----------
    done : str
        Sentence on the file that was written for good; empty where the command changes
        nothing.
    cause : OSError
        The error of printing.
    """

    def __init__(self, done: str, cause: OSError) -> None:
        super().__init__(done, cause)
        self.done = done
        self.cause = cause


def failure_of(error: BaseException) -> tuple[ExitCode, str, str]:
    """Return exit code, type and message of an error.

    Examples
    --------
    >>> from evergrow.cli.exits import failure_of
    >>> from evergrow.core.errors import BusyError
    >>> failure_of(BusyError("m.evg is in use"))
    (<ExitCode.BUSY: 3>, 'BusyError', 'm.evg is in use')
    """
    kind = type(error).__name__
    message = one_line(str(error))
    if isinstance(error, typer.Abort):
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return ExitCode.INTERRUPTED, "KeyboardInterrupt", "Interrupted."
        return ExitCode.LOOK, kind, "Not confirmed; nothing was done."
    if isinstance(error, _ArgumentsError):
        return ExitCode.BAD, "UsageError", _usage(error)
    if isinstance(error, PrintError):
        said = f"{error.done}; " if error.done else ""
        reason = error.cause.strerror or str(error.cause)
        return (
            ExitCode.UNPRINTED,
            kind,
            one_line(f"{said}the answer could not be printed: {reason}"),
        )
    if isinstance(error, MemoryError):
        return (
            ExitCode.BAD,
            kind,
            message or "This machine has too little memory for that.",
        )
    if isinstance(error, (EvergrowError, OSError)):
        return (
            ExitCode.BUSY if isinstance(error, BusyError) else ExitCode.BAD,
            kind,
            message,
        )
    if os.environ.get(DEBUG):
        hint = ""
    else:
        hint = f"; {DEBUG}=1 shows where it comes from"
    return ExitCode.BUG, kind, f"this is a bug in evergrow: {kind}: {message}{hint}"


def _usage(error: Any) -> str:
    """Return the fault of the arguments, and where to read about them."""
    path = getattr(getattr(error, "ctx", None), "command_path", "evergrow")
    meant = re.match(r"No such command '(\w+)'", error.format_message())
    if meant and meant[1].lower() in SYNONYMS:
        return f"No such command {meant[1]!r}. Did you mean {SYNONYMS[meant[1].lower()]}? ({path} --help lists all)"
    return one_line(
        f"{error.format_message().rstrip('.')} ({path} --help shows what there is)"
    )


class CommandGroup(TyperGroup):
    """The commands as a whole: whatever happens inside of one ends here."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command and leave with its exit code."""
        given = list(sys.argv[1:] if args is None else args)
        mend_streams()
        try:
            code = super().main(given, *rest, **{**extra, "standalone_mode": False})
            flush()
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its help has been printed
                sys.exit(ExitCode.BAD)
            _leave(
                error,
                self._command(given),
                "--json" in takewhile(lambda word: word != "--", given),
            )
        sys.exit(int(code or 0))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was parsed."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error  # which typer hands on
        except (
            BrokenPipeError
        ) as error:  # typer would leave with 1, which says that all is done
            raise PrintError("", error) from error

    def _command(self, given: Sequence[str]) -> str:
        """Return the name of the command that was asked for, such as ``lab run``."""
        first = None
        if given:
            first = self.commands.get(given[0])
        in_group = len(given) > 1 and given[1] in getattr(first, "commands", {})
        if first:
            return " ".join(given[: 1 + in_group])
        return ""


def _leave(error: Exception, command: str, as_json: bool) -> NoReturn:
    """Print an error and end the process."""
    if isinstance(error, PrintError):
        cause = error.cause
    else:
        cause = error
    if (
        isinstance(cause, OSError)
        and cause.errno == errno.EPIPE
        and not getattr(error, "done", "")
    ):
        silence(sys.stdout)  # the reader has had enough, which is no error of ours
        sys.exit(ExitCode.PIPE_CLOSED)
    code, kind, message = failure_of(error)
    if code is ExitCode.INTERRUPTED and command in CHANGING:
        message = "Interrupted; the model was not changed."
    if os.environ.get(DEBUG):
        with suppress(OSError):
            traceback.print_exception(error)
    if as_json and code is not ExitCode.UNPRINTED:
        from evergrow.cli.console import print_json

        try:
            about = {"type": kind, "message": message}
            print_json({"command": command, "exit_code": int(code), "error": about})
            flush()
        except OSError:  # the line below still tells it
            silence(sys.stdout)
    complain(f"error: {message}", typer.colors.RED)
    if code is ExitCode.UNPRINTED:
        silence(sys.stdout)
    sys.exit(code)


def complain(line: str, colour: str | None) -> None:
    """Print a line on standard error; where that is shut too, the exit code has to do."""
    try:
        typer.secho(line, fg=colour, err=True)
    except OSError:
        silence(sys.stderr)


# -- streams ---------------------------------------------------------------------------


def mend_streams() -> None:
    """Put the null device in place of standard streams that are closed, and let none of them fail on a letter.

    The first file that is opened would otherwise take a closed stream's number, and be
    read or written as that stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  until the end
        if mode == "w" and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def flush() -> None:
    """Send off everything printed so far, so that a failure shows now and not while Python ends."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise PrintError("", error) from error


def silence(stream: Any) -> None:
    """Drop the text that a stream still holds, so that Python can end without a second complaint."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
