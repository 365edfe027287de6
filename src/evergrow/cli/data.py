"""``evergrow data``: describe a data set and look for mistakes in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.checking import check_lines, checked_data, write_page
from evergrow.cli.choices import registered_names
from evergrow.cli.console import Answer
from evergrow.cli.exits import ExitCode
from evergrow.cli.models import check_target
from evergrow.cli.options import AS_FOUND, Device, Json, Reading
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

LAYOUTS = registered_names("evergrow.data:list_readers")


@command("data")
def data_command(
    source: Annotated[str, typer.Argument(help="Folder, file or hf:OWNER/NAME.")],
    layout: Annotated[str, typer.Option(help=f"Layout of a folder: auto looks, or {LAYOUTS}.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="Folder that listed images are in.")] = None,
    test_size: Annotated[
        float | None, typer.Option(help="Draw a test set of this share where there is none, as the laboratory does.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of that draw.")] = 1993,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Leave class folders without images out.")] = False,
    reading: Reading = AS_FOUND,
    check: Annotated[
        bool, typer.Option("--check", help="Look for samples under two labels, in training and test, or misplaced.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Page of --check with thumbnails, in one file.")] = None,
    backbone: Annotated[
        str, typer.Option(help="Features that --check compares: auto, a name, or none for content alone.")
    ] = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> Answer:
    """Check a data set: what it is, its classes and counts, and with --check what is probably a mistake.

    What it counts is what fit learns; no test set is drawn unless --test-size asks for one.

    For example:

      evergrow data birds/

      evergrow data birds/ --check --html birds.html

    Exit codes: 0 all is as expected, 1 --check found something, 2 it cannot be loaded.
    """
    from evergrow.data import inspect_data

    if html is not None:
        if not check:
            raise ParameterError(f"--html must go with --check, got {html} and nothing to show")
        check_target("--html", html)
    size = 0.0 if test_size is None else test_size
    options = reading.options(layout=layout, root=root, seed=seed, allow_empty=allow_empty, test_size=size)
    report = inspect_data(source, options)
    lines, values = report_lines(report.to_dict()), report.to_dict()
    found = checked_data(source, options, backbone, device) if check else None
    if found is not None:
        values["check"] = found.check.to_dict()
        lines += ["", *check_lines(found.check)]
    if found is not None and html is not None:
        write_page(html, found, report.name)
        lines.append(f"page in {html}")
    look = found is not None and not found.check.clean
    done = "" if html is None else f"{html} was written"
    return Answer(values, lines, code=ExitCode.LOOK if look else ExitCode.OK, done=done)


def report_lines(report: dict[str, object]) -> list[str]:
    """Return the report as lines for people."""

    def sizes(key: str) -> str:
        rows = report[key]
        if not isinstance(rows, list):
            return ""
        return ", ".join(f"{name} ({train} + {test})" for name, train, test in rows)

    pairs = [
        ("data set", report["name"]),
        ("source", report["source"]),
        ("kind", f"{report['kind']}, {report['n_features']} wide" if report["n_features"] else report["kind"]),
        ("layout", report["layout"]),
        ("classes", report["n_classes"]),
        ("samples", f"{report['n_train']} training, {report['n_test']} test"),
        ("smallest classes", sizes("smallest")),
        ("largest classes", sizes("largest")),
    ]
    lines = [f"{label:<17} {value}" for label, value in pairs if value not in ("", None)]
    for label, key in (("note", "notes"), ("caution", "cautions")):
        texts = report[key]
        lines += [f"{label:<17} {text}" for text in (texts if isinstance(texts, list) else [])]
    return lines
