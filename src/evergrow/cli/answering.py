"""``evergrow answering``: prior, costs and thresholds that answers follow, without learning anew."""

from __future__ import annotations

import csv
import io
import json
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
    costs: str | None = None,
    threshold: list[str] | None = None,
    reset: bool = False,
    wait: Wait = False,
) -> Answer:
    """Say how answers follow from probabilities, or show it: prior, costs and thresholds.

    Nothing is learned or forgotten by it; predict and evaluate follow it from now on. Probabilities are first brought
    to the prior; a class with a threshold is answered wherever it reaches that, and nowhere else; else the answer is
    the one of least expected cost, and without costs the likeliest. Files are CSV or JSON.

    For example:

      evergrow answering birds.evg --prior counts --threshold "snowy owl=0.02"

      evergrow answering checks.evg --costs costs.csv

      evergrow answering checks.evg --reset

    Exit codes: 0 set or shown, 2 a class is not known, a file or a number is wrong, and nothing changed, 3 another
    process is changing the model.

    Parameters
    ----------
    prior : NAME|FILE
        How common classes are: uniform, counts, learned or a file.
    costs : FILE
        What mistakes cost: a file true,answer,cost or a matrix, or none.
    threshold : CLASS=P
        Probability from which a class is the answer, or none; repeatable.
    reset
        Take back all that was set before.
    """
    if prior is None and costs is None and not threshold and not reset:
        now = load_model(model).answering_
        return Answer({"model": str(model), "answering": now.to_dict()}, facts([("answers", now.summary())]))
    from evergrow.learner.answers import LEARNED, PRIORS

    given: dict[str, Any] = {}
    if prior is not None:
        given["prior"] = prior if prior in (LEARNED, *PRIORS) else _read_prior(Path(prior))
    if costs is not None:
        given["costs"] = None if costs == _NONE else _read_costs(Path(costs))
    limits: dict[str, float | None] = {}
    for entry in threshold or ():
        name, sign, text = entry.rpartition("=")
        if not sign:
            raise ParameterError(f"Give --threshold as CLASS=PROBABILITY, such as owl=0.1, not {entry!r}.")
        limits[name] = None if text == _NONE else _number("--threshold", text)
    with changing_model(model, wait=wait) as change:
        if not reset:
            now = change.learner.answering_
            given, limits = {"prior": now.prior, "costs": now.costs, **given}, {**now.thresholds, **limits}
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
    """Return weights by class: a JSON object, or rows of class and weight below their headings."""
    found = _read("--prior", path)
    if isinstance(found, list):
        if any(len(row) != 2 for row in found):
            raise InputError(f"{path} needs two columns for --prior, class and weight.")
        found = dict(found[1:] if found[0][0].strip().casefold() == "class" else found)
    return {name: _number("--prior", value) for name, value in found.items()}


def _read_costs(path: Path) -> dict[str, dict[str, float]]:
    """Return costs by class and answer: a JSON object, rows of true, answer and cost, or a matrix with headings."""
    found = _read("--costs", path)
    if isinstance(found, list):
        header, *rows = found
        if any(len(row) != len(header) for row in rows):
            raise InputError(f"The rows of {path} have different lengths; --costs needs one.")
        found = {row[0]: {} for row in rows}
        listed = [cell.strip().casefold() for cell in header] == ["true", "answer", "cost"]
        for true, *cells in rows:
            found[true] |= {cells[0]: cells[1]} if listed else dict(zip(header[1:], cells))
    if not all(isinstance(row, dict) for row in found.values()):
        raise InputError(f'{path} needs costs by class and answer for --costs, such as {{"ok": {{"broken": 5}}}}.')
    return {true: {name: _number("--costs", cost) for name, cost in row.items()} for true, row in found.items()}


def _read(option: str, path: Path) -> Any:
    """Return the rows of a CSV file, or the object of a JSON file."""
    if not path.is_file():
        raise DatasetNotFoundError(f"No file {str(path)!r} here for {option}.")
    is_json = path.suffix.lower() == ".json"
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = json.loads(text) if is_json else [row for row in table if any(row)]
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV or JSON for {option}: {error}") from error
    if not rows or is_json != isinstance(rows, dict):
        raise InputError(f"{path} holds no numbers by class for {option}.")
    return rows
