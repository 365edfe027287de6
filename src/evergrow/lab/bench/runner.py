"""``lab run``: every method of a spec on every data set, protocol and seed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from evergrow.engine import Engine
from evergrow.lab.bench.data import DataSource
from evergrow.lab.bench.elsewhere import execute_run, run_steps
from evergrow.lab.bench.grid import Run, expand, select
from evergrow.lab.bench.resumable import Grid, Outcome, Reporter, Step, Tick, plan_grid, run_grid
from evergrow.lab.bench.spec import Spec
from evergrow.lab.records import RunRecord, read_record

RunStep: TypeAlias = Step[Run, RunRecord]
RunOutcome: TypeAlias = Outcome[Run, RunRecord]


class BenchGrid(Grid[Run, RunRecord]):
    """The runs of a spec.

    Parameters
    ----------
    spec : Spec
        What to run.
    output : path-like, optional
        Folder of the records; the spec's by default.
    only : iterable of str
        Filters ``key=pattern``; see :func:`evergrow.lab.bench.grid.select`.
    """

    def __init__(self, spec: Spec, output: str | os.PathLike[str] | None = None, only: Iterable[str] = ()) -> None:
        super().__init__(Path(output) if output is not None else spec.output, spec.device, spec.threads)
        self._spec = spec
        self._only = tuple(only)

    def runs(self, datasets: DataSource) -> list[Run]:
        """Return all runs that the filters let through."""
        return select(expand(self._spec, datasets), self._only)

    def read(self, path: Path) -> RunRecord:
        """Read the record of a run."""
        return read_record(path)

    def execute(self, run: Run, datasets: DataSource, tick: Tick | None) -> RunRecord:
        """Learn and test task by task."""
        return execute_run(run, datasets, tick)


def plan_bench(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    datasets: DataSource | None = None,
) -> RunOutcome:
    """Return what :func:`run_bench` would do, without doing any of it.

    Parameters
    ----------
    spec : Spec
        What to run.
    output : path-like, optional
        Folder of the records; the spec's by default.
    only : iterable of str
        Filters ``key=pattern``; see :func:`evergrow.lab.bench.grid.select`.
    retry_failed : bool
        Whether runs that failed earlier run again.
    datasets : DataSource, optional
        Where data sets are kept between calls.
    """
    return plan_grid(BenchGrid(spec, output, only), retry_failed=retry_failed, datasets=datasets)


def run_bench(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    reporter: Reporter | None = None,
    engine: Engine | None = None,
) -> RunOutcome:
    """Run every run of a spec that has no finished record yet; see :func:`evergrow.lab.bench.resumable.run_grid`.

    Parameters
    ----------
    spec, output, only, retry_failed
        As for :func:`plan_bench`.
    reporter : Reporter, optional
        Told about everything.
    engine : Engine, optional
        Several processes or machines that carry out runs side by side, such as
        ``evergrow.engine.LocalEngine(workers=2)``. Results are the same; times are those of runs that share a machine.

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    grid = BenchGrid(spec, output, only)
    elsewhere = None if engine is None else partial(run_steps, engine, grid.folder, threads=grid.threads)
    return run_grid(grid, retry_failed=retry_failed, reporter=reporter, elsewhere=elsewhere)
