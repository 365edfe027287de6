"""The engine of resumable grids: skip what is finished, do what is not, one record per run, survive anything.

``lab run`` and ``lab mechanism`` are two grids (:mod:`evergrow.lab.bench.runner`,
:mod:`evergrow.lab.bench.mechanism`): they say which runs there are and how one is executed and read; everything else
is here.
"""

from __future__ import annotations

import contextlib
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar
from typing import Protocol as TypingProtocol

import torch

from evergrow.core.errors import FileFormatError, NewerSchemaError, ParameterError
from evergrow.core.files import locked
from evergrow.lab.bench.data import DataSource
from evergrow.lab.records import RecordT, remove_partial, write_record

Tick = Callable[[int, int, float], None]
"""Called after every session of a run with (sessions done, sessions in all, accuracy over seen classes)."""


class GridRun(TypingProtocol):
    """Something to be done once, known by a hash of its settings."""

    @property
    def run_id(self) -> str:
        """Hash of the settings: the same settings give the same id on every machine."""

    @property
    def file_name(self) -> str:
        """Name of the record's file."""

    @property
    def title(self) -> str:
        """One line for people."""


RunT = TypeVar("RunT", bound=GridRun)


@dataclass
class Step(Generic[RunT, RecordT]):
    """A run, what is to be done about it, and its record once there is one.

    Parameters
    ----------
    run : Run or AnalysisRun
        The run.
    action : {"run", "skip", "failed", "newer"}
        To run; finished earlier; failed earlier and not to be retried; on record by a newer evergrow.
    record : RunRecord or AnalysisRecord or None
        The record, from earlier or from now.
    note : str
        Why it runs again, where there was something.
    """

    run: RunT
    action: str = "run"
    record: RecordT | None = None
    note: str = ""

    @property
    def status(self) -> str:
        """``ok``, ``failed``, ``cancelled``, ``newer`` or ``pending``."""
        if self.action == "newer":
            return "newer"
        return self.record.status if self.record else "pending"

    @property
    def figures(self) -> dict[str, Any]:
        """The key figures of a finished run."""
        return self.record.figures if self.record else {}

    @property
    def summary(self) -> str:
        """How it ended, in a few words."""
        return self.record.summary if self.record else "no record"


class Reporter(TypingProtocol):
    """Someone who is told how a grid is going."""

    def plan(self, steps: Sequence[Step[Any, Any]]) -> None:
        """Receive all steps before the first one runs."""

    def begin(self, step: Step[Any, Any]) -> None:
        """Receive the step that starts now."""

    def tick(self, step: Step[Any, Any], done: int, total: int, accuracy: float) -> None:
        """Receive the progress of the running step."""

    def end(self, step: Step[Any, Any]) -> None:
        """Receive a step that has ended, with its record."""


@dataclass
class Outcome(Generic[RunT, RecordT]):
    """The steps of a grid, planned or done.

    Parameters
    ----------
    folder : Path
        Where the records are.
    steps : list of Step
        All runs.
    cancelled : bool
        Whether Ctrl-C ended it.
    """

    folder: Path
    steps: list[Step[RunT, RecordT]] = field(default_factory=list)
    cancelled: bool = False

    @property
    def records(self) -> list[RecordT]:
        """Records of all steps that have one."""
        return [step.record for step in self.steps if step.record]

    @property
    def exit_code(self) -> int:
        """0 if every run is fine, 1 if some failed, 130 after Ctrl-C."""
        if self.cancelled:
            return 130
        return int(any(step.status == "failed" for step in self.steps))


Elsewhere: TypeAlias = Callable[[Sequence[Step[RunT, RecordT]]], Iterator[Step[RunT, RecordT]]]
"""Carries out steps in some other place and yields each when it has ended, in any order."""


class Grid(ABC, Generic[RunT, RecordT]):
    """Runs that leave a record each.

    Parameters
    ----------
    folder : Path
        Where the records are.
    device : str
        Where runs compute.
    threads : int or None
        Threads that they compute with; None leaves torch's choice.
    """

    def __init__(self, folder: Path, device: str, threads: int | None) -> None:
        self.folder = folder
        self.device = device
        self.threads = threads

    @abstractmethod
    def runs(self, datasets: DataSource) -> list[RunT]:
        """Return all runs in order, those of one data set after another, since one is kept at a time."""

    @abstractmethod
    def read(self, path: Path) -> RecordT:
        """Read a record; raises like :func:`evergrow.lab.records.read_record`."""

    @abstractmethod
    def execute(self, run: RunT, datasets: DataSource, tick: Tick | None) -> RecordT:
        """Carry out a run and return its record, whatever happens."""


