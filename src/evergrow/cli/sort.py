"""``evergrow sort``: sort the images of a folder into one folder per class."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from evergrow.cli import options
from evergrow.cli.console import (
    Answer,
    listed,
    note_line,
    percent,
    plural,
    table,
    warn_line,
)
from evergrow.cli.exits import flush
from evergrow.cli.model_files import (
    can_reject_unknown,
    load_model,
    note_few_samples,
    note_one_class,
    strictness_lines,
)
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError
from evergrow.core.files import existing_model

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.tools.file_moves import How
    from evergrow.tools.sorting import SortedFile

_MAX_EXAMPLES = 3  # file names per folder
_MAX_GROUPS = 8  # folders in a line of --watch


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
    watch: bool = False,
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
    and links. Correct the sorted folders by hand, and evergrow update MODEL OUT learns
    them without the folders unknown and unsure.

    For example:

      evergrow sort birds.evg photos/ --into sorted/

      evergrow sort birds.evg photos/ --into sorted/ --move

      evergrow sort birds.evg photos/ --into sorted/ --copy --min 0.9 --unknown other

      evergrow sort birds.evg photos.zip --into sorted/ --copy

      evergrow sort birds.evg photos/ --into sorted/ --move --watch

      evergrow sort --undo sorted/sorted.csv

    Exit codes: 0 done, or --watch was ended; 1 done but some files were left in place,
    such as unreadable ones; 2 bad input or a full disk; 3 another process sorts into
    the folder; 130 interrupted, and the same command resumes.

    Parameters
    ----------
    folder
        Folder of images, including its subfolders, or a .zip or .tar of one.
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
    watch
        Keep running, and sort new images of FOLDER as they arrive, until Ctrl-C or
        SIGTERM. A file is sorted when it did not change for two seconds.
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
    mode = _mode(move=move, copy=copy, link=link)
    image_options = options.ImageOptions(
        run.device, run.cache, run.weights, run.as_json, on_error="skip"
    )
    settings: dict[str, Any] = {
        "unknown": unknown,
        "strangers": strangers,
        "least": least,
        "false_alarm": false_alarm,
    }
    if watch:
        if mode is None:
            raise ParameterError("--watch needs --move, --copy or --link.")
        current = _CurrentModel(model, image_options)
        return _watch(current, folder, into, mode, settings, run)
    from evergrow.data.sorted_folders import TABLE

    learner = load_model(model, image_options)
    rows, notes = _sort_once(learner, folder, into, mode, settings, image_options)
    notes += _expected_errors(learner, rows, strangers, least)
    return _answer(folder, rows, notes, None if mode is None else into / TABLE)


def _sort_once(
    learner: Learner,
    folder: Path,
    into: Path,
    mode: How | None,
    settings: dict[str, Any],
    run: options.ImageOptions,
) -> tuple[list[SortedFile], list[str]]:
    """Sort a folder, or only plan it without a mode. Return the rows and notes."""
    from evergrow.data.sorted_folders import TABLE
    from evergrow.tools.sorting import (
        plan_sort,
        read_sort_table,
        sort_folder,
        split_planned,
    )

    table_path = into / TABLE
    earlier: list[SortedFile] = []
    if os.path.lexists(table_path):
        earlier = read_sort_table(table_path)
    resumed, waiting = split_planned(earlier, folder)
    note_few_samples(learner)
    note_one_class(learner)
    can_reject_unknown(learner)
    if mode is not None:
        progress = bool(run.encode_settings()["progress"])
        with _told_how_to_resume(table_path):
            rows = sort_folder(
                learner, folder, into, mode, progress=progress, **settings
            )
        n_sorted = sum(bool(row.destination) for row in rows)
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
    return rows, notes


def _mode(**wanted: bool) -> How | None:
    """Return which of --move, --copy and --link is set, or None.

    Raises
    ------
    ParameterError
        If several are set.
    """
    modes = [name for name, is_wanted in wanted.items() if is_wanted]
    if len(modes) > 1:
        raise ParameterError(
            f"--{modes[0]} and --{modes[1]} do not go together; choose one."
        )
    return cast("How", modes[0]) if modes else None


@contextmanager
def _told_how_to_resume(table_path: Path) -> Iterator[None]:
    """Say in the message of an interruption how to continue and how to undo."""
    try:
        yield
    except KeyboardInterrupt as error:
        message = "Interrupted; nothing was sorted."
        if os.path.lexists(table_path):
            message = (
                "Interrupted. The same command sorts the rest; evergrow sort --undo "
                f"{table_path} undoes what is sorted."
            )
        raise KeyboardInterrupt(message) from error


# -- continuously ----------------------------------------------------------------------


class _CurrentModel:
    """A model file, loaded again if it has changed since.

    Parameters
    ----------
    path : Path
        The model file.
    run : ImageOptions
        How to run the backbone.
    """

    def __init__(self, path: Path, run: options.ImageOptions) -> None:
        self.path = path
        self._run = run
        self._learner = load_model(path, run)
        self._state = self._file_state()

    def __call__(self) -> Learner:
        """Return the model as it is in its file now."""
        state = self._file_state()
        if state != self._state:
            self._learner = load_model(self.path, self._run)
            self._state = state
        return self._learner

    def _file_state(self) -> tuple[int, int, int]:
        status = existing_model(self.path).stat()
        return status.st_size, status.st_mtime_ns, status.st_ino


def _watch(
    load: _CurrentModel,
    folder: Path,
    into: Path,
    mode: How,
    settings: dict[str, Any],
    run: options.BackboneOptions,
) -> Answer:
    """Sort new images until the command is ended: ``sort --watch``."""
    from evergrow.data.sorted_folders import TABLE
    from evergrow.tools.watching import sort_continuously

    note_few_samples(load())
    can_reject_unknown(load())
    counts: Counter[str] = Counter()
    left: dict[str, str] = {}
    note_line(f"watching {folder}; Ctrl-C ends it")
    with _ended_by_signals():
        for rows in sort_continuously(load, folder, into, mode, **settings):
            new_left = [
                row for row in rows if not row.destination and row.file not in left
            ]
            left |= {row.file: row.note for row in new_left}
            groups = Counter(row.group for row in rows if row.destination)
            counts += groups
            if new_left:
                n_left = plural(len(new_left), "file")
                warn_line(f"{n_left} left in place: {_reasons(new_left)}")
            if groups and not run.as_json:
                names = [f"{name} {count}" for name, count in sorted(groups.items())]
                n_sorted = plural(groups.total(), "file")
                typer.echo(f"{n_sorted} sorted: {listed(names, _MAX_GROUPS)}")
                flush()
    table_path = into / TABLE
    values = {
        "table": str(table_path) if os.path.lexists(table_path) else None,
        "folders": dict(sorted(counts.items())),
        "left": left,
    }
    return Answer(values, [f"ended; {plural(counts.total(), 'file')} sorted"])


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block at Ctrl-C or SIGTERM, without an error.

    The table of a sort is valid at any moment, so the block can end anywhere.
    """
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


