"""``evergrow answering``: prior, costs and thresholds that answers follow, without learning anew."""

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
    costs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="What mistakes cost: a file true,answer,cost or a matrix, or none."),
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
    """
    if prior is None and costs is None and not threshold and not reset:
        learner = load_model(model)
        return Answer({"model": str(model), "answering": learner.answering_.to_dict()}, _lines(learner.answering_))
    given = _read_options(prior, costs, threshold or [])
    with changing_model(model, wait=wait) as change:
        learner = change.learner
        before = {} if reset else _settings(learner.answering_)
        limits = {**before.get("thresholds", {}), **given.pop("thresholds")}
        kept = {name: value for name, value in limits.items() if value is not None}
        learner.set_answering(**{**before, **given, "thresholds": kept})
    answering = learner.answering_
    return change.answer(_lines(answering), answering=answering.to_dict())


def _settings(answering: Any) -> dict[str, Any]:
    return {"prior": answering.prior, "costs": answering.costs, "thresholds": dict(answering.thresholds)}


def _lines(answering: Any) -> list[str]:
    """Return the settings for people."""
    return facts([("answers", answering.summary())])


def _read_options(prior: str | None, costs: str | None, thresholds: list[str]) -> dict[str, Any]:
    """Return what the options ask for; None in a threshold takes one back."""
    from evergrow.learner.answers import LEARNED, PRIORS

    given: dict[str, Any] = {"thresholds": dict(_threshold(entry) for entry in thresholds)}
    if prior is not None:
        given["prior"] = prior if prior in (LEARNED, *PRIORS) else _read_prior(Path(prior))
    if costs is not None:
        given["costs"] = None if costs == _NONE else _read_costs(Path(costs))
    return given


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
    rows = _read("--prior", path)
    if isinstance(rows, list) and any(len(row) != 2 for row in rows):
        raise InputError(f"{path} needs two columns for --prior, class and weight.")
    pairs = list(rows.items()) if isinstance(rows, dict) else rows[_has_header(rows[0][1]) :]
    return {name: _number("--prior", value) for name, value in pairs}


def _read_costs(path: Path) -> dict[str, dict[str, float]]:
    rows = _read("--costs", path)
    if isinstance(rows, dict):
        if not all(isinstance(row, dict) for row in rows.values()):
            raise InputError(f'{path} needs costs by class and answer for --costs, such as {{"ok": {{"broken": 5}}}}.')
        return {true: {name: _number("--costs", cost) for name, cost in row.items()} for true, row in rows.items()}
    header = [cell.strip().casefold() for cell in rows[0]]
    if any(len(row) != len(header) for row in rows):
        raise InputError(f"The rows of {path} have different lengths; --costs needs one.")
    found: dict[str, dict[str, float]] = {}
    if header == ["true", "answer", "cost"]:
        for true, answer, cost in rows[1:]:
            found.setdefault(true, {})[answer] = _number("--costs", cost)
        return found
    return {row[0]: {name: _number("--costs", cell) for name, cell in zip(rows[0][1:], row[1:])} for row in rows[1:]}


def _read(option: str, path: Path) -> Any:
    """Return the rows of a CSV file, or the object of a JSON file."""
    if not path.is_file():
        raise DatasetNotFoundError(f"No file {str(path)!r} here for {option}.")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path} is larger than the {_MOST_BYTES // 2**20} MiB that {option} reads.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".json":
            rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if any(row)]
        else:
            rows = json.loads(text)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV or JSON for {option}: {error}") from error
    if not rows or not isinstance(rows, (list, dict)) or (path.suffix.lower() == ".json") != isinstance(rows, dict):
        raise InputError(f"{path} holds no numbers by class for {option}.")
    return rows


def _has_header(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return True
    return False
