"""Grids: the runs of a spec, and the loop that executes those without a record."""

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
from evergrow.lab.records import Record, load_record, remove_partial, save_record
from evergrow.lab.streams import Protocol


def expand(
    spec: Spec, datasets: DataSource | None = None, only: Iterable[str] = ()
) -> list[Run]:
    """Return all runs of a spec, sorted by dataset, because one is kept at a time.

    Parameters
    ----------
    spec : Spec
        The spec.
    datasets : DataSource, optional
        Source of datasets, to reuse between calls.
    only : iterable of str
        Filters that every run must match: ``method``, ``dataset``, ``protocol`` or
        ``seed``, then ``=``, then names or shell patterns separated by commas. Example:
        ``"method=ranpac,klda"``.

    Raises
    ------
    DatasetNotFoundError
        If a dataset is missing. Nothing runs before all data are present.
    ParameterError
        If a protocol needs more classes than the data have, or a filter is malformed or
        matches nothing.
    """
    datasets = datasets or DataSource(spec.device)
    groups: list[
        tuple[AnalysisEntry | None, tuple[MethodEntry, ...], tuple[int, ...]]
    ] = [(entry, entry.methods, entry.seeds) for entry in spec.analyses]
    if not groups:
        groups = [(None, spec.methods, spec.seeds)]
    runs = []
    for data in spec.datasets:
        dataset = {**datasets.describe(data), "label": data.label}
        for analysis, methods, seeds in groups:
            for protocol in spec.protocols:
                _check_fit(protocol, dataset, seeds)
                for index, seed in enumerate(seeds):
                    runs += [
                        Run(
                            method=method,
                            options=_resolve(method, spec.device, seed),
                            data=data,
                            dataset=dataset,
                            protocol=protocol,
                            seed=seed,
                            earlier_seeds=seeds[:index] if protocol.disjoint else (),
                            device=spec.device,
                            confusion=spec.confusion,
                            analysis=analysis,
                        )
                        for method in methods
                    ]
    return _select(runs, only)


def _check_fit(
    protocol: Protocol, dataset: dict[str, Any], seeds: tuple[int, ...]
) -> None:
    """Raise if a protocol needs more classes than the data have."""
    protocol.task_sizes(dataset["n_classes"])
    needed = protocol.n_initial * len(seeds)
    if protocol.disjoint and needed > dataset["n_classes"]:
        raise ParameterError(
            f"{protocol.name} with {len(seeds)} seeds does not fit into "
            f"{dataset['name']}: disjoint first tasks need {needed} classes, and it "
            f"has {dataset['n_classes']}. Use fewer seeds or disjoint = false"
        )


def _resolve(method: MethodEntry, device: str, seed: int) -> dict[str, Any]:
    """Return all options of a method; the spec overrides seed, device and defaults."""
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
                f"--only takes KEY=VALUE with a KEY among {', '.join(_FILTERS)}, "
                f"not {text!r}"
            )
        names = sorted({name for run in runs for name in _FILTERS[key](run)})
        patterns = [value] if value in names else value.split(",")
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in names):
                close = nearest(pattern, names)
                raise ParameterError(
                    f"no {key} {pattern!r} in the spec; nearest: {close}"
                )
        runs = [
            run
            for run in runs
            if any(_matches(n, p) for n in _FILTERS[key](run) for p in patterns)
        ]
    return runs


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


