"""Arguments and options that several commands share."""

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
"""A rarely used parameter, which ``--set NAME=VALUE`` sets."""

OrSet = Annotated[T, typer.Option(), RARE]
"""A parameter with an option of its own that ``--set NAME=VALUE`` sets as well.

Its default is None. If both are given, the option counts.
"""

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file.")]

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder with one subfolder per class, a .zip or .tar of one, a table "
        "with columns text,label or path,label (.csv, .jsonl, .parquet), "
        "a .json export of Label Studio, or a .npz file of features.",
    ),
]

Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON object.")
]

Device = Annotated[str, typer.Option(help="Compute device: auto, cpu, cuda, ...")]

FalseAlarm = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Accepted fraction of known samples that are called unknown, 0 to 1.",
    ),
]

_STRANGERS_HELP = (
    "How many samples of unknown classes to expect. It sets the novelty and the "
    "probability beyond which a prediction is unsure."
)

Strangers = Annotated[
    Literal["few", "some", "many"], typer.Option(help=_STRANGERS_HELP)
]

StrangersIfGiven = Annotated[
    Literal["few", "some", "many"] | None,
    typer.Option(
        help=f"{_STRANGERS_HELP} If given, the command prints what the limits cost.",
        show_default="some",
    ),
]

Wait = Annotated[
    bool,
    typer.Option(
        help="Wait if another process is changing the model, instead of exiting with 3."
    ),
]

TestData = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Labelled data on which to measure the accuracy after the change, and "
        "before it if there was a model.",
    ),
]

AsIs = Annotated[
    bool,
    typer.Option(
        help="Learn DATA even if its folders do not look like classes, such as one "
        "named train."
    ),
]

Recipe = Annotated[
    str,
    typer.Option(
        "--features",
        help="Feature level (fast, rich, best) or a recipe of depths and views, "
        "such as rich@224+320:mirror or final,mean@-2.",
    ),
]


class OptionGroup:
    """Base class of options that a command takes as one parameter.

    A subclass is a frozen dataclass. Each field becomes an option, annotated and
    documented like a parameter of a command.
    """


@dataclass(frozen=True)
class ColumnOptions(OptionGroup):
    """Names of the columns of a table.

    Parameters
    ----------
    image_column
        Column with the image files of a table.
    text_column
        Column with the texts of a table.
    label_column
        Column with the class labels of a table.
    """

    image_column: Rare[str] = ""
    text_column: Rare[str] = ""
    label_column: Rare[str] = ""

    def data_options(self, **more: Any) -> DataOptions:
        """Return data options with these columns and further fields."""
        from evergrow.data import DataOptions

        return DataOptions(**vars(self), **more)


@dataclass(frozen=True)
class BackboneOptions(OptionGroup):
    """How to run the backbone of a model, and whether to print JSON.

    Parameters
    ----------
    cache
        Keep extracted features in the cache and take them from there (true or false).
    weights
        Where the backbone weights are now: a file, bundled (in an installed package),
        hub, or random (to draw them). By default the place in the model file.
    """

    device: Device = "auto"
    cache: Rare[bool] = True
    weights: Rare[str | None] = None
    as_json: Json = False

    def load_settings(self) -> dict[str, Any]:
        """Return arguments of :meth:`evergrow.Learner.load`, without the path."""
        return {
            "weights": self.weights,
            "device": None if self.device == "auto" else self.device,
            "cache": None if self.cache else False,
            "extract": self.encode_settings(),
        }

    def encode_settings(self) -> dict[str, Any]:
        """Return settings of :class:`evergrow.features.encoding.EncodeConfig`.

        ``progress`` is whether to show a bar: at a terminal, and not with ``--json``.
        """
        return {"progress": not self.as_json and sys.stderr.isatty()}


@dataclass(frozen=True)
class ImageOptions(BackboneOptions):
    """How to run the backbone of a model on images, some of them unreadable.

    Parameters
    ----------
    on_error
        raise stops at an unreadable image, and nothing is written; skip leaves it out
        and reports it.
    """

    on_error: Literal["raise", "skip"] = "raise"

    def encode_settings(self) -> dict[str, Any]:
        """Return settings of the encoder, with ``on_error``."""
        return {**super().encode_settings(), "on_error": self.on_error}


@dataclass(frozen=True)
class NewModelOptions(ImageOptions):
    """How to run the backbone of a new model.

    Parameters
    ----------
    weights
        Weights of the backbone: a file, also one of evergrow adapt, bundled (in an
        installed package), hub, or random (to draw them). By default --backbone
        decides.
    """

    weights: OrSet[str | None] = None

    def encode_settings(self) -> dict[str, Any]:
        """Return settings of the encoder, with ``estimate``."""
        return {**super().encode_settings(), "estimate": not self.as_json}


DEFAULT_COLUMNS = ColumnOptions()
DEFAULT_BACKBONE = BackboneOptions()
DEFAULT_IMAGES = ImageOptions()
DEFAULT_NEW_MODEL = NewModelOptions()
