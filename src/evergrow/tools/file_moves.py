"""Files put elsewhere: nothing is overwritten, no link is followed, and a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import unicodedata
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Literal

from evergrow.core.errors import InputError
from evergrow.core.files import partial_folder, remove_leftovers

How = Literal["move", "copy", "link"]
"""Ways to put a file elsewhere; a link is a symbolic one."""

LARGEST = 256 * 2**20
"""Bytes of a file that is still looked at."""

_FORBIDDEN = '<>:"/\\|?*'
_FIRST = ".-+=@"  # hidden, an option of a command, or a formula in a table
_DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{name}{number}" for name in ("com", "lpt") for number in range(10)),
}
# Characters, of four bytes at most where a file system counts 255 bytes, with room for
# a number
_LONGEST_NAME = 80
_NAME_BYTES = 255  # of a name of a file
_PARTIAL = "evergrow-sort"
SCRATCH_PATTERN = rf"\.{_PARTIAL}\..*\.part"
"""Names of scratch folders."""

_COMPARED = 2**20  # bytes of two files compared at a time


def odd_file(path: Path) -> str:
    """Return why a file is not sorted; empty for an ordinary file."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "it is a link: links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "it is no ordinary file"
    if status.st_size > LARGEST:
        return f"it has {status.st_size:,} bytes, more than {LARGEST:,}"
    return ""


def folder_name(name: str) -> str:
    r"""Return a name as near to this one as a folder may have on every system.

    Examples
    --------
    >>> from evergrow.tools.file_moves import folder_name
    >>> [folder_name(name) for name in ("Goldfinch ♀", "../x", "CON", "a/b.", "-rf", "\x00", "")]
    ['Goldfinch ♀', '_._x', '_CON', 'a_b', '_rf', '_', '_']
    """
    plain = unicodedata.normalize("NFC", name)
    plain = "".join(
        "_" if letter in _FORBIDDEN or not letter.isprintable() else letter
        for letter in plain
    )
    plain = plain.strip().rstrip(". ")[:_LONGEST_NAME].rstrip(". ")
    if plain[:1] in _FIRST:  # also where there is no letter at all
        plain = f"_{plain[1:]}"
    if plain.split(".")[0].strip().lower() in _DEVICES:
        return f"_{plain}"
    return plain


