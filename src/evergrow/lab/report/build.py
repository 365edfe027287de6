"""The report: its sections in order, and the page, figures and tables that they are written to."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.files import atomic_path
from evergrow.core.optional import require
from evergrow.lab.report import mechanism_sections as mechanism
from evergrow.lab.report import run_sections as runs
from evergrow.lab.report.contents import (
    TEXTS,
    Figure,
    NotRun,
    RecordSet,
    Section,
    Table,
    collect,
)
from evergrow.lab.report.plots import FSA
from evergrow.lab.report.published import (
    known_backbone,
    known_dataset,
    load_published,
    published_comparison,
)
from evergrow.lab.tables import html_table, render

VIT, IMAGES = (
    f"evergrow lab run experiments/{name}.toml"
    for name in ("paper_vit", "cifar100_vit_small")
)

SECTIONS: tuple[Section, ...] = tuple(
    Section(
        entry["title"],
        partial(
            {**vars(runs), **vars(mechanism)}[entry["draw"]], **entry.get("with", {})
        ),
        entry["why"],
        entry["command"],
        entry.get("published", ""),
    )
    for entry in TEXTS["sections"]
)
"""Every result table and figure of the paper, and a few of our own, in the order of the page."""


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Parameters
    ----------
    page : Path
        The page.
    figures, tables : list of str
        Names of the panels and tables, files without their endings.
    not_run : list of NotRun
        Results of the paper that no record holds.
    left_out : dict of str to str
        Files that could not be used, and why.
    notes : list of str
        Remarks on the data: copies, failed runs, uneven seeds.
    """

    page: Path
    figures: list[str]
    tables: list[str]
    not_run: list[NotRun]
    left_out: dict[str, str]
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """0 if every file that was found could be used, 1 otherwise."""
        return 1 if self.left_out else 0


