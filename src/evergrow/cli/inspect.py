"""``evergrow inspect``, ``log`` and ``diff``: what a model knows, who changed it, and what differs between two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, facts, listed, percent, plural, table
from evergrow.cli.model_files import (
    adapted_note,
    load_model,
    recipe_note,
    revisions_note,
)
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.learner.snapshot import Change
    from evergrow.tools.comparison import Comparison

_CLASSES = 20
_CHANGES = 10

Revision = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model file, or MODEL@3 for its revision 3."
    ),
]


@command("inspect", panel="Ask")
def inspect_command(model: options.ModelFile, full: bool = False) -> Answer:
    """Show what a model knows: its classes and counts, layer, backbone, preprocessing and history. Loads no backbone.

    For example:

      evergrow inspect birds.evg

      evergrow inspect birds.evg --full --json

    Exit codes: 0 shown, 2 no model or a damaged one.

    Parameters
    ----------
    full
        List all classes and all changes.
    """
    from evergrow.learner.modelfile import history

    # The file's own history, which knows what was rolled back too.
    changes = history(model)
    learner = load_model(model, lazy=True)
    info = {
        **learner.state_.describe(),
        "history": [change.to_dict() for change in changes],
    }
    size = model.stat().st_size
    classes = [[row["name"], f"{row['samples']:,}"] for row in info["classes"]]
    listing = _shown(
        ["class", "samples"], classes, ["samples"], None if full else _CLASSES
    )
    lines = [
        *facts(_about(info, size)),
        "",
        *listing,
        "",
        *_history(changes, None if full else _CHANGES),
    ]
    return Answer({"model": str(model), "bytes": size, **info}, lines)


@command("log", panel="Ask")
def log_command(
    model: options.ModelFile,
    n: Annotated[int, typer.Option("--number", "-n", min=1)] = 20,
    full: bool = False,
) -> Answer:
    """List the changes of a model, the latest first: who, when, what, and accuracy where it was tested.

    What was rolled back stays in the list. A user is named as
    [bold]EVERGROW_AUTHOR[/bold] says, where that is set.

    For example:

      evergrow log birds.evg

      evergrow log birds.evg --full --json

    Exit codes: 0 listed, 2 no model or a damaged one.

    Parameters
    ----------
    n
        How many of the latest changes to list.
    full
        List all changes.
    """
    from evergrow.learner.modelfile import dropped_revisions, history, kept_revisions

    changes = history(model)
    dropped = dropped_revisions(model)
    told = [change.to_dict() for change in changes]
    values = {
        "model": str(model),
        "history": told,
        "kept": kept_revisions(model),
        "dropped": dropped,
    }
    if dropped:
        fell = [f"no longer kept for rollback: {revisions_note(dropped)}"]
    else:
        fell = []
    return Answer(values, [*_history(changes, None if full else n), *fell])


def _about(info: dict[str, Any], size: int) -> list[tuple[str, str]]:
    settings = "".join(f", {name} = {value}" for name, value in info["options"].items())
    spec = info["backbone"]
    novelty = info["novelty"]
    entries = [
        ("classes", f"{info['n_classes']:,}"),
        ("samples learned", f"{info['n_samples']:,}"),
        (
            "without labels",
            f"{info['n_unlabelled']:,}, as guesses" if info["n_unlabelled"] else "",
        ),
        ("method", f"{info['method']}{settings}"),
    ]
    if info["n_units"] is not None:
        entries.append(
            ("layer", f"{info['n_units']:,} units on {info['n_features']:,} features")
        )
    if info["blocks"]:
        blocks = [
            f"{block['weight']:.2f} x {block['columns']:,} columns"
            for block in info["blocks"]
        ]
        entries.append(("blocks", "weight and width: " + ", ".join(blocks)))
    if spec is None:
        entries.append(("backbone", "none: samples are feature vectors"))
    else:
        weights = f"{str(spec['weights']).partition(':')[0]} weights {str(spec['weights_hash'])[:12]}"
        steps = ", ".join(
            f"{name} {_short(value)}" for name, value in spec["preprocessing"].items()
        )
        entries += [
            ("backbone", f"{spec['name']} for {spec['kind']}s, {weights}"),
            ("features", recipe_note(spec)),
            ("preprocessing", f"{spec['preset']}: {steps}" if steps else ""),
        ]
    unknown = "not calibrated"
    if novelty is not None:
        alarms = f"{100 * novelty['false_alarm']:g} % false alarms"
        samples = plural(novelty["calibrated_on"], "held-out sample")
        unknown = (
            f"above novelty {novelty['threshold']:.4g} at {alarms}, from {samples}"
        )
    return [
        *entries,
        ("adapted", adapted_note(info["adaptation"]) if info["adaptation"] else ""),
        ("unknown things", unknown),
        ("revision", str(info["revision"])),
        ("file", f"{size / 1e6:.1f} MB"),
    ]


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(_short(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _history(changes: Sequence[Change], most: int | None) -> list[str]:
    """Return the latest changes as a table, the last one first."""
    shown = changes if most is None else changes[-most:]
    rows = []
    for change in reversed(shown):
        when = change.when[:19].replace("T", " ")
        rows.append(
            [
                str(change.revision),
                when,
                change.who,
                change.what,
                f"{change.samples:,}",
                _described(change),
            ]
        )
    lines = table(
        ["revision", "when (UTC)", "who", "what", "samples", "details"],
        rows,
        right=["revision", "samples"],
    )
    rest = len(changes) - len(shown)
    if rest:
        return [*lines, f"({plural(rest, 'earlier change')}: --full)"]
    return lines


def _described(change: Change) -> str:
    """Return what a change did to classes and accuracy, in a few words."""
    parts = []
    if change.names:
        parts.append(
            listed([f"{old} -> {new}" for old, new in change.names.items()], 3)
        )
    elif change.classes:
        sign = "-" if change.what in ("forget", "unlearn") else "+"
        parts.append(f"{sign}{len(change.classes)}: {listed(change.classes, 3)}")
    if change.tested is not None and change.tested.after is not None:
        if change.tested.before is None:
            before = ""
        else:
            before = f"{percent(change.tested.before)} -> "
        parts.append(f"accuracy {before}{percent(change.tested.after)}")
    return "; ".join([*parts, *([change.note] if change.note else [])])


@command("diff", panel="Ask")
def diff_command(
    first: Revision,
    second: Revision,
    data: str | None = None,
    reading: options.Reading = options.AS_FOUND,
    full: bool = False,
    run: options.ImageOptions = options.RUN_IMAGES,
) -> Answer:
    """Compare two models, or two revisions of one: classes, samples, and with --data accuracy and changed answers.

    Of data with a training and a test part the test part is asked about. Where the
    second came of the first, answers of the first are shown under the names that its
    classes have now.

    For example:

      evergrow diff birds.evg@3 birds.evg --data birds/test

      evergrow diff monday.evg friday.evg --json

    Exit codes: 0 compared, 2 no model, a revision that is not kept or bad data, 130
    interrupted.

    Parameters
    ----------
    data : DATA
        Labelled data to ask both about.
    full
        List all classes and all changed answers.
    """
    from evergrow.data.inputs import read_labelled
    from evergrow.tools.comparison import compare_learners

    models = (
        _opened(first, run, lazy=data is None),
        _opened(second, run, lazy=data is None),
    )
    samples = None
    if data is not None:
        samples = read_labelled(data, "test", models[0].state_.kind, reading.options())
    found = compare_learners(*models, samples)
    values = {
        "models": [first, second],
        "revisions": [learner.state_.revision for learner in models],
        "n_classes": [len(learner.classes_) for learner in models],
        "total_samples": [
            sum(learner.state_.label_counts.values()) for learner in models
        ],
        "data": data,
        **found.to_dict(),
    }
    return Answer(
        values, _differences((first, second), models, found, None if full else _CLASSES)
    )


def _opened(name: str, run: options.ImageOptions, *, lazy: bool) -> Learner:
    """Return a model, or one of its revisions where the name ends in one; a file of that very name comes first."""
    from evergrow.learner.modelfile import open_revision

    matched = re.fullmatch(r"(.+)@(\d{1,9})", name)
    if matched is None or Path(name).exists():
        return load_model(Path(name), run, lazy=lazy)
    return open_revision(matched[1], int(matched[2]), lazy=lazy, **run.loading())


def _differences(
    names: tuple[str, str],
    models: Sequence[Learner],
    found: Comparison,
    most: int | None,
) -> list[str]:
    entries = [
        (
            name,
            f"{plural(len(learner.classes_), 'class', 'classes')}, "
            f"{plural(sum(learner.state_.label_counts.values()), 'sample')} (revision {learner.state_.revision})",
        )
        for name, learner in zip(names, models, strict=True)
    ]
    entries += [
        ("only in the first", listed(found.first_only, 10)),
        ("only in the second", listed(found.second_only, 10)),
        (
            "now called",
            listed([f"{old} -> {new}" for old, new in found.names.items()], 10),
        ),
    ]
    lines = facts(entries)
    if found.counts:
        rows = [
            [name, f"{old:,}", f"{new:,}"] for name, (old, new) in found.counts.items()
        ]
        lines += [
            "",
            *_shown(["class", "samples", "then"], rows, ["samples", "then"], most),
        ]
    if found.results is None:
        return lines
    figures = [
        f"{percent(result.accuracy)} of {plural(result.n_known, 'sample')}"
        for result in found.results
    ]
    lines += ["", *facts([("accuracy", f"{figures[0]}, then {figures[1]}")])]
    recalls = sorted(
        found.recalls().items(),
        key=lambda entry: (entry[1][1] or 0.0) - (entry[1][0] or 0.0),
    )
    if rows := [
        [name, percent(old), percent(new)] for name, (old, new) in recalls if old != new
    ]:
        lines += [
            "",
            *_shown(["class", "found", "then"], rows, ["found", "then"], most),
        ]
    if not found.changed:
        return [*lines, "no answer changed"]
    rows = []
    for entry in found.changed:
        right = "wrong before and now"
        if entry.first == entry.label:
            right = "now wrong"
        if entry.second == entry.label:
            verdict = "now right"
        else:
            verdict = right
        rows.append([entry.item, entry.label, entry.first, entry.second, verdict])
    lines += ["", f"{plural(len(found.changed), 'answer')} changed:"]
    return [*lines, *_shown(["item", "class", "answer", "then", ""], rows, [], most)]


def _shown(
    columns: list[str], rows: list[list[str]], right: list[str], most: int | None
) -> list[str]:
    kept = rows[:most]
    if len(kept) < len(rows):
        more = [f"(and {len(rows) - len(kept)} more: --full)"]
    else:
        more = []
    return [*table(columns, kept, right), *more]
