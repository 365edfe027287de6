"""Atomic file replacement, locks and links.

Links are followed: the file that a link leads to is replaced, and the link stays. A
replaced file keeps its mode and, as far as the system allows, its owner. Read-only
files are not replaced, even by administrators.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from evergrow.core.errors import BusyError, ModelNotFoundError, PathError

StrPath: TypeAlias = str | os.PathLike[str]
"""A path, as a string or an object."""

_LOCK = ".lock"
"""Name of the lock file in a locked folder."""

PARTIAL = ".part"
"""Suffix of hidden folders of files that are being written."""

_ABANDONED = 3600.0
"""Age in seconds of an abandoned hidden folder, on file systems without locks."""


def real_path(path: StrPath) -> Path:
    """Return the path of a file with all links followed. The file may not exist yet.

    Parameters
    ----------
    path : path-like
        The file, or a link (or a chain of them) to it.

    Raises
    ------
    PathError
        If the path is a broken link.

    Examples
    --------
    >>> import os, pathlib, tempfile
    >>> from evergrow.core.files import real_path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = pathlib.Path(folder, "v3.evg")
    ...     model.touch()
    ...     os.symlink("v3.evg", pathlib.Path(folder, "latest.evg"))
    ...     real_path(pathlib.Path(folder, "latest.evg")).name
    'v3.evg'
    """
    if os.path.islink(path) and not os.path.exists(path):
        raise PathError(
            f"{os.fspath(path)} must lead to a file, but it is a link to nothing"
        )
    return Path(os.path.realpath(path))


def existing_model(path: StrPath) -> Path:
    """Return the path of a model with all links followed.

    Raises
    ------
    ModelNotFoundError
        If there is no file.

    Examples
    --------
    >>> from evergrow.core.files import existing_model
    >>> existing_model("nowhere.evg")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ModelNotFoundError: No model 'nowhere.evg' here. Make one ...
    """
    if not os.path.isfile(path):
        name = os.fspath(path)
        if os.path.islink(path):
            raise ModelNotFoundError(f"{name} is a link to nothing")
        if os.path.isdir(path):
            raise ModelNotFoundError(f"{name} is a folder, not a model file.")
        if os.path.exists(path):
            raise ModelNotFoundError(f"{name} is a pipe or a device, not a model file.")
        raise ModelNotFoundError(f"No model {name!r} here. Make one with fit.")
    return Path(os.path.realpath(path))


def check_replaceable(path: StrPath) -> None:
    """Raise :class:`PathError` if a path exists and is read-only or not a file.

    Only the mode counts, so that read-only files are safe from administrators too.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise PathError(
            f"{os.fspath(path)} must be an ordinary file to be replaced, "
            "got a folder or a device"
        )
    if not mode & 0o222:
        raise PathError(
            f"{os.fspath(path)} must be writable, but it is read-only "
            f"(mode {stat.S_IMODE(mode):04o})"
        )


def check_writable_folder(folder: StrPath) -> None:
    """Raise :class:`PathError` unless this process can create files in a folder.

    Nothing is written. Administrators can write nearly everywhere except on read-only
    file systems.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.core.files import check_writable_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_writable_folder(folder)
    >>> check_writable_folder("/nowhere")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.PathError: there is no folder '/nowhere'
    """
    name = os.fspath(folder)
    if not os.path.isdir(folder):
        raise PathError(f"there is no folder {name!r}")
    is_allowed = os.access(
        folder,
        os.W_OK | os.X_OK,
        effective_ids=os.access in os.supports_effective_ids,
    )
    if not is_allowed:
        raise PathError(f"you may not write to the folder {name!r}")


@contextmanager
def atomic_path(path: StrPath, *, like: StrPath | None = None) -> Iterator[Path]:
    """Yield a temporary path, and move it to `path` if the block succeeds.

    A crash or an error leaves the old file or the new one, never half of a file. The
    new file is synced to disk before it replaces the old one, and gets its mode and
    owner.

    Parameters
    ----------
    path : path-like
        The file to write. Its folder must exist. Links are followed.
    like : path-like, optional
        A file whose mode and owner a new file gets. By default the umask applies.

    Raises
    ------
    PathError
        If the file is read-only, is not a regular file, or is a broken link.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from evergrow.core.files import atomic_path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = pathlib.Path(folder, "note.txt")
    ...     with atomic_path(target) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     target.read_text()
    'whole'
    """
    target = real_path(path)
    check_replaceable(target)
    # A folder, because libraries may create further temporary files next to it.
    with partial_folder(target.parent, target.name) as folder:
        temporary = folder / target.name
        # The system applies the umask to a new file. Python reads the umask only by
        # changing it for all threads. Nobody else can enter the folder meanwhile.
        temporary.touch(0o666)
        new_mode = stat.S_IMODE(temporary.stat().st_mode)
        temporary.chmod(0o600)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        reference = target
        if like is not None and not target.exists():
            reference = Path(like)
        _take_access(temporary, reference, new_mode)
        os.replace(temporary, target)
    sync_folder(target.parent)


