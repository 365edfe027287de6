"""From folders of records to a folder with the page, the figures and the tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.core.files import atomic_path
from evergrow.core.optional import require
from evergrow.core.wording import setting
from evergrow.lab.report.catalogue import build_sections
from evergrow.lab.report.collect import LeftOut, collect
from evergrow.lab.report.contents import NotRun
from evergrow.lab.report.page import figure_parts, missing_entries, page_notes, render_page, table_parts
from evergrow.lab.tables import render

MANIFEST = ".evergrow-report"
"""File that lists the files of a report, so that the next report can replace them."""

_TABLE_FORMATS = {"md": "markdown", "tex": "latex", "csv": "csv"}


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
    left_out : list of LeftOut
        Files that could not be used.
    notes : list of str
        Remarks on the data: copies, failed runs, uneven seeds.
    """

    page: Path
    figures: list[str]
    tables: list[str]
    not_run: list[NotRun]
    left_out: list[LeftOut]
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """0 if every file that was found could be used, 1 otherwise."""
        return 1 if self.left_out else 0


def build_report(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    title: str = "Evergrow benchmark report",
) -> Report:
    """Draw every table and figure that records allow, and name the results that no record holds.

    The same records give the same bytes. Files are written whole, the page last; those of an earlier report in the same
    folder are replaced or removed, and no other file is touched.

    Parameters
    ----------
    runs : path-like or sequence of path-like
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
        If there is no usable record.
    ParameterError
        If ``output`` is a file, or a folder with a page that no report wrote.
    MissingExtraError
        Without matplotlib or jinja2.
    """
    if not title.strip():
        raise ParameterError(f"{setting('title')} must be text, got {title!r}")
    for module, purpose in (("matplotlib", "drawing figures"), ("jinja2", "writing the page")):
        require(module, extra="report", purpose=purpose)
    folder = Path(output)
    earlier = _earlier(folder)
    record_set = collect([runs] if isinstance(runs, (str, os.PathLike)) else list(runs))
    sections = build_sections(record_set)
    figures, tables = figure_parts(sections), table_parts(sections)
    files: dict[str, bytes] = {}
    for panel in (panel for figure in figures for panel in figure.panels):
        files[f"figures/{panel.name}.svg"] = panel.svg.encode()
        files[f"figures/{panel.name}.pdf"] = panel.pdf
    for table in tables:
        for ending, format in _TABLE_FORMATS.items():
            files[f"tables/{table.name}.{ending}"] = _encoded(render(table.comparison, format))
    files["index.html"] = _encoded(render_page(title, record_set, sections))
    _write(folder, files, earlier)
    return Report(
        page=folder / "index.html",
        figures=[panel.name for figure in figures for panel in figure.panels],
        tables=[table.name for table in tables],
        not_run=missing_entries(sections),
        left_out=record_set.left_out,
        notes=page_notes(record_set, sections),
    )


def _encoded(text: str) -> bytes:
    """Return a text as UTF-8; what cannot be written so, as in file names of other encodings, becomes escapes."""
    return text.encode("utf-8", "backslashreplace")


def _earlier(folder: Path) -> list[str]:
    """Return the files of an earlier report; refuse a folder that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise ParameterError(f"{setting('output')} must be a folder, got the file {folder}")
    manifest = folder / MANIFEST
    if not manifest.exists():
        if (folder / "index.html").exists():
            raise ParameterError(
                f"{setting('output')} must be a new folder or one of an earlier report, got {folder} with an "
                "index.html that "
                "no report wrote; choose another folder or remove it"
            )
        return []
    try:
        listed: Any = json.loads(manifest.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileFormatError(
            f"{manifest} must list the files of an earlier report, got a damaged one: {error}"
        ) from error
    names = listed.get("files") if isinstance(listed, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(f"{manifest} must list the files of an earlier report, but it does not")
    # Only what a report can have written: never a path that leads out of the folder.
    return [name for name in names if name == "index.html" or name.split("/")[0] in ("figures", "tables")]


def _write(folder: Path, files: dict[str, bytes], earlier: Sequence[str]) -> None:
    """Write all files, the page last, and remove those of an earlier report that this one does not have."""
    try:
        for part in ("figures", "tables"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        listed = json.dumps({"files": sorted({*files, *earlier})}, indent=1) + "\n"
        _replace(folder / MANIFEST, listed.encode())  # first: what is interrupted can still be replaced
        for name in [*(name for name in files if name != "index.html"), "index.html"]:
            _replace(folder / name, files[name])
        for name in earlier:
            stale = folder / name
            if name not in files and ".." not in Path(name).parts:
                stale.unlink(missing_ok=True)
        _replace(folder / MANIFEST, (json.dumps({"files": sorted(files)}, indent=1) + "\n").encode())
    except OSError as error:
        raise InputError(f"{setting('output')} must be a folder that can be written, got {folder}: {error}") from error


def _replace(target: Path, contents: bytes) -> None:
    """Write a file in one step; one that has these contents already keeps its date."""
    if target.exists() and target.read_bytes() == contents:
        return
    with atomic_path(target) as temporary:
        temporary.write_bytes(contents)
