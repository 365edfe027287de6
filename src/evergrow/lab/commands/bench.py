"""``evergrow lab``: run grids of experiments and compare their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import Answer, Styled, note_line
from evergrow.cli.engine import PANEL, Address, EngineName, GpusPerWorker
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import Json, OptionGroup
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import InputError

if TYPE_CHECKING:
    from evergrow.engine import Engine
    from evergrow.lab.tables import Comparison, Record

command_group("lab", "Compare methods: grids of experiments, their records, tables and figures.")


@dataclass(frozen=True)
class SideBySide(OptionGroup):
    """Where runs are carried out: here and one after the other, or several at a time on an engine."""

    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="Several runs at a time, on processes of this machine or a Ray cluster; the records are the same.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default=False, rich_help_panel=PANEL)
    ] = None
    address: Address = "auto"
    gpus_per_worker: GpusPerWorker = 0.0

    def opened(self) -> Engine | None:
        """Return the engine that was asked for."""
        from evergrow.engine import LocalEngine, RayEngine

        if self.engine is None:
            return None
        if self.engine is EngineName.LOCAL:
            return LocalEngine(workers=self.workers or 1)
        return RayEngine(address=self.address, workers=self.workers, gpus_per_worker=self.gpus_per_worker)


ONE_BY_ONE = SideBySide()
"""Here, one after the other."""

Folder = Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the records.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")]


@command("lab run")
def run_command(
    spec: Annotated[Path, typer.Argument(help="TOML file: methods x data sets x protocols x seeds.")],
    output: Folder = None,
    only: Annotated[list[str] | None, typer.Option(help="Filter such as method=ranpac,klda or dataset='cub*'.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False,
    dry_run: DryRun = False,
    placing: SideBySide = ONE_BY_ONE,
    as_json: Json = False,
) -> Answer:
    """Run everything in SPEC that has no finished record yet.

    Exit codes: 0 all fine, 1 some runs failed, 2 the spec or the data is wrong, 3 another process runs in the same
    folder, 130 interrupted: the same command goes on where this one stopped.
    """
    from rich.console import Console

    from evergrow.lab.bench.progress import reporting
    from evergrow.lab.bench.runner import plan_bench, run_bench
    from evergrow.lab.bench.spec import load_spec

    loaded = load_spec(spec)
    if dry_run:
        planned = plan_bench(loaded, output=output, only=only or (), retry_failed=retry_failed)
        return Answer({"runs": [_run_values(step) for step in planned.steps]}, _planned_lines(planned, "runs"))
    with reporting(Console(stderr=True)) as reporter:
        outcome = run_bench(
            loaded,
            output=output,
            only=only or (),
            retry_failed=retry_failed,
            reporter=reporter,
            engine=placing.opened(),
        )
    values = {"runs": [_run_values(step) for step in outcome.steps]}
    return Answer(values, _run_lines(outcome), code=ExitCode(outcome.exit_code), done=_records_note(outcome))


@command("lab show")
def show_command(
    runs: Annotated[list[Path], typer.Argument(help="Record files, or folders of them.")],
    format: Annotated[str, typer.Option("--format", "-f", help="table, markdown, latex or csv.")] = "table",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="a_last, a_avg, f_avg, train_s, ...; repeatable."),
    ] = None,
    within: Annotated[
        bool,
        typer.Option("--within", help="Also show accuracy among the classes of each sample's own task."),
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Print mean and standard error over seeds: methods as rows, data set x protocol x metric as columns.

    Exit codes: 0 shown, 2 no record could be used.
    """
    from evergrow.lab.records import read_records
    from evergrow.lab.tables import compare, render

    records, problems = read_records(runs)
    for problem in problems:
        note_line(f"left out: {problem.reason}")
    if not records:
        raise InputError(f"RUNS must hold at least one run record, got none in {', '.join(map(str, runs))}")
    comparison = compare(records, _shown_metrics(metric, within, records))
    lines = _terminal_lines(comparison) if format == "table" else render(comparison, format).splitlines()
    return Answer(_comparison_values(comparison), lines)