@dataclass
class Step:
    """A run, its planned action, and its record if there is one.

    Parameters
    ----------
    run : Run
        The run.
    action : {"run", "skip", "failed", "newer"}
        ``"run"``: to execute. ``"skip"``: already finished. ``"failed"``: failed before
        and is not retried. ``"newer"``: a newer evergrow wrote the record.
    record : Record or None
        The old or new record.
    note : str
        Reason to run again, if any.
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
    """Planned or executed steps of a grid.

    Parameters
    ----------
    folder : Path
        Folder of the records.
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
        """Records of all steps."""
        return [step.record for step in self.steps if step.record]

    @property
    def exit_code(self) -> int:
        """0 if all runs are ok, 1 if some failed, 130 after Ctrl-C."""
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
    """Return the steps that :func:`run_grid` would execute.

    Parameters
    ----------
    spec : Spec
        The spec.
    output : path-like, optional
        Folder of the records. The default is that of the spec.
    only : iterable of str
        Filters ``key=pattern``; see :func:`expand`.
    retry_failed : bool
        Whether to run failed runs again.
    datasets : DataSource, optional
        Source of datasets, to reuse between calls.

    Raises
    ------
    ParameterError
        If two runs have the same settings.
    """
    folder = spec.output if output is None else Path(output)
    first: dict[str, Run] = {}
    for run in expand(spec, datasets, only):
        if first.setdefault(run.run_id, run) is not run:
            raise ParameterError(
                "the runs of a spec must all differ, got the same settings twice: "
                f"{run.title}"
            )
    steps = [_plan_step(folder, run, retry_failed) for run in first.values()]
    return GridResult(folder, steps)


def run_grid(
    spec: Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    only: Iterable[str] = (),
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda line: None,
    engine: Engine | None = None,
) -> GridResult:
    """Execute all runs or analyses of a spec without a finished record.

    Records are written atomically when a run ends. After the process is killed, the
    next call executes the remaining runs. An error in a run is recorded as failed and
    the grid continues. Ctrl-C records the current run as cancelled (it runs again next
    time) and ends the grid.

    Parameters
    ----------
    spec, output, only, retry_failed
        As for :func:`plan_grid`.
    say : callable, optional
        Receives one line about the plan and one per finished run.
    engine : Engine, optional
        Executes runs in parallel on processes or machines, such as
        ``evergrow.engine.LocalEngine(workers=2)``. Results are equal, but times are
        those of runs that share a machine.

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    from evergrow.lab.bench.workers import run_on_engine

    datasets = DataSource(spec.device)
    folder = spec.output if output is None else Path(output)
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
                progress = f"[{number}/{len(todo)}] {step.status}"
                say(f"{progress} | {step.run.title} | {summary}")
                if step.status == "cancelled":
                    result.cancelled = True
                    break
        except KeyboardInterrupt:  # between two runs, so none is marked as cancelled
            result.cancelled = True
    return result


def _say_plan(steps: Sequence[Step], noun: str, say: Callable[[str], None]) -> None:
    actions = Counter(step.action for step in steps)
    say(
        f"{len(steps)} {noun}: {actions['run']} to do, {actions['skip']} finished, "
        f"{actions['failed']} failed earlier"
    )
    for step in steps:
        if step.note:
            say(f"{step.run.title}: {step.note}")


def _one_by_one(
    folder: Path, steps: Sequence[Step], datasets: DataSource
) -> Iterator[Step]:
    for step in steps:
        step.record = execute(step.run, datasets)
        save_record(folder / step.run.file_name, step.record)
        release_memory()
        yield step


def _plan_step(folder: Path, run: Run, retry_failed: bool) -> Step:
    """Choose the action for a run from its record on disk."""
    path = folder / run.file_name
    try:
        record = load_record(path)
    except FileNotFoundError:
        return Step(run)
    except NewerSchemaError as error:
        return Step(run, "newer", note=str(error))
    except FileFormatError as error:
        return Step(run, note=f"runs again: {error}")
    if record.run_id != run.run_id:
        reason = f"{path.name} is the record of another run, {record.run_id}"
        return Step(run, note=f"runs again: {reason}")
    if record.status == "ok":
        return Step(run, "skip", record)
    if record.status == "failed" and not retry_failed:
        return Step(run, "failed", record)
    return Step(run, "run", record, f"runs again: it was {record.status}")


def release_memory() -> None:
    """Free the memory of a finished run, so that the next peak is its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _collecting_new_objects() -> Iterator[None]:
    """Exclude existing objects, mostly modules, from garbage collection."""
    frozen = gc.get_freeze_count() > 0  # frozen by someone else
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


@contextlib.contextmanager
def compute_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads, and restore it afterwards."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
