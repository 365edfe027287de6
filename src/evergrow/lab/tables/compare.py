"""From records to a comparison: methods as rows, data set x protocol x metric as columns, mean +- error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from evergrow.core.errors import UnknownNameError
from evergrow.core.escaping import printable
from evergrow.core.registry import nearest
from evergrow.core.wording import setting
from evergrow.lab.records import AnalysisRecord
from evergrow.lab.tables.metric import METRICS, Metric, Record, mean_and_error
from evergrow.lab.tables.selection import JOINT, R, dataset_label, one_per_run, unfinished_notes


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
    """A table of means with the notes that belong to it.

    Parameters
    ----------
    rows : list of str
        Method labels, with the options in which methods of one label differ.
    columns : list of Column
        Data set, protocol and metric of each column.
    cells : list of list of Cell or None
        ``cells[i][j]``; None where there is no finished run.
    notes : list of str
        Failed runs, uneven numbers of seeds, missing metrics, one name for several settings, ...
    quoted : tuple of str
        Rows that are quoted from elsewhere, not measured.
    """

    rows: list[str]
    columns: list[Column]
    cells: list[list[Cell | None]]
    notes: list[str]
    quoted: tuple[str, ...] = ()


def compare(records: Iterable[Record], metrics: Sequence[str] = ("a_last", "a_avg")) -> Comparison:
    """Aggregate records over seeds.

    Records count as the same method only if name, label and all options (but for the seed) are equal, as the
    same data only if contents are, and as the same protocol only if all its settings are. What differs gets a
    row or column of its own, named by the difference; nothing is averaged silently.

    Parameters
    ----------
    records : iterable of RunRecord or AnalysisRecord
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
                f"{setting('metric')} must be one of {', '.join(METRICS)}, got {metric!r}; "
                f"nearest: {nearest(metric, METRICS)}"
            )
    unique, copies = one_per_run(records)
    notes = [f"{copies} further records of the same runs were left out; the latest of each counts"] if copies else []
    finished = [record for record in unique if record.status == "ok"]
    rows, data, protocols, groups = grouped(finished)
    columns = [(d, p, m) for d in data for p in protocols for m in metrics if any((r, d, p) in groups for r in rows)]
    cells = [[_cell(groups.get((r, d, p), []), METRICS[m]) for d, p, m in columns] for r in rows]
    notes += _name_notes(rows, data, protocols) + _seed_notes(groups, rows, data, protocols)
    notes += _missing_notes(groups, (rows, data, protocols), [METRICS[m] for m in metrics])
    notes += unfinished_notes(unique, "not in the table") + _version_notes(finished)
    return Comparison(
        rows=list(rows.values()),
        columns=[Column(data[d], protocols[p], METRICS[m]) for d, p, m in columns],
        cells=_ranked(cells, [METRICS[m] for _, _, m in columns], [_is_joint(groups, row) for row in rows]),
        notes=notes,
    )


Groups: TypeAlias = dict[tuple[str, str, str], list[R]]


def grouped(records: Iterable[R]) -> tuple[dict[str, str], dict[str, str], dict[str, str], Groups[R]]:
    """Group records that differ in nothing but the seed.

    Parameters
    ----------
    records : iterable of RunRecord or AnalysisRecord
        Finished ones.

    Returns
    -------
    rows, datasets, protocols : dict
        From a key to the title of each distinct method, data set and protocol, in order of appearance.
    groups : dict
        Records by (key of method, key of data set, key of protocol).
    """
    finished = list(records)
    keyed = [(_method_key(r), _dataset_key(r), _protocol_key(r)) for r in finished]
    texts = [(_key_text(method), _key_text(data), _key_text(protocol)) for method, data, protocol in keyed]
    groups: Groups[R] = {}
    for text, record in zip(texts, finished):
        groups.setdefault(text, []).append(record)
    rows, data, protocols = (_titles([key[i] for key in keyed], [text[i] for text in texts]) for i in range(3))
    return rows, data, protocols, groups


# -- what counts as the same ----------------------------------------------------------------------------

Key = tuple[str, dict[str, Any]]
"""A name for people and the settings that must agree."""


def _method_key(record: Record) -> Key:
    options = dict(record.options)
    if options.get("random_state") == record.seed:
        del options["random_state"]  # it follows the run's seed, which is what the mean is over
    analysed = {"analysis": record.analysis, **record.settings} if isinstance(record, AnalysisRecord) else {}
    return record.label, {"method": record.method, **options, **analysed}


def _dataset_key(record: Record) -> Key:
    data = record.dataset
    return dataset_label(record), {"name": data["name"], "fingerprint": data.get("fingerprint")}


