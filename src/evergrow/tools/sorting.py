"""Sort a folder or archive of images into one folder per class, and undo it.

The table ``OUT/sorted.csv`` lists every file and its destination. It is written before
the first file is moved, and again at the end. After a kill at any moment, the table and
the folders show which files are left. Nothing is overwritten, no link is followed, and
unreadable files stay in place.

A file is removed only while a second directory entry with the same content exists.
"""

from __future__ import annotations

import csv
import errno
import math
import os
import posixpath
import re
import stat
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from evergrow.core.csv_rows import read_csv_rows
from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    ImageError,
    InputError,
    PathError,
)
from evergrow.core.escaping import csv_exact, csv_text, exact_text
from evergrow.core.files import atomic_path, locked, remove_leftovers
from evergrow.core.progress import meter
from evergrow.core.record import from_values
from evergrow.data.items import IMAGE_SUFFIXES, plugin_of
from evergrow.data.sorted_folders import TABLE, UNKNOWN, UNSURE
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learner import Learner
from evergrow.tools.file_moves import (
    SCRATCH_PATTERN,
    How,
    folder_name,
    folder_names,
    free_name,
    holds,
    holds_bytes,
    odd_file,
    own_folder,
    put_bytes,
    put_file,
    remove_partial_copies,
    same_entry,
    same_name,
    scratch_folder,
)
from evergrow.tools.sort_source import SortSource, is_archive, read_packed
from evergrow.tools.strictness import (
    USUAL,
    UnknownEstimate,
    estimate_unknown,
    limits_of,
)

BLOCK_IMAGES = 16_384
"""Number of images predicted at a time, which bounds memory."""

_FATAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors that stop the whole sort, because they affect every file: a full disk, an
exceeded quota, a read-only file system."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class SortedFile:
    """One row of the table: a file, its predicted class and its destination.

    Parameters
    ----------
    file : str
        Original absolute path.
    answer : str
        The most likely class, whatever its probability; empty for unknown or unreadable
        images.
    probability : float or None
        Probability of the class.
    destination : str
        Destination: folder and file name, relative to the folder of the table; empty if
        the file stays.
    how : {"move", "copy", "link", ""}
        How the file is put there.
    state : {"planned", "done", "left", "undoing"}
        Progress; "left" if the file stays. While an undo runs, done rows are marked as
        "undoing".
    size : int
        Size of the file in bytes.
    note : str
        Why the file is unknown or unsure, or stays in place.
    folder : str
        Absolute path of the sorted folder or archive, which contains ``file``.
    novelty : float or None
        Novelty score; None if it is not calibrated.
    """

    file: str
    answer: str = ""
    probability: float | None = None
    destination: str = ""
    how: Literal["move", "copy", "link", ""] = ""
    state: Literal["planned", "done", "left", "undoing"] = "left"
    size: int = 0
    note: str = ""
    folder: str = ""
    novelty: float | None = None

    @property
    def group(self) -> str:
        """The destination folder; empty if the file stays."""
        return posixpath.dirname(self.destination)


