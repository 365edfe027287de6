"""``evergrow sort``: the images of a folder into a folder for each class, and back again."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, listed, note_line, percent, plural, table
from evergrow.cli.model_files import load_model, note_rough
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.tools.sorting import SortedFile

_EXAMPLES = 3


@command("sort", panel="Ask")
def sort_command(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The model file.")
    ] = None,
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER")] = None,
    into: Path | None = None,
    move: bool = False,
    copy: bool = False,
    link: bool = False,
    unknown: str = "unknown",
    least: Annotated[float, typer.Option("--min", min=0, max=1)] = 0.8,
    false_alarm: options.FalseAlarm = 0.05,
    undo: Path | None = None,
    run: options.RunOptions = options.RUN,
) -> Answer:
    """Sort the images of FOLDER into a folder for each class.

    Without --move, --copy or --link nothing is touched: it shows what would go where.
    Images of no learned class go to a folder of their own, and so do answers that are
    not sure. OUT/sorted.csv lists every file with its answer and probability. No file
    is overwritten. After an interruption the same command goes on, and --undo takes all
    back.

    For example:

      evergrow sort birds.evg photos/ --into sorted/

      evergrow sort birds.evg photos/ --into sorted/ --move

      evergrow sort birds.evg photos/ --into sorted/ --copy --min 0.9 --unknown other

      evergrow sort --undo sorted/sorted.csv

    Exit codes: 0 done, 1 done but some files were left in place, 2 bad input or a full
    disk, 3 another process sorts into the folder, 130 interrupted.

    Parameters
    ----------
    folder
        Folder of images, in subfolders too.
    into : OUT
        Folder of the sorted images; made if missing.
    move
        Move the files.
    copy
        Copy them.
    link
        Make symbolic links to them.
    unknown : NAME
        Folder of images of no learned class.
    least
        Probability below which an image goes to the folder unsure.
    undo : TABLE
        Take back what this table lists.
    """
    from evergrow.tools.sorting import (
        TABLE,
        plan_sort,
        read_table,
        sort_folder,
        split_planned,
    )

    if undo is not None:
        if model is not None:
            raise ParameterError(
                "--undo takes only the table, such as sorted/sorted.csv."
            )
        return _undone(undo, run)
    if model is None or folder is None or into is None:
        raise ParameterError(
            "Name a model, a folder of images, and by --into the folder to sort them into."
        )
    chosen = [
        name
        for name, wanted in (("move", move), ("copy", copy), ("link", link))
        if wanted
    ]
    if len(chosen) > 1:
        raise ParameterError(
            f"--{chosen[0]} and --{chosen[1]} do not go together; choose one."
        )
    how = options.ImageOptions(
        run.device, run.cache, run.weights, run.as_json, on_error="skip"
    )
    learner = load_model(model, how)
    path = into / TABLE
    if os.path.lexists(path):
        earlier = read_table(path)
    else:
        earlier = []
    resumed, waiting = split_planned(earlier, folder)
    note_rough(learner)
    settings: dict[str, Any] = {
        "unknown": unknown,
        "least": least,
        "false_alarm": false_alarm,
    }
    if learner.state_.describe()["novelty"] is None:
        note_line(
            "the model has too few samples to tell what it never learned: nothing is called unknown"
        )
    if chosen:
        rows = sort_folder(
            learner,
            folder,
            into,
            chosen[0],  # type: ignore[arg-type]
            progress=bool(how.encoding()["progress"]),
            **settings,
        )
        n_sorted = sum(bool(row.place) for row in rows)
        said = [f"{plural(n_sorted, 'file')} sorted, listed in {path}"]
        done = str(path)
    else:
        rows = plan_sort(learner, folder, into, **settings, earlier=earlier)
        said = ["nothing was touched: add --move, --copy or --link to sort them"]
        done = ""
        if resumed:
            said.append(
                f"{plural(len(resumed), 'file')} of an interrupted sort will be "
                "completed first"
            )
    if waiting:
        other = waiting[0].folder
        said.append(
            f"{plural(len(waiting), 'file')} of an interrupted sort of {other} are not "
            "sorted yet: sort that folder again"
        )
    groups: dict[str, list[SortedFile]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    stay = groups.pop("", [])
    values = {
        "table": done or None,
        "folders": {name: len(found) for name, found in sorted(groups.items())},
        "left": {row.file: row.note for row in stay},
        "files": [
            {"file": row.file, "answer": row.answer, "probability": row.probability}
            for row in rows
        ],
    }
    if stay:
        cautions = [f"{plural(len(stay), 'file')} left in place: {_reasons(stay)}"]
    else:
        cautions = []
    written = f"{done} was written" if done else ""
    return Answer(
        values, [*_table(folder, sorted(groups.items())), *said], cautions, done=written
    )


def _table(folder: Path, groups: Sequence[tuple[str, list[SortedFile]]]) -> list[str]:
    """Return how many files go to each folder, how sure the least sure of them is, and a few of their names."""
    cells = []
    for name, rows in groups:
        likely = [row.probability for row in rows if row.probability is not None]
        shown = sorted(rows, key=lambda row: row.probability or 0.0)[:_EXAMPLES]
        names = listed(
            [os.path.relpath(row.file, os.path.realpath(folder)) for row in shown],
            _EXAMPLES,
        )
        cells.append(
            [name, f"{len(rows):,}", percent(min(likely)) if likely else "", names]
        )
    if cells:
        return table(
            ["folder", "files", "least sure", "examples"],
            cells,
            ["files", "least sure"],
        )
    return []


def _reasons(stay: Sequence[SortedFile]) -> str:
    return listed(
        [f"{os.path.basename(row.file)} ({row.note})" for row in stay], _EXAMPLES
    )


def _undone(path: Path, run: options.RunOptions) -> Answer:
    from evergrow.tools.sorting import read_table, undo_sort

    if os.path.lexists(path):
        rows = read_table(path)
    else:
        rows = []
    n_done = sum(row.state in ("done", "undoing") for row in rows)
    kept = undo_sort(path, progress=bool(run.encoding()["progress"]))
    n_undone = n_done - sum(row.state == "done" for row in kept)
    cautions = []
    if kept:
        cautions.append(
            f"{plural(len(kept), 'file')} could not be undone: {_reasons(kept)}"
        )
    values = {
        "table": str(path) if kept else None,
        "undone": n_undone,
        "kept": {row.file: row.note for row in kept},
    }
    return Answer(values, [f"{plural(n_undone, 'file')} undone"], cautions)
