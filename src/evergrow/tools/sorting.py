"""Sorting a folder of images into a folder for each class, and taking it back.

The table ``OUT/sorted.csv`` is written before the first file is put anywhere, with
every file and where it goes, and again at the end. After a kill at any moment the table
and the folders tell what is left to do. Nothing is overwritten, no link is followed,
and what cannot be read stays where it is.

A file is removed only while a second directory entry with the same content exists.
"""

from __future__ import annotations

import csv
import errno
import os
import posixpath
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

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
from evergrow.data.image_suffixes import IMAGE_SUFFIXES, is_image, plugin_of
from evergrow.data.items import Images
from evergrow.data.storage import Tree
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learner import Learner
from evergrow.tools.file_moves import (
    SCRATCH_PATTERN,
    How,
    folder_name,
    folder_names,
    free_name,
    holds,
    odd_file,
    own_folder,
    put_file,
    remove_partial_copies,
    same_entry,
    same_name,
    scratch_folder,
)

TABLE = "sorted.csv"
"""Name of the table."""

UNKNOWN = "unknown"
UNSURE = "unsure"
"""Folders of what belongs to no learned class, and of answers that are not likely enough."""

LEAST = 0.8
"""Probability from which an answer counts as sure."""

BLOCK = 16_384
"""Images that are asked about at once, which bounds memory."""

_ENDING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors that stop the whole sort, since the next file would meet them too."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class SortedFile:
    """One row of the table: a file, the answer about it, and where it went.

    Parameters
    ----------
    file : str
        Where it was, as a whole path.
    answer : str
        The likeliest class, also where it is not sure; empty for what is unknown or
        cannot be read.
    probability : float or None
        Of the answer.
    place : str
        Where it went, from the folder of the table; empty where it stays.
    how : {"move", "copy", "link", ""}
        How it got there.
    state : {"planned", "done", "left", "undoing"}
        Whether it is there. While an undo runs, what was done is "undoing".
    size : int
        Bytes of the file.
    note : str
        What is unusual about it: that it is unknown, unsure, or cannot be read.
    folder : str
        The folder that was sorted, as a whole path. ``file`` lies in it.
    """

    file: str
    answer: str = ""
    probability: float | None = None
    place: str = ""
    how: Literal["move", "copy", "link", ""] = ""
    state: Literal["planned", "done", "left", "undoing"] = "left"
    size: int = 0
    note: str = ""
    folder: str = ""

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
        Images, in subfolders too; links and hidden files are left alone, and so is
        ``out``, should it lie there.
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
    _check_no_undo(earlier, target)
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
    classes = [str(name) for name in learner.state_.classes]
    fresh = [name for name in classes if name not in known]
    folders = folder_names(fresh, [unknown, UNSURE, TABLE, *known.values()])
    folders |= {name: known[name] for name in classes if name in known}
    used = {
        group: _names_in(target, group, earlier)
        for group in {unknown, UNSURE, *folders.values()}
    }
    rows: list[SortedFile] = []
    alarm = false_alarm if learner.state_.describe()["novelty"] else None
    for start in range(0, len(names), BLOCK):
        block = names[start : start + BLOCK]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the rows say it
            try:
                found = learner.ask(
                    Images(tuple(block), root=root), false_alarm=alarm, on_error="skip"
                )
            except ImageError as error:  # none can be read
                left |= dict.fromkeys(block, str(error))
                continue
        left |= dict(found.failures)
        columns = found.ranked(1)[:, 0]
        for place, row in enumerate(found.rows.tolist()):
            file = block[row]
            name = str(found.classes[columns[place]])
            likely = float(found.values[place, columns[place]])
            sorted_file = SortedFile(
                str(root / file), name, likely, size=sizes[file], folder=str(root)
            )
            group = folders[name]
            if found.unknown is not None and found.unknown[place]:
                group = unknown
                sorted_file = replace(
                    sorted_file,
                    answer="",
                    probability=None,
                    note=f"unknown, most like {name}",
                )
            elif likely < least:
                group = UNSURE
                sorted_file = replace(sorted_file, note="unsure")
            if (root / file).parent == target / group:
                left[file] = "it is in its folder already"
                continue
            free = _free_name(file, used[group])
            rows.append(replace(sorted_file, place=f"{group}/{free}"))
    rows += [
        SortedFile(str(root / name), size=sizes[name], note=reason, folder=str(root))
        for name, reason in left.items()
    ]
    return sorted(rows, key=lambda row: row.file)