def plan_sort(
    learner: Learner,
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    unknown: str = UNKNOWN,
    strangers: str = USUAL,
    least: float | None = None,
    false_alarm: float = FALSE_ALARM,
    earlier: Sequence[SortedFile] = (),
    skip: Collection[str] = (),
) -> list[SortedFile]:
    """Plan where the images of a folder go; nothing is written.

    Parameters
    ----------
    learner : Learner
        A model of images.
    folder : path-like
        Folder of images, including subfolders, or a zip or tar archive of one. Links,
        hidden files and ``out`` are skipped.
    out : path-like
        Folder for the folders of the classes.
    unknown : str, default="unknown"
        Name of the folder for unknown images.
    strangers : {"few", "some", "many"}, default="some"
        How many images of unknown classes to expect. It sets the limits of novelty and
        probability beyond which images go to the folder ``unsure``; see
        :data:`~evergrow.tools.strictness.STRICTNESS`.
    least : float, optional
        Smallest probability of the predicted class at which an image goes to its
        folder. By default the limit that `strangers` sets.
    false_alarm : float, default=0.05
        Fraction of known images that may be called unknown.
    earlier : sequence of SortedFile
        Rows sorted before. These files are skipped, and classes keep their folders.
    skip : collection of str
        Further files to skip, by path relative to the folder, with slashes.

    Returns
    -------
    list of SortedFile
        One row per image; images that stay have the reason as a note.
    """
    limits = limits_of(strangers, least)
    root, target = _resolve_folders(learner, folder, out, unknown)
    _check_no_undo(earlier, target)
    doubtful = math.inf
    if learner.state_.calibration.n:
        doubtful = learner.state_.threshold(limits.false_alarm)
    done = {
        (row.file, row.size)
        for row in earlier
        if row.state == "done" and row.how in ("copy", "link")
    }
    source = SortSource(root)
    sizes = {
        name: size
        for name, size in source.sizes(target).items()
        if name not in skip and (str(root / name), size) not in done
    }
    staying = source.obstacles(sizes)
    names = [name for name in sizes if name not in staying]
    folders = _class_folders(learner.state_.classes.tolist(), earlier, unknown)
    used = {
        group: _names_in(target, group, earlier)
        for group in {unknown, UNSURE, *folders.values()}
    }
    rows: list[SortedFile] = []
    predictions, failures = _predict_images(learner, source, names, false_alarm)
    staying |= failures
    for found in predictions:
        file = root / found.file
        group = folders[found.label]
        row = SortedFile(
            str(file),
            found.label,
            found.probability,
            size=sizes[found.file],
            folder=str(root),
            novelty=found.novelty,
        )
        if found.is_unknown:
            group = unknown
            note = f"unknown, most like {found.label}"
            row = replace(row, answer="", probability=None, note=note)
        elif found.novelty is not None and found.novelty > doubtful:
            group = UNSURE
            row = replace(row, note="unsure, may be of an unknown class")
        elif found.probability is not None and found.probability < limits.probability:
            group = UNSURE
            row = replace(row, note="unsure")
        if file.parent == target / group:
            staying[found.file] = "it is in its folder already"
            continue
        free = _take_free_name(found.file, used[group])
        rows.append(replace(row, destination=f"{group}/{free}"))
    rows += [
        SortedFile(str(root / name), size=sizes[name], note=reason, folder=str(root))
        for name, reason in staying.items()
    ]
    return sorted(rows, key=lambda row: row.file)


def _class_folders(
    classes: Sequence[str], earlier: Iterable[SortedFile], unknown: str
) -> dict[str, str]:
    """Return a folder name per class; classes sorted before keep their folders."""
    known = {
        row.answer: row.group
        for row in earlier
        if row.answer and not row.note and row.destination
    }
    new = [name for name in classes if name not in known]
    folders = folder_names(new, [unknown, UNSURE, TABLE, *known.values()])
    return folders | {name: known[name] for name in classes if name in known}


class _Prediction(NamedTuple):
    file: str
    label: str
    probability: float | None
    novelty: float | None
    is_unknown: bool


def _predict_images(
    learner: Learner, source: SortSource, names: list[str], false_alarm: float
) -> tuple[list[_Prediction], dict[str, str]]:
    """Return predictions of readable images in order, and errors by name of the others.

    Without calibrated novelty, no image is unknown.
    """
    alarm = false_alarm if learner.state_.calibration.n else None
    found: list[_Prediction] = []
    failures: dict[str, str] = {}
    for start in range(0, len(names), BLOCK_IMAGES):
        block = names[start : start + BLOCK_IMAGES]
        images = source.images(block)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # rows name unreadable files
            try:
                predictions = learner.predictions(
                    images, false_alarm=alarm, on_error="skip"
                )
            except ImageError as error:  # all images of the block are unreadable
                failures |= dict.fromkeys(block, str(error))
                continue
        failures |= dict(predictions.failures)
        best = predictions.ranked(1)
        probabilities: list[float | None] = [None] * len(best)
        if predictions.measure == "probability":
            probabilities = predictions.values.max(axis=1).tolist()
        unknown = predictions.unknown
        novelty: list[float | None] = [None] * len(best)
        if unknown is None:
            unknown = np.zeros(len(best), dtype=bool)
        if predictions.novelty is not None:
            novelty = predictions.novelty.tolist()
        found += map(
            _Prediction,
            [block[row] for row in predictions.rows.tolist()],
            predictions.classes[best[:, 0]].tolist(),
            probabilities,
            novelty,
            unknown.tolist(),
        )
    return found, failures