def build_report(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    title: str = "Evergrow benchmark report",
) -> Report:
    """Draw every table and figure that records allow, and name the results that no record holds.

    The same records give the same bytes. Files are written whole, the page last; those
    of an earlier report in the same folder are replaced or removed, and no other file
    is touched.

    Parameters
    ----------
    paths : path-like or sequence of path-like
        Record files, or folders that are searched at any depth.
    output : path-like
        Folder for ``index.html``, ``figures/`` and ``tables/``; made if need be.
    title : str
        Heading of the page.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        If there is no usable record, or the folder cannot be written.
    ParameterError
        If ``output`` is a file, or a folder with a page that no report wrote.
    MissingExtraError
        Without matplotlib, pandas or jinja2.
    """
    for module, purpose in (
        ("matplotlib", "drawing figures"),
        ("jinja2", "writing the page"),
        ("pandas", "tables"),
    ):
        require(module, extra="lab", purpose=purpose)
    folder = Path(output)
    earlier = _earlier(folder)
    record_set = collect(
        [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    )
    parts = {section: list(section.build(record_set)) for section in SECTIONS}
    missing = {
        section: _missing(section, record_set, bool(found))
        for section, found in parts.items()
    }
    for section, found in parts.items():
        if section.published:
            found.append(_published_table(section.published))
    parts = _distinct(parts)
    every = [part for found in parts.values() for part in found]
    panels = [
        panel for part in every if isinstance(part, Figure) for panel in part.panels
    ]
    tables = [part for part in every if isinstance(part, Table)]
    files = {f"figures/{panel.name}.svg": panel.svg for panel in panels}
    files |= {f"figures/{panel.name}.pdf": panel.pdf for panel in panels}
    for ending, format in (("md", "markdown"), ("tex", "latex"), ("csv", "csv")):
        files |= {
            f"tables/{table.name}.{ending}": _encoded(render(table.comparison, format))
            for table in tables
        }
    notes = _notes(record_set, every)
    files["index.html"] = _encoded(_page(title, record_set, parts, missing, notes))
    _write(folder, files, earlier)
    not_run = [entry for entries in missing.values() for entry in entries]
    names = [panel.name for panel in panels], [table.name for table in tables]
    return Report(folder / "index.html", *names, not_run, record_set.left_out, notes)


def _published_table(name: str) -> Table:
    table = load_published()["tables"][name]
    heading, _, rest = table["caption"].partition(". ")
    caption = f"{rest} After ±: {table['error']}. Backbone {table['backbone']}; {table['label']} in the paper.".strip()
    title = f"Published: {heading.rstrip('.')}"
    return Table(
        f"published-{name}", title, caption, published_comparison(name), published=True
    )


def _missing(section: Section, record_set: RecordSet, anything: bool) -> list[NotRun]:
    """Return what the paper has in a section and the records do not."""
    if anything:
        missing = []
    else:
        missing = [NotRun(section.title, section.why, section.command)]
    if section.title == "Accuracy":
        main = [
            run
            for run in record_set.runs
            if known_backbone(run.dataset) == "ViT-B/16-IN21K"
        ]
        done = {known_dataset(run.dataset) for run in main}
        datasets = ("ImageNet-R", "ImageNet-A", "ObjectNet", "OmniBenchmark")
        if absent := [name for name in datasets if name not in done]:
            why = 'Records of runs on folders of these images, with backbone = "vit_base_patch16_224.augreg_in21k".'
            missing.append(NotRun(f"{', '.join(absent)} with ViT-B/16-IN21K", why, VIT))
        methods = {run.method.removesuffix(FSA) for run in record_set.runs}
        trained = ("coda-prompt", "sd-lora", "ease", "apt", "joint-ft")
        if lacking := [name for name in trained if name not in methods]:
            why = "Records of runs of these methods, of a spec on images: they train a network."
            missing.append(NotRun(", ".join(lacking), why, IMAGES))
    if (
        section.title == "Gain over the joint linear probe"
        and anything
        and not any(map(runs.adapted, record_set.runs))
    ):
        why = "Records of runs of methods such as ranpac+fsa and scl-mgsm+fsa, of a spec on images."
        missing.append(NotRun("Gain with first-session adaptation (FSA)", why, IMAGES))
    return missing


def _distinct(
    parts: dict[Section, list[Table | Figure]],
) -> dict[Section, list[Table | Figure]]:
    """Return parts in which no two tables and no two panels would be the same file: titles may come out alike."""
    seen: set[tuple[type, str]] = set()

    def fresh(item: Any) -> Any:
        name = item.name
        count = 1
        while (type(item), name) in seen:
            count += 1
            name = f"{item.name}-{count}"
        seen.add((type(item), name))
        return replace(item, name=name)

    return {
        section: [
            fresh(part)
            if isinstance(part, Table)
            else replace(part, panels=[fresh(panel) for panel in part.panels])
            for part in found
        ]
        for section, found in parts.items()
    }


def _notes(record_set: RecordSet, parts: Sequence[Table | Figure]) -> list[str]:
    """Return all notes about data, each once."""
    own = [
        note
        for part in parts
        for note in (part.notes if isinstance(part, Figure) else part.comparison.notes)
    ]
    # The notes on all records say how many are of which version; tables need not repeat
    # it.
    own = [
        note
        for note in own
        if not note.startswith("records of several evergrow versions")
    ]
    return list(dict.fromkeys([*record_set.notes, *own]))


# -- the page --------------------------------------------------------------------------


def _page(
    title: str,
    record_set: RecordSet,
    parts: dict[Section, list[Table | Figure]],
    missing: dict[Section, list[NotRun]],
    notes: list[str],
) -> str:
    jinja2 = require("jinja2", extra="lab", purpose="writing the page")
    markup = jinja2.utils.markupsafe.Markup
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["symbols"] = lambda text: markup(symbols(text))
    environment.filters["anchor"] = lambda text: re.sub(r"\W+", "-", text.lower())
    records = [*record_set.runs, *record_set.analyses]
    facts = {
        "finished runs": f"{len(record_set.runs):,}",
        "analyses": f"{len(record_set.analyses):,}",
        "methods": len({record.method for record in records}),
        "seeds": len({record.seed for record in records}),
        "data sets": ", ".join(sorted({record.dataset_label for record in records})),
    }
    text: str = environment.from_string(_text("page.html.jinja")).render(
        title=title,
        facts=facts,
        sections=[
            (section, found, missing[section])
            for section, found in parts.items()
            if found
        ],
        missing=[entry for entries in missing.values() for entry in entries],
        left_out=record_set.left_out,
        notes=notes,
        source=load_published()["source"],
        css=markup(_text("page.css")),
        image=lambda panel: (
            f"data:image/svg+xml;base64,{base64.b64encode(panel.svg).decode()}"
        ),
        table=lambda part: markup(html_table(part.comparison, symbols)),
        is_figure=lambda part: isinstance(part, Figure),
    )
    return text


def _text(name: str) -> str:
    return (
        resources.files("evergrow.lab.report")
        .joinpath(name)
        .read_text(encoding="utf-8")
    )


def symbols(text: str) -> str:
    """Return text as HTML with the paper's symbols set properly.

    Examples
    --------
    >>> from evergrow.lab.report.build import symbols
    >>> symbols("A_last & B_max <1>")
    '<i>A</i><sub>last</sub> &amp; <i>B</i><sub>max</sub> &lt;1&gt;'
    """
    text = re.sub(
        r"\b([ABF])_(last|avg|max|within)\b",
        r"<i>\1</i><sub>\2</sub>",
        escape(text, quote=False),
    )
    return text.replace("‖F", "‖<sub>F</sub>")


# -- files -----------------------------------------------------------------------------

MANIFEST = ".evergrow-report"
"""File that lists the files of a report, so that the next report can replace them."""


def _encoded(text: str) -> bytes:
    """Return a text as UTF-8; what cannot be written so, as in file names of other encodings, becomes escapes."""
    return text.encode("utf-8", "backslashreplace")


def _earlier(folder: Path) -> list[str]:
    """Return the files of an earlier report; refuse a folder that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise ParameterError(f"{folder} is a file; the report needs a folder")
    try:
        names = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        if (folder / "index.html").exists():
            raise ParameterError(
                f"{folder} has an index.html that no report wrote: choose another folder"
            ) from None
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(
            f"{folder / MANIFEST} is damaged: choose another folder, or remove it"
        ) from error
    # Only what a report can have written: never a path that leads out of the folder.
    return [
        name
        for name in names
        if re.fullmatch(r"(figures|tables)/[^/\\]+|index\.html", str(name))
    ]


def _write(folder: Path, files: dict[str, bytes], earlier: Sequence[str]) -> None:
    """Write all files, the page last, and remove those of an earlier report that this one does not have."""
    try:
        for part in ("figures", "tables"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        # The list of files comes first: what is interrupted can still be replaced.
        listed = (
            json.dumps({"files": sorted({*files, *earlier})}, indent=1) + "\n"
        ).encode()
        for name, contents in {MANIFEST: listed, **files}.items():
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(contents)
        for name in set(earlier) - set(files):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"The report cannot be written to {folder}: {error}"
        ) from error
