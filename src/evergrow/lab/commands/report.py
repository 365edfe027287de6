"""``evergrow lab report``: one page of tables and figures from records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli.console import Answer, note_line
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import Json
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.lab.report import Report

_SHOWN = 5


@command("lab report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Record files, or folders of them, searched at any depth."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for the page, the figures and the tables."
        ),
    ],
    title: Annotated[
        str, typer.Option(help="Heading of the page.")
    ] = "Evergrow benchmark report",
    as_json: Json = False,
) -> Answer:
    """Create all possible tables and figures from RUNS, with the paper's values.

    Writes index.html, which needs no other file, figures/*.svg and *.pdf, and
    tables/*.md, *.tex and *.csv.

    For example:

      evergrow lab report experiments/records -o report/

    Exit codes: 0 written, 1 written, but some files could not be used (they are named),
    2 nothing written, 130 interrupted.
    """
    from evergrow.lab.report import build_report

    outcome = build_report(runs, output, title=title)
    _note_left_out(outcome)
    values = {**asdict(outcome), "page": str(outcome.page)}
    return Answer(
        values,
        _lines(outcome),
        code=ExitCode(outcome.exit_code),
        done=f"{outcome.page} was written",
    )


def _note_left_out(outcome: Report) -> None:
    """Print the names of unused files on standard error."""
    for file, reason in list(outcome.left_out.items())[:_SHOWN]:
        note_line(f"left out: {file}: {reason}")
    if len(outcome.left_out) > _SHOWN:
        further = len(outcome.left_out) - _SHOWN
        note_line(f"left out: {further} further files, named on the page")


def _lines(outcome: Report) -> list[str]:
    """Return lines with the page, its size and missing results."""
    lines = [
        f"{outcome.page}: {len(outcome.figures)} panels of figures, "
        f"{len(outcome.tables)} tables"
    ]
    for entry in outcome.not_run:
        suffix = f"  ->  {entry.command}" if entry.command else ""
        lines.append(f"not run: {entry.title}{suffix}")
    if outcome.notes:
        lines.append(
            f"{len(outcome.notes)} notes on the data are in the section 'What was left "
            "out' on the page"
        )
    return lines
