"""Move, copy and link files safely: no overwriting, no links, no loss after a kill."""

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
from evergrow.core.files import partial_folder, remove_leftovers, sync_folder

How = Literal["move", "copy", "link"]
"""Ways to put a file elsewhere; "link" makes a symbolic link."""

MAX_FILE_BYTES = 256 * 2**20
"""Larger files are not sorted."""

_FORBIDDEN = '<>:"/\\|?*'
_FORBIDDEN_FIRST = ".-+=@"  # hidden, an option of a command, or a formula in a table
_DEVICES = {  # names that Windows reserves
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{name}{number}" for name in ("com", "lpt") for number in range(10)),
}
_MAX_NAME_BYTES = 255
_MAX_FOLDER_LETTERS = 80
"""Largest length of a folder name. It leaves room for a number in most names."""
_PARTIAL = "evergrow-sort"
SCRATCH_PATTERN = rf"\.{_PARTIAL}\..*\.part"
"""Names of scratch folders."""

_COMPARED_BYTES = 2**20  # at a time


def odd_file(path: Path) -> str:
    """Return why a file cannot be sorted; empty for a regular file."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "it is a link: links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_size > MAX_FILE_BYTES:
        return f"it has {status.st_size:,} bytes, more than {MAX_FILE_BYTES:,}"
    return ""


def folder_name(name: str) -> str:
    r"""Return the nearest name that is valid for a folder on every system.

    Examples
    --------
    >>> from evergrow.tools.file_moves import folder_name
    >>> names = ("Goldfinch ♀", "../x", "CON", "a/b.", "-rf", "\x00", "")
    >>> [folder_name(name) for name in names]
    ['Goldfinch ♀', '_._x', '_CON', 'a_b', '_rf', '_', '_']
    """
    plain = unicodedata.normalize("NFC", name)
    plain = "".join(
        "_" if letter in _FORBIDDEN or not letter.isprintable() else letter
        for letter in plain
    )
    plain = plain.strip().rstrip(". ")[:_MAX_FOLDER_LETTERS].rstrip(". ")
    if plain[:1] in _FORBIDDEN_FIRST:  # true for an empty name too
        plain = f"_{plain[1:]}"
    if plain.split(".")[0].strip().lower() in _DEVICES:
        return f"_{plain}"
    return plain


def folder_names(names: Collection[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return a folder name per class, unique on case-insensitive systems too.

    Parameters
    ----------
    names : collection of str
        Class names. Valid folder names are kept.
    taken : collection of str
        Folder names that must not be used.

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
    """Normalise case and accents, which some file systems ignore."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """Return this name, or the name with a number before its suffix, if it is taken.

    Names that become too long are shortened before the number.
    """
    stem, suffix = os.path.splitext(name)
    number = 1
    found = name
    while taken(found):
        number += 1
        ending = f"-{number}{suffix}"
        while len(os.fsencode(stem + ending)) > _MAX_NAME_BYTES:
            stem = stem[:-1]
        found = stem + ending
    return found


def own_folder(root: Path, name: str, *, make: bool = True) -> Path:
    """Return a folder in `root`, created if `make` is true and it is missing.

    Raises
    ------
    InputError
        If it is a link or a file.
    """
    folder = root / name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} must be a folder of its own, got a link or a file")
    if make:
        folder.mkdir(exist_ok=True)
    return folder


def put_file(source: Path, target: Path, how: How, scratch: Path | None = None) -> None:
    """Move, copy or link a file to a free path.

    The call can be repeated after a kill at any moment. If the target is already a copy
    of the file, or a hard link to it, nothing is copied.

    Parameters
    ----------
    source, target : Path
        Current and new path. They may be on different file systems.
    how : {"move", "copy", "link"}
        How to put the file there.
    scratch : Path, optional
        A folder of this process for partial copies, from :func:`scratch_folder`. If it
        is not on the file system of the target, each copy creates its own.

    Raises
    ------
    FileExistsError
        If something else is at the target, or the target is the source itself.
    FileNotFoundError
        If the source is missing.
    OSError
        If the disk is full or a folder is not writable. The source stays.
    """
    os.lstat(source)  # raises an error if it is missing
    is_there = holds(source, target, how)
    if how == "link":
        if not is_there:
            os.symlink(source, target)
        return
    linked = how == "move" and not is_there and _linked(source, target)
    if not (is_there or linked):
        _copy(source, target, scratch)
    if how == "move":
        if not linked:  # two file systems: flush, so that changes keep their order
            sync_folder(target.parent)
        _remove_source(source, target)


def _remove_source(source: Path, target: Path) -> None:
    """Remove the source; if that is denied, remove the target and raise the error."""
    try:
        os.unlink(source)
    except FileNotFoundError:
        pass
    except OSError:  # the folder of the source is read-only
        os.unlink(target)
        raise


def _linked(source: Path, target: Path) -> bool:
    """Create a hard link, which never overwrites; return False if unsupported."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # another disk, or one without hard links
        return False
    return True


def _copy(source: Path, target: Path, scratch: Path | None) -> None:
    """Copy a file atomically to a free path, with its times and mode.

    The partial copy is on the file system of the target, so that it can be renamed.
    """
    _check_free(target)
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
            _check_free(target)
            os.rename(temporary, target)
        temporary.unlink(missing_ok=True)


def put_bytes(body: bytes, target: Path, scratch: Path) -> None:
    """Write a new file atomically to a free path.

    Parameters
    ----------
    body : bytes
        Content of the file.
    target : Path
        Path of the file, on the file system of `scratch`.
    scratch : Path
        A folder of this process for partial files, from :func:`scratch_folder`.

    Raises
    ------
    FileExistsError
        If another file is at the target.
    OSError
        If the disk is full or a folder is not writable.
    """
    _check_free(target)
    temporary = scratch / "copy"
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    if not _linked(temporary, target):
        _check_free(target)
        os.rename(temporary, target)
    temporary.unlink(missing_ok=True)


def holds_bytes(body: bytes, target: Path) -> bool:
    """Return whether a path is a regular file with this content."""
    if target.is_symlink() or not target.is_file():
        return False
    return target.stat().st_size == len(body) and target.read_bytes() == body


def _check_free(target: Path) -> None:
    """Raise :class:`FileExistsError` if there is anything at a path."""
    if os.path.lexists(target):
        raise FileExistsError(
            errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target)
        )


def scratch_folder(parent: Path) -> AbstractContextManager[Path]:
    """Return a context with a hidden folder for partial copies, removed at the end."""
    return partial_folder(parent, _PARTIAL)


def remove_partial_copies(folder: Path) -> None:
    """Remove the scratch folders of killed processes."""
    remove_leftovers(folder, f".{_PARTIAL}.*")


def holds(source: Path, target: Path, how: How) -> bool:
    """Return whether the target is already the result of :func:`put_file`.

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
    or by a name that differs only in case on a case-insensitive system, is one entry.
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
            block = one.read(_COMPARED_BYTES)
            if block != other.read(_COMPARED_BYTES):
                return False
            if not block:
                return True
