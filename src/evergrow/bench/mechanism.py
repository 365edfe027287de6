"""The paper's mechanism analyses as records: plan, run what is not finished, one record per analysis and layer.

Records are of their own kind (:class:`evergrow.records.AnalysisRecord`, schema ``"evergrow-analysis"``), since most
have no accuracy matrix; readers of run records pass them over. What is measured stands in
:mod:`evergrow.bench.analyses`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evergrow.bench.analyses import ANALYSES, AnalysisInput
from evergrow.bench.data import DataSource
from evergrow.bench.execute import watched
from evergrow.bench.grid import Run, expand, record_name, settings_id
from evergrow.bench.mechanism_spec import AnalysisEntry, MechanismSpec, load_mechanism
from evergrow.bench.memory import PeakMemory
from evergrow.bench.runner import Outcome, Step, clean_up, compute_threads, decide
from evergrow.core.devices import resolve_device
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.files import locked
from evergrow.datasets import FeatureSet
from evergrow.records import AnalysisRecord, plain, read_analysis, remove_partial, write_record

__all__ = [
    "AnalysisRun",
    "AnalysisStep",
    "load_mechanism",
    "plan_mechanism",
    "run_mechanism",
]


@dataclass(frozen=True)
class AnalysisRun:
    """One analysis of one layer with everything resolved.

    Parameters
    ----------
    analysis : AnalysisEntry
        What to measure.
    run : Run
        On what.
    """

    analysis: AnalysisEntry
    run: Run

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the outcome."""
        return {"analysis": self.analysis.name, "settings": plain(asdict(self.analysis.settings)), **self.run.settings}

    @property
    def run_id(self) -> str:
        """Hash of the settings."""
        return settings_id(self.settings)

    @property
    def file_name(self) -> str:
        """Name of the record's file."""
        run = self.run
        return record_name(self.analysis.name, run.method.name, run.dataset["name"], f"s{run.seed}", self.run_id)

    @property
    def title(self) -> str:
        """One line for people."""
        return f"{self.analysis.name} | {self.run.title}"


@dataclass
class AnalysisStep(Step[AnalysisRun, AnalysisRecord]):
    """An analysis, what is to be done about it, and its record once there is one."""

    @property
    def figures(self) -> dict[str, Any]:
        """The key figures of a finished analysis: what is single at the top level of its results."""
        results = self.record.results if self.record else {}
        return {name: value for name, value in results.items() if isinstance(value, (int, float, str))}


def plan_mechanism(
    spec: MechanismSpec,
    *,
    output: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    datasets: DataSource | None = None,
) -> Outcome[AnalysisStep]:
    """Return what :func:`run_mechanism` would do, without doing any of it.

    Parameters
    ----------
    spec : MechanismSpec
        What to analyse.
    output : path-like, optional
        Folder of the records; the spec's by default.
    retry_failed : bool
        Whether analyses that failed earlier run again.
    datasets : DataSource, optional
        Where data sets are kept between calls.
    """
    folder = Path(output) if output is not None else spec.common.output
    datasets = datasets or DataSource(spec.common.device)
    runs = [AnalysisRun(entry, run) for entry in spec.analyses for run in expand(entry.grid, datasets)]
    seen: dict[str, AnalysisRun] = {}
    for run in runs:
        if seen.setdefault(run.run_id, run) is not run:
            raise ParameterError(f"the analyses of a spec must all differ, got the same twice: {run.title}")
    places = [data.source for data in spec.common.datasets]
    runs.sort(key=lambda run: places.index(run.run.data.source))  # every data set is loaded once
    steps = [
        AnalysisStep(run, *decide(folder / run.file_name, run.run_id, read_analysis, retry_failed)) for run in runs
    ]
    return Outcome(folder, steps)


def run_mechanism(
    spec: MechanismSpec,
    *,
    output: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    report: Callable[[AnalysisStep, int, int], None] | None = None,
) -> Outcome[AnalysisStep]:
    """Run every analysis of a spec that has no finished record yet.

    Records are written in one step, failures are recorded and the rest goes on, and Ctrl-C is safe, as in
    :func:`evergrow.bench.runner.run_bench`.

    Parameters
    ----------
    spec, output, retry_failed
        As for :func:`plan_mechanism`.
    report : callable, optional
        Told every step that has run, how many have, and how many there are to run.

    Returns
    -------
    Outcome[AnalysisStep]

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    datasets = DataSource(spec.common.device)
    folder = Path(output) if output is not None else spec.common.output
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), compute_threads(spec.common.threads):
        remove_partial(folder)
        outcome = plan_mechanism(spec, output=folder, retry_failed=retry_failed, datasets=datasets)
        pending = [step for step in outcome.steps if step.action == "run"]
        try:
            for number, step in enumerate(pending, start=1):
                step.record = execute_analysis(step.run, datasets)
                write_record(folder / step.run.file_name, step.record)
                clean_up()
                if report:
                    report(step, number, len(pending))
                if step.status == "cancelled":
                    outcome.cancelled = True
                    break
        except KeyboardInterrupt:  # between two analyses there is nothing to mark
            outcome.cancelled = True
    return outcome


def execute_analysis(analysis: AnalysisRun, datasets: DataSource) -> AnalysisRecord:
    """Carry out an analysis and return its record, whatever happens.

    Parameters
    ----------
    analysis : AnalysisRun
        What to measure on what.
    datasets : DataSource
        Where the data comes from.
    """
    run, entry, results = analysis.run, analysis.analysis, {}
    device = resolve_device(run.device)
    start = PeakMemory(device).read()["peak_rss_bytes"]

    def work() -> None:
        data = _same(datasets.get(run.data), run)
        results.update(plain(ANALYSES[entry.name].measure(AnalysisInput(run, data), entry.settings)))

    account = watched(device, work)
    account["memory"] = {**account["memory"], "start_rss_bytes": start}
    return AnalysisRecord(
        run_id=analysis.run_id,
        analysis=entry.name,
        settings=plain(asdict(entry.settings)),
        method=run.method.name,
        label=run.method.label,
        options=run.settings["options"],
        dataset=run.dataset,
        protocol=run.protocol_entry,
        seed=run.seed,
        results=results,
        **account,
    )


def _same(data: FeatureSet, run: Run) -> FeatureSet:
    """Return the data, unless it is no longer what the plan was made for."""
    if data.fingerprint != run.dataset["fingerprint"]:
        raise InputError(f"data set {data.name!r} must stay as it is while a grid runs, but its contents changed")
    return data