def plan_grid(
    grid: Grid[RunT, RecordT], *, retry_failed: bool = False, datasets: DataSource | None = None
) -> Outcome[RunT, RecordT]:
    """Return what :func:`run_grid` would do, without doing any of it.

    Parameters
    ----------
    grid : Grid
        The runs.
    retry_failed : bool
        Whether runs that failed earlier run again.
    datasets : DataSource, optional
        Where data sets are kept between calls.

    Raises
    ------
    ParameterError
        If two runs have the same settings.
    """
    runs = grid.runs(datasets or DataSource(grid.device))
    first: dict[str, RunT] = {}
    for run in runs:
        if first.setdefault(run.run_id, run) is not run:
            raise ParameterError(f"the runs of a spec must all differ, got the same settings twice: {run.title}")
    return Outcome(grid.folder, [_planned(grid, run, retry_failed) for run in runs])


def run_grid(
    grid: Grid[RunT, RecordT],
    *,
    retry_failed: bool = False,
    reporter: Reporter | None = None,
    elsewhere: Elsewhere[RunT, RecordT] | None = None,
) -> Outcome[RunT, RecordT]:
    """Carry out every run that has no finished record yet.

    A record is written in one step when its run ends, so a killed process leaves finished runs finished and
    nothing else; the next call does the rest. A run that raises is recorded as failed and the grid goes on.
    Ctrl-C records the running one as cancelled (it runs again next time) and ends the grid.

    Parameters
    ----------
    grid, retry_failed
        As for :func:`plan_grid`.
    reporter : Reporter, optional
        Told about everything.
    elsewhere : callable, optional
        Carries out the steps it is given and yields each when its record is written; by default they run here, one
        after the other.

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    datasets = DataSource(grid.device)
    grid.folder.mkdir(parents=True, exist_ok=True)
    with locked(grid.folder), compute_threads(grid.threads), _collecting_new_objects():
        remove_partial(grid.folder)
        outcome = plan_grid(grid, retry_failed=retry_failed, datasets=datasets)
        try:
            if reporter:
                reporter.plan(outcome.steps)
            todo = [step for step in outcome.steps if step.action == "run"]
            for step in elsewhere(todo) if elsewhere else _one_by_one(grid, todo, datasets, reporter):
                if reporter:
                    reporter.end(step)
                if step.status == "cancelled":
                    outcome.cancelled = True
                    break
        except KeyboardInterrupt:  # between two runs there is nothing to mark
            outcome.cancelled = True
    return outcome


def _one_by_one(
    grid: Grid[RunT, RecordT], steps: Sequence[Step[RunT, RecordT]], datasets: DataSource, reporter: Reporter | None
) -> Iterator[Step[RunT, RecordT]]:
    for step in steps:
        step.record = None
        if reporter:
            reporter.begin(step)
        tick = partial(reporter.tick, step) if reporter else None
        step.record = grid.execute(step.run, datasets, tick)
        write_record(grid.folder / step.run.file_name, step.record)
        release_memory()
        yield step


def release_memory() -> None:
    """Let go of what a run held: its learner is gone by now, and the next run's peak memory must be its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _planned(grid: Grid[RunT, RecordT], run: RunT, retry_failed: bool) -> Step[RunT, RecordT]:
    """Decide about a run from the record that is on disk."""
    path = grid.folder / run.file_name
    try:
        record = grid.read(path)
    except FileNotFoundError:
        return Step(run)
    except NewerSchemaError as error:
        return Step(run, "newer", note=str(error))
    except FileFormatError as error:
        return Step(run, note=f"runs again: {error}")
    if record.run_id != run.run_id:
        return Step(run, note=f"runs again: {path.name} must be the record of {run.run_id}, got {record.run_id}")
    if record.status == "ok":
        return Step(run, "skip", record)
    if record.status == "failed" and not retry_failed:
        return Step(run, "failed", record)
    return Step(run, "run", record, f"runs again: it was {record.status}")


@contextlib.contextmanager
def _collecting_new_objects() -> Iterator[None]:
    """Let the collections after each run pass over what was there before, which is mostly imported modules."""
    frozen = gc.get_freeze_count() > 0  # someone else's doing, and theirs to undo
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


@contextlib.contextmanager
def compute_threads(threads: int | None) -> Iterator[None]:
    """Compute with that many threads, and put torch's setting back afterwards."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
