"""The parts of a report: tables, figures, sections, and notes on results that were not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evergrow.lab.report.panels import Panel
from evergrow.lab.tables import Comparison

MAX_PANELS = 24
"""Panels that a figure draws at most; the tables hold everything."""


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Parameters
    ----------
    name : str
        File name without ending.
    title : str
        Heading.
    caption : str
        Sentence below it.
    comparison : Comparison
        Rows, columns and cells.
    published : bool
        Whether all of it is quoted from the paper.
    """

    name: str
    title: str
    caption: str
    comparison: Comparison
    published: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Parameters
    ----------
    name : str
        Name within the page.
    title : str
        Heading.
    caption : str
        Sentence below it.
    panels : list of Panel
        Its drawings.
    notes : list of str
        Remarks on the data behind it.
    small : bool
        Whether panels are half as wide as usual.
    """

    name: str
    title: str
    caption: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)
    small: bool = False


@dataclass(frozen=True)
class NotRun:
    """Something that the paper has and the records do not.

    Parameters
    ----------
    title : str
        Name of the result.
    why : str
        Which records would supply it.
    command : str
        Makes those records; empty where nothing can yet.
    """

    title: str
    why: str
    command: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: one result of the paper.

    Parameters
    ----------
    name : str
        Anchor.
    title : str
        Heading.
    paper : str
        The paper's table or figure that it corresponds to; empty for those of our own.
    parts : list of Table or Figure
        Tables and figures, measured and published.
    missing : list of NotRun
        Results that no record holds.
    """

    name: str
    title: str
    paper: str
    parts: list[Table | Figure]
    missing: list[NotRun]


def distinct_names(sections: Sequence[Section]) -> list[Section]:
    """Return sections in which no two tables and no two panels would be the same file.

    Titles become file names by dropping what file systems dislike, so different titles may come out alike.
    """
    seen: Counter[str] = Counter()

    def fresh(kind: str, name: str) -> str:
        seen[f"{kind}/{name}"] += 1
        count = seen[f"{kind}/{name}"]
        return name if count == 1 else fresh(kind, f"{name}-{count}")

    def renamed(part: Table | Figure) -> Table | Figure:
        if isinstance(part, Table):
            return replace(part, name=fresh("table", part.name))
        return replace(part, panels=[replace(panel, name=fresh("panel", panel.name)) for panel in part.panels])

    return [replace(section, parts=[renamed(part) for part in section.parts]) for section in sections]


def curve_and_error(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float] | None]:
    """Return mean and standard error of curves of one length, point by point."""
    array = np.asarray(curves, dtype=float)
    error = (array.std(axis=0, ddof=1) / np.sqrt(len(array))).tolist() if len(array) > 1 else None
    return array.mean(axis=0).tolist(), error


def limited(panels: list[Panel], total: int, notes: list[str]) -> list[Panel]:
    """Note how many panels were not drawn."""
    if total > len(panels):
        notes.append(f"{total - len(panels)} further panels are not drawn; the tables hold their numbers")
    return panels


def plain_label(title: str) -> str:
    """Return a title without the names of options that the symbols of the paper say better.

    Examples
    --------
    >>> from evergrow.lab.report.contents import plain_label
    >>> plain_label("MGSM (scales=auto)"), plain_label("MGSM (block_size=10, n_candidates=5)")
    ('MGSM (ξ auto)', 'MGSM (s=10, B_max=5)')
    """
    for option, symbol in (("scales=", "ξ "), ("block_size=", "s="), ("n_candidates=", "B_max="), ("n_units=", "L=")):
        title = title.replace(option, symbol)
    return title.replace("alpha=", "λ=")
