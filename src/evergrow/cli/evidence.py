"""The options ``--heatmap`` and ``--words``: show where a prediction comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import table
from evergrow.cli.model_files import check_target
from evergrow.cli.options import OptionGroup
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.registry import nearest

if TYPE_CHECKING:
    from evergrow.data.items import Items
    from evergrow.learner.explanation import Explanation
    from evergrow.learner.learner import Learner

PANEL = "Evidence"

_KINDS = {"image": "images", "text": "texts", "features": "feature vectors"}


@dataclass(frozen=True)
class EvidenceOptions(OptionGroup):
    """Whether to explain predictions, and how.

    Parameters
    ----------
    heatmap
        PNG file to write: the image, coloured where the score of the class comes from.
    words
        Print every word of a text with its evidence, -1 to 1.
    why
        Class to explain. By default the most likely one.
    against
        Class to compare it with. By default all other classes.
    """

    heatmap: Annotated[
        Path | None, typer.Option(metavar="PNG", rich_help_panel=PANEL)
    ] = None
    words: Annotated[bool, typer.Option("--words", rich_help_panel=PANEL)] = False
    why: Annotated[str | None, typer.Option(metavar="CLASS", rich_help_panel=PANEL)] = (
        None
    )
    against: Annotated[
        str | None, typer.Option(metavar="CLASS", rich_help_panel=PANEL)
    ] = None

    @property
    def is_wanted(self) -> bool:
        """Whether a prediction is to be explained."""
        return self.heatmap is not None or self.words

    def check(self, kind: str, learner: Learner) -> None:
        """Raise an error if the options do not fit the model or each other.

        Parameters
        ----------
        kind : {"image", "text", "features"}
            Kind of samples that the model takes.
        learner : Learner
            The model.

        Raises
        ------
        ParameterError
            If a class is named that the model does not know, or without ``--heatmap``
            or ``--words``; or if the heatmap cannot be written.
        InputError
            If the model takes another kind of samples.
        """
        if not self.is_wanted:
            if self.why or self.against:
                raise ParameterError("--why and --against need --heatmap or --words.")
            return
        known = learner.state_.classes.tolist()
        for flag, name in (("--why", self.why), ("--against", self.against)):
            if name is not None and name not in known:
                raise ParameterError(
                    f"{flag} must be a class of the model, got {name!r}; nearest: "
                    f"{nearest(name, known)}."
                )
        if self.why is not None and self.why == self.against:
            raise ParameterError(
                f"--against must be another class than --why, got {self.why!r} twice."
            )
        if self.heatmap is not None:
            _check_kind("--heatmap", "image", kind, "--words is for texts")
            if self.heatmap.suffix.lower() != ".png":
                raise ParameterError(
                    f"--heatmap must be a .png file, got {self.heatmap}."
                )
            check_target("--heatmap", self.heatmap)
        if self.words:
            _check_kind("--words", "text", kind, "--heatmap is for images")

    def add(
        self,
        rows: list[dict[str, Any]],
        learner: Learner,
        items: Any,
        numbers: Sequence[int],
    ) -> list[str]:
        """Explain predictions, write the heatmap, and return lines to print.

        Without ``--heatmap`` and ``--words``, nothing happens.

        Parameters
        ----------
        rows : list of dict
            One prediction per readable sample. Each gets ``explained``, in place.
        learner : Learner
            The model.
        items : Samples or Items
            All samples.
        numbers : sequence of int
            Row number among `items` of each prediction.

        Raises
        ------
        InputError
            If a heatmap of several images is wanted.
        """
        if not self.is_wanted:
            return []
        from evergrow.data.inputs import read_items

        samples = read_items(items)
        if self.heatmap is not None and len(samples) != 1:
            raise InputError(f"--heatmap takes one image, got {len(samples)}.")
        lines: list[str] = []
        for row, number in zip(rows, numbers, strict=True):
            sample = samples.take([number])
            found = learner.explain(sample, self.why, against=self.against)
            row["explained"] = _values(found)
            if self.heatmap is not None:
                _write_overlay(self.heatmap, found, samples.raw_items())
            lines += _lines(found, self.heatmap)
        return lines


NO_EVIDENCE = EvidenceOptions()


def _values(found: Explanation) -> dict[str, Any]:
    """Return an explanation as plain values, without the heatmap."""
    values = {"class": str(found.label), "score": found.score}
    if found.against is not None:
        values["against"] = str(found.against)
    if found.words is not None:
        values["words"] = [
            {"word": word, "evidence": value} for word, value in found.words
        ]
    return values


def _lines(found: Explanation, heatmap: Path | None) -> list[str]:
    """Return lines about an explanation: where the heatmap is, or a table of words."""
    rival = "all other classes" if found.against is None else str(found.against)
    odds = f"log-odds {found.score:.2f} against {rival}"
    if heatmap is not None:
        return [f"{heatmap} shows why {found.label} ({odds})"]
    cells = [[word, f"{value:+.2f}"] for word, value in found.words or ()]
    words = table(["word", "evidence"], cells, right=["evidence"])
    return ["", f"why {found.label} ({odds}):", *words]


def _check_kind(flag: str, wanted: str, kind: str, advice: str) -> None:
    """Raise :class:`InputError` if a model takes another kind of samples."""
    if kind != wanted:
        hint = "" if kind == "features" else f"; {advice}"
        raise InputError(
            f"{flag} is for models of {_KINDS[wanted]}, and this one takes "
            f"{_KINDS[kind]}{hint}."
        )


def _write_overlay(path: Path, found: Explanation, images: Items) -> None:
    """Write the picture of an explained image."""
    from evergrow.core.files import atomic_path
    from evergrow.features.images import decode_image

    image = decode_image(images.raw(0), name=images.name(0))
    with atomic_path(path) as temporary:
        found.overlay(image).save(temporary, format="PNG")