def _resolve_folders(
    learner: Learner, folder: Any, out: Any, unknown: str
) -> tuple[Path, Path]:
    """Return both folders behind all links, after a check that they can be used.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder of images.
    InputError
        If `out` is that folder or not in an existing one, the name of the folder for
        unknown images is not valid, or the model is not one of images.
    """
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(out))
    if not root.is_dir() and not is_archive(root):
        raise DatasetNotFoundError(f"No folder or archive {os.fspath(folder)!r} here.")
    if target.exists() and os.path.samefile(root, target):
        raise InputError(
            f"{os.fspath(out)} holds the images themselves; name another folder to "
            "sort them into."
        )
    if not target.parent.is_dir() or (target.exists() and not target.is_dir()):
        raise InputError(
            f"{os.fspath(out)} must be a folder, or a new one in an existing folder."
        )
    if unknown != folder_name(unknown) or same_name(unknown) in (UNSURE, TABLE):
        raise InputError(
            f"{unknown!r} cannot be the name of a folder for unknown images; "
            f"try {UNKNOWN!r}."
        )
    if learner.state_.kind != "image" or not hasattr(learner.head_, "predict_proba"):
        raise InputError(
            "Sorting needs a model of images with probabilities, such as one made by "
            "'evergrow fit'."
        )
    return root, target


def _check_no_undo(earlier: Iterable[SortedFile], out: Path) -> None:
    """Raise :class:`InputError` if an undo was interrupted: files would be doubled."""
    if any(row.state == "undoing" for row in earlier):
        raise InputError(
            f"An undo of {out / TABLE} was interrupted; undo it again before sorting."
        )


def _names_in(out: Path, group: str, earlier: Iterable[SortedFile]) -> set[str]:
    """Return the taken file names of a folder, in the form of :func:`same_name`.

    These are the names of existing files, and of files in earlier rows.
    """
    folder = own_folder(out, group, make=False)
    names = os.listdir(folder) if folder.is_dir() else []
    names += [
        posixpath.basename(row.destination) for row in earlier if row.group == group
    ]
    return set(map(same_name, names))


def _take_free_name(name: str, used: set[str]) -> str:
    """Return a free file name for a file, and add it to the used names."""
    found = free_name(posixpath.basename(name), lambda other: same_name(other) in used)
    used.add(same_name(found))
    return found


