"""``evergrow predict``: ask a model about images, texts or feature vectors."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import Answer, listed, percent, plural, table
from evergrow.cli.models import Running, check_target, load_model
from evergrow.cli.options import (
    AS_FOUND,
    Cache,
    Device,
    FalseAlarm,
    Json,
    ModelFile,
    OnError,
    OnErrorOption,
    Reading,
    Weights,
)
from evergrow.cli.question import Question, read_question
from evergrow.cli.registry import command
from evergrow.core.escaping import csv_text

if TYPE_CHECKING:
    from evergrow.learner.answers import Answers
    from evergrow.learner.learner import Learner

UNKNOWN = "(unknown)"


class Format(str, Enum):
    """How answers are written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"


@command("predict", panel="Ask")
def predict_command(
    model: ModelFile,
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ITEMS",
            help="Images, folders or archives of images, .txt/.csv/.jsonl/.parquet files of texts, tables of images, "
            ".npy/.npz of features; - reads standard input: one image, or per line one file name or text.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A text to ask about; repeatable.")] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="How many classes to show of each.")] = 1,
    reject_unknown: Annotated[
        bool, typer.Option("--reject-unknown", help="Say so where something belongs to no learned class.")
    ] = False,
    false_alarm: FalseAlarm = 0.05,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to write the answers.")] = Format.TABLE,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write them to, in one step.")] = None,
    reading: Reading = AS_FOUND,
    on_error: OnErrorOption = OnError.RAISE,
    cache: Cache = True,
    device: Device = "auto",
    weights: Weights = None,
    as_json: Json = False,
) -> Answer:
    """Say what images or texts show.

    For example:

      evergrow predict birds.evg photo.jpg --top 3

      evergrow predict birds.evg photos/ --reject-unknown --format csv --out answers.csv

      ls photos/*.jpg | evergrow predict birds.evg - --format jsonl

      curl https://example.org/bird.jpg | evergrow predict birds.evg -

      evergrow predict intents.evg --text "where is my parcel"

    Exit codes: 0 answered, 1 answered but some could not be read (--on-error skip), 2 bad input, 130 interrupted.
    """
    if out is not None:
        check_target("--out", out)
    learner = load_model(model, Running(on_error, cache, device, weights, as_json))
    question = read_question(learner.kind_, list(items or ()), list(text or ()), reading)
    answers = answer_table(learner, question, top=top, false_alarm=false_alarm if reject_unknown else None)
    cautions = []
    if answers.left_out:
        names = [name for name, _ in answers.left_out]
        cautions.append(f"{plural(len(names), 'item')} could not be read and have no answer: {listed(names)}")
    values: dict[str, Any] = {"model": str(model), "answered": len(answers.rows), "left_out": dict(answers.left_out)}
    lines = answers.lines(format)
    if out is not None:
        _write(out, lines)
        values["out"] = str(out)
        return Answer(values, [f"{plural(len(answers.rows), 'answer')} in {out}"], cautions, done=f"{out} was written")
    return Answer({**values, "predictions": [row.to_dict() for row in answers.rows]}, lines, cautions)


@dataclass(frozen=True)
class AnswerRow:
    """The answer about one item.

    Parameters
    ----------
    item : str
        Its name.
    ranked : list of (str, float)
        Likely classes with their probability or score, the likeliest first.
    novelty : float or None
        How unlike anything learned it is, where that was asked for.
    unknown : bool or None
        Whether it belongs to no learned class, where that was asked for.
    """

    item: str
    ranked: list[tuple[str, float]]
    novelty: float | None = None
    unknown: bool | None = None
    measure: str = "probability"

    @property
    def answer(self) -> str | None:
        """The class, or None for an unknown thing."""
        return None if self.unknown else self.ranked[0][0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values: dict[str, Any] = {"item": self.item, "class": self.answer, self.measure: self.ranked[0][1]}
        if self.unknown is not None:
            values |= {"unknown": self.unknown, "novelty": self.novelty}
        return {**values, "top": [{"class": name, self.measure: value} for name, value in self.ranked]}


@dataclass(frozen=True)
class AnswerTable:
    """The answers about all items, and the items that could not be read."""

    rows: list[AnswerRow]
    measure: str
    rejects: bool
    top: int
    left_out: tuple[tuple[str, str], ...] = ()

    def lines(self, format: Format) -> list[str]:
        """Return the answers as lines of a table, of CSV or of JSON."""
        if format is Format.JSONL:
            return [json.dumps(row.to_dict()) for row in self.rows]
        return self._csv() if format is Format.CSV else self._table()

    def _csv(self) -> list[str]:
        columns = ["item", "class", self.measure, *(["unknown", "novelty"] if self.rejects else [])]
        ranks = range(1, self.top + 1) if self.top > 1 else ()
        columns += [f"{name}_{rank}" for rank in ranks for name in ("class", self.measure)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in self.rows:
            cells = [csv_text(row.item), csv_text(row.answer or ""), f"{row.ranked[0][1]:.6g}"]
            if self.rejects:
                cells += [str(bool(row.unknown)).lower(), f"{row.novelty:.6g}"]
            if ranks:
                cells += [cell for name, value in row.ranked for cell in (csv_text(name), f"{value:.6g}")]
            writer.writerow(cells)
        return text.getvalue().removesuffix("\n").split("\n")

    def _table(self) -> list[str]:
        columns = ["item", "class", self.measure]
        cells = []
        for row in self.rows:
            first = UNKNOWN if row.unknown else row.ranked[0][0]
            cells.append([row.item, first, self._shown(row.ranked[0][1])])
            rest = row.ranked if row.unknown and self.top > 1 else row.ranked[1:]
            cells += [["", name, self._shown(value)] for name, value in rest]
        return table(columns, cells, right=[self.measure])

    def _shown(self, value: float) -> str:
        return percent(value) if self.measure == "probability" else f"{value:.4g}"


def answer_table(
    learner: Learner, question: Question, *, top: int = 1, false_alarm: float | None = None
) -> AnswerTable:
    """Return the answers of a model; every item goes through the backbone once at most.

    Parameters
    ----------
    learner : Learner
        The model.
    question : Question
        The items.
    top : int
        How many classes to give of each.
    false_alarm : float or None
        Share of known things that may be called unknown; None rejects nothing.
    """
    found = learner.ask(question.items, false_alarm=false_alarm)
    ranked = _ranked(found, top)
    rows = []
    for place, row in enumerate(found.rows.tolist()):
        if found.novelty is None or found.unknown is None:
            rows.append(AnswerRow(question.names[row], ranked[place], measure=found.measure))
        else:
            novelty, unknown = float(found.novelty[place]), bool(found.unknown[place])
            rows.append(AnswerRow(question.names[row], ranked[place], novelty, unknown, found.measure))
    return AnswerTable(rows, found.measure, found.novelty is not None, min(top, len(found.classes)), found.failures)


def _ranked(found: Answers, top: int) -> list[list[tuple[str, float]]]:
    return [
        [(str(found.classes[column]), float(found.values[row, column])) for column in columns]
        for row, columns in enumerate(found.ranked(top).tolist())
    ]


def _write(out: Path, lines: list[str]) -> None:
    from evergrow.core.files import atomic_path

    with atomic_path(out) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
