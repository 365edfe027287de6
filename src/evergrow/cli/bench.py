"""``evergrow bench``: run a grid of experiments and show what came of it."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from evergrow.core.errors import EvergrowError

P = ParamSpec("P")
R = TypeVar("R")

bench_app = typer.Typer(help="Run grids of experiments and compare their records.", no_args_is_help=True)


def _errors_to_exit(command: Callable[P, R]) -> Callable[P, R]:
    """Print evergrow's own errors as one line and leave with 2; any other error is a bug and shows itself."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except EvergrowError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:  # outside a run; inside one it is recorded first
            raise typer.Exit(130) from None

    return wrapped


@bench_app.command("run")
@_errors_to_exit
def run_command(
    spec: Annotated[Path, typer.Argument(help="TOML file: methods x data sets x protocols x seeds.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the records.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Filter such as method=ranpac,klda or dataset='cub*'.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Run everything in SPEC that has no finished record yet.

    Exit codes: 0 all fine, 1 some runs failed, 2 the spec or the data is wrong, 130 after Ctrl-C.
    """
    from rich.console import Console

    from evergrow.bench.progress import reporting
    from evergrow.bench.runner import plan_bench, run_bench
    from evergrow.bench.spec import load_spec

    loaded = load_spec(spec)
    if dry_run:
        _print_steps(plan_bench(loaded, output=output, only=only or (), retry_failed=retry_failed), as_json, True)
        return
    with reporting(Console(stderr=True)) as reporter:
        outcome = run_bench(loaded, output=output, only=only or (), retry_failed=retry_failed, reporter=reporter)
    _print_steps(outcome, as_json, False)
    raise typer.Exit(outcome.exit_code)


@bench_app.command("show")
@_errors_to_exit
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
) -> None:
    """Print mean and standard error over seeds: methods as rows, data set x protocol x metric as columns."""
    from evergrow.records import read_records
    from evergrow.tables.compare import compare
    from evergrow.tables.render import render

    records, problems = read_records(runs)
    for problem in problems:
        typer.echo(f"left out: {problem.reason}", err=True)
    if not records:
        typer.echo(
            f"error: RUNS must hold at least one run record, got none in {', '.join(map(str, runs))}",
            err=True,
        )
        raise typer.Exit(2)
    comparison = compare(records, _shown_metrics(metric, within, records))
    text = render(comparison, format)
    if format != "table" or not _print_rich(comparison):
        typer.echo(text, nl=False)


def _shown_metrics(metric: list[str] | None, within: bool, records: list[Any]) -> list[str]:
    """Return the metrics to show; says so where one was asked for that no record has."""
    shown = metric or ["a_last", "a_avg"]
    if within:
        shown = list(dict.fromkeys([*shown, "a_last_within"]))
    if "a_last_within" in shown and all(record.results.get("a_last_within") is None for record in records):
        typer.echo("note: no record here holds accuracy within tasks; a run that is made again does", err=True)
    return shown


@bench_app.command("mechanism")
@_errors_to_exit
def mechanism_command(
    spec: Annotated[Path, typer.Argument(help="TOML file: analyses x data sets x protocols x seeds.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the records.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed analyses again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Run the mechanism analyses in SPEC that have no finished record yet.

    Exit codes: 0 all fine, 1 some analyses failed, 2 the spec or the data is wrong, 130 after Ctrl-C.
    """
    from rich.console import Console

    from evergrow.bench.mechanism import load_mechanism, plan_mechanism, run_mechanism
    from evergrow.bench.progress import LineReporter

    loaded = load_mechanism(spec)
    if dry_run:
        _print_analyses(plan_mechanism(loaded, output=output, retry_failed=retry_failed), as_json, True)
        return
    reporter = LineReporter(Console(stderr=True), "analyses")
    outcome = run_mechanism(loaded, output=output, retry_failed=retry_failed, reporter=reporter)
    _print_analyses(outcome, as_json, False)
    raise typer.Exit(outcome.exit_code)


def _print_analyses(outcome: Any, as_json: bool, planned: bool) -> None:
    """Print what the analyses found, or which would run."""
    from evergrow.records import figures_text

    steps = outcome.steps
    if as_json:
        entries = [
            {
                "run_id": step.run.run_id,
                "file": step.run.file_name,
                "title": step.run.title,
                "action": step.action,
                "status": step.status,
                "figures": step.figures,
            }
            for step in steps
        ]
        typer.echo(json.dumps({"exit_code": 0 if planned else outcome.exit_code, "analyses": entries}, indent=1))
        return
    for step in steps:
        if planned or step.action != "run":  # the others have had their line
            said = f"  {figures_text(step.figures)}" if step.figures else ""
            typer.echo(f"{step.action:6}  {step.run.run_id}  {step.run.title}{said}")
    counts = Counter(step.action if planned else step.status for step in steps)
    listed = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    typer.echo(f"{len(steps)} analyses: {listed}; records in {outcome.folder}")
    if any(step.action == "failed" for step in steps):
        typer.echo("some analyses failed earlier: --retry-failed runs them again")


def _print_rich(comparison: Any) -> bool:
    """Print a styled table if standard output is a terminal; say whether it was."""
    from rich.console import Console

    from evergrow.tables.render import rich_table

    console = Console()
    if not console.is_terminal:
        return False
    console.print(rich_table(comparison))
    for note in comparison.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    return True


def _print_steps(outcome: Any, as_json: bool, planned: bool) -> None:
    """Print what a grid did, or would do."""
    steps = outcome.steps
    if as_json:
        entries = [
            {
                "run_id": step.run.run_id,
                "file": step.run.file_name,
                "method": step.run.method.name,
                "dataset": step.run.dataset["name"],
                "protocol": step.run.protocol.name,
                "seed": step.run.seed,
                "action": step.action,
                "status": step.status,
                **({key: step.record.results.get(key) for key in ("a_last", "a_avg", "f_avg")} if step.record else {}),
            }
            for step in steps
        ]
        typer.echo(json.dumps({"exit_code": 0 if planned else outcome.exit_code, "runs": entries}, indent=1))
        return
    if planned:
        for step in steps:
            typer.echo(f"{step.action:6}  {step.run.run_id}  {step.run.title}")
        counts = Counter(step.action for step in steps)
        typer.echo(f"{len(steps)} runs: {', '.join(f'{n} {action}' for action, n in sorted(counts.items()))}")
        return
    _print_outcome(outcome)


def _print_outcome(outcome: Any) -> None:
    from evergrow.tables.compare import compare
    from evergrow.tables.render import render

    if outcome.records:
        comparison = compare(outcome.records)
        if not _print_rich(comparison):
            typer.echo(render(comparison, "table"), nl=False)
    counts = Counter(step.status for step in outcome.steps)
    typer.echo(f"{', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}; records in {outcome.folder}")
    if any(step.action == "failed" for step in outcome.steps):
        typer.echo("some runs failed earlier: --retry-failed runs them again")
    if outcome.cancelled:
        typer.echo("cancelled: the same command goes on where this one stopped")
