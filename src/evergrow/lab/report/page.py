"""The page: one HTML file with everything inside, made from a template."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any

from evergrow.core.optional import require
from evergrow.lab.report.collect import RecordSet
from evergrow.lab.report.contents import Figure, NotRun, Section, Table
from evergrow.lab.report.panels import inline
from evergrow.lab.report.published import load_published
from evergrow.lab.report.styles import colour_variables
from evergrow.lab.tables import Cell, Column, Comparison, Record, dataset_label, number


@dataclass(frozen=True)
class Heading:
    """A cell of a table's head that spans equal neighbours."""

    text: str
    span: int


def render_page(title: str, record_set: RecordSet, sections: Sequence[Section]) -> str:
    """Return the page as text.

    Parameters
    ----------
    title : str
        Of the page.
    record_set : RecordSet
        Records behind it.
    sections : sequence of Section
        Its parts, in order.

    Returns
    -------
    str
        HTML that needs no other file.
    """
    jinja2 = require("jinja2", extra="report", purpose="writing the page")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["symbols"] = lambda text: jinja2.utils.markupsafe.Markup(symbols(text))
    template = environment.from_string(_text("page.html.jinja"))
    notes = page_notes(record_set, sections)
    return str(
        template.render(
            title=title,
            facts=facts(record_set),
            sections=[section for section in sections if section.parts],
            missing=missing_entries(sections),
            left_out=record_set.left_out,
            notes=notes,
            source=load_published(),
            colours=colour_variables(),
            css=jinja2.utils.markupsafe.Markup(_text("page.css")),
            script=jinja2.utils.markupsafe.Markup(_text("page.js")),
            svg=lambda panel: jinja2.utils.markupsafe.Markup(inline(panel)),
            is_figure=lambda part: isinstance(part, Figure),
            heads=heads,
            cells=cells,
        )
    )


def _text(name: str) -> str:
    return resources.files("evergrow.lab.report").joinpath(name).read_text(encoding="utf-8")


def symbols(text: str) -> str:
    """Return text as HTML with the paper's symbols set properly.

    Examples
    --------
    >>> from evergrow.lab.report.page import symbols
    >>> symbols("A_last & B_max <1>")
    '<i>A</i><sub>last</sub> &amp; <i>B</i><sub>max</sub> &lt;1&gt;'
    """
    text = escape(text, quote=False)
    text = re.sub(r"\b([ABF])_(last|avg|max|within)\b", r"<i>\1</i><sub>\2</sub>", text)
    return text.replace("‖F", "‖<sub>F</sub>")


def facts(record_set: RecordSet) -> list[tuple[str, str]]:
    """Return the few numbers and names that stand at the top of the page."""
    runs, analyses = record_set.runs, record_set.analyses
    records: list[Record] = [*runs, *analyses]
    names = sorted({dataset_label(record) for record in records})
    methods = {record.method for record in records}
    seeds = {record.seed for record in records}
    return [
        (f"{len(runs):,}", "finished runs"),
        (f"{len(analyses):,}", "analyses"),
        (f"{len(methods):,}", "methods"),
        (f"{len(seeds):,}", "seeds"),
        (", ".join(names), "data sets" if len(names) != 1 else "data set"),
    ]


def page_notes(record_set: RecordSet, sections: Sequence[Section]) -> list[str]:
    """Return all notes about data, each once."""
    found = list(record_set.notes)
    for section in sections:
        for part in section.parts:
            found += part.notes if isinstance(part, Figure) else part.comparison.notes
    # The notes on all records say how many are of which version; tables need not repeat it.
    several = [note for note in found if note.startswith("records of several evergrow versions")][1:]
    return [note for note in dict.fromkeys(found) if note not in several]


def missing_entries(sections: Sequence[Section]) -> list[NotRun]:
    """Return everything that was not run."""
    return [entry for section in sections for entry in section.missing]


def heads(comparison: Comparison) -> list[list[Heading]]:
    """Return the rows of a table's head; a level that says nothing is left away."""
    levels: list[Callable[[Column], tuple[str, ...]]] = [
        lambda column: (column.dataset,),
        lambda column: (column.dataset, column.protocol),
    ]
    rows = []
    for key in levels:
        row = [Heading(names[-1], len(list(group))) for names, group in groupby(comparison.columns, key)]
        if any(heading.text for heading in row):
            rows.append(row)
    rows.append([Heading(column.metric.title, 1) for column in comparison.columns])
    return rows


def cells(comparison: Comparison, index: int) -> list[dict[str, Any]]:
    """Return the cells of a row for the template: value, error, rank and whether a group begins."""
    found = []
    previous: tuple[str, str] | None = None
    for cell, column in zip(comparison.cells[index], comparison.columns):
        group = (column.dataset, column.protocol)
        found.append({**_cell(cell, column), "first": previous is not None and group != previous})
        previous = group
    return found


def _cell(cell: Cell | None, column: Column) -> dict[str, Any]:
    value, _, error = number(cell, column.metric).partition(" ± ")
    return {
        "value": "–" if cell is None else value,
        "error": error,
        "rank": cell.rank if cell else 0,
        "n": cell.n if cell else 0,
    }


def table_parts(sections: Sequence[Section]) -> list[Table]:
    """Return every table of the page."""
    return [part for section in sections for part in section.parts if isinstance(part, Table)]


def figure_parts(sections: Sequence[Section]) -> list[Figure]:
    """Return every figure of the page."""
    return [part for section in sections for part in section.parts if isinstance(part, Figure)]
