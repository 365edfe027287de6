"""From records to a comparison: methods as rows, data set x protocol x metric as columns, mean +- error."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evergrow.core.errors import UnknownNameError
from evergrow.core.registry import nearest
from evergrow.records import RunRecord


@dataclass(frozen=True)
class Metric:
    """A number in a record and how to print it.

    Parameters
    ----------
    title : str
        Plain name.
    latex : str
        Name in LaTeX.
    read : callable
        Takes a record, returns the number or None.
    lower_is_better : bool
        Which end is best.
    """

    title: str
    latex: str
    read: Callable[[RunRecord], float | None]
    lower_is_better: bool = False


def _percent(key: str) -> Callable[[RunRecord], float | None]:
    def read(record: RunRecord) -> float | None:
        value = record.results.get(key)
        return None if value is None else 100.0 * float(value)

    return read


def _train_seconds(record: RunRecord) -> float | None:
    fit = record.times.get("fit")
    return None if fit is None else float(fit) + sum(record.times.get("update") or [])


def _peak_megabytes(record: RunRecord) -> float | None:
    value = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
    return None if value is None else float(value) / 2**20


METRICS = {
    "a_last": Metric("A_last", r"$A_{\text{last}}$", _percent("a_last")),
    "a_avg": Metric("A_avg", r"$A_{\text{avg}}$", _percent("a_avg")),
    "f_avg": Metric("F_avg", r"$F_{\text{avg}}$", _percent("f_avg"), lower_is_better=True),
    "a_last_tasks": Metric("A_last (tasks)", r"$A_{\text{last}}^{\text{task}}$", _percent("a_last_tasks")),
    "a_avg_tasks": Metric("A_avg (tasks)", r"$A_{\text{avg}}^{\text{task}}$", _percent("a_avg_tasks")),
    "train_s": Metric("train s", "train (s)", _train_seconds, lower_is_better=True),
    "predict_s": Metric(
        "predict s", "predict (s)", lambda r: float(sum(r.times.get("predict") or [])), lower_is_better=True
    ),
    "peak_mb": Metric("peak MiB", "peak (MiB)", _peak_megabytes, lower_is_better=True),
}
"""Metrics by the name that ``--metric`` takes."""


@dataclass(frozen=True)
class Cell:
    """Mean and standard error over seeds.

    Parameters
    ----------
    mean : float
        Mean.
    error : float or None
        Standard error (sample deviation over root n); None for a single run.
    n : int
        Runs.
    rank : int
        1 for best in its column, 2 for second, 0 otherwise; equal at the printed precision is equal rank.
    """

    mean: float
    error: float | None
    n: int
    rank: int = 0


@dataclass(frozen=True)
class Column:
    """A data set, a protocol and a metric."""

    dataset: str
    protocol: str
    metric: Metric


@dataclass(frozen=True)
class Comparison:
    """A table and everything that a reader must know about it.

    Parameters
    ----------
    rows : list of str
        Method labels, with the options that tell apart what would otherwise have one name.
    columns : list of Column
        What stands above.
    cells : list of list of Cell or None
        ``cells[i][j]``; None where there is no finished run.
    notes : list of str
        Failed runs, uneven numbers of seeds, records left out, ...
    """

    rows: list[str]
    columns: list[Column]
    cells: list[list[Cell | None]]
    notes: list[str]


def compare(records: Iterable[RunRecord], metrics: Sequence[str] = ("a_last", "a_avg")) -> Comparison:
    """Aggregate records over seeds.

    Records count as the same method only if name, label and all options (but for the seed) are equal, as the
    same data only if contents are, and as the same protocol only if all its settings are. What differs gets a
    row or column of its own, named by the difference; nothing is averaged silently.

    Parameters
    ----------
    records : iterable of RunRecord
        Of any status; only finished ones enter means.
    metrics : sequence of str
        Keys of :data:`METRICS`.

    Returns
    -------
    Comparison
    """
    for metric in metrics:
        if metric not in METRICS:
            raise UnknownNameError(
                f"metric must be one of {', '.join(METRICS)}, got {metric!r}; nearest: {nearest(metric, METRICS)}"
            )
    everything = list(records)
    unique, notes = _deduplicate(everything)
    finished = [record for record in unique if record.status == "ok"]
    rows = _titles([_method_key(r) for r in finished])
    data = _titles([_dataset_key(r) for r in finished])
    protocols = _titles([_protocol_key(r) for r in finished])
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for record in finished:
        key = (
            _key_text(_method_key(record)),
            _key_text(_dataset_key(record)),
            _key_text(_protocol_key(record)),
        )
        groups.setdefault(key, []).append(record)
    columns = [(d, p, m) for d in data for p in protocols for m in metrics if any((r, d, p) in groups for r in rows)]
    cells = [[_cell(groups.get((r, d, p), []), METRICS[m]) for d, p, m in columns] for r in rows]
    notes += _seed_notes(groups, rows, data, protocols) + _status_notes(unique) + _version_notes(finished)
    return Comparison(
        rows=list(rows.values()),
        columns=[Column(data[d], protocols[p], METRICS[m]) for d, p, m in columns],
        cells=_ranked(cells, [METRICS[m] for _, _, m in columns]),
        notes=notes,
    )


# -- what counts as the same ----------------------------------------------------------------------------

Key = tuple[str, dict[str, Any]]
"""A name for people and the settings that must agree."""


def _method_key(record: RunRecord) -> Key:
    options = dict(record.options)
    if options.get("random_state") == record.seed:
        del options["random_state"]  # it follows the run's seed, which is what the mean is over
    return record.label, {"method": record.method, **options}


def _dataset_key(record: RunRecord) -> Key:
    data = record.dataset
    return str(data.get("label", data["name"])), {
        "name": data["name"],
        "fingerprint": data.get("fingerprint"),
    }


def _protocol_key(record: RunRecord) -> Key:
    settings = {key: value for key, value in record.protocol.items() if key not in ("name", "earlier_seeds")}
    return record.protocol["name"], settings


def _key_text(key: Key) -> str:
    return json.dumps(key, sort_keys=True, default=str)


def _titles(keys: Sequence[Key]) -> dict[str, str]:
    """Return a title for each distinct key, in order; equal names get the settings in which they differ."""
    distinct = {_key_text(key): key for key in keys}
    names = Counter(name for name, _ in distinct.values())
    titles = {}
    for text, (name, settings) in distinct.items():
        if names[name] == 1:
            titles[text] = name
            continue
        rivals = [other for rival, other in distinct.values() if rival == name]
        differing = [
            item
            for item in dict.fromkeys(item for rival in rivals for item in rival)
            if len({json.dumps(rival.get(item), sort_keys=True, default=str) for rival in rivals}) > 1
        ]
        shown = ", ".join(f"{item}={settings.get(item)}" for item in differing)
        titles[text] = f"{name} ({shown})"
    return titles


def _deduplicate(records: list[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Keep one record per run: a finished one if there is any, then the latest."""
    best: dict[str, RunRecord] = {}
    for record in records:
        rival = best.get(record.run_id)
        if rival is None or (record.status == "ok", record.ended) > (rival.status == "ok", rival.ended):
            best[record.run_id] = record
    copies = len(records) - len(best)
    note = f"{copies} further records of the same runs were left out; the latest of each counts"
    return list(best.values()), [note] if copies else []


