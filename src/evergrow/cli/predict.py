"""``evergrow predict``: classify images, texts or feature vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from evergrow.cli import options
from evergrow.cli.console import (
    Answer,
    csv_lines,
    note_line,
    percent,
    plural,
    table,
)
from evergrow.cli.engine import NO_ENGINE, EngineOptions
from evergrow.cli.evidence import NO_EVIDENCE, EvidenceOptions
from evergrow.cli.model_files import (
    can_reject_unknown,
    check_target,
    load_model,
    note_few_samples,
    note_one_class,
    skipped_code,
    strictness_lines,
    write_lines,
)
from evergrow.cli.registry import command
from evergrow.cli.samples import STDIN, NamedSamples, check_paths, read_samples
from evergrow.core.errors import InputError, ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evergrow.data import DataOptions
    from evergrow.engine.job import JobReport
    from evergrow.learner.learner import Learner
    from evergrow.learner.prediction_sets import PredictionSets
    from evergrow.learner.predictions import Predictions

MOST_LISTED = 4
"""Number of classes of a set that a table shows."""


@command("predict", panel="Predict and inspect")
def predict_command(
    model: options.ModelFile,
    items: Annotated[list[str] | None, typer.Argument()] = None,
    text: Annotated[list[str] | None, typer.Option("-t")] = None,
    top: Annotated[int, typer.Option("-k", min=1)] = 1,
    unknown: bool = True,
    false_alarm: options.FalseAlarm = 0.05,
    strangers: options.StrangersIfGiven = None,
    coverage: Annotated[float | None, typer.Option()] = None,
    per_class: bool = False,
    format: Annotated[
        Literal["table", "csv", "jsonl", "label-studio", "fiftyone"], typer.Option("-f")
    ] = "table",
    out: Annotated[Path | None, typer.Option("-o")] = None,
    root: options.Rare[Path] = Path("."),
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    evidence: EvidenceOptions = NO_EVIDENCE,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
    sharding: EngineOptions = NO_ENGINE,
) -> Answer:
    """Predict the class of images, texts or feature vectors.

    For example:

      evergrow predict birds.evg photo.jpg --top 3

      evergrow predict birds.evg photos/ --format csv --out answers.csv

      ls photos/*.jpg | evergrow predict birds.evg - --format jsonl

      evergrow predict intents.evg --text "where is my parcel"

      evergrow predict birds.evg photos/ --coverage 0.95

      evergrow predict birds.evg photo.jpg --heatmap why.png --against "House Wren"

      evergrow predict birds.evg photos/ --format label-studio --out tasks.json

      evergrow predict birds.evg s3://bucket/photos/ --engine local --workers 4 --out
      answers/

    With --engine, ITEMS is one folder, file or address, processed in shards (parts).
    The predictions are Parquet files in the folder predict of --out, one per shard.

    A prediction is unsure if its probability is low, or if the sample may be of an
    unknown class. --strangers sets both limits: (unsure) in tables, a column in CSV and
    Parquet, a key in JSON. For Label Studio, unsure samples have no prediction.

    With --coverage 0.95, each sample also has a set of classes. The set has the true
    class for 95 % of new samples of learned classes. It is empty, and the sample is
    unknown, if the sample looks like no learned class; this replaces --false-alarm.

    Exit codes: 0 predicted; 1 predicted but some samples could not be read (--on-error
    skip); 2 bad input; 130 interrupted.

    Parameters
    ----------
    items : ITEMS
        Images, folders or archives of images, tables of images or texts, .txt files of
        texts, or one .npy or .npz file of features; - reads one file name or text per
        line from standard input.
    text
        Text to predict; repeatable.
    top
        Number of classes to print for each sample.
    unknown
        Answer "unknown" for samples that look like no learned class: (unknown) in
        tables, an empty class in CSV, null in JSON.
    coverage
        Fraction of new samples whose set of classes has their class, between 0 and 1.
        Not with --engine or the formats of annotation tools.
    per_class
        With --coverage: let the coverage hold for the samples of each class.
    format
        Format of the printed predictions, or of the file --out. With --json the printed
        predictions are JSON.
    out
        File to write instead of printing; with --engine the folder to write to.
    root
        Folder that Label Studio serves images from, for --format label-studio.
    """
    if out is not None and sharding.engine is None:
        check_target("--out", out)
    _check_coverage(coverage, per_class, format)
    paths = list(items or ())
    check_paths(paths)
    from evergrow.tools.strictness import USUAL, unsure_predictions

    learner = load_model(model, run)
    alarm = None
    if unknown and can_reject_unknown(learner):
        alarm = false_alarm
    if strangers is not None:
        for line in strictness_lines(learner, strangers):
            note_line(line)
    if sharding.engine is not None:
        sharding.reject(
            text=text,
            coverage=coverage,
            heatmap=evidence.heatmap,
            words=evidence.words,
        )
        settings = {
            "top": top,
            "false_alarm": alarm,
            "strangers": strangers or USUAL,
        }
        data_options = columns.data_options()
        return _predict_sharded(
            model, learner, paths, data_options, out, sharding, settings, run.as_json
        )

    evidence.check(learner.state_.kind, learner)
    samples, names = read_samples(learner.state_.kind, paths, text or (), columns)
    found, sets = _predict(learner, samples, alarm, coverage, per_class=per_class)
    unsure = unsure_predictions(learner.state_.calibration, found, strangers or USUAL)
    rows = prediction_rows(found, names, top, unsure, sets)
    evidence_lines = evidence.add(rows, learner, samples, found.rows.tolist())
    _print_notes(format, learner, found, sets)
    note_one_class(learner)
    if format in ("label-studio", "fiftyone"):
        title = f"{model.name} {learner.state_.revision}"
        # With --no-unknown, every sample gets a class.
        marked = unsure if unknown else None
        asked = (samples, names)
        lines = _review_lines(
            format, learner, asked, found, marked, title=title, root=root
        )
    else:
        lines = _row_lines(format, rows, found.measure, evidence_lines)
    code = skipped_code(len(found.failures))
    values = {
        "model": str(model),
        "answered": len(rows),
        "left_out": dict(found.failures),
        **_set_values(sets),
    }
    if out is None:
        return Answer({**values, "predictions": rows}, lines, code=code)
    write_lines(out, lines)
    return Answer(
        {**values, "out": str(out)},
        [f"{plural(len(rows), 'answer')} in {out}"],
        code=code,
        done=f"{out} was written",
    )


def _check_coverage(coverage: float | None, per_class: bool, format: str) -> None:
    """Raise :class:`ParameterError` if the options of prediction sets do not fit."""
    if coverage is None:
        if per_class:
            raise ParameterError("With --per-class, name a --coverage.")
        return
    if not 0.0 < coverage < 1.0:
        raise ParameterError(
            f"--coverage must be between 0 and 1, such as 0.95, got {coverage:g}."
        )
    if format in ("label-studio", "fiftyone"):
        raise ParameterError("--coverage works with --format table, csv and jsonl.")


def _predict(
    learner: Learner,
    samples: Any,
    false_alarm: float | None,
    coverage: float | None,
    *,
    per_class: bool,
) -> tuple[Predictions, PredictionSets | None]:
    """Return the predictions of samples, and their sets if there is a coverage."""
    if coverage is None:
        return learner.predictions(samples, false_alarm=false_alarm), None
    sets = learner.predict_set(samples, coverage, per_class=per_class)
    return sets.predictions, sets


def _print_notes(
    format: str, learner: Learner, found: Predictions, sets: PredictionSets | None
) -> None:
    """Print notes on tables: probabilities and sets that rest on few samples."""
    if format != "table":
        return
    if found.measure == "probability":
        note_few_samples(learner)
    # If the sets have all classes, a warning has said so.
    if sets is not None and sets.note and not sets.limits.is_trivial:
        note_line(sets.note)


def _set_values(sets: PredictionSets | None) -> dict[str, Any]:
    """Return the coverage and its note for ``--json``; nothing without sets."""
    if sets is None:
        return {}
    return {"coverage": sets.coverage, "note": sets.note}


def _predict_sharded(
    model: Path,
    learner: Learner,
    paths: Sequence[str],
    options: DataOptions,
    out: Path | None,
    sharding: EngineOptions,
    settings: dict[str, Any],
    as_json: bool,
) -> Answer:
    """Predict data shard by shard: ``predict --engine``.

    Parameters
    ----------
    model : Path
        The model file.
    learner : Learner
        The model.
    paths : sequence of str
        ITEMS of the command; must be one folder, file or address.
    options : DataOptions
        How to read the data.
    out : Path or None
        Folder of the predictions.
    sharding : EngineOptions
        The engine.
    settings : dict
        Arguments of `Engine.predict`.
    as_json : bool
        Whether the command prints JSON.

    Raises
    ------
    ParameterError
        If arguments are missing.
    """
    if len(paths) != 1 or paths[0] == STDIN:
        raise ParameterError("With --engine, name one folder, file or address.")
    if out is None:
        raise ParameterError(
            "With --engine, name a folder by --out for the predictions."
        )
    from evergrow.data import read

    source = read(paths[0], options, part="all", labelled=False)
    report = sharding.run(
        lambda engine: engine.predict(learner, source, **settings),
        folder=out,
        quiet=as_json,
    )
    return _sharded_answer(model, f"{out}/predict", report)


def _sharded_answer(model: Path, folder: str, report: JobReport) -> Answer:
    """Return the answer for predictions that workers wrote to a folder."""
    job = report.to_values()
    values = {
        "model": str(model),
        "answered": job["rows"],
        "left_out": dict(job["left_out"]),
        "out": folder,
        "engine": job,
    }
    line = f"{plural(job['rows'], 'answer')} in {folder}"
    return Answer(values, [line], report.summary(), done=f"{folder} was written")


def prediction_rows(
    found: Predictions,
    names: Sequence[str],
    top: int,
    unsure: NDArray[np.bool_] | None = None,
    sets: PredictionSets | None = None,
) -> list[dict[str, Any]]:
    """Return one row of plain values per prediction.

    Parameters
    ----------
    found : Predictions
        Predictions of a learner.
    names : sequence of str
        Display names of all samples, readable or not.
    top : int
        Number of classes in each row.
    unsure : ndarray of bool, optional
        Which predictions are unsure.
    sets : PredictionSets, optional
        The prediction sets of the samples.

    Returns
    -------
    list of dict
        ``item``, ``class``, its ``probability`` (or another measure of
        :class:`Predictions`) and ``top``, the likeliest classes with their values. If
        novelty was measured also ``unknown``, ``novelty``, ``threshold`` and
        ``nearest``, the likeliest class with its value; class and value of an unknown
        sample are None.
        ``unsure`` if given, and with `sets` also ``set``, the classes of a sample.
    """
    rows = []
    for index, ranked_columns in enumerate(found.ranked(top).tolist()):
        ranked = [
            {
                "class": str(found.classes[column]),
                found.measure: float(found.values[index, column]),
            }
            for column in ranked_columns
        ]
        row: dict[str, Any] = {"item": names[found.rows[index]], **ranked[0]}
        if (
            found.novelty is not None
            and found.unknown is not None
            and found.threshold is not None
        ):
            row["unknown"] = bool(found.unknown[index])
            row["novelty"] = float(found.novelty[index])
            row["threshold"] = float(found.threshold[index])
            row["nearest"] = ranked[0]
            if row["unknown"]:
                row["class"] = None
                row[found.measure] = None
        row["top"] = ranked
        if unsure is not None:
            row["unsure"] = bool(unsure[index])
        rows.append(row)
    if sets is not None:
        for row, labels in zip(rows, sets.labels, strict=True):
            row["set"] = [str(label) for label in labels.tolist()]
    return rows


def _row_lines(
    format: str, rows: list[dict[str, Any]], measure: str, evidence: Sequence[str]
) -> list[str]:
    """Return the rows of :func:`prediction_rows` as JSON lines, CSV or a table.

    The lines of `evidence` follow a table.
    """
    if format == "jsonl":
        return [json.dumps(row) for row in rows]
    if format == "csv":
        return _prediction_csv(rows, measure)
    return [*_table_lines(rows, measure), *evidence]


def _prediction_csv(rows: list[dict[str, Any]], measure: str) -> list[str]:
    """Return predictions as CSV: the header, then one line per prediction.

    Parameters
    ----------
    rows : list of dict
        Result of :func:`prediction_rows`. All have the same keys, and so the same
        columns.
    measure : {"probability", "familiarity", "score"}
        Kind of the class values.
    """
    names = ["item", "class", measure, "unknown", "unsure", "novelty", "threshold"]
    cells_of_rows = []
    for row in rows:
        cells = {name: row[name] for name in names if name in row}
        if "set" in row:
            cells["set"] = "|".join(row["set"])
        for name, value in row.get("nearest", {}).items():
            cells[f"nearest_{name}"] = value
        if len(row["top"]) > 1:
            for rank, entry in enumerate(row["top"], 1):
                for name, value in entry.items():
                    cells[f"{name}_{rank}"] = value
        cells_of_rows.append(cells)
    header = list(cells_of_rows[0]) if rows else names[:3]
    return csv_lines(header, [cells.values() for cells in cells_of_rows])


def _table_lines(rows: list[dict[str, Any]], measure: str) -> list[str]:
    """Return predictions as a table, with one line per class of a sample.

    If a sample is unknown, further columns have the novelty and the nearest class. If
    the rows have sets, the last column has them.

    Parameters
    ----------
    rows : list of dict
        Result of :func:`prediction_rows`.
    measure : {"probability", "familiarity", "score"}
        Kind of the class values.
    """

    def shown(entry: dict[str, Any]) -> list[str]:
        """Return class and value of an entry of ``top`` as text."""
        value = entry[measure]
        if measure in ("probability", "familiarity"):
            return [entry["class"], percent(value)]
        return [entry["class"], f"{value:.4g}"]

    columns = ["item", "class", measure]
    any_unknown = any(row["class"] is None for row in rows)
    if any_unknown:
        columns += ["novelty", "threshold", "nearest"]
    has_sets = any("set" in row for row in rows)
    if has_sets:
        columns.append("set")
    cells = []
    for row in rows:
        for rank, entry in enumerate(row["top"]):
            prediction = shown(entry)
            nearest = ""
            if row["class"] is None:
                # The likeliest classes of an unknown sample are not its prediction.
                nearest = " ".join(prediction)
                prediction = ["(unknown)" if rank == 0 else "", ""]
            elif row.get("unsure") and rank == 0:
                prediction[0] += " (unsure)"
            line = [row["item"] if rank == 0 else "", *prediction]
            if any_unknown:
                novelty = ["", ""]
                if rank == 0:
                    novelty = [f"{row[name]:.4g}" for name in ("novelty", "threshold")]
                line += [*novelty, nearest]
            if has_sets:
                line.append(_listed(row["set"]) if rank == 0 else "")
            cells.append(line)
    return table(columns, cells, right=[measure, "novelty", "threshold"])


def _listed(names: Sequence[str]) -> str:
    """Return the first names of a set, and the number of the others."""
    shown = ", ".join(names[:MOST_LISTED])
    n_more = len(names) - MOST_LISTED
    if n_more > 0:
        return f"{shown} and {n_more} more"
    return shown


def _review_lines(
    format: str,
    learner: Learner,
    samples: NamedSamples,
    found: Predictions,
    unsure: NDArray[np.bool_] | None,
    *,
    title: str,
    root: Path,
) -> list[str]:
    """Return predictions as the lines of a file for an annotation tool.

    Parameters
    ----------
    format : {"label-studio", "fiftyone"}
        The tool.
    learner : Learner
        Supplies the kind of the samples.
    samples : (object, list of str)
        Samples and display names, from :func:`~evergrow.cli.samples.read_samples`.
    found : Predictions
        The predictions.
    unsure : ndarray of bool or None
        Which of them are unsure.
    title : str
        Model version that Label Studio shows.
    root : Path
        Folder that Label Studio serves images from.

    Raises
    ------
    InputError
        If the tool cannot show samples of this kind.
    """
    from evergrow.export.review import fiftyone_labels, label_studio_tasks

    kind = learner.state_.kind
    if kind == "features" or (kind == "text" and format == "fiftyone"):
        raise InputError(
            f"--format {format} does not work for a model of {kind}; use table, csv or "
            "jsonl."
        )
    items, contents = samples
    if kind == "text":  # the names are texts on one line; tools need the original
        contents = [items.raw_items().raw(row) for row in range(len(contents))]
    if format == "fiftyone":
        document: Any = fiftyone_labels(found, contents, unsure=unsure)
    else:
        document = label_studio_tasks(
            found, contents, kind, version=title, root=root, unsure=unsure
        )
    return json.dumps(document, indent=1, ensure_ascii=False).split("\n")
