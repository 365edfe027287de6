"""``evergrow lab data``: describe a benchmark and compare it with what published results were computed on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.console import Answer
from evergrow.cli.data import report_lines
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import Json
from evergrow.cli.registry import command
from evergrow.core.errors import DataWarning


@command("lab data")
def data_command(
    source: Annotated[
        str, typer.Argument(help="Name of a benchmark, or a folder or file.")
    ],
    root: Annotated[
        Path | None, typer.Option(help="Folder that the benchmark is in.")
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="Benchmark to compare with; by default the one that the data are named after."
        ),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Check a benchmark: its classes and counts, and how they differ from those of published results.

    For example:

      evergrow lab data imagenet-r

    Exit codes: 0 all is as expected, 1 it differs from the benchmark, 2 it cannot be
    loaded.
    """
    from evergrow.data import inspect_data
    from evergrow.lab.benchmarks import check_benchmark, load_benchmark

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the report says it all
        data = load_benchmark(source, root=root)
    differences = check_benchmark(data, benchmark)
    values = {**inspect_data(data).to_dict(), "differences": differences}
    lines = [
        *report_lines(values),
        *(f"{'differs':<17} {line}" for line in differences),
    ]
    return Answer(values, lines, code=ExitCode.LOOK if differences else ExitCode.OK)
