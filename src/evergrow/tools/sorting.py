"""Sorting a folder of images into a folder for each class, and taking it back.

The table ``OUT/sorted.csv`` is written before the first file is put anywhere, with every file and where it goes, and
again at the end. After a kill at any moment the table and the folders tell what is left to do. Nothing is overwritten,
no link is followed, and what cannot be read stays where it is.
"""

from __future__ import annotations

import csv
import errno
import os
import posixpath
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    ImageError,
    InputError,
    PathError,
)
from evergrow.core.escaping import csv_text
from evergrow.core.files import atomic_path, locked, remove_leftovers
from evergrow.core.progress import meter
from evergrow.core.record import from_values
from evergrow.data.items import Images, is_image
from evergrow.data.storage import Tree
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learner import Learner
from evergrow.tools.file_moves import (
    How,
    folder_name,
    folder_names,
    free_name,
    holds,
    odd_file,
    odd_name,
    own_folder,
    put_file,
    same_name,
)

TABLE = "sorted.csv"
"""Name of the table."""

UNKNOWN, UNSURE = "unknown", "unsure"
"""Folders of what belongs to no learned class, and of answers that are not likely enough."""

LEAST = 0.8
"""Probability from which an answer counts as sure."""

BLOCK = 16_384
"""Images that are asked about at once, which bounds memory."""

_SCRATCH = ".sorting"
_ENDING = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
}  # what befalls one file befalls the next one too


@dataclass(frozen=True)
class SortedFile:
    """One row of the table: a file, the answer about it, and where it went.

    Parameters
    ----------
    file : str
        Where it was, as a whole path.
    answer : str
        The likeliest class, also where it is not sure; empty for what is unknown or cannot be read.
    probability : float or None
        Of the answer.
    place : str
        Where it went, from the folder of the table; empty where it stays.
    how : {"move", "copy", "link", ""}
        How it got there.
    state : {"planned", "done", "left"}
        Whether it is there.
    size : int
        Bytes of the file.
    note : str
        What is unusual about it: that it is unknown, unsure, or cannot be read.
    """

    file: str
    answer: str = ""
    probability: float | None = None
    place: str = ""
    how: Literal["move", "copy", "link", ""] = ""
    state: Literal["planned", "done", "left"] = "left"
    size: int = 0
    note: str = ""

    @property
    def group(self) -> str:
        """The folder that it goes to; empty where it stays."""
        return posixpath.dirname(self.place)


def plan_sort(
    learner: Learner,
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    unknown: str = UNKNOWN,
    least: float = LEAST,
    false_alarm: float = FALSE_ALARM,
    earlier: Sequence[SortedFile] = (),
) -> list[SortedFile]:
    """Return where the images of a folder belong; nothing is written.

    Parameters
    ----------
    learner : Learner
        A model of images.
    folder : path-like
        Images, in subfolders too; links and hidden files are left alone, and so is ``out``, should it lie there.
    out : path-like
        Where the folders of classes are, or will be.
    unknown : str
        Folder of images of no learned class.
    least : float
        Probability below which an answer goes to ``unsure``.
    false_alarm : float
        Share of known things that may be called unknown.
    earlier : sequence of SortedFile
        What was sorted there before: it is left out, and classes keep their folders.

    Returns
    -------
    list of SortedFile
        One row for every image, those that stay with the reason.
    """
    root, target = _checked(learner, folder, out, unknown)
    done = {
        (row.file, row.size)
        for row in earlier
        if row.state == "done" and row.how in ("copy", "link")
    }
    sizes = {
        name: size
        for name, size in _images(root, target).items()
        if (str(root / name), size) not in done
    }
    left = {name: reason for name in sizes if (reason := _why_not(root, name))}
    names = [name for name in sizes if name not in left]
    known = {
        row.answer: row.group
        for row in earlier
        if row.answer and not row.note and row.place
    }
    classes = [str(name) for name in learner.class_names_]
    fresh = [name for name in classes if csv_text(name) not in known]
    folders = folder_names(fresh, [unknown, UNSURE, TABLE, *known.values()])
    folders |= {
        name: known[csv_text(name)] for name in classes if csv_text(name) in known
    }
    used = {
        group: _names_in(target, group, earlier)
        for group in {unknown, UNSURE, *folders.values()}
    }
    rows: list[SortedFile] = []
    alarm = false_alarm if learner.info()["novelty"] else None
    for start in range(0, len(names), BLOCK):
        block = names[start : start + BLOCK]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the rows say it
            try:
                found = learner.ask(Images(tuple(block), root=root), false_alarm=alarm)
            except ImageError as error:  # none can be read
                left |= dict.fromkeys(block, str(error))
                continue
        left |= dict(found.failures)
        columns = found.ranked(1)[:, 0]
        for place, row in enumerate(found.rows.tolist()):
            name, likely = (
                str(found.classes[columns[place]]),
                float(found.values[place, columns[place]]),
            )
            made = SortedFile(
                str(root / block[row]), csv_text(name), likely, size=sizes[block[row]]
            )
            group = folders[name]
            if found.unknown is not None and found.unknown[place]:
                group, made = (
                    unknown,
                    replace(
                        made,
                        answer="",
                        probability=None,
                        note=f"unknown, most like {name}",
                    ),
                )
            elif likely < least:
                group, made = UNSURE, replace(made, note="unsure")
            rows.append(
                replace(made, place=f"{group}/{_free_name(block[row], used[group])}")
            )
    rows += [
        SortedFile(str(root / name), size=sizes[name], note=reason)
        for name, reason in left.items()
    ]
    return sorted(rows, key=lambda row: row.file)