# -- what is printed -------------------------------------------------------------------


def _expected_errors(
    learner: Learner,
    rows: Sequence[SortedFile],
    strangers: str,
    least: float | None,
) -> list[str]:
    """Return lines with the error rates of the limits and the estimated errors."""
    from evergrow.tools.sorting import estimate_unknown_files

    lines = strictness_lines(
        learner,
        strangers,
        least,
        samples="images",
        unaccepted="go to unsure or unknown",
        accepted="are sorted into a class",
    )
    if not lines:
        return []
    found = estimate_unknown_files(learner, rows, strangers=strangers, least=least)
    if found is not None:
        n_sorted = sum(bool(row.destination and not row.note) for row in rows)
        low, high = found.accepted_interval
        lines.append(
            f"about {round(found.accepted)} ({round(low)} to {round(high)}) of the "
            f"{plural(n_sorted, 'image')} sorted into classes may be of other classes"
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
    from evergrow.tools.sorting import read_sort_table, undo_sort

    rows: list[SortedFile] = []
    if os.path.lexists(path):
        rows = read_sort_table(path)
    n_before = sum(row.state in ("done", "undoing") for row in rows)
    try:
        kept = undo_sort(path, progress=bool(run.encode_settings()["progress"]))
    except KeyboardInterrupt as error:
        message = "Interrupted. The same command undoes the rest."
        raise KeyboardInterrupt(message) from error
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
