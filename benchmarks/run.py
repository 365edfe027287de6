"""Run the benchmarks: ``python -m benchmarks.run [--quick] [--only NAME ...] [--out FILE]``.

Every figure is a ratio or a value measured in this run; nothing is compared with an
earlier one.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import evergrow
from benchmarks import (
    answers,
    blocks,
    classes,
    construction,
    engine,
    extraction,
    heads,
    serving,
    startup,
    training,
    updates,
    weight,
)
from benchmarks.timing import Row

BENCHES: dict[str, Callable[[bool], Iterable[Row]]] = {
    "construction": construction.against_paper,
    "compact": updates.compact_against_dense,
    "memory": updates.memory,
    "precision": updates.precision,
    "answers": answers.change_and_answer,
    "blocks": blocks.width,
    "classes": classes.many,
    "weight": weight.models,
    "transform": weight.transform,
    "gpu": construction.on_gpu,
    "large": construction.large_first_task,
    "growth": construction.growth,
    "heads": heads.every_head,
    "extraction": extraction.throughput,
    "warm-cache": extraction.warm_cache,
    "extraction-memory": extraction.memory,
    "depths": extraction.depths,
    "views": extraction.views,
    "training": training.throughput,
    "import": startup.import_against_torch,
    "startup": startup.predict_against_torch,
    "pass": startup.predict_against_a_pass,
    "light": startup.light_against_torch,
    "serving": serving.against_the_loop,
    "serving-memory": serving.memory,
    "sizing": serving.sizing,
    "refusal": startup.refusals_against_torch,
    "engine": engine.overhead,
    "engine-reduction": engine.reduction,
    "engine-growth": engine.growth,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that everything runs"
    )
    parser.add_argument(
        "--only", nargs="*", choices=list(BENCHES), default=list(BENCHES)
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "latest.json"
    )
    arguments = parser.parse_args()
    console = Console(width=160)
    rows: list[Row] = []
    for name in arguments.only:
        console.print(f"[dim]measuring {name} ...[/dim]")
        for row in BENCHES[name](arguments.quick):
            rows.append(row)
            console.print(f"{row.work}: {row.figure}")
    console.print(_table(rows))
    stamp = {
        "evergrow": evergrow.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "quick": arguments.quick,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"stamp": stamp, "rows": [asdict(row) for row in rows]}, indent=1)
        + "\n"
    )


def _table(rows: list[Row]) -> Table:
    table = Table(title="evergrow benchmarks", title_justify="left")
    for column in ("work", "bar", "reached", "figure"):
        table.add_column(column)
    marks = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}
    for row in rows:
        table.add_row(row.work, row.bar, marks[row.reached], row.figure)
    return table


if __name__ == "__main__":
    main()