def _checked(
    learner: Learner, folder: Any, out: Any, unknown: str
) -> tuple[Path, Path]:
    """Return the two folders, all links on the way to them followed, or raise what is wrong with the request."""
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(out))
    if not root.is_dir():
        raise DatasetNotFoundError(f"No folder {os.fspath(folder)!r} here.")
    if target.exists() and os.path.samefile(root, target):
        raise InputError(
            f"{os.fspath(out)} holds the images themselves; name another folder to sort them into."
        )
    if not target.parent.is_dir() or (target.exists() and not target.is_dir()):
        raise InputError(
            f"{os.fspath(out)} must be a folder, or a new one in a folder that is there."
        )
    if unknown != folder_name(unknown) or same_name(unknown) in (UNSURE, TABLE):
        raise InputError(
            f"{unknown!r} cannot be the name of a folder for unknown images; try {UNKNOWN!r}."
        )
    if learner.state_.kind != "image" or not hasattr(learner.head_, "predict_proba"):
        raise InputError(
            "Sorting needs a model of images that gives probabilities, such as 'evergrow fit' makes."
        )
    return root, target


def _check_no_undo(earlier: Iterable[SortedFile], out: Path) -> None:
    """Refuse to sort between the two halves of an undo: files would be there twice."""
    if any(row.state == "undoing" for row in earlier):
        raise InputError(
            f"An undo of {out / TABLE} was interrupted; undo it again before sorting."
        )


def _images(root: Path, out: Path) -> dict[str, int]:
    """Return the images below a folder and their sizes; hidden ones are left out, and what is in another folder."""
    below = ""
    if out.is_relative_to(root):
        below = f"{out.relative_to(root).as_posix()}/"
    return {
        name: size
        for name, size in Tree(root).listing().items()
        if is_image(name)
        and not (below and name.startswith(below))
        and not any(part.startswith(".") for part in name.split("/"))
    }


def _why_not(root: Path, name: str) -> str:
    """Return why an image is not sorted; empty for an ordinary file."""
    try:
        return odd_file(root / name)
    except FileNotFoundError:
        return "it is no longer there"


def _names_in(out: Path, group: str, earlier: Iterable[SortedFile]) -> set[str]:
    """Return the names that are taken in a folder: by what is there, or was to go there."""
    folder = own_folder(out, group, make=False)
    if folder.is_dir():
        there = os.listdir(folder)
    else:
        there = []
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

    An interrupted sort of another folder into ``out`` is not completed. Its rows stay
    in the table until that folder is sorted again, or all is undone.

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
    FileFormatError
        If the table there is damaged.
    InputError
        If an undo was interrupted there, or a folder cannot be used.
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
    root, target = _checked(learner, folder, out, settings.get("unknown", UNKNOWN))
    target.mkdir(exist_ok=True)
    with locked(target):
        remove_leftovers(target, f".{TABLE}.*")
        table = target / TABLE
        if os.path.lexists(table):
            earlier = read_table(table)
        else:
            earlier = []
        _check_no_undo(earlier, target)
        resumed, waiting = split_planned(earlier, root)
        remove_partial_copies(target)
        _remove_partial_copies(target / row.group for row in resumed)
        completed = _carried_out(resumed, target, progress)
        done = [row for row in (*earlier, *completed) if row.state == "done"]
        before = [*done, *waiting]
        plan = plan_sort(learner, folder, out, **settings, earlier=before)
        planned = [replace(row, how=how, state="planned") for row in plan if row.place]
        stays = [row for row in plan if not row.place]
        write_table(table, [*before, *planned, *stays])
        done = _carried_out(planned, target, progress)
        write_table(table, [*before, *done, *stays])
    return [*completed, *done, *stays]


def split_planned(
    rows: Iterable[SortedFile], folder: str | os.PathLike[str]
) -> tuple[list[SortedFile], list[SortedFile]]:
    """Return the planned rows of files in a folder, and those of files elsewhere."""
    root = Path(os.path.realpath(folder))
    inside: list[SortedFile] = []
    elsewhere: list[SortedFile] = []
    for row in rows:
        if row.state == "planned":
            is_inside = Path(row.file).is_relative_to(root)
            (inside if is_inside else elsewhere).append(row)
    return inside, elsewhere


