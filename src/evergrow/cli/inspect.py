"""``evergrow inspect``, ``log`` and ``diff``: describe models and their changes."""

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
    dropped_lines,
    load_model,
    recipe_note,
)
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.learner.snapshot import Change
    from evergrow.tools.comparison import ChangedPrediction, Comparison

_MAX_ROWS = 20  # of a table without --full
_MAX_CHANGES = 10  # that `inspect` lists without --full

Revision = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model file, or MODEL@3 for its revision 3."
    ),
]


@command("inspect", panel="Predict and inspect")
def inspect_command(model: options.ModelFile, full: bool = False) -> Answer:
    """Show the classes, layer, backbone, preprocessing and history of a model.

    Reads the file only, and does not load the backbone.

    For example:

      evergrow inspect birds.evg

      evergrow inspect birds.evg --full --json

    Exit codes: 0 shown; 2 no model, a damaged one, or one of a newer version.

    Parameters
    ----------
    full
        List all classes and all changes, not only the first 20 and the last 10.
    """
    from evergrow.learner.modelfile import history

    # The history of the file also contains changes that were rolled back.
    changes = history(model)
    learner = load_model(model, lazy=True)
    info = {
        **learner.state_.describe(),
        "history": [change.to_dict() for change in changes],
    }
    size = model.stat().st_size
    classes = [[row["name"], f"{row['samples']:,}"] for row in info["classes"]]
    lines = [
        *facts(_model_facts(info, size)),
        "",
        *_limited_table(["class", "samples"], classes, ["samples"], full=full),
        "",
        *_history_lines(changes, None if full else _MAX_CHANGES),
    ]
    return Answer({"model": str(model), "bytes": size, **info}, lines)


def _model_facts(info: dict[str, Any], size: int) -> list[tuple[str, str]]:
    """Return labels and values that describe a model.

    Those with empty values are not shown.

    Parameters
    ----------
    info : dict
        Result of :meth:`evergrow.learner.snapshot.Snapshot.describe`.
    size : int
        Bytes of the model file.
    """
    method = info["method"]
    for name, value in info["options"].items():
        method += f", {name} = {value}"
    unlabelled = ""
    if info["n_unlabelled"]:
        unlabelled = f"{info['n_unlabelled']:,}, as guesses"
    entries = [
        ("classes", f"{info['n_classes']:,}"),
        ("samples learned", f"{info['n_samples']:,}"),
        ("without labels", unlabelled),
        ("method", method),
    ]
    if info["n_units"] is not None:
        layer = f"{info['n_units']:,} units on {info['n_features']:,} features"
        entries.append(("layer", layer))
    if info["blocks"]:
        blocks = [
            f"{block['weight']:.2f} x {block['columns']:,} columns"
            for block in info["blocks"]
        ]
        entries.append(("blocks", f"weight and width: {', '.join(blocks)}"))
    adapted = ""
    if info["adaptation"]:
        adapted = adapted_note(info["adaptation"])
    return [
        *entries,
        *_backbone_facts(info["backbone"]),
        ("adapted", adapted),
        ("unknown samples", _novelty_note(info["novelty"])),
        ("revision", str(info["revision"])),
        ("file", f"{size / 1e6:.1f} MB"),
    ]