def _checked(
    learner: Learner, folder: Any, out: Any, unknown: str
) -> tuple[Path, Path]:
    """Return the two folders, all links on the way to them followed, or raise what is wrong with the request."""
    root, target = Path(os.path.realpath(folder)), Path(os.path.realpath(out))
    if not root.is_dir():
        raise DatasetNotFoundError(f"No folder {os.fspath(folder)!r} here.")
    if root == target:
        raise InputError(
            f"{os.fspath(out)} holds the images themselves; name another folder to sort them into."
        )
    if not target.parent.is_dir() or (target.exists() and not target.is_dir()):
        raise InputError(
            f"{os.fspath(out)} must be a folder, or a new one in a folder that is there."
        )
    if not str(root).isprintable():
        raise InputError(
            f"The path of {os.fspath(folder)!r} has characters that cannot be shown; rename it first."
        )
    if unknown != folder_name(unknown) or same_name(unknown) in (UNSURE, TABLE):
        raise InputError(
            f"{unknown!r} cannot be the name of a folder for unknown images; try {UNKNOWN!r}."
        )
    if learner.kind_ != "image" or not hasattr(learner.head_, "predict_proba"):
        raise InputError(
            "Sorting needs a model of images that gives probabilities, such as 'evergrow fit' makes."
        )
    return root, target


def _images(root: Path, out: Path) -> dict[str, int]:
    """Return the images below a folder and their sizes; hidden ones are left out, and what is in another folder."""
    below = f"{out.relative_to(root).as_posix()}/" if out.is_relative_to(root) else ""
    return {
        name: size
        for name, size in Tree(root).listing().items()
        if is_image(name)
        and not (below and name.startswith(below))
        and not any(part.startswith(".") for part in name.split("/"))
    }


def _why_not(root: Path, name: str) -> str:
    """Return why an image is not asked about; nothing where it is."""
    try:
        return next(filter(None, map(odd_name, name.split("/"))), "") or odd_file(
            root / name
        )
    except FileNotFoundError:
        return "it is no longer there"


def _names_in(out: Path, group: str, earlier: Iterable[SortedFile]) -> set[str]:
    """Return the names that are taken in a folder: by what is there, or was to go there."""
    folder = own_folder(out, group, make=False)
    there = os.listdir(folder) if folder.is_dir() else []
    return set(
        map(
            same_name,
            [
                *there,
                *(
                    posixpath.basename(row.place)
                    for row in earlier
                    if row.group == group
                ),
            ],
        )
    )