def sort_folder(
    learner: Learner,
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    how: How,
    *,
    progress: bool = False,
    **settings: Any,
) -> list[SortedFile]:
    """Sort the images of a folder; an interrupted earlier call is completed first.

    Writes the table ``sorted.csv`` to ``out``, which :func:`undo_sort` takes. No file
    is overwritten: a taken name gets a number.

    An interrupted sort of another folder into ``out`` is not completed. Its rows stay
    in the table until that folder is sorted again, or everything is undone.

    Parameters
    ----------
    learner, folder, out
        As for :func:`plan_sort`.
    how : {"move", "copy", "link"}
        How to put files into the folders.
    progress : bool, default=False
        Whether to show a progress bar.
    **settings
        Passed to :func:`plan_sort`.

    Returns
    -------
    list of SortedFile
        One row per image; images that stay have the reason as a note.

    Raises
    ------
    BusyError
        If another process sorts into the same folder.
    FileFormatError
        If the table in ``out`` is damaged.
    InputError
        If an undo was interrupted, or a folder cannot be used.
    PathError
        If the disk is full. Repeat the call to continue.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from evergrow import Learner
    >>> from evergrow.tools.sorting import TABLE, sort_folder, undo_sort
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, colour in (("day", "white"), ("night", "black")):
    ...         Path(folder, "taught", name).mkdir(parents=True)
    ...         for number in range(4):
    ...             image = Image.new("RGB", (32, 32), colour)
    ...             image.save(Path(folder, "taught", name, f"{number}.png"))
    ...     images, out = Path(folder, "taught"), Path(folder, "out")
    ...     learner = Learner("test_resnet", weights="random", cache=False).fit(images)
    ...     rows = sort_folder(learner, images, out, "copy", least=0.5)
    ...     print(len(rows), (out / TABLE).is_file(), undo_sort(out / TABLE))
    8 True []
    """
    root, target = _resolve_folders(
        learner, folder, out, settings.get("unknown", UNKNOWN)
    )
    if how != "copy" and is_archive(root):
        raise InputError(
            f"The images in {os.fspath(folder)} can only be copied out of it, not "
            "moved or linked."
        )
    target.mkdir(exist_ok=True)
    with locked(target):
        remove_leftovers(target, f".{TABLE}.*")
        table = target / TABLE
        earlier = read_sort_table(table) if os.path.lexists(table) else []
        _check_no_undo(earlier, target)
        resumed, waiting = split_planned(earlier, root)
        remove_partial_copies(target)
        _remove_partial_copies(target / row.group for row in resumed)
        completed = _put_files(resumed, target, progress)
        done = [row for row in (*earlier, *completed) if row.state == "done"]
        before = [*done, *waiting]
        plan = plan_sort(learner, folder, out, **settings, earlier=before)
        planned = [
            replace(row, how=how, state="planned") for row in plan if row.destination
        ]
        stays = [row for row in plan if not row.destination]
        write_table(table, [*before, *planned, *stays])
        done = _put_files(planned, target, progress)
        write_table(table, [*before, *done, *stays])
    return [*completed, *done, *stays]


def estimate_unknown_files(
    learner: Learner,
    rows: Iterable[SortedFile],
    *,
    strangers: str = USUAL,
    least: float | None = None,
) -> UnknownEstimate | None:
    """Estimate how many sorted images are of unknown classes.

    Parameters
    ----------
    learner : Learner
        The model that sorted them.
    rows : iterable of SortedFile
        Result of :func:`plan_sort` or :func:`sort_folder`.
    strangers, least
        As for :func:`plan_sort`.

    Returns
    -------
    UnknownEstimate or None
        None if the model cannot tell; see
        :func:`~evergrow.tools.strictness.estimate_unknown`.
    """
    scored = [row for row in rows if row.novelty is not None]
    novelty = np.array([row.novelty for row in scored], dtype=np.float64)
    probability = np.array([row.probability or 0.0 for row in scored])
    return estimate_unknown(
        learner.state_.calibration, novelty, probability, limits_of(strangers, least)
    )


def split_planned(
    rows: Iterable[SortedFile], folder: str | os.PathLike[str]
) -> tuple[list[SortedFile], list[SortedFile]]:
    """Return the planned rows of files in a folder, and the other planned rows."""
    root = Path(os.path.realpath(folder))
    inside: list[SortedFile] = []
    elsewhere: list[SortedFile] = []
    for row in rows:
        if row.state == "planned":
            if Path(row.file).is_relative_to(root):
                inside.append(row)
            else:
                elsewhere.append(row)
    return inside, elsewhere


def _put_files(
    planned: Sequence[SortedFile], out: Path, progress: bool
) -> list[SortedFile]:
    """Put files into their folders; return the rows as done, or left with the reason.

    Raises
    ------
    PathError
        At an error that affects every file. The rows of the table stay planned.
    """
    rows: list[SortedFile] = []
    if not planned:
        return rows
    try:
        with scratch_folder(out) as scratch:
            for row in _with_progress("sorting", planned, progress):
                reason = _put_file(row, out, scratch)
                if reason:
                    row = replace(
                        row, destination="", how="", state="left", note=reason
                    )
                else:
                    row = replace(row, state="done")
                rows.append(row)
    except OSError as error:
        raise PathError(
            f"{error.strerror or error}: {len(rows)} of {len(planned)} files are "
            f"sorted, the others are where they were. {out / TABLE} lists both, and "
            "the same command goes on from there."
        ) from error
    return rows


