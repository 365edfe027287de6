"""Parts of a report: records, sections, tables and figures."""

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
from evergrow.lab.records import Record, load_records, scrub
from evergrow.lab.report.plots import Panel, rank_of, style_of
from evergrow.lab.tables import (
    ResultTable,
    latest_per_run,
    unfinished_notes,
    with_titles,
)

TEXTS: dict[str, Any] = json.loads(
    Path(__file__).with_name("texts.json").read_text(encoding="utf-8")
)
"""Sections of the page in order, and the texts of figures and tables."""

CAPTIONS: dict[str, str] = TEXTS["captions"]
MEASURE_TEXTS: dict[str, dict[str, str]] = TEXTS["measures"]


@dataclass(frozen=True)
class RecordSet:
    """All records of a report.

    Parameters
    ----------
    folders : dict of str to list of Record
        Finished runs by name of their folder, in the order of tables. Runs of one
        folder are compared.
    analyses : list of Record
        Finished analyses.
    left_out : dict of str to str
        Reasons by unused file.
    notes : list of str
        Notes for the reader, such as copies and failed runs.
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
        """Return the analyses with these names."""
        return [record for record in self.analyses if record.analysis in names]


@dataclass(frozen=True)
class Table:
    """A table: file name without suffix, heading, caption and numbers."""

    name: str
    title: str
    caption: str
    comparison: ResultTable
    published: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure: heading, caption, panels, and notes on the data."""

    title: str
    caption: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A result of the paper, or another one.

    Parameters
    ----------
    title : str
        Heading.
    build : callable
        Creates tables and figures from a record set. It returns none without suitable
        records.
    why, command : str
        The missing records, and the command that creates them.
    published : str
        Name of the paper's table that follows.
    """

    title: str
    build: Callable[[RecordSet], Iterable[Table | Figure]]
    why: str
    command: str
    published: str = ""


@dataclass(frozen=True)
class NotRun:
    """A result of the paper without records: title, missing records and command."""

    title: str
    why: str
    command: str


def collect(paths: Sequence[str | os.PathLike[str]]) -> RecordSet:
    """Read all records in files and folders, skipping other files.

    Parameters
    ----------
    paths : sequence of path-like
        Record files, or folders to search at any depth.

    Raises
    ------
    InputError
        If there is no usable record.
    """
    records, problems = load_records(paths)
    left_out = {
        path.name: scrub(reason.replace(str(path), path.name))
        for path, reason in problems.items()
    }
    if not records:
        message = f"No record in {', '.join(map(str, paths))}"
        if left_out:
            message += f"; the first problem: {next(iter(left_out.values()))}"
        raise InputError(message)
    notes: list[str] = []
    by_folder: dict[Path, list[Record]] = {}
    for path, record in records.items():
        folder = Path() if record.analysis else path.parent
        by_folder.setdefault(folder, []).append(record)
    name_counts = Counter(folder.name for folder in by_folder)
    found: dict[str, list[Record]] = {}
    for folder, several in by_folder.items():
        name = folder.name
        if name_counts[name] > 1:
            name = f"{folder.parent.name}/{name}"
        name = printable(name)
        unique, n_copies = latest_per_run(several)
        own_notes = unfinished_notes(unique, "in no figure or table")
        if n_copies:
            copies = (
                f"{n_copies} further records of the same runs; the latest of each "
                "counts"
            )
            own_notes.insert(0, copies)
        notes += [f"{name}: {note}" if name else note for note in own_notes]
        finished = [record for record in unique if record.status == "ok"]
        found[name] = sorted(finished, key=_order)
    versions = Counter(
        str(record.versions.get("evergrow"))
        for several in found.values()
        for record in several
    )
    if len(versions) > 1:
        counts = sorted(versions.items())
        listed = ", ".join(f"{version} ({n})" for version, n in counts)
        notes.append(f"records of several evergrow versions: {listed}")
    analyses = found.pop("", [])
    return RecordSet(found, analyses, left_out, notes)


def _order(record: Record) -> tuple[Any, ...]:
    """Return the sort key of a record: method, sizes, dataset, protocol, seed."""
    sizes = [
        record.options.get(key) for key in ("n_units", "block_size", "n_candidates")
    ]
    increment = record.protocol.get("increment")
    return (
        rank_of(record.method),
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
    """Records of one dataset under one protocol.

    Parameters
    ----------
    title : str
        Dataset and protocol.
    rows : dict of str to list of Record
        Records over seeds, by title of their method.
    """

    title: str
    rows: dict[str, list[Record]]

    def styled(self) -> Iterator[tuple[str, dict[str, Any], list[Record]]]:
        """Yield title, style and records; settings of one method differ in dashes."""
        seen: Counter[str] = Counter()
        for title, records in self.rows.items():
            # Unguided units of the guided method are drawn as random.
            unguided = (
                records[0].analysis
                and records[0].options.get("projection") == "gaussian"
            )
            method = "ri" if unguided else records[0].method
            yield title, style_of(method, seen[method]), records
            seen[method] += 1


def groups(records: Sequence[Record]) -> list[Group]:
    """Group finished records by dataset and protocol, then by method."""
    if not records:
        return []
    frame = with_titles(records)
    frame["method"] = frame.method.map(plain_label)
    found = []
    for (dataset, protocol), part in frame.groupby(["dataset", "protocol"], sort=False):
        rows = {
            title: list(rows.record)
            for title, rows in part.groupby("method", sort=False)
        }
        found.append(Group(f"{dataset}, {protocol}", rows))
    return found


def curve_and_error(
    curves: Sequence[Sequence[float]],
) -> tuple[list[float], list[float] | None]:
    """Return mean and standard error of curves of equal length, point by point."""
    array = np.asarray(curves, dtype=float)
    error = None
    if len(array) > 1:
        error = (array.std(axis=0, ddof=1) / np.sqrt(len(array))).tolist()
    return array.mean(axis=0).tolist(), error


def plain_label(title: str) -> str:
    """Replace option names in a title by the symbols of the paper.

    Examples
    --------
    >>> from evergrow.lab.report.contents import plain_label
    >>> plain_label("MGSM (scales=auto)")
    'MGSM (ξ auto)'
    >>> plain_label("MGSM (block_size=10, n_candidates=5)")
    'MGSM (s=10, B_max=5)'
    """
    for option, symbol in (
        ("scales=", "ξ "),
        ("block_size=", "s="),
        ("n_candidates=", "B_max="),
        ("n_units=", "L="),
    ):
        title = title.replace(option, symbol)
    return title.replace("alpha=", "λ=")
