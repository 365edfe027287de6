"""``evergrow evaluate``: accuracy of a model on labelled data, and how well it spots classes it never learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, facts, listed, percent, plural, share, table
from evergrow.cli.engine import HERE, EngineOptions, source_of
from evergrow.cli.models import check_target, load_model, skipped_code
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.learner.evaluation import Evaluation

_WORST = 10


@command("evaluate", panel="Ask")
def evaluate_command(
    model: options.ModelFile,
    data: options.Data,
    report: Annotated[Path | None, typer.Option("--report", help="HTML page to write, whole in one file.")] = None,
    unknown: Annotated[
        str | None, typer.Option("--unknown", metavar="DATA", help="Data of classes that were never learned.")
    ] = None,
    false_alarm: options.FalseAlarm = 0.05,
    min_accuracy: Annotated[
        float | None, typer.Option("--min-accuracy", help="Accuracy, between 0 and 1, below which to leave with 1.")
    ] = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
    as_json: options.Json = False,
) -> Answer:
    """Compare a model's answers with labels: accuracy, every class, and which classes are confused.

    Of data with a training and a test part the test part is used, else all of it. Classes in DATA that the model never
    learned count neither as right nor as wrong; they are used, as those of --unknown are, to see whether it notices.

    For example:

      evergrow evaluate birds.evg birds/test --report birds.html

      evergrow evaluate birds.evg birds/test --unknown other-birds/

      evergrow evaluate birds.evg birds/test --min-accuracy 0.9 --json

      evergrow evaluate birds.evg s3://bucket/test/ --engine local --workers 4

    Exit codes: 0 done, 1 done but below --min-accuracy or images were left out (--on-error skip), 2 bad input, 130
    interrupted.
    """
    from evergrow.data.intake import read_labelled, read_unknown

    if min_accuracy is not None and not 0 <= min_accuracy <= 1:
        raise ParameterError(f"--min-accuracy is a share between 0 and 1, not {min_accuracy:g}.")
    if report is not None:
        check_target("--report", report)
    learner = load_model(model, run, quiet=as_json)
    if spread.engine is not None:
        spread.refuse(report=report, unknown=unknown)
        source = source_of(data, reading, part="test")
        found = spread.run(
            lambda engine: engine.evaluate(learner, source, false_alarm=false_alarm), model=model, quiet=as_json
        )
        if isinstance(found, Answer):
            return found
        result, job = found
        values = {"model": str(model), "data": data, **result.to_dict(), "report": None, "engine": job.to_values()}
        return Answer(values, evaluation_lines(result), [*_cautions(result, min_accuracy), *job.summary()])
    strange = None if unknown is None else read_unknown(unknown, learner.kind_, options=reading.options())
    samples = read_labelled(data, "test", learner.kind_, reading.options())
    kept = report is not None
    result = learner.evaluate(samples, unknown=strange, false_alarm=false_alarm, keep_samples=kept)
    if report is not None:
        from evergrow.cli.pages import evaluation_page, write_page

        title, lead = f"{model.stem} on {Path(data).name}", f"{model.name}, asked about {data}"
        write_page(report, evaluation_page(result, title=title, lead=lead))
    values = {"model": str(model), "data": data, **result.to_dict(), "report": None if report is None else str(report)}
    lines = evaluation_lines(result)
    if report is not None:
        lines += ["", f"report in {report}"]
    done = "" if report is None else f"{report} was written"
    cautions = _cautions(result, min_accuracy)
    return Answer(values, lines, cautions, skipped_code(len(result.left_out)), done=done)


def _cautions(result: Evaluation, min_accuracy: float | None) -> list[str]:
    cautions = []
    # Written so that an accuracy that is not a number fails too.
    if min_accuracy is not None and not result.accuracy >= min_accuracy:
        cautions.append(f"accuracy is {share(result.accuracy)}, below the {percent(min_accuracy)} of --min-accuracy")
    return cautions


def evaluation_lines(result: Evaluation) -> list[str]:
    """Return an evaluation for people: the figures, the worst classes and the commonest mistakes."""
    from evergrow.cli.pages import worst_first

    lines = facts(
        [
            ("accuracy", f"{share(result.accuracy)} of {plural(result.n_known, 'sample')}"),
            ("mean over classes", share(result.balanced_accuracy)),
            ("never learned", _never_learned(result)),
            ("unknown spotted", _spotted(result)),
            ("seconds", f"{result.seconds:.1f}"),
        ]
    )
    wrong = [row for row in worst_first(result.per_class) if row.n and row.recall < 1]
    if wrong:
        rows = [[row.name, str(row.n), share(row.recall), share(row.precision)] for row in wrong[:_WORST]]
        lines += [
            "",
            *table(["class", "samples", "recall", "precision"], rows, ["samples", "recall", "precision"]),
        ]
        perfect = sum(1 for row in result.per_class if row.n) - len(wrong)
        more = len(wrong) - len(rows)
        lines.append(f"({plural(more, 'more class', 'more classes')} with errors, {perfect} without)")
    if result.confused:
        pairs = [[pair.true, pair.predicted, str(pair.n), share(pair.share)] for pair in result.confused[:_WORST]]
        lines += ["", *table(["taken", "for", "times", "of the class"], pairs, ["times", "of the class"])]
    return lines


def _never_learned(result: Evaluation) -> str:
    if not result.unknown_classes:
        return ""
    return f"{plural(result.n_unknown, 'sample')} of {listed(list(result.unknown_classes), 3)}; not in the accuracy"


def _spotted(result: Evaluation) -> str:
    found = result.unknown
    if found is None:
        return ""
    return (
        f"{share(found.detection_rate)} of {plural(found.n_unknown, 'sample')}, at {share(found.false_alarm_rate)} "
        f"false alarms ({share(found.false_alarm)} aimed at); AUROC {share(found.auroc)}"
    )