def folder_names(names: Collection[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return a folder for each name; no two are the same where case does not count.

    Parameters
    ----------
    names : collection of str
        Any names; those that can stay as they are do.
    taken : collection of str
        Folders that are none of theirs.

    Examples
    --------
    >>> from evergrow.tools.file_moves import folder_names
    >>> folder_names(["ant", "Ant", "a/b", "a_b"], taken=["unknown"])
    {'Ant': 'Ant', 'a_b': 'a_b', 'ant': 'ant-2', 'a/b': 'a_b-2'}
    """
    used = {same_name(name) for name in taken}
    found = {}
    for name in sorted(names, key=lambda name: (folder_name(name) != name, name)):
        found[name] = free_name(
            folder_name(name), lambda other: same_name(other) in used
        )
        used.add(same_name(found[name]))
    return found


def same_name(name: str) -> str:
    """Return what two names share where a system does not tell them apart: by case, or by how accents are written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """Return a name that is not taken: this one, or with a number before its ending.

    A name that gets too long by the number loses characters before it.
    """
    stem, suffix = os.path.splitext(name)
    number = 1
    found = name
    while taken(found):
        number += 1
        ending = f"-{number}{suffix}"
        while len(os.fsencode(stem + ending)) > _NAME_BYTES:
            stem = stem[:-1]
        found = stem + ending
    return found


def own_folder(root: Path, *parts: str, make: bool = True) -> Path:
    """Return a folder below another, made if need be; what is written there must not land anywhere else.

    Raises
    ------
    InputError
        If there is a link or a file on the way.
    """
    place = root
    for part in parts:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InputError(
                f"{place} must be a folder of its own, got a link or a file"
            )
        if make:
            place.mkdir(exist_ok=True)
    return place


def put_file(source: Path, target: Path, how: How, scratch: Path | None = None) -> None:
    """Move, copy or link a file to a free path.

    The call can be repeated after a kill at any moment. A target that holds a copy of
    the file, or the file itself under a second name, counts as reached.

    Parameters
    ----------
    source, target : Path
        Where the file is, and where it goes. They may be on different file systems.
    how : {"move", "copy", "link"}
        What to do.
    scratch : Path, optional
        A folder of this process for half-written copies, from :func:`scratch_folder`.
        Without one on the file system of the target, each copy makes its own.

    Raises
    ------
    FileExistsError
        If something else is at the target, or the target is the source itself.
    FileNotFoundError
        If the source is missing.
    OSError
        If the disk is full or a folder is not writable. The source stays.
    """
    os.lstat(source)
    reached = holds(source, target, how)
    if how == "link":
        if not reached:
            os.symlink(source, target)
        return
    linked = how == "move" and not reached and _linked(source, target)
    if not (reached or linked):
        _copy(source, target, scratch)
    if how == "move":
        if not linked:  # two file systems: only a flush brings their changes in order
            _flush_folder(target.parent)
        _remove_source(source, target)


def _remove_source(source: Path, target: Path) -> None:
    """Remove the first of two directory entries; the second, if that is denied."""
    try:
        os.unlink(source)
    except FileNotFoundError:
        pass
    except OSError:  # the folder of the source is read-only
        os.unlink(target)
        raise


def _flush_folder(folder: Path) -> None:
    """Write the entries of a folder to disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _linked(source: Path, target: Path) -> bool:
    """Give a file a second name, which unlike a rename never overwrites; return False where the disk has no such."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # another disk, or one without hard links
        return False
    return True


def _copy(source: Path, target: Path, scratch: Path | None) -> None:
    """Write a copy that appears whole, with the times and the mode of the original.

    It is written on the file system of the target, since a rename cannot cross two.
    """
    if os.path.lexists(target):
        raise FileExistsError(
            errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target)
        )
    with ExitStack() as stack:
        device = os.stat(target.parent).st_dev
        if scratch is None or os.stat(scratch).st_dev != device:
            scratch = stack.enter_context(scratch_folder(target.parent))
        temporary = scratch / "copy"
        temporary.unlink(missing_ok=True)
        shutil.copy2(source, temporary, follow_symlinks=False)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        if not _linked(temporary, target):
            if os.path.lexists(target):
                raise FileExistsError(
                    errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target)
                )
            os.rename(temporary, target)
        temporary.unlink(missing_ok=True)


def scratch_folder(parent: Path) -> AbstractContextManager[Path]:
    """Return a context with a hidden folder for copies, removed at its end."""
    return partial_folder(parent, _PARTIAL)


def remove_partial_copies(folder: Path) -> None:
    """Remove the scratch folders of killed processes."""
    remove_leftovers(folder, f".{_PARTIAL}.*")


def holds(source: Path, target: Path, how: How) -> bool:
    """Return whether the target has what :func:`put_file` puts there.

    That is a link to the source; or, for a move or a copy, a second directory entry
    with the content of the source. Either of two entries can be removed without loss.
    """
    if how == "link":
        return target.is_symlink() and os.readlink(target) == os.fspath(source)
    for path in (source, target):
        if path.is_symlink() or not path.is_file():
            return False
    return not same_entry(source, target) and _same_content(source, target)


def same_entry(first: Path, second: Path) -> bool:
    """Return whether two paths of existing files lead to one directory entry.

    Two hard links are two entries. One file reached through a linked or mounted folder,
    or by a name that differs only in case where case does not count, is one entry.
    """
    one_folder = os.path.realpath(first.parent) == os.path.realpath(
        second.parent
    ) or os.path.samefile(first.parent, second.parent)
    if not one_folder or first.name == second.name:
        return one_folder
    names = os.listdir(first.parent)
    return first.name not in names or second.name not in names


def _same_content(first: Path, second: Path) -> bool:
    """Compare two files byte by byte; ``filecmp`` would trust sizes and times."""
    if first.stat().st_size != second.stat().st_size:
        return False
    with open(first, "rb") as one, open(second, "rb") as other:
        while True:
            block = one.read(_COMPARED)
            if block != other.read(_COMPARED):
                return False
            if not block:
                return True