@command("lab mechanism")
def mechanism_command(
    spec: Annotated[Path, typer.Argument(help="TOML file: analyses x data sets x protocols x seeds.")],
    output: Folder = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed analyses again.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> Answer:
    """Run the mechanism analyses in SPEC that have no finished record yet.

    Exit codes: 0 all fine, 1 some analyses failed, 2 the spec or the data is wrong, 3 another process runs in the same
    folder, 130 interrupted: the same command goes on where this one stopped.
    """
    from rich.console import Console

    from evergrow.lab.bench.mechanism import load_mechanism, plan_mechanism, run_mechanism
    from evergrow.lab.bench.progress import LineReporter

    loaded = load_mechanism(spec)
    if dry_run:
        planned = plan_mechanism(loaded, output=output, retry_failed=retry_failed)
        values = {"analyses": [_analysis_values(step) for step in planned.steps]}
        return Answer(values, _planned_lines(planned, "analyses"))
    reporter = LineReporter(Console(stderr=True), "analyses")
    outcome = run_mechanism(loaded, output=output, retry_failed=retry_failed, reporter=reporter)
    values = {"analyses": [_analysis_values(step) for step in outcome.steps]}
    return Answer(values, _analysis_lines(outcome), code=ExitCode(outcome.exit_code), done=_records_note(outcome))


# -- plans and outcomes --------------------------------------------------------------------


def _run_values(step: Any) -> dict[str, Any]:
    """Return a run of a grid as plain values."""
    results = {key: step.record.results.get(key) for key in ("a_last", "a_avg", "f_avg")} if step.record else {}
    return {
        "run_id": step.run.run_id,
        "file": step.run.file_name,
        "method": step.run.method.name,
        "dataset": step.run.dataset["name"],
        "protocol": step.run.protocol.name,
        "seed": step.run.seed,
        "action": step.action,
        "status": step.status,
        **results,
    }


def _analysis_values(step: Any) -> dict[str, Any]:
    """Return an analysis as plain values."""
    return {
        "run_id": step.run.run_id,
        "file": step.run.file_name,
        "title": step.run.title,
        "action": step.action,
        "status": step.status,
        "figures": step.figures,
    }


def _planned_lines(outcome: Any, noun: str) -> list[str]:
    """Return which steps would run, and how many."""
    lines = [f"{step.action:6}  {step.run.run_id}  {step.run.title}" for step in outcome.steps]
    return [*lines, f"{len(outcome.steps)} {noun}: {_counted(step.action for step in outcome.steps)}"]


def _run_lines(outcome: Any) -> list[str]:
    """Return the table of a grid that ran, and how many of its runs ended how."""
    from evergrow.lab.tables import compare

    lines = _terminal_lines(compare(outcome.records)) if outcome.records else []
    lines.append(f"{_counted(step.status for step in outcome.steps)}; records in {outcome.folder}")
    if any(step.action == "failed" for step in outcome.steps):
        lines.append("some runs failed earlier: --retry-failed runs them again")
    if outcome.cancelled:
        lines.append("cancelled: the same command goes on where this one stopped")
    return lines


def _analysis_lines(outcome: Any) -> list[str]:
    """Return the figures of analyses that were on record, since those that ran have had their line."""
    from evergrow.lab.records import figures_text

    steps = outcome.steps
    lines = [
        f"{step.action:6}  {step.run.run_id}  {step.run.title}  {figures_text(step.figures)}".rstrip()
        for step in steps
        if step.action != "run"
    ]
    counted = _counted(step.status for step in steps)
    lines.append(f"{len(steps)} analyses: {counted}; records in {outcome.folder}")
    if any(step.action == "failed" for step in steps):
        lines.append("some analyses failed earlier: --retry-failed runs them again")
    return lines


def _counted(words: Iterable[str]) -> str:
    """Return how often each word comes, such as ``2 ok, 1 failed``."""
    return ", ".join(f"{n} {word}" for word, n in sorted(Counter(words).items()))


def _records_note(outcome: Any) -> str:
    return f"the records are in {outcome.folder}"


# -- tables -------------------------------------------------------------------------------------------------


def _shown_metrics(metric: list[str] | None, within: bool, records: Sequence[Record]) -> list[str]:
    """Return the metrics to show; says so where one was asked for that no record has."""
    shown = metric or ["a_last", "a_avg"]
    if within:
        shown = list(dict.fromkeys([*shown, "a_last_within"]))
    if "a_last_within" in shown and all(record.results.get("a_last_within") is None for record in records):
        note_line("note: no record here holds accuracy within tasks; a run that is made again does")
    return shown


def _comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Return a table as plain values."""
    columns = [
        {"dataset": column.dataset, "protocol": column.protocol, "metric": column.metric.title}
        for column in comparison.columns
    ]
    cells = [[None if cell is None else asdict(cell) for cell in row] for row in comparison.cells]
    return {"rows": comparison.rows, "columns": columns, "cells": cells, "notes": comparison.notes}


def _terminal_lines(comparison: Comparison) -> list[str]:
    """Return a table for standard output: with styles in a terminal, as plain text elsewhere."""
    from rich.console import Console

    from evergrow.lab.tables import render
    from evergrow.lab.tables.render import rich_table

    console = Console()
    if not console.is_terminal:
        return render(comparison, "table").splitlines()
    with console.capture() as captured:
        console.print(rich_table(comparison))
    return [Styled(captured.get().rstrip("\n")), *(f"note: {note}" for note in comparison.notes)]
