"""``lab mechanism``: the paper's mechanism analyses, one record per analysis and layer.

Records are of their own kind (:class:`evergrow.lab.records.AnalysisRecord`, schema ``"evergrow-analysis"``), since most
have no accuracy matrix; readers of run records pass them over. What is measured stands in
:mod:`evergrow.lab.bench.analyses`.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from evergrow.core.devices import resolve_device
from evergrow.lab.bench.analyses import ANALYSES, AnalysisInput
from evergrow.lab.bench.data import DataSource
from evergrow.lab.bench.execute import unchanged, watched
from evergrow.lab.bench.grid import Run, expand, record_name, settings_id
from evergrow.lab.bench.mechanism_spec import AnalysisEntry, MechanismSpec, load_mechanism
from evergrow.lab.bench.memory import PeakMemory
from evergrow.lab.bench.resumable import Grid, Outcome, Reporter, Step, Tick, plan_grid, run_grid
from evergrow.lab.records import AnalysisRecord, plain, read_analysis

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
        """All that decides the outcome."""
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


AnalysisStep: TypeAlias = Step[AnalysisRun, AnalysisRecord]
AnalysisOutcome: TypeAlias = Outcome[AnalysisRun, AnalysisRecord]


class MechanismGrid(Grid[AnalysisRun, AnalysisRecord]):
    """The analyses of a spec.

    Parameters
    ----------
    spec : MechanismSpec
        What to analyse.
    output : path-like, optional
        Folder of the records; the spec's by default.
    """

    def __init__(self, spec: MechanismSpec, output: str | os.PathLike[str] | None = None) -> None:
        common = spec.common
        super().__init__(Path(output) if output is not None else common.output, common.device, common.threads)
        self._spec = spec

    def runs(self, datasets: DataSource) -> list[AnalysisRun]:
        """Return all analyses of all layers, data set by data set."""
        runs = [AnalysisRun(entry, run) for entry in self._spec.analyses for run in expand(entry.grid, datasets)]
        order = [data.source for data in self._spec.common.datasets]
        return sorted(runs, key=lambda run: order.index(run.run.data.source))

    def read(self, path: Path) -> AnalysisRecord:
        """Read the record of an analysis."""
        return read_analysis(path)

    def execute(self, run: AnalysisRun, datasets: DataSource, tick: Tick | None) -> AnalysisRecord:
        """Measure; an analysis has no sessions to tell of."""
        return execute_analysis(run, datasets)


def plan_mechanism(
    spec: MechanismSpec,
    *,
    output: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    datasets: DataSource | None = None,
) -> AnalysisOutcome:
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
    return plan_grid(MechanismGrid(spec, output), retry_failed=retry_failed, datasets=datasets)


def run_mechanism(
    spec: MechanismSpec,
    *,
    output: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    reporter: Reporter | None = None,
) -> AnalysisOutcome:
    """Run every analysis of a spec that has no finished record yet; see :func:`evergrow.lab.bench.resumable.run_grid`.

    Parameters
    ----------
    spec, output, retry_failed
        As for :func:`plan_mechanism`.
    reporter : Reporter, optional
        Told about everything.

    Raises
    ------
    BusyError
        If another process works on the same folder.
    """
    return run_grid(MechanismGrid(spec, output), retry_failed=retry_failed, reporter=reporter)


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
        data = unchanged(datasets.get(run.data), run)
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