def _carried_out(
    planned: Sequence[SortedFile], out: Path, progress: bool
) -> list[SortedFile]:
    """Put files where they belong, and return the rows with what came of it."""
    rows: list[SortedFile] = []
    if not planned:
        return rows
    try:
        with scratch_folder(out) as scratch:
            for row in _with_progress("sorting", planned, progress):
                reason = _put(row, out, scratch)
                left = replace(row, place="", how="", state="left", note=reason)
                rows.append(left if reason else replace(row, state="done"))
    except OSError as error:
        raise PathError(
            f"{error.strerror or error}: {len(rows)} of {len(planned)} files are sorted, the others are where they "
            f"were. {out / TABLE} lists both, and the same command goes on from there."
        ) from error
    return rows


def _with_progress(
    what: str, rows: Sequence[SortedFile], progress: bool
) -> Iterator[SortedFile]:
    """Yield rows and show a bar."""
    with meter(what, len(rows), enabled=progress and bool(rows)) as tick:
        for number, row in enumerate(rows):
            yield row
            tick(number + 1)


def _remove_partial_copies(folders: Iterable[Path]) -> None:
    """Remove what a killed process left half-written in folders; follow no link."""
    for folder in set(folders):
        if folder.is_dir() and not _behind_link(folder):
            remove_partial_copies(folder)


def _behind_link(folder: Path) -> bool:
    """Return whether a folder, or one on the way to it, is a link."""
    return os.path.realpath(folder) != str(folder)


def _put(row: SortedFile, out: Path, scratch: Path) -> str:
    """Do what a row says, unless it is done already, and return why it cannot be done."""
    source = Path(row.file)
    target = own_folder(out, row.group) / posixpath.basename(row.place)
    how = cast(How, row.how)
    try:
        if not os.path.lexists(source):
            if _is_there(target, row.size) or holds(source, target, how):
                return ""  # done before a kill
            return "it is no longer there"
        if _behind_link(source.parent):
            return "a link is on the way to it: links are not followed"
        if reason := odd_file(source):
            return reason
        put_file(source, target, how, scratch)
    except OSError as error:
        return _reason(error, target)
    return ""


def _reason(error: OSError, target: Path) -> str:
    """Return why one file stays, or raise the error if the next file would meet it."""
    if isinstance(error, FileNotFoundError):
        return "it is no longer there"
    if isinstance(error, FileExistsError):
        return f"another file is at {target}"
    if error.errno in _ENDING:
        raise error
    return error.strerror or str(error)


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


# -- back again ------------------------------------------------------------------------


