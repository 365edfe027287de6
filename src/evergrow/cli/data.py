"""``evergrow data``: say what a data set is and how it differs from what it should be."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.choices import registered_names
from evergrow.core.errors import DataWarning, EvergrowError

LAYOUTS = registered_names("evergrow.datasets:list_layouts")


def data_check(
    source: Annotated[str, typer.Argument(help="Folder, file, benchmark name, torchvision:NAME or hf:OWNER/NAME.")],
    layout: Annotated[str, typer.Option(help=f"Layout of a folder: auto looks, or {LAYOUTS}.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="Folder that benchmarks or listed images are in.")] = None,
    expect: Annotated[str, typer.Option(help="Benchmark to compare with; auto goes by the name.")] = "auto",
    test_size: Annotated[float, typer.Option(help="Test share, where a test set has to be drawn.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of that draw.")] = 1993,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Leave class folders without images out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check a data set: what it is, its classes and counts, and how it differs from the benchmark it is named after.

    Leaves with 0 if all is as expected, 1 if it differs from the benchmark, 2 if it cannot be loaded.

    Example: [bold]evergrow data data/imagenet-r[/bold]
    """
    from evergrow.datasets import DataOptions, inspect_data, load_data

    try:
        options = DataOptions(
            layout=layout, root=root, expect=expect, test_size=test_size, seed=seed, allow_empty=allow_empty
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the report says it all
            report = inspect_data(load_data(source, options))
    except EvergrowError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        typer.echo("\n".join(_lines(report.to_dict())))
    if report.differences:
        raise typer.Exit(1)


def _lines(report: dict[str, object]) -> list[str]:
    """Return the report as lines for people."""
    from evergrow.datasets.reading import shown

    def sizes(key: str) -> str:
        rows = report[key]
        if not isinstance(rows, list):
            return ""
        return ", ".join(f"{shown(name)} ({train} + {test})" for name, train, test in rows)

    pairs = [
        ("data set", report["name"]),
        ("source", report["source"]),
        ("kind", f"{report['kind']}, {report['n_features']} wide" if report["n_features"] else report["kind"]),
        ("layout", report["layout"]),
        ("classes", report["n_classes"]),
        ("samples", f"{report['n_train']} training, {report['n_test']} test"),
        ("smallest classes", sizes("smallest")),
        ("largest classes", sizes("largest")),
        ("compared with", report["benchmark"]),
    ]
    lines = [f"{label:<17} {shown(str(value))}" for label, value in pairs if value not in ("", None)]
    for label, key in (("note", "notes"), ("caution", "cautions"), ("differs", "differences")):
        texts = report[key]
        lines += [f"{label:<17} {shown(str(text))}" for text in (texts if isinstance(texts, list) else [])]
    if report["benchmark"] and not report["differences"]:
        lines.append(f"{'differs':<17} nothing: counts and known class names are as expected")
    return lines
