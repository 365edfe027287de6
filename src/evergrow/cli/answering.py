"""``evergrow answering``: prior and thresholds that answers follow, without learning anew."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from evergrow.cli.console import Answer, facts
from evergrow.cli.models import changing_model, load_model
from evergrow.cli.options import ModelFile, Wait
from evergrow.cli.registry import command
from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError

_NONE = "none"


@command("answering", panel="Edit")
def answering_command(
    model: ModelFile,
    prior: str | None = None,
    threshold: list[str] | None = None,
    reset: bool = False,
    wait: Wait = False,
) -> Answer:
    """Say how answers follow from probabilities, or show it: prior and thresholds.

    Nothing is learned or forgotten by it; predict and evaluate follow it from now on. Probabilities are first brought
    to the prior; a class with a threshold is answered wherever it reaches that, and nowhere else; else the answer is
    the likeliest. A file of weights is CSV with the columns class and weight.

    For example:

      evergrow answering birds.evg --prior counts --threshold "snowy owl=0.02"

      evergrow answering checks.evg --reset

    Exit codes: 0 set or shown, 2 a class is not known, a file or a number is wrong, and nothing changed, 3 another
    process is changing the model.

    Parameters
    ----------
    prior : NAME|FILE
        How common classes are: uniform, counts, learned or a file.
    threshold : CLASS=P
        Probability from which a class is the answer, or none; repeatable.
    reset
        Take back all that was set before.
    """
    if prior is None and not threshold and not reset:
        now = load_model(model, lazy=True).answering_
        return Answer({"model": str(model), "answering": now.to_dict()}, facts([("answers", now.summary())]))
    from evergrow.learner.answers import LEARNED, PRIORS

    given: dict[str, Any] = {}
    if prior is not None:
        given["prior"] = prior if prior in (LEARNED, *PRIORS) else _read_prior(Path(prior))
    limits: dict[str, float | None] = {}
    for entry in threshold or ():
        name, sign, text = entry.rpartition("=")
        if not sign:
            raise ParameterError(f"Give --threshold as CLASS=PROBABILITY, such as owl=0.1, not {entry!r}.")
        limits[name] = None if text == _NONE else _number("--threshold", text)
    with changing_model(model, wait=wait) as change:
        if not reset:
            now = change.learner.answering_
            given, limits = {"prior": now.prior, **given}, {**now.thresholds, **limits}
        kept = {name: value for name, value in limits.items() if value is not None}
        change.learner.set_answering(**given, thresholds=kept)
    now = change.learner.answering_
    return change.answer(facts([("answers", now.summary())]), answering=now.to_dict())


def _number(option: str, text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        raise ParameterError(f"{option}: {str(text)[:60]!r} is not a number.") from None


def _read_prior(path: Path) -> dict[str, float]:
    """Return weights by class: rows of class and weight below their headings."""
    if not path.is_file():
        raise DatasetNotFoundError(f"No file {str(path)!r} here for --prior.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = [(row["class"], row["weight"]) for row in csv.DictReader(file, strict=True)]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV with the columns class and weight: {error}") from error
    return {name: _number("--prior", weight) for name, weight in rows}
