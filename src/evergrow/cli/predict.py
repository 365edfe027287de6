"""``evergrow predict`` and ``evaluate``: ask a model, and see how well it answers what people have labelled."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from evergrow.cli import options
from evergrow.cli.console import (
    Answer,
    facts,
    listed,
    note_line,
    percent,
    plural,
    table,
)
from evergrow.cli.engine import HERE, EngineOptions
from evergrow.cli.model_files import (
    check_target,
    load_model,
    note_rough,
    skipped_code,
    write_text,
)
from evergrow.cli.registry import command
from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError
from evergrow.core.escaping import csv_text, one_line

if TYPE_CHECKING:
    from evergrow.data.items import Items
    from evergrow.learner.answers import Answers
    from evergrow.learner.evaluation import Evaluation
    from evergrow.learner.learner import Learner

STDIN = "-"
KINDS = {"image": "images", "text": "texts", "features": "feature vectors"}
_LONGEST = 256 * 2**20  # bytes that standard input may have
Question = tuple[Any, list[str]]
"""Items in any form that a learner takes, and a name of each for people."""

_WORST = 10  # classes and pairs of classes that are listed at most


@command("predict", panel="Ask")
def predict_command(
    model: options.ModelFile,
    items: Annotated[list[str] | None, typer.Argument()] = None,
    text: Annotated[list[str] | None, typer.Option("-t")] = None,
    top: Annotated[int, typer.Option("-k", min=1)] = 1,
    unknown: bool = True,
    false_alarm: options.FalseAlarm = 0.05,
    format: Annotated[
        Literal["table", "csv", "jsonl", "label-studio", "fiftyone"], typer.Option("-f")
    ] = "table",
    out: Annotated[Path | None, typer.Option("-o")] = None,
    root: options.Rare[Path] = Path("."),
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
) -> Answer:
    """Say what images or texts show.

    For example:

      evergrow predict birds.evg photo.jpg --top 3

      evergrow predict birds.evg photos/ --format csv --out answers.csv

      ls photos/*.jpg | evergrow predict birds.evg - --format jsonl

      evergrow predict intents.evg --text "where is my parcel"

      evergrow predict birds.evg photos/ --format label-studio --out tasks.json

      evergrow predict birds.evg s3://bucket/photos/ --engine local --workers 4 --out
      answers/

    With --engine the answers are Parquet files in OUT/predict, one per shard.

    Exit codes: 0 answered, 1 answered but some could not be read (--on-error skip), 2
    bad input, 130 interrupted.

    Parameters
    ----------
    items : ITEMS
        Images, folders or archives of images, .txt/.csv/.jsonl/.parquet files of texts,
        tables of images, .npy/.npz of features; - reads one file name or text per line
        of standard input.
    text
        A text to ask about; repeatable.
    top
        How many classes to show of each.
    unknown
        Answer "unknown" for samples that belong to no learned class.
    format
        How to write the answers.
    out
        File to write them to; with --engine a folder.
    root
        For --format label-studio: the folder that Label Studio serves images from.
    """
    if out is not None and spread.engine is None:
        check_target("--out", out)
    asked = list(items or ())
    check_items(asked)
    learner = load_model(model, run)
    alarm = None
    if unknown and _tells_unknown(learner):
        alarm = false_alarm
    if spread.engine is not None:
        spread.refuse(text=text)
        if len(asked) != 1 or asked[0] == STDIN:
            raise ParameterError(
                "With --engine name one folder, file or address to ask about."
            )
        if out is None:
            raise ParameterError(
                "With --engine name a folder by --out: the answers are written there."
            )
        from evergrow.data import read

        source = read(asked[0], reading.options(), part="all", labelled=False)
        report = spread.run(
            lambda engine: engine.predict(learner, source, top=top, false_alarm=alarm),
            folder=out,
            quiet=run.as_json,
        )
        done = report.to_values()
        written = f"{out}/predict"
        values = {
            "model": str(model),
            "answered": done["rows"],
            "left_out": dict(done["left_out"]),
            "out": written,
        }
        line = f"{plural(done['rows'], 'answer')} in {written}"
        return Answer(
            {**values, "engine": done},
            [line],
            report.summary(),
            done=f"{written} was written",
        )
    things, names = read_question(learner.state_.kind, asked, list(text or ()), reading)
    found = learner.ask(things, false_alarm=alarm)
    rows = answer_rows(found, names, top)
    code = skipped_code(len(found.failures))
    values = {
        "model": str(model),
        "answered": len(rows),
        "left_out": dict(found.failures),
    }
    if format == "table" and found.measure == "probability":
        note_rough(learner)
    if format in ("label-studio", "fiftyone"):
        lines = _review(
            format,
            learner,
            (things, names),
            found,
            title=f"{model.name} {learner.state_.revision}",
            root=root,
        )
    elif format == "jsonl":
        lines = [json.dumps(row) for row in rows]
    else:
        lines = (_csv if format == "csv" else _table)(rows, found.measure)
    if out is None:
        return Answer({**values, "predictions": rows}, lines, code=code)
    write_text(out, "\n".join(lines) + "\n")
    line = f"{plural(len(rows), 'answer')} in {out}"
    return Answer(
        {**values, "out": str(out)}, [line], code=code, done=f"{out} was written"
    )


def _tells_unknown(learner: Learner) -> bool:
    """Return whether a model can tell unknown samples; print a note if it cannot."""
    if learner.state_.describe()["novelty"] is not None:
        return True
    note_line("the model cannot tell what it never learned: nothing is called unknown")
    return False


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
            {
                "class": str(found.classes[column]),
                found.measure: float(found.values[place, column]),
            }
            for column in columns
        ]
        row: dict[str, Any] = {"item": names[found.rows[place]], **ranked[0]}
        if (
            found.novelty is not None
            and found.unknown is not None
            and found.threshold is not None
        ):
            row |= {
                "unknown": bool(found.unknown[place]),
                "novelty": float(found.novelty[place]),
            }
            row |= {"threshold": float(found.threshold[place]), "nearest": ranked[0]}
            if row["unknown"]:
                row |= {"class": None, found.measure: None}
        rows.append({**row, "top": ranked})
    return rows


def _csv(rows: list[dict[str, Any]], measure: str) -> list[str]:
    """Return answers as lines of CSV."""
    names = ["item", "class", measure, "unknown", "novelty", "threshold"]
    table = []
    for row in rows:
        cells = {name: row[name] for name in names if name in row}
        cells |= {
            f"nearest_{name}": value for name, value in row.get("nearest", {}).items()
        }
        if len(row["top"]) > 1:
            ranked = enumerate(row["top"], 1)
            cells |= {
                f"{name}_{rank}": value
                for rank, entry in ranked
                for name, value in entry.items()
            }
        table.append(cells)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table[0] if table else names[:3])
    writer.writerows(map(_cell, cells.values()) for cells in table)
    return text.getvalue().removesuffix("\n").split("\n")


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return csv_text(value)
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).lower()


def _table(rows: list[dict[str, Any]], measure: str) -> list[str]:
    """Return a table.

    If a sample is unknown, further columns show its novelty and its nearest class,
    whose probability is not that of "unknown".
    """

    def shown(entry: dict[str, Any]) -> list[str]:
        value = entry[measure]
        return [
            entry["class"],
            percent(value) if measure == "probability" else f"{value:.4g}",
        ]

    any_unknown = any(row["class"] is None for row in rows)
    if any_unknown:
        novelty = ["novelty", "threshold"]
    else:
        novelty = []
    columns = ["item", "class", measure, *novelty, *(["nearest"] if novelty else [])]
    cells = []
    for row in rows:
        unknown = row["class"] is None
        line = [
            row["item"],
            *(["(unknown)", ""] if unknown else shown(row)),
            *(f"{row[name]:.4g}" for name in novelty),
        ]
        if novelty:
            line.append(" ".join(shown(row["nearest"])) if unknown else "")
        cells.append(line)
        for entry in row["top"][1:]:
            if unknown:
                more = ["", "", "", "", "", " ".join(shown(entry))]
            else:
                more = ["", *shown(entry)]
            cells.append([*more, *[""] * (len(line) - len(more))])
    return table(columns, cells, right=[measure, *novelty])


def _review(
    format: str,
    learner: Learner,
    question: Question,
    found: Answers,
    *,
    title: str,
    root: Path,
) -> list[str]:
    """Return answers as the lines of a file that an annotation tool loads."""
    from evergrow.export.review import fiftyone_labels, label_studio_tasks

    kind = learner.state_.kind
    if kind == "features" or (kind == "text" and format == "fiftyone"):
        raise InputError(
            f"--format {format} does not work for a model of {kind}; take table, csv or jsonl."
        )
    items, samples = question
    if kind == "text":  # whole, as they came: names are on one line
        samples = [items.raw_items().raw(row) for row in range(len(samples))]
    if format == "fiftyone":
        content: Any = fiftyone_labels(found, samples)
    else:
        content = label_studio_tasks(found, samples, kind, version=title, root=root)
    return json.dumps(content, indent=1, ensure_ascii=False).split("\n")


# -- what is asked about ---------------------------------------------------------------


def check_items(items: list[str]) -> None:
    """Refuse items that are no files, before a model is loaded to be asked about them."""
    for item in items:
        if item != STDIN and not os.path.exists(item):
            raise _missing(item)


def _missing(item: str) -> DatasetNotFoundError:
    quoted = '"' + item.replace('"', '\\"') + '"'
    if os.path.splitext(item)[1]:
        text = ""
    else:
        text = f"; give a text itself by --text {quoted}"
    return DatasetNotFoundError(f"No file or folder {item!r} here{text}.")


def read_question(
    kind: str,
    items: list[str],
    texts: list[str],
    reading: options.Reading = options.AS_FOUND,
) -> Question:
    """Return the items that the arguments name.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What the model takes.
    items : list of str
        Arguments: paths, or ``-`` for standard input.
    texts : list of str
        Texts given as such.
    reading : options.Reading
        Names of the columns of tables.
    """
    from evergrow.data.inputs import read_items

    if texts and kind != "text":
        raise InputError(
            f"--text is for models of texts, and this one takes {KINDS[kind]}."
        )
    if kind == "image":
        return _images(items, reading)
    if kind == "features":
        if len(items) != 1 or items[0] == STDIN:
            raise InputError(
                "This model takes feature vectors: name one .npy or .npz file."
            )
        samples = read_items(Path(items[0]), "features")
        return samples, samples.names()
    found: list[str] = []
    for item in items:
        if item == STDIN:
            found += map(str.strip, _piped())
            continue
        if not os.path.isfile(item):
            raise _missing(item)
        listed = read_items(Path(item), "text", reading.options()).raw_items()
        found += [listed.raw(row) for row in range(len(listed))]
    found += texts
    if not found:
        raise InputError(
            "There is no text to ask about: name a file, give --text or pipe lines into -."
        )
    for text in found:
        if (
            text.encode("utf-8", "replace").decode() != text
        ):  # in a file name other bytes would be part of the name
            raise InputError(f"The text {one_line(text)!r} is not UTF-8.")
    return read_items(found, "text"), [one_line(text) for text in found]


def _images(items: list[str], reading: options.Reading) -> Question:
    """Return images by the names they were given by; a single folder stays one, so that it is found in the cache."""
    from evergrow.data.image_suffixes import is_image
    from evergrow.data.inputs import read_items
    from evergrow.data.items import concat_items
    from evergrow.data.readers import reader_of_file

    names: list[str] = []
    parts: list[Items] = []
    for item in items:
        for name in _piped() if item == STDIN else [item]:
            images = read_items(Path(name), "image", reading.options()).raw_items()
            parts.append(images)
            if not os.path.isdir(name) and (
                is_image(name) or reader_of_file(name) is None
            ):
                names.append(name)
            else:
                names += [
                    os.path.join(name, images.name(row)) for row in range(len(images))
                ]
    if not names:
        raise InputError(
            "There is no image to ask about: name files or folders, or pipe names into -."
        )
    return concat_items(parts), names


def _piped() -> list[str]:
    """Return the lines of standard input that hold something; a file name need not be UTF-8."""
    body: bytes = sys.stdin.buffer.read(_LONGEST + 1)
    if len(body) > _LONGEST:
        raise InputError(
            f"Standard input holds more than the {_LONGEST // 2**20} MiB that are read of it."
        )
    if b"\0" in body:
        raise InputError(
            "Standard input takes names or texts, one per line; save an image to a file and name it."
        )
    return [
        line.rstrip("\r")
        for line in body.decode("utf-8", "surrogateescape").split("\n")
        if line.strip()
    ]


# -- answers compared with labels ------------------------------------------------------


@command("evaluate", panel="Ask")
def evaluate_command(
    model: options.ModelFile,
    data: options.Data,
    report: Path | None = None,
    unknown: str | None = None,
    false_alarm: options.FalseAlarm = 0.05,
    min_accuracy: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    curve: bool = False,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
) -> Answer:
    """Compare a model's answers with labels: accuracy, every class, and which classes are confused.

    Of data with a training and a test part the test part is used, else all of it.
    Classes in DATA that the model never learned count neither as right nor as wrong;
    they are used, as those of --unknown are, to see whether it notices.

    For example:

      evergrow evaluate birds.evg birds/test --report birds.html

      evergrow evaluate birds.evg birds/test --unknown other-birds/

      evergrow evaluate birds.evg birds/test --min-accuracy 0.9 --json

      evergrow evaluate birds.evg birds/ --curve --report birds.html

      evergrow evaluate birds.evg s3://bucket/test/ --engine local --workers 4

    Exit codes: 0 done, 1 done but below --min-accuracy or images were left out
    (--on-error skip), 2 bad input, 130 interrupted.

    Parameters
    ----------
    report
        HTML page to write, whole in one file.
    unknown : DATA
        Data of classes that were never learned.
    min_accuracy
        Accuracy, between 0 and 1, below which to leave with 1.
    curve
        Also learn parts of DATA anew, and say what ten more samples of each class would
        give.
    """
    from evergrow.data import read
    from evergrow.data.inputs import read_labelled, read_unknown

    if report is not None:
        check_target("--report", report)
    learner = load_model(model, run)
    job = None
    if spread.engine is not None:
        spread.refuse(report=report, unknown=unknown, curve=curve)
        source = read(data, reading.options(), part="test")
        result, job = spread.run(
            lambda engine: engine.evaluate(learner, source, false_alarm=false_alarm),
            model=model,
            quiet=run.as_json,
        )
    else:
        strange = None
        if unknown is not None:
            strange = read_unknown(
                unknown, learner.state_.kind, options=reading.options()
            )
        samples = read_labelled(data, "test", learner.state_.kind, reading.options())
        kept = report is not None
        result = learner.evaluate(
            samples, unknown=strange, false_alarm=false_alarm, keep_samples=kept
        )
    values = {
        "model": str(model),
        "data": data,
        **result.to_dict(),
        "report": None if report is None else str(report),
    }
    lines = evaluation_lines(result)
    cautions = []
    done = ""
    # Written so that an accuracy that is not a number fails too.
    if min_accuracy is not None and not result.accuracy >= min_accuracy:
        cautions.append(
            f"accuracy is {percent(result.accuracy)}, below the {percent(min_accuracy)} of --min-accuracy"
        )
    if job is not None:
        return Answer(
            {**values, "engine": job.to_values()}, lines, [*cautions, *job.summary()]
        )
    picture = ""
    if curve:
        from evergrow.cli.tools import curve_lines
        from evergrow.tools.learning_curves import curve_svg, learning_curve

        samples = read_labelled(data, "train", learner.state_.kind, reading.options())
        found = learning_curve(learner, samples)
        lines = [*lines, *curve_lines(found)]
        picture = curve_svg(found)
        values["curve"] = found.to_values()
    if report is not None:
        from evergrow.cli.pages import evaluation_page

        title = f"{model.stem} on {Path(data).name}"
        lead = f"{model.name}, asked about {data}"
        write_text(
            report, evaluation_page(result, title=title, lead=lead, picture=picture)
        )
        lines = [*lines, "", f"report in {report}"]
        done = f"{report} was written"
    return Answer(
        values, lines, cautions, skipped_code(len(result.left_out)), done=done
    )


def evaluation_lines(result: Evaluation) -> list[str]:
    """Return an evaluation for people: the figures, the worst classes and the commonest mistakes."""
    from evergrow.cli.pages import worst_first

    known = f"{percent(result.accuracy)} of {plural(result.n_known, 'sample')}"
    entries = [
        ("accuracy", known),
        ("mean over classes", percent(result.balanced_accuracy)),
    ]
    if result.unknown_classes:
        names = listed(list(result.unknown_classes), 3)
        entries.append(
            (
                "never learned",
                f"{plural(result.n_unknown, 'sample')} of {names}; not in the accuracy",
            )
        )
    if (found := result.unknown) is not None:
        spotted = (
            f"{percent(found.detection_rate)} of {plural(found.n_unknown, 'sample')}"
        )
        alarms = f"{percent(found.false_alarm_rate)} false alarms ({percent(found.false_alarm)} aimed at)"
        entries.append(
            ("unknown spotted", f"{spotted}, at {alarms}; AUROC {percent(found.auroc)}")
        )
    lines = facts([*entries, ("seconds", f"{result.seconds:.1f}")])
    wrong = [row for row in worst_first(result.per_class) if row.n and row.recall < 1]
    if wrong:
        rows = [
            [row.name, str(row.n), percent(row.recall), percent(row.precision)]
            for row in wrong[:_WORST]
        ]
        lines += [
            "",
            *table(
                ["class", "samples", "recall", "precision"],
                rows,
                ["samples", "recall", "precision"],
            ),
        ]
        perfect = sum(1 for row in result.per_class if row.n) - len(wrong)
        more = plural(len(wrong) - len(rows), "more class", "more classes")
        lines.append(f"({more} with errors, {perfect} without)")
    if result.confused:
        pairs = [
            [pair.true, pair.predicted, str(pair.n), percent(pair.share)]
            for pair in result.confused[:_WORST]
        ]
        lines += [
            "",
            *table(
                ["taken", "for", "times", "of the class"],
                pairs,
                ["times", "of the class"],
            ),
        ]
    return lines
