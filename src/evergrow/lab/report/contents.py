"""What a report is made of: the records behind it, its sections, tables and figures."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import InputError
from evergrow.core.escaping import printable
from evergrow.lab.records import Record, read_records, scrub
from evergrow.lab.report.plots import Panel, place_of, style_of
from evergrow.lab.tables import (
    ResultTable,
    latest_per_run,
    unfinished_notes,
    with_titles,
)

TEXTS: dict[str, Any] = json.loads(
    Path(__file__).with_name("texts.json").read_text(encoding="utf-8")
)
"""The sections of the page in order, and the words of its figures and tables."""

CAPTIONS: dict[str, str] = TEXTS["captions"]
MEASURE_TEXTS: dict[str, dict[str, str]] = TEXTS["measures"]


@dataclass(frozen=True)
class RecordSet:
    """All records that a report is made from.

    Parameters
    ----------
    folders : dict of str to list of Record
        Finished runs by the name of their folder, in the order of tables; runs of one
        folder are compared.
    analyses : list of Record
        Finished analyses.
    left_out : dict of str to str
        Files that are no usable record, and why.
    notes : list of str
        Copies, failed runs and whatever else a reader must know.
    """

    folders: dict[str, list[Record]]
    analyses: list[Record]
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[Record]:
        """All finished runs."""
        return [run for runs in self.folders.values() for run in runs]

    def analysed(self, *names: str) -> list[Record]:
        """Return the analyses of these names."""
        return [record for record in self.analyses if record.analysis in names]


@dataclass(frozen=True)
class Table:
    """A table of the report: file name without ending, heading, sentence below it, and its numbers."""

    name: str
    title: str
    caption: str
    comparison: ResultTable
    published: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of the report: heading, sentence below it, drawings, and remarks on the data behind them."""

    title: str
    caption: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """One result of the paper, or one of our own.

    Parameters
    ----------
    title : str
        Heading.
    build : callable
        Makes tables and figures from a record set; none where it holds no records for
        them.
    why, command : str
        Which records would supply it, and what makes them.
    published : str
        The table of the paper that stands below, by its name in the data file.
    """

    title: str
    build: Callable[[RecordSet], Iterable[Table | Figure]]
    why: str
    command: str
    published: str = ""


@dataclass(frozen=True)
class NotRun:
    """Something that the paper has and the records do not: what, which records would supply it, and the command."""

    title: str
    why: str
    command: str


def collect(paths: Sequence[str | os.PathLike[str]]) -> RecordSet:
    """Read every record of files and folders, skipping every file that is none.

    Parameters
    ----------
    paths : sequence of path-like
        Record files, or folders that are searched at any depth.

    Raises
    ------
    InputError
        If there is no usable record at all.
    """
    records, problems = read_records(paths)
    left_out = {
        path.name: scrub(reason.replace(str(path), path.name))
        for path, reason in problems.items()
    }
    if not records:
        first = ""
        if left_out:
            first = f"; the first problem: {next(iter(left_out.values()))}"
        raise InputError(f"No record in {', '.join(map(str, paths))}{first}")
    notes: list[str] = []
    by_folder: dict[Path, list[Record]] = {}
    for path, record in records.items():
        by_folder.setdefault(Path() if record.analysis else path.parent, []).append(
            record
        )
    last = Counter(folder.name for folder in by_folder)
    found: dict[str, list[Record]] = {}
    for folder, several in by_folder.items():
        name = printable(
            folder.name
            if last[folder.name] == 1
            else f"{folder.parent.name}/{folder.name}"
        )
        unique, copies = latest_per_run(several)
        if copies:
            notes.append(
                f"{name}: {copies} further records of the same runs; the latest of each counts".lstrip(
                    ": "
                )
            )
        notes += [
            f"{name}: {note}".lstrip(": ")
            for note in unfinished_notes(unique, "in no figure or table")
        ]
        found[name] = sorted(
            (record for record in unique if record.status == "ok"), key=_order
        )
    versions = Counter(
        str(record.versions.get("evergrow"))
        for several in found.values()
        for record in several
    )
    if len(versions) > 1:
        listed = ", ".join(
            f"{version} ({n})" for version, n in sorted(versions.items())
        )
        notes.append(f"records of several evergrow versions: {listed}")
    analyses = found.pop("", [])
    return RecordSet(found, analyses, left_out, notes)


def _order(record: Record) -> tuple[Any, ...]:
    """Return the place of a record: methods as the paper has them, then widths, data, protocols and seeds."""
    sizes = [
        record.options.get(key) for key in ("n_units", "block_size", "n_candidates")
    ]
    increment = record.protocol.get("increment")
    return (
        place_of(record.method),
        record.method,
        record.label.partition(" (")[0],
        [float(size) if isinstance(size, (int, float)) else -1.0 for size in sizes],
        record.label,
        record.dataset_label,
        increment if isinstance(increment, (int, float)) else 0,
        record.protocol["name"],
        record.seed,
        json.dumps(record.options, sort_keys=True, default=str),
        record.run_id,
    )


@dataclass(frozen=True)
class Group:
    """Records of one data set under one protocol.

    Parameters
    ----------
    title : str
        Data set and protocol.
    rows : dict of str to list of Record
        Records over seeds by the title of their method.
    """

    title: str
    rows: dict[str, list[Record]]

    def styled(self) -> Iterator[tuple[str, dict[str, Any], list[Record]]]:
        """Yield title, style and records of every method; further settings of a method get other dashes."""
        seen: Counter[str] = Counter()
        for title, records in self.rows.items():
            # Unguided units of the guided method count as random.
            unguided = (
                records[0].analysis
                and records[0].options.get("projection") == "gaussian"
            )
            method = "ri" if unguided else records[0].method
            yield title, style_of(method, seen[method]), records
            seen[method] += 1


def groups(records: Sequence[Record]) -> list[Group]:
    """Return finished records by data set and protocol, and within them by method."""
    if not records:
        return []
    frame = with_titles(records).assign(
        method=lambda frame: frame.method.map(plain_label)
    )
    return [
        Group(
            f"{dataset}, {protocol}",
            {
                title: list(rows.record)
                for title, rows in part.groupby("method", sort=False)
            },
        )
        for (dataset, protocol), part in frame.groupby(
            ["dataset", "protocol"], sort=False
        )
    ]


def curve_and_error(
    curves: Sequence[Sequence[float]],
) -> tuple[list[float], list[float] | None]:
    """Return mean and standard error of curves of one length, point by point."""
    array = np.asarray(curves, dtype=float)
    error = None
    if len(array) > 1:
        error = (array.std(axis=0, ddof=1) / np.sqrt(len(array))).tolist()
    return array.mean(axis=0).tolist(), error


def plain_label(title: str) -> str:
    """Return a title with the symbols of the paper in place of the names of options.

    Examples
    --------
    >>> from evergrow.lab.report.contents import plain_label
    >>> plain_label("MGSM (scales=auto)"), plain_label("MGSM (block_size=10, n_candidates=5)")
    ('MGSM (ξ auto)', 'MGSM (s=10, B_max=5)')
    """
    for option, symbol in (
        ("scales=", "ξ "),
        ("block_size=", "s="),
        ("n_candidates=", "B_max="),
        ("n_units=", "L="),
    ):
        title = title.replace(option, symbol)
    return title.replace("alpha=", "λ=")
