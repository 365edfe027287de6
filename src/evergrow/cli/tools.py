"""Commands that need few labels: ``suggest``, ``group`` and ``drift``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from evergrow import tools
from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, csv_lines, listed, percent, plural, table
from evergrow.cli.registry import command
from evergrow.cli.samples import check_paths, read_samples
from evergrow.core.errors import InputError

Unlabelled = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder of images, table of texts or .npz file of features. Labels are "
        "not used.",
    ),
]

_MAX_ROWS = 10  # classes in the table of drift


@command("suggest", panel="Predict and inspect")
def suggest_command(
    model: options.ModelFile,
    data: Unlabelled,
    n: Annotated[int, typer.Option("--number", "-n", min=1)] = 20,
    novel_fraction: Annotated[float, typer.Option(min=0, max=1)] = 0.2,
    learned: str | None = None,
    out: Annotated[Path | None, typer.Option("-o")] = None,
    copy: Path | None = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
) -> Answer:
    """Suggest samples to label next: uncertain ones, and some that look unknown.

    Prints the suggestions with the reason, the most useful first: a small margin means
    that two classes are almost equally likely. Near-duplicates of other suggestions and
    of --learned are left out.

    For example:

      evergrow suggest birds.evg photos/ -n 20

      evergrow suggest birds.evg photos/ --learned birds/train --copy to-label/

      evergrow suggest intents.evg questions.csv --out list.csv

    Exit codes: 0 listed; 1 fewer than -n were listed, because the others are
    near-duplicates, or images of DATA were left out (--on-error skip); 2 bad input; 130
    interrupted.

    Parameters
    ----------
    n
        Number of suggestions.
    novel_fraction
        Fraction of suggestions that look unknown; 0 suggests by uncertainty only.
    learned : DATA
        Data that has labels already; its near-duplicates are not suggested.
    out
        CSV file to write the suggestions and reasons to as well.
    copy : FOLDER
        New or empty folder to copy the suggested files to, numbered in order.
    """
    check_paths([data] if learned is None else [data, learned])
    if out is not None:
        model_files.check_target("--out", out)
    learner = model_files.load_model(model, run)
    samples, names = read_samples(learner.state_.kind, [data], columns=columns)
    labelled = None
    if learned is not None:
        labelled, _ = read_samples(learner.state_.kind, [learned], columns=columns)
    features = learner.encode(samples)
    found = tools.suggest(
        learner, features, n, novel_fraction=novel_fraction, labelled=labelled
    )
    items = [names[row] for row in found.rows]
    reasons = [
        "looks unknown" if is_novel else f"margin {margin:.2f}"
        for is_novel, margin in zip(found.is_novel, found.margins, strict=True)
    ]
    suggestions = list(zip(items, reasons, strict=True))
    if out is not None:
        model_files.write_lines(out, csv_lines(["item", "reason"], suggestions))
    if copy is not None:
        _copy_files({"": items}, copy)
    values = {
        "model": str(model),
        "suggestions": [
            {"item": item, "reason": reason} for item, reason in suggestions
        ],
    }
    cautions = []
    if len(items) < n:
        cautions.append(f"only {len(items)} samples differ enough to be suggested")
    lines = table(["item", "reason"], suggestions)
    code = model_files.skipped_code(len(features.failures))
    return Answer(values, lines, cautions, code)


@command("group", panel="Predict and inspect")
def group_command(
    model: options.ModelFile,
    data: Unlabelled,
    groups: Annotated[int | None, typer.Option(min=1)] = None,
    known: str | None = None,
    out: Path | None = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
) -> Answer:
    """Group samples that look unknown, to name the groups and learn them as classes.

    For example:

      evergrow group birds.evg photos/

      evergrow group birds.evg photos/ --known birds/train --out groups/

    With --out, then give the folders the names of the new classes, and learn them:
    evergrow update birds.evg groups/

    Exit codes: 0 grouped; 1 grouped but images of DATA were left out (--on-error skip);
    2 bad input, or nothing looks unknown; 130 interrupted.

    Parameters
    ----------
    groups
        Number of groups. By default it is estimated.
    known : DATA
        Labelled data of learned classes, from which to learn how to compare samples and
        how many groups to make.
    out : FOLDER
        New or empty folder to copy the files to, one subfolder per group, the most
        typical file first.
    """
    from evergrow.data.inputs import read_labelled

    check_paths([data])
    learner = model_files.load_model(model, run)
    samples, names = read_samples(learner.state_.kind, [data], columns=columns)
    labelled = None
    if known is not None:
        labelled = read_labelled(
            known, "train", learner.state_.kind, columns.data_options()
        )
    features = learner.encode(samples)
    found = tools.group_unknown(
        learner,
        features,
        n_groups=groups,
        known=labelled,
        progress=bool(run.encode_settings()["progress"]),
    )
    items_by_group = {
        f"group-{number:03d}": [names[row] for row in rows]
        for number, rows in enumerate(found.rows, 1)
    }
    if out is not None:
        _copy_files(items_by_group, out)
    rows = [
        [group, str(len(items)), listed(items, 3)]
        for group, items in items_by_group.items()
    ]
    values = {"model": str(model), "metric": found.metric, "groups": items_by_group}
    n_known = plural(len(found.known), "sample")
    lines = [
        *table(["group", "samples", "most typical"], rows, ["samples"]),
        f"{n_known} look like a learned class and are in no group",
    ]
    return Answer(values, lines, code=model_files.skipped_code(len(features.failures)))


@command("drift", panel="Predict and inspect")
def drift_command(
    model: options.ModelFile,
    data: Unlabelled,
    labelled: bool = False,
    false_alarm: Annotated[float, typer.Option(min=0, max=1)] = 0.05,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
) -> Answer:
    """Test whether new samples still look like the training data, class by class.

    For example:

      evergrow drift birds.evg this-week/

      evergrow drift birds.evg this-week/ --labelled --false-alarm 0.01

    Lists the classes whose samples changed, with a p value: the probability of this
    difference, or a larger one, without any change.

    Exit codes: 0 tested, also if classes changed; 1 tested but images were left out
    (--on-error skip); 2 bad input; 130 interrupted.

    Parameters
    ----------
    labelled
        DATA has labels: also test whether the predictions are still right.
    false_alarm
        Accepted fraction of unchanged classes that are reported as changed, 0 to 1.
    """
    check_paths([data])
    learner = model_files.load_model(model, run)
    if labelled:
        from evergrow.data.inputs import read_labelled

        samples = read_labelled(
            data, "all", learner.state_.kind, columns.data_options()
        )
        labels = samples.required_labels()
        features = learner.encode(samples)
        found = tools.drift(learner, features, labels, false_alarm=false_alarm)
    else:
        unlabelled, _ = read_samples(learner.state_.kind, [data], columns=columns)
        features = learner.encode(unlabelled)
        found = tools.drift(learner, features, false_alarm=false_alarm)
    changed = [entry for entry in found.classes if entry.changed]
    tested = plural(len(found.classes), "tested class", "tested classes")
    rows = [
        [entry.name, str(entry.samples), f"{entry.novelty:+.2f}", f"{entry.p:.2g}"]
        for entry in changed[:_MAX_ROWS]
    ]
    right = ["samples", "novelty", "p"]
    lines = [
        f"{len(changed)} of {tested} changed; without any change, "
        f"{percent(false_alarm)} would be reported",
        *(table(["class", *right], rows, right) if rows else []),
    ]
    values = {
        "model": str(model),
        "fraction": found.fraction,
        "false_alarm": false_alarm,
        "untested": found.untested,
        "classes": [vars(entry) for entry in found.classes],
    }
    return Answer(values, lines, code=model_files.skipped_code(len(features.failures)))


def _copy_files(groups: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Copy each group of files to a subfolder of a new folder, numbered in order.

    Parameters
    ----------
    groups : dict of str to sequence of str
        File names by name of the subfolder; empty for the folder itself.
    folder : Path
        A folder that does not exist or is empty.

    Raises
    ------
    InputError
        If a sample is not a file. Files before it stay copied.
    """
    model_files.check_new_folder(folder)
    for group, files in groups.items():
        subfolder = folder / group
        subfolder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(files, 1):
            source = Path(name)
            if not source.is_file():
                raise InputError(
                    f"{name} is not a file, so it cannot be copied; use --json to list "
                    "the samples."
                )
            shutil.copyfile(source, subfolder / f"{number:04d}-{source.name}")