def _backbone_facts(spec: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return labels and values of the entry ``backbone`` of a description."""
    if spec is None:
        return [("backbone", "none: samples are feature vectors")]
    networks = spec.get("parts") or [spec]
    sources = [str(network["weights"]).partition(":")[0] for network in networks]
    source = " and ".join(dict.fromkeys(sources))
    weights = f"{source} weights {str(spec['weights_hash'])[:12]}"
    steps = [f"{name} {_short(value)}" for name, value in spec["preprocessing"].items()]
    preprocessing = f"{spec['preset']}: {', '.join(steps)}" if steps else ""
    return [
        ("backbone", f"{spec['name']} for {spec['kind']}s, {weights}"),
        ("features", recipe_note(spec)),
        ("preprocessing", preprocessing),
    ]


def _novelty_note(novelty: dict[str, Any] | None) -> str:
    """Return when samples are called unknown: the entry ``novelty`` as text."""
    if novelty is None:
        return "not calibrated"
    samples = plural(novelty["calibrated_on"], "held-out sample")
    return (
        f"above novelty {novelty['threshold']:.4g} at "
        f"{100 * novelty['false_alarm']:g} % false alarms, from {samples}"
    )


def _short(value: Any) -> str:
    """Return a setting of the preprocessing, such as 224x224 or 0.485x0.456x0.406."""
    if isinstance(value, (list, tuple)):
        return "x".join(_short(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@command("log", panel="Predict and inspect")
def log_command(
    model: options.ModelFile,
    n: Annotated[int, typer.Option("--number", "-n", min=1)] = 20,
    full: bool = False,
) -> Answer:
    """List the changes of a model, the latest first: time, author, change, accuracy.

    Changes that were rolled back stay in the list. The environment variable
    [bold]EVERGROW_AUTHOR[/bold] sets the author of later changes; if it is empty, none
    is stored.

    For example:

      evergrow log birds.evg

      evergrow log birds.evg --full --json

    Exit codes: 0 listed; 2 no model or a damaged one.

    Parameters
    ----------
    n
        Maximum number of changes to list.
    full
        List all changes.
    """
    from evergrow.learner.modelfile import dropped_revisions, history, kept_revisions

    changes = history(model)
    dropped = dropped_revisions(model)
    values = {
        "model": str(model),
        "history": [change.to_dict() for change in changes],
        "kept": kept_revisions(model),
        "dropped": dropped,
    }
    lines = _history_lines(changes, None if full else n)
    return Answer(values, [*lines, *dropped_lines(dropped)])


def _history_lines(changes: Sequence[Change], most: int | None) -> list[str]:
    """Return the latest changes as a table, the last one first.

    Parameters
    ----------
    changes : sequence of Change
        All changes, the last one at the end.
    most : int or None
        Maximum number of changes to show; None shows all.
    """
    shown = changes if most is None else changes[-most:]
    rows = [
        [
            str(change.revision),
            change.when[:19].replace("T", " "),
            change.who,
            change.what,
            f"{change.samples:,}",
            _change_details(change),
        ]
        for change in reversed(shown)
    ]
    columns = ["revision", "when (UTC)", "who", "what", "samples", "details"]
    lines = table(columns, rows, right=["revision", "samples"])
    n_hidden = len(changes) - len(shown)
    if n_hidden:
        lines.append(f"({plural(n_hidden, 'earlier change')}: --full)")
    return lines


def _change_details(change: Change) -> str:
    """Return the classes, the accuracy and the note of a change in one line."""
    details = []
    if change.names:
        pairs = [f"{old} -> {new}" for old, new in change.names.items()]
        details.append(listed(pairs, 3))
    elif change.classes:
        sign = "-" if change.what in ("forget", "unlearn") else "+"
        details.append(f"{sign}{len(change.classes)}: {listed(change.classes, 3)}")
    if change.for_good:
        details.append("for good")
    tested = change.tested
    if tested is not None and tested.after is not None:
        before = ""
        if tested.before is not None:
            before = f"{percent(tested.before)} -> "
        details.append(f"accuracy {before}{percent(tested.after)}")
    if change.note:
        details.append(change.note)
    return "; ".join(details)


@command("diff", panel="Predict and inspect")
def diff_command(
    first: Revision,
    second: Revision,
    data: str | None = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    full: bool = False,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
) -> Answer:
    """Compare two models, or two revisions of one: classes, samples and accuracy.

    MODEL@3 is revision 3 of a model, if its history still keeps it. If the data has
    train and test splits, only test is used. If the second model descends from the
    first and classes were renamed since, predictions of the first appear under the new
    names.

    For example:

      evergrow diff birds.evg@3 birds.evg --data birds/test

      evergrow diff monday.evg friday.evg --json

    Exit codes: 0 compared, also if there are differences; 2 no model, a revision that
    is not kept, or bad data; 130 interrupted.

    Parameters
    ----------
    data : DATA
        Labelled data on which to compare accuracy and predictions.
    full
        List all classes and all changed predictions, not only the first 20.
    """
    from evergrow.data.inputs import read_labelled
    from evergrow.tools.comparison import compare_learners

    models = (
        _open_revision(first, run, lazy=data is None),
        _open_revision(second, run, lazy=data is None),
    )
    samples = None
    if data is not None:
        samples = read_labelled(
            data, "test", models[0].state_.kind, columns.data_options()
        )
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
    lines = facts(_difference_facts((first, second), models, found))
    if found.counts:
        rows = [
            [name, f"{old:,}", f"{new:,}"] for name, (old, new) in found.counts.items()
        ]
        right = ["samples", "then"]
        lines += ["", *_limited_table(["class", *right], rows, right, full=full)]
    if found.results is not None:
        lines += _accuracy_lines(found, full=full)
    return Answer(values, lines)


def _open_revision(name: str, run: options.ImageOptions, *, lazy: bool) -> Learner:
    """Load ``MODEL`` or ``MODEL@REVISION``. An existing file has priority."""
    from evergrow.learner.modelfile import open_revision

    matched = re.fullmatch(r"(.+)@(\d{1,9})", name)
    if matched is None or Path(name).exists():
        return load_model(Path(name), run, lazy=lazy)
    return open_revision(matched[1], int(matched[2]), lazy=lazy, **run.load_settings())


def _difference_facts(
    names: tuple[str, str], models: Sequence[Learner], found: Comparison
) -> list[tuple[str, str]]:
    """Return labels and values: the size of both models, and classes of one only.

    `names` are the models as typed.
    """
    entries = []
    for name, learner in zip(names, models, strict=True):
        classes = plural(len(learner.classes_), "class", "classes")
        samples = plural(sum(learner.state_.label_counts.values()), "sample")
        text = f"{classes}, {samples} (revision {learner.state_.revision})"
        entries.append((name, text))
    renamed = [f"{old} -> {new}" for old, new in found.names.items()]
    return [
        *entries,
        ("only in the first", listed(found.first_only, 10)),
        ("only in the second", listed(found.second_only, 10)),
        ("now called", listed(renamed, 10)),
    ]


def _accuracy_lines(found: Comparison, *, full: bool) -> list[str]:
    """Return accuracies, then tables of changed recalls and changed predictions.

    `full` shows all rows of the tables. The comparison was measured on data.
    """
    accuracies = [
        f"{percent(result.accuracy)} of {plural(result.n_known, 'sample')}"
        for result in found.results or ()
    ]
    lines = ["", *facts([("accuracy", ", then ".join(accuracies))])]
    recalls = sorted(
        found.recalls().items(),
        key=lambda entry: (entry[1][1] or 0.0) - (entry[1][0] or 0.0),
    )
    rows = [
        [name, percent(old), percent(new)] for name, (old, new) in recalls if old != new
    ]
    if rows:
        right = ["recall", "then"]
        lines += ["", *_limited_table(["class", *right], rows, right, full=full)]
    if not found.changed:
        return [*lines, "no prediction changed"]
    rows = [
        [entry.item, entry.label, entry.first, entry.second, _verdict(entry)]
        for entry in found.changed
    ]
    columns = ["item", "class", "predicted", "then", ""]
    return [
        *lines,
        "",
        f"{plural(len(found.changed), 'prediction')} changed:",
        *_limited_table(columns, rows, [], full=full),
    ]


def _verdict(entry: ChangedPrediction) -> str:
    """Return whether a changed prediction became right or wrong."""
    if entry.second == entry.label:
        return "now right"
    if entry.first == entry.label:
        return "now wrong"
    return "wrong before and now"


def _limited_table(
    columns: list[str], rows: list[list[str]], right: list[str], *, full: bool
) -> list[str]:
    """Return a table with a limited number of rows, unless `full`."""
    shown = rows if full else rows[:_MAX_ROWS]
    lines = table(columns, shown, right)
    if len(shown) < len(rows):
        lines.append(f"(and {len(rows) - len(shown)} more: --full)")
    return lines
