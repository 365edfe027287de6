"""Grids: the runs of a spec, and the loop that skips what is finished and carries out the rest, one record each."""

from __future__ import annotations

import contextlib
import fnmatch
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evergrow.core.errors import FileFormatError, NewerSchemaError, ParameterError
from evergrow.core.files import locked
from evergrow.core.registry import nearest
from evergrow.engine import Engine
from evergrow.lab.bench.data import DataSource
from evergrow.lab.bench.execute import execute
from evergrow.lab.bench.run import AnalysisEntry, MethodEntry, Run
from evergrow.lab.bench.spec import Spec
from evergrow.lab.methods import method_options
from evergrow.lab.records import Record, read_record, remove_partial, write_record
from evergrow.lab.streams import Protocol


def expand(
    spec: Spec, datasets: DataSource | None = None, only: Iterable[str] = ()
) -> list[Run]:
    """Return all runs of a spec, ordered by data set, since one data set is kept at a time.

    Parameters
    ----------
    spec : Spec
        What to run.
    datasets : DataSource, optional
        Where data sets are kept between calls.
    only : iterable of str
        Filters that every run must match: ``method``, ``dataset``, ``protocol`` or
        ``seed``, ``=``, and names or shell patterns separated by commas; for example
        ``"method=ranpac,klda"``.

    Raises
    ------
    DatasetNotFoundError
        If a data set is not on disk: nothing runs before all data is there.
    ParameterError
        For a protocol that asks for more classes than the data has, a malformed filter,
        or one that matches nothing.
    """
    datasets = datasets or DataSource(spec.device)
    parts: list[
        tuple[AnalysisEntry | None, tuple[MethodEntry, ...], tuple[int, ...]]
    ] = [(entry, entry.methods, entry.seeds) for entry in spec.analyses]
    parts = parts or [(None, spec.methods, spec.seeds)]
    runs = []
    for data in spec.datasets:
        dataset = {**datasets.describe(data), "label": data.label}
        for analysis, methods, seeds in parts:
            for protocol in spec.protocols:
                _check_fit(protocol, dataset, seeds)
                for index, seed in enumerate(seeds):
                    earlier = seeds[:index] if protocol.disjoint else ()
                    place = (
                        data,
                        dataset,
                        protocol,
                        seed,
                        earlier,
                        spec.device,
                        spec.confusion,
                        analysis,
                    )
                    runs += [
                        Run(method, _resolve(method, spec.device, seed), *place)
                        for method in methods
                    ]
    return _select(runs, only)


def _check_fit(
    protocol: Protocol, dataset: dict[str, Any], seeds: tuple[int, ...]
) -> None:
    """Fail before anything runs if a protocol asks for more classes than the data has."""
    protocol.task_sizes(dataset["n_classes"])
    needed = protocol.n_initial * len(seeds)
    if protocol.disjoint and needed > dataset["n_classes"]:
        raise ParameterError(
            f"{protocol.name} with {len(seeds)} seeds does not fit into {dataset['name']}: disjoint first tasks need "
            f"{needed} classes, and it has {dataset['n_classes']}. Use fewer seeds or disjoint = false"
        )


def _resolve(method: MethodEntry, device: str, seed: int) -> dict[str, Any]:
    """Return every option of a method: defaults, then device and seed, then what the spec gives."""
    options = method_options(method.name)
    for name, value in (("device", device), ("random_state", seed)):
        if name in options:
            options[name] = value
    return {**options, **method.options}


_FILTERS: dict[str, Callable[[Run], tuple[str, ...]]] = {
    "method": lambda run: (run.method.name, run.method.label),
    "dataset": lambda run: (run.dataset["name"], run.data.label),
    "protocol": lambda run: (run.protocol.name,),
    "seed": lambda run: (str(run.seed),),
}


def _select(runs: list[Run], only: Iterable[str]) -> list[Run]:
    for text in only:
        key, equals, value = text.partition("=")
        if not equals or key not in _FILTERS:
            raise ParameterError(
                f"--only takes KEY=VALUE with a KEY among {', '.join(_FILTERS)}, not {text!r}"
            )
        names = sorted({name for run in runs for name in _FILTERS[key](run)})
        if value in names:
            patterns = [value]
        else:
            patterns = value.split(",")
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in names):
                raise ParameterError(
                    f"no {key} {pattern!r} in the spec; nearest: {nearest(pattern, names)}"
                )
        runs = [
            run
            for run in runs
            if any(_matches(n, p) for n in _FILTERS[key](run) for p in patterns)
        ]
    return runs


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


# -- carrying them out -----------------------------------------------------------------


@dataclass
class Step:
    """A run, what is to be done about it, and its record once there is one.

    Parameters
    ----------
    run : Run
        The run.
    action : {"run", "skip", "failed", "newer"}
        To run; finished earlier; failed earlier and not to be retried; on record by a
        newer evergrow.
    record : Record or None
        The record, from earlier or from now.
    note : str
        Why it runs again, where there was something.
    """

    run: Run
    action: str = "run"
    record: Record | None = None
    note: str = ""

    @property
    def status(self) -> str:
        """``ok``, ``failed``, ``cancelled``, ``newer`` or ``pending``."""
        if self.action == "newer":
            return "newer"
        return self.record.status if self.record else "pending"