def _free_name(name: str, used: set[str]) -> str:
    """Return a name for a file that nobody has; nobody gets it again."""
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
    """Sort the images of a folder, after completing what an earlier call was interrupted in.

    Parameters
    ----------
    learner, folder, out
        As for :func:`plan_sort`.
    how : {"move", "copy", "link"}
        What to do with the files.
    progress : bool
        Whether to show a bar.
    **settings
        For :func:`plan_sort`.

    Returns
    -------
    list of SortedFile
        One row for every image that was put somewhere, or stays with the reason.

    Raises
    ------
    BusyError
        If another process sorts into the same folder.
    PathError
        If the disk is full; the same call goes on from there.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from evergrow import Learner
    >>> from evergrow.tools.sorting import TABLE, sort_folder, undo_sort
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name, colour in (("day", "white"), ("night", "black")):
    ...         Path(place, "taught", name).mkdir(parents=True)
    ...         for number in range(4):
    ...             image = Image.new("RGB", (32, 32), colour)
    ...             image.save(Path(place, "taught", name, f"{number}.png"))
    ...     learner = Learner("test_resnet", weights="random", cache=False).fit(Path(place, "taught"))
    ...     rows = sort_folder(learner, Path(place, "taught"), Path(place, "out"), "copy", least=0.5)
    ...     print(len(rows), Path(place, "out", TABLE).is_file(), undo_sort(Path(place, "out", TABLE)))
    8 True []
    """
    _, target = _checked(learner, folder, out, settings.get("unknown", UNKNOWN))
    target.mkdir(exist_ok=True)
    with locked(target):
        remove_leftovers(target, f".{TABLE}.*")
        table = target / TABLE
        earlier = read_table(table) if os.path.lexists(table) else []
        resumed = [row for row in earlier if row.state == "planned"]
        completed = _carried_out(resumed, target, progress)
        before = [row for row in (*earlier, *completed) if row.state == "done"]
        plan = plan_sort(learner, folder, out, **settings, earlier=before)
        planned = [replace(row, how=how, state="planned") for row in plan if row.place]
        stays = [row for row in plan if not row.place]
        write_table(table, [*before, *planned, *stays])
        done = _carried_out(planned, target, progress)
        write_table(table, [*before, *done, *stays])
    return [*completed, *done, *stays]


def _carried_out(
    planned: Sequence[SortedFile], out: Path, progress: bool
) -> list[SortedFile]:
    """Put files where they belong, and return the rows with what came of it."""
    rows: list[SortedFile] = []
    try:
        for row, scratch in _each("sorting", planned, out, progress):
            reason = _put(row, out, scratch)
            left = replace(row, place="", how="", state="left", note=reason)
            rows.append(left if reason else replace(row, state="done"))
    except OSError as error:
        raise PathError(
            f"{error.strerror or error}: {len(rows)} of {len(planned)} files are sorted, the others are where they "
            f"were. {out / TABLE} lists both, and the same command goes on from there."
        ) from error
    return rows


def _each(
    what: str, rows: Sequence[SortedFile], out: Path, progress: bool
) -> Iterator[tuple[SortedFile, Path]]:
    """Yield rows with a folder for half-written copies, which is gone afterwards, and show a bar."""
    scratch = own_folder(out, _SCRATCH)
    try:
        with meter(what, len(rows), enabled=progress and bool(rows)) as tick:
            for number, row in enumerate(rows):
                yield row, scratch
                tick(number + 1)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _put(row: SortedFile, out: Path, scratch: Path) -> str:
    """Do what a row says, unless it is done already, and return why it cannot be done."""
    source, target = (
        Path(row.file),
        own_folder(out, row.group) / posixpath.basename(row.place),
    )
    how = cast(How, row.how)
    if not os.path.lexists(source) and (
        _is_there(target, row.size) or holds(source, target, how)
    ):
        return ""  # done before a kill
    return _moved(source, target, how, scratch)


def _moved(source: Path, target: Path, how: How, scratch: Path) -> str:
    """Put a file elsewhere, or return why that cannot be done; what befalls the next file too is raised."""
    try:
        put_file(source, target, how, scratch)
    except FileNotFoundError:
        return "it is no longer there"
    except FileExistsError:
        return f"another file is at {target}"
    except OSError as error:
        if error.errno in _ENDING:
            raise
        return error.strerror or str(error)
    return ""


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


# -- back again -------------------------------------------------------------------------------------------------


