"""Arguments and options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from evergrow.data import DataOptions

T = TypeVar("T")

RARE = "rare"

Rare = Annotated[T, RARE]
"""A parameter that few people need: it has no option of its own but is set by ``--set NAME=VALUE``."""

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file.")]

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder with a subfolder per class, a .zip or .tar of one, a table of "
        "text,label or path,label (.csv, .jsonl, .parquet), a .json of Label Studio, .npz of features.",
    ),
]

Json = Annotated[
    bool, typer.Option("--json", help="Print the outcome as one JSON object.")
]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...: where to compute.")]

FalseAlarm = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Share of known things that may be called unknown, between 0 and 1.",
    ),
]

Wait = Annotated[
    bool, typer.Option(help="Wait for another process that changes the model.")
]

_TESTED = "Labelled data to test with before and after."
TestData = Annotated[str | None, typer.Option(metavar="DATA", help=_TESTED)]

_RECIPES = "What features are made of: fast, rich or best, or a recipe such as rich@224+320:mirror or final,mean@-2."
Recipe = Annotated[str, typer.Option("--features", help=_RECIPES)]


class OptionGroup:
    """Options that belong together: a command takes them as one parameter, people type them one by one.

    A subclass is a frozen dataclass whose fields are annotated and documented as
    parameters of commands are.
    """


@dataclass(frozen=True)
class Reading(OptionGroup):
    """How a command reads data.

    Parameters
    ----------
    image_column
        Column of images in a table.
    text_column
        Column of texts in a table.
    label_column
        Column of classes in a table.
    """

    image_column: Rare[str] = ""
    text_column: Rare[str] = ""
    label_column: Rare[str] = ""

    def options(self, **more: Any) -> DataOptions:
        """Return the data options; ``more`` are further ones of the command."""
        from evergrow.data import DataOptions

        return DataOptions(**vars(self), **more)


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """How a command runs a model's backbone, and whether a person or a program reads what it prints.

    Parameters
    ----------
    cache
        Whether features are kept, so that images are looked at once.
    weights
        The backbone's weights, if not where they were: a file, or bundled, hub or
        random.
    """

    device: Device = "auto"
    cache: Rare[bool] = True
    weights: Rare[str | None] = None
    as_json: Json = False

    def loading(self) -> dict[str, Any]:
        """Return the settings of :meth:`evergrow.Learner.load`."""
        device = None if self.device == "auto" else self.device
        cache = None if self.cache else False
        return {
            "weights": self.weights,
            "device": device,
            "cache": cache,
            "extract": self.encoding(),
        }

    def encoding(self) -> dict[str, Any]:
        """Return the settings of encoding; programs are shown no progress bar."""
        return {"progress": not self.as_json and sys.stderr.isatty()}


@dataclass(frozen=True)
class ImageOptions(RunOptions):
    """How a command runs a model's backbone, and what it does about images.

    Parameters
    ----------
    on_error
        Images that cannot be read: stop, or leave them out and say so.
    """

    on_error: Literal["raise", "skip"] = "raise"

    def encoding(self) -> dict[str, Any]:
        """Return the settings of encoding."""
        return {**super().encoding(), "on_error": self.on_error}


AS_FOUND = Reading()
RUN = RunOptions()
RUN_IMAGES = ImageOptions()
"""What commands do unless told otherwise."""