def _with_progress(
    what: str, rows: Sequence[SortedFile], progress: bool
) -> Iterator[SortedFile]:
    """Yield rows and show a progress bar."""
    with meter(what, len(rows), enabled=progress and bool(rows)) as tick:
        for number, row in enumerate(rows):
            yield row
            tick(number + 1)


def _remove_partial_copies(folders: Iterable[Path]) -> None:
    """Remove partial copies of killed processes from folders; links are skipped."""
    for folder in set(folders):
        if folder.is_dir() and not _behind_link(folder):
            remove_partial_copies(folder)


def _behind_link(folder: Path) -> bool:
    """Return whether the path of a folder contains a link."""
    return os.path.realpath(folder) != str(folder)


def _put_file(row: SortedFile, out: Path, scratch: Path) -> str:
    """Put one file into its folder; return why it stays, or empty.

    Raises errors that affect every file.
    """
    source = Path(row.file)
    target = own_folder(out, row.group) / posixpath.basename(row.destination)
    how = cast(How, row.how)
    try:
        if is_archive(Path(row.folder)):
            return _unpack_file(row, target, scratch)
        if not os.path.lexists(source):
            if _is_file_of_size(target, row.size) or holds(source, target, how):
                return ""  # a killed process did this
            return "it is no longer there"
        if _behind_link(source.parent):
            return "a link is on the way to it: links are not followed"
        if reason := odd_file(source):
            return reason
        put_file(source, target, how, scratch)
    except OSError as error:
        return _reason(error, target)
    return ""


def _unpack_file(row: SortedFile, target: Path, scratch: Path) -> str:
    """Copy one file out of an archive; return why it cannot be read, or empty."""
    try:
        body = read_packed(row.file, Path(row.folder))
    except (DatasetNotFoundError, FileFormatError) as error:
        return str(error)
    if not holds_bytes(body, target):  # unless a killed process did this
        put_bytes(body, target, scratch)
    return ""


def _reason(error: OSError, target: Path) -> str:
    """Return the reason of a failure; raise the error if it affects every file."""
    if isinstance(error, FileNotFoundError):
        return "it is no longer there"
    if isinstance(error, FileExistsError):
        return f"another file is at {target}"
    if error.errno in _FATAL_ERRORS:
        raise error
    return error.strerror or str(error)


