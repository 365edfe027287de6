"""``evergrow lab data``: describe a benchmark and compare it with published results."""

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
    root: Annotated[Path | None, typer.Option(help="Folder of the benchmark.")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="Benchmark to compare with; by default that of the name."),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Check the classes and counts of a benchmark against those of published results.

    For example:

      evergrow lab data imagenet-r

    Exit codes: 0 as expected, 1 it differs from the benchmark, 2 it cannot be loaded.
    """
    from evergrow.data import inspect_data
    from evergrow.lab.benchmarks import check_benchmark, load_benchmark

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the report includes the warning
        data = load_benchmark(source, root=root)
    differences = check_benchmark(data, benchmark)
    values = {**inspect_data(data).to_dict(), "differences": differences}
    lines = report_lines(values)
    lines += [f"{'differs':<17} {line}" for line in differences]
    return Answer(values, lines, code=ExitCode.LOOK if differences else ExitCode.OK)
