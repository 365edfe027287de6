"""``evergrow lab``: run grids of experiments and compare their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import Answer, note_line
from evergrow.cli.engine import WorkerOptions
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import Json
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import InputError

if TYPE_CHECKING:
    from evergrow.lab.bench import GridResult, Step

command_group(
    "lab", "Compare methods: grids of experiments, their records, tables and figures."
)


@dataclass(frozen=True)
class GridOptions(WorkerOptions):
    """Which runs of a grid to execute, and whether in parallel on an engine.

    Parameters
    ----------
    output
        Folder of the records.
    only
        Filter such as method=ranpac,klda or dataset='cub*'.
    retry_failed
        Run failed runs again.
    dry_run
        Only list what would run.
    engine
        Execute several runs at a time, on processes of this machine or a Ray cluster.
        The records are the same.
    workers
        Number of runs at a time.
    """

    output: Annotated[Path | None, typer.Option("-o")] = None
    only: list[str] | None = None
    retry_failed: bool = False
    dry_run: bool = False


WHOLE_GRID = GridOptions()
"""Execute all runs in this process, one after the other."""


@command("lab run")
def run_command(
    spec: Annotated[
        Path, typer.Argument(help="TOML file: methods x datasets x protocols x seeds.")
    ],
    grid: GridOptions = WHOLE_GRID,
    as_json: Json = False,
) -> Answer:
    """Execute all runs in SPEC that have no finished record.

    Exit codes: 0 all fine, 1 some runs failed, 2 the spec or the data is wrong, 3
    another process runs in the same folder, 130 interrupted. Repeat the command to
    continue.
    """
    return _run(spec, "runs", grid)


@command("lab mechanism")
def mechanism_command(
    spec: Annotated[
        Path,
        typer.Argument(help="TOML file: analyses x datasets x protocols x seeds."),
    ],
    grid: GridOptions = WHOLE_GRID,
    as_json: Json = False,
) -> Answer:
    """Execute all mechanism analyses in SPEC that have no finished record.

    Exit codes: 0 all fine, 1 some analyses failed, 2 the spec or the data is wrong, 3
    another process runs in the same folder, 130 interrupted. Repeat the command to
    continue.
    """
    return _run(spec, "analyses", grid)


def _run(path: Path, noun: str, grid: GridOptions) -> Answer:
    from evergrow.lab.bench import load_spec, plan_grid, run_grid

    spec = load_spec(path)
    if bool(spec.analyses) != (noun == "analyses"):
        if spec.analyses:
            raise InputError(
                f"{path} has analyses: run it by 'evergrow lab mechanism {path}'"
            )
        raise InputError(
            f"{path} has methods and no analyses: run it by 'evergrow lab run {path}'"
        )
    chosen: dict[str, Any] = {
        "output": grid.output,
        "only": grid.only or (),
        "retry_failed": grid.retry_failed,
    }
    if grid.dry_run:
        planned = plan_grid(spec, **chosen)
        lines = [
            f"{step.action:6}  {step.run.run_id}  {step.run.title}"
            for step in planned.steps
        ]
        actions = _count_words(step.action for step in planned.steps)
        lines.append(f"{len(planned.steps)} {noun}: {actions}")
        return Answer({noun: [_step_values(step) for step in planned.steps]}, lines)
    engine = grid.create_engine() if grid.engine else None
    done = run_grid(spec, say=note_line, engine=engine, **chosen)
    return Answer(
        {noun: [_step_values(step) for step in done.steps]},
        _result_lines(done, noun),
        code=ExitCode(done.exit_code),
        done=f"the records are in {done.folder}",
    )


def _step_values(step: Step) -> dict[str, Any]:
    """Return a run of a grid as plain values."""
    return {
        "run_id": step.run.run_id,
        "file": step.run.file_name,
        "title": step.run.title,
        "method": step.run.method.name,
        "dataset": step.run.dataset["name"],
        "protocol": step.run.protocol.name,
        "seed": step.run.seed,
        "action": step.action,
        "status": step.status,
        "figures": step.record.figures if step.record else {},
    }


def _result_lines(done: GridResult, noun: str) -> list[str]:
    """Return the table of an executed grid and the number of runs per status."""
    from evergrow.lab.tables import compare, render

    lines = []
    runs = [record for record in done.records if not record.analysis]
    if runs:
        lines = render(compare(runs), "table").splitlines()
    statuses = _count_words(step.status for step in done.steps)
    lines.append(f"{statuses}; records in {done.folder}")
    if any(step.action == "failed" for step in done.steps):
        lines.append(f"some {noun} failed earlier: --retry-failed runs them again")
    if done.cancelled:
        lines.append("cancelled: repeat the command to continue")
    return lines


def _count_words(words: Iterable[str]) -> str:
    """Return the number of each word, such as ``2 ok, 1 failed``."""
    return ", ".join(f"{n} {word}" for word, n in sorted(Counter(words).items()))


@command("lab show")
def show_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Record files, or folders of them.")
    ],
    format: Annotated[
        str, typer.Option("--format", "-f", help="table, markdown, latex, csv or html.")
    ] = "table",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            help="a_last, a_avg, f_avg, a_last_within, train_s, ...; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Print mean and standard error over seeds, with methods as rows.

    Exit codes: 0 shown, 2 no record could be used.
    """
    from evergrow.lab.records import load_records
    from evergrow.lab.tables import compare, render

    records, problems = load_records(runs)
    for reason in problems.values():
        note_line(f"left out: {reason}")
    found = [record for record in records.values() if not record.analysis]
    if not found:
        raise InputError(f"No record of a run in {', '.join(map(str, runs))}")
    comparison = compare(found, metric or ["a_last", "a_avg"])
    cells = [{**asdict(cell), "metric": cell.metric.title} for cell in comparison.cells]
    return Answer(
        {"cells": cells, "notes": comparison.notes},
        render(comparison, format).splitlines(),
    )
