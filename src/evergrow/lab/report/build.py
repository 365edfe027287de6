"""Build the report: all sections, written as a page, figures and tables."""

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
from evergrow.core.imports import import_extra
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
from evergrow.lab.report.plots import FSA, Panel
from evergrow.lab.report.published import (
    known_backbone,
    known_dataset,
    load_published,
    published_comparison,
)
from evergrow.lab.tables import html_table, render

VIT = "evergrow lab run experiments/paper_vit.toml"
IMAGES = "evergrow lab run experiments/cifar100_vit_small.toml"

_BUILDERS = {**vars(runs), **vars(mechanism)}

SECTIONS: tuple[Section, ...] = tuple(
    Section(
        title=entry["title"],
        build=partial(_BUILDERS[entry["draw"]], **entry.get("with", {})),
        why=entry["why"],
        command=entry["command"],
        published=entry.get("published", ""),
    )
    for entry in TEXTS["sections"]
)
"""All result tables and figures of the paper and some others, in page order."""


@dataclass(frozen=True)
class Report:
    """A written report.

    Parameters
    ----------
    page : Path
        The page.
    figures, tables : list of str
        Names of panels and tables: their files without suffixes.
    not_run : list of NotRun
        Results of the paper without records.
    left_out : dict of str to str
        Reasons by unused file.
    notes : list of str
        Notes on the data: copies, failed runs, uneven seeds.
    """

    page: Path
    figures: list[str]
    tables: list[str]
    not_run: list[NotRun]
    left_out: dict[str, str]
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """0 if all files could be used, otherwise 1."""
        return 1 if self.left_out else 0


def build_report(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    title: str = "Evergrow benchmark report",
) -> Report:
    """Create all tables and figures that the records allow.

    Missing results of the paper are listed. Equal records give equal bytes. Files are
    written atomically, the page last. Files of an earlier report in the same folder are
    replaced or removed; other files are not changed.

    Parameters
    ----------
    paths : path-like or sequence of path-like
        Record files, or folders to search at any depth.
    output : path-like
        Folder for ``index.html``, ``figures/`` and ``tables/``. It is created if
        necessary.
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
        If ``output`` is a file, or a folder with a page of other origin.
    MissingExtraError
        Without matplotlib, pandas or jinja2.
    """
    import_extra("matplotlib", extra="lab", purpose="drawing figures")
    import_extra("jinja2", extra="lab", purpose="writing the page")
    import_extra("pandas", extra="lab", purpose="tables")
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    folder = Path(output)
    earlier = _earlier_files(folder)
    record_set = collect(paths)
    parts: dict[Section, list[Table | Figure]] = {}
    missing: dict[Section, list[NotRun]] = {}
    for section in SECTIONS:
        found = list(section.build(record_set))
        missing[section] = _missing(section, record_set, bool(found))
        if section.published:
            found.append(_published_table(section.published))
        parts[section] = found
    parts = _with_unique_names(parts)
    all_parts = [part for found in parts.values() for part in found]
    tables = [part for part in all_parts if isinstance(part, Table)]
    panels = [
        panel for part in all_parts if isinstance(part, Figure) for panel in part.panels
    ]
    notes = _notes(record_set, all_parts)
    files = _part_files(panels, tables)
    files["index.html"] = _encode(_page(title, record_set, parts, missing, notes))
    _write(folder, files, earlier)
    return Report(
        page=folder / "index.html",
        figures=[panel.name for panel in panels],
        tables=[table.name for table in tables],
        not_run=[entry for entries in missing.values() for entry in entries],
        left_out=record_set.left_out,
        notes=notes,
    )


def _part_files(panels: Sequence[Panel], tables: Sequence[Table]) -> dict[str, bytes]:
    """Return the contents of all figure and table files by path."""
    files: dict[str, bytes] = {}
    for panel in panels:
        files[f"figures/{panel.name}.svg"] = panel.svg
        files[f"figures/{panel.name}.pdf"] = panel.pdf
    for suffix, format in (("md", "markdown"), ("tex", "latex"), ("csv", "csv")):
        for table in tables:
            text = render(table.comparison, format)
            files[f"tables/{table.name}.{suffix}"] = _encode(text)
    return files


def _published_table(name: str) -> Table:
    table = load_published()["tables"][name]
    heading, _, rest = table["caption"].partition(". ")
    caption = (
        f"{rest} After ±: {table['error']}. Backbone {table['backbone']}; "
        f"{table['label']} in the paper."
    )
    return Table(
        name=f"published-{name}",
        title=f"Published: {heading.rstrip('.')}",
        caption=caption.strip(),
        comparison=published_comparison(name),
        published=True,
    )


