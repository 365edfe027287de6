"""``evergrow report``: one page of tables and figures from records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from evergrow.core.errors import EvergrowError

_SHOWN = 5


def report(
    runs: Annotated[list[Path], typer.Argument(help="Record files, or folders of them, searched at any depth.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the page, the figures and the tables.")],
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Evergrow benchmark report",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Draw every table and figure that the records in RUNS allow, beside the paper's published values.

    Writes index.html, which needs no other file, figures/*.svg and *.pdf, and tables/*.md, *.tex and *.csv.

    Exit codes: 0 written, 1 written, but some files could not be used (they are named), 2 nothing written, 130 after
    Ctrl-C.

    Example: [bold]evergrow report experiments/records -o report/[/bold]
    """
    from evergrow.report import build_report

    try:
        outcome = build_report(runs, output, title=title)
    except EvergrowError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(_as_dict(outcome), indent=1, ensure_ascii=False))
    else:
        _print(outcome)
    raise typer.Exit(outcome.exit_code)


def _as_dict(outcome: Any) -> dict[str, Any]:
    return {"exit_code": outcome.exit_code, **asdict(outcome), "page": str(outcome.page)}


def _print(outcome: Any) -> None:
    """Print what was written, what was not run and what was left out."""
    typer.echo(f"{outcome.page}: {len(outcome.figures)} panels of figures, {len(outcome.tables)} tables")
    for entry in outcome.not_run:
        typer.echo(f"not run: {entry.title}" + (f"  ->  {entry.command}" if entry.command else ""))
    for left in outcome.left_out[:_SHOWN]:
        typer.echo(f"left out: {left.file}: {left.reason}", err=True)
    if len(outcome.left_out) > _SHOWN:
        typer.echo(f"left out: {len(outcome.left_out) - _SHOWN} further files, named on the page", err=True)
    if outcome.notes:
        typer.echo(f"{len(outcome.notes)} notes on the data stand under 'What was left out' on the page")
