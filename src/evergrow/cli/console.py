"""What all commands share: one way to print, one way to fail, and exit codes that scripts can use."""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ParamSpec

import typer

from evergrow.core.errors import BusyError, EvergrowError, EvergrowWarning

P = ParamSpec("P")


class ExitCode(IntEnum):
    """What a command tells the shell."""

    OK = 0
    LOOK = 1
    BAD = 2
    BUSY = 3
    INTERRUPTED = 130


@dataclass(frozen=True)
class Answer:
    """What a command has to say, for people and for programs.

    Parameters
    ----------
    values : dict
        For ``--json``: plain values.
    lines : list of str
        For people.
    cautions : list of str
        What was done but deserves a look; any of them makes the exit code 1.

    Examples
    --------
    >>> from evergrow.cli.console import Answer
    >>> Answer({"classes": 3}, ["3 classes"]).exit_code.value
    0
    """

    values: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """0, or 1 if there is something to look at."""
        return ExitCode.LOOK if self.cautions else ExitCode.OK


def answering(command: Callable[P, Answer | None]) -> Callable[P, None]:
    """Turn a function that returns an :class:`Answer` into a command.

    Its answer is printed as lines or, with ``as_json``, as one JSON object; evergrow's errors become one line and an
    exit code, its warnings one line each. Any other error is a bug and shows itself. A command that has printed
    everything itself returns None.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        name = command.__name__.removesuffix("_command")
        said: list[str] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", EvergrowWarning)
                warnings.showwarning = functools.partial(_show_warning, said, warnings.showwarning)
                answer = command(*args, **kwargs)
        except (EvergrowError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise  # the reader has had enough, which is no error of ours
            code = ExitCode.BUSY if isinstance(error, BusyError) else ExitCode.BAD
            _fail(name, code, type(error).__name__, one_line(str(error)), as_json)
        except KeyboardInterrupt:
            _fail(name, ExitCode.INTERRUPTED, "KeyboardInterrupt", "interrupted", as_json)
        else:
            if answer is not None:
                _print(name, answer, said, as_json)

    return wrapped


def _show_warning(
    said: list[str], otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *rest: Any
) -> None:
    """Print evergrow's own warnings as one line, once; leave those of others as they are."""
    if not issubclass(category, EvergrowWarning):
        otherwise(message, category, *rest)
        return
    text = one_line(str(message))
    if text not in said:
        said.append(text)
        warn_line(text)


def _print(name: str, answer: Answer, said: list[str], as_json: bool) -> None:
    for caution in answer.cautions:
        warn_line(caution)
    if as_json:
        notes = [*said, *answer.cautions]
        print_json({"command": name, "exit_code": int(answer.exit_code), **answer.values, "warnings": notes})
    else:
        for line in answer.lines:
            typer.echo(line)
    if answer.exit_code:
        raise typer.Exit(int(answer.exit_code))


def _fail(name: str, code: ExitCode, kind: str, message: str, as_json: bool) -> None:
    """Print an error and leave; nothing that a command changes is half changed at that point."""
    if as_json:
        print_json({"command": name, "exit_code": int(code), "error": {"type": kind, "message": message}})
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(int(code))


def warn_line(text: str) -> None:
    """Print a warning on standard error."""
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)


def print_json(values: Any) -> None:
    """Print one JSON object, in ASCII so that every terminal and every file name can take it."""
    typer.echo(json.dumps(values, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    """Return a NumPy scalar or array, or a path, as a plain value."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def one_line(text: str) -> str:
    r"""Return a message on one line that a terminal shows as it is.

    Examples
    --------
    >>> from evergrow.cli.console import one_line
    >>> one_line("first\n  second \x1b[2J")
    'first second \\x1b[2J'
    """
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    r"""Return a text with control characters written out: class and file names come from strangers' folders.

    Examples
    --------
    >>> from evergrow.cli.console import printable
    >>> printable("cat\x07")
    'cat\\x07'
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> from evergrow.cli.console import plural
    >>> plural(1, "class", "classes"), plural(1200, "sample")
    ('1 class', '1,200 samples')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and how many more there are.

    Examples
    --------
    >>> from evergrow.cli.console import listed
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(printable(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> list[str]:
    """Return the lines of a table with aligned columns.

    rich would draw it too, but importing it takes longer than drawing; ``predict`` has no time for that.

    Parameters
    ----------
    columns : sequence of str
        Headings.
    rows : iterable of sequence of str
        Cells.
    right : iterable of str
        Headings of the columns to align to the right.

    Examples
    --------
    >>> from evergrow.cli.console import table
    >>> for line in table(["class", "n"], [["cat", "5"], ["otter", "12"]], right=["n"]):
    ...     print(line)
    class   n
    cat     5
    otter  12
    """
    cells = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(columns))]
    aligned = set(right)
    lines = []
    for row in cells:
        parts = []
        for name, cell, width in zip(columns, row, widths, strict=True):
            gap = " " * (width - _width(cell))
            parts.append(gap + cell if name in aligned else cell + gap)
        lines.append("  ".join(parts).rstrip())
    if sys.stdout.isatty():
        lines[0] = typer.style(lines[0], bold=True)
    return lines


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return labelled values as aligned lines; empty values are left out."""
    kept = [(label, value) for label, value in pairs if value]
    width = max((len(label) for label, _ in kept), default=0)
    return [f"{label:<{width}}  {printable(value)}" for label, value in kept]


def percent(value: float) -> str:
    """Return a share in percent.

    Examples
    --------
    >>> from evergrow.cli.console import percent
    >>> percent(0.9571)
    '95.7 %'
    """
    return f"{100 * value:.1f} %"