def _missing(section: Section, record_set: RecordSet, has_parts: bool) -> list[NotRun]:
    """Return results of the paper that a section lacks."""
    if not has_parts:
        missing = [NotRun(section.title, section.why, section.command)]
    else:
        missing = []
    if section.title == "Accuracy":
        missing += _missing_accuracy(record_set)
    is_gain = section.title == "Gain over the joint linear probe"
    if is_gain and has_parts and not any(map(runs.adapted, record_set.runs)):
        why = (
            "Records of runs of methods such as ranpac+fsa and scl-mgsm+fsa, of a spec "
            "on images."
        )
        missing.append(NotRun("Gain with first-session adaptation (FSA)", why, IMAGES))
    return missing


def _missing_accuracy(record_set: RecordSet) -> list[NotRun]:
    """Return datasets and trained methods of the main table that have no record."""
    missing = []
    main_datasets = {
        known_dataset(run.dataset)
        for run in record_set.runs
        if known_backbone(run.dataset) == "ViT-B/16-IN21K"
    }
    datasets = ("ImageNet-R", "ImageNet-A", "ObjectNet", "OmniBenchmark")
    absent = [name for name in datasets if name not in main_datasets]
    if absent:
        title = f"{', '.join(absent)} with ViT-B/16-IN21K"
        why = (
            "Records of runs on folders of these images, with backbone = "
            '"vit_base_patch16_224.augreg_in21k".'
        )
        missing.append(NotRun(title, why, VIT))
    methods = {run.method.removesuffix(FSA) for run in record_set.runs}
    trained = ("coda-prompt", "sd-lora", "ease", "apt", "joint-ft")
    absent = [name for name in trained if name not in methods]
    if absent:
        why = (
            "Records of runs of these methods, of a spec on images: they train a "
            "network."
        )
        missing.append(NotRun(", ".join(absent), why, IMAGES))
    return missing


def _with_unique_names(
    parts: dict[Section, list[Table | Figure]],
) -> dict[Section, list[Table | Figure]]:
    """Rename tables and panels with equal file names, which equal titles can cause."""
    seen: set[tuple[type, str]] = set()

    def renamed(item: Any) -> Any:
        name = item.name
        count = 1
        while (type(item), name) in seen:
            count += 1
            name = f"{item.name}-{count}"
        seen.add((type(item), name))
        return replace(item, name=name)

    unique: dict[Section, list[Table | Figure]] = {}
    for section, found in parts.items():
        unique[section] = []
        for part in found:
            if isinstance(part, Figure):
                panels = [renamed(panel) for panel in part.panels]
                unique[section].append(replace(part, panels=panels))
            else:
                unique[section].append(renamed(part))
    return unique


def _notes(record_set: RecordSet, parts: Sequence[Table | Figure]) -> list[str]:
    """Return all notes about data, without duplicates."""
    notes: list[str] = []
    for part in parts:
        notes += part.notes if isinstance(part, Figure) else part.comparison.notes
    # The notes of the record set already give the number of records per version.
    repeated = "records of several evergrow versions"
    own = [note for note in notes if not note.startswith(repeated)]
    return list(dict.fromkeys([*record_set.notes, *own]))


def _page(
    title: str,
    record_set: RecordSet,
    parts: dict[Section, list[Table | Figure]],
    missing: dict[Section, list[NotRun]],
    notes: list[str],
) -> str:
    jinja2 = import_extra("jinja2", extra="lab", purpose="writing the page")
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
    file = resources.files("evergrow.lab.report").joinpath(name)
    return file.read_text(encoding="utf-8")


def symbols(text: str) -> str:
    """Return text as HTML, with the paper's symbols formatted.

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


MANIFEST = ".evergrow-report"
"""Lists the files of a report, so that the next report can replace them."""


def _encode(text: str) -> bytes:
    """Encode text as UTF-8; other characters, as in file names, become escapes."""
    return text.encode("utf-8", "backslashreplace")


def _earlier_files(folder: Path) -> list[str]:
    """Return the files of an earlier report; raise if the folder has another page."""
    if folder.exists() and not folder.is_dir():
        raise ParameterError(f"{folder} is a file; the report needs a folder")
    try:
        names = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        if (folder / "index.html").exists():
            raise ParameterError(
                f"{folder} has an index.html that no report wrote: choose another "
                "folder"
            ) from None
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(
            f"{folder / MANIFEST} is damaged: choose another folder, or remove it"
        ) from error
    # Accept only paths that a report can have written, inside of the folder.
    return [
        name
        for name in names
        if re.fullmatch(r"(figures|tables)/[^/\\]+|index\.html", str(name))
    ]


def _write(folder: Path, files: dict[str, bytes], earlier: Sequence[str]) -> None:
    """Write all files, the page last, and remove obsolete files of the old report."""
    try:
        for part in ("figures", "tables"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        # The list of files comes first, so that an interrupted report can be replaced.
        names = sorted({*files, *earlier})
        listed = (json.dumps({"files": names}, indent=1) + "\n").encode()
        for name, contents in {MANIFEST: listed, **files}.items():
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(contents)
        for name in set(earlier) - set(files):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"The report cannot be written to {folder}: {error}"
        ) from error
