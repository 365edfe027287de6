"""Files put elsewhere: nothing is overwritten, no link is followed, and a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import stat
import unicodedata
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

from evergrow.core.errors import InputError

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
_LONGEST_NAME = 80  # characters, of four bytes at most where a file system counts 255 bytes, with room for a number


def odd_file(path: Path) -> str:
    """Return why a file can never be looked at; nothing where it can."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "it is a link: links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "it is no ordinary file"
    if status.st_size > LARGEST:
        return f"it has {status.st_size:,} bytes, more than {LARGEST:,}"
    return odd_name(path.name)


def odd_name(name: str) -> str:
    r"""Return why a name of a file or class is refused; nothing where it is an ordinary one.

    Examples
    --------
    >>> from evergrow.tools.file_moves import odd_name
    >>> odd_name("cat.jpg"), odd_name("cat\x1b[2J")
    ('', 'its name has characters that cannot be shown')
    """
    if not name.isprintable():
        return "its name has characters that cannot be shown"
    return "" if name.strip() == name else "its name begins or ends with a blank"


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
    return f"_{plain}" if plain.split(".")[0].strip().lower() in _DEVICES else plain


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
    used, found = {same_name(name) for name in taken}, {}
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
    """Return a name that is not taken: this one, or with a number before its ending."""
    (stem, suffix), number, found = os.path.splitext(name), 1, name
    while taken(found):
        number += 1
        found = f"{stem}-{number}{suffix}"
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


def put_file(source: Path, target: Path, how: How, scratch: Path) -> None:
    """Move, copy or link a file to a path that is free; whoever is killed meanwhile can do it again.

    Parameters
    ----------
    source, target : Path
        Where it lies, and where it goes. A target that holds this very file, or its bytes, is taken as reached.
    how : {"move", "copy", "link"}
        What to do.
    scratch : Path
        A folder on the disk of the target that this process alone writes to.

    Raises
    ------
    FileExistsError
        If there is something else at the target.
    FileNotFoundError
        If the file is not there.
    OSError
        If the disk is full, or a folder may not be written to; the file is where it was.
    """
    os.lstat(source)
    reached = holds(source, target, how)
    if how == "link" and not reached:
        os.symlink(source, target)
    elif not reached and (how == "copy" or not _linked(source, target)):
        _copy(source, target, scratch)
    if how == "move":
        try:
            os.unlink(source)
        except FileNotFoundError:
            pass
        except OSError:  # a folder that may only be read: the file stays there alone
            os.unlink(target)
            raise


def _linked(source: Path, target: Path) -> bool:
    """Give a file a second name, which unlike a rename never overwrites; return False where the disk has no such."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # another disk, or one without hard links
        return False
    return True


def _copy(source: Path, target: Path, scratch: Path) -> None:
    """Write a copy that appears whole, with the times and the mode of the original."""
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


def holds(source: Path, target: Path, how: How) -> bool:
    """Return whether a link leads to the source, or both are there and the same file or of the same bytes."""
    if how == "link":
        return target.is_symlink() and os.readlink(target) == os.fspath(source)
    if (
        not (source.is_file() and target.is_file())
        or source.is_symlink()
        or target.is_symlink()
    ):
        return False
    return os.path.samefile(source, target) or filecmp.cmp(
        source, target, shallow=False
    )
