"""``evergrow evaluate``: compare predictions with labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, facts, listed, percent, plural, table
from evergrow.cli.engine import NO_ENGINE, EngineOptions
from evergrow.cli.model_files import check_target, load_model, skipped_code, write_lines
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.learner.evaluation import Evaluation
    from evergrow.tools.learning_curves import LearningCurve

_MAX_ROWS = 10  # in the tables of classes and of confused pairs


@command("evaluate", panel="Predict and inspect")
def evaluate_command(
    model: options.ModelFile,
    data: options.Data,
    report: Path | None = None,
    unknown: str | None = None,
    false_alarm: options.FalseAlarm = 0.05,
    min_accuracy: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    curve: bool = False,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
    sharding: EngineOptions = NO_ENGINE,
) -> Answer:
    """Measure accuracy, recall and precision, and list the most confused classes.

    If DATA has train and test splits, the test split is evaluated, and --curve uses the
    train split. Classes in DATA that the model has not learned do not count in the
    accuracy. Like the data of --unknown, they test the detection of unknown samples.

    For example:

      evergrow evaluate birds.evg birds/test --report birds.html

      evergrow evaluate birds.evg birds/test --unknown other-birds/

      evergrow evaluate birds.evg birds/test --min-accuracy 0.9 --json

      evergrow evaluate birds.evg birds/ --curve --report birds.html

      evergrow evaluate birds.evg s3://bucket/test/ --engine local --workers 4

    Exit codes: 0 done; 1 done but the accuracy is below --min-accuracy, or images of
    DATA or --unknown were left out (--on-error skip); 2 bad input; 130 interrupted.

    Parameters
    ----------
    report
        HTML page to write: all figures, and the most certain wrong predictions.
    unknown : DATA
        Data of classes that the model has not learned, to test whether their samples
        are called unknown.
    min_accuracy
        Exit with code 1 if accuracy is below this.
    curve
        Also learn 1, 2, 5, ... samples per class of DATA, and estimate how much
        accuracy ten more samples per class would add. MODEL is not changed.
    """
    if report is not None:
        check_target("--report", report)
    learner = load_model(model, run)
    data_options = columns.data_options()
    values: dict[str, Any] = {"model": str(model), "data": data}
    if sharding.engine is not None:
        from evergrow.data import read

        sharding.reject(report=report, unknown=unknown, curve=curve)
        source = read(data, data_options, part="test")
        result, job_report = sharding.run(
            lambda engine: engine.evaluate(learner, source, false_alarm=false_alarm),
            model=model,
            quiet=run.as_json,
        )
        values |= {**result.to_dict(), "report": None, "engine": job_report.to_values()}
        cautions = [*_low_accuracy(result, min_accuracy), *job_report.summary()]
        return Answer(values, _evaluation_lines(result), cautions)

    from evergrow.data.inputs import read_labelled, read_unknown

    kind = learner.state_.kind
    unknown_samples = None
    if unknown is not None:
        unknown_samples = read_unknown(unknown, kind, options=data_options)
    result = learner.evaluate(
        read_labelled(data, "test", kind, data_options),
        unknown=unknown_samples,
        false_alarm=false_alarm,
        keep_samples=report is not None,
    )
    values |= {
        **result.to_dict(),
        "report": None if report is None else str(report),
    }
    lines = _evaluation_lines(result)
    n_left_out = len(result.left_out)
    picture = ""
    if curve:
        from evergrow.tools.learning_curves import curve_svg, learning_curve

        found = learning_curve(
            learner, read_labelled(data, "train", kind, data_options)
        )
        lines += _curve_lines(found)
        picture = curve_svg(found)
        values["curve"] = found.to_values()
        n_left_out += len(found.left_out)
    done = ""
    if report is not None:
        _write_report(report, result, model, data, picture)
        lines += ["", f"report in {report}"]
        done = f"{report} was written"
    cautions = _low_accuracy(result, min_accuracy)
    return Answer(values, lines, cautions, skipped_code(n_left_out), done=done)


def _low_accuracy(result: Evaluation, min_accuracy: float | None) -> list[str]:
    """Return a warning if the accuracy is below ``--min-accuracy``."""
    # "not >=" is also true if the accuracy is NaN.
    if min_accuracy is None or result.accuracy >= min_accuracy:
        return []
    return [
        f"accuracy is {percent(result.accuracy)}, below the "
        f"{percent(min_accuracy)} of --min-accuracy"
    ]


def _write_report(
    path: Path, result: Evaluation, model: Path, data: str, picture: str
) -> None:
    """Write the page of ``--report``. `picture` is an SVG image or empty."""
    from evergrow.cli.evaluation_page import evaluation_page

    page = evaluation_page(
        result,
        title=f"{model.stem} on {Path(data).name}",
        lead=f"Predictions of {model.name} for {data}",
        picture=picture,
    )
    write_lines(path, [page])


def _evaluation_lines(result: Evaluation) -> list[str]:
    """Return the figures, the classes with the lowest recall and the confused pairs."""
    lines = _summary_lines(result)
    lines += _class_lines(result)
    if result.confused:
        right = ["times", "of the class"]
        pairs = [
            [pair.true, pair.predicted, str(pair.n), percent(pair.fraction)]
            for pair in result.confused[:_MAX_ROWS]
        ]
        lines += ["", *table(["class", "predicted", *right], pairs, right)]
    return lines


def _summary_lines(result: Evaluation) -> list[str]:
    """Return accuracy, detection of unknown samples and duration as labelled values."""
    accuracy = f"{percent(result.accuracy)} of {plural(result.n_known, 'sample')}"
    entries = [
        ("accuracy", accuracy),
        ("mean over classes", percent(result.balanced_accuracy)),
    ]
    if result.unknown_classes:
        names = listed(list(result.unknown_classes), 3)
        samples = plural(result.n_unknown, "sample")
        entries.append(("never learned", f"{samples} of {names}; not in the accuracy"))
    found = result.unknown
    if found is not None:
        detected = percent(found.detection_rate)
        alarms = percent(found.false_alarm_rate)
        entries.append(
            (
                "unknown spotted",
                f"{detected} of {plural(found.n_unknown, 'sample')}, at {alarms} false "
                f"alarms ({percent(found.false_alarm)} aimed at); "
                f"AUROC {percent(found.auroc)}",
            )
        )
    return facts([*entries, ("seconds", f"{result.seconds:.1f}")])


def _class_lines(result: Evaluation) -> list[str]:
    """Return the classes with errors as a table, that with the lowest recall first."""
    from evergrow.cli.evaluation_page import sort_by_recall

    tested = [score for score in result.per_class if score.n]
    wrong = [score for score in sort_by_recall(tested) if score.recall < 1]
    if not wrong:
        return []
    rows = [
        [score.name, str(score.n), percent(score.recall), percent(score.precision)]
        for score in wrong[:_MAX_ROWS]
    ]
    right = ["samples", "recall", "precision"]
    more = plural(len(wrong) - len(rows), "more class", "more classes")
    n_perfect = len(tested) - len(wrong)
    return [
        "",
        *table(["class", *right], rows, right),
        f"({more} with errors, {n_perfect} without)",
    ]


def _curve_lines(curve: LearningCurve) -> list[str]:
    """Return a learning curve as labelled values, after an empty line."""
    points = [
        f"{size}: {percent(accuracy)}"
        for size, accuracy in zip(curve.sizes, curve.accuracy, strict=True)
    ]
    gain, low, high = (100 * value for value in curve.gain)
    estimate = f"{gain:+.1f} points, in 9 of 10 cases {low:+.1f} to {high:+.1f}"
    if curve.is_enough:
        estimate += "; more samples would hardly help"
    gained = [
        f"{name} ({percent(value)})"
        for name, value in curve.recall_gains.items()
        if value > 0
    ]
    entries = [
        ("samples per class", ", ".join(points)),
        ("ten more of each", estimate),
        ("gained most last", listed(gained, 5)),
    ]
    return ["", *facts(entries)]