def _protocol_key(record: Record) -> Key:
    settings = {key: value for key, value in record.protocol.items() if key not in ("name", "earlier_seeds")}
    return record.protocol["name"], settings


def _key_text(key: Key) -> str:
    return json.dumps(key, sort_keys=True, default=str)


_HOW = ("device", "solver", "dtype", "verbose")
"""Options that say how something is computed; they stay out of titles that are distinct without them."""


def _titles(keys: Sequence[Key], texts: Sequence[str]) -> dict[str, str]:
    """Return a printable title for each distinct key, in order; equal names get the settings in which they differ."""
    distinct = dict(zip(texts, keys))
    names: dict[str, list[str]] = {}
    for text, (name, _) in distinct.items():
        names.setdefault(name, []).append(text)
    titles = dict.fromkeys(distinct, "")
    for name, rivals in names.items():
        titles |= _told_apart(name, {text: distinct[text][1] for text in rivals})
    return {text: printable(title) for text, title in titles.items()}


def _told_apart(name: str, rivals: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return titles of settings that share a name."""
    if len(rivals) == 1:
        return dict.fromkeys(rivals, name)
    differing = [
        item
        for item in dict.fromkeys(item for settings in rivals.values() for item in settings)
        if len({json.dumps(settings.get(item), sort_keys=True, default=str) for settings in rivals.values()}) > 1
    ]
    for shown in ([item for item in differing if item not in _HOW], differing):
        titles = {
            text: f"{name} ({', '.join(f'{item}={settings.get(item)}' for item in shown)})"
            for text, settings in rivals.items()
        }
        if len(set(titles.values())) == len(rivals):
            break
    return titles


# -- cells ----------------------------------------------------------------------------------------------


def _cell(records: list[Record], metric: Metric) -> Cell | None:
    read = [metric.read(record) for record in records]
    values = [value for value in read if value is not None]
    if not values:
        return None
    return Cell(*mean_and_error(values), len(values))


def _is_joint(groups: Groups[Record], row: str) -> bool:
    """Return whether a row is a reference that saw everything at once, and so is no rival of the others."""
    return any(record.method in JOINT for key, records in groups.items() if key[0] == row for record in records[:1])


def _ranked(cells: list[list[Cell | None]], metrics: list[Metric], unranked: list[bool]) -> list[list[Cell | None]]:
    """Mark best and second of every column among the rows that compete; with a single one there is nothing to mark."""
    ranked = [list(row) for row in cells]
    for j, metric in enumerate(metrics):
        column = [None if left_out else row[j] for row, left_out in zip(cells, unranked)]
        values = {round(cell.mean, metric.decimals) for cell in column if cell is not None}
        best = sorted(values, reverse=not metric.lower_is_better)[:2]
        if not metric.ranked or sum(cell is not None for cell in column) < 2:
            continue
        for i, cell in enumerate(column):
            if cell is not None and round(cell.mean, metric.decimals) in best:
                ranked[i][j] = replace(cell, rank=1 + best.index(round(cell.mean, metric.decimals)))
    return ranked


# -- notes ----------------------------------------------------------------------------------------------


def _name_notes(*kinds: dict[str, str]) -> list[str]:
    """Say which names stand for several settings."""
    notes = []
    for titles in kinds:
        names: dict[str, list[str]] = {}
        for text, title in titles.items():
            names.setdefault(json.loads(text)[0], []).append(title)
        notes += [
            f"{name} stands for {len(several)} different settings, shown apart as {'; '.join(several)}"
            for name, several in names.items()
            if len(several) > 1
        ]
    return notes


def _missing_notes(
    groups: Groups[Record], titles: tuple[dict[str, str], dict[str, str], dict[str, str]], metrics: list[Metric]
) -> list[str]:
    """Say where a mean is over fewer runs than there are, because the others lack the metric."""
    rows, data, protocols = titles
    notes = []
    for (r, d, p), records in groups.items():
        for metric in metrics:
            lacking = sorted(record.seed for record in records if metric.read(record) is None)
            if 0 < len(lacking) < len(records):
                where = f"{rows[r]}, {data[d]}, {protocols[p]}"
                notes.append(f"{where}: {metric.title} is missing from seeds {lacking} and is the mean of the others")
    return notes


def _seed_notes(
    groups: Groups[Record],
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


def _version_notes(records: list[Record]) -> list[str]:
    found = sorted({str(record.versions.get("evergrow")) for record in records})
    return [f"records of several evergrow versions: {', '.join(found)}"] if len(found) > 1 else []