# -- cells ----------------------------------------------------------------------------------------------


def _cell(records: list[RunRecord], metric: Metric) -> Cell | None:
    read = [metric.read(record) for record in records]
    values = [value for value in read if value is not None]
    if not values:
        return None
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Cell(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Cell(mean, math.sqrt(variance / n), n)


def _ranked(cells: list[list[Cell | None]], metrics: list[Metric]) -> list[list[Cell | None]]:
    """Mark best and second of every column; with a single row there is nothing to mark."""
    ranked = [list(row) for row in cells]
    for j, metric in enumerate(metrics):
        column = [row[j] for row in cells]
        values = {round(cell.mean, 2) for cell in column if cell is not None}
        best = sorted(values, reverse=not metric.lower_is_better)[:2]
        if sum(cell is not None for cell in column) < 2:
            continue
        for i, cell in enumerate(column):
            if cell is not None and round(cell.mean, 2) in best:
                ranked[i][j] = Cell(cell.mean, cell.error, cell.n, 1 + best.index(round(cell.mean, 2)))
    return ranked


# -- notes ----------------------------------------------------------------------------------------------


def _seed_notes(
    groups: dict[tuple[str, str, str], list[RunRecord]],
    rows: dict[str, str],
    data: dict[str, str],
    protocols: dict[str, str],
) -> list[str]:
    """Say where a mean is over other seeds than the rest of its column."""
    notes = []
    for d in data:
        for p in protocols:
            seeds = {r: sorted(run.seed for run in groups[r, d, p]) for r in rows if (r, d, p) in groups}
            if not seeds:
                continue
            full = max(seeds.values(), key=len)
            notes += [
                f"{rows[r]}, {data[d]}, {protocols[p]}: seeds {found} where others have {full}"
                for r, found in seeds.items()
                if found != full
            ]
            notes += [
                f"{rows[r]}, {data[d]}, {protocols[p]}: a seed counts twice in {found}"
                for r, found in seeds.items()
                if len(set(found)) != len(found)
            ]
    return notes


def _status_notes(records: list[RunRecord]) -> list[str]:
    """Name every run that did not finish."""
    notes = []
    for record in records:
        if record.status != "ok":
            data = record.dataset.get("label", record.dataset["name"])
            where = f"{record.label}, {data}, {record.protocol['name']}, seed {record.seed}"
            why = f" ({record.error.get('type')}: {record.error.get('message', '')})" if record.error else ""
            notes.append(f"{record.status}, not in the table: {where}{why}")
    return notes


def _version_notes(records: list[RunRecord]) -> list[str]:
    found = sorted({str(record.versions.get("evergrow")) for record in records})
    return [f"records of several evergrow versions: {', '.join(found)}"] if len(found) > 1 else []
