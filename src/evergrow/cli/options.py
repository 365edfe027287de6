"""Arguments and options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.choices import registered_names

WEIGHT_SOURCES = registered_names("evergrow.backbones.sources:WEIGHT_SOURCES")


class OnError(str, Enum):
    """What to do about an image that cannot be read."""

    RAISE = "raise"
    SKIP = "skip"


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file.", show_default=False)]

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder with a subfolder per class, .csv or .jsonl table of text,label or path,label, .npz of features.",
        show_default=False,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...: where to compute.")]

Weights = Annotated[
    str | None, typer.Option(help=f"The backbone's weights, if not where they were: a file, or {WEIGHT_SOURCES}.")
]

Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep features, so that images are looked at once.")]

OnErrorOption = Annotated[
    OnError, typer.Option("--on-error", help="Images that cannot be read: stop, or leave them out and say so.")
]

FalseAlarm = Annotated[
    float, typer.Option("--false-alarm", help="Share of known things that may be called unknown, between 0 and 1.")
]

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more: why this backbone, and what lacks weights.")]

Wait = Annotated[bool, typer.Option("--wait", help="Wait for another process that changes the model.")]

Settle = Annotated[
    bool, typer.Option("--settle", help="Solve for the class weights now, so that no later predict has to.")
]
