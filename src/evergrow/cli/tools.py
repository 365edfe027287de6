"""Fewer labels: samples without labels are learned, suggested for labelling, grouped and tested; models fade."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow import tools
from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, facts, listed, percent, plural, table
from evergrow.cli.predict import check_items, read_question
from evergrow.cli.registry import command
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.escaping import csv_text

if TYPE_CHECKING:
    from evergrow.tools.learning_curves import LearningCurve

Unlabelled = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder of images, table of texts or .npz of features; labels do not matter.",
    ),
]

_SHOWN = 10


def learned_without_labels(
    model: Path,
    data: str,
    test: str | None,
    reading: options.Reading,
    run: options.ImageOptions,
    wait: bool,
) -> Answer:
    """Teach a model data without labels; what ``evergrow update --unlabelled`` does."""
    from evergrow.tools.comparison import measured_change

    check_items([data])
    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        things, names = read_question(learner.state_.kind, [data], [], reading)
        with measured_change(learner, test, reading.options()):
            report = learner.learn_unlabelled(things)
    left = [
        f"{n:,} {why}"
        for n, why in (
            (report.unknown, "look unknown"),
            (report.repeated, "are copies"),
        )
        if n
    ]
    said = f"learned {plural(report.used, 'sample')} without labels{f' (left out: {listed(left)})' if left else ''}"
    code = model_files.skipped_code(
        len(names) - report.used - report.unknown - report.repeated
    )
    lines = [said, *model_files.tested_lines(change)]
    return change.answer(
        lines,
        code=code,
        unlabelled=vars(report),
        seconds=change.seconds,
        test=change.tested,
    )


@command("fade", panel="Edit")
def fade_command(
    model: options.ModelFile,
    factor: Annotated[float, typer.Argument(metavar="FACTOR")],
    wait: options.Wait = False,
) -> Answer:
    """Let everything learned so far count for less than what comes, for things whose looks change. Needs no data.

    The model then is the one that learning every sample with FACTOR times its weight
    would have given.

    For example:

      evergrow fade birds.evg 0.5

    Exit codes: 0 faded, 2 no model or a factor out of range, and nothing changed, 3
    another process is changing the model.

    Parameters
    ----------
    factor
        What every sample counts for from now on, in units of what it counted for; above
        0, at most 1.
    """
    with model_files.changing_model(model, wait=wait) as change:
        change.learner.fade(factor)
    said = f"{plural(change.record.samples, 'sample')} now count {factor:g} times what they did"
    return change.answer([said], factor=factor)


@command("suggest", panel="Ask")
def suggest_command(
    model: options.ModelFile,
    data: Unlabelled,
    n: Annotated[int, typer.Option("--number", "-n", min=1)] = 20,
    unknown_share: Annotated[float, typer.Option(min=0, max=1)] = 0.2,
    learned: str | None = None,
    out: Annotated[Path | None, typer.Option("-o")] = None,
    copy: Path | None = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
) -> Answer:
    """Name the samples to label next: those the model is least sure of, no two alike, and some that look unknown.

    For example:

      evergrow suggest birds.evg photos/ -n 20

      evergrow suggest birds.evg photos/ --learned birds/train --copy to-label/

      evergrow suggest intents.evg questions.csv --out list.csv

    Exit codes: 0 named, 2 bad input, 130 interrupted.

    Parameters
    ----------
    n
        How many to name.
    unknown_share
        Share of them that look like no learned class; 0 does not ask for novelty.
    learned : DATA
        What has labels already: it, and what is all but the same, is not named.
    out
        CSV file of the names and reasons.
    copy : FOLDER
        Folder to copy the files to, in order.
    """
    check_items([data, *([learned] if learned else [])])
    if out is not None:
        model_files.check_target("--out", out)
    learner = model_files.load_model(model, run)
    things, names = read_question(learner.state_.kind, [data], [], reading)
    old = None
    if learned is not None:
        old = read_question(learner.state_.kind, [learned], [], reading)[0]
    found = tools.suggest(
        learner, things, n, novel_fraction=unknown_share, labelled=old
    )
    chosen = [names[row] for row in found.rows]
    signs = zip(found.is_novel, found.margins)
    why = [
        "looks unknown" if strange else f"margin {margin:.2f}"
        for strange, margin in signs
    ]
    if out is not None:
        text = io.StringIO()
        lines = [("item", "reason"), *zip(map(csv_text, chosen), why)]
        csv.writer(text, lineterminator="\n").writerows(lines)
        model_files.write_text(out, text.getvalue())
    if copy is not None:
        _copied({"": chosen}, copy)
    values = {
        "model": str(model),
        "suggestions": [{"item": name, "reason": r} for name, r in zip(chosen, why)],
    }
    if len(chosen) < n:
        fewer = [f"only {len(chosen)} samples differ enough to be named"]
    else:
        fewer = []
    return Answer(
        values, table(["item", "reason"], list(map(list, zip(chosen, why)))), fewer
    )


@command("group", panel="Ask")
def group_command(
    model: options.ModelFile,
    data: Unlabelled,
    groups: Annotated[int | None, typer.Option(min=1)] = None,
    known: str | None = None,
    out: Path | None = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
) -> Answer:
    """Put samples that look unknown into groups of like ones, to be named and learned as new classes.

    For example:

      evergrow group birds.evg photos/

      evergrow group birds.evg photos/ --known birds/train --out groups/

    Then rename the folders and teach them: evergrow update birds.evg groups/

    Exit codes: 0 grouped, 2 bad input, or nothing looks unknown, 130 interrupted.

    Parameters
    ----------
    groups
        How many groups; by default as many as there seem to be.
    known : DATA
        Labelled data by which to choose how samples are compared and how many groups
        there are.
    out : FOLDER
        Folder to copy the files to, one folder for each group, the most typical first.
    """
    from evergrow.data.inputs import read_labelled

    check_items([data])
    learner = model_files.load_model(model, run)
    things, names = read_question(learner.state_.kind, [data], [], reading)
    labelled = None
    if known is not None:
        labelled = read_labelled(known, "train", learner.state_.kind, reading.options())
    found = tools.group_unknown(learner, things, n_groups=groups, known=labelled)
    named = {
        f"group-{place:03d}": [names[row] for row in rows]
        for place, rows in enumerate(found.rows, 1)
    }
    if out is not None:
        _copied(named, out)
    rows = [[name, str(len(items)), listed(items, 3)] for name, items in named.items()]
    lines = table(["group", "samples", "most typical"], rows, ["samples"])
    looked = f"{plural(len(found.known), 'sample')} look like a learned class and are in no group"
    return Answer(
        {"model": str(model), "metric": found.metric, "groups": named}, [*lines, looked]
    )


@command("drift", panel="Ask")
def drift_command(
    model: options.ModelFile,
    data: Unlabelled,
    labelled: bool = False,
    false_alarm: options.FalseAlarm = 0.05,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
) -> Answer:
    """Test whether new samples still look like what was learned, class by class.

    For example:

      evergrow drift birds.evg this-week/

      evergrow drift birds.evg this-week/ --labelled --false-alarm 0.01

    Exit codes: 0 tested, 2 bad input, 130 interrupted.

    Parameters
    ----------
    labelled
        DATA has labels: test the answers, too.
    """
    from evergrow.data.inputs import read_labelled

    check_items([data])
    learner = model_files.load_model(model, run)
    if labelled:
        samples = read_labelled(data, "all", learner.state_.kind, reading.options())
        found = tools.drift(
            learner, samples, samples.required_labels(), false_alarm=false_alarm
        )
    else:
        items, _ = read_question(learner.state_.kind, [data], [], reading)
        found = tools.drift(learner, items, false_alarm=false_alarm)
    changed = [entry for entry in found.classes if entry.changed]
    said = f"{len(changed)} of {plural(len(found.classes), 'tested class', 'tested classes')} changed"
    aimed = f"{percent(false_alarm)} would be called so where nothing changed"
    rows = [
        [entry.name, str(entry.samples), f"{entry.novelty:+.2f}", f"{entry.p:.2g}"]
        for entry in changed[:_SHOWN]
    ]
    lines = [
        f"{said}; {aimed}",
        *table(["class", "samples", "novelty", "p"], rows, ["samples", "novelty", "p"]),
    ]
    values = {
        "model": str(model),
        "share": found.share,
        "false_alarm": false_alarm,
        "untested": found.untested,
    }
    return Answer(
        {**values, "classes": [vars(entry) for entry in found.classes]}, lines
    )


def curve_lines(curve: LearningCurve) -> list[str]:
    """Return a learning curve for people."""
    figures = (
        f"{size}: {percent(share)}"
        for size, share in zip(curve.sizes, curve.accuracy, strict=True)
    )
    gain, low, high = (100 * value for value in curve.gain)
    said = f"{gain:+.1f} points, in 9 of 10 cases {low:+.1f} to {high:+.1f}"
    most = [
        f"{name} ({percent(value)})"
        for name, value in curve.classes.items()
        if value > 0
    ]
    return [
        "",
        *facts(
            [
                ("samples per class", ", ".join(figures)),
                (
                    "ten more of each",
                    said
                    + ("; more samples would hardly help" if curve.is_enough else ""),
                ),
                ("gained most last", listed(most, 5)),
            ]
        ),
    ]


def _copied(groups: dict[str, list[str]], folder: Path) -> None:
    """Copy files to a folder, each group to a folder in it, numbered in order; nothing is overwritten."""
    import shutil

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError(f"{folder} exists and is not empty; name a new folder.")
    for group, items in groups.items():
        place = folder / group
        place.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(items, 1):
            if not Path(name).is_file():
                raise InputError(
                    f"{name} is no file that can be copied; --out of suggest and --json name samples."
                )
            shutil.copyfile(name, place / f"{number:04d}-{Path(name).name}")