def undo_sort(
    table: str | os.PathLike[str], *, progress: bool = False
) -> list[SortedFile]:
    """Take back everything that a table lists, and remove it; what was changed since stays, and stays listed.

    Files that were moved go back, copies and links that are still what they were are
    removed, and so are the folders of classes once they are empty. It may be
    interrupted and called again.

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
    out = path.parent
    if _only_leftovers(out):  # killed before the table was there, or after
        with locked(out):
            remove_leftovers(out, f".{TABLE}.*")
            remove_partial_copies(out)
        _remove_if_empty(out)
        return []
    _check_table_exists(table)
    kept: list[SortedFile] = []
    with locked(out):
        remove_leftovers(out, f".{TABLE}.*")
        rows = _rows_to_undo(path)
        remove_partial_copies(out)
        _remove_partial_copies(out / row.group for row in rows if row.place)
        _remove_partial_copies(
            Path(row.file).parent for row in rows if row.how == "move"
        )
        try:
            for row in _with_progress("undoing", rows[::-1], progress):
                reason = ""
                if row.place:
                    reason = _taken_back(row, out)
                if reason:
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


def _rows_to_undo(path: Path) -> list[SortedFile]:
    """Return the rows of a table, and note in it that their undo has begun."""
    rows: list[SortedFile] = []
    noted: list[SortedFile] = []
    for row in read_table(path):
        is_done = row.state in ("done", "undoing")
        rows.append(replace(row, state="done") if is_done else row)
        noted.append(replace(row, state="undoing") if is_done else row)
    with suppress(OSError):  # a full disk must not prevent what makes room
        write_table(path, noted)
    return rows


def _only_leftovers(out: Path) -> bool:
    """Return whether a folder holds only what a killed sort or undo leaves behind."""
    try:
        names = os.listdir(out)
    except OSError:
        return False
    leftover = re.compile(rf"\.lock|\.{re.escape(TABLE)}\..*\.part|{SCRATCH_PATTERN}")
    return bool(names) and all(map(leftover.fullmatch, names))


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # others have put something there
        folder.rmdir()


def _taken_back(row: SortedFile, out: Path) -> str:
    """Undo one row, unless that is done already, and return why it cannot be done."""
    source = Path(row.file)
    try:
        folder = own_folder(out, row.group, make=False)
        return _undo_row(row, source, folder / posixpath.basename(row.place))
    except InputError as error:  # a link or a file in place of the folder
        return str(error)
    except OSError as error:
        return _reason(error, source)


def _undo_row(row: SortedFile, source: Path, target: Path) -> str:
    planned = row.state == "planned"
    if not os.path.lexists(target):
        if row.how != "move" or planned or os.path.lexists(source):
            return ""
        return "it is no longer there"
    if row.how == "link":
        if holds(source, target, "link"):
            target.unlink()
            return ""
        return "" if planned else "something else has its place"
    if _behind_link(source.parent):
        return f"a link is on the way to {source}: links are not followed"
    if holds(source, target, "copy"):
        target.unlink()
        return ""
    if planned and (os.path.lexists(source) or not _is_there(target, row.size)):
        return ""  # it was never put there
    if row.how == "copy":
        return "it was changed, or its original is gone"
    if not stat.S_ISREG(os.lstat(target).st_mode):
        return "something else has its place"
    if os.path.lexists(source) and same_entry(source, target):
        return ""  # its folder was moved back by hand
    with suppress(OSError):  # then the file cannot be put there, which says why
        source.parent.mkdir(parents=True, exist_ok=True)
    put_file(target, source, "move")
    return ""


# -- the table -------------------------------------------------------------------------


_COLUMNS = [field.name for field in fields(SortedFile)]
_EXACT = ("file", "folder", "answer", "place")
_PATHS = ("file", "folder")


def write_table(path: Path, rows: Iterable[SortedFile]) -> None:
    """Write a table in one step."""
    with (
        atomic_path(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for row in rows:
            cells = asdict(row)
            cells["probability"] = ""
            if row.probability is not None:
                cells["probability"] = f"{row.probability:.6g}"
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


def read_table(path: str | os.PathLike[str]) -> list[SortedFile]:
    """Return the rows of a table, however it was edited.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    FileFormatError
        If it is no table of a sort, or names files outside of its folders.
    """
    _check_table_exists(path)
    title = os.fspath(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = read_csv_rows(file.read(), title)
        _, header = next(lines, (0, []))
        if header != _COLUMNS:
            raise ValueError("its first line is not that of one")
        return [_row(cells, line) for line, cells in lines if cells]
    except ValueError as error:
        raise FileFormatError(
            f"{title} is no table of a sort, or was damaged: {error}"
        ) from error


def _row(cells: list[str], line: int) -> SortedFile:
    """Return a checked row of a table; whatever it names lies in its two folders."""
    if len(cells) != len(_COLUMNS):
        raise ValueError(f"line {line} must have {len(_COLUMNS)} cells")
    if _CONTROL.search("".join(cells)):
        raise ValueError(f"line {line} has control characters")
    values: dict[str, Any] = dict(zip(_COLUMNS, cells, strict=True))
    for column in _EXACT:
        values[column] = exact_text(values[column])
    for column in _PATHS:
        values[column] = values[column].replace("/", os.sep)
    likely = values["probability"]
    values["probability"] = float(likely) if likely else None
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
        raise ValueError(
            f"line {line} names {row.file!r}, which is no path of an image"
        )
    if bool(row.place) != (row.state != "left") or bool(row.place) != bool(row.how):
        raise ValueError(f"line {line} contradicts itself")
    if not row.place:
        return
    place_parts = row.place.split("/")
    is_below = len(place_parts) == 2 and all(map(_is_plain_name, place_parts))
    if not (is_below and _ends_like_image(row.place)):
        raise ValueError(f"line {line} names {row.place!r} outside of its folder")


def _is_plain_name(name: str) -> bool:
    """Return whether a text is one name of a file or folder on this system."""
    os.fsencode(name)  # a ValueError for what no system call takes
    separators = {"/", os.sep, "\0"}
    return name not in ("", ".", "..") and separators.isdisjoint(name)


def _ends_like_image(name: str) -> bool:
    """Return whether a name ends like an image, even if its reader is not installed."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix in IMAGE_SUFFIXES or plugin_of(name) is not None