@dataclass
class GridResult:
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
    steps: list[Step] = field(default_factory=list)
    cancelled: bool = False

    @property
    def records(self) -> list[Record]:
        """Records of all steps that have one."""
        return [step.record for step in self.steps if step.record]

    @property
    def exit_code(self) -> int:
        """0 if every run is fine, 1 if some failed, 130 after Ctrl-C."""
        if self.cancelled:
            return 130
        return int(any(step.status == "failed" for step in self.steps))


def plan_grid(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    datasets: DataSource | None = None,
) -> GridResult:
    """Return what :func:`run_grid` would do, without doing any of it.

    Parameters
    ----------
    spec : Spec
        What to run.
    output : path-like, optional
        Folder of the records; the spec's by default.
    only : iterable of str
        Filters ``key=pattern``; see :func:`expand`.
    retry_failed : bool
        Whether runs that failed earlier run again.
    datasets : DataSource, optional
        Where data sets are kept between calls.

    Raises
    ------
    ParameterError
        If two runs have the same settings.
    """
    if output is None:
        folder = spec.output
    else:
        folder = Path(output)
    first: dict[str, Run] = {}
    for run in expand(spec, datasets, only):
        if first.setdefault(run.run_id, run) is not run:
            raise ParameterError(
                f"the runs of a spec must all differ, got the same settings twice: {run.title}"
            )
    return GridResult(
        folder, [_planned(folder, run, retry_failed) for run in first.values()]
    )


def run_grid(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda line: None,
    engine: Engine | None = None,
) -> GridResult:
    """Carry out every run or analysis of a spec that has no finished record yet.

    A record is written in one step when its run ends, so a killed process leaves
    finished runs finished and nothing else; the next call does the rest. A run that
    raises is recorded as failed and the grid goes on. Ctrl-C records the running one as
    cancelled (it runs again next time) and ends the grid.

    Parameters
    ----------
    spec, output, only, retry_failed
        As for :func:`plan_grid`.
    say : callable, optional
        HeadSummary one line for people about the plan, and one about every run that has ended.
    engine : Engine, optional
        Several processes or machines that carry out runs side by side, such as
        ``evergrow.engine.LocalEngine(workers=2)``. Results are the same; times are
        those of runs that share a machine.

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    from evergrow.lab.bench.workers import run_on_engine

    datasets = DataSource(spec.device)
    if output is None:
        folder = spec.output
    else:
        folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), compute_threads(spec.threads), _collecting_new_objects():
        remove_partial(folder)
        result = plan_grid(
            spec, output=folder, only=only, retry_failed=retry_failed, datasets=datasets
        )
        try:
            todo = [step for step in result.steps if step.action == "run"]
            _say_plan(result.steps, "analyses" if spec.analyses else "runs", say)
            if engine:
                done = run_on_engine(engine, spec, folder, todo)
            else:
                done = _one_by_one(folder, todo, datasets)
            for number, step in enumerate(done, start=1):
                summary = step.record.summary if step.record else "no record"
                say(
                    f"[{number}/{len(todo)}] {step.status} | {step.run.title} | {summary}"
                )
                if step.status == "cancelled":
                    result.cancelled = True
                    break
        except KeyboardInterrupt:  # between two runs there is nothing to mark
            result.cancelled = True
    return result


def _say_plan(steps: Sequence[Step], noun: str, say: Callable[[str], None]) -> None:
    actions = Counter(step.action for step in steps)
    counts = f"{actions['run']} to do, {actions['skip']} finished, {actions['failed']} failed earlier"
    say(f"{len(steps)} {noun}: {counts}")
    for step in steps:
        if step.note:
            say(f"{step.run.title}: {step.note}")


def _one_by_one(
    folder: Path, steps: Sequence[Step], datasets: DataSource
) -> Iterator[Step]:
    for step in steps:
        step.record = execute(step.run, datasets)
        write_record(folder / step.run.file_name, step.record)
        release_memory()
        yield step


def _planned(folder: Path, run: Run, retry_failed: bool) -> Step:
    """Decide about a run from the record that is on disk."""
    path = folder / run.file_name
    try:
        record = read_record(path)
    except FileNotFoundError:
        return Step(run)
    except NewerSchemaError as error:
        return Step(run, "newer", note=str(error))
    except FileFormatError as error:
        return Step(run, note=f"runs again: {error}")
    if record.run_id != run.run_id:
        return Step(
            run,
            note=f"runs again: {path.name} is the record of another run, {record.run_id}",
        )
    if record.status == "ok":
        return Step(run, "skip", record)
    if record.status == "failed" and not retry_failed:
        return Step(run, "failed", record)
    return Step(run, "run", record, f"runs again: it was {record.status}")


def release_memory() -> None:
    """Let go of what a run held: its learner is gone by now, and the next run's peak memory must be its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
