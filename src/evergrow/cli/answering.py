"""``evergrow answering``: prior and thresholds that answers follow, without learning anew."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evergrow.cli.console import Answer, facts
from evergrow.cli.models import changing_model, load_model
from evergrow.cli.options import Json, ModelFile, Wait
from evergrow.cli.registry import command
from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError

_MOST_BYTES = 64 * 2**20  # a matrix of a few thousand classes
_NONE = "none"


@command("answering", panel="Edit")
def answering_command(
    model: ModelFile,
    prior: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="How common classes are: uniform, counts, learned or a file."),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold", metavar="CLASS=P", help="Probability from which a class is the answer, or none; repeatable."
        ),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Take back all that was set before.")] = False,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Say how answers follow from probabilities, or show it: prior and thresholds.

    Nothing is learned or forgotten by it; predict and evaluate follow it from now on. Probabilities are first brought
    to the prior; a class with a threshold is answered wherever it reaches that, and nowhere else; else the answer is
    the likeliest. A file of weights is CSV or JSON.

    For example:

      evergrow answering birds.evg --prior counts --threshold "snowy owl=0.02"

      evergrow answering checks.evg --reset

    Exit codes: 0 set or shown, 2 a class is not known, a file or a number is wrong, and nothing changed, 3 another
    process is changing the model.
    """
    if prior is None and not threshold and not reset:
        learner = load_model(model)
        return Answer({"model": str(model), "answering": learner.answering_.to_dict()}, _lines(learner.answering_))
    from evergrow.learner.answers import LEARNED, PRIORS

    given: dict[str, Any] = {}
    if prior is not None:
        given["prior"] = prior if prior in (LEARNED, *PRIORS) else _read_prior(Path(prior))
    limits = dict(_threshold(entry) for entry in threshold or ())
    with changing_model(model, wait=wait) as change:
        learner = change.learner
        if not reset:
            now = learner.answering_
            given = {"prior": now.prior, **given}
            limits = {**now.thresholds, **limits}
        kept = {name: value for name, value in limits.items() if value is not None}
        learner.set_answering(**given, thresholds=kept)
    answering = learner.answering_
    return change.answer(_lines(answering), answering=answering.to_dict())


def _lines(answering: Any) -> list[str]:
    """Return the settings for people."""
    return facts([("answers", answering.summary())])


def _threshold(entry: str) -> tuple[str, float | None]:
    name, sign, text = entry.rpartition("=")
    if not sign:
        raise ParameterError(f"Give --threshold as CLASS=PROBABILITY, such as owl=0.1, not {entry!r}.")
    return name, None if text == _NONE else _number("--threshold", text)


def _number(option: str, text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        raise ParameterError(f"{option}: {str(text)[:60]!r} is not a number.") from None


def _read_prior(path: Path) -> dict[str, float]:
    """Return weights by class: a JSON object, or rows of class and weight below their headings."""
    if not path.is_file():
        raise DatasetNotFoundError(f"No file {str(path)!r} here for --prior.")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path} is larger than the {_MOST_BYTES // 2**20} MiB that --prior reads.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            found = json.loads(text)
        else:
            rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if any(row)]
            found = dict(rows[1:] if rows and rows[0][0].strip().casefold() == "class" else rows)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV (class, weight) or JSON for --prior: {error}") from error
    if not found or not isinstance(found, dict):
        raise InputError(f"{path} holds no numbers by class for --prior.")
    return {name: _number("--prior", value) for name, value in found.items()}