def _is_file_of_size(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


# -- undo --


def undo_sort(
    table: str | os.PathLike[str], *, progress: bool = False
) -> list[SortedFile]:
    """Undo everything listed in a table, then remove the table.

    Moved files go back. Unchanged copies and links are removed, and then empty class
    folders. Files that were changed since stay, and stay listed. An interrupted undo
    can be repeated.

    Parameters
    ----------
    table : path-like
        The table in the folder of sorted files.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    list of SortedFile
        Rows that could not be undone, with the reason as a note.

    Raises
    ------
    BusyError
        If another process sorts into the same folder.
    DatasetNotFoundError
        If there is no table.
    FileFormatError
        If the table is damaged.
    PathError
        At an error that affects every file, such as a read-only disk.
    """
    path = Path(
        os.path.realpath(os.path.dirname(os.path.abspath(table))),
        os.path.basename(table),
    )
    out = path.parent
    if _only_leftovers(out):  # a process was killed without a table
        with locked(out):
            remove_leftovers(out, f".{TABLE}.*")
            remove_partial_copies(out)
        _remove_if_empty(out)
        return []
    _check_table_exists(table)
    kept: list[SortedFile] = []
    with locked(out):
        remove_leftovers(out, f".{TABLE}.*")
        rows = _begin_undo(path)
        remove_partial_copies(out)
        _remove_partial_copies(out / row.group for row in rows if row.destination)
        _remove_partial_copies(
            Path(row.file).parent for row in rows if row.how == "move"
        )
        try:
            for row in _with_progress("undoing", rows[::-1], progress):
                reason = _undo_row(row, out) if row.destination else ""
                if reason:
                    kept.append(replace(row, note=reason))
        except OSError as error:
            raise PathError(
                f"{error.strerror or error}. The other files are as they were; undo "
                "it again."
            ) from error
        for group in {row.group for row in rows if row.destination}:
            if not (out / group).is_symlink():
                _remove_if_empty(out / group)
        if kept:
            write_table(path, reversed(kept))
        else:
            path.unlink()
    _remove_if_empty(out)
    return kept


def _begin_undo(path: Path) -> list[SortedFile]:
    """Mark done rows as being undone in the table; return its rows as before."""
    rows = [
        replace(row, state="done") if row.state == "undoing" else row
        for row in read_sort_table(path)
    ]
    with suppress(OSError):  # an undo must work on a full disk
        write_table(
            path,
            (
                replace(row, state="undoing") if row.state == "done" else row
                for row in rows
            ),
        )
    return rows


def _only_leftovers(out: Path) -> bool:
    """Return whether a folder holds only partial files of killed processes."""
    try:
        names = os.listdir(out)
    except OSError:
        return False
    leftover = re.compile(rf"\.lock|\.{re.escape(TABLE)}\..*\.part|{SCRATCH_PATTERN}")
    return bool(names) and all(map(leftover.fullmatch, names))


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty
        folder.rmdir()


def _undo_row(row: SortedFile, out: Path) -> str:
    """Undo one row, unless that is done; return why it fails, or empty."""
    source = Path(row.file)
    try:
        folder = own_folder(out, row.group, make=False)
        return _restore_file(row, source, folder / posixpath.basename(row.destination))
    except InputError as error:  # the folder was replaced by a link or a file
        return str(error)
    except OSError as error:
        return _reason(error, source)


def _restore_file(row: SortedFile, source: Path, target: Path) -> str:
    """Move a file back, or remove its copy or link; return why that fails, or empty."""
    planned = row.state == "planned"
    if is_archive(Path(row.folder)):
        return _remove_unpacked(row, target)
    if not os.path.lexists(target):
        if row.how != "move" or planned or os.path.lexists(source):
            return ""
        return "it is no longer there"
    if row.how == "link":
        if holds(source, target, "link"):
            target.unlink()
            return ""
        return "" if planned else "another file has its name"
    if _behind_link(source.parent):
        return f"a link is on the way to {source}: links are not followed"
    if holds(source, target, "copy"):
        target.unlink()
        return ""
    if planned and (os.path.lexists(source) or not _is_file_of_size(target, row.size)):
        return ""  # it was never put there
    if row.how == "copy":
        return "it was changed, or its original is gone"
    if not stat.S_ISREG(os.lstat(target).st_mode):
        return "another file has its name"
    if os.path.lexists(source) and same_entry(source, target):
        return ""  # its folder was moved back by hand
    with suppress(OSError):  # `put_file` reports the error
        source.parent.mkdir(parents=True, exist_ok=True)
    put_file(target, source, "move")
    return ""


def _remove_unpacked(row: SortedFile, target: Path) -> str:
    """Remove a file that was copied out of an archive; return why that fails."""
    if not os.path.lexists(target):
        return ""
    try:
        is_copy = holds_bytes(read_packed(row.file, Path(row.folder)), target)
    except (DatasetNotFoundError, FileFormatError) as error:
        return f"its archive cannot be read: {error}"
    if is_copy:
        target.unlink()
        return ""
    return "" if row.state == "planned" else "it was changed"


# -- table --

_COLUMNS = [field.name for field in fields(SortedFile)]
# Escaped so that they can be read back.
_EXACT = ("file", "folder", "answer", "destination")
_PATHS = ("file", "folder")  # with slashes in the table
_NUMBERS = ("probability", "novelty")  # empty if None


def write_table(path: Path, rows: Iterable[SortedFile]) -> None:
    """Write a table atomically."""
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for row in rows:
            cells = asdict(row)
            for column in _NUMBERS:
                value = cells[column]
                cells[column] = "" if value is None else f"{value:.6g}"
            for column in _PATHS:
                cells[column] = cells[column].replace(os.sep, "/")
            for column in _EXACT:
                cells[column] = csv_exact(cells[column])
            cells["note"] = csv_text(row.note)
            writer.writerow(cells[column] for column in _COLUMNS)


def _check_table_exists(path: str | os.PathLike[str]) -> None:
    if not os.path.isfile(path) or os.path.islink(path):
        raise DatasetNotFoundError(
            f"No table {os.fspath(path)!r} here; {TABLE} lies in the folder of sorted "
            "files."
        )


def read_sort_table(path: str | os.PathLike[str]) -> list[SortedFile]:
    """Read and check a table, which users may have edited.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    FileFormatError
        If it is not a table of a sort, or names files outside of its folders.
    """
    _check_table_exists(path)
    title = os.fspath(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = read_csv_rows(file.read(), title)
        _, header = next(lines, (0, []))
        if header != _COLUMNS:
            raise ValueError("its first line is not that of one")
        return [_row(header, cells, line) for line, cells in lines if cells]
    except ValueError as error:
        raise FileFormatError(
            f"{title} is not a table of a sort, or was damaged: {error}"
        ) from error


def _row(header: list[str], cells: list[str], line: int) -> SortedFile:
    """Parse and check one row of a table with these columns.

    Raises
    ------
    ValueError
        If a cell is not valid, or a path lies outside of its folder.
    """
    if len(cells) != len(header):
        raise ValueError(f"line {line} must have {len(header)} cells")
    if _CONTROL.search("".join(cells)):
        raise ValueError(f"line {line} has control characters")
    values: dict[str, Any] = dict(zip(header, cells, strict=True))
    for column in _EXACT:
        values[column] = exact_text(values[column])
    for column in _PATHS:
        values[column] = values[column].replace("/", os.sep)
    for column in _NUMBERS:
        cell = values.get(column)
        values[column] = float(cell) if cell else None
    values["size"] = int(values["size"])
    row = from_values(SortedFile, values, f"line {line}")
    _check_row(row, line)
    return row


def _check_row(row: SortedFile, line: int) -> None:
    """Raise ``ValueError`` if a row contradicts itself or leaves its folders."""
    inside = os.path.join(row.folder, "")
    file_parts = row.file.removeprefix(inside).split(os.sep)
    is_inside = (
        os.path.isabs(row.folder)
        and os.path.normpath(row.folder) == row.folder
        and row.file.startswith(inside)
        and all(map(_is_plain_name, file_parts))
    )
    if not is_inside:
        raise ValueError(f"line {line} names {row.file!r} outside of {row.folder!r}")
    if not _ends_like_image(row.file):
        raise ValueError(f"line {line} names {row.file!r}, which is not an image path")
    stays = not row.destination
    if stays != (row.state == "left") or stays == bool(row.how):
        raise ValueError(f"line {line} contradicts itself")
    if stays:
        return
    parts = row.destination.split("/")
    is_below = len(parts) == 2 and all(map(_is_plain_name, parts))
    if not (is_below and _ends_like_image(row.destination)):
        raise ValueError(f"line {line} names {row.destination!r} outside of its folder")


def _is_plain_name(name: str) -> bool:
    """Return whether a string is a single file name on this system."""
    os.fsencode(name)  # raises ValueError for invalid names
    separators = {"/", os.sep, "\0"}
    return name not in ("", ".", "..") and separators.isdisjoint(name)


def _ends_like_image(name: str) -> bool:
    """Return whether a name has an image suffix, even if its reader is missing."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix in IMAGE_SUFFIXES or plugin_of(name) is not None
