"""The grid: skip what is finished, run what is not, write one record per run, survive anything."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar
from typing import Protocol as TypingProtocol

import torch

from evergrow.bench.data import DataSource
from evergrow.bench.execute import execute
from evergrow.bench.grid import Run, expand, select
from evergrow.bench.spec import Spec
from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import locked
from evergrow.methods import method_needs
from evergrow.records import RecordT, RunRecord, read_record, remove_partial, write_record


class Reporter(TypingProtocol):
    """Someone who is told how the grid is going."""

    def plan(self, steps: list[RunStep]) -> None:
        """Receive all steps before the first one runs."""

    def begin(self, step: RunStep) -> None:
        """Receive the step that starts now."""

    def tick(self, step: RunStep, done: int, total: int, accuracy: float) -> None:
        """Receive the progress of the running step."""

    def end(self, step: RunStep) -> None:
        """Receive a step that has ended, with its record."""


RunT = TypeVar("RunT")
StepT = TypeVar("StepT", bound="Step[Any, Any]")


@dataclass
class Step(Generic[RunT, RecordT]):
    """A run or an analysis, what is to be done about it, and its record once there is one.

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


RunStep: TypeAlias = Step[Run, RunRecord]


@dataclass
class Outcome(Generic[StepT]):
    """What came of a grid or of a set of analyses.

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
    steps: list[StepT] = field(default_factory=list)
    cancelled: bool = False

    @property
    def records(self) -> list[Any]:
        """Records of all steps that have one."""
        return [step.record for step in self.steps if step.record]

    @property
    def exit_code(self) -> int:
        """0 if every run is fine, 1 if some failed, 130 after Ctrl-C."""
        if self.cancelled:
            return 130
        return int(any(step.status == "failed" for step in self.steps))


def plan_bench(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    datasets: DataSource | None = None,
) -> Outcome[RunStep]:
    """Return what :func:`run_bench` would do, without doing any of it.

    Parameters
    ----------
    spec : Spec
        What to run.
    output : path-like, optional
        Folder of the records; the spec's by default.
    only : iterable of str
        Filters ``key=pattern``; see :func:`evergrow.bench.grid.select`.
    retry_failed : bool
        Whether runs that failed earlier run again.
    datasets : DataSource, optional
        Where data sets are kept between calls.
    """
    folder = Path(output) if output is not None else spec.output
    runs = select(expand(spec, datasets), only)
    return Outcome(folder, [_step(run, folder / run.file_name, retry_failed) for run in runs])


def run_bench(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    reporter: Reporter | None = None,
) -> Outcome[RunStep]:
    """Run every run of a spec that has no finished record yet.

    A record is written in one step when its run ends, so a killed process leaves finished runs finished and
    nothing else; the next call does the rest. A run that raises is recorded as failed and the grid goes on.
    Ctrl-C records the running one as cancelled (it runs again next time) and ends the grid.

    Parameters
    ----------
    spec, output, only, retry_failed
        As for :func:`plan_bench`.
    reporter : Reporter, optional
        Told about everything.

    Returns
    -------
    Outcome

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    datasets = DataSource(spec.device)
    folder = Path(output) if output is not None else spec.output
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), compute_threads(spec.threads):
        remove_partial(folder)
        outcome = plan_bench(spec, output=folder, only=only, retry_failed=retry_failed, datasets=datasets)
        try:
            if reporter:
                reporter.plan(outcome.steps)
            for step in outcome.steps:
                _do(step, folder, datasets, reporter)
                if step.action == "run" and step.status == "cancelled":
                    outcome.cancelled = True
                    break
        except KeyboardInterrupt:  # between two runs there is nothing to mark
            outcome.cancelled = True
    return outcome


def _do(step: RunStep, folder: Path, datasets: DataSource, reporter: Reporter | None) -> None:
    if step.action != "run":
        return
    step.record = None
    if reporter:
        reporter.begin(step)
    tick = (lambda done, total, accuracy: reporter.tick(step, done, total, accuracy)) if reporter else None
    fetch = datasets.images if method_needs(step.run.method.name) == "images" else datasets.get
    step.record = execute(step.run, lambda: fetch(step.run.data), tick, gflops=datasets.gflops(step.run.data))
    write_record(folder / step.run.file_name, step.record)
    clean_up()
    if reporter:
        reporter.end(step)


def clean_up() -> None:
    """Let go of a learner that is gone: the next run's peak memory must be its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _step(run: Run, path: Path, retry_failed: bool) -> RunStep:
    return Step(run, *decide(path, run.run_id, read_record, retry_failed))


def decide(
    path: Path, run_id: str, read: Callable[[Path], RecordT], retry_failed: bool
) -> tuple[str, RecordT | None, str]:
    """Decide about a run from what is on disk: the action, the record and the note of its step."""
    try:
        record = read(path)
    except FileNotFoundError:
        return "run", None, ""
    except NewerSchemaError as error:
        return "newer", None, str(error)
    except FileFormatError as error:
        return "run", None, f"runs again: {error}"
    if record.run_id != run_id:
        return "run", None, f"runs again: {path.name} must be the record of {run_id}, got {record.run_id}"
    if record.status == "ok":
        return "skip", record, ""
    if record.status == "failed" and not retry_failed:
        return "failed", record, ""
    return "run", record, f"runs again: it was {record.status}"


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
