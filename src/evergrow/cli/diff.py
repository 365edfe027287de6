"""``evergrow diff``: two models, or two revisions of one, side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli.console import Answer, facts, listed, plural, share, table
from evergrow.cli.models import load_model
from evergrow.cli.options import AS_FOUND, RUN_IMAGES, ImageOptions, Json, Reading
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.learner.comparison import Comparison
    from evergrow.learner.learner import Learner

_SHOWN = 20

_Model = typer.Argument(metavar="MODEL", help="A model file, or MODEL@3 for its revision 3.")


@command("diff", panel="Ask")
def diff_command(
    first: Annotated[str, _Model],
    second: Annotated[str, _Model],
    data: Annotated[str | None, typer.Option("--data", metavar="DATA", help="Labelled data to ask both about.")] = None,
    reading: Reading = AS_FOUND,
    full: Annotated[bool, typer.Option("--full", help="List all classes and all changed answers.")] = False,
    run: ImageOptions = RUN_IMAGES,
    as_json: Json = False,
) -> Answer:
    """Compare two models, or two revisions of one: classes, samples, and with --data accuracy and changed answers.

    Of data with a training and a test part the test part is asked about. Where the second came of the first, answers of
    the first are shown under the names that its classes have now.

    For example:

      evergrow diff birds.evg@3 birds.evg --data birds/test

      evergrow diff monday.evg friday.evg --json

    Exit codes: 0 compared, 2 no model, a revision that is not kept or bad data, 130 interrupted.
    """
    from evergrow.data.intake import read_labelled
    from evergrow.learner.comparison import compare_learners

    models = _open(first, run, quiet=as_json), _open(second, run, quiet=as_json)
    samples = None if data is None else read_labelled(data, "test", models[0].kind_, reading.options())
    found = compare_learners(*models, samples)
    values = {
        "models": [first, second],
        "revisions": [learner.revision_ for learner in models],
        "n_classes": [len(learner.classes_) for learner in models],
        "total_samples": [sum(learner.n_samples_.values()) for learner in models],
        "data": data,
        **found.to_dict(),
    }
    return Answer(values, _lines((first, second), models, found, None if full else _SHOWN))


def _open(name: str, run: ImageOptions, *, quiet: bool) -> Learner:
    """Return a model, or one of its revisions where the name ends in one; a file of that very name comes first."""
    from evergrow.learner.modelfile import open_revision

    matched = re.fullmatch(r"(.+)@(\d{1,9})", name)
    if matched is None or Path(name).exists():
        return load_model(Path(name), run, quiet=quiet)
    return open_revision(matched[1], int(matched[2]), **run.loading(quiet=quiet))


def _lines(names: tuple[str, str], models: tuple[Learner, Learner], found: Comparison, most: int | None) -> list[str]:
    summary = [
        f"{plural(len(learner.classes_), 'class', 'classes')}, {plural(sum(learner.n_samples_.values()), 'sample')} "
        f"(revision {learner.revision_})"
        for learner in models
    ]
    renamed = [f"{old} -> {new}" for old, new in found.names.items()]
    lines = facts(
        [
            (names[0], summary[0]),
            (names[1], summary[1]),
            ("only in the first", listed(found.first_only, 10)),
            ("only in the second", listed(found.second_only, 10)),
            ("now called", listed(renamed, 10)),
        ]
    )
    lines += _counts(found, most)
    return lines if found.results is None else [*lines, "", *_results(found, most)]


def _counts(found: Comparison, most: int | None) -> list[str]:
    if not found.counts:
        return []
    rows = [[name, f"{old:,}", f"{new:,}"] for name, (old, new) in found.counts.items()]
    return ["", *_shown(["class", "samples", "then"], rows, ["samples", "then"], most)]


def _results(found: Comparison, most: int | None) -> list[str]:
    if found.results is None:
        return []
    figures = [f"{share(result.accuracy)} of {plural(result.n_known, 'sample')}" for result in found.results]
    different = {name: pair for name, pair in found.recalls().items() if pair[0] != pair[1]}
    order = sorted(different.items(), key=lambda entry: (entry[1][1] or 0.0) - (entry[1][0] or 0.0))
    lines = facts([("accuracy", f"{figures[0]}, then {figures[1]}")])
    if order:
        rows = [[name, share(old), share(new)] for name, (old, new) in order]
        lines += ["", *_shown(["class", "found", "then"], rows, ["found", "then"], most)]
    if not found.changed:
        return [*lines, "no answer changed"]
    lines += ["", f"{plural(len(found.changed), 'answer')} changed:"]
    rows = [[entry.item, entry.label, entry.first, entry.second, _verdict(entry)] for entry in found.changed]
    return [*lines, *_shown(["item", "class", "answer", "then", ""], rows, [], most)]


def _verdict(entry: object) -> str:
    label, first, second = (getattr(entry, name) for name in ("label", "first", "second"))
    return "now right" if second == label else "now wrong" if first == label else "wrong before and now"


def _shown(columns: list[str], rows: list[list[str]], right: list[str], most: int | None) -> list[str]:
    kept = rows[:most]
    more = [f"(and {len(rows) - len(kept)} more: --full)"] if len(kept) < len(rows) else []
    return [*table(columns, kept, right), *more]
