"""Arguments and options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evergrow.data import DataOptions

WEIGHT_SOURCES = "{evergrow.features.sources:WEIGHT_SOURCES}"
PRESETS = "{evergrow.features.preprocess:PRESETS}"
TUNERS = "{evergrow.adapt.tuners:adapting_tuners}"
LAYOUTS = "{evergrow.data:list_readers}"
"""Registries, or functions that list names, as a help text marks them; the names are filled in when it is shown."""


class OnError(str, Enum):
    """What to do about an image that cannot be read."""

    RAISE = "raise"
    SKIP = "skip"


class Decode(str, Enum):
    """What decodes JPEG files."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class Rare:
    """Marks a parameter that few people need: no option of its own, but set by ``--set NAME=VALUE``.

    Parameters
    ----------
    help : str
        What it is, for the help of ``--set``.
    """

    help: str


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file.")]

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder with a subfolder per class, a .zip or .tar of one, a table of "
        "text,label or path,label (.csv, .jsonl, .parquet), a .json of COCO or Label Studio, .npz of features.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...: where to compute.")]

Weights = Annotated[str | None, Rare(f"the backbone's weights, if not where they were: a file, or {WEIGHT_SOURCES}")]

Cache = Annotated[bool, Rare("whether features are kept, so that images are looked at once")]

OnErrorOption = Annotated[
    OnError, typer.Option("--on-error", help="Images that cannot be read: stop, or leave them out and say so.")
]

DecodeOption = Annotated[Decode, Rare("cpu or gpu: what decodes JPEG files")]

FalseAlarm = Annotated[
    float, typer.Option("--false-alarm", help="Share of known things that may be called unknown, between 0 and 1.")
]

Wait = Annotated[bool, typer.Option("--wait", help="Wait for another process that changes the model.")]

RECIPE_HELP = "final, rich or max (from several depths), or blocks such as final,mean@-2"


def checked_recipe(option: str, text: str) -> str | list[str]:
    """Return the recipe that an option names, or raise :class:`ParameterError` in the option's words."""
    from evergrow.features.recipes import check_recipe, recipe_of_text

    recipe = recipe_of_text(text)
    check_recipe(recipe, option)
    return recipe


Settle = Annotated[
    bool, typer.Option("--settle", help="Solve for the class weights now, so that no later predict has to.")
]

TestData = Annotated[
    str | None,
    typer.Option(
        "--test", metavar="DATA", help="Labelled data to test with before and after; remembered for later updates."
    ),
]


class OptionGroup:
    """Options that belong together: a command takes them as one parameter, people type them one by one.

    A subclass is a frozen dataclass whose fields are annotated as parameters of commands are.
    """


@dataclass(frozen=True)
class Reading(OptionGroup):
    """How a command reads data: the columns of tables, and how deep the folders of classes lie."""

    image_column: Annotated[str, Rare("column of images in a table")] = ""
    text_column: Annotated[str, Rare("column of texts in a table")] = ""
    label_column: Annotated[str, Rare("column of classes in a table")] = ""
    class_level: Annotated[int, Rare("how many folders down the class folders are")] = 0

    def options(self, **more: Any) -> DataOptions:
        """Return the settings of reading, with what else a command has to say about it."""
        from evergrow.data import DataOptions

        return DataOptions(**vars(self), **more)


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """How a command runs a model's backbone."""

    device: Device = "auto"
    cache: Cache = True
    weights: Weights = None

    @property
    def cache_setting(self) -> bool | None:
        """The cache as a learner takes it."""
        return None if self.cache else False

    def encode_settings(self, *, quiet: bool = False) -> dict[str, Any]:
        """Return the settings of encoding; ``quiet`` shows no progress bar."""
        return {"progress": not quiet and sys.stderr.isatty()}

    def loading(self, *, quiet: bool = False) -> dict[str, Any]:
        """Return the settings of :meth:`evergrow.Learner.load`."""
        device = None if self.device == "auto" else self.device
        extract = self.encode_settings(quiet=quiet)
        return {"weights": self.weights, "device": device, "cache": self.cache_setting, "extract": extract}


@dataclass(frozen=True)
class ImageOptions(RunOptions):
    """How a command runs a model's backbone, and what it does about images that cannot be read."""

    on_error: OnErrorOption = OnError.RAISE
    decode: DecodeOption = Decode.CPU

    def encode_settings(self, *, quiet: bool = False) -> dict[str, Any]:
        """Return the settings of encoding; ``quiet`` shows no progress bar."""
        return {**super().encode_settings(quiet=quiet), "on_error": self.on_error.value, "decode": self.decode.value}


RUN, RUN_IMAGES = RunOptions(), ImageOptions()
"""As the machine suggests; images that cannot be read stop a command."""

AS_FOUND = Reading()
"""Reading as the data suggest."""
