"""One way to print: the answer of a command for people and for programs, and the words and tables it is made of."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.cells import cell_len

from evergrow.cli.exits import ExitCode, PrintError, complain
from evergrow.core.errors import EvergrowWarning
from evergrow.core.escaping import one_line, printable


@dataclass(frozen=True)
class Answer:
    """The outcome of a command, for people and for programs.

    Parameters
    ----------
    values : dict
        For ``--json``: plain values.
    lines : list of str
        For people.
    cautions : list of str
        Remarks on work that is done but deserves a look; any of them makes the exit
        code 1.
    code : ExitCode, optional
        Another exit code than that.
    done : str
        The file that has been written for good, in a few words: said where the answer
        itself cannot be printed.

    Examples
    --------
    >>> from evergrow.cli.console import Answer
    >>> Answer({"classes": 3}, ["3 classes"]).exit_code.value
    0
    """

    values: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    code: ExitCode | None = None
    done: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """0, or 1 if there is something to look at, unless the command has chosen."""
        if self.code is not None:
            return self.code
        return ExitCode.LOOK if self.cautions else ExitCode.OK


def answer_with(name: str, command: Callable[[], Answer], *, as_json: bool) -> ExitCode:
    """Run a command and print its answer: as lines, or as one JSON object with all warnings in it.

    Parameters
    ----------
    name : str
        Of the command.
    command : callable
        Does the work.
    as_json : bool
        Which of the two.

    Raises
    ------
    PrintError
        If standard output does not take the answer.
    """
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvergrowWarning)
        otherwise = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *rest: Any, **more: Any
        ) -> None:
            """Print each of evergrow's warnings once, on one line; pass others on unchanged."""
            text = one_line(str(message))
            if not issubclass(category, EvergrowWarning):
                otherwise(message, category, *rest, **more)
            elif text not in said:
                said.append(text)
                warn_line(text)

        warnings.showwarning = show
        answer = command()
    for caution in answer.cautions:
        warn_line(caution)
    try:
        if as_json:
            notes = [*said, *(one_line(caution) for caution in answer.cautions)]
            print_json(
                {
                    "command": name,
                    "exit_code": int(answer.exit_code),
                    **answer.values,
                    "warnings": notes,
                }
            )
        else:
            for line in answer.lines:
                typer.echo(printable(line))
    except OSError as error:
        raise PrintError(answer.done, error) from error
    return answer.exit_code


def warn_line(text: str) -> None:
    """Print a warning on standard error."""
    complain(f"warning: {one_line(text)}", typer.colors.YELLOW)


def note_line(text: str) -> None:
    """Print something worth knowing on standard error."""
    complain(one_line(text), None)


def print_json(values: Any) -> None:
    """Print one JSON object, in ASCII so that every terminal and every file name can take it."""

    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        return str(value)

    typer.echo(json.dumps(values, indent=1, default=plain))


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
    if len(names) > most:
        return f"{shown} and {len(names) - most} more"
    return shown


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()
) -> list[str]:
    """Return the lines of a table with aligned columns.

    rich would draw it too, but importing it takes longer than drawing; ``predict`` has
    no time for that.

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
    widths = [
        max(cell_len(row[column]) for row in cells) for column in range(len(columns))
    ]
    aligned = set(right)
    lines = []
    for row in cells:
        parts = []
        for name, cell, width in zip(columns, row, widths, strict=True):
            gap = " " * (width - cell_len(cell))
            parts.append(gap + cell if name in aligned else cell + gap)
        lines.append("  ".join(parts).rstrip())
    return lines


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return labelled values as aligned lines; empty values are left out."""
    kept = [(label, value) for label, value in pairs if value]
    width = max((len(label) for label, _ in kept), default=0)
    return [f"{label:<{width}}  {printable(value)}" for label, value in kept]


def percent(value: float | None) -> str:
    """Return a share in percent, or a dash if it is not a number.

    Examples
    --------
    >>> from evergrow.cli.console import percent
    >>> percent(0.9571), percent(float("nan"))
    ('95.7 %', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f} %"


def can_ask(as_json: bool) -> bool:
    """Return whether somebody is there to answer a question: a person at a terminal, and no program."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty()
