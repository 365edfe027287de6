"""Answers of commands, and the text in them: counts, tables, facts and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.cells import cell_len

from evergrow.cli.exits import ExitCode, PrintError, print_to_stderr, with_flags
from evergrow.core.errors import EvergrowWarning
from evergrow.core.escaping import csv_text, one_line, printable


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    Parameters
    ----------
    values : dict
        What ``--json`` prints, besides the command, the exit code and the warnings.
    lines : list of str
        Lines to print without ``--json``.
    cautions : list of str
        Warnings about the result. Any of them makes the exit code 1.
    code : ExitCode, optional
        Exit code. By default 1 with `cautions`, else 0.
    done : str
        Sentence on the written file, such as ``"m.evg was written"``. The error message
        contains it if the answer cannot be printed.

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
        """The exit code of the command."""
        if self.code is not None:
            return self.code
        return ExitCode.LOOK if self.cautions else ExitCode.OK


def run_and_print(name: str, work: Callable[[], Answer], *, as_json: bool) -> ExitCode:
    """Run a command, print its answer and warnings, and return its exit code.

    Errors of the command are raised.

    Parameters
    ----------
    name : str
        Name of the command.
    work : callable
        Runs the command.
    as_json : bool
        Print one JSON object that contains all warnings, instead of lines.

    Raises
    ------
    PrintError
        If standard output does not accept the answer.
    """
    with _printed_warnings(name) as notes:
        answer = work()
    for caution in answer.cautions:
        warn_line(caution)
        notes.append(one_line(caution))
    try:
        if as_json:
            head = {"command": name, "exit_code": int(answer.exit_code)}
            print_json({**head, **answer.values, "warnings": notes})
        else:
            for line in answer.lines:
                typer.echo(printable(line))
    except OSError as error:
        raise PrintError(answer.done, error) from error
    return answer.exit_code


@contextmanager
def _printed_warnings(command: str) -> Iterator[list[str]]:
    """Print each of evergrow's warnings once, on one line. Yield the list of them.

    The list grows within the block. Other packages' warnings are shown as usual.
    """
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvergrowWarning)
        show_other = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *rest: Any, **more: Any
        ) -> None:
            text = with_flags(one_line(str(message)), command)
            if not issubclass(category, EvergrowWarning):
                show_other(message, category, *rest, **more)
            elif text not in notes:
                notes.append(text)
                warn_line(text)

        warnings.showwarning = show
        yield notes


def warn_line(text: str) -> None:
    """Print a warning on standard error."""
    print_to_stderr(f"warning: {one_line(text)}", typer.colors.YELLOW)


def note_line(text: str) -> None:
    """Print a note on standard error."""
    print_to_stderr(one_line(text), None)


def print_json(values: Any) -> None:
    """Print one JSON object in ASCII, which every terminal can show."""

    def plain(value: Any) -> Any:
        """Return arrays as lists, and anything else as text."""
        if hasattr(value, "tolist"):
            return value.tolist()
        return str(value)

    typer.echo(json.dumps(values, indent=1, default=plain))


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> from evergrow.cli.console import plural
    >>> plural(1, "class", "classes"), plural(1200, "sample")
    ('1 class', '1,200 samples')
    """
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {many or one + 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, printable, and the number of further ones.

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

    rich can do this too, but its import takes longer than ``predict``.

    Parameters
    ----------
    columns : sequence of str
        Headings.
    rows : iterable of sequence of str
        Cells.
    right : iterable of str
        Headings of right-aligned columns.

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
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    right_aligned = set(right)
    lines = []
    for row in cells:
        parts = []
        for name, cell, width in zip(columns, row, widths, strict=True):
            gap = " " * (width - cell_len(cell))
            if name in right_aligned:
                parts.append(gap + cell)
            else:
                parts.append(cell + gap)
        lines.append("  ".join(parts).rstrip())
    return lines


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return labelled values as aligned lines. Empty values are left out."""
    kept = [(label, value) for label, value in pairs if value]
    width = max((len(label) for label, _ in kept), default=0)
    return [f"{label:<{width}}  {printable(value)}" for label, value in kept]


def csv_lines(
    header: Sequence[str], rows: Iterable[Iterable[str | float | None]]
) -> list[str]:
    """Return the lines of a CSV file.

    None is an empty cell, numbers have six digits, and booleans are true or false.

    Examples
    --------
    >>> from evergrow.cli.console import csv_lines
    >>> csv_lines(["item", "p", "right"], [["a,b", 0.25, True], ["=1", None, False]])
    ['item,p,right', '"a,b",0.25,true', "'=1,,false"]
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_csv_cell, row) for row in rows)
    return text.getvalue().removesuffix("\n").split("\n")


def _csv_cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return csv_text(value)
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).lower()


def percent(value: float | None) -> str:
    """Return a fraction in percent, or a dash if it is None or not finite.

    Examples
    --------
    >>> from evergrow.cli.console import percent
    >>> percent(0.9571), percent(float("nan"))
    ('95.7 %', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f} %"


def is_interactive(as_json: bool) -> bool:
    """Return whether a person at a terminal can answer a question."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty()
