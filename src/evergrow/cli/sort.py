"""``evergrow sort``: sort the images of a folder into one folder per class."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, listed, percent, plural, table
from evergrow.cli.model_files import can_reject_unknown, load_model, note_few_samples
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.tools.sorting import SortedFile

_MAX_EXAMPLES = 3  # file names per folder


@command("sort", panel="Predict and inspect")
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
    strangers: options.Strangers = "some",
    least: Annotated[float | None, typer.Option("--min", min=0, max=1)] = None,
    false_alarm: options.FalseAlarm = 0.05,
    undo: Path | None = None,
    run: options.BackboneOptions = options.DEFAULT_BACKBONE,
) -> Answer:
    """Sort the images of FOLDER into one folder per class.

    MODEL, FOLDER and --into are required, except with --undo. Without --move, --copy or
    --link the command only shows where each file would go. With one of them,
    OUT/sorted.csv lists every file with its prediction. Images that look unknown go to
    the folder unknown, and images whose class is in doubt to the folder unsure. The
    last lines say how many images that means, and how many of the sorted images may be
    of classes that the model does not know. No file is overwritten. The same command
    resumes after an interruption. --undo moves files back and removes unchanged copies
    and links.

    For example:

      evergrow sort birds.evg photos/ --into sorted/

      evergrow sort birds.evg photos/ --into sorted/ --move

      evergrow sort birds.evg photos/ --into sorted/ --copy --min 0.9 --unknown other

      evergrow sort --undo sorted/sorted.csv

    Exit codes: 0 done; 1 done but some files were left in place, such as unreadable
    ones; 2 bad input or a full disk; 3 another process sorts into the folder; 130
    interrupted, and the same command resumes.

    Parameters
    ----------
    folder
        Folder of images, including its subfolders.
    into : OUT
        Folder for the sorted images; created if missing.
    move
        Move the files.
    copy
        Copy the files.
    link
        Create symbolic links to the files.
    unknown : NAME
        Folder name for images that look unknown.
    least
        Minimum probability of the class; images below it go to the folder unsure. By
        default --strangers sets it: 0.8 for few, else 0.7.
    undo : TABLE
        Undo the sort of this table, such as sorted/sorted.csv.
    """
    if undo is not None:
        if model is not None:
            raise ParameterError(
                "--undo takes only the table, such as sorted/sorted.csv."
            )
        return _undo(undo, run)
    if model is None or folder is None or into is None:
        raise ParameterError(
            "Name a model, a folder of images, and by --into the folder to sort them "
            "into."
        )
    modes = [
        name
        for name, wanted in (("move", move), ("copy", copy), ("link", link))
        if wanted
    ]
    if len(modes) > 1:
        raise ParameterError(
            f"--{modes[0]} and --{modes[1]} do not go together; choose one."
        )
    from evergrow.tools.sorting import (
        TABLE,
        plan_sort,
        read_table,
        sort_folder,
        split_planned,
    )

    image_options = options.ImageOptions(
        run.device, run.cache, run.weights, run.as_json, on_error="skip"
    )
    learner = load_model(model, image_options)
    table_path = into / TABLE
    earlier: list[SortedFile] = []
    if os.path.lexists(table_path):
        earlier = read_table(table_path)
    resumed, waiting = split_planned(earlier, folder)
    note_few_samples(learner)
    can_reject_unknown(learner)
    settings: dict[str, Any] = {
        "unknown": unknown,
        "strangers": strangers,
        "least": least,
        "false_alarm": false_alarm,
    }
    if modes:
        rows = sort_folder(
            learner,
            folder,
            into,
            modes[0],  # type: ignore[arg-type]
            progress=bool(image_options.encode_settings()["progress"]),
            **settings,
        )
        n_sorted = sum(bool(row.place) for row in rows)
        notes = [f"{plural(n_sorted, 'file')} sorted, listed in {table_path}"]
    else:
        rows = plan_sort(learner, folder, into, **settings, earlier=earlier)
        notes = ["nothing was touched: add --move, --copy or --link to sort them"]
        if resumed:
            notes.append(
                f"{plural(len(resumed), 'file')} of an interrupted sort will be "
                "completed first"
            )
    if waiting:
        notes.append(
            f"{plural(len(waiting), 'file')} of an interrupted sort of "
            f"{waiting[0].folder} are not sorted yet: sort that folder again"
        )
    notes += _doubts(learner, rows, strangers, least)
    written = table_path if modes else None
    return _answer(folder, rows, notes, written)


def _doubts(
    learner: Learner,
    rows: Sequence[SortedFile],
    strangers: str,
    least: float | None,
) -> list[str]:
    """Return what the limits cost, and how many sorted images may be of no class."""
    from evergrow.tools.sorting import estimate_unknown_files
    from evergrow.tools.strictness import expected_rates, limits_of

    calibration = learner.state_.calibration
    if not calibration.n:
        return []
    rates = expected_rates(calibration, limits_of(strangers, least))
    lines = [
        f"--strangers {strangers}: of 100 images of learned classes about "
        f"{round(100 * rates.known_not_filed)} go to unsure or unknown"
    ]
    if rates.unknown_filed is not None:
        lines[0] += (
            "; of 100 images of other classes about "
            f"{round(100 * rates.unknown_filed)} are sorted into a class"
        )
    found = estimate_unknown_files(learner, rows, strangers=strangers, least=least)
    if found is not None:
        n_filed = sum(bool(row.place and not row.note) for row in rows)
        low, high = found.filed_interval
        lines.append(
            f"about {round(found.filed)} ({round(low)} to {round(high)}) of the "
            f"{plural(n_filed, 'image')} sorted into classes may be of other classes"
        )
    return lines


def _answer(
    folder: Path, rows: Sequence[SortedFile], notes: list[str], written: Path | None
) -> Answer:
    """Return the answer of ``sort``.

    Parameters
    ----------
    folder : Path
        The sorted folder. Examples are shown relative to it.
    rows : sequence of SortedFile
        All files. Those left in place have the group ``""``.
    notes : list of str
        Lines after the table of folders.
    written : Path or None
        The table, if the command has written it.
    """
    groups: dict[str, list[SortedFile]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    left = groups.pop("", [])
    values = {
        "table": None if written is None else str(written),
        "folders": {name: len(group) for name, group in sorted(groups.items())},
        "left": {row.file: row.note for row in left},
        "files": [
            {"file": row.file, "answer": row.answer, "probability": row.probability}
            for row in rows
        ],
    }
    cautions = []
    if left:
        cautions.append(f"{plural(len(left), 'file')} left in place: {_reasons(left)}")
    return Answer(
        values,
        [*_folder_lines(folder, sorted(groups.items())), *notes],
        cautions,
        done="" if written is None else f"{written} was written",
    )


def _folder_lines(
    folder: Path, groups: Sequence[tuple[str, list[SortedFile]]]
) -> list[str]:
    """Return a table of the folders: files, lowest probability and examples.

    Parameters
    ----------
    folder : Path
        The sorted folder.
    groups : sequence of (str, list of SortedFile)
        Names of the new folders and their files.
    """
    if not groups:
        return []
    root = os.path.realpath(folder)
    cells = []
    for name, rows in groups:
        probabilities = [row.probability for row in rows if row.probability is not None]
        least_sure = percent(min(probabilities)) if probabilities else ""
        examples = sorted(rows, key=lambda row: row.probability or 0.0)[:_MAX_EXAMPLES]
        names = [os.path.relpath(row.file, root) for row in examples]
        cells.append([name, f"{len(rows):,}", least_sure, listed(names, _MAX_EXAMPLES)])
    columns = ["folder", "files", "least sure", "examples"]
    return table(columns, cells, ["files", "least sure"])


def _reasons(rows: Sequence[SortedFile]) -> str:
    """Return the first file names, with the reason why each stays in place."""
    reasons = [f"{os.path.basename(row.file)} ({row.note})" for row in rows]
    return listed(reasons, _MAX_EXAMPLES)


def _undo(path: Path, run: options.BackboneOptions) -> Answer:
    """Undo the sort of a table: ``sort --undo``."""
    from evergrow.tools.sorting import read_table, undo_sort

    rows: list[SortedFile] = []
    if os.path.lexists(path):
        rows = read_table(path)
    n_before = sum(row.state in ("done", "undoing") for row in rows)
    kept = undo_sort(path, progress=bool(run.encode_settings()["progress"]))
    n_undone = n_before - sum(row.state == "done" for row in kept)
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
