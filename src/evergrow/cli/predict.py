"""``evergrow predict``: ask a model about images, texts or feature vectors."""

from __future__ import annotations

import csv
import io
import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, percent, plural, table
from evergrow.cli.engine import HERE, EngineOptions, source_of
from evergrow.cli.models import check_target, load_model, skipped_code
from evergrow.cli.question import Question, check_items, read_question
from evergrow.cli.registry import command
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.escaping import csv_text

if TYPE_CHECKING:
    from evergrow.data import Source
    from evergrow.engine.job_steps import JobReport
    from evergrow.learner.answers import Answers
    from evergrow.learner.learner import Learner

UNKNOWN = "(unknown)"


class Format(str, Enum):
    """How answers are written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"
    LABEL_STUDIO = "label-studio"
    FIFTYONE = "fiftyone"


@command("predict", panel="Ask")
def predict_command(
    model: options.ModelFile,
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ITEMS",
            help="Images, folders or archives of images, .txt/.csv/.jsonl/.parquet files of texts, tables of images, "
            ".npy/.npz of features; - reads standard input: one image, or per line one file name or text.",
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A text to ask about; repeatable.")] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="How many classes to show of each.")] = 1,
    reject_unknown: Annotated[
        bool, typer.Option("--reject-unknown", help="Say so where something belongs to no learned class.")
    ] = False,
    false_alarm: options.FalseAlarm = 0.05,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to write the answers.")] = Format.TABLE,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write them to; with --engine a folder.")
    ] = None,
    root: Annotated[
        Path,
        options.Rare("for --format label-studio: the folder that Label Studio serves images from"),
    ] = Path("."),
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
    as_json: options.Json = False,
) -> Answer:
    """Say what images or texts show.

    For example:

      evergrow predict birds.evg photo.jpg --top 3

      evergrow predict birds.evg photos/ --reject-unknown --format csv --out answers.csv

      ls photos/*.jpg | evergrow predict birds.evg - --format jsonl

      curl https://example.org/bird.jpg | evergrow predict birds.evg -

      evergrow predict intents.evg --text "where is my parcel"

      evergrow predict birds.evg photos/ --format label-studio --out tasks.json

      evergrow predict birds.evg s3://bucket/photos/ --engine local --workers 4 --out answers/

    With --engine the answers are Parquet files in OUT/predict, one per shard.

    Exit codes: 0 answered, 1 answered but some could not be read (--on-error skip), 2 bad input, 130 interrupted.
    """
    if out is not None and spread.engine is None:
        check_target("--out", out)
    check_items(list(items or ()))
    learner = load_model(model, run, quiet=as_json)
    alarm = false_alarm if reject_unknown else None
    if spread.engine is not None:
        spread.refuse(text=text)
        source = _one_source(list(items or ()), out, reading)
        report = spread.run(
            lambda engine: engine.predict(learner, source, top=top, false_alarm=alarm), folder=out, quiet=as_json
        )
        return report if isinstance(report, Answer) else _shards_answer(model, f"{out}/predict", report)
    question = read_question(learner.kind_, list(items or ()), list(text or ()), reading)
    found = learner.ask(question.items, false_alarm=alarm)
    rows = answer_rows(found, question.names, top)
    code = skipped_code(len(found.failures))
    values: dict[str, Any] = {"model": str(model), "answered": len(rows), "left_out": dict(found.failures)}
    if format in (Format.LABEL_STUDIO, Format.FIFTYONE):
        lines = review_lines(format, learner, question, found, title=f"{model.name} {learner.revision_}", root=root)
    else:
        lines = answer_lines(format, rows, found.measure)
    if out is not None:
        _write(out, lines)
        values["out"] = str(out)
        return Answer(values, [f"{plural(len(rows), 'answer')} in {out}"], code=code, done=f"{out} was written")
    return Answer({**values, "predictions": rows}, lines, code=code)


def _one_source(items: list[str], out: Path | None, reading: options.Reading) -> Source:
    """Return the one thing that an engine asks about; its answers need a folder."""
    if len(items) != 1 or items[0] == "-":
        raise ParameterError("With --engine name one folder, file or address to ask about.")
    if out is None:
        raise ParameterError("With --engine name a folder by --out: the answers are written there.")
    return source_of(items[0], reading, part="all", labelled=False)


def _shards_answer(model: Path, out: str, report: JobReport) -> Answer:
    """Return where an engine has written its answers."""
    found = report.to_values()
    values = {"model": str(model), "answered": found["rows"], "left_out": dict(found["left_out"]), "out": out}
    line = f"{plural(found['rows'], 'answer')} in {out}"
    return Answer({**values, "engine": found}, [line], report.summary(), done=f"{out} was written")


def answer_rows(found: Answers, names: list[str], top: int) -> list[dict[str, Any]]:
    """Return the answer about each item as plain values; an unknown thing has no class, only a nearest one.

    Parameters
    ----------
    found : Answers
        Of a model.
    names : list of str
        A name of every item that it was asked about.
    top : int
        How many classes to give of each.
    """
    rows = []
    for place, columns in enumerate(found.ranked(top).tolist()):
        ranked = [
            {"class": str(found.classes[column]), found.measure: float(found.values[place, column])}
            for column in columns
        ]
        row: dict[str, Any] = {"item": names[found.rows[place]], **ranked[0]}
        if found.novelty is not None and found.unknown is not None and found.threshold is not None:
            row |= {"unknown": bool(found.unknown[place]), "novelty": float(found.novelty[place])}
            row |= {"threshold": float(found.threshold[place]), "nearest": ranked[0]}
            if row["unknown"]:
                row |= {"class": None, found.measure: None}
        rows.append({**row, "top": ranked})
    return rows


def answer_lines(format: Format, rows: list[dict[str, Any]], measure: str) -> list[str]:
    """Return answers as lines of a table, of CSV or of JSON."""
    if format is Format.JSONL:
        return [json.dumps(row) for row in rows]
    return _csv(rows, measure) if format is Format.CSV else _table(rows, measure)


def _csv(rows: list[dict[str, Any]], measure: str) -> list[str]:
    columns = ["item", "class", measure]
    first = rows[0] if rows else {"top": []}
    if "novelty" in first:
        columns += ["unknown", "novelty", "threshold", "nearest_class", f"nearest_{measure}"]
    ranks = range(1, len(first["top"]) + 1) if len(first["top"]) > 1 else ()
    columns += [f"{name}_{rank}" for rank in ranks for name in ("class", measure)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = [csv_text(row["item"]), *_csv_cells(row, measure)]
        if "novelty" in row:
            cells += [str(row["unknown"]).lower(), f"{row['novelty']:.6g}", f"{row['threshold']:.6g}"]
            cells += _csv_cells(row["nearest"], measure)
        for _, entry in zip(ranks, row["top"], strict=False):
            cells += _csv_cells(entry, measure)
        writer.writerow(cells)
    return text.getvalue().removesuffix("\n").split("\n")


def _csv_cells(entry: dict[str, Any], measure: str) -> list[str]:
    return ["", ""] if entry["class"] is None else [csv_text(entry["class"]), f"{entry[measure]:.6g}"]


def _table(rows: list[dict[str, Any]], measure: str) -> list[str]:
    """Return a table; of unknown things the nearest class stands apart, since its certainty is not theirs."""

    def shown(entry: dict[str, Any]) -> list[str]:
        value = entry[measure]
        return [entry["class"], percent(value) if measure == "probability" else f"{value:.4g}"]

    columns, right = ["item", "class", measure], [measure]
    if rows and "novelty" in rows[0]:
        columns, right = [*columns, "novelty", "threshold", "nearest"], [*right, "novelty", "threshold"]
    cells = []
    for row in rows:
        unknown = row["class"] is None
        line = [row["item"], *([UNKNOWN, ""] if unknown else shown(row))]
        if "novelty" in row:
            line += [f"{row['novelty']:.4g}", f"{row['threshold']:.4g}"]
            line.append(" ".join(shown(row["nearest"])) if unknown else "")
        cells.append(line)
        for entry in row["top"][1:]:
            more = ["", "", "", "", "", " ".join(shown(entry))] if unknown else ["", *shown(entry)]
            cells.append([*more, *[""] * (len(line) - len(more))])
    return table(columns, cells, right=right)


def review_lines(
    format: Format, learner: Learner, question: Question, found: Answers, *, title: str, root: Path
) -> list[str]:
    """Return answers as the lines of a file that an annotation tool loads."""
    from evergrow.export.review import fiftyone_labels, label_studio_tasks

    kind = learner.kind_
    if kind == "features" or (kind == "text" and format is Format.FIFTYONE):
        raise InputError(f"--format {format.value} does not work for a model of {kind}; take table, csv or jsonl.")
    samples = question.names
    if kind == "text":  # whole, as they came: names are on one line
        samples = [question.items.raw_items().raw(row) for row in range(len(question.names))]
    if format is Format.FIFTYONE:
        content: Any = fiftyone_labels(found, samples)
    else:
        content = label_studio_tasks(found, samples, kind, version=title, root=root)
    return json.dumps(content, indent=1, ensure_ascii=False).split("\n")


def _write(out: Path, lines: list[str]) -> None:
    from evergrow.core.files import atomic_path

    with atomic_path(out) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