def undo_sort(
    table: str | os.PathLike[str], *, progress: bool = False
) -> list[SortedFile]:
    """Take back everything that a table lists, and remove it; what was changed since stays, and stays listed.

    Files that were moved go back, copies and links that are still what they were are removed, and so are the folders of
    classes once they are empty. It may be interrupted and called again.

    Parameters
    ----------
    table : path-like
        The table, in the folder that files were sorted into.
    progress : bool
        Whether to show a bar.

    Returns
    -------
    list of SortedFile
        What could not be taken back, with the reason.
    """
    path = Path(
        os.path.realpath(os.path.dirname(os.path.abspath(table))),
        os.path.basename(table),
    )
    rows, out = read_table(path), path.parent
    kept: list[SortedFile] = []
    with locked(out):
        remove_leftovers(out, f".{TABLE}.*")
        try:
            for row, scratch in _each("undoing", rows[::-1], out, progress):
                if row.place and (reason := _taken_back(row, out, scratch)):
                    kept.append(replace(row, note=reason))
        except OSError as error:
            raise PathError(
                f"{error.strerror or error}. What was not undone is as it was; undo it again."
            ) from error
        for group in {row.group for row in rows if row.place}:
            if not (out / group).is_symlink():
                _remove_if_empty(out / group)
        if kept:
            write_table(path, reversed(kept))
        else:
            path.unlink()
    _remove_if_empty(out)
    return kept


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # others have put something there
        folder.rmdir()


def _taken_back(row: SortedFile, out: Path, scratch: Path) -> str:
    """Undo one row, unless that is done already, and return why it cannot be done."""
    source, target = (
        Path(row.file),
        own_folder(out, row.group, make=False) / posixpath.basename(row.place),
    )
    how = cast(How, row.how)
    if not os.path.lexists(target):
        return (
            ""
            if how != "move" or os.path.lexists(source) or row.state == "planned"
            else "it is no longer there"
        )
    if holds(source, target, how):
        target.unlink()
    elif row.state == "planned" and (
        os.path.lexists(source) or not _is_there(target, row.size)
    ):
        return ""  # it was never put there
    elif how == "link":
        return "" if row.state == "planned" else "something else has its place"
    elif how == "copy":
        return "it was changed, or its original is gone"
    else:
        with suppress(OSError):  # then the file cannot be put there, which says why
            source.parent.mkdir(parents=True, exist_ok=True)
        return _moved(target, source, "move", scratch)
    return ""


# -- the table --------------------------------------------------------------------------------------------------


def write_table(path: Path, rows: Iterable[SortedFile]) -> None:
    """Write a table in one step."""
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(SortedFile))
        for row in rows:
            likely = "" if row.probability is None else f"{row.probability:.6g}"
            writer.writerow(
                {
                    **asdict(row),
                    "probability": likely,
                    "note": csv_text(row.note),
                }.values()
            )


def read_table(path: str | os.PathLike[str]) -> list[SortedFile]:
    """Return the rows of a table, however it was edited.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    FileFormatError
        If it is no table of a sort, or names files outside of its folder.
    """
    if not os.path.isfile(path) or os.path.islink(path):
        raise DatasetNotFoundError(
            f"No table {os.fspath(path)!r} here; {TABLE} lies in the folder of sorted files."
        )
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            found = csv.DictReader(file, strict=True)
            if found.fieldnames != [field.name for field in fields(SortedFile)]:
                raise ValueError("its first line is not that of one")
            return [_row(values) for values in found]
    except (ValueError, TypeError, csv.Error) as error:
        raise FileFormatError(
            f"{os.fspath(path)} is no table of a sort, or was damaged: {error}"
        ) from error


def _row(values: dict[str, Any]) -> SortedFile:
    likely = float(values["probability"]) if values["probability"] else None
    row = from_values(
        SortedFile,
        {**values, "probability": likely, "size": int(values["size"])},
        "a line",
    )
    parts = row.place.split("/")
    inside = not any(
        part in ("", "..") or odd_name(part) or "\\" in part for part in parts
    )
    if row.place and not (inside and len(parts) == 2):
        raise ValueError(f"it names {row.place!r} outside of its folder")
    image = (
        os.path.isabs(row.file)
        and os.path.normpath(row.file) == row.file
        and is_image(row.file)
    )
    if not image:
        raise ValueError(f"it names {row.file!r}, which is no path of an image")
    return row