@contextmanager
def partial_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a hidden folder in `parent`, yield it, and delete it after the block.

    If the process is killed, :func:`remove_leftovers` deletes it later.
    """
    with ExitStack() as stack:
        while True:
            folder = Path(
                tempfile.mkdtemp(dir=parent, prefix=f".{name}.", suffix=PARTIAL)
            )
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # Another process may delete the folder as a leftover before it is locked.
            with suppress(BusyError, FileNotFoundError):
                stack.enter_context(locked(folder))
                break
        yield folder


def remove_leftovers(folder: Path, pattern: str = ".*") -> int:
    """Delete hidden folders and files of killed processes. Return their number.

    Parameters
    ----------
    folder : Path
        The folder.
    pattern : str
        Pattern of names, without the suffix :data:`PARTIAL`. ``"**/.*"`` includes
        subfolders.
    """
    removed = 0
    for leftover in folder.glob(f"{pattern}{PARTIAL}"):
        # Suppressed if it is in use, was deleted, or belongs to another user.
        with suppress(OSError, BusyError):
            if leftover.is_dir() and not leftover.is_symlink():
                age = time.time() - leftover.stat().st_mtime
                # A folder in use cannot be locked. Without locks, only its age tells.
                with locked(leftover) as held:
                    pass
                if not held and age <= _ABANDONED:
                    continue
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
            removed += 1
    return removed


def restrict(path: Path, mode: int) -> None:
    """Remove the permissions of a file or folder that `mode` does not include.

    The owner keeps access. Of a folder, permission to read includes entering.
    """
    is_folder = path.is_dir()
    if is_folder:
        may_enter = (mode & 0o444) >> 2
        allowed = mode | may_enter | 0o700
    else:
        allowed = mode | 0o600
    now = stat.S_IMODE(path.stat().st_mode)
    if now & ~allowed & 0o777:
        os.chmod(path, now & allowed)


def take_owner(path: Path, like: Path) -> bool:
    """Give a file the owner and the group of `like`, each if allowed.

    Return whether it has the group of `like` now.
    """
    wanted = os.stat(like)
    for owner, group in ((wanted.st_uid, -1), (-1, wanted.st_gid)):
        # Only administrators may change the owner, and Windows has no owners.
        with suppress(PermissionError, AttributeError):
            os.chown(path, owner, group)
    return os.stat(path).st_gid == wanted.st_gid


def _take_access(path: Path, like: Path, new_mode: int) -> None:
    """Give a file the owner, group and mode of `like`, or `new_mode` without it."""
    if not like.exists():
        os.chmod(path, new_mode)
        return
    mode = stat.S_IMODE(like.stat().st_mode) & 0o777
    same_group = take_owner(path, like)
    if not same_group:
        # Permissions of one group are not for another.
        mode &= ~0o070
    os.chmod(path, mode)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename in it is durable; do nothing on Windows."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: StrPath, *, wait: bool = False) -> Iterator[bool]:
    """Lock a folder for this process. Yield whether it is locked.

    It is not if the file system has no locks, or the folder is read-only.

    The lock is a hidden file, and is released even if the process is killed. It only
    affects processes that use this function.

    Parameters
    ----------
    folder : path-like
        The folder.
    wait : bool, default=False
        Whether to wait for another process instead of raising.

    Raises
    ------
    BusyError
        If another process holds the lock and `wait` is false.
    FileNotFoundError
        If there is no such folder.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.core.files import locked
    >>> with tempfile.TemporaryDirectory() as folder, locked(folder):
    ...     pass
    """
    from filelock import FileLock, Timeout

    os.stat(folder)
    lock = FileLock(os.path.join(folder, _LOCK))
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout as error:
        raise BusyError(
            f"{os.fspath(folder)} must not be in use, "
            "but another process is writing there"
        ) from error
    except (OSError, NotImplementedError):
        # The file system has no locks, or the folder is read-only.
        pass
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            # Windows cannot delete the open file here, and deletes it on release.
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()
